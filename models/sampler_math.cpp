// Compiled with -ffp-contract=off: see the promise of the header.

#include "models/sampler_math.h"

#include <bit>
#include <cmath>

namespace bm::models {
namespace {

constexpr double kLn2High = 0x1.62e42fee00000p-1, kLn2Low = 0x1.a39ef35793c76p-33;

}  // namespace

PhiloxBlock philox4x32(const PhiloxBlock& counter, uint64_t key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  auto key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  PhiloxBlock c = counter;
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = kMultiplier0 * c.words[0], b = kMultiplier1 * c.words[2];
    c = {{static_cast<uint32_t>(b >> 32) ^ c.words[1] ^ key0, static_cast<uint32_t>(b),
          static_cast<uint32_t>(a >> 32) ^ c.words[3] ^ key1, static_cast<uint32_t>(a)}};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return c;
}

double portable_exp(double x) {
  if (!(x > -708.0)) return 0.0;  // the smallest normal double is e^-708.4
  constexpr double kLog2E = 1.4426950408889634;
  const double n = std::floor(x * kLog2E + 0.5);
  const double r = (x - n * kLn2High) - n * kLn2Low;  // |r| ≤ ln 2 / 2
  double sum = 1.0;  // Taylor series to r^14 / 14!, from the inside
  for (int k = 14; k >= 1; --k) sum = 1.0 + sum * (r / k);
  return sum * std::bit_cast<double>(static_cast<uint64_t>(static_cast<int64_t>(n) + 1023) << 52);
}

double portable_log(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  int64_t exponent = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000);
  if (m > 1.4142135623730951) {  // m in (√½, √2], so that next to 1 nothing cancels
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0), s2 = s * s;  // |s| ≤ 0.172
  double sum = 0.0;                                    // ln m = 2 (s + s³/3 + s⁵/5 + …), to s²³
  for (int k = 23; k >= 3; k -= 2) sum = (sum + 1.0 / k) * s2;
  const auto n = static_cast<double>(exponent);
  return n * kLn2High + (n * kLn2Low + (2.0 * s + 2.0 * s * sum));
}

}  // namespace bm::models
