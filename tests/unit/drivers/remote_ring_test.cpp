// Rings over a device that cannot be dereferenced: what reaches it, of which width, in which order.

#include <algorithm>
#include <array>
#include <vector>

#include <gtest/gtest.h>

#include "drivers/amd/chips.h"
#include "drivers/amd/hardware_ring.h"
#include "drivers/amd/sdma/packets.h"
#include "drivers/hcq/memory_pool.h"
#include "drivers/nv/chips.h"
#include "drivers/nv/hardware_ring.h"
#include "runtime/base/env.h"
#include "tests/unit/drivers/remote_device.h"

namespace bm {
namespace {

using test::RemoteBytes;
using test::RemoteDevice;
using test::RemoteMemory;

using Lines = std::vector<std::string>;
using Words = std::vector<uint32_t>;

constexpr uint64_t kSlab = 1 << 20;

/// Names memory by what the rings allocate: their own, then command space, then fences.
Result<std::unique_ptr<hcq::Memory>> make_memory(RemoteDevice& device,
                                                 std::vector<RemoteMemory*>& memories,
                                                 std::vector<std::string> names,
                                                 const hcq::MemoryRequest& request) {
  if (memories.size() >= names.size())
    return fail(Code::kOutOfMemory, "more memory than a ring needs");
  auto memory = std::make_unique<RemoteMemory>(device, names[memories.size()],
                                               0x10'0000 * (memories.size() + 1), request.size);
  memory->domain = request.domain;
  memories.push_back(memory.get());
  return std::unique_ptr<hcq::Memory>(std::move(memory));
}

/// An NVIDIA channel that executes semaphore releases (clc56f.h, SEM_ADDR_LO to SEM_EXECUTE) and
/// remembers the words of every push buffer as they were when the doorbell rang.
class RemoteNv final : public nv::DriverInterface {
 public:
  static constexpr uint32_t kToken = 0x77, kEntries = 16;
  static constexpr uint64_t kPut = 512 + 0x8c;  // USERD begins behind 16 entries, 512-byte aligned

  explicit RemoteNv(RemoteDevice& device)
      : device_(device), bell_(device, "bell", 4096), notifier_(device, "notifier", 64) {
    facts_.chip = nv::find_chip(0xc9c0);
    facts_.compute_class = 0xc9c0;
    facts_.channel_class = 0xc56f;
    facts_.copy_class = 0xc7b5;
    facts_.video_memory = 1 << 30;
    device.on_access = [this](const std::string& access) { watch(access); };
  }
  const nv::GpuFacts& facts() const override { return facts_; }
  Result<std::unique_ptr<hcq::Memory>> allocate(const hcq::MemoryRequest& request) override {
    return make_memory(device_, memories, {"ring", "commands", "fence"}, request);
  }
  Result<std::shared_ptr<hcq::Memory>> map_peer(hcq::Memory&, hcq::DriverInterface&) override {
    return nullptr;
  }
  Result<std::unique_ptr<nv::Channel>> create_channel(const nv::ChannelRequest&) override {
    auto channel = std::make_unique<nv::Channel>();
    channel->token = kToken;
    channel->engine_class = facts_.copy_class;
    channel->notifier = HostView::remote(notifier_).value();
    return channel;
  }
  Doorbell<uint32_t> doorbell() override {
    return Doorbell<uint32_t>::at(Mmio::remote(bell_).value(), 0x90).value();
  }
  uint64_t clock_ns() override { return 0; }
  nv::FaultDetails fault_details(nv::Channel&) override { return {}; }
  Result<int> event_fd(nv::Channel&) override { return fail(Code::kUnsupported, "no events"); }
  Result<bool> wait_event(nv::Channel&, int) override { return false; }
  uint64_t shared_window() const override { return 0; }
  uint64_t local_window() const override { return 0; }

  RemoteBytes& ring_bytes() { return memories[0]->window; }
  RemoteBytes& notifier() { return notifier_; }

  std::vector<RemoteMemory*> memories;
  std::vector<Words> pushed;  ///< push buffers as they were announced
  bool is_slow = false;       ///< entries are executed one by one, each when a fence is looked at

 private:
  void watch(const std::string& access) {
    if (access.starts_with("bell: write32 0x90")) {
      EXPECT_EQ(access, "bell: write32 0x90 = 0x77");
      for (const auto put = ring_bytes().word<uint32_t>(kPut); seen_ != put;
           seen_ = (seen_ + 1) % kEntries)
        pushed.push_back(words_of(ring_bytes().word<uint64_t>(uint64_t{seen_} * 8)));
    }
    if (is_slow ? access.starts_with("fence: read") : access.starts_with("bell"))
      while (done_ < pushed.size()) {
        execute(pushed[done_++]);
        if (is_slow) break;
      }
  }
  Words words_of(uint64_t entry) {
    const uint64_t va = entry & 0xff'ffff'fffc;
    Words words(entry >> 42 & 0x1f'ffff);
    std::memcpy(words.data(), at(va), words.size() * 4);
    return words;
  }
  std::byte* at(uint64_t va) {
    return memories[va / 0x10'0000 - 1]->window.bytes.data() + va % 0x10'0000;
  }
  void execute(const Words& words) {
    for (size_t i = 0; i < words.size(); i += 1 + (words[i] >> 16 & 0x1fff)) {
      if ((words[i] & 0xfff) != 0x5c / 4 || (words[i] >> 16 & 0x1fff) != 5) continue;
      if ((words[i + 5] & 7) != 1) continue;  // a release
      const uint64_t value = words[i + 3] | uint64_t{words[i + 4]} << 32;
      std::memcpy(at(words[i + 1] | uint64_t{words[i + 2]} << 32), &value, 8);
    }
  }
  RemoteDevice& device_;
  RemoteBytes bell_, notifier_;
  nv::GpuFacts facts_;
  uint32_t seen_ = 0;
  size_t done_ = 0;
};

struct NvRig {
  NvRig() : gpu(device), pool(gpu, kSlab) {
    auto made = hcq::make_ring<nv::HardwareRing>(
        gpu, pool,
        nv::RingOptions{
            .engine = nv::Engine::kCopy, .entries = RemoteNv::kEntries, .command_bytes = 4096});
    EXPECT_TRUE(made) << made.error().message;
    ring = std::move(*made);
  }
  RemoteDevice device;
  RemoteNv gpu;
  hcq::MemoryPool pool;
  std::unique_ptr<nv::HardwareRing> ring;
};

TEST(RemoteRing, NvidiaDataComesBeforeTheRingTheRingBeforeItsPointerAndThatBeforeTheDoorbell) {
  NvRig rig;
  rig.device.log.clear();
  const Words words = {0x2000'0000, 0x2000'0001, 0x2000'0002};
  const uint64_t fence = rig.ring->submit(words).value();
  // The words and the release behind them, 256 bytes behind the first submission's.
  EXPECT_EQ(
      rig.device.log,
      (Lines{"commands: write 36 bytes at 0x100",
             fmt::format("ring: write64 0x8 = {:#x}", uint64_t{9} << 42 | 0x20'0100), "ring: flush",
             "ring: write32 0x28c = 0x2", "ring: flush", "bell: write32 0x90 = 0x77"}));
  ASSERT_EQ(rig.gpu.pushed.size(), 2u);
  EXPECT_TRUE(std::ranges::equal(std::span(rig.gpu.pushed[1]).first(3), words));
  rig.device.log.clear();
  EXPECT_TRUE(rig.ring->has_passed(fence));
  EXPECT_EQ(rig.device.log, (Lines{"fence: read64 0x0"}));
}

TEST(RemoteRing, NvidiaRingsWrapAndWaitForTheirFences) {
  NvRig rig;
  rig.gpu.is_slow = true;
  const size_t before = rig.gpu.pushed.size();
  for (uint32_t i = 0; i < 200; ++i) ASSERT_TRUE(rig.ring->submit(Words{0x2000'0000, i * 7 + 1}));
  ASSERT_TRUE(rig.ring->drain());
  uint32_t next = 0;
  for (size_t i = before; i < rig.gpu.pushed.size(); ++i) {
    const Words& words = rig.gpu.pushed[i];
    if (words.size() != 8) continue;  // a fence of the ring, the last one's
    ASSERT_EQ(words[1], next * 7 + 1) << "an entry was overwritten before it was read";
    ++next;
  }
  EXPECT_EQ(next, 200u);
  EXPECT_EQ(rig.device.count("ring: read"), 0u) << "the ring is never read";
  EXPECT_EQ(rig.device.count("commands: read"), 0u);
  EXPECT_GT(rig.device.count("fence: read64 0x40"), 10u) << "entries are taken";
  EXPECT_FALSE(rig.ring->is_busy());
}

TEST(RemoteRing, ADeadTransportIsALossAndNoFencePassesByIt) {
  NvRig rig;
  rig.gpu.is_slow = true;
  const uint64_t fence = rig.ring->submit({}).value();
  rig.device.failure = "cable pulled";
  EXPECT_FALSE(rig.ring->has_passed(fence));
  const Status drained = rig.ring->drain();
  ASSERT_FALSE(drained);
  EXPECT_EQ(drained.error().code, Code::kDeviceLost);
  EXPECT_NE(drained.error().message.find("cable pulled while"), std::string::npos)
      << drained.error().message;
}

/// An AMD queue that reads all it was told of when its read pointer is looked at.
class RemoteAmd final : public amd::DriverInterface {
 public:
  explicit RemoteAmd(RemoteDevice& device)
      : device_(device), page_(device, "queue", 4096), bell_(device, "bell", 8192) {
    facts_.chip = amd::find_chip("gfx1100");
    facts_.video_memory = 1 << 30;
    device.on_access = [this](const std::string& access) {
      if (access == "queue: read64 0x80") page_.set64(128, page_.word<uint64_t>(56));
      if (access.starts_with("system: read64") && --polls_ == 0)
        memories.back()->window.set64(fence_at_, fence_);
    };
  }
  const amd::GpuFacts& facts() const override { return facts_; }
  Result<std::unique_ptr<hcq::Memory>> allocate(const hcq::MemoryRequest& request) override {
    return make_memory(device_, memories, {"ring", "system"}, request);
  }
  Result<std::shared_ptr<hcq::Memory>> map_peer(hcq::Memory&, hcq::DriverInterface&) override {
    return nullptr;
  }
  Result<std::unique_ptr<amd::HardwareQueue>> create_queue(const amd::QueueRequest&) override {
    auto queue = std::make_unique<amd::HardwareQueue>();
    queue->object = HostView::remote(page_).value();
    queue->write_pointer = queue->object.slice(56, 8);
    queue->read_pointer = queue->object.slice(128, 8);
    queue->doorbell = Doorbell<uint64_t>::at(Mmio::remote(bell_).value(), 0x1008).value();
    return queue;
  }
  Result<bool> wait_event(uint32_t) override { return false; }
  std::optional<amd::GpuFault> take_fault() override { return std::nullopt; }
  uint64_t available_memory() override { return facts_.video_memory; }

  /// The n-th look at it finds the word at `offset` of system memory written.
  void write_at_look(int n, uint64_t offset, uint64_t value) {
    polls_ = n;
    fence_at_ = offset;
    fence_ = value;
  }

  std::vector<RemoteMemory*> memories;

 private:
  RemoteDevice& device_;
  RemoteBytes page_, bell_;
  amd::GpuFacts facts_;
  int polls_ = 0;
  uint64_t fence_at_ = 0, fence_ = 0;
};

struct AmdRig {
  explicit AmdRig(amd::QueueType type, uint32_t entries) : gpu(device), pool(gpu, kSlab) {
    auto made = hcq::make_ring<amd::HardwareRing>(
        gpu, pool, amd::RingOptions{.type = type, .entries = entries, .command_bytes = 64 << 10});
    EXPECT_TRUE(made) << made.error().message;
    ring = std::move(*made);
    device.log.clear();
  }
  RemoteBytes& ring_bytes() { return gpu.memories[0]->window; }
  RemoteDevice device;
  RemoteAmd gpu;
  hcq::MemoryPool pool;
  std::unique_ptr<amd::HardwareRing> ring;
};

amd::aql::Words packet(uint32_t number) {
  amd::aql::Words words{};
  words[0] = 0x1502;
  for (uint32_t i = 1; i < words.size(); ++i) words[i] = number * 100 + i;
  return words;
}

TEST(RemoteRing, AmdPacketsBecomeValidBeforeTheWritePointerAndThatBeforeTheDoorbell) {
  AmdRig rig(amd::QueueType::kAql, 64);
  rig.ring->enqueue(packet(0));
  rig.ring->enqueue(packet(1));
  rig.ring->publish();
  EXPECT_EQ(rig.device.log,
            (Lines{"ring: write 60 bytes at 0x4", "ring: write32 0x0 = 0x1502",
                   "ring: write 60 bytes at 0x44", "ring: write32 0x40 = 0x1502",
                   "queue: write64 0x38 = 0x2", "queue: flush", "bell: write64 0x1008 = 0x1"}));
  EXPECT_EQ(rig.ring_bytes().word<uint32_t>(64 + 15 * 4), 115u);
}

TEST(RemoteRing, AmdBlocksOfPacketsBecomeValidWhenAllOfThemAreThere) {
  AmdRig rig(amd::QueueType::kAql, 64);
  for (uint32_t i = 0; i < 62; ++i) rig.ring->enqueue(packet(i));
  rig.ring->publish();
  ASSERT_TRUE(rig.ring->wait_room(4));
  amd::RingBlock block;
  for (uint32_t i = 61; i < 66; ++i) block.add(packet(i));
  rig.device.log.clear();
  rig.ring->enqueue(block, 1, 4);
  rig.ring->publish();
  EXPECT_EQ(rig.device.log,
            (Lines{"ring: write 128 bytes at 0xf80", "ring: write 128 bytes at 0x0",
                   "ring: write32 0xf80 = 0x1502", "ring: write32 0xfc0 = 0x1502",
                   "ring: write32 0x0 = 0x1502", "ring: write32 0x40 = 0x1502",
                   "queue: write64 0x38 = 0x42", "queue: flush", "bell: write64 0x1008 = 0x41"}));
  for (uint32_t i = 62; i < 66; ++i)
    EXPECT_EQ(rig.ring_bytes().word<uint32_t>(uint64_t{i % 64} * 64 + 60), i * 100 + 15);
}

TEST(RemoteRing, AmdBlocksOfBuffersAreWhatSingleOnesAre) {
  AmdRig rig(amd::QueueType::kPm4, 256), single(amd::QueueType::kPm4, 256);
  amd::RingBlock block;
  for (uint64_t i = 1; i < 4; ++i) {
    rig.ring->add_to(block, i << 40 | 0x100, 16);
    single.ring->enqueue(i << 40 | 0x100, 16);
  }
  rig.ring->enqueue(block, 0, 3);
  EXPECT_EQ(rig.device.log, (Lines{"ring: write 48 bytes at 0x0"}));
  for (uint64_t at = 0; at < 48; at += 4)
    EXPECT_EQ(rig.ring_bytes().word<uint32_t>(at), single.ring_bytes().word<uint32_t>(at)) << at;
}

TEST(RemoteRing, AmdFencesAreWaitedFor) {
  AmdRig rig(amd::QueueType::kPm4, 256);
  const auto space = rig.ring->reserve(100).value();
  space.view.copy_in(0, Words{1, 2, 3});
  rig.ring->enqueue(space.va, 3);
  const uint64_t fence = rig.ring->next_fence();
  rig.ring->finish();
  EXPECT_TRUE(rig.ring->is_busy());
  rig.device.log.clear();
  // Behind the command space.
  rig.gpu.write_at_look(3, 64 << 10, fence);
  EXPECT_TRUE(rig.ring->drain());
  const Lines looks(3, "system: read64 0x10000");
  ASSERT_EQ(rig.device.log.size(), 6u);
  EXPECT_EQ(rig.device.log[0], "queue: write64 0x38 = 0x4");
  EXPECT_EQ(rig.device.log[2], "bell: write64 0x1008 = 0x4");
  EXPECT_TRUE(std::equal(looks.begin(), looks.end(), rig.device.log.begin() + 3));
}

TEST(RemoteRing, AmdBuffersAreWholeEntries) {
  AmdRig rig(amd::QueueType::kPm4, 256);
  rig.ring->enqueue(0x1234'5678'9a00, 16);
  rig.ring->publish();
  EXPECT_EQ(rig.device.log, (Lines{"ring: write 16 bytes at 0x0", "queue: write64 0x38 = 0x4",
                                   "queue: flush", "bell: write64 0x1008 = 0x4"}));
  EXPECT_EQ(rig.ring_bytes().word<uint64_t>(4), 0x1234'5678'9a00u);
}

TEST(RemoteRing, AmdReadPointersAreReadOnlyWhereTheRingSeemsFull) {
  AmdRig rig(amd::QueueType::kAql, 64);
  for (uint32_t i = 0; i < 63; ++i) {
    ASSERT_TRUE(rig.ring->has_room(1));
    rig.ring->enqueue(packet(i));
  }
  EXPECT_EQ(rig.device.count("queue: read"), 0u);
  EXPECT_FALSE(rig.ring->has_room(1)) << "nothing was announced";
  EXPECT_EQ(rig.device.count("queue: read64 0x80"), 1u);
  rig.ring->publish();
  // Three times around; the ring is looked at once for each time it was filled.
  for (uint32_t i = 63; i < 250; ++i) {
    ASSERT_TRUE(rig.ring->wait_room(1));
    rig.ring->enqueue(packet(i));
  }
  EXPECT_EQ(rig.device.count("queue: read64 0x80"), 4u);
  EXPECT_EQ(rig.ring_bytes().word<uint32_t>(uint64_t{249 % 64} * 64 + 4), 24901u);
  EXPECT_EQ(rig.device.count("ring: read"), 0u);
}

TEST(RemoteRing, AmdCopyPacketsDoNotPassTheEnd) {
  AmdRig rig(amd::QueueType::kSdma, 1024);
  Words copies;
  amd::sdma::Writer writer(copies, amd::SdmaForm::kV6);
  writer.put(amd::sdma::Fence{0x1000, 1});  // four dwords
  ASSERT_EQ(copies.size(), 4u);
  for (int i = 0; i < 255; ++i) {
    ASSERT_TRUE(rig.ring->wait_room(amd::HardwareRing::room_of(copies.size())));
    rig.ring->enqueue(copies);
  }
  const Words one_short(2, 0);
  ASSERT_TRUE(rig.ring->wait_room(amd::HardwareRing::room_of(2)));
  rig.ring->enqueue(one_short);
  rig.ring->publish();
  rig.device.log.clear();
  ASSERT_TRUE(rig.ring->wait_room(amd::HardwareRing::room_of(copies.size())));
  rig.device.log.clear();
  rig.ring->enqueue(copies);
  rig.ring->publish();
  EXPECT_EQ(rig.device.log, (Lines{"ring: write32 0xff8 = 0x0", "ring: write32 0xffc = 0x0",
                                   "ring: write 16 bytes at 0x0", "queue: write64 0x38 = 0x1010",
                                   "queue: flush", "bell: write64 0x1008 = 0x1010"}));
}

}  // namespace
}  // namespace bm
