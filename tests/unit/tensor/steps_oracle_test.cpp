// Steps of random programs judged by NumPy and PyTorch (tests/oracle/random_steps.py): the
// reference device, which judges all others, is judged by code that is not ours, on shapes nobody
// chose.
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <unistd.h>

#include "tests/unit/tensor/program_draw.h"
#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

std::string value_json(const Tensor& truth, DType nominal) {
  std::string hex;
  for (const std::byte b : truth.bytes()) hex += fmt::format("{:02x}", static_cast<unsigned>(b));
  std::vector<int64_t> shape;
  for (const SymInt& n : truth.shape()) shape.push_back(n.constant());
  return fmt::format(R"({{"dtype":"{}","shape":[{}],"bytes":"{}"}})", dtype_name(nominal),
                     fmt::join(shape, ","), hex);
}

std::string numbers_json(const Numbers& n) {
  std::vector<std::string> pads;
  for (const auto& [before, after] : n.pads) pads.push_back(fmt::format("[{},{}]", before, after));
  return fmt::format(
      R"({{"i":{},"j":{},"k":{},"keep":{},"t":"{}","axes":[{}],"dims":[{}],"pads":[{}]}})", n.i,
      n.j, n.k, n.keep, dtype_name(n.t), fmt::join(n.axes, ","), fmt::join(n.dims, ","),
      fmt::join(pads, ","));
}

/// Writes every step of the programs, with what the reference device makes of exact operands.
/// `is_wrong`: one element of each result of floats is not what it made.
uint64_t write_steps(std::ostream& out, uint64_t first, uint64_t count, Size size,
                     bool is_wrong = false) {
  uint64_t written = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Case c = draw_case(seed, size);
    std::vector<Judged> inputs;
    for (const Input& in : c.program.inputs) inputs.push_back(judge_input(in));
    for (size_t k = 0; k < c.program.steps.size(); ++k) {
      const Step& s = c.program.steps[k];
      std::vector<std::string> args;
      for (const int a : s.args) {
        const Judged& j =
            a < 0 ? inputs[static_cast<size_t>(-1 - a)] : c.results[static_cast<size_t>(a)];
        args.push_back(value_json(j.truth, j.dtype));
      }
      Tensor result = c.results[k].truth;
      if (is_wrong && is_float(result.dtype()) && result.elements() > 0) {
        std::vector<double> v = numbers(result);
        v.back() += 0.001 + std::fabs(v.back()) * 0.001;
        result = tensor_of(v, result.shape(), result.dtype(), "REF");
      }
      out << fmt::format(R"({{"seed":{},"step":{},"text":{},"numbers":{},"args":[{}],"result":{}}})"
                         "\n",
                         seed, k, quoted(rows()[s.row].text), numbers_json(s.n),
                         fmt::join(args, ","), value_json(result, c.results[k].dtype));
      ++written;
    }
  }
  return written;
}

