// tcgen05 and its mbarriers: products in tensor memory, and that nothing of it is there before it
// is waited for.
#include "runtime/base/half.h"
#include "tests/unit/sim_ptx/machine.h"

namespace bm::sim::ptx::test {
namespace {

constexpr uint32_t kTensorRows = 128, kTensorColumns = 32, kTensorDepth = 16, kTensorThreads = 128;
constexpr uint32_t kTensorLeftBytes = kTensorRows * kTensorDepth * 2,
                   kTensorRightBytes = kTensorColumns * kTensorDepth * 2;

/// Lines of 32 bytes with a 32-byte swizzle: bit 7 of an address is added to bit 4.
uint32_t place_in_tile(uint32_t line, uint32_t k) {
  const uint32_t at = line * 32 + k * 2;
  return at ^ ((at >> 7 & 1) << 4);
}

/// Copies both tiles to shared memory, multiplies them twice, stores the 32 sums of a thread's row.
const char* const kTensorProduct = R"(
 .shared .align 256 .b8 tile[5152];
 mov.u32 %r1, tile;
 setp.lt.u32 %p1, %r0, 32;
 @!%p1 bra STARTED;
 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+5128], 32;
 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
 elect.sync _|%p2, -1;
 @%p2 mbarrier.init.shared::cta.b64 [%r1+5120], 1;
 fence.mbarrier_init.release.cluster;
STARTED:
 shl.b32 %r2, %r0, 4;
 add.u32 %r3, %r1, %r2;
 mul.wide.u32 %rd5, %r0, 16;
 add.u64 %rd6, %rd0, %rd5;
 cp.async.cg.shared.global [%r3], [%rd6], 16;
 cp.async.cg.shared.global [%r3+2048], [%rd6+2048], 16;
 setp.lt.u32 %p3, %r0, 64;
 @%p3 cp.async.cg.shared.global [%r3+4096], [%rd6+4096], 16;
 cp.async.commit_group;
 cp.async.wait_group 0;
 fence.proxy.async.shared::cta;
 bar.sync 0;
 tcgen05.fence::after_thread_sync;
 ld.shared.u32 %r5, [%r1+5128];
 @!%p1 bra ISSUED;
 elect.sync _|%p2, -1;
 shr.u32 %r4, %r1, 4;
 cvt.u64.u32 %rd7, %r4;
 or.b64 %rd8, %rd7, 0xC000401000010000;
 add.s64 %rd9, %rd8, 256;
 setp.ne.s32 %p4, 0, 0;
 setp.ne.s32 %p5, 1, 0;
 @%p2 tcgen05.mma.cta_group::1.kind::f16 [%r5], %rd8, %rd9, 0x8080490, %p4;
 @%p2 tcgen05.mma.cta_group::1.kind::f16 [%r5], %rd8, %rd9, 0x8080490, %p5;
 @%p2 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+5120];
ISSUED:
 mbarrier.try_wait.parity.shared::cta.b64 %p6, [%r1+5120], 0;
 @!%p6 bra ISSUED;
 tcgen05.fence::after_thread_sync;
 and.b32 %r6, %r0, 96;
 shl.b32 %r6, %r6, 16;
 add.u32 %r6, %r6, %r5;
 LOADS
 tcgen05.wait::ld.sync.aligned;
 STORES
 tcgen05.fence::before_thread_sync;
 bar.sync 0;
 @!%p1 bra FREED;
 tcgen05.fence::after_thread_sync;
 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r5, 32;
FREED:
)";

void replace(std::string& text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
}

std::string registers(uint32_t first, uint32_t count) {
  std::string out;
  for (uint32_t i = 0; i < count; ++i) out += fmt::format("{}%f{}", i ? ", " : "", first + i);
  return "{" + out + "}";
}

struct TensorRun {
  Outcome outcome;
  bool is_right = false;
};

