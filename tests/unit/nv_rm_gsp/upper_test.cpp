// Stages P12 to P16 over a GSP of the tests' own, for every generation.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>

#include <gtest/gtest.h>

#include "drivers/nv/rm_gsp/gpu.h"
#include "tests/unit/nv_rm_gsp/fake_gsp.h"

namespace bm::nv::gsp {
namespace {

using test::FakeChip;
using test::FakeMachine;

constexpr uint64_t kMiB = 1 << 20;

class UpperHalf : public ::testing::TestWithParam<FakeChip> {
 protected:
  void open() {
    auto opened = GspGpu::open(machine_.card());
    ASSERT_TRUE(opened) << opened.error().message;
    gpu_ = std::move(*opened);
    machine_.tables = [this] {
      std::map<uint64_t, uint64_t> places;
      for (const auto& [address, block] : gpu_->mmu().tables()) places[address] = block.bytes();
      return places;
    };
  }
  void TearDown() override {
    gpu_.reset();
    EXPECT_EQ(machine_.faults, std::vector<std::string>());
    EXPECT_EQ(machine_.live_objects(), 0u);
    EXPECT_EQ(machine_.live_dma(), 0u);
    EXPECT_TRUE(machine_.is_down);
  }
  std::unique_ptr<Memory> allocate(const MemoryRequest& request) {
    auto memory = gpu_->allocate(request);
    EXPECT_TRUE(memory) << memory.error().message;
    return memory ? std::move(*memory) : nullptr;
  }
  memory::test::Translation at(uint64_t va) {
    const memory::test::Walk walk = machine_.walk(va);
    EXPECT_EQ(walk.error, "") << std::hex << va;
    EXPECT_TRUE(walk.translation) << std::hex << va << " is not mapped";
    return walk.translation.value_or(memory::test::Translation{});
  }
  std::unique_ptr<Memory> ring_memory() {
    return allocate({.size = 8192, .domain = MemoryDomain::kVideoMapped, .is_contiguous = true});
  }
  std::unique_ptr<Channel> channel(Memory& ring, Engine engine, uint32_t copy_index = 0) {
    auto made = gpu_->create_channel({.engine = engine,
                                      .copy_index = copy_index,
                                      .ring = &ring,
                                      .ring_offset = 0,
                                      .entries = 256,
                                      .userd_offset = 2048});
    EXPECT_TRUE(made) << made.error().message;
    return made ? std::move(*made) : nullptr;
  }

