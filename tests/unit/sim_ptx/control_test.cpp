// Divergence, calls, barriers, memory spaces, faults.
#include "tests/unit/sim_ptx/op_case.h"

namespace bm::sim::ptx::test {
namespace {

std::vector<uint64_t> run_one(const std::string& text, uint32_t threads, Launch options = {},
                              uint32_t blocks = 1) {
  const auto module = parsed(text);
  if (!module) return std::vector<uint64_t>(threads * blocks);
  FlatMemory memory;
  const uint64_t out = memory.put(std::vector<uint64_t>(threads * blocks));
  const Outcome outcome = launch(*module, memory, {out}, {blocks}, {threads}, options);
  EXPECT_TRUE(outcome.ok) << outcome.fault.text();
  return memory.get<uint64_t>(out);
}

Fault fault_of(const std::string& text, uint32_t threads, Launch options = {},
               const std::vector<uint64_t>& args = {}) {
  const auto module = parsed(text);
  if (!module) return {};
  FlatMemory memory;
  const std::vector<uint64_t> all =
      args.empty() ? std::vector<uint64_t>{memory.put(std::vector<uint64_t>(threads))} : args;
  const Outcome outcome = launch(*module, memory, all, {1}, {threads}, options);
  EXPECT_FALSE(outcome.ok);
  return outcome.fault;
}

TEST(PtxControl, ThreadsLoopTheirOwnNumberOfTimes) {
  const auto out = run_one(kernel_text(R"(
    mov.u64 %rd1, 0; mov.u32 %r1, 0;
  $loop:
    setp.ge.u32 %p1, %r1, %r0;
    @%p1 bra $done;
    cvt.u64.u32 %rd2, %r1;
    add.u64 %rd1, %rd1, %rd2;
    add.u32 %r1, %r1, 1;
    bra.uni $loop;
  $done:
    st.global.u64 [%at0], %rd1;)",
                                       1),
                           257);
  for (uint64_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], i * (i ? i - 1 : 0) / 2);
}

TEST(PtxControl, BothArmsRunAndMeetAgain) {
  // Converged again, every thread of the block sees the same number of active threads.
  const auto out = run_one(kernel_text(R"(
    and.b32 %r1, %r0, 3;
    setp.eq.u32 %p1, %r1, 0;
    @!%p1 bra $else;
    mul.lo.u32 %r2, %r0, 10;
    bra.uni $end;
  $else:
    setp.gt.u32 %p2, %r1, 1;
    @%p2 add.u32 %r2, %r0, 7;
    @%p2 bra $end;
    neg.s32 %r2, %r0;
  $end:
    activemask.b32 %r3;
    mov.b64 %rd2, {%r2, %r3};
    st.global.u64 [%at0], %rd2;)",
                                       1),
                           64);
  for (uint64_t i = 0; i < out.size(); ++i) {
    const uint64_t want = i % 4 == 0 ? i * 10 : i % 4 == 1 ? (0 - i) & 0xffffffff : i + 7;
    ASSERT_EQ(out[i], (uint64_t{0xffffffff} << 32) | want) << i;
  }
}

TEST(PtxControl, IndirectBranchesAndExits) {
  const std::string text = kernel_text(R"(
    rem.u32 %r1, %r0, 4;
    mov.u32 %r2, 5;
    setp.eq.u32 %p1, %r0, 9;
    @%p1 exit;
    $table: .branchtargets $a, $b, $c, $a;
    brx.idx %r1, $table;
  $a: mov.u32 %r2, 100; bra $end;
  $b: mov.u32 %r2, 200; bra $end;
  $c: add.u32 %r2, %r2, 1;
  $end:
    cvt.u64.u32 %rd1, %r2;
    st.global.u64 [%at0], %rd1;)",
                                       1);
  const auto out = run_one(text, 40);
  const uint64_t want[] = {100, 200, 6, 100};
  for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], i == 9 ? 0 : want[i % 4]) << i;
}