/// `is_half`: by loads of 16 lanes, four registers for eight columns.
TensorRun multiply_in_tensor_memory(const std::string& from = "", const std::string& to = "",
                                    bool is_half = false) {
  std::string body = kTensorProduct, stores;
  const std::string loads =
      is_half ? " tcgen05.ld.sync.aligned.16x256b.x4.b32 " + registers(0, 16) + ", [%r6];\n" +
                    " tcgen05.ld.sync.aligned.16x256b.x4.b32 " + registers(16, 16) +
                    ", [%r6+1048576];\n"
              : " tcgen05.ld.sync.aligned.32x32b.x32.b32 " + registers(0, 32) + ", [%r6];\n";
  stores = " mul.wide.u32 %rd10, %r0, 128;\n add.u64 %rd11, %rd1, %rd10;\n";
  for (uint32_t i = 0; i < 32; ++i)
    stores += fmt::format(" st.global.f32 [%rd11+{}], %f{};\n", 4 * i, i);
  replace(body, " LOADS\n", loads);
  replace(body, " STORES\n", stores);
  if (!from.empty()) replace(body, from, to);
  const auto module = parsed(kernel_text(body, 2, "", "sm_100a"));
  if (!module) return {};
  std::mt19937 random(7);
  std::vector<float> left, right;
  std::vector<uint16_t> bytes((kTensorLeftBytes + kTensorRightBytes) / 2);
  const auto fill = [&](std::vector<float>& tile, uint32_t lines, uint32_t start) {
    for (uint32_t line = 0; line < lines; ++line)
      for (uint32_t k = 0; k < kTensorDepth; ++k) {
        tile.push_back(static_cast<float>(static_cast<int>(random() % 17) - 8));
        bytes[(start + place_in_tile(line, k)) / 2] = f32_to_bf16(tile.back());
      }
  };
  fill(left, kTensorRows, 0);
  fill(right, kTensorColumns, kTensorLeftBytes);
  FlatMemory memory;
  const uint64_t in = memory.put(bytes),
                 out = memory.put(std::vector<float>(size_t{kTensorRows} * kTensorColumns));
  TensorRun run;
  run.outcome = launch(*module, memory, {in, out}, {1}, {kTensorThreads},
                       {.checks = {.uninitialised_shared = true, .shared_races = true}});
  const auto got = memory.get<float>(out);
  run.is_right = run.outcome.ok;
  for (uint32_t i = 0; i < kTensorThreads; ++i)
    for (uint32_t r = 0; r < 32; ++r) {
      const uint32_t lane = i % 32, piece = r % 16;
      const uint32_t row = is_half ? i / 32 * 32 + r / 16 * 16 + lane / 4 + piece / 2 % 2 * 8 : i;
      const uint32_t column = is_half ? lane % 4 * 2 + piece % 2 + piece / 4 * 8 : r;
      float want = 0;
      for (uint32_t k = 0; k < kTensorDepth; ++k)
        want += 2 * left[row * kTensorDepth + k] * right[column * kTensorDepth + k];
      run.is_right = run.is_right && got[i * 32 + r] == want;
    }
  return run;
}

TEST(PtxTensorMemory, OneThreadHasTilesMultiplied) {
  for (const bool is_half : {false, true}) {
    const TensorRun run = multiply_in_tensor_memory("", "", is_half);
    EXPECT_TRUE(run.is_right) << run.outcome.fault.text();
    EXPECT_EQ(run.outcome.stats.traffic.group_products,
              uint64_t{2} * kTensorRows * kTensorColumns * kTensorDepth);
  }
}

