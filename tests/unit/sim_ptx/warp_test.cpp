// Atomics, shuffles, votes, matrix fragments.
#include <random>

#include "tests/unit/sim_ptx/op_case.h"

namespace bm::sim::ptx::test {
namespace {

using U = uint64_t;

/// Every thread's result of `code` over inputs a and b, stored from %rd9.
std::vector<U> run_threads(const std::string& code, const std::vector<U>& a,
                           const std::vector<U>& b, uint32_t threads) {
  const auto module =
      parsed(kernel_text(" ld.global.u64 %rd7, [%at0]; ld.global.u64 %rd8, [%at1]; cvt.u32.u64 "
                         "%r7, %rd7; cvt.u32.u64 %r8, %rd8; mov.u64 %rd9, 0;\n" +
                             code + "\n st.global.u64 [%at2], %rd9;",
                         3));
  if (!module) return std::vector<U>(threads);
  FlatMemory memory;
  const U pa = memory.put(a), pb = memory.put(b), out = memory.put(std::vector<U>(threads));
  const Outcome outcome = launch(*module, memory, {pa, pb, out}, {1}, {threads});
  EXPECT_TRUE(outcome.ok) << outcome.fault.text();
  return memory.get<U>(out);
}
std::vector<U> random_values(size_t n, U mask, uint32_t seed = 1) {
  std::mt19937_64 random(seed);
  std::vector<U> out;
  for (size_t i = 0; i < n; ++i) out.push_back(random() & mask);
  return out;
}

TEST(PtxAtomic, EveryOperationOnSharedAndGlobalMemory) {
  struct Case {
    std::string op;
    U start;
    std::function<U(U, U)> f;
  };
  const auto add_float = [](U a, U b) { return bits(f32(a) + f32(b)); };
  const std::vector<Case> cases = {
      {"add.u32", 5, [](U a, U b) { return a + b; }},
      {"add.s32", 5, [](U a, U b) { return a + b; }},
      {"min.u32", 0xffffff00, [](U a, U b) { return std::min(a, b); }},
      {"max.s32", 0x80000000, [](U a, U b) { return as<int32_t>(a) > as<int32_t>(b) ? a : b; }},
      {"min.s32", 0x7fffffff, [](U a, U b) { return as<int32_t>(a) < as<int32_t>(b) ? a : b; }},
      {"max.u32", 0, [](U a, U b) { return std::max(a, b); }},
      {"and.b32", 0xffffffff, [](U a, U b) { return a & b; }},
      {"or.b32", 0, [](U a, U b) { return a | b; }},
      {"xor.b32", 7, [](U a, U b) { return a ^ b; }},
      {"exch.b32", 9, [](U, U b) { return b; }},
      {"inc.u32", 3, [](U a, U b) { return a >= b ? 0 : a + 1; }},
      {"dec.u32", 3, [](U a, U b) { return a == 0 || a > b ? b : a - 1; }},
      {"add.f32", bits(1.0f), add_float},
  };
  for (const Case& c : cases)
    for (const bool is_shared : {false, true}) {
      SCOPED_TRACE(c.op);
      std::vector<U> values = random_values(64, c.op == "add.f32" ? 0 : 0xffffffff);
      if (c.op == "add.f32")
        for (size_t i = 0; i < values.size(); ++i) values[i] = bits(static_cast<float>(i) * 0.37f);
      const std::string type = c.op.substr(c.op.find('.') + 1);
      const std::string reg = type == "f32" ? "%f" : "%r";
      const std::string start =
          is_shared ? " .shared .u32 cell; setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [cell], " +
                          std::to_string(c.start) + "; bar.sync 0;\n"
                    : "";
      const std::string space = is_shared ? "shared" : "global";
      const std::string at = is_shared ? "[cell]" : "[%rd1]";
      const auto module = parsed(kernel_text(
          start + " ld.global.b32 " + reg + "1, [%at0];\n atom." + space + "." + c.op + " " + reg +
              "2, " + at + ", " + reg + "1;\n st.global.b32 [%at0], " + reg +
              "2; bar.sync 0;\n red." + space + ".add.u32 " + at + ", 0;\n ld." + space +
              ".u32 %r3, " + at + "; setp.eq.u32 %p2, %r0, 0; @%p2 st.global.u32 [%rd2], %r3;",
          3));
      ASSERT_TRUE(module);
      FlatMemory memory;
      const U in = memory.put(values), global = memory.put(std::vector<U>{c.start}),
              out = memory.put(std::vector<U>{0});
      const Outcome outcome = launch(*module, memory, {in, global, out}, {1}, {64});
      ASSERT_TRUE(outcome.ok) << outcome.fault.text();
      U state = c.start;
      const auto old = memory.get<U>(in);
      for (size_t i = 0; i < 64; ++i) {
        ASSERT_EQ(old[i] & 0xffffffff, state & 0xffffffff) << i;
        state = c.f(state & 0xffffffff, values[i]) & 0xffffffff;
      }
      ASSERT_EQ(memory.get<U>(out)[0], state);
    }
}

TEST(PtxAtomic, WideHalfAndCompare) {
  const auto module = parsed(kernel_text(R"(
    mov.f64 %fd1, 0d3FE0000000000000; atom.global.add.f64 %fd2, [%rd0], %fd1;
    atom.global.add.u64 %rd5, [%rd0+8], 3;
    mov.b32 %r1, 0x3C004000; atom.global.add.noftz.f16x2 %r2, [%rd0+16], %r1;
    mov.b16 %h1, 0x3F80; atom.global.add.noftz.bf16 %h2, [%rd0+20], %h1;
    cvt.u64.u32 %rd6, %r0; add.u64 %rd7, %rd6, 1;
    atom.global.cas.b64 %rd8, [%rd0+24], %rd6, %rd7;
    mov.b16 %h3, 5; mov.b16 %h4, 6; atom.global.cas.b16 %h5, [%rd0+32], %h3, %h4;
    red.global.max.s64 [%rd0+40], %rd6; red.relaxed.gpu.global.add.f32 [%rd0+48], 0f3F800000;)",
                                         1));
  ASSERT_TRUE(module);
  FlatMemory memory;
  const U at = memory.put(std::vector<U>{0, 0, 0, 0, 5, static_cast<U>(-9), 0});
  for (const uint32_t threads : {1u, 2u}) {
    // Two blocks at once: 64 threads in all, in any order.
    Launch options;
    options.threads = threads;
    ASSERT_TRUE(launch(*module, memory, {at}, {2}, {16}, options).ok);
  }
  const auto out = memory.get<U>(at);
  EXPECT_EQ(f64(out[0]), 32.0);
  EXPECT_EQ(out[1], 192u);
  EXPECT_EQ(out[2] & 0xffff, 0x5800u);          // 64 times 2.0
  EXPECT_EQ((out[2] >> 16) & 0xffff, 0x5400u);  // 64 times 1.0
  EXPECT_EQ((out[2] >> 32) & 0xffff, 0x4280u);  // bfloat16 64
  EXPECT_EQ(out[3], 16u);
  EXPECT_EQ(out[4], 6u);
  EXPECT_EQ(out[5], 15u);
  EXPECT_EQ(f32(out[6]), 64.0f);
}

TEST(PtxWarp, ShufflesEveryMode) {
  const auto a = random_values(64, 0xffffffff);
  struct Mode {
    std::string name;
    uint32_t by, c;
    std::function<int(int)> from;  ///< lane, or -1 if outside
  };
  const std::vector<Mode> modes = {
      {"bfly", 5, 31, [](int l) { return l ^ 5; }},
      {"down", 3, 31, [](int l) { return l + 3 > 31 ? -1 : l + 3; }},
      {"up", 4, 0, [](int l) { return l < 4 ? -1 : l - 4; }},
      {"idx", 9, 31, [](int) { return 9; }},
      {"down", 2, (24u << 8) | 31,
       [](int l) { return l % 8 + 2 > 7 ? -1 : l + 2; }},                // segments of 8
      {"idx", 3, (28u << 8) | 31, [](int l) { return l / 4 * 4 + 3; }},  // segments of 4
      {"up", 1, 16u << 8, [](int l) { return l % 16 == 0 ? -1 : l - 1; }},
  };
  for (const Mode& m : modes) {
    SCOPED_TRACE(m.name);
    const auto out = run_threads(" shfl.sync." + m.name + ".b32 %r1|%p1, %r7, " +
                                     std::to_string(m.by) + ", " + std::to_string(m.c) +
                                     ", -1; selp.u32 %r2, 1, 0, %p1; mov.b64 %rd9, {%r1, %r2};",
                                 a, a, 64);
    for (int i = 0; i < 64; ++i) {
      const int lane = i % 32, from = m.from(lane);
      const size_t source = static_cast<size_t>(from < 0 ? i : i / 32 * 32 + from);
      ASSERT_EQ(out[static_cast<size_t>(i)], a[source] | (U{from >= 0} << 32)) << i;
    }
  }
}

TEST(PtxWarp, VotesMatchesAndReductions) {
  auto a = random_values(64, 3);
  for (size_t i = 32; i < 64; ++i) a[i] = 2;
  const auto out = run_threads(R"(
    setp.gt.u32 %p1, %r7, 1;
    vote.sync.ballot.b32 %r1, %p1, -1;
    vote.sync.all.pred %p2, %p1, -1; vote.sync.any.pred %p3, !%p1, -1; vote.sync.uni.pred %p4, %p1, -1;
    selp.u32 %r2, 1, 0, %p2; selp.u32 %r3, 2, 0, %p3; selp.u32 %r4, 4, 0, %p4;
    add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4;
    mov.b64 %rd9, {%r1, %r2};)",
                               a, a, 64);
  for (size_t i = 0; i < 64; ++i) {
    U ballot = 0;
    for (size_t j = 0; j < 32; ++j) ballot |= U{a[i / 32 * 32 + j] > 1} << j;
    ASSERT_EQ(out[i], ballot | (U{i < 32 ? 2u : 5u} << 32));
  }
  const auto matched = run_threads(
      " match.any.sync.b32 %r1, %r7, -1; match.all.sync.b64 %r2|%p1, %rd7, -1; mov.b64 %rd9, {%r1, "
      "%r2};",
      a, a, 64);
  for (size_t i = 0; i < 64; ++i) {
    U mask = 0;
    for (size_t j = 0; j < 32; ++j) mask |= U{a[i / 32 * 32 + j] == a[i]} << j;
    ASSERT_EQ(matched[i], mask | (U{i < 32 ? 0 : 0xffffffff} << 32));
  }
  const auto b = random_values(64, 0xffffffff, 4);
  const auto reduced = run_threads(
      " redux.sync.add.u32 %r1, %r8, -1; redux.sync.min.s32 %r2, %r8, -1; mov.b64 %rd9, {%r1, "
      "%r2};",
      a, b, 64);
  const auto bitwise = run_threads(
      " redux.sync.xor.b32 %r1, %r8, -1; redux.sync.max.u32 %r2, %r8, -1; mov.b64 %rd9, {%r1, "
      "%r2};",
      a, b, 64);
  for (size_t i = 0; i < 64; ++i) {
    U sum = 0, x = 0, most = 0;
    int32_t least = INT32_MAX;
    for (size_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j) {
      sum += b[j], x ^= b[j], most = std::max(most, b[j]);
      least = std::min(least, as<int32_t>(b[j]));
    }
    ASSERT_EQ(reduced[i], (sum & 0xffffffff) | (U{as<uint32_t>(static_cast<U>(least))} << 32));
    ASSERT_EQ(bitwise[i], x | (most << 32));
  }
}

