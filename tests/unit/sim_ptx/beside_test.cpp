// cp.async and wgmma: what they do, and that nothing of it is there before it is waited for.
#include "runtime/base/half.h"
#include "tests/unit/sim_ptx/machine.h"

namespace bm::sim::ptx::test {
namespace {

constexpr uint32_t kRows = 64, kColumns = 8, kDepth = 16, kThreads = 128;
constexpr uint32_t kLeftBytes = kRows * kDepth * 2, kRightBytes = kColumns * kDepth * 2;

/// Lines of 32 bytes with a 32-byte swizzle: bit 7 of an address is added to bit 4.
uint32_t place(uint32_t line, uint32_t k) {
  const uint32_t at = line * 32 + k * 2;
  return at ^ ((at >> 7 & 1) << 4);
}

/// Copies both tiles to shared memory, multiplies them, stores four sums a thread.
const char* const kProduct = R"(
 .shared .align 256 .b8 tile[2304];
 mov.u32 %r1, tile;
 shl.b32 %r2, %r0, 4;
 add.u32 %r3, %r1, %r2;
 mul.wide.u32 %rd5, %r0, 16;
 add.u64 %rd6, %rd0, %rd5;
 cp.async.cg.shared.global [%r3], [%rd6], 16;
 setp.lt.u32 %p1, %r0, 16;
 @%p1 cp.async.cg.shared.global [%r3+2048], [%rd6+2048], 16;
 cp.async.commit_group;
 cp.async.wait_group 0;
 fence.proxy.async.shared::cta;
 bar.sync 0;
 shr.u32 %r4, %r1, 4;
 cvt.u64.u32 %rd7, %r4;
 or.b64 %rd8, %rd7, 0xC000001000010000;
 add.s64 %rd9, %rd8, 128;
 mov.f32 %f1, 0f3f800000;
 mov.f32 %f2, 0f40000000;
 mov.f32 %f3, 0f40400000;
 mov.f32 %f4, 0f40800000;
 setp.ne.s32 %p2, 1, 0;
 wgmma.fence.sync.aligned;
 wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, %rd8, %rd9, %p2, 1, 1, 0, 0;
 wgmma.commit_group.sync.aligned;
 wgmma.wait_group.sync.aligned 0;
 add.u64 %rd11, %rd1, %rd5;
 st.global.v4.f32 [%rd11], {%f1, %f2, %f3, %f4};
)";

struct Tiles {
  std::vector<float> left, right;
  std::vector<uint16_t> memory;
};

Tiles random_tiles() {
  std::mt19937 random(5);
  Tiles t;
  t.memory.resize((kLeftBytes + kRightBytes) / 2);
  const auto fill = [&](std::vector<float>& tile, uint32_t lines, uint32_t start) {
    for (uint32_t line = 0; line < lines; ++line)
      for (uint32_t k = 0; k < kDepth; ++k) {
        tile.push_back(static_cast<float>(static_cast<int>(random() % 17) - 8));
        t.memory[(start + place(line, k)) / 2] = f32_to_bf16(tile.back());
      }
  };
  fill(t.left, kRows, 0);
  fill(t.right, kColumns, kLeftBytes);
  return t;
}

struct Multiplied {
  Outcome outcome;
  bool is_right = false;
};

Multiplied multiply_text(const std::string& body) {
  const auto module = parsed(kernel_text(body, 2, "", "sm_90a"));
  if (!module) return {};
  const Tiles tiles = random_tiles();
  FlatMemory memory;
  const uint64_t in = memory.put(tiles.memory),
                 out = memory.put(std::vector<float>(size_t{kRows} * kColumns));
  Multiplied run;
  run.outcome = launch(*module, memory, {in, out}, {1}, {kThreads},
                       {.checks = {.uninitialised_shared = true, .shared_races = true}});
  const auto got = memory.get<float>(out);
  run.is_right = run.outcome.ok;
  for (uint32_t i = 0; i < kThreads; ++i)
    for (uint32_t r = 0; r < 4; ++r) {
      const uint32_t row = i / 32 * 16 + i % 32 / 4 + r / 2 * 8, column = i % 4 * 2 + r % 2;
      float want = static_cast<float>(r + 1);
      for (uint32_t k = 0; k < kDepth; ++k)
        want += tiles.left[row * kDepth + k] * tiles.right[column * kDepth + k];
      run.is_right = run.is_right && got[i * 4 + r] == want;
    }
  return run;
}

/// `from`: what is replaced in the kernel; empty: nothing.
Multiplied multiply(const std::string& from = "", const std::string& to = "") {
  std::string body = kProduct;
  if (!from.empty()) body.replace(body.find(from), from.size(), to);
  return multiply_text(body);
}

TEST(PtxBeside, WarpgroupsMultiplyTilesInSharedMemory) {
  const Multiplied run = multiply();
  EXPECT_TRUE(run.is_right) << run.outcome.fault.text();
  EXPECT_EQ(run.outcome.stats.traffic.group_products, uint64_t{kRows} * kColumns * kDepth);
  EXPECT_EQ(run.outcome.stats.traffic.global_load_bytes, kLeftBytes + kRightBytes);
}

TEST(PtxBeside, NothingIsThereBeforeItIsWaitedFor) {
  const auto why = [](const std::string& from, const std::string& to = "") {
    const Multiplied run = multiply(from, to);
    return run.is_right ? std::string("right") : run.outcome.ok ? "" : run.outcome.fault.where;
  };
  const auto has = [](const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(why("cp.async.wait_group 0;"), "cp.async"));
  EXPECT_TRUE(has(why("cp.async.wait_group 0;", "cp.async.wait_group 1;"), "cp.async"));
  EXPECT_TRUE(has(why("fence.proxy.async.shared::cta;"), "fence.proxy.async"));
  EXPECT_TRUE(has(why("bar.sync 0;"), "since the last barrier"));
  EXPECT_TRUE(has(why("wgmma.fence.sync.aligned;"), "no wgmma.fence"));
  EXPECT_EQ(why("wgmma.wait_group.sync.aligned 0;"), "") << "sums that are not there yet";
  EXPECT_EQ(why("wgmma.commit_group.sync.aligned;"), "");
  EXPECT_TRUE(has(why("wgmma.commit_group.sync.aligned;",
                      "wgmma.commit_group.sync.aligned;\n mov.f32 %f2, 0f00000000;"),
                  "written before"));
  EXPECT_TRUE(has(why("wgmma.wait_group.sync.aligned 0;",
                      "st.shared.u32 [%r3], %r0;\n wgmma.wait_group.sync.aligned 0;"),
                  "wgmma that was not waited for"));
  EXPECT_TRUE(has(why("add.s64 %rd9, %rd8, 128;", "cvt.u64.u32 %rd9, %r0;"), "disagree"));
}

/// The same with the left tile read into registers first.
std::string by_registers(const std::string& from = "", const std::string& to = "") {
  // Rows g and g+8 of the warp's sixteen: words t and t+4, in lines of 32 bytes with a swizzle.
  std::string load = R"( bar.sync 0;
 shr.u32 %r5, %r0, 5;
 shl.b32 %r5, %r5, 9;
 and.b32 %r6, %r0, 31;
 shr.u32 %r7, %r6, 2;
 shl.b32 %r8, %r7, 5;
 add.u32 %r5, %r5, %r8;
 and.b32 %r9, %r6, 3;
 shl.b32 %r9, %r9, 2;
 add.u32 %r5, %r5, %r9;
 shr.u32 %r10, %r7, 2;
 and.b32 %r10, %r10, 1;
 shl.b32 %r10, %r10, 4;
 xor.b32 %r5, %r5, %r10;
 add.u32 %r11, %r1, %r5;
 xor.b32 %r12, %r5, 16;
 add.u32 %r12, %r1, %r12;
 ld.shared.u32 %r13, [%r11];
 ld.shared.u32 %r14, [%r11+256];
 ld.shared.u32 %r15, [%r12];
 ld.shared.u32 %r16, [%r12+256];
)";
  std::string body = kProduct;
  const auto replace = [&](const std::string& what, const std::string& by) {
    const size_t at = body.find(what);
    EXPECT_NE(at, std::string::npos) << what;
    if (at != std::string::npos) body.replace(at, what.size(), by);
  };
  replace(" bar.sync 0;\n", load);
  replace("%rd8, %rd9, %p2, 1, 1, 0, 0;", "{%r13, %r14, %r15, %r16}, %rd9, %p2, 1, 1, 0;");
  if (!from.empty()) replace(from, to);
  const Multiplied run = multiply_text(body);
  return run.is_right ? "right" : run.outcome.ok ? "wrong" : run.outcome.fault.where;
}

