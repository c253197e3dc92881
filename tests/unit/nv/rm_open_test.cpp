// Opening GPUs of a modelled kernel driver: every release, every chip, and what users get wrong.

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "drivers/nv/chips.h"
#include "drivers/nv/rm_ioctl/rm.h"
#include "tests/sim/nv/fake_system.h"

namespace bm::nv {
namespace {

using sim::nv::FakeNvSystem;

constexpr const char* kReleases[] = {"535", "550", "570", "580", "590", "595", "610"};
constexpr const char* kChips[] = {"tu102", "ga100", "ga102", "ad102", "gh100", "gb100", "gb202"};

struct Case {
  std::string chip, release;
};

class RmOpen : public testing::TestWithParam<Case> {};

TEST_P(RmOpen, ReachesMemoryAndChannelsAndLeavesNothing) {
  const auto system =
      FakeNvSystem::create({.chip = GetParam().chip, .release = GetParam().release});
  {
    Result<std::unique_ptr<DriverInterface>> opened = open_rm(*system, {});
    ASSERT_TRUE(opened) << opened.error().message;
    DriverInterface& gpu = **opened;
    const GpuFacts& facts = gpu.facts();
    ASSERT_NE(facts.chip, nullptr);
    EXPECT_GE(facts.sm_version, facts.chip->sm_first);
    EXPECT_LE(facts.sm_version, facts.chip->sm_last);
    EXPECT_EQ(facts.compute_class, facts.chip->compute_class);
    EXPECT_GT(facts.enabled_sms, 0u);
    EXPECT_GT(facts.copy_engines, 1u);
    EXPECT_GT(facts.video_memory, 0u);
    for (const MemoryDomain domain :
         {MemoryDomain::kVideo, MemoryDomain::kVideoMapped, MemoryDomain::kSystem}) {
      auto memory = gpu.allocate({.size = 3 << 20, .domain = domain});
      ASSERT_TRUE(memory) << memory.error().message;
      EXPECT_GE((*memory)->size, uint64_t{3} << 20);
      EXPECT_NE((*memory)->handle, 0u);
      if (domain == MemoryDomain::kVideo) {
        EXPECT_EQ((*memory)->host(), nullptr);
        continue;
      }
      EXPECT_EQ(reinterpret_cast<uint64_t>((*memory)->host()), (*memory)->va);
      EXPECT_LT((*memory)->va + (*memory)->size, uint64_t{1} << 40);
      (*memory)->host()[0] = std::byte{1};
      (*memory)->host()[(*memory)->size - 1] = std::byte{2};
    }
    auto ring =
        gpu.allocate(
               {.size = 64 << 10, .domain = MemoryDomain::kVideoMapped, .is_contiguous = true})
            .value();
    const ChannelRequest request = {
        .ring = ring.get(), .ring_offset = 0, .entries = 1024, .userd_offset = 8192};
    auto compute = gpu.create_channel(request);
    ASSERT_TRUE(compute) << compute.error().message;
    EXPECT_EQ((*compute)->engine_class, facts.compute_class);
    EXPECT_FALSE((*compute)->has_error());
    for (uint32_t index : {0u, 1u}) {
      ChannelRequest copy = request;
      copy.engine = Engine::kCopy;
      copy.copy_index = index;
      copy.ring_offset = 16384;
      copy.userd_offset = 32768;
      auto channel = gpu.create_channel(copy);
      ASSERT_TRUE(channel) << channel.error().message;
      EXPECT_EQ((*channel)->engine_class, facts.copy_class);
      EXPECT_NE((*channel)->token, (*compute)->token);
    }
    const uint64_t before = gpu.clock_ns();
    EXPECT_GE(gpu.clock_ns(), before);
    const FaultDetails details = gpu.fault_details(**compute);
    EXPECT_TRUE(details.sms.empty());
  }
  const sim::nv::Report report = system->kernel().report();
  EXPECT_EQ(report.leaks, std::vector<std::string>());
  EXPECT_EQ(report.complaints, std::vector<std::string>());
  EXPECT_EQ(system->kernel().live_objects(), 0u);
  EXPECT_EQ(system->kernel().pinned_bytes(), 0u);
  EXPECT_EQ(system->kernel().video_memory_used(0), 0u);
  EXPECT_EQ(system->open_files(), 0u);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* release : kReleases)
    for (const char* chip : kChips) cases.push_back({chip, release});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Machines, RmOpen, testing::ValuesIn(all_cases()),
                         [](const auto& one) { return one.param.chip + "_" + one.param.release; });

Error error_of(FakeNvSystem& system, const RmOptions& options = {}) {
  Result<std::unique_ptr<DriverInterface>> opened = open_rm(system, options);
  EXPECT_FALSE(opened);
  EXPECT_EQ(system.open_files(), 0u);
  return opened ? Error() : opened.error();
}

bool says(const Error& error, std::string_view text) {
  return error.message.find(text) != std::string::npos;
}

TEST(RmErrors, WithoutDriverThereAreNoUnits) {
  const auto system = FakeNvSystem::create({.has_nodes = false});
  EXPECT_EQ(count_rm(*system).value(), 0u);
  const Error error = error_of(*system);
  EXPECT_EQ(error.code, Code::kNotFound);
  EXPECT_TRUE(says(error, "/dev/nvidiactl")) << error.message;
  EXPECT_TRUE(says(error, "stage 1")) << error.message;
}

TEST(RmErrors, WithoutRightsTheNodeAndRemedyAreNamed) {
  const auto system = FakeNvSystem::create({.is_permitted = false});
  const Error error = error_of(*system);
  EXPECT_EQ(error.code, Code::kPermission);
  EXPECT_TRUE(says(error, "/dev/nvidiactl") && says(error, "group")) << error.message;
  EXPECT_FALSE(count_rm(*system));
}

TEST(RmErrors, OldDriversAreRefusedWithTheirVersion) {
  const auto system = FakeNvSystem::create({.version = "470.256.02"});
  const Error error = error_of(*system);
  EXPECT_EQ(error.code, Code::kUnsupported);
  EXPECT_TRUE(says(error, "470.256.02") && says(error, "535")) << error.message;
}

TEST(RmErrors, NewDriversWorkLikeTheNewestKnown) {
  const auto system = FakeNvSystem::create({.release = "610", .version = "699.01.02"});
  Result<std::unique_ptr<DriverInterface>> opened = open_rm(*system, {});
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ((*opened)->facts().driver_version, "699.01.02");
}

TEST(RmErrors, TheVersionCanBeOverridden) {
  const auto system = FakeNvSystem::create({.release = "610", .version = "111.01"});
  EXPECT_FALSE(open_rm(*system, {}));
  EXPECT_TRUE(open_rm(*system, {.version_override = "610.43.03"}));
  EXPECT_FALSE(open_rm(*system, {.version_override = "newest"}));
}

TEST(RmErrors, AMissingCardIsNamed) {
  const auto system = FakeNvSystem::create({.gpus = 2});
  EXPECT_EQ(count_rm(*system).value(), 2u);
  const Error error = error_of(*system, {.index = 2});
  EXPECT_EQ(error.code, Code::kNotFound);
  EXPECT_TRUE(says(error, "lists 2")) << error.message;
}

TEST(RmErrors, SandboxesThatRefuseTheUnneededCallsAreFine) {
  const auto system = FakeNvSystem::create({.is_sandboxed = true});
  Result<std::unique_ptr<DriverInterface>> opened = open_rm(*system, {});
  ASSERT_TRUE(opened) << opened.error().message;
  auto ring = (*opened)->allocate({.size = 64 << 10, .domain = MemoryDomain::kVideoMapped}).value();
  auto channel =
      (*opened)->create_channel({.ring = ring.get(), .entries = 1024, .userd_offset = 8192});
  ASSERT_TRUE(channel) << channel.error().message;
  (*opened)->fault_details(**channel);
}

TEST(RmErrors, OptionalCallsMayAllBeRefused) {
  for (const int error : {0, EINVAL}) {
    const auto system = FakeNvSystem::create({.chip = "ad102"});
    for (const char* call :
         {"RM_CONTROL:20800123", "RM_CONTROL:20801301", "RM_CONTROL:20800110", "RM_ALLOC:83de",
          "RM_ALLOC:79", "ALLOC_OS_EVENT", "UVM:28", "UVM:26", "UVM:38"})
      system->kernel().plan({.call = call,
                             .status = sim::nv::RmStatus::kNotSupported,
                             .error = error,
                             .times = 1000});
    Result<std::unique_ptr<DriverInterface>> opened = open_rm(*system, {});
    ASSERT_TRUE(opened) << opened.error().message;
    DriverInterface& gpu = **opened;
    EXPECT_FALSE(gpu.facts().name.empty());
    EXPECT_GE(gpu.facts().copy_engines, 2u);
    auto ring = gpu.allocate({.size = 64 << 10, .domain = MemoryDomain::kVideoMapped}).value();
    for (const Engine engine : {Engine::kCompute, Engine::kCopy}) {
      auto channel = gpu.create_channel(
          {.engine = engine, .ring = ring.get(), .entries = 1024, .userd_offset = 8192});
      ASSERT_TRUE(channel) << channel.error().message;
      EXPECT_TRUE(gpu.fault_details(**channel).sms.empty());
      EXPECT_EQ(gpu.event_fd(**channel).error().code, Code::kUnsupported);
      EXPECT_FALSE(gpu.wait_event(**channel, 0));
    }
  }
}

TEST(RmErrors, ARefusedCallSpeaksOfSandboxes) {
  const auto system = FakeNvSystem::create({});
  system->kernel().plan({.call = "RM_ALLOC:90f1", .error = EINVAL});
  const Error error = error_of(*system);
  EXPECT_TRUE(says(error, "stage 18") && says(error, "sandbox") && says(error, "90f1"))
      << error.message;
}

TEST(RmErrors, UnknownChipsAreNamedWithWhatTheyOffer) {
  const std::vector<uint32_t> offered = {0x0080, 0xffc0, 0xffb5};
  const Result<ClassChoice> choice = choose_classes(offered, "GPU 10de:ffff at 0000:01:00.0");
  ASSERT_FALSE(choice);
  EXPECT_TRUE(says(choice.error(), "10de:ffff") && says(choice.error(), "ffc0"))
      << choice.error().message;
}

TEST(RmErrors, InterruptedCallsAreRepeated) {
  const auto system = FakeNvSystem::create({});
  system->kernel().plan({.call = "RM_ALLOC", .error = EINTR, .times = 3});
  const Result<std::unique_ptr<DriverInterface>> opened = open_rm(*system, {});
  EXPECT_TRUE(opened) << opened.error().message;
}

}  // namespace
}  // namespace bm::nv