TEST(PtxWarp, OneLaneIsElected) {
  const std::vector<U> none(64);
  const auto out = run_threads(R"( and.b32 %r1, %r0, 1; setp.ne.u32 %p1, %r1, 0; @!%p1 bra $end;
    elect.sync _|%p2, 0xaaaaaaaa; selp.u64 %rd9, 7, 1, %p2;
    $end: bar.warp.sync -1;)",
                               none, none, 64);
  for (size_t i = 0; i < 64; ++i) ASSERT_EQ(out[i], i % 2 == 0 ? 0u : i % 32 == 1 ? 7u : 1u) << i;
}

TEST(PtxWarp, LanesOfTheMaskWaitForEachOther) {
  // The second half arrives later; the shuffle still sees all 32 values.
  const auto a = random_values(32, 0xffff);
  const auto out = run_threads(R"(
    setp.lt.u32 %p1, %r0, 16;
    mov.u32 %r1, 0;
    @%p1 bra $meet;
  $work: add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, %r0; @%p2 bra $work;
  $meet: shfl.sync.bfly.b32 %r2, %r7, 16, 31, -1;
    cvt.u64.u32 %rd9, %r2;)",
                               a, a, 32);
  for (size_t i = 0; i < 32; ++i) ASSERT_EQ(out[i], a[i ^ 16]);
}