TEST(PtxControl, FunctionsTakeAndReturnParametersAndNest) {
  const std::string functions = R"(
.func (.param .b64 result) square(.param .b64 value) {
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [value];
  mul.lo.u64 %rd2, %rd1, %rd1;
  st.param.u64 [result], %rd2;
  ret;
}
.func (.reg .u32 %out) bump(.reg .u32 %in, .reg .u32 %by) {
  .reg .pred %p;
  setp.gt.u32 %p, %in, 5;
  @%p bra $big;
  add.u32 %out, %in, %by;
  ret;
$big:
  sub.u32 %out, %in, %by;
  ret;
}
.func (.param .align 8 .b8 pair[16]) both(.param .b32 a, .param .b64 b) {
  .reg .u32 %r<4>; .reg .b64 %rd<4>;
  ld.param.u32 %r1, [a];
  call (%r2), bump, (%r1, 1);
  cvt.u64.u32 %rd1, %r2;
  st.param.u64 [pair], %rd1;
  ld.param.u64 %rd2, [b];
  {
    .param .b64 p0; .param .b64 p1;
    st.param.u64 [p0], %rd2;
    call.uni (p1), square, (p0);
    ld.param.u64 %rd3, [p1];
  }
  st.param.u64 [pair+8], %rd3;
  ret;
}
)";
  const auto out = run_one(kernel_text(R"(
    cvt.u64.u32 %rd1, %r0;
    setp.eq.u32 %p1, %r0, 3;
    @%p1 bra $skip;
    {
      .param .b32 p0; .param .b64 p1; .param .align 8 .b8 p2[16];
      st.param.u32 [p0], %r0;
      st.param.u64 [p1], %rd1;
      call.uni (p2), both, (p0, p1);
      ld.param.v2.u64 {%rd2, %rd3}, [p2];
    }
    shl.b64 %rd2, %rd2, 32;
    or.b64 %rd1, %rd2, %rd3;
  $skip:
    st.global.u64 [%at0], %rd1;)",
                                       1, functions),
                           70);
  for (uint64_t i = 0; i < out.size(); ++i)
    ASSERT_EQ(out[i], i == 3 ? 3 : ((i > 5 ? i - 1 : i + 1) << 32 | i * i)) << i;
}

TEST(PtxControl, BarriersOrderSharedMemory) {
  const auto out = run_one(kernel_text(R"(
    .shared .align 8 .b8 tile[2048];
    mov.u64 %rd5, tile;
    shl.b32 %r1, %r0, 3; cvt.u64.u32 %rd1, %r1; add.u64 %rd6, %rd5, %rd1;
    cvt.u64.u32 %rd2, %r0;
    st.shared.u64 [%rd6], %rd2;
    bar.sync 0;
    mov.u32 %r2, 255; sub.u32 %r3, %r2, %r0; shl.b32 %r3, %r3, 3;
    mov.u32 %r4, tile; add.u32 %r4, %r4, %r3;
    ld.shared.u64 %rd3, [%r4];
    barrier.cta.sync.aligned 1, 256;
    st.global.u64 [%at0], %rd3;)",
                                       1),
                           256, {.checks = {.uninitialised_shared = true, .shared_races = true}});
  for (uint64_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], 255 - i);
}

TEST(PtxControl, NamedBarriersAndReductions) {
  // Warp 0 arrives without waiting, warp 1 waits for both; then everyone votes.
  const auto out = run_one(kernel_text(R"(
    .shared .u64 flag;
    setp.lt.u32 %p1, %r0, 32;
    @!%p1 bra $consumer;
    st.shared.u64 [flag], 42;
    bar.arrive 3, 64;
    bra $vote;
  $consumer:
    bar.sync 3, 64;
  $vote:
    setp.lt.u32 %p2, %r0, 10;
    bar.red.popc.u32 %r1, 0, %p2;
    bar.red.and.pred %p3, 0, %p2;
    bar.red.or.pred %p4, 0, !%p2;
    ld.shared.u64 %rd1, [flag];
    selp.u32 %r2, 1, 0, %p3;
    selp.u32 %r3, 2, 0, %p4;
    add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r3; cvt.u64.u32 %rd2, %r1;
    shl.b64 %rd2, %rd2, 8; add.u64 %rd1, %rd1, %rd2;
    st.global.u64 [%at0], %rd1;)",
                                       1),
                           64);
  for (const uint64_t v : out) ASSERT_EQ(v, 42u + (12u << 8));
}

