// Shadows of memory that the device and the host both write: what one side does while a transfer of
// the other is under way is not lost.

#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "drivers/hcq/host_shadow.h"
#include "tests/patience.h"

namespace bm::hcq {
namespace {

using namespace std::chrono_literals;
using hal::QueueKind;
using Step = HostShadows::Step;
using Range = HostShadows::Range;

class DeviceBuffer final : public hal::Buffer {
 public:
  DeviceBuffer(uint64_t va, uint64_t bytes)
      : Buffer({.size = bytes, .host_visible = true}, hal::GpuVa{va}, nullptr) {}
};

/// A device's memory, and hooks around the transfers. Its commands write with store().
class Path final : public HostPath {
 public:
  Status write(uint64_t va, std::span<const std::byte> from) override {
    call(before_write, va);
    const std::lock_guard lock(mutex_);
    std::memcpy(memory_.data() + va, from.data(), from.size());
    return {};
  }
  void publish() override {}
  Status read(uint64_t va, std::span<std::byte> to) override {
    {
      const std::lock_guard lock(mutex_);
      std::memcpy(to.data(), memory_.data() + va, to.size());
    }
    call(after_read, va);
    return {};
  }
  template <class T>
  void store(uint64_t va, T value) {
    const std::lock_guard lock(mutex_);
    std::memcpy(memory_.data() + va, &value, sizeof value);
  }
  template <class T>
  T load(uint64_t va) {
    const std::lock_guard lock(mutex_);
    T value{};
    std::memcpy(&value, memory_.data() + va, sizeof value);
    return value;
  }
  /// By address of the transfer; each is called once, while nothing but the transfer waits for it.
  std::map<uint64_t, std::function<void()>> before_write, after_read;

 private:
  static void call(std::map<uint64_t, std::function<void()>>& hooks, uint64_t va) {
    if (auto hook = hooks.extract(va); !hook.empty()) hook.mapped()();
  }
  std::mutex mutex_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(4096);
};

/// A thread of the test's own that does `work` while a transfer is under way: it is given a moment,
/// in which it ends unless the transfer keeps it out.
class Meanwhile {
 public:
  void begin(std::function<void()> work) {
    done_ = std::async(std::launch::async, std::move(work));
    done_.wait_for(50ms);
  }
  void end() { done_.get(); }

 private:
  std::future<void> done_;
};

struct Rig {
  static constexpr uint64_t kData = 256, kFirst = 1024, kSecond = 2048;
  std::shared_ptr<Shadow> add(uint64_t va, uint64_t bytes) {
    return shadows.add(std::make_unique<DeviceBuffer>(va, bytes));
  }
  static uint32_t seen(const std::shared_ptr<Shadow>& shadow, uint64_t offset) {
    uint32_t value = 0;
    std::memcpy(&value, shadow->view() + offset, sizeof value);
    return value;
  }
  static void change(const std::shared_ptr<Shadow>& shadow, uint64_t offset, uint32_t value) {
    std::memcpy(shadow->view() + offset, &value, sizeof value);
  }
  Range all(const std::shared_ptr<Shadow>& shadow) { return {shadow, 0, shadow->bytes}; }
  /// Until the host sees the signal.
  void wait(const std::shared_ptr<Shadow>& signal, uint64_t value) {
    const auto end = std::chrono::steady_clock::now() + test::patience(5s);
    while (std::atomic_ref(signal->host[0]).load(std::memory_order_acquire) < value &&
           std::chrono::steady_clock::now() < end)
      shadows.wait_progress(1'000'000);
    ASSERT_GE(signal->host[0], value);
  }