/// C + A·B through fragments, laid out here by the tables of the PTX manual.
struct Fragments {
  std::string shape, types;
  int m, k, a_regs, b_regs;
  int element_bits;
  /// Row and column of element i of A, row of element i of B for lane (g, t).
  std::function<std::pair<int, int>(int, int, int)> a_at;
  std::function<int(int, int)> b_row;
};
void check_mma(const Fragments& f, const std::function<double(U)>& value,
               const std::function<U(std::mt19937&)>& draw, bool integers) {
  SCOPED_TRACE(f.shape + f.types);
  std::mt19937 random(9);
  const int per = 32 / f.element_bits;
  std::vector<std::vector<U>> a(16, std::vector<U>(64)), b(64, std::vector<U>(8));
  for (auto& row : a)
    for (U& v : row) v = draw(random);
  for (auto& row : b)
    for (U& v : row) v = draw(random);
  std::vector<double> c(16 * 8);
  for (double& v : c) v = static_cast<int>(random() % 64) - 32;
  std::vector<uint32_t> words;  // per lane: a, b, c registers
  const int sums = f.m / 4;
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < f.a_regs; ++r) {
      U word = 0;
      for (int e = 0; e < per; ++e) {
        const auto [row, column] = f.a_at(r * per + e, g, t);
        word |= a[static_cast<size_t>(row)][static_cast<size_t>(column)] << (e * f.element_bits);
      }
      words.push_back(as<uint32_t>(word));
    }
    for (int r = 0; r < f.b_regs; ++r) {
      U word = 0;
      for (int e = 0; e < per; ++e)
        word |= b[static_cast<size_t>(f.b_row(r * per + e, t))][static_cast<size_t>(g)]
                << (e * f.element_bits);
      words.push_back(as<uint32_t>(word));
    }
    for (int i = 0; i < sums; ++i) {
      const double v = c[static_cast<size_t>((g + 8 * (i / 2)) * 8 + t * 2 + i % 2)];
      words.push_back(integers ? static_cast<uint32_t>(static_cast<int32_t>(v))
                               : as<uint32_t>(bits(static_cast<float>(v))));
    }
  }
  const int stride = f.a_regs + f.b_regs + sums;
  std::string body = " mad.wide.u32 %rd3, %r0, " + std::to_string(stride * 4) +
                     ", %rd0;\n mad.wide.u32 %rd4, %r0, " + std::to_string(sums * 4) + ", %rd1;\n";
  std::string list[3];
  int reg = 1;
  for (int part = 0; part < 3; ++part) {
    const int n = part == 0 ? f.a_regs : part == 1 ? f.b_regs : sums;
    for (int i = 0; i < n; ++i, ++reg) {
      body += " ld.global.b32 %r" + std::to_string(reg) + ", [%rd3+" +
              std::to_string((reg - 1) * 4) + "];\n";
      list[part] += (i ? ", %r" : "%r") + std::to_string(reg);
    }
  }
  // The sums go back into the registers of C, as kernels do.
  body += " mma.sync.aligned." + f.shape + ".row.col" + f.types + " {" + list[2] + "}, {" +
          list[0] + "}, {" + list[1] + "}, {" + list[2] + "};\n";
  for (int i = 0; i < sums; ++i)
    body += " st.global.b32 [%rd4+" + std::to_string(i * 4) + "], %r" +
            std::to_string(f.a_regs + f.b_regs + 1 + i) + ";\n";
  const auto module = parsed(kernel_text(body, 2));
  ASSERT_TRUE(module);
  FlatMemory memory;
  const U in = memory.put(words),
          out = memory.put(std::vector<uint32_t>(static_cast<size_t>(32 * sums)));
  const Outcome outcome = launch(*module, memory, {in, out}, {1}, {32});
  ASSERT_TRUE(outcome.ok) << outcome.fault.text();
  const auto got = memory.get<uint32_t>(out);
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < sums; ++i) {
      const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
      double want = c[static_cast<size_t>(row * 8 + column)];
      for (int k = 0; k < f.k; ++k)
        want += value(a[static_cast<size_t>(row)][static_cast<size_t>(k)]) *
                value(b[static_cast<size_t>(k)][static_cast<size_t>(column)]);
      const uint32_t word = got[static_cast<size_t>(lane * sums + i)];
      const double have = integers ? static_cast<double>(static_cast<int32_t>(word))
                                   : static_cast<double>(f32(word));
      ASSERT_NEAR(have, want, std::fabs(want) * 1e-5 + 1e-3) << row << "," << column;
    }
}
TEST(PtxMatrix, FragmentsAreLaidOutAsInTheManual) {
  const auto half = [](U v) { return kHalf.value(as<uint32_t>(v)); };
  const auto brain = [](U v) { return kBrain.value(as<uint32_t>(v)); };
  const auto small_half = [](std::mt19937& r) {
    return U{0x3000} + (r() % 0x1000) + (r() % 2) * 0x8000;
  };
  const auto small_brain = [](std::mt19937& r) {
    return U{0x3f00} + (r() % 0x100) + (r() % 2) * 0x8000;
  };
  const auto a16 = [](int i, int g, int t) {
    return std::pair((i % 4 < 2) ? g : g + 8, t * 2 + (i & 1) + (i >= 4 ? 8 : 0));
  };
  const auto b16 = [](int i, int t) { return t * 2 + (i & 1) + (i >= 2 ? 8 : 0); };
  check_mma({"m16n8k16", ".f32.f16.f16.f32", 16, 16, 4, 2, 16, a16, b16}, half, small_half, false);
  check_mma({"m16n8k16", ".f32.bf16.bf16.f32", 16, 16, 4, 2, 16, a16, b16}, brain, small_brain,
            false);
  check_mma({"m16n8k8", ".f32.f16.f16.f32", 16, 8, 2, 1, 16, a16, b16}, half, small_half, false);
  check_mma(
      {"m16n8k8", ".f32.tf32.tf32.f32", 16, 8, 4, 2, 32,
       [](int i, int g, int t) { return std::pair(i % 2 ? g + 8 : g, i >= 2 ? t + 4 : t); },
       [](int i, int t) { return i ? t + 4 : t; }},
      [](U v) { return static_cast<double>(f32(v & ~U{0x1fff})); },
      [](std::mt19937& r) { return bits(static_cast<float>(r() % 1000) / 77.0f - 5); }, false);
  check_mma(
      {"m16n8k4", ".f32.tf32.tf32.f32", 16, 4, 2, 1, 32,
       [](int i, int g, int t) { return std::pair(i ? g + 8 : g, t); },
       [](int, int t) { return t; }},
      [](U v) { return static_cast<double>(f32(v & ~U{0x1fff})); },
      [](std::mt19937& r) { return bits(static_cast<float>(r() % 1000) / 77.0f - 5); }, false);
  const auto a8 = [](int i, int g, int t) {
    return std::pair(i % 8 < 4 ? g : g + 8, t * 4 + (i & 3) + (i >= 8 ? 16 : 0));
  };
  const auto b8 = [](int i, int t) { return t * 4 + (i & 3) + (i >= 4 ? 16 : 0); };
  const auto byte = [](std::mt19937& r) { return U{r() & 0xff}; };
  check_mma(
      {"m16n8k32", ".s32.s8.s8.s32", 16, 32, 4, 2, 8, a8, b8},
      [](U v) { return static_cast<double>(as<int8_t>(v)); }, byte, true);
  check_mma(
      {"m16n8k32", ".s32.u8.u8.s32", 16, 32, 4, 2, 8, a8, b8},
      [](U v) { return static_cast<double>(as<uint8_t>(v)); }, byte, true);
  check_mma(
      {"m16n8k16", ".s32.s8.s8.s32", 16, 16, 2, 1, 8, a8, b8},
      [](U v) { return static_cast<double>(as<int8_t>(v)); }, byte, true);
  check_mma(
      {"m8n8k16", ".s32.s8.s8.s32", 8, 16, 1, 1, 8,
       [](int i, int g, int t) { return std::pair(g, t * 4 + i); },
       [](int i, int t) { return t * 4 + i; }},
      [](U v) { return static_cast<double>(as<int8_t>(v)); }, byte, true);
  check_mma(
      {"m16n8k32", ".f32.e5m2.e5m2.f32", 16, 32, 4, 2, 8, a8, b8},
      [](U v) { return Small{2, 5}.value(as<uint32_t>(v)); },
      [](std::mt19937& r) { return U{0x30} + r() % 16; }, false);
}