/// The script's exit code and what it printed.
std::pair<int, std::string> judged(const std::string& path) {
  std::FILE* pipe =
      popen(("/usr/bin/python3 tests/oracle/random_steps.py " + path + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return {-1, "popen failed"};
  std::string out;
  char chunk[4096];
  for (size_t n; (n = std::fread(chunk, 1, sizeof chunk, pipe)) > 0;) out.append(chunk, n);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, out};
}

/// A file in the folder of temporary files, removed at the end unless BM_KEEP_STEPS is set.
struct StepsFile {
  std::string path = fmt::format("{}steps_{}.json", ::testing::TempDir(), ::getpid());
  ~StepsFile() {
    if (std::getenv("BM_KEEP_STEPS") == nullptr) std::remove(path.c_str());
  }
};

uint64_t number_from(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : fallback;
}

class StepsOracle : public ::testing::TestWithParam<std::pair<Size, uint64_t>> {};

TEST_P(StepsOracle, AgreesWithTheReference) {
  const auto [size, share] = GetParam();
  const uint64_t count = number_from("BM_RANDOM_COUNT", 400) / share;
  const StepsFile file;
  uint64_t steps = 0;
  {
    std::ofstream out(file.path);
    steps = write_steps(out, number_from("BM_RANDOM_SEED", 1), count, size);
    out.flush();
    ASSERT_TRUE(out.good()) << file.path;
  }
  const auto [code, said] = judged(file.path);
  if (code == 77) GTEST_SKIP() << "/usr/bin/python3 has no PyTorch";
  EXPECT_EQ(code, 0) << said;
  EXPECT_GT(steps, count) << "programs of one step say little";
}
INSTANTIATE_TEST_SUITE_P(Random, StepsOracle,
                         ::testing::Values(std::pair(Size::kSmall, uint64_t{1}),
                                           std::pair(Size::kProducts, uint64_t{8}),
                                           std::pair(Size::kLarge, uint64_t{40})));

TEST(StepsOracle, SeesOneWrongElement) {
  const StepsFile file;
  {
    std::ofstream out(file.path);
    write_steps(out, 1, 20, Size::kSmall, true);
  }
  const auto [code, said] = judged(file.path);
  if (code == 77) GTEST_SKIP() << "/usr/bin/python3 has no PyTorch";
  EXPECT_EQ(code, 1) << said;
  // Of some 150 results of floats: nearly all.
  const size_t at = said.rfind(": ");
  ASSERT_NE(at, std::string::npos);
  EXPECT_GT(std::strtoull(said.c_str() + at + 2, nullptr, 10), 100U) << said;
}

// Values at the edges of each dtype: zeros of both signs, infinities, NaN, the largest, the
// smallest, ties of rounding.
std::vector<double> special_values(DType t) {
  if (is_bool(t)) return {0, 1};
  if (!is_float(t)) {
    const auto low = static_cast<double>(int_min(t)), high = static_cast<double>(int_max(t));
    std::vector<double> v{0, 1, 2, 3, 5, 7, 100};
    if (low < 0) v.insert(v.end(), {-1, -2, -3, -100});
    // Of 64 bits no float64 is the largest.
    if (item_size(t) < 8) v.insert(v.end(), {low, low + 1, high, high - 1});
    return v;
  }
  const double largest = t == DType::kF16    ? 65504
                         : t == DType::kBF16 ? 0x1.fep127
                         : t == DType::kF32  ? 0x1.fffffep127
                                             : std::numeric_limits<double>::max();
  const double normal = t == DType::kF16   ? 0x1p-14
                        : t == DType::kF64 ? std::numeric_limits<double>::min()
                                           : 0x1p-126;
  std::vector<double> out;
  for (const double v : {0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 0.75, 10.0, 88.5, 100.0, largest,
                         largest / 2, normal, normal * 2, HUGE_VAL}) {
    out.push_back(v);
    out.push_back(-v);
  }
  out.push_back(std::nan(""));
  return out;
}

/// Lines of kLine elements, some of them with infinities and NaN in the middle, at the end, alone.
constexpr int64_t kLine = 5;
std::vector<double> lines_of(DType t) {
  if (!is_float(t)) {
    const double low = is_signed(t) ? -3 : 0;
    return {0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 2, 3, low, 1, low};
  }
  const double inf = HUGE_VAL, nan = std::nan("");
  return {1,   2,    -1,  2,   0.5, -0.0, 0.0,  0.0,  -0.0, 0.0,  inf, 1,   2,    3,   4,
          1,   -inf, 2,   3,   4,   inf,  1,    -inf, 2,    3,    1,   nan, 2,    3,   4,
          nan, 1,    nan, 2,   inf, 4,    3,    2,    1,    nan,  nan, nan, nan,  nan, nan,
          inf, inf,  inf, inf, inf, -inf, -inf, -inf, -inf, -inf, 5,   nan, -inf, inf, nan};
}

class SpecialValues : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(Devices, SpecialValues,
                         ::testing::ValuesIn(devices_and({"REF", "CPU:LLVM", "CPU:CLANG", "CL"})),
                         device_test_name);

TEST_P(SpecialValues, AreWhatNumPyAndPyTorchMakeOfThem) {
  const StepsFile file;
  size_t written = 0;
  {
    std::ofstream out(file.path);
    std::vector<Tensor> results;
    struct Line {
      const char* text;
      Numbers numbers;
      std::vector<std::string> args;
    };
    std::vector<Line> lines;
    for (const Row& row : rows()) {
      // Of one operation: where several follow each other, float64 does not overflow in between.
      const std::string_view text = row.text;
      const bool is_pair = row.draw == draw::partner;
      const bool is_one = text == "-x" || text == "~x" || text == "!x" || text == "x >> 2" ||
                          text == "x << 1" || text == "x * 0.25" ||
                          (text.starts_with("x.") && text.find('.', 2) == std::string_view::npos &&
                           text.find(' ') == std::string_view::npos && text.ends_with(")"));
      const bool is_two = is_pair && text.size() == 5 + (text.find("= ") != std::string_view::npos);
      // Over lines of a matrix: sums, minima and maxima, sorts.
      const bool is_line =
          row.draw == draw::axes || row.draw == draw::axis || row.draw == draw::some;
      if (is_line && text.find("i") != std::string_view::npos &&
          (text.starts_with("x.slice") || text.starts_with("x.flip") ||
           text.starts_with("x.roll") || text.starts_with("x.unsq") ||
           text.starts_with("x.chunk") || text.starts_with("x.split")))
        continue;
      const bool is_named = is_pair && (text == "x.maximum(y)" || text == "x.minimum(y)");
      if (row.is_assign || row.draw == draw::cast ||
          !(is_two || is_named || is_line || (is_one && row.draw == draw::nothing)))
        continue;
      for (const DType t : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kI8,
                            DType::kI16, DType::kI32, DType::kI64, DType::kU8, DType::kU16,
                            DType::kU32, DType::kU64, DType::kBool}) {
        const char kind = is_float(t) ? 'f' : is_bool(t) ? 'b' : 'i';
        if (std::string_view(row.takes).find(kind) == std::string_view::npos) continue;
        const std::vector<double> v = special_values(t);
        const auto n = static_cast<int64_t>(v.size());
        Operands o, ref;
        o.x = tensor_of(v, {n}, t, device());
        ref.x = tensor_of(v, {n}, t, "REF");
        std::vector<std::string> args;
        const auto exact = [](const Tensor& x) {
          return value_json(is_float(x.dtype()) ? x.cast(DType::kF64) : x, x.dtype());
        };
        if (is_line) {
          o.n.i = 1;
          o.n.j = 3;
          o.n.axes = {1};
          const std::vector<double> m = lines_of(t);
          const Shape shape{static_cast<int64_t>(m.size()) / kLine, kLine};
          o.x = tensor_of(m, shape, t, device());
          ref.x = tensor_of(m, shape, t, "REF");
        } else if (is_pair) {
          o.x = o.x.reshape({n, 1});
          ref.x = ref.x.reshape({n, 1});
          o.y = tensor_of(v, {1, n}, t, device());
          ref.y = tensor_of(v, {1, n}, t, "REF");
        }
        args.push_back(exact(ref.x));
        if (is_pair) args.push_back(exact(ref.y));
        results.push_back(row.run(o));
        lines.push_back({row.text, o.n, args});
      }
    }
    std::vector<Tensor*> all;
    for (Tensor& r : results) all.push_back(&r);
    Tensor::realize(all);
    for (size_t k = 0; k < results.size(); ++k) {
      const DType t = results[k].dtype();
      Tensor r = results[k].to("REF");
      if (is_float(t)) r = r.cast(DType::kF64);
      out << fmt::format(
          R"({{"seed":0,"step":{},"special":true,"device":"{}","text":{},"numbers":{},"args":[{}],"result":{}}})"
          "\n",
          k, device(), quoted(lines[k].text), numbers_json(lines[k].numbers),
          fmt::join(lines[k].args, ","), value_json(r, t));
      ++written;
    }
  }
  const auto [code, said] = judged(file.path);
  if (code == 77) GTEST_SKIP() << "/usr/bin/python3 has no PyTorch";
  EXPECT_EQ(code, 0) << said;
  EXPECT_GT(written, 200U);
}

}  // namespace
}  // namespace bm::test
