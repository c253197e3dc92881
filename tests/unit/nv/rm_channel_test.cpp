// Channels that run: a push by hand, events, faults, and what is left after one.

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "drivers/nv/rm_ioctl/rm.h"
#include "tests/sim/nv/fake_system.h"

namespace bm::nv {
namespace {

using sim::nv::FakeNvSystem;

constexpr uint32_t kEntries = 64;
constexpr uint64_t kUserd = 1024, kPush = 4096;  // in the ring memory

/// A channel with just enough of a queue to push words: open-gpu-doc, clc56f.h.
class Pusher {
 public:
  Pusher(DriverInterface& gpu, Memory& ring, Engine engine = Engine::kCompute)
      : gpu_(gpu), ring_(ring) {
    std::memset(ring.host(), 0, 4096);
    Result<std::unique_ptr<Channel>> made = gpu.create_channel({.engine = engine,
                                                                .copy_index = 0,
                                                                .ring = &ring,
                                                                .ring_offset = 0,
                                                                .entries = kEntries,
                                                                .userd_offset = kUserd});
    EXPECT_TRUE(made) << made.error().message;
    if (made) channel_ = std::move(*made);
  }

  Channel& channel() { return *channel_; }

  /// 64-bit release of `value` at `address`, then the interrupt that wakes sleepers.
  void release(uint64_t address, uint64_t value) {
    constexpr uint32_t kRelease64 = 1 | 1 << 24;
    const uint32_t semaphore = 1u << 29 | 5u << 16 | 0x5c >> 2;
    const uint32_t interrupt = 1u << 29 | 1u << 16 | 0x20 >> 2;
    push({semaphore, static_cast<uint32_t>(address), static_cast<uint32_t>(address >> 32),
          static_cast<uint32_t>(value), static_cast<uint32_t>(value >> 32), kRelease64, interrupt,
          0});
  }

  /// Until the kernel has written the error notifier.
  bool is_dead() {
    for (int i = 0; i < 5000; ++i) {
      if (channel_->has_error()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

 private:
  void push(const std::vector<uint32_t>& words) {
    std::byte* const to = ring_.host() + kPush + put_ * 256;
    std::memcpy(to, words.data(), words.size() * 4);
    const uint64_t entry = (ring_.va + kPush + put_ * 256) | uint64_t{words.size()} << 42;
    std::memcpy(ring_.host() + put_ * 8, &entry, 8);
    put_ = (put_ + 1) % kEntries;
    std::atomic_thread_fence(std::memory_order_seq_cst);
    std::memcpy(ring_.host() + kUserd + 0x8c, &put_, 4);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    gpu_.doorbell().ring(channel_->token);
  }

  DriverInterface& gpu_;
  Memory& ring_;
  std::unique_ptr<Channel> channel_;
  uint32_t put_ = 0;
};

class RmChannels : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    system_ = FakeNvSystem::create({.chip = GetParam()});
    gpu_ = open_rm(*system_, {}).value();
    ring_ =
        gpu_->allocate({.size = 65536, .domain = MemoryDomain::kVideoMapped, .is_contiguous = true})
            .value();
    page_ = gpu_->allocate({.size = 4096, .domain = MemoryDomain::kSystem}).value();
  }
  uint64_t word() { return std::atomic_ref(*reinterpret_cast<uint64_t*>(page_->host())).load(); }
  bool becomes(uint64_t value) {
    for (int i = 0; i < 5000 && word() != value; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return word() == value;
  }

  std::unique_ptr<FakeNvSystem> system_;
  std::unique_ptr<DriverInterface> gpu_;
  std::unique_ptr<Memory> ring_, page_;
};

TEST_P(RmChannels, TheRingIsLiveEndToEnd) {
  for (const Engine engine : {Engine::kCompute, Engine::kCopy}) {
    Pusher pusher(*gpu_, *ring_, engine);
    const uint64_t value = engine == Engine::kCompute ? 0x1234'5678'9abc : 77;
    pusher.release(page_->va, value);
    EXPECT_TRUE(becomes(value)) << word();
    EXPECT_FALSE(pusher.channel().has_error());
  }
}

TEST_P(RmChannels, AnInterruptEndsAWait) {
  Pusher pusher(*gpu_, *ring_);
  ASSERT_TRUE(gpu_->event_fd(pusher.channel()));
  EXPECT_FALSE(gpu_->wait_event(pusher.channel(), 5).value());
  pusher.release(page_->va, 1);
  EXPECT_TRUE(gpu_->wait_event(pusher.channel(), 5000).value());
  EXPECT_TRUE(becomes(1));
}

TEST_P(RmChannels, AFaultIsToldAndMemorySurvivesTheNextChannel) {
  page_->host()[8] = std::byte{9};
  {
    Pusher pusher(*gpu_, *ring_);
    const uint64_t nowhere = page_->va + (uint64_t{1} << 30);
    pusher.release(nowhere, 1);
    ASSERT_TRUE(pusher.is_dead());
    EXPECT_EQ(pusher.channel().error_code(), 31u);  // MMU fault
    const FaultDetails details = gpu_->fault_details(pusher.channel());
    ASSERT_FALSE(details.mmu.empty());
    EXPECT_EQ(details.mmu[0].address & ~uint64_t{4095}, nowhere);
    EXPECT_EQ(details.mmu[0].access, "write");
    EXPECT_EQ(details.mmu[0].kind, "unmapped");
  }
  Pusher pusher(*gpu_, *ring_);
  EXPECT_FALSE(pusher.channel().has_error());
  pusher.release(page_->va, 5);
  EXPECT_TRUE(becomes(5));
  EXPECT_EQ(page_->host()[8], std::byte{9});
}

TEST_P(RmChannels, AFaultOfCopiesLeavesComputeAlone) {
  const auto other = gpu_->allocate({.size = 65536, .domain = MemoryDomain::kVideoMapped}).value();
  Pusher compute(*gpu_, *ring_), copy(*gpu_, *other, Engine::kCopy);
  copy.release(page_->va + (uint64_t{1} << 30), 1);
  ASSERT_TRUE(copy.is_dead());
  compute.release(page_->va, 6);
  EXPECT_TRUE(becomes(6));
  EXPECT_FALSE(compute.channel().has_error());
}

INSTANTIATE_TEST_SUITE_P(Chips, RmChannels,
                         testing::Values("tu102", "ga100", "ad102", "gh100", "gb202"));

}  // namespace
}  // namespace bm::nv