  FakeMachine machine_{GetParam()};
  std::unique_ptr<GspGpu> gpu_;
};

TEST_P(UpperHalf, ACardHasTheFactsThatTheKernelDriverWouldGive) {
  open();
  const GpuFacts& facts = gpu_->facts();
  EXPECT_EQ(facts.compute_class, GetParam().compute_class);
  EXPECT_EQ(facts.channel_class, GetParam().channel_class);
  EXPECT_EQ(facts.copy_class, GetParam().copy_class);
  EXPECT_EQ(facts.name, "NVIDIA Model");
  EXPECT_EQ(facts.driver_version, "GSP 570.144.00");
  EXPECT_EQ(facts.gpcs, 7u);
  EXPECT_EQ(facts.tpcs_per_gpc, 6u);
  EXPECT_EQ(facts.enabled_sms, 80u);
  EXPECT_EQ(facts.warps_per_sm, 48u);
  EXPECT_EQ(facts.video_memory, FakeMachine::kVideoBytes);
  EXPECT_EQ(facts.uuid[3], 0x13);
  // Not those on the runlist of graphics, nor the one that says so of itself.
  EXPECT_EQ(facts.copy_engines, 3u);
  EXPECT_TRUE(machine_.is_golden_made);
}

TEST_P(UpperHalf, VideoMemoryIsMappedAndSeenThroughBar1) {
  open();
  const auto small =
      allocate({.size = 10000, .domain = MemoryDomain::kVideoMapped, .is_contiguous = true});
  ASSERT_TRUE(small);
  EXPECT_EQ(small->size, 12288u);
  EXPECT_LT(small->va + small->size, uint64_t{1} << 40);
  small->view.store<uint32_t>(8196, 0x12345678);
  small->view.publish();
  const auto seen = at(small->va + 8196);
  EXPECT_EQ(seen.aperture, memory::Aperture::kVideo);
  EXPECT_EQ(seen.kind, 6u);
  EXPECT_TRUE(seen.can_write);
  EXPECT_FALSE(seen.is_privileged);
  uint32_t word = 0;
  std::memcpy(&word, machine_.video.data() + seen.address, 4);
  EXPECT_EQ(word, 0x12345678u);

  const auto large = allocate({.size = 6 * kMiB, .domain = MemoryDomain::kVideo});
  ASSERT_TRUE(large);
  EXPECT_EQ(large->view.size(), 0u);
  EXPECT_EQ(at(large->va + 5 * kMiB).page_bytes, 2 * kMiB);
  EXPECT_GE(at(large->va).address, FakeMachine::kBar1Bytes) << "hidden memory first";
}

TEST_P(UpperHalf, SystemMemoryIsReachedByItsBusAddress) {
  open();
  const auto memory = allocate({.size = 8192, .domain = MemoryDomain::kSystem});
  ASSERT_TRUE(memory && memory->host() != nullptr);
  const auto seen = at(memory->va + 4096);
  EXPECT_EQ(seen.aperture, memory::Aperture::kSystem);
  EXPECT_TRUE(seen.is_uncached) << "not kept in the L2: the host writes it";
  EXPECT_TRUE(machine_.reaches(seen.address, 4096));
  EXPECT_NE(seen.address, reinterpret_cast<uint64_t>(memory->host()) + 4096);
}

TEST_P(UpperHalf, MemoryOfTheProcessIsMappedWhereItIs) {
  open();
  alignas(4096) static std::byte pages[8192];
  const auto memory = allocate({.size = 8192, .host = pages});
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->host(), pages);
  EXPECT_TRUE(machine_.reaches(at(memory->va + 8191).address, 1));
  const auto odd = gpu_->allocate({.size = 100, .host = pages});
  ASSERT_FALSE(odd);
  EXPECT_EQ(odd.error().code, Code::kInvalidArgument);
}

TEST_P(UpperHalf, TlbsForgetWhatIsFreedBeforeItIsAnothers) {
  open();
  auto memory = allocate({.size = 4096, .domain = MemoryDomain::kVideo});
  ASSERT_TRUE(memory);
  ASSERT_FALSE(machine_.invalidations.empty());
  EXPECT_EQ(machine_.invalidations.back().root, machine_.program_root);
  EXPECT_EQ(machine_.invalidations.back().command & 0xc0, 0u);
  const uint64_t va = memory->va;
  const size_t before = machine_.invalidations.size();
  memory.reset();
  ASSERT_EQ(machine_.invalidations.size(), before + 1);
  EXPECT_EQ(machine_.invalidations.back().root, machine_.program_root);
  EXPECT_EQ(machine_.invalidations.back().command & 0xc0, 0xc0u)
      << "accesses on the way must have ended";
  EXPECT_FALSE(machine_.walk(va).translation);
}

TEST_P(UpperHalf, AChannelIsDescribedByPhysicalAddresses) {
  open();
  const auto ring = ring_memory();
  ASSERT_TRUE(ring);
  const auto compute = channel(*ring, Engine::kCompute);
  ASSERT_TRUE(compute);
  ASSERT_EQ(machine_.channels.size(), 1u);
  const FakeMachine::Channel& made = machine_.channels[0];
  EXPECT_EQ(made.userd, at(ring->va + 2048).address);
  EXPECT_EQ(made.ring, ring->va);
  EXPECT_TRUE(made.has_context);
  EXPECT_NE(made.notifier, 0u);
  EXPECT_EQ(compute->engine_class, GetParam().compute_class);
}

TEST_P(UpperHalf, TokensNameRunlistAndChannel) {
  open();
  std::vector<std::unique_ptr<Memory>> rings;
  std::vector<std::unique_ptr<Channel>> channels;
  std::set<uint32_t> tokens;
  for (uint32_t i = 0; i < 4; ++i) {
    rings.push_back(ring_memory());
    channels.push_back(channel(*rings.back(), i == 0 ? Engine::kCompute : Engine::kCopy, i));
    ASSERT_TRUE(channels.back());
    const FakeMachine::Channel& made = machine_.channels.back();
    EXPECT_EQ(channels.back()->token, made.runlist << 16 | made.number | GetParam().token_bits);
    tokens.insert(channels.back()->token);
  }
  EXPECT_EQ(tokens.size(), 4u);
  // Copy engines with a runlist of their own, one after the other.
  std::set<uint32_t> runlists;
  for (const FakeMachine::Channel& made : machine_.channels) runlists.insert(made.runlist);
  EXPECT_EQ(runlists, (std::set<uint32_t>{0, 5, 6, 9}));
}

TEST_P(UpperHalf, ContextBuffersAreMappedAndPrivileged) {
  open();
  const auto ring = ring_memory();
  const auto first = channel(*ring, Engine::kCompute);
  const auto second = channel(*ring, Engine::kCompute);
  ASSERT_EQ(machine_.channels.size(), 2u);
  for (const auto& [id, va] : machine_.channels[0].promoted) {
    const auto seen = at(va);
    EXPECT_TRUE(seen.is_privileged) << id;
    EXPECT_EQ(seen.can_write, id != 10) << id;
    const uint64_t other = at(machine_.channels[1].promoted.at(id)).address;
    const bool is_own = id == 0 || id == 2;
    EXPECT_EQ(seen.address == other, !is_own) << "buffer " << id;
  }
  EXPECT_EQ(machine_.channels[0].promoted.at(5) % (4 * kMiB), 0u) << "the attribute buffer's size";
}

TEST_P(UpperHalf, WhatAChannelHadIsFreedWithIt) {
  open();
  const auto ring = ring_memory();
  const size_t objects = machine_.live_objects(), dma = machine_.live_dma();
  const uint64_t video = gpu_->memory().video().free_bytes();
  for (int i = 0; i < 3; ++i) {
    const auto compute = channel(*ring, Engine::kCompute);
    EXPECT_LT(gpu_->memory().video().free_bytes(), video);
  }
  EXPECT_EQ(machine_.live_objects(), objects);
  EXPECT_EQ(machine_.live_dma(), dma);
  // Page tables that were made for it may stay.
  EXPECT_GE(gpu_->memory().video().free_bytes() + 64 * 1024, video);
  EXPECT_EQ(machine_.channels[2].number, machine_.channels[0].number);
}

TEST_P(UpperHalf, AFaultOfAChannelIsItsNotifiersAndHasItsAddress) {
  open();
  const auto ring = ring_memory(), other_ring = ring_memory();
  const auto compute = channel(*ring, Engine::kCompute), copy = channel(*other_ring, Engine::kCopy);
  ASSERT_TRUE(compute && copy);
  EXPECT_FALSE(compute->has_error());
  machine_.tell(RpcEvent::kMmuFaultQueued, {});
  machine_.tell_error_log(31, machine_.channels[0].number, "Ch 00000002, MMU Fault\n");
  machine_.tell_channel_fault(machine_.channels[0].number, 31, 0x12'3456'7000);
  // Waits ask again and again.
  const auto begun = std::chrono::steady_clock::now();
  while (!compute->has_error() &&
         std::chrono::steady_clock::now() - begun < std::chrono::seconds(5)) {}
  ASSERT_TRUE(compute->has_error());
  EXPECT_FALSE(copy->has_error());
  EXPECT_EQ(compute->error_code(), 31u);
  EXPECT_NE(compute->error_time_ns(), 0u);
  const FaultDetails details = gpu_->fault_details(*compute);
  ASSERT_EQ(details.mmu.size(), 1u);
  EXPECT_EQ(details.mmu[0].address, 0x12'3456'7000u);
  EXPECT_EQ(details.mmu[0].kind, "unmapped");
  EXPECT_EQ(details.kernel_log, "NVRM: Xid (PCI:0000:01:00.0): 31, Ch 00000002, MMU Fault\n");
}

TEST_P(UpperHalf, AnErrorOfTheCardIsEveryChannels) {
  open();
  const auto ring = ring_memory(), other_ring = ring_memory();
  const auto compute = channel(*ring, Engine::kCompute), copy = channel(*other_ring, Engine::kCopy);
  machine_.tell_error_log(79, ~0u, "GPU has fallen off the bus.");
  const auto begun = std::chrono::steady_clock::now();
  while (!(compute->has_error() && copy->has_error()) &&
         std::chrono::steady_clock::now() - begun < std::chrono::seconds(5)) {}
  EXPECT_TRUE(compute->has_error());
  EXPECT_TRUE(copy->has_error());
  EXPECT_EQ(copy->error_code(), 79u);
}

TEST_P(UpperHalf, ShortEventsAreNoHarm) {
  open();
  const auto ring = ring_memory();
  const auto compute = channel(*ring, Engine::kCompute);
  machine_.tell(RpcEvent::kRcTriggered, std::vector<std::byte>(20));
  machine_.tell(RpcEvent::kOsErrorLog, std::vector<std::byte>(3));
  machine_.tell_channel_fault(999, 31, 0);
  static_cast<void>(gpu_->fault_details(*compute));
  EXPECT_FALSE(compute->has_error());
}

INSTANTIATE_TEST_SUITE_P(Chips, UpperHalf, ::testing::ValuesIn(test::fake_chips()),
                         [](const auto& chip) { return chip.param.name; });

/// Every call once refused, once never answered: nothing is left behind, and the message says at
/// which stage.
TEST(UpperHalfFaults, EveryCallMayFail) {
  const FakeChip& chip = test::fake_chips()[3];
  std::set<std::string> stages;
  for (const bool breaks : {false, true}) {
    for (int call = 0;; ++call) {
      FakeMachine machine(chip);
      machine.fail_at = call;
      machine.breaks = breaks;
      {
        Error error;
        auto gpu = GspGpu::open(machine.card());
        if (gpu) {
          const auto ring = (*gpu)->allocate({.size = 8192, .domain = MemoryDomain::kVideoMapped});
          ASSERT_TRUE(ring);
          const auto made = (*gpu)->create_channel({.engine = Engine::kCompute,
                                                    .ring = ring->get(),
                                                    .entries = 256,
                                                    .userd_offset = 2048});
          if (!made) error = made.error();
        } else {
          error = gpu.error();
        }
        if (!error.message.empty()) {
          EXPECT_EQ(error.message.substr(0, 7), "stage P") << error.message;
          stages.insert(error.message.substr(0, 9));
        }
      }
      EXPECT_EQ(machine.faults, std::vector<std::string>()) << "call " << call;
      EXPECT_EQ(machine.live_dma(), 0u) << "call " << call;
      // A way that broke tells the GSP of no end; one that did not leaves no object but what could
      // not be freed.
      if (machine.calls.size() > static_cast<size_t>(call)) continue;
      EXPECT_EQ(machine.live_objects(), 0u);
      break;
    }
  }
  EXPECT_EQ(stages, (std::set<std::string>{"stage P12", "stage P14", "stage P15"}));
}

TEST(VideoWindows, MemoryBeyondBar1IsReachedThroughPramin) {
  for (const FakeChip& chip : test::fake_chips()) {
    FakeMachine machine(chip);
    const auto card = machine.card();
    const HostView bar1 = *card->function().map_bar_memory(1, true);
    auto window = VideoWindow::open(card->registers(), bar1, FakeMachine::kVideoBytes,
                                    chip.is_v3 ? WindowRegisters::kXal : WindowRegisters::kBus);
    ASSERT_TRUE(window) << window.error().message;
    EXPECT_EQ(window->visible_bytes(), FakeMachine::kBar1Bytes);
    // Over the edge of a window, and of BAR1.
    for (const uint64_t address :
         {FakeMachine::kBar1Bytes + 3 * kMiB - 64, FakeMachine::kBar1Bytes - 128, uint64_t{4096}}) {
      std::vector<std::byte> bytes(2 * kMiB), back(bytes.size());
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i * 7 + address);
      window->write(address, bytes);
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(),
                             machine.video.begin() + static_cast<ptrdiff_t>(address)));
      window->read(address, back);
      EXPECT_EQ(back, bytes);
    }
    EXPECT_GT(machine.window_moves, 2u);
    EXPECT_EQ(machine.faults, std::vector<std::string>());
  }
}