TEST(PtxMatrix, DoublesAndHalfSums) {
  // m8n8k4: one element of A and B, two of C per lane.
  const auto out = run_threads(R"(
    cvt.rn.f64.u64 %fd1, %rd7; cvt.rn.f64.u64 %fd2, %rd8; mov.f64 %fd3, 0d3FF0000000000000;
    mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%fd4, %fd5}, {%fd1}, {%fd2}, {%fd3, %fd3};
    cvt.rzi.u64.f64 %rd1, %fd4; cvt.rzi.u64.f64 %rd2, %fd5; shl.b64 %rd2, %rd2, 32; or.b64 %rd9, %rd1, %rd2;)",
                               random_values(32, 63, 1), random_values(32, 63, 2), 32);
  const auto a = random_values(32, 63, 1), b = random_values(32, 63, 2);
  for (size_t lane = 0; lane < 32; ++lane) {
    U want[2] = {1, 1};
    for (size_t i = 0; i < 2; ++i)
      for (size_t k = 0; k < 4; ++k) want[i] += a[lane / 4 * 4 + k] * b[(lane % 4 * 2 + i) * 4 + k];
    ASSERT_EQ(out[lane], want[0] | (want[1] << 32));
  }
  // All ones: each sum is k plus C; both halves of each register, C and D in the same ones.
  const std::vector<U> ones(32, 0x3c003c00);
  const auto half = run_threads(
      " mov.b32 %r1, 0x40003c00; mov.b32 %r2, 0x3c004000; "
      "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%r1, %r2}, {%r7, %r7}, {%r8}, {%r1, %r2}; "
      "mov.b64 %rd9, {%r1, %r2};",
      ones, ones, 32);
  for (const U v : half) ASSERT_EQ(v, 0x4880'4900'4900'4880u);
}

