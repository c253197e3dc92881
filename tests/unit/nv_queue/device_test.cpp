#include <gtest/gtest.h>

#include <sys/mman.h>

#include <algorithm>
#include <numeric>

#include "drivers/nv/chips.h"
#include "drivers/nv/imported_memory.h"
#include "drivers/nv/local_memory.h"
#include "drivers/nv/loaded_program.h"
#include "drivers/transport/process_pages.h"
#include "runtime/base/bits.h"
#include "runtime/hal/waiting.h"
#include "tests/unit/nv_queue/rig.h"

namespace bm::nv {
namespace {

using test::Rig;
using test::StubGpu;

TEST(NvDevice, ZeroedMemoryGivesItsCommandSpaceBack) {
  // Each is a submission of the driver's own; 16 of them are all command space.
  const ScopedSetting bound("BM_WAIT_TIMEOUT_MS", "2000");
  Rig rig({}, {.command_bytes = 4096});
  for (int i = 0; i < 100; ++i) {
    const auto buffer = rig.device->allocate({.size = 256, .zero = true});
    ASSERT_TRUE(buffer) << i << ": " << buffer.error().message;
  }
}

TEST(NvDevice, ArchAndDescription) {
  Rig rig;
  EXPECT_EQ(rig.device->arch().vendor, hal::Vendor::kNv);
  EXPECT_EQ(rig.device->arch().name, "sm_89");
  EXPECT_EQ(rig.device->arch().units, 4u);
  EXPECT_EQ(rig.device->arch().max_block, 1024u);
  EXPECT_EQ(rig.device->arch().clock_hz, 1'000'000'000u);
  EXPECT_NE(rig.device->description().find("AD10x"), std::string::npos);
  EXPECT_FALSE(rig.device->is_inline());
}

TEST(NvDevice, ZeroedMemoryOfEveryPlace) {
  Rig rig;
  const auto visible = rig.allocate(5000);
  for (const uint64_t size : {uint64_t{100}, uint64_t{4096}, uint64_t{9} << 20}) {
    {
      auto dirty = rig.device->allocate({.size = size});
      ASSERT_TRUE(dirty);
      EXPECT_EQ((*dirty)->host(), nullptr);
      std::memset(visible->host(), 0xff, visible->size());
      ASSERT_TRUE(
          rig.run({hal::Copy{(*dirty)->va(), visible->va(), std::min<uint64_t>(size, 5000)}}));
    }
    auto buffer = rig.device->allocate({.size = size, .zero = true});
    ASSERT_TRUE(buffer) << buffer.error().message;
    ASSERT_TRUE(
        rig.run({hal::Copy{visible->va(), (*buffer)->va(), std::min<uint64_t>(size, 5000)}}));
    EXPECT_EQ(visible->host()[0], std::byte{0});
    EXPECT_EQ(visible->host()[99], std::byte{0});
  }
}

TEST(NvDevice, SmallAllocationsShareSlabs) {
  Rig rig;
  std::vector<std::unique_ptr<hal::Buffer>> buffers;
  const uint64_t before = rig.gpu->live_allocations();
  for (int i = 0; i < 1000; ++i) {
    auto buffer = rig.device->allocate({.size = 1000});
    ASSERT_TRUE(buffer);
    buffers.push_back(std::move(*buffer));
  }
  EXPECT_LE(rig.gpu->live_allocations() - before, 1u);
}

TEST(NvDevice, ImpossibleSizesAreRefused) {
  Rig rig;
  EXPECT_EQ(rig.device->allocate({.size = 0}).error().code, Code::kInvalidArgument);
  for (const bool visible : {false, true})
    for (const uint64_t size : {uint64_t{1} << 60, ~uint64_t{0}})
      EXPECT_EQ(rig.device->allocate({.size = size, .host_visible = visible}).error().code,
                Code::kOutOfMemory);
}

TEST(NvDevice, ExternalMemoryIsRegisteredAndReleased) {
  Rig rig;
  std::vector<uint64_t> mine(1000, 7);
  const uint64_t before = rig.gpu->live_allocations();
  {
    auto buffer =
        rig.device->allocate({.size = 8000, .host_visible = true, .external = mine.data()});
    ASSERT_TRUE(buffer) << buffer.error().message;
    EXPECT_EQ((*buffer)->host(), reinterpret_cast<std::byte*>(mine.data()));
    ASSERT_TRUE(rig.run({hal::Write{hal::offset((*buffer)->va(), 16), 9}}));
    EXPECT_GT(rig.gpu->live_allocations(), before);
  }
  EXPECT_EQ(rig.gpu->live_allocations(), before);
  EXPECT_EQ(mine[2], 9u);
}

TEST(NvDevice, EverythingIsGivenBackAtTheEnd) {
  auto kernel = std::make_unique<StubGpu>();
  const StubGpu* gpu = kernel.get();
  const ScopedSetting ptx("BM_NV_CODE", "ptx");
  {
    auto device = make_device(std::move(kernel), {.slab_bytes = 8 << 20});
    ASSERT_TRUE(device);
    auto buffer = (*device)->allocate({.size = 100});
    ASSERT_TRUE(buffer);
    EXPECT_GT(gpu->live_allocations(), 0u);
  }
}

TEST(NvDevice, PeersShareMemoryOrSayWhyNot) {
  Rig a, b;
  const auto memory = a.allocate(4096);
  auto mapped = b.device->map(*memory);
  ASSERT_TRUE(mapped);
  EXPECT_EQ(*mapped, memory->va());
  ASSERT_TRUE(b.run({hal::Write{*mapped, 5}}));
  EXPECT_EQ(Rig::words(*memory)[0], 5u);
  Rig alone({.has_peers = false});
  EXPECT_EQ(alone.device->map(*memory).error().code, Code::kUnsupported);
}

TEST(NvDevice, LoadsOnlyWhatItCanRun) {
  Rig rig;
  const auto refused = [&](const hal::CodeObject& code) {
    const auto program = rig.device->load(code);
    return program ? std::string("accepted") : program.error().message;
  };
  hal::CodeObject code = rig.code("store", 1, 1);
  code.arch = "sm_90";
  EXPECT_NE(refused(code).find("sm_89"), std::string::npos);
  code = rig.code("store", 1, 1);
  code.block = {.x = 2048};
  EXPECT_NE(refused(code).find("1024"), std::string::npos);
  code.block = {.x = 1, .z = 65};
  EXPECT_NE(refused(code).find("in z"), std::string::npos);
  code.block = {.x = 32};
  code.shared_memory_bytes = 100 << 10;
  EXPECT_NE(refused(code).find("shared memory"), std::string::npos);
  code.shared_memory_bytes = 48 << 10;
  EXPECT_EQ(refused(code), "accepted");
}

TEST(NvDevice, PtxTextNeedsTheSettingAtOpen) {
  const ScopedSetting plain("BM_NV_CODE", "");
  auto device = make_device(std::make_unique<StubGpu>(), {.slab_bytes = 8 << 20});
  ASSERT_TRUE(device);
  Rig rig;
  const auto program = (*device)->load(rig.code("store", 1, 1));
  ASSERT_FALSE(program);
  EXPECT_NE(program.error().message.find("BM_NV_CODE"), std::string::npos);
}

TEST(NvDevice, ImportedMemoryIsRegisteredAnewWhenItIsOtherMemory) {
  constexpr uint64_t kBytes = 1 << 20;
  const auto map_pages = [](void* where) {
    return mmap(where, kBytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | (where != nullptr ? MAP_FIXED : 0), -1, 0);
  };
  void* pages = map_pages(nullptr);
  ASSERT_NE(pages, MAP_FAILED);
  EXPECT_FALSE(are_pages_marked(pages, kBytes));
  ASSERT_TRUE(mark_pages(pages, 4096));
  EXPECT_TRUE(are_pages_marked(pages, 100));
  EXPECT_FALSE(are_pages_marked(pages, kBytes)) << "only its first page is";

  class Peer final : public hal::Buffer {
   public:
    Peer(void* host, uint64_t size)
        : Buffer({.size = size}, hal::GpuVa{1}, static_cast<std::byte*>(host)) {}
  } peer(pages, kBytes);
  Rig rig;
  const uint64_t before = rig.gpu->live_allocations();
  const auto first = rig.device->map(peer);
  ASSERT_TRUE(first) << first.error().message;
  ASSERT_TRUE(rig.device->map(peer));
  EXPECT_EQ(rig.gpu->live_allocations(), before + 1) << "the same memory is registered once";
  EXPECT_TRUE(are_pages_marked(pages, kBytes));
  ASSERT_EQ(map_pages(pages), pages);
  EXPECT_FALSE(are_pages_marked(pages, kBytes));
  const uint64_t registered = rig.gpu->registrations();
  ASSERT_TRUE(rig.device->map(peer));
  EXPECT_EQ(rig.gpu->registrations(), registered + 1);
  ASSERT_TRUE(rig.run({hal::Write{*rig.device->map(peer), 6}}));
  EXPECT_EQ(*static_cast<uint64_t*>(pages), 6u);
  munmap(pages, kBytes);
}

TEST(NvDevice, SleepersAreWokenByAnInterruptBehindTheWork) {
  Rig rig({.has_events = true});
  auto& waiting = dynamic_cast<hal::Waiting&>(*rig.device);
  ASSERT_TRUE(rig.run({}));
  EXPECT_FALSE(waiting.sleep_until_event(100'000)) << "too short for an event";
  const auto gate = rig.allocate(64);
  const hal::Command commands[] = {hal::Wait{gate->va(), 1}, rig.next()};
  ASSERT_TRUE(rig.queue().submit(commands));
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic_ref<uint64_t>(Rig::words(*gate)[0]).store(1);
  });
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(waiting.sleep_until_event(5'000'000'000));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4));
  opener.join();
  EXPECT_TRUE(rig.wait(rig.value));
  EXPECT_NE(waiting.activity().find("compute ring"), std::string::npos);
  Rig silent;
  ASSERT_TRUE(silent.queue().submit(std::vector<hal::Command>{silent.next()}));
  EXPECT_FALSE(silent.gpu->live_allocations() == 0);
  EXPECT_FALSE(dynamic_cast<hal::Waiting&>(*silent.device).sleep_until_event(5'000'000));
}

KernelInfo plain_kernel(uint32_t param_base) {
  KernelInfo kernel;
  kernel.registers = 32;
  kernel.param_base = param_base;
  kernel.param_bytes = 16;
  return kernel;
}
hal::CodeObject plain_code() {
  hal::CodeObject code;
  code.entry = "k";
  code.num_buffers = 2;
  code.block = {.x = 256};
  return code;
}

SmLimits limits_of(const ChipRow& chip, uint32_t warps, std::string_view form = {}) {
  return {.sm = chip.sm_first, .warps_per_sm = warps, .form = *parse_launch_form(chip, form)};
}

TEST(NvLaunchPlan, DescriptorAndActionAreTheChipsUnlessChosen) {
  const ChipRow& hopper = *find_chip(0xcbc0);
  const KernelInfo kernel = plain_kernel(0x210);
  const auto plan = [&](std::string_view form) {
    return *plan_launch(hopper, limits_of(hopper, 64, form), kernel, plain_code());
  };
  EXPECT_EQ(plan("").version, QmdVersion::k4_0);
  EXPECT_EQ(plan("").action, 0xau);
  EXPECT_EQ(plan("3.0").version, QmdVersion::k3_0);
  EXPECT_EQ(plan("3.0").action, 0xau);
  EXPECT_EQ(plan("4.0,3").action, 3u);
  for (const ChipRow& chip : chips()) {
    const LaunchForm form = *parse_launch_form(chip, "");
    EXPECT_EQ(form.descriptor, chip.qmd) << chip.name;
    // A start that does not invalidate may run what an address held before.
    if (chip.launch == LaunchMethod::kPcas2B) {
      EXPECT_TRUE(form.action == 3 || form.action == 0xa) << chip.name;
    }
  }
  for (const char* text : {"5.0", "4", "4.0,", "4.0,1", "4.0,x", "4.0,3 ", ",3"}) {
    const auto form = parse_launch_form(hopper, text);
    ASSERT_FALSE(form) << text;
    EXPECT_NE(form.error().message.find("4.0 and 3.0"), std::string::npos) << form.error().message;
  }
}

TEST(NvLaunchPlan, ResourcesAreCheckedBeforeAnythingIsSubmitted) {
  const ChipRow& hopper = *find_chip(0xcbc0);
  const SmLimits limits = limits_of(hopper, 64);
  const auto plan = [&](const KernelInfo& kernel, hal::CodeObject code = plain_code()) {
    return plan_launch(hopper, limits, kernel, code);
  };
  KernelInfo kernel = plain_kernel(0x210);
  ASSERT_TRUE(plan(kernel));
  kernel.registers = 255;
  EXPECT_TRUE(plan(kernel)) << "255 * 256 registers fit";
  hal::CodeObject wide = plain_code();
  wide.block = {.x = 512};
  EXPECT_NE(plan(kernel, wide).error().message.find("registers"), std::string::npos);
  kernel = plain_kernel(0x210);
  kernel.max_threads = 128;
  EXPECT_NE(plan(kernel).error().message.find("compiled for at most 128"), std::string::npos);
  kernel = plain_kernel(0x210);
  kernel.shared_bytes = 228 << 10;
  kernel.shared_reserved_bytes = 1024;
  EXPECT_TRUE(plan(kernel)) << "227 KiB and the system's own";
  kernel.shared_bytes += 1;
  EXPECT_NE(plan(kernel).error().message.find("shared"), std::string::npos);
  kernel.shared_bytes = kernel.shared_reserved_bytes;
  hal::CodeObject asking = plain_code();
  asking.launch_memory_bytes = 200 << 10;
  ASSERT_TRUE(plan(kernel, asking)) << "more than kernels declare";
  EXPECT_EQ(plan(kernel, asking)->shape.shared_bytes, 201u << 10);
  asking.launch_memory_bytes = 228 << 10;
  EXPECT_NE(plan(kernel, asking).error().message.find("shared"), std::string::npos);
  kernel = plain_kernel(0x210);
  kernel.param_bytes = 24;
  EXPECT_NE(plan(kernel).error().message.find("parameters"), std::string::npos);
  EXPECT_FALSE(plan(plain_kernel(0x160))) << "parameters of another generation";
}

TEST(NvLaunchPlan, SharedMemorySplits) {
  const ChipRow& hopper = *find_chip(0xcbc0);
  const SmLimits limits = limits_of(hopper, 64);
  KernelInfo kernel = plain_kernel(0x210);
  kernel.shared_reserved_bytes = 1024;
  kernel.shared_bytes = 48 * 1024 + 1024 + 4;
  hal::CodeObject code = plain_code();
  code.block = {.x = 1024};
  const auto plan = plan_launch(hopper, limits, kernel, code);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->shape.shared_bytes % 128, 0u);
  EXPECT_EQ(plan->shape.min_shared_config_kib, 64u);
  EXPECT_EQ(plan->shape.shared_config_kib, 100u) << "two blocks fit an SM";
  EXPECT_EQ(plan->shape.max_shared_config_kib, 228u);
}

TEST(NvLaunchPlan, PtxLeavesRoomForWhatTheSystemKeeps) {
  const ChipRow& ada = *find_chip(0xc9c0);
  KernelInfo kernel = plain_kernel(ada.bank0.params);
  kernel.is_ptx = true;
  kernel.shared_bytes = 8 * 1024;
  hal::CodeObject code = plain_code();
  code.block = {.x = 1024};
  const auto plan = plan_launch(ada, limits_of(ada, 48), kernel, code);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->shape.min_shared_config_kib, 16u);
  EXPECT_EQ(plan->shape.shared_config_kib, 16u);
}

TEST(NvLaunchPlan, EveryGenerationHasALayout) {
  for (const ChipRow& chip : chips()) {
    KernelInfo kernel = plain_kernel(chip.bank0.params);
    const auto plan = plan_launch(chip, limits_of(chip, 32), kernel, plain_code());
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->bank0_bytes, align_up(chip.bank0.params + 16u, 16u));
    std::vector<uint32_t> words(qmd_format(plan->version).dwords);
    encode_qmd(plan->version, plan->shape, words);  // aborts where a value does not fit
  }
}

TEST(NvLocalMemory, SizesOfHopper) {
  GpuFacts hopper;
  hopper.gpcs = 8;
  hopper.tpcs_per_gpc = 9;
  hopper.sms_per_tpc = 2;
  hopper.warps_per_sm = 64;
  const LocalMemorySize size = local_memory_size(hopper, 0x240);
  EXPECT_EQ(size.per_tpc, 0x240u * 32 * 64 * 2);
  EXPECT_EQ(size.total, size.per_tpc * 72);
}

}  // namespace
}  // namespace bm::nv
