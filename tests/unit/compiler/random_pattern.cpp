#include "tests/unit/compiler/random_pattern.h"

#include <cstring>

#include "runtime/base/half.h"

namespace bm::test {

RandomKernel Pattern::run(void (Pattern::*make)()) {
  // One in eight is as large as the reference bears, so that blocked schedules have blocks.
  budget_ = chance(12) ? kMostWork : 200 + static_cast<int64_t>(pick(6000));
  (this->*make)();
  for (size_t p = 0; p < out_.kernel.params.size(); ++p) fill(p);
  return std::move(out_);
}

void Pattern::store(const Node* value, DType t) {
  const Node* index = g().index(0);
  int64_t elements = 1;
  const std::vector<Loop> order = chance(15) ? shuffled(outputs_) : outputs_;
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    index = g().add(index, g().mul(it->range, elements));
    elements *= std::max<int64_t>(it->most, 1);
  }
  value = converted(value, t);
  const Node* gate = nullptr;
  if (chance(5) && !order.empty())
    gate = g().less(order.front().range, g().index(std::max<int64_t>(order.front().most - 1, 1)));
  if (gate && gate->is_const()) gate = nullptr;
  const int into = static_cast<int>(out_.kernel.params.size());
  out_.kernel.params.push_back({.dtype = t, .elements = elements, .is_written = true});
  is_wide_.resize(out_.kernel.params.size(), false);
  out_.kernel.stores.push_back({.param = into, .index = index, .value = value, .gate = gate});
  if (out_.kernel.ranges.size() > 1 && chance(10))
    std::shuffle(out_.kernel.ranges.begin(), out_.kernel.ranges.end(), random_);
}

void Pattern::fill(size_t p) {
  const ir::Param& param = out_.kernel.params[p];
  const auto size = static_cast<size_t>(item_size(param.dtype));
  std::vector<std::byte> bytes(static_cast<size_t>(param.elements) * size);
  for (size_t i = 0; i < bytes.size(); i += size) {
    int64_t v = static_cast<int64_t>(pick(2 * static_cast<uint64_t>(small_) + 1)) - small_;
    if (is_wide_[p]) v = static_cast<int64_t>(random_());
    if (is_unsigned(param.dtype) && !is_wide_[p]) v = std::abs(v);
    const auto f = static_cast<float>(v);
    const uint64_t bits = param.dtype == DType::kF64    ? std::bit_cast<uint64_t>(double{f})
                          : param.dtype == DType::kF32  ? std::bit_cast<uint32_t>(f)
                          : param.dtype == DType::kF16  ? f32_to_f16(f)
                          : param.dtype == DType::kBF16 ? f32_to_bf16(f)
                                                        : static_cast<uint64_t>(v);
    std::memcpy(&bytes[i], &bits, size);
  }
  out_.buffers.push_back(std::move(bytes));
}

namespace {

template <void (Pattern::*make)()>
RandomKernel drawn(uint64_t seed) {
  return Pattern(seed).run(make);
}
template <Factors factors>
RandomKernel panels(uint64_t seed) {
  return random_panels(seed, factors, Pattern::kMostWork);
}

struct Row {
  std::string_view name;
  RandomKernel (*make)(uint64_t seed);
};
constexpr std::array kPatterns = {Row{"matmul", drawn<&Pattern::matmul>},
                                  Row{"convolution", drawn<&Pattern::convolution>},
                                  Row{"softmax", drawn<&Pattern::softmax>},
                                  Row{"panels", panels<Factors::kAny>},
                                  Row{"norm", drawn<&Pattern::norm>},
                                  Row{"attention", drawn<&Pattern::attention>},
                                  Row{"reduction", drawn<&Pattern::reduction>},
                                  Row{"quantised", drawn<&Pattern::quantised>},
                                  Row{"elementwise", drawn<&Pattern::elementwise>},
                                  Row{"repacked", drawn<&Pattern::repacked>},
                                  Row{"gather", drawn<&Pattern::gather>},
                                  Row{"scan", drawn<&Pattern::scan>},
                                  Row{"panels of bytes", panels<Factors::kBytes>},
                                  Row{"running", drawn<&Pattern::running>},
                                  Row{"attention tiles", random_attention},
                                  Row{"least", drawn<&Pattern::least>},
                                  Row{"transposition", drawn<&Pattern::transposition>},
                                  Row{"panels of bfloat16", panels<Factors::kBF16>},
                                  Row{"few rows", drawn<&Pattern::few_rows>},
                                  Row{"panels of windows", drawn<&Pattern::windows>},
                                  Row{"long K", drawn<&Pattern::long_k>}};

}  // namespace

std::string_view pattern_name(uint64_t seed) { return kPatterns[seed % kPatterns.size()].name; }

RandomKernel random_pattern(uint64_t seed) { return kPatterns[seed % kPatterns.size()].make(seed); }

}  // namespace bm::test
