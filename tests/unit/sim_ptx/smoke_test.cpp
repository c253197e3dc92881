// Whole kernels through the public interface.
#include "tests/unit/sim_ptx/machine.h"

namespace bm::sim::ptx::test {
namespace {

TEST(PtxKernel, AddsVectorsOverSeveralBlocks) {
  const std::string text = R"(
.version 8.6
.target sm_90
.address_size 64
.visible .entry add(.param .u64 add_0, .param .u64 add_1, .param .u64 add_2, .param .u32 add_3)
.maxntid 128, 1, 1
{
  .reg .pred %p<2>; .reg .f32 %f<4>; .reg .b32 %r<6>; .reg .b64 %rd<11>;
  ld.param.u64 %rd1, [add_0];
  ld.param.u64 %rd2, [add_1];
  ld.param.u64 %rd3, [add_2];
  ld.param.u32 %r2, [add_3];
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mov.u32 %r5, %tid.x;
  mad.lo.s32 %r1, %r3, %r4, %r5;
  setp.ge.s32 %p1, %r1, %r2;
  @%p1 bra $L__BB0_2;
  cvta.to.global.u64 %rd4, %rd1;
  mul.wide.s32 %rd5, %r1, 4;
  add.s64 %rd6, %rd4, %rd5;
  add.s64 %rd8, %rd2, %rd5;
  ld.global.f32 %f1, [%rd8];
  ld.global.f32 %f2, [%rd6];
  add.f32 %f3, %f2, %f1;
  add.s64 %rd10, %rd3, %rd5;
  st.global.f32 [%rd10], %f3;
$L__BB0_2:
  ret;
})";
  const auto module = parsed(text);
  ASSERT_TRUE(module);
  const KernelInfo& info = module->kernels().front();
  EXPECT_EQ(info.param_bytes, 28u);
  EXPECT_EQ(info.max_block->x, 128u);
  FlatMemory memory;
  std::vector<float> a(1000), b(1000);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i), b[i] = 0.5f;
  const uint64_t pa = memory.put(a), pb = memory.put(b), pc = memory.put(std::vector<float>(1000));
  for (const uint32_t threads : {1u, 2u}) {
    Launch options;
    options.threads = threads;
    const auto outcome = launch(*module, memory, {pa, pb, pc, 1000}, {8}, {128}, options);
    ASSERT_TRUE(outcome.ok) << outcome.fault.text();
    EXPECT_EQ(outcome.stats.blocks, 8u);
    const auto c = memory.get<float>(pc);
    for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(c[i], a[i] + b[i]) << i;
  }
  // One element too many is caught exactly.
  const auto outcome = launch(*module, memory, {pa, pb, pc, 1001}, {8}, {128});
  ASSERT_FALSE(outcome.ok);
  EXPECT_EQ(outcome.fault.kind, Fault::Kind::kUnmapped);
  EXPECT_EQ(outcome.fault.address, pb + 4000);
  EXPECT_EQ(outcome.fault.block.x, 7u);
  EXPECT_EQ(outcome.fault.thread.x, 104u);
}

}  // namespace
}  // namespace bm::sim::ptx::test