TEST(PtxTensorMemory, NothingIsThereBeforeItIsWaitedFor) {
  const auto why = [](const std::string& from, const std::string& to = "") {
    const TensorRun run = multiply_in_tensor_memory(from, to);
    return run.is_right ? std::string("right") : run.outcome.ok ? "" : run.outcome.fault.where;
  };
  const auto expect = [&](std::string_view part, const std::string& from,
                          const std::string& to = "") {
    const std::string said = why(from, to);
    EXPECT_NE(said.find(part), std::string::npos) << from << " → " << to << ": " << said;
  };
  expect("cp.async", "cp.async.wait_group 0;");
  expect("no fence.proxy.async", "fence.proxy.async.shared::cta;");
  expect("since the last barrier", "bar.sync 0;");
  expect("fence.mbarrier_init", "fence.mbarrier_init.release.cluster;");
  expect("after_thread_sync", "tcgen05.fence::after_thread_sync;");
  expect("no product wrote that was waited for", "@!%p6 bra ISSUED;");
  expect("no product wrote that was waited for", "%p6, [%r1+5120], 0;", "%p6, [%r1+5120], 1;");
  expect("never completes", "@%p2 tcgen05.commit", "@!%p1 tcgen05.commit");
  expect("one thread does this", "@%p2 tcgen05.mma", "tcgen05.mma");
  expect("a column that nobody wrote", "0x8080490, %p4;", "0x8080490, %p5;");
  expect("tcgen05.mma whose mbarrier this thread did not wait for", "ISSUED:\n",
         "ISSUED:\n st.shared.u32 [%r3], %r0;\n");
  expect("tcgen05.fence::before_thread_sync", "tcgen05.wait::ld.sync.aligned;");
}

TEST(PtxTensorMemory, ColumnsAreThoseThatWereAllocated) {
  const auto said = [](const std::string& from, const std::string& to) {
    return multiply_in_tensor_memory(from, to).outcome.fault.where;
  };
  const auto has = [](const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(said("[%r1+5128], 32;", "[%r1+5128], 48;"), "no such number of columns"));
  EXPECT_TRUE(has(said("[%r5], %rd8", "[%r0], %rd8"), "columns are allocated"));
  EXPECT_TRUE(has(said("0x8080490, %p4;", "0x8100490, %p4;"), "columns are allocated"));
  EXPECT_TRUE(has(said("%f31}, [%r6];", "%f31}, [%r6+1];"), "columns are allocated"));
  EXPECT_TRUE(has(said("%f31}, [%r6];", "%f31}, [%r5];"), "its own quarter"));
  EXPECT_TRUE(has(said("%r5, 32;", "%r5, 64;"), "not allocated"));
  EXPECT_TRUE(has(said("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r5, 32;", ""), "not freed"));
}

TEST(PtxTensorMemory, DescriptorsSayWhatIsMultiplied) {
  const auto said = [](const std::string& from, const std::string& to) {
    return multiply_in_tensor_memory(from, to).outcome.fault.where;
  };
  const auto has = [](const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(said("0x8080490, %p4;", "0x4080490, %p4;"), "rows")) << "64";
  EXPECT_TRUE(has(said("0x8080490, %p4;", "0x8060490, %p4;"), "no such number of columns")) << "24";
  EXPECT_TRUE(has(said("0x8080490, %p4;", "0x8080410, %p4;"), "types")) << "A float16";
  EXPECT_TRUE(has(said("0x8080490, %p4;", "0x8080480, %p4;"), "float32")) << "sums in float16";
  EXPECT_TRUE(has(said("0xC000401000010000", "0xC000001000010000"), "no descriptor of tcgen05"));
  EXPECT_TRUE(has(said("0xC000401000010000", "0x6000401000010000"), "swizzle"));
  EXPECT_TRUE(has(said("0xC000401000010000", "0xC002401000010000"), "base offset"));
  const TensorRun other = multiply_in_tensor_memory("0xC000401000010000", "0x8000401000010000");
  EXPECT_TRUE(!other.is_right) << "another swizzle";
}

TEST(PtxTensorMemory, OtherFormsAreRefused) {
  for (const std::string& line :
       {" tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r1], 32;",
        " tcgen05.mma.cta_group::1.kind::i8 [%r1], %rd1, %rd2, %r2, %p1;",
        " tcgen05.ld.sync.aligned.16x64b.x1.b32 {%r1}, [%r2];",
        " tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r1}, [%r2];",
        " mbarrier.try_wait.shared::cta.b64 %p1, [%r1], %rd2;"})
    EXPECT_FALSE(parse(kernel_text(line, 1, "", "sm_100a"))) << line;
}

}  // namespace
}  // namespace bm::sim::ptx::test