TEST(PtxControl, SpinningThreadsLetOthersRun) {
  // A lock: without fairness the spinning threads, at the lower address, starve the holder.
  const auto out = run_one(kernel_text(R"(
    .shared .u32 lock; .shared .u32 count;
    setp.eq.u32 %p1, %r0, 0;
    @%p1 st.shared.u32 [lock], 0;
    @%p1 st.shared.u32 [count], 0;
    bar.sync 0;
  $try:
    atom.shared.cas.b32 %r1, [lock], 0, 1;
    setp.ne.u32 %p2, %r1, 0;
    @%p2 bra $try;
    ld.shared.u32 %r2, [count];
    add.u32 %r2, %r2, 1;
    st.shared.u32 [count], %r2;
    membar.cta;
    atom.shared.exch.b32 %r3, [lock], 0;
    bar.sync 0;
    ld.shared.u32 %r4, [count];
    cvt.u64.u32 %rd1, %r4;
    st.global.u64 [%at0], %rd1;)",
                                       1),
                           64);
  for (const uint64_t v : out) ASSERT_EQ(v, 64u);
}

TEST(PtxControl, SpecialRegistersNameThreadsBlocksAndLanes) {
  const std::string text = kernel_text(R"(
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %laneid;
    mov.u32 %r5, %warpid; mov.u32 %r6, %lanemask_lt; mov.u32 %r7, %lanemask_ge;
    mad.lo.u32 %r8, %r1, %r3, %r0;
    mul.wide.u32 %rd1, %r8, 8; add.u64 %rd1, %rd0, %rd1;
    popc.b32 %r6, %r6; popc.b32 %r7, %r7;
    shl.b32 %r2, %r2, 24; shl.b32 %r4, %r4, 16; shl.b32 %r5, %r5, 8;
    or.b32 %r9, %r2, %r4; or.b32 %r9, %r9, %r5; or.b32 %r9, %r9, %r1;
    shl.b32 %r6, %r6, 8; or.b32 %r6, %r6, %r7;
    mov.b64 %rd2, {%r9, %r6};
    st.global.u64 [%rd1], %rd2;)",
                                       1);
  const auto out = run_one(text, 96, {.threads = 2}, 5);
  for (uint64_t b = 0; b < 5; ++b)
    for (uint64_t i = 0; i < 96; ++i) {
      const uint64_t lane = i % 32;
      ASSERT_EQ(out[b * 96 + i] & 0xffffffff, (5u << 24) | (lane << 16) | (i / 32 << 8) | b);
      ASSERT_EQ(out[b * 96 + i] >> 32, (lane << 8) | (32 - lane));
    }
}

TEST(PtxMemory, SpacesAndWidths) {
  const std::string more = R"(
.global .align 4 .u32 counter = 7;
.const .align 8 .b64 table[3] = {10, 20, 0x1E};
.global .align 8 .u64 pointer = generic(counter);
.global .align 1 .b8 bytes[5] = {1, 2, 250, 4};
)";
  const auto out = run_one(kernel_text(R"(
    .local .align 16 .b8 frame[32];
    mov.u64 %rd1, frame; cvta.local.u64 %rd2, %rd1;
    st.u32 [%rd2+4], %r0;
    ld.local.u32 %r1, [frame+4];
    ld.const.u64 %rd3, [table+16];
    ld.global.u64 %rd4, [pointer];
    ld.u32 %r2, [%rd4];
    mov.u64 %rd5, bytes; ld.global.s8 %r3, [%rd5+2]; ld.global.u8 %h1, [bytes+2];
    cvt.u32.u16 %r4, %h1;
    add.u32 %r1, %r1, %r2; add.s32 %r1, %r1, %r3; add.u32 %r1, %r1, %r4;
    cvt.u32.u64 %r5, %rd3; add.u32 %r1, %r1, %r5;
    isspacep.local %p1, %rd2; isspacep.global %p2, %rd4;
    and.pred %p1, %p1, %p2;
    selp.u32 %r6, 1000, 0, %p1; add.u32 %r1, %r1, %r6;
    cvt.u64.u32 %rd6, %r1;
    st.global.u64 [%at0], %rd6;)",
                                       1, more),
                           33);
  for (uint64_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], i + 7 - 6 + 250 + 30 + 1000);
}

