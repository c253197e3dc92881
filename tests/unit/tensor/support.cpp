#include "tests/unit/tensor/support.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <sstream>

#include "runtime/device.h"
#include "tensor/interpret_value.h"

namespace bm::test {

std::vector<double> numbers(const Tensor& t) {
  const std::vector<std::byte> raw = t.bytes();
  std::vector<double> out(raw.size() / static_cast<size_t>(item_size(t.dtype())));
  for (size_t i = 0; i < out.size(); ++i) {
    const reference::Value v = reference::load(t.dtype(), raw.data(), static_cast<int64_t>(i));
    out[i] = is_float(t.dtype())        ? v.f
             : t.dtype() == DType::kU64 ? static_cast<double>(static_cast<uint64_t>(v.i))
                                        : static_cast<double>(v.i);
  }
  return out;
}

Tensor tensor_of(const std::vector<double>& values, const Shape& shape, DType dtype,
                 const std::string& device) {
  std::vector<std::byte> raw(values.size() * static_cast<size_t>(item_size(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t whole = is_float(dtype) ? 0
                          : values[i] >= 0x1p63
                              ? static_cast<int64_t>(static_cast<uint64_t>(values[i]))
                              : static_cast<int64_t>(values[i]);
    reference::store(dtype, raw.data(), static_cast<int64_t>(i), {whole, values[i]});
  }
  return Tensor::from_bytes(raw, shape, dtype, device);
}

Tensor counting(const Shape& shape, DType dtype, const std::string& device) {
  std::vector<double> v(static_cast<size_t>(max_elements(shape)));
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<double>(i);
  return tensor_of(v, shape, dtype, device);
}

Tolerance tolerance_of(DType t, double factor) {
  switch (t) {
    case DType::kF16: return {factor * 0x1p-11, factor * 0x1p-11};
    case DType::kBF16: return {factor * 0x1p-8, factor * 0x1p-8};
    case DType::kF32: return {factor * 0x1p-24, factor * 0x1p-24};
    case DType::kF64: return {factor * 0x1p-53, factor * 0x1p-53};
    default: return {};
  }
}

::testing::AssertionResult are_close(const std::vector<double>& expected,
                                     const std::vector<double>& actual, Tolerance tolerance) {
  if (expected.size() != actual.size())
    return ::testing::AssertionFailure()
           << expected.size() << " values expected, got " << actual.size();
  for (size_t i = 0; i < expected.size(); ++i) {
    const double e = expected[i], a = actual[i];
    const bool is_same = e == a || (std::isnan(e) && std::isnan(a));
    if (is_same || (std::isfinite(e) &&
                    std::fabs(a - e) <= tolerance.absolute + tolerance.relative * std::fabs(e)))
      continue;
    return ::testing::AssertionFailure()
           << fmt::format("element {} of {}: expected {}, got {} (difference {})", i,
                          expected.size(), e, a, a - e);
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult has_values(const Tensor& t, const Shape& shape,
                                      const std::vector<double>& expected, Tolerance tolerance) {
  if (t.shape() != shape)
    return ::testing::AssertionFailure()
           << "shape " << to_string(t.shape()) << ", expected " << to_string(shape);
  return are_close(expected, numbers(t), tolerance);
}

int effort() {
  const char* wanted = std::getenv("BM_TEST_LONG");
  return wanted != nullptr && std::string_view(wanted) == "1" ? 20 : 1;
}

std::vector<const char*> devices_and(std::vector<const char*> names) {
  // gtest keeps the pointers: the texts live as long as the program.
  static std::deque<std::string> more;
  const char* list = std::getenv("BM_TEST_DEVICES");
  std::stringstream parts(list == nullptr ? "" : list);
  for (std::string name; std::getline(parts, name, ',');)
    if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(more.emplace_back(name).c_str());
  return names;
}

std::string why_not(const std::string& device) {
  const auto opened = runtime::open_device(device);
  return opened ? "" : opened.error().message;
}

}  // namespace bm::test