TEST(PtxMatrix, LoadsAndMirrorsTiles) {
  const auto module = parsed(kernel_text(R"(
    .shared .align 16 .b8 tile[512];
    mov.u32 %r1, tile;
    // Element (row, column) of matrix m is 256 m + 16 row + column; every thread writes eight.
    shl.b32 %r2, %r0, 3; shr.u32 %r3, %r2, 6; shl.b32 %r3, %r3, 8; and.b32 %r4, %r2, 63;
    mov.u32 %r5, 0;
  $fill:
    add.u32 %r6, %r4, %r5; shr.u32 %r7, %r6, 3; shl.b32 %r7, %r7, 4; and.b32 %r8, %r6, 7; add.u32 %r7, %r7, %r8; add.u32 %r7, %r7, %r3;
    add.u32 %r8, %r2, %r5; shl.b32 %r8, %r8, 1; add.u32 %r8, %r8, %r1; cvt.u16.u32 %h1, %r7; st.shared.u16 [%r8], %h1;
    add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 8; @%p1 bra $fill;
    bar.sync 0;
    shl.b32 %r9, %r0, 4; add.u32 %r9, %r9, %r1;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r9];
    ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r14, %r15}, [%r9];
    movmatrix.sync.aligned.m8n8.trans.b16 %r16, %r10;
    mov.b64 %rd2, {%r10, %r13}; st.global.u64 [%at0], %rd2;
    mov.b64 %rd3, {%r15, %r16}; st.global.u64 [%at1], %rd3;)",
                                         2));
  ASSERT_TRUE(module);
  FlatMemory memory;
  const U x = memory.put(std::vector<U>(32)), y = memory.put(std::vector<U>(32));
  const Outcome outcome = launch(*module, memory, {x, y}, {1}, {32});
  ASSERT_TRUE(outcome.ok) << outcome.fault.text();
  const auto plain = memory.get<U>(x), mirrored = memory.get<U>(y);
  const auto at = [](U m, U row, U column) { return 256 * m + 16 * row + column; };
  for (U i = 0; i < 32; ++i) {
    const U r = i / 4, c = i % 4 * 2;
    ASSERT_EQ(plain[i],
              at(0, r, c) | at(0, r, c + 1) << 16 | at(3, r, c) << 32 | at(3, r, c + 1) << 48);
    ASSERT_EQ(mirrored[i],
              at(1, c, r) | at(1, c + 1, r) << 16 | at(0, c, r) << 32 | at(0, c + 1, r) << 48);
  }
}

}  // namespace
}  // namespace bm::sim::ptx::test