TEST(PtxMemory, VectorsAndDynamicShared) {
  const auto out = run_one(kernel_text(R"(
    .shared .align 4 .b8 fixed[20];
    shl.b32 %r1, %r0, 4; mov.u32 %r2, dynamic; add.u32 %r2, %r2, %r1;
    add.u32 %r3, %r0, 1; add.u32 %r4, %r0, 2; add.u32 %r5, %r0, 3;
    st.shared.v4.u32 [%r2], {%r0, %r3, %r4, %r5};
    ld.shared.v2.b64 {%rd1, %rd2}, [%r2];
    xor.b64 %rd3, %rd1, %rd2;
    mov.u32 %r6, %dynamic_smem_size; cvt.u64.u32 %rd4, %r6; add.u64 %rd3, %rd3, %rd4;
    st.shared.u32 [fixed], %r0;
    st.global.u64 [%at0], %rd3;)",
                                       1, ".extern .shared .align 16 .b8 dynamic[];\n"),
                           8, {.dynamic_shared = 128});
  for (uint64_t i = 0; i < out.size(); ++i)
    ASSERT_EQ(out[i], ((i | (i + 1) << 32) ^ ((i + 2) | (i + 3) << 32)) + 128);
}

TEST(PtxMemory, FirstElementOfAnArrayIsItsAddress) {
  const auto out = run_one(kernel_text(R"(
    .shared .align 16 .b8 tile[64];
    mov.u64 %rd1, tile[0]; st.shared.u64 [%rd1+8], %index; ld.shared.u64 %rd2, [tile+8];
    st.global.u64 [%at0], %rd2;)",
                                       1),
                           1);
  EXPECT_EQ(out[0], 0u);
  EXPECT_FALSE(parse(kernel_text(" .shared .b8 tile[64]; mov.u64 %rd1, tile[8];", 1)).has_value());
  // Headers of CUDA write directives without spaces.
  EXPECT_TRUE(parse(kernel_text(" { .reg.b16 low; mov.b16 low, 1; }", 1)).has_value());
}

TEST(PtxMemory, AsynchronousCopiesArriveAndPadWithZeros) {
  const auto out = run_one(kernel_text(R"(
    .shared .align 16 .b8 tile[1024];
    mov.u32 %r1, 0x11223344; mov.b64 %rd1, {%r1, %r0};
    st.global.u64 [%at0], %rd1;
    shl.b32 %r2, %r0, 3; mov.u32 %r3, tile; add.u32 %r3, %r3, %r2;
    mov.u32 %r4, 4;
    cp.async.ca.shared.global [%r3], [%at0], 8, %r4;
    cp.async.commit_group; cp.async.wait_group 0;
    ld.shared.u64 %rd2, [%r3];
    st.global.u64 [%at0], %rd2;)",
                                       1),
                           16);
  for (const uint64_t v : out) ASSERT_EQ(v, 0x11223344u);
}

TEST(PtxFault, AddressesAreReportedExactly) {
  const Fault unmapped = fault_of(
      kernel_text(
          " setp.eq.u32 %p1, %r0, 5; @%p1 mov.u64 %at0, 4096;\n st.global.u64 [%at0], %index;", 1),
      64);
  EXPECT_EQ(unmapped.kind, Fault::Kind::kUnmapped);
  EXPECT_EQ(unmapped.address, 4096u);
  EXPECT_EQ(unmapped.thread.x, 5u);
  EXPECT_EQ(unmapped.access, Access::kWrite);
  EXPECT_NE(unmapped.where.find("st.global.u64 [%at0], %index"), std::string::npos)
      << unmapped.where;

  const Fault misaligned = fault_of(kernel_text(" ld.global.u32 %r1, [%at0+2];", 1), 4);
  EXPECT_EQ(misaligned.kind, Fault::Kind::kMisaligned);

  const Fault shared = fault_of(kernel_text(" .shared .b8 s[64]; mov.u32 %r1, s; mad.lo.u32 %r1, "
                                            "%r0, 4, %r1; st.shared.u32 [%r1], %r0;",
                                            1),
                                32);
  EXPECT_EQ(shared.kind, Fault::Kind::kSharedOutOfRange);
  EXPECT_EQ(shared.address, 64u);
  EXPECT_EQ(shared.thread.x, 16u);

  // Half inside is outside, to the byte.
  const Fault partly = fault_of(
      kernel_text(
          " .shared .align 4 .b8 s[62]; st.shared.u32 [s+56], %r0; st.shared.u32 [s+60], %r0;", 1),
      1);
  EXPECT_EQ(partly.kind, Fault::Kind::kSharedOutOfRange);
  EXPECT_EQ(partly.address, 60u);

  const Fault local = fault_of(
      kernel_text(" .local .align 4 .b8 l[16]; mov.u64 %rd1, l; st.local.u32 [%rd1+16], %r0;", 1),
      32);
  EXPECT_EQ(local.kind, Fault::Kind::kLocalOutOfRange);
  const Fault window = fault_of(
      kernel_text(
          " .shared .b8 s[64]; mov.u64 %rd1, s; cvta.shared.u64 %rd1, %rd1; ld.u32 %r1, [%rd1+64];",
          1),
      1);
  EXPECT_EQ(window.kind, Fault::Kind::kSharedOutOfRange);
}