  Path path;
  HostShadows shadows{path};
  std::shared_ptr<Shadow> data = add(kData, 256), first = add(kFirst, 8), second = add(kSecond, 8);
};

TEST(HostShadow, WhatTheHostSendsWhileAResultComesIsNotTakenBack) {
  Rig rig;
  Meanwhile host;
  Step step;
  step.written = {rig.all(rig.data)};
  step.signal = {rig.first, 0, 8};
  step.value = 1;
  // Read from the device, and not yet merged with what the host has.
  rig.path.after_read[Rig::kData] = [&] {
    host.begin([&] {
      Rig::change(rig.data, 0, 0x11111111);
      EXPECT_TRUE(rig.shadows.push({rig.data, 0, 4}));
    });
  };
  rig.shadows.expect(QueueKind::kCompute, {step});
  rig.path.store<uint32_t>(Rig::kData + 8, 0x22222222);
  rig.path.store<uint64_t>(Rig::kFirst, 1);
  rig.wait(rig.first, 1);
  host.end();
  EXPECT_EQ(Rig::seen(rig.data, 0), 0x11111111u);
  EXPECT_EQ(Rig::seen(rig.data, 8), 0x22222222u);
  EXPECT_EQ(rig.path.load<uint32_t>(Rig::kData), 0x11111111u);
  EXPECT_EQ(rig.path.load<uint32_t>(Rig::kData + 8), 0x22222222u);
}

TEST(HostShadow, NothingOldIsSentOverAResultThatHasNotComeYet) {
  Rig rig;
  Meanwhile host;
  Step step;
  step.written = {rig.all(rig.data)};
  step.signal = {rig.first, 0, 8};
  step.value = 1;
  // Two words, between which a transfer would send what lies there.
  rig.path.after_read[Rig::kData] = [&] {
    host.begin([&] {
      Rig::change(rig.data, 0, 0x11111111);
      Rig::change(rig.data, 16, 0x33333333);
      EXPECT_TRUE(rig.shadows.push(rig.all(rig.data)));
    });
  };
  rig.shadows.expect(QueueKind::kCompute, {step});
  rig.path.store<uint32_t>(Rig::kData + 8, 0x22222222);
  rig.path.store<uint64_t>(Rig::kFirst, 1);
  rig.wait(rig.first, 1);
  host.end();
  EXPECT_EQ(rig.path.load<uint32_t>(Rig::kData + 8), 0x22222222u);
  EXPECT_EQ(Rig::seen(rig.data, 8), 0x22222222u);
  EXPECT_EQ(rig.path.load<uint32_t>(Rig::kData), 0x11111111u);
  EXPECT_EQ(rig.path.load<uint32_t>(Rig::kData + 16), 0x33333333u);
}

TEST(HostShadow, CommandsBeginBehindATransferThatDoesNotKnowOfThem) {
  Rig rig;
  Meanwhile other;
  Rig::change(rig.data, 0, 0x11111111);
  Rig::change(rig.data, 16, 0x33333333);
  rig.path.before_write[Rig::kData] = [&] {
    other.begin([&] {
      Step step;
      step.written = {rig.all(rig.data)};
      step.signal = {rig.first, 0, 8};
      step.value = 1;
      rig.shadows.expect(QueueKind::kCompute, {step});
      rig.path.store<uint32_t>(Rig::kData + 8, 0x22222222);
      rig.path.store<uint64_t>(Rig::kFirst, 1);
    });
  };
  EXPECT_TRUE(rig.shadows.push(rig.all(rig.data)));
  other.end();
  rig.wait(rig.first, 1);
  EXPECT_EQ(rig.path.load<uint32_t>(Rig::kData + 8), 0x22222222u);
  EXPECT_EQ(Rig::seen(rig.data, 8), 0x22222222u);
}

/// Two commands write one word; the second's signal has not come when the first's result is taken.
TEST(HostShadow, BytesNextToAResultAreLeftToWhoWritesThem) {
  Rig rig;
  const auto step = [&](uint64_t offset, const std::shared_ptr<Shadow>& signal) {
    Step made;
    made.written = {{rig.data, offset, 4, true}};
    made.signal = {signal, 0, 8};
    made.value = 1;
    return made;
  };
  rig.path.store<uint32_t>(Rig::kData, 0x11111111);
  rig.path.store<uint32_t>(Rig::kData + 4, 0x22222222);
  rig.shadows.expect(QueueKind::kCompute, {step(0, rig.first)});
  rig.shadows.expect(QueueKind::kCopy, {step(4, rig.second)});
  rig.path.store<uint64_t>(Rig::kFirst, 1);
  rig.wait(rig.first, 1);
  EXPECT_EQ(Rig::seen(rig.data, 0), 0x11111111u);
  EXPECT_TRUE(rig.shadows.push(rig.all(rig.data)));
  EXPECT_EQ(rig.path.load<uint32_t>(Rig::kData + 4), 0x22222222u);
  rig.path.store<uint64_t>(Rig::kSecond, 1);
  rig.wait(rig.second, 1);
  EXPECT_EQ(Rig::seen(rig.data, 4), 0x22222222u);
}

/// The second queue waits for the first one's signal, which comes after that signal was looked at.
TEST(HostShadow, ASignalBringsTheResultsOfWhatItsCommandsWaitedFor) {
  Rig rig;
  Step before, after;
  before.written = {rig.all(rig.data)};
  before.signal = {rig.first, 0, 8};
  after.signal = {rig.second, 0, 8};
  before.value = after.value = 1;
  rig.path.after_read[Rig::kFirst] = [&] {
    rig.path.store<uint32_t>(Rig::kData + 8, 0x22222222);
    rig.path.store<uint64_t>(Rig::kFirst, 1);
    rig.path.store<uint64_t>(Rig::kSecond, 1);
  };
  rig.path.after_read[Rig::kData] = [] { std::this_thread::sleep_for(50ms); };
  rig.shadows.expect(QueueKind::kCopy, {after});
  rig.shadows.expect(QueueKind::kCompute, {before});
  rig.wait(rig.second, 1);
  EXPECT_EQ(Rig::seen(rig.data, 8), 0x22222222u);
}

}  // namespace
}  // namespace bm::hcq