TEST(PtxBeside, TheLeftOperandMayBeInRegisters) {
  EXPECT_EQ(by_registers(), "right");
  const auto has = [](const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
  };
  const std::string fence = " wgmma.fence.sync.aligned;\n",
                    commit = " wgmma.commit_group.sync.aligned;\n";
  EXPECT_EQ(by_registers("{%r13, %r14, %r15, %r16}", "{%r13, %r15, %r14, %r16}"), "wrong");
  EXPECT_TRUE(has(by_registers(fence, fence + " xor.b32 %r14, %r14, 1;\n"),
                  "since the left operand's registers were written"));
  EXPECT_TRUE(has(by_registers(commit, commit + " xor.b32 %r14, %r14, 1;\n"),
                  "a register of the left operand was written before"));
  EXPECT_EQ(by_registers(fence, fence + " mov.b32 %r17, %r14;\n"), "right");
}

TEST(PtxBeside, CopiesFillUpWithZeros) {
  const auto module = parsed(kernel_text(R"(
 .shared .align 16 .b8 row[512];
 mov.u32 %r1, row;
 shl.b32 %r2, %r0, 4;
 add.u32 %r3, %r1, %r2;
 setp.lt.u32 %p1, %r0, 16;
 selp.u32 %r4, 8, 0, %p1;
 mul.wide.u32 %rd5, %r0, 16;
 add.u64 %rd6, %rd0, %rd5;
 cp.async.cg.shared.global [%r3], [%rd6], 16, %r4;
 cp.async.wait_all;
 ld.shared.v2.u64 {%rd7, %rd8}, [%r3];
 add.u64 %rd9, %rd7, %rd8;
 st.global.u64 [%at1], %rd9;
)",
                                         2));
  ASSERT_TRUE(module);
  FlatMemory memory;
  // Half as much as all threads name: those that read nothing may name anything.
  const uint64_t in = memory.put(std::vector<uint64_t>(32, 7)),
                 out = memory.put(std::vector<uint64_t>(32, 1));
  const Outcome outcome = launch(*module, memory, {in, out}, {1}, {32});
  ASSERT_TRUE(outcome.ok) << outcome.fault.text();
  const auto got = memory.get<uint64_t>(out);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], i < 16 ? 7u : 0u) << i;
}