TEST(PtxFault, ReadsOfSharedMemoryNobodyWrote) {
  const std::string text = kernel_text(R"( .shared .b8 s[64]; mov.u32 %r1, s;
    setp.lt.u32 %p1, %r0, 15; mad.lo.u32 %r1, %r0, 4, %r1; @%p1 st.shared.u32 [%r1], %r0;
    bar.sync 0; ld.shared.u32 %r2, [%r1];)",
                                       1);
  const Fault fault = fault_of(text, 16, {.checks = {.uninitialised_shared = true}});
  EXPECT_EQ(fault.kind, Fault::Kind::kUninitialisedShared);
  EXPECT_EQ(fault.address, 60u);
  EXPECT_EQ(fault.thread.x, 15u);
  run_one(text, 16);  // unchecked, it is only garbage
}

std::string neighbour_text(const std::string& between) {
  return kernel_text(R"( .shared .b8 s[260]; mov.u32 %r1, s; mad.lo.u32 %r1, %r0, 4, %r1;
    st.shared.u32 [%r1], %r0;
    setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [%r1+256], %r0;)" +
                         between + R"(
    ld.shared.u32 %r2, [%r1+4]; cvt.u64.u32 %rd1, %r2; st.global.u64 [%at0], %rd1;)",
                     1);
}
TEST(PtxFault, RacesInSharedMemory) {
  const Launch checked{.checks = {.shared_races = true}};
  const Fault fault = fault_of(neighbour_text(""), 64, checked);
  EXPECT_EQ(fault.kind, Fault::Kind::kSharedRace);
  EXPECT_NE(fault.where.find("wrote it"), std::string::npos) << fault.where;
  run_one(neighbour_text("bar.sync 0;"), 64, checked);
  // A warp's own barrier is enough inside the warp and not between warps.
  EXPECT_EQ(fault_of(neighbour_text("bar.warp.sync -1;"), 64, checked).thread.x, 31u);
  // Reads, then a write by another thread.
  const std::string late =
      kernel_text(R"( .shared .u32 s; setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [s], 1;
    bar.sync 0; ld.shared.u32 %r1, [s]; @%p1 st.shared.u32 [s], 2;)",
                  1);
  EXPECT_EQ(fault_of(late, 32, checked).kind, Fault::Kind::kSharedRace);
  // Atomics do not race with each other.
  run_one(kernel_text(R"( .shared .u32 s; setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [s], 1;
    bar.sync 0; atom.shared.add.u32 %r1, [s], 1;)",
                      1),
          64, checked);
}

TEST(PtxFault, DeadlocksTrapsLimitsAndCancelling) {
  const Fault deadlock = fault_of(
      kernel_text(" setp.lt.u32 %p1, %r0, 32; @%p1 bar.sync 1, 64; @!%p1 bar.sync 2, 64;", 1), 64);
  EXPECT_EQ(deadlock.kind, Fault::Kind::kBarrierDeadlock);
  EXPECT_NE(deadlock.where.find("32 threads wait, 64 are left"), std::string::npos)
      << deadlock.where;
  const Fault lanes = fault_of(kernel_text(" setp.lt.u32 %p1, %r0, 16; @%p1 bra $x; bar.sync 0; "
                                           "$x: shfl.sync.idx.b32 %r1, %r0, 0, 31, -1; bar.sync 0;",
                                           1),
                               32);
  EXPECT_EQ(lanes.kind, Fault::Kind::kBarrierDeadlock);
  EXPECT_EQ(fault_of(kernel_text(" setp.eq.u32 %p1, %r0, 2; @%p1 trap;", 1), 4).kind,
            Fault::Kind::kIllegal);
  EXPECT_EQ(fault_of(kernel_text("$x: bra $x;", 1), 4, {.max_instructions = 100000}).kind,
            Fault::Kind::kInstructionLimit);
  const std::atomic<bool> cancel{true};
  EXPECT_EQ(fault_of(kernel_text("$x: bra $x;", 1), 4, {.cancel = &cancel}).kind,
            Fault::Kind::kCancelled);
  // Threads that left do not hold up a barrier.
  run_one(kernel_text(" setp.lt.u32 %p1, %r0, 40; @%p1 bra $out; bar.sync 0; $out:", 1), 64);
}

