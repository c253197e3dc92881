#include "drivers/transport/mmio.h"

#include <array>
#include <limits>
#include <type_traits>

#include <gtest/gtest.h>

#include "tests/unit/transport/recording_window.h"

namespace bm {
namespace {

using test::RecordingWindow;

using Lines = std::vector<std::string>;

struct MappedPage {
  alignas(64) std::array<std::byte, 256> bytes{};
  Mmio mmio() { return *Mmio::mapped(bytes.data(), bytes.size()); }
  HostView view() { return *HostView::mapped(bytes.data(), bytes.size()); }
};

TEST(Mmio, MappedRegistersOfEveryWidthAreBytesOfThePage) {
  MappedPage page;
  const Mmio mmio = page.mmio();
  mmio.write64(0, 0x8877665544332211);
  EXPECT_EQ(mmio.read8(1), 0x22);
  EXPECT_EQ(mmio.read16(2), 0x4433);
  EXPECT_EQ(mmio.read32(4), 0x88776655u);
  mmio.write8(7, 0xff);
  mmio.write16(4, 0xabcd);
  mmio.write32(0, 0x01020304);
  EXPECT_EQ(mmio.read64(0), 0xff77abcd01020304u);
  EXPECT_EQ(mmio.host(), page.bytes.data());
  EXPECT_TRUE(mmio.status());
}

TEST(Mmio, RemoteAccessesKeepWidthAndOrder) {
  RecordingWindow window(256);
  const Mmio mmio = *Mmio::remote(window);
  mmio.write32(8, 7);
  EXPECT_EQ(mmio.read32(8), 7u);
  mmio.write8(3, 0xaa);
  mmio.write64(16, 1);
  EXPECT_EQ(mmio.read16(2), 0xaa00);
  EXPECT_EQ(mmio.host(), nullptr);
  EXPECT_EQ(window.log, (Lines{"write32 0x8 = 0x7", "read32 0x8", "write8 0x3 = 0xaa",
                               "write64 0x10 = 0x1", "read16 0x2"}));
}

TEST(Mmio, ABlockIsOneTransactionBehindATransport) {
  RecordingWindow window(256);
  const Mmio mmio = *Mmio::remote(window);
  const std::array<uint32_t, 4> out = {1, 2, 3, 4};
  std::array<uint32_t, 4> back{};
  mmio.write_block(0x20, out);
  mmio.read_block(0x20, back);
  EXPECT_EQ(back, out);
  EXPECT_EQ(window.log, (Lines{"write 16 bytes at 0x20", "read 16 bytes at 0x20"}));
}

TEST(Mmio, ABlockOfAMappedWindowIsItsWords) {
  MappedPage page;
  const std::array<uint32_t, 3> out = {5, 6, 7};
  std::array<uint32_t, 3> back{};
  page.mmio().write_block(244, out);
  page.mmio().read_block(244, back);
  EXPECT_EQ(back, out);
  EXPECT_EQ(page.mmio().read32(252), 7u);
}

TEST(Mmio, AWindowOfAWindowCountsFromItsStart) {
  RecordingWindow window(256);
  const Mmio part = *(*Mmio::remote(window)).window(64, 32);
  (*part.window(8, 8)).write32(4, 9);
  EXPECT_EQ(window.log, Lines{"write32 0x4c = 0x9"});
  MappedPage page;
  (*page.mmio().window(64, 32)).write32(4, 9);
  EXPECT_EQ(page.mmio().read32(68), 9u);
}

TEST(Mmio, WindowsThatCannotBeAreErrors) {
  MappedPage page;
  EXPECT_EQ(Mmio::mapped(nullptr, 16).error().code, Code::kInvalidArgument);
  EXPECT_FALSE(Mmio::mapped(page.bytes.data(), 0));
  EXPECT_FALSE(Mmio::mapped(page.bytes.data() + 4, 16));
  EXPECT_FALSE(Mmio::mapped(page.bytes.data(), std::numeric_limits<uint64_t>::max()));
  RecordingWindow none(0);
  EXPECT_FALSE(Mmio::remote(none));
  for (const auto& [offset, bytes] :
       {std::pair<uint64_t, uint64_t>{256, 8}, {8, 256}, {0, 0}, {4, 8}, {~uint64_t{7}, 16}}) {
    const Result<Mmio> part = page.mmio().window(offset, bytes);
    ASSERT_FALSE(part) << offset << " " << bytes;
    EXPECT_NE(part.error().message.find("0x100 bytes"), std::string::npos) << part.error().message;
  }
}

TEST(Mmio, ADeadTransportReadsAllOnesAndSaysWhy) {
  RecordingWindow window(64);
  const Mmio mmio = *Mmio::remote(window);
  EXPECT_TRUE(mmio.status());
  window.failure = "cable pulled";
  EXPECT_EQ(mmio.read32(0), ~uint32_t{0});
  EXPECT_EQ(mmio.read8(0), 0xff);
  EXPECT_EQ(mmio.status().error().message, "cable pulled");
}

TEST(HostView, FillsBytesOfMappedAndRemoteMemoryAlike) {
  MappedPage page;
  page.view().fill(3, 5, std::byte{7});
  EXPECT_EQ(page.view().load<uint64_t>(0), 0x07070707'07000000u);
  EXPECT_EQ(page.view().load<uint64_t>(8), 0u);
  RecordingWindow window(10'000);
  const HostView view = *HostView::remote(window);
  view.fill(3, 5, std::byte{7});
  EXPECT_EQ(view.load<uint64_t>(0), 0x07070707'07000000u);
  view.fill(1000, 9000, std::byte{1});
  EXPECT_EQ(window.bytes[999], std::byte{0});
  EXPECT_EQ(window.bytes[1000], std::byte{1});
  EXPECT_EQ(window.bytes[9999], std::byte{1});
  EXPECT_EQ(window.log, (Lines{"write 5 bytes at 0x3", "read64 0x0", "write 4096 bytes at 0x3e8",
                               "write 4096 bytes at 0x13e8", "write 808 bytes at 0x23e8"}));
}

TEST(HostView, TheSameBytesMayBeRegisters) {
  RecordingWindow window(256);
  const HostView part = (*HostView::remote(window)).slice(64, 32);
  part.registers().write32(4, 9);
  EXPECT_EQ(window.log, Lines{"write32 0x44 = 0x9"});
  EXPECT_EQ(part.registers().size(), 32u);
}

using MmioDeathTest = ::testing::Test;

TEST(MmioDeathTest, AccessesOutsideTheWindowEndTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  MappedPage page;
  const Mmio mmio = page.mmio();
  EXPECT_DEATH((void)mmio.read32(256), "is_inside_window");
  EXPECT_DEATH(mmio.write64(252, 0), "is_inside_window");
  EXPECT_DEATH(mmio.write32(~uint64_t{3}, 0), "is_inside_window");
  EXPECT_DEATH((void)mmio.read32(2), "is_aligned_offset");
  EXPECT_DEATH((void)Mmio().read32(0), "is_inside_window");
  EXPECT_DEATH(mmio.write_block(252, std::array<uint32_t, 2>{}), "is_inside_window");
  EXPECT_DEATH(page.view().copy_in(250, std::array<std::byte, 7>{}), "is_inside_window");
  EXPECT_DEATH((void)page.view().slice(0, 257), "is_part_of_view");
  RecordingWindow window(256);
  const Mmio remote = *Mmio::remote(window);
  EXPECT_DEATH((void)remote.read32(256), "is_inside_window");
  EXPECT_DEATH((void)(*remote.window(0, 8)).read32(8), "is_inside_window");
}

TEST(HostView, LoadsStoresAndCopiesSeeTheSameBytes) {
  MappedPage page;
  RecordingWindow window(256);
  for (const HostView& view : {page.view(), *HostView::remote(window)}) {
    view.store<uint32_t>(4, 0x11223344);
    view.store_release<uint64_t>(8, 0x5566);
    const std::array<uint32_t, 2> words = {1, 2};
    view.copy_in(16, words);
    std::array<std::byte, 20> back{};
    view.copy_out(4, back);
    EXPECT_EQ(back[0], std::byte{0x44});
    EXPECT_EQ(back[4], std::byte{0x66});
    EXPECT_EQ(back[16], std::byte{2});
    EXPECT_EQ(view.load_acquire<uint64_t>(8), 0x5566u);
    EXPECT_EQ(view.slice(16, 8).load<uint32_t>(4), 2u);
    view.copy_in(256, std::span<const uint32_t>());
    view.publish();
  }
  EXPECT_EQ(window.log,
            (Lines{"write32 0x4 = 0x11223344", "write64 0x8 = 0x5566", "write 8 bytes at 0x10",
                   "read 20 bytes at 0x4", "read64 0x8", "read32 0x14", "flush"}));
}

TEST(Doorbell, IsOneStoreOfItsWidth) {
  MappedPage page;
  (*Doorbell<uint64_t>::at(page.mmio(), 248)).ring(0x1'0000'0002);
  EXPECT_EQ(page.mmio().read64(248), 0x1'0000'0002u);
  RecordingWindow window(256);
  const Mmio mmio = *Mmio::remote(window);
  (*Doorbell<uint32_t>::at(*mmio.window(64, 64), 0x10)).ring(3);
  (*Doorbell<uint64_t>::at(mmio, 8)).ring(4);
  EXPECT_EQ(window.log, (Lines{"write32 0x50 = 0x3", "write64 0x8 = 0x4"}));
}

TEST(Doorbell, PlacesThatAreNoneAreErrors) {
  MappedPage page;
  EXPECT_FALSE(Doorbell<uint64_t>::at(page.mmio(), 252));
  EXPECT_FALSE(Doorbell<uint64_t>::at(page.mmio(), 256));
  EXPECT_FALSE(Doorbell<uint32_t>::at(page.mmio(), ~uint64_t{3}));
  EXPECT_FALSE(Doorbell<uint32_t>::at(Mmio(), 0));
}

// Views are passed by value and kept in arrays.
static_assert(std::is_trivially_copyable_v<Mmio> && std::is_trivially_copyable_v<HostView>);
static_assert(std::is_trivially_copyable_v<Doorbell<uint32_t>>);

}  // namespace
}  // namespace bm
