// Random numbers: Threefry-2x32 with 20 rounds (Salmon et al., Parallel Random Numbers: As Easy as
// 1, 2, 3, SC 2011) in integer tensor operations, so every device draws the same bits.
//
// State: per device a uint64 tensor {key, counter}. A draw of n numbers uses counters c … c+n-1 and
// assigns {key, c+n}. Both happen through tensor operations, so a captured program that draws
// advances the state on every replay. manual_seed assigns to the same storage, which captured
// programs therefore see too.
#include <array>
#include <map>
#include <numbers>

#include "runtime/base/env.h"
#include "runtime/device.h"
#include "tensor/ops_internal.h"

namespace bm {

using enum ir::Op;

namespace ops {
namespace {

constexpr int kRotations[8] = {13, 15, 26, 6, 17, 29, 16, 24};
constexpr int64_t kParity = 0x1BD11BDA;  // key schedule constant of the 32-bit variants

Tensor low_word(const Tensor& v) { return v.cast(DType::kU32); }
Tensor high_word(const Tensor& v) {
  return (v >> constant_int(32, DType::kU64, v.device())).cast(DType::kU32);
}
Tensor word(int64_t value, const Tensor& like) {
  return constant_int(value, DType::kU32, like.device());
}
Tensor rotated(const Tensor& x, int by) {
  return alu(kOr, x << word(by, x), x >> word(32 - by, x));
}

}  // namespace

std::pair<Tensor, Tensor> threefry(const Tensor& key, const Tensor& counter) {
  const std::array first{low_word(key), high_word(key)};
  // Stored: the rounds read them a dozen times.
  const std::array schedule{first[0], first[1], word(kParity, key) ^ first[0] ^ first[1]};
  const Tensor stored = Tensor::stack(schedule).contiguous();
  const std::array keys{stored.index({0}), stored.index({1}), stored.index({2})};
  Tensor x0 = low_word(counter) + keys[0], x1 = high_word(counter) + keys[1];
  for (int round = 0; round < 20; ++round) {
    x0 = x0 + x1;
    x1 = rotated(x1, kRotations[round % 8]) ^ x0;
    if (round % 4 != 3) continue;
    const int s = round / 4 + 1;  // a key is added after every fourth round
    x0 = x0 + keys[static_cast<size_t>(s % 3)];
    x1 = x1 + keys[static_cast<size_t>((s + 1) % 3)] + word(s, x1);
  }
  return {x0, x1};
}

}  // namespace ops

namespace {

/// States by device name, and the seed of devices not seen yet. Process-wide like the field's
/// generators; the lock orders draws of several threads.
struct Generators {
  std::mutex lock;
  std::map<std::string, Tensor> states;
  uint64_t seed = settings().seed;
};
Generators& generators() {
  static Generators g;
  return g;
}

Tensor fresh_state(uint64_t seed, runtime::Device& device) {
  return Tensor::from(std::vector<uint64_t>{seed, 0}, {2}, device.name());
}

/// Two words of random bits for each element, and the state moved on.
std::pair<Tensor, Tensor> draw(const Shape& shape, std::string_view device_name) {
  runtime::Device& device = *(device_name.empty() ? unwrap(runtime::default_device())
                                                  : unwrap(runtime::open_device(device_name)));
  Generators& g = generators();
  std::lock_guard guard(g.lock);
  auto it = g.states.find(device.name());
  if (it == g.states.end()) it = g.states.emplace(device.name(), fresh_state(g.seed, device)).first;
  Tensor& state = it->second;
  // A copy of the two words: the numbers stay lazy, the assignment below only has to wait for this.
  const Tensor before = state.contiguous();
  const SymInt count = ops::product(shape, "rand");
  const Tensor advance = (iota(2, device) * ops::number(count, state)).cast(DType::kU64);  // {0, n}
  state.assign(before + advance);
  const Tensor key = before.index({0}), counter = before.index({1});
  const auto [x0, x1] = ops::threefry(key, iota(count, device).cast(DType::kU64) + counter);
  return {x0.reshape(shape), x1.reshape(shape)};
}

/// Bits of a uniform number that its dtype can hold exactly.
int precision_of(DType t) {
  switch (t) {
    case DType::kF16: return 11;
    case DType::kBF16: return 8;
    case DType::kF64: return 53;
    default: return 24;
  }
}

Tensor wide_word(const Tensor& x0, const Tensor& x1) {
  return x0.cast(DType::kU64) |
         (x1.cast(DType::kU64) << constant_int(32, DType::kU64, x0.device()));
}

void need_float_dtype(DType t, std::string_view what) {
  if (!is_float(t))
    raise(Code::kInvalidArgument, "{} needs a floating dtype, not {}", what, dtype_name(t));
}

}  // namespace

void Tensor::manual_seed(uint64_t seed) {
  Generators& g = generators();
  std::lock_guard guard(g.lock);
  g.seed = seed;
  for (auto& [name, state] : g.states) state.assign(fresh_state(seed, state.device()));
}

Tensor Tensor::rand(const Shape& shape, DType dtype, std::string_view device) {
  need_float_dtype(dtype, "rand");
  const auto [x0, x1] = draw(shape, device);
  const int bits = precision_of(dtype);
  if (dtype == DType::kF64) {
    const Tensor top = wide_word(x0, x1) >> constant_int(64 - bits, DType::kU64, x0.device());
    return top.cast(DType::kF64) * 0x1p-53;
  }
  const Tensor top = x0 >> constant_int(32 - bits, DType::kU32, x0.device());
  return (top.cast(DType::kF32) * std::ldexp(1.0, -bits)).cast(dtype);
}

// Box and Muller 1958: one normal number per counter, its two words the two uniform ones. The
// first is never 0, so the largest magnitude is √(2·33·ln 2) = 6.8.
Tensor Tensor::randn(const Shape& shape, DType dtype, std::string_view device) {
  need_float_dtype(dtype, "randn");
  const auto [x0, x1] = draw(shape, device);
  const DType wide = ops::wide_float(dtype);
  // Stored once: the rounds and what follows are too much for one kernel.
  const Tensor words = wide_word(x0, x1).contiguous();
  const Tensor u = ops::low_word(words).cast(wide) * 0x1p-32 + 0x1p-33;
  const Tensor angle =
      (ops::high_word(words) >> constant_int(8, DType::kU32, x1.device())).cast(wide) *
      (2 * std::numbers::pi * 0x1p-24);
  // float32: x0 near 2^32 rounds u up to 1, whose logarithm is 0; -log2 keeps the root real.
  const Tensor radius = alu(kSqrt, (alu(kLog2, u) * (-2 * std::numbers::ln2)).maximum(0));
  // The cosine by one sine: next to its zeros absolute accuracy is enough.
  const Tensor s = alu(kSin, angle * 0.5);
  return (radius * (1 - s * s * 2)).cast(dtype);
}

Tensor Tensor::randint(const Shape& shape, int64_t low, int64_t high, DType dtype,
                       std::string_view device) {
  if (low >= high) raise(Code::kInvalidArgument, "randint: the range [{}, {}) is empty", low, high);
  if (!is_int(dtype))
    raise(Code::kInvalidArgument, "randint needs an integer dtype, not {}", dtype_name(dtype));
  const auto [x0, x1] = draw(shape, device);
  // 64 random bits modulo the span: the bias is below span / 2^64.
  const auto span = static_cast<int64_t>(static_cast<uint64_t>(high) - static_cast<uint64_t>(low));
  const Tensor offset = alu(kMod, wide_word(x0, x1), constant_int(span, DType::kU64, x0.device()));
  return (offset.cast(DType::kI64) + constant_int(low, DType::kI64, x0.device())).cast(dtype);
}

Tensor Tensor::uniform(const Shape& shape, double low, double high, DType dtype,
                       std::string_view device) {
  if (!(low <= high))
    raise(Code::kInvalidArgument, "uniform: the range [{}, {}) is empty", low, high);
  return rand(shape, dtype, device) * (high - low) + low;
}

}  // namespace bm
