// Every instruction of op_cases.inc: inputs in registers, results from make_op_cases.py.

#include <cmath>

#include "tests/unit/sim_amd/one_wave.h"

namespace bm::sim::amd::test {
namespace {

constexpr uint64_t kAnyNan = ~uint64_t{0} - 1;

struct OpCase {
  Isa isa;
  const char* text;
  uint32_t words[3];
  char kind;  ///< 'V' lanes; 'S' scalar; 'E', 'C', 'M': a mask in EXEC, VCC, s24
  int ulps;   ///< allowed distance
  char type;  ///< of the result: 'f' or 'b' (bfloat) floats
  int width;  ///< bits of the result
  int count;
  uint64_t in[6][4];
  uint64_t out[6];
  uint64_t mask;
  bool check_mask, scc;
};

constexpr OpCase kCases[] = {
#include "tests/unit/sim_amd/op_cases.inc"
};

bool is_nan(uint64_t bits, int width) {
  if (width == 16) return (bits & 0x7fff) > 0x7c00;
  if (width == 32) return (bits & 0x7fffffff) > 0x7f800000;
  return (bits & ~uint64_t{0} >> 1) > 0x7ff0000000000000;
}
bool agrees(uint64_t got, uint64_t expected, const OpCase& c) {
  const uint64_t mask = c.width == 64 ? ~uint64_t{0} : (uint64_t{1} << c.width) - 1;
  if (expected == kAnyNan) return is_nan(got & mask, c.width);
  const auto distance = static_cast<int64_t>((got & mask) - (expected & mask));
  const uint64_t magnitude = mask >> 1;
  if (c.ulps && !(got & magnitude) && !(expected & magnitude)) return true;  // zeros of either sign
  return std::abs(distance) <= c.ulps;
}

void expect_vector(const OpCase& c) {
  OneWave one(c.isa);
  Wave& w = one.wave;
  const uint32_t count = static_cast<uint32_t>(c.count);
  w.s[kExecLo] = (1u << count) - 1;
  w.s[kExecLo + 1] = 0;
  w.scc = true;
  for (uint32_t l = 0; l < w.lanes; ++l)
    for (uint32_t i = 0; i < 4; ++i) one.put(2 + 2 * i, l, c.in[l % count][i]);
  ASSERT_TRUE(one.step(c.words)) << c.text;
  ASSERT_FALSE(w.failed) << c.text;
  const uint64_t mask = c.kind == 'E' ? w.exec() : c.kind == 'C' ? w.s[kVccLo] : w.s[24];
  if (c.check_mask) {
    EXPECT_EQ(mask, c.mask) << c.text;
  }
  if (c.kind != 'V') return;
  for (uint32_t l = 0; l < count; ++l)
    EXPECT_TRUE(agrees(one.get(8, l), c.out[l], c))
        << c.text << " lane " << l << std::hex << ": " << c.in[l][0] << ", " << c.in[l][1] << ", "
        << c.in[l][2] << ", " << c.in[l][3] << " gave " << one.get(8, l) << ", expected "
        << c.out[l];
  for (uint32_t l = count; l < w.lanes; ++l)
    EXPECT_EQ(one.get(8, l), c.in[l % count][3]) << c.text << ": wrote lane " << l;
}

void expect_scalar(const OpCase& c) {
  OneWave one(c.isa);
  Wave& w = one.wave;
  for (uint32_t i = 0; i < 4; ++i) w.write64(2 + 2 * i, c.in[0][i]);
  w.scc = true;
  ASSERT_TRUE(one.step(c.words)) << c.text;
  EXPECT_TRUE(agrees(w.read64(8, 0, false), c.out[0], c))
      << c.text << std::hex << ": " << c.in[0][0] << ", " << c.in[0][1] << ", " << c.in[0][3]
      << " gave " << w.read64(8, 0, false) << ", expected " << c.out[0];
  EXPECT_EQ(w.scc, c.scc) << c.text << std::hex << ": " << c.in[0][0] << ", " << c.in[0][1];
}

std::string base_name(const char* text) {
  std::string name(text, std::string_view(text).find(' '));
  for (const char* suffix : {"_e32", "_e64"})
    if (name.ends_with(suffix)) name.resize(name.size() - 4);
  return name;
}

TEST(Ops, ComputeWhatTheGuideSays) {
  for (const OpCase& c : kCases) {
    if (c.kind == 'S')
      expect_scalar(c);
    else
      expect_vector(c);
    covers(base_name(c.text));
  }
}

}  // namespace
}  // namespace bm::sim::amd::test
