// A device over a modelled card, the whole way down.

#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "drivers/nv/device.h"
#include "tests/unit/nv_gsp/card_rig.h"

namespace bm::nv::gsp::test {
namespace {

constexpr uint64_t kBytes = 4 << 20;

class GspDevice : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<hal::Device> open(CardRig& rig) {
    auto card = rig.open();
    EXPECT_TRUE(card) << card.error().message;
    if (!card) return nullptr;
    auto device = open_booted(std::move(*card));
    EXPECT_TRUE(device) << device.error().message;
    return device ? std::move(*device) : nullptr;
  }
  /// Waits for a copy between device memory and the host's.
  void copy(hal::Device& device, hal::Buffer& to, hal::Buffer& from) {
    const auto word = device.allocate(
        {.size = 4096, .host_visible = true, .host_memory = true, .uncached = true, .zero = true});
    ASSERT_TRUE(word) << word.error().message;
    const hal::Command commands[] = {hal::Copy{to.va(), from.va(), kBytes},
                                     hal::Signal{(*word)->va(), 1}};
    ASSERT_TRUE(device.queue(hal::QueueKind::kCopy).submit(commands));
    const volatile auto* const seen = reinterpret_cast<uint64_t*>((*word)->host());
    for (int i = 0; i < 20'000 && *seen == 0 && device.status(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_EQ(*seen, 1u) << (device.status() ? "" : device.status().error().message);
  }
};

TEST_P(GspDevice, WhatAnotherProcessLeftInVideoMemoryIsNotSeen) {
  CardRig rig(GetParam());
  {
    const auto device = open(rig);
    ASSERT_NE(device, nullptr);
    const auto host = device->allocate({.size = kBytes, .host_visible = true, .host_memory = true});
    const auto video = device->allocate({.size = kBytes});
    ASSERT_TRUE(host && video);
    std::memset((*host)->host(), 0x5a, kBytes);
    copy(*device, **video, **host);
    std::memset((*host)->host(), 0, kBytes);
    copy(*device, **host, **video);
    EXPECT_EQ((*host)->host()[kBytes - 1], std::byte{0x5a}) << "nothing was left";
  }
  const auto device = open(rig);
  ASSERT_NE(device, nullptr);
  const auto host = device->allocate({.size = kBytes, .host_visible = true, .host_memory = true});
  const auto video = device->allocate({.size = kBytes});
  ASSERT_TRUE(host && video);
  std::memset((*host)->host(), 0x11, kBytes);
  copy(*device, **host, **video);
  for (uint64_t i = 0; i < kBytes; ++i)
    ASSERT_EQ((*host)->host()[i], std::byte{0}) << "byte " << i << " is another process's";
  EXPECT_EQ(rig.violations(), "");
}

INSTANTIATE_TEST_SUITE_P(Chips, GspDevice, testing::Values("ga102", "gb202"),
                         [](const auto& chip) { return std::string(chip.param); });

}  // namespace
}  // namespace bm::nv::gsp::test