TEST(PtxFault, LaunchesOutsideTheLimits) {
  const auto module = parsed(
      ".version 8.6\n.target sm_90\n.address_size 64\n.entry k(.param .u64 p).maxntid 64, 1, 1 { "
      "ret; }");
  FlatMemory memory;
  const auto kind = [&](Dim3 grid, Dim3 block, std::vector<uint64_t> args, Launch options = {}) {
    return launch(*module, memory, args, grid, block, options).fault.kind;
  };
  const auto invalid = Fault::Kind::kInvalidLaunch;
  EXPECT_EQ(kind({1}, {65}, {0}), invalid);
  EXPECT_EQ(kind({1}, {0}, {0}), invalid);
  EXPECT_EQ(kind({1, 70000}, {1}, {0}), invalid);
  EXPECT_EQ(kind({1}, {64}, {}), invalid);
  EXPECT_EQ(kind({1}, {64}, {0}, {.dynamic_shared = 300000}), invalid);
  EXPECT_TRUE(launch(*module, memory, {0}, {1}, {64}).ok);
  Launch unknown{.kernel = "other", .grid = {1}, .block = {1}};
  EXPECT_FALSE(run(*module, unknown, memory).has_value());
}

TEST(PtxParse, RefusalsNameLineAndCause) {
  const auto message = [](const std::string& text) {
    const auto module = parse(text);
    return module ? std::string("accepted") : module.error().message;
  };
  const auto body = [&](const std::string& code) { return message(kernel_text(code, 1)); };
  EXPECT_NE(body(" wmma.wait.sync.aligned;")
                .find("line 13: instruction not known here in 'wmma.wait.sync.aligned'"),
            std::string::npos)
      << body(" wmma.wait.sync.aligned;");
  EXPECT_NE(body(" add.f32 %r1, %r0, %r0;"),
            "accepted" == body(" add.f32 %r1, %r0, %r0;") ? "" : "accepted");
  EXPECT_NE(body(" add.s32 %f1, %f0, %f0;").find("'%f0' is .f32 where .s32 belongs"),
            std::string::npos);
  EXPECT_NE(body(" add.u32 %rd1, %r0, %r0;").find("'%rd1' is .b64 where .u32 belongs"),
            std::string::npos);
  EXPECT_NE(body(" add.f64 %f1, %f0, %f0;").find("is .f32 where .f64 belongs"), std::string::npos);
  EXPECT_NE(body(" bra $nowhere;").find("label '$nowhere' is not declared"), std::string::npos);
  EXPECT_NE(body(" mov.u32 %r99, 1;").find("'%r99' is no register"), std::string::npos);
  EXPECT_NE(body(" add.u32.wild %r1, %r0, %r0;").find("'.wild' is not known here"),
            std::string::npos);
  EXPECT_NE(body(" cvt.f32.s32 %f1, %r0;").find("rounding missing"), std::string::npos);
  EXPECT_NE(body(" cvt.s32.f32 %r1, %f0;").find("rounding missing"), std::string::npos);
  EXPECT_NE(body(" mul.s32 %r1, %r0, %r0;").find(".lo, .hi or .wide"), std::string::npos);
  EXPECT_NE(body(" .shared .b8 big[50000];").find("too much static shared memory"),
            std::string::npos);
  EXPECT_NE(body(" call.uni other, (%r0);").find("is not defined in this module"),
            std::string::npos);
  EXPECT_NE(body(" st.param.u64 [p0], %rd0;").find("store to a kernel's parameter"),
            std::string::npos);
  EXPECT_NE(message("hello").find("not start with .version"), std::string::npos);
  EXPECT_EQ(parse("\177ELF").error().code, Code::kCompile);
  const std::string recursive = ".func f(.param .b32 a) { .param .b32 b; call f, (b); ret; }\n";
  EXPECT_NE(message(kernel_text(" .param .b32 x; call f, (x);", 1, recursive)).find("calls itself"),
            std::string::npos);
}

}  // namespace
}  // namespace bm::sim::ptx::test