TEST(PtxBeside, BanksAreCounted) {
  const auto conflicts = [](int stride) {
    const auto module =
        parsed(kernel_text(" .shared .align 16 .b8 row[8192];\n mov.u32 %r1, row;\n"
                           " mul.lo.u32 %r2, %r0, " +
                               std::to_string(stride) +
                               ";\n add.u32 %r3, %r1, %r2;\n"
                               " st.shared.u32 [%r3], %r0;\n",
                           1));
    FlatMemory memory;
    const Outcome outcome = launch(*module, memory, {0}, {1}, {32});
    EXPECT_TRUE(outcome.ok) << outcome.fault.text();
    return outcome.stats.traffic.shared_conflicts;
  };
  EXPECT_EQ(conflicts(4), 0u);
  EXPECT_EQ(conflicts(8), 1u);
  EXPECT_EQ(conflicts(128), 31u);
  EXPECT_EQ(conflicts(132), 0u);
}

TEST(PtxBeside, SectorsAreCounted) {
  const auto traffic = [](int stride, int offset) {
    const auto module = parsed(kernel_text(
        " mul.wide.u32 %rd5, %r0, " + std::to_string(stride) +
            ";\n add.u64 %rd6, %rd0, %rd5;\n add.u64 %rd6, %rd6, " + std::to_string(offset) +
            ";\n ld.global.u32 %r1, [%rd6];\n st.global.u16 [%rd6], %r0;\n",
        1));
    FlatMemory memory;
    const uint64_t in = memory.put(std::vector<uint64_t>(1024));
    const Outcome outcome = launch(*module, memory, {in}, {1}, {64});
    EXPECT_TRUE(outcome.ok) << outcome.fault.text();
    return outcome.stats.traffic;
  };
  // Two warps.
  EXPECT_EQ(traffic(4, 0).global_load_sectors, 8u);
  EXPECT_EQ(traffic(4, 4).global_load_sectors, 10u);
  EXPECT_EQ(traffic(0, 0).global_load_sectors, 2u);
  EXPECT_EQ(traffic(8, 0).global_store_sectors, 16u);
  EXPECT_EQ(traffic(64, 0).global_store_sectors, 64u);
  EXPECT_EQ(traffic(64, 0).global_store_bytes, 128u);
  EXPECT_EQ(traffic(64, 0).global_load_bytes, 256u);
}

TEST(PtxBeside, FormsThatDoNotExistAreRefused) {
  const auto message = [](const std::string& line) {
    const auto module = parse(kernel_text(line, 1, "", "sm_90a"));
    return module ? std::string("accepted") : module.error().message;
  };
  const std::string regs =
      "{%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8, %r9, %r10, %r11, %r12, %r13, "
      "%r14, %r15, %r16, %r17, %r18, %r19, %r20}";
  EXPECT_NE(
      message(" wgmma.mma_async.sync.aligned.m64n40k32.s32.s8.s8 " + regs + ", %rd1, %rd2, %p1;")
          .find("no such shape"),
      std::string::npos);
  EXPECT_NE(message(" wgmma.mma_async.sync.aligned.m64n8k8.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, "
                    "%rd1, %rd2, %p1, 1, 1, 0, 0;")
                .find("no such shape"),
            std::string::npos);
  EXPECT_NE(message(" wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2}, %rd1, %rd2, "
                    "%p1, 1, 1, 0, 0;")
                .find("4 accumulators"),
            std::string::npos);
  EXPECT_NE(message(" cp.async.cg.shared.global [%r1], [%rd1], 8;").find("16 bytes"),
            std::string::npos);
}

}  // namespace
}  // namespace bm::sim::ptx::test