TEST(VideoMemories, RegionsAreTakenAsTheGspTells) {
  const VideoRegion regions[] = {{8 * kMiB, 8 * kMiB}, {0, 4 * kMiB}};
  auto memory = VideoMemory::create(regions, 10 * kMiB);
  ASSERT_TRUE(memory) << memory.error().message;
  EXPECT_EQ(memory->bytes(), 12 * kMiB - 4096) << "address 0 is nobody's";
  EXPECT_EQ(*memory->allocate(6 * kMiB, 4096, false), 10 * kMiB);
  // Hidden memory is full: what the host sees is better than none.
  EXPECT_EQ(*memory->allocate(2 * kMiB, 2 * kMiB, false), 2 * kMiB);
  EXPECT_EQ(*memory->allocate(2 * kMiB, 2 * kMiB, true), 8 * kMiB);
  const auto none = memory->allocate(4 * kMiB, 4096, true);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::kOutOfMemory);
  memory->free(8 * kMiB);
  EXPECT_TRUE(memory->allocate(2 * kMiB, 4096, true));
  const VideoRegion overlap[] = {{0, 4 * kMiB}, {3 * kMiB, 4 * kMiB}};
  EXPECT_FALSE(VideoMemory::create(overlap, 10 * kMiB));
  const VideoRegion hidden[] = {{16 * kMiB, 4 * kMiB}};
  EXPECT_FALSE(VideoMemory::create(hidden, 10 * kMiB));
}

}  // namespace
}  // namespace bm::nv::gsp
