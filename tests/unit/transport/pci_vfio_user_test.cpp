#include "drivers/transport/pci_vfio_user.h"

#include <gtest/gtest.h>

#include "drivers/transport/pci_config.h"
#include "drivers/transport/vfio_user_channel.h"
#include "tests/patience.h"
#include "tests/unit/transport/failing_system.h"
#include "tests/unit/transport/vfio_user_server.h"

namespace bm {
namespace {

using std::chrono::milliseconds;
using test::FailingSystem;
using test::VfioUserServer;

alignas(4096) std::array<std::byte, 8192> own;

std::unique_ptr<PciFunction> open(const VfioUserServer& server) {
  auto opened = open_vfio_user_pci(
      real_system(),
      {.address = server.address(), .reply_limit = test::patience(milliseconds(10'000))});
  EXPECT_TRUE(opened) << opened.error().message;
  return opened ? std::move(*opened) : nullptr;
}

/// Lets the device store or load `value` at a bus address; what it says of it.
bool device_moves(const Mmio& mmio, uint64_t address, uint64_t& value, bool is_write) {
  mmio.write64(0x10, address);
  mmio.write64(0x18, value);
  mmio.write32(0x20, is_write ? 1 : 2);
  const bool is_done = mmio.read32(0x24) == 1;
  value = mmio.read64(0x18);
  return is_done;
}

TEST(VfioUserPci, AFunctionIsDescribed) {
  VfioUserServer server({});
  const auto pci = open(server);
  EXPECT_EQ(pci->identity().vendor, 0x1af4);
  EXPECT_EQ(pci->identity().device, 0x5678);
  EXPECT_EQ(pci->identity().class_code, 0x038000u);
  EXPECT_EQ(pci->bars()[0].size, 4096u);
  EXPECT_TRUE(pci->bars()[2].is_prefetchable && pci->bars()[2].is_64_bit);
  EXPECT_EQ(pci->bars()[5].size, 0u);
  EXPECT_TRUE(pci->dma_limits().takes_iova);
  EXPECT_EQ(pci->dma_limits().mappings, 65535u);
  ASSERT_TRUE(set_bus_master(*pci, true));
  EXPECT_EQ(*pci->read_config(4, 2), 4u);
  EXPECT_EQ(pci->map_bar(3).error().code, Code::kInvalidArgument);
}

TEST(VfioUserPci, RegistersAreReachedOneAccessPerMessage) {
  VfioUserServer server({});
  const auto pci = open(server);
  const Mmio mmio = *pci->map_bar(0);
  EXPECT_EQ(mmio.read32(0), 0x55aa0001u);
  const std::array<uint32_t, 3> block = {7, 8, 9};
  mmio.write_block(0x100, block);
  std::array<uint32_t, 100> read{};
  mmio.read_block(0x100, read);
  EXPECT_EQ(read[2], 9u);
  const auto log = server.log();
  ASSERT_EQ(log.size(), 104u);
  EXPECT_EQ(log[1], "write 0 0x100 4");
  EXPECT_EQ(log[3], "write 0 0x108 4");
  EXPECT_EQ(log[103], "read 0 0x28c 4");
}

TEST(VfioUserPci, MemoryIsMappedInPartAndTheRestGoesByMessage) {
  VfioUserServer server({});
  const auto pci = open(server);
  const HostView memory = *pci->map_bar_memory(2, true);
  std::vector<std::byte> data(0xa000);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 3 + (i >> 8));
  memory.copy_in(0x800, data);
  memory.publish();
  EXPECT_EQ(0, std::memcmp(server.memory() + 0x800, data.data(), data.size()));
  std::vector<std::byte> back(data.size());
  memory.copy_out(0x800, back);
  EXPECT_TRUE(back == data);
  for (const std::string& line : server.log()) {
    EXPECT_NE(line.find("write 2 0x1000 "), 0u) << "mapped";
    EXPECT_EQ(line.find(" 8192"), std::string::npos) << "larger than the server takes";
  }
}

TEST(VfioUserPci, TheDeviceReachesSharedMemoryAndAsksForTheRest) {
  for (const bool has_twin : {true, false}) {
    VfioUserServer server({.has_twin_socket = has_twin});
    const auto pci = open(server);
    const Mmio mmio = *pci->map_bar(0);
    std::unique_ptr<DmaMemory> shared = *pci->dma_allocate(8192, true, 0x100000);
    uint64_t value = 0x1122334455667788;
    EXPECT_TRUE(device_moves(mmio, 0x100008, value, true));
    EXPECT_EQ(shared->view().load<uint64_t>(8), 0x1122334455667788u);
    own.fill({});
    ASSERT_TRUE(pci->dma_map({.host = own.data(), .bytes = 4096, .iova = 0x200000}));
    EXPECT_TRUE(device_moves(mmio, 0x200ff8, value, true));
    EXPECT_EQ(own[0xff8], std::byte{0x88});
    own[0xff8] = std::byte{0x99};
    EXPECT_TRUE(device_moves(mmio, 0x200ff8, value, false));
    EXPECT_EQ(value, 0x1122334455667799u);
    // What reaches beyond a mapping is refused, and nothing else happens.
    EXPECT_FALSE(device_moves(mmio, 0x200ffc, value, true));
    EXPECT_FALSE(device_moves(mmio, 0x500000, value, false));
    ASSERT_TRUE(pci->dma_map(
        {.host = own.data() + 4096, .bytes = 4096, .iova = 0x300000, .is_read_only = true}));
    EXPECT_TRUE(device_moves(mmio, 0x300000, value, false));
    EXPECT_FALSE(device_moves(mmio, 0x300000, value, true));
    ASSERT_TRUE(pci->dma_unmap(own.data()));
    EXPECT_FALSE(device_moves(mmio, 0x200000, value, true));
    EXPECT_EQ(pci->dma_unmap(own.data()).error().code, Code::kInvalidArgument);
    shared.reset();
    EXPECT_FALSE(device_moves(mmio, 0x100000, value, true));
    EXPECT_TRUE(pci->status());
  }
}

TEST(VfioUserPci, InterruptsAreEventfds) {
  VfioUserServer server({});
  const auto pci = open(server);
  EXPECT_EQ(*pci->enable_interrupts(64), 4u);
  const Mmio mmio = *pci->map_bar(0);
  EXPECT_FALSE(*pci->wait_interrupt(2, 0));
  mmio.write64(0x18, 2);
  mmio.write32(0x20, 3);
  EXPECT_TRUE(
      *pci->wait_interrupt(2, static_cast<int>(test::patience(milliseconds(10'000)).count())));
  EXPECT_FALSE(*pci->wait_interrupt(2, 0));
  ASSERT_TRUE(pci->reset(PciReset::kFunction));
  EXPECT_EQ(server.resets(), 1u);
  EXPECT_FALSE(pci->wait_interrupt(2, 0)) << "interrupts are off after a reset";
  EXPECT_EQ(pci->reset(PciReset::kBus).error().code, Code::kUnsupported);
}

TEST(VfioUserPci, VersionsAndCapabilitiesThatCannotBe) {
  const auto code = [](VfioUserServer::Options options) {
    VfioUserServer server(std::move(options));
    const auto opened = open_vfio_user_pci(
        real_system(),
        {.address = server.address(), .reply_limit = test::patience(milliseconds(10'000))});
    return opened ? Code::kInternal : opened.error().code;
  };
  EXPECT_EQ(code({.major = 1}), Code::kUnsupported);
  EXPECT_EQ(code({.minor = 7}), Code::kUnsupported);
  EXPECT_EQ(code({.capabilities = "["}), Code::kCorrupt);
  EXPECT_EQ(code({.capabilities = "{\"capabilities\":{\"twin_socket\":{\"supported\":true}}}"}),
            Code::kCorrupt);
  EXPECT_EQ(code({.has_twin_socket = false,
                  .capabilities = "{\"capabilities\":{\"twin_socket\":{\"supported\":true,"
                                  "\"fd_index\":0}}}"}),
            Code::kCorrupt);
  for (const char* const text :
       {"{\"capabilities\":7}", "{\"capabilities\":{\"max_msg_fds\":-1}}",
        "{\"capabilities\":{\"max_data_xfer_size\":0}}", "{\"capabilities\":{\"pgsizes\":0}}",
        "{\"capabilities\":{\"twin_socket\":1}}",
        "{\"capabilities\":{\"twin_socket\":{\"supported\":1}}}", "nonsense"})
    EXPECT_EQ(parse_vfio_user_capabilities(text).error().code, Code::kCorrupt) << text;
  EXPECT_EQ(parse_vfio_user_capabilities("{}")->max_fds, 1u);
  EXPECT_EQ(parse_vfio_user_capabilities("")->max_transfer, 1u << 20);
}

TEST(VfioUserPci, AFileThatIsTooShortIsNotMapped) {
  VfioUserServer server({.is_bar_file_short = true});
  const auto pci = open(server);
  EXPECT_EQ(pci->map_bar_memory(2, false).error().code, Code::kCorrupt);
}

Status use(System& system, const std::string& address, milliseconds limit) {
  const auto pci = BM_TRY(open_vfio_user_pci(system, {.address = address, .reply_limit = limit}));
  const Mmio mmio = BM_TRY(pci->map_bar(0));
  std::array<uint32_t, 4> words{};
  mmio.read_block(0, words);
  BM_TRY(mmio.status());
  BM_TRY(pci->map_bar_memory(2, false));
  BM_TRY(pci->enable_interrupts(1));
  const auto memory = BM_TRY(pci->dma_allocate(4096, true, 0x100000));
  BM_TRY(pci->dma_map({.host = own.data(), .bytes = 4096, .iova = 0x200000}));
  uint64_t value = 1;
  const bool is_done = device_moves(mmio, 0x200000, value, true);
  BM_TRY(pci->status());
  if (!is_done) return fail(Code::kInternal, "the device did not store");
  return pci->reset(PciReset::kFunction);
}

/// How use() ends when the server sends what `options` say, and how much it sent.
std::pair<Status, uint64_t> use_with(VfioUserServer::Options options, milliseconds limit) {
  VfioUserServer server(std::move(options));
  FailingSystem system(real_system());
  Status used = use(system, server.address(), limit);
  EXPECT_EQ(system.open_files(), 0u);
  EXPECT_EQ(system.mappings(), 0u);
  return {std::move(used), server.sent()};
}

TEST(VfioUserPci, AConnectionThatEndsAtAnyByteIsAnError) {
  for (const bool has_twin : {true, false}) {
    const auto [whole, bytes] =
        use_with({.has_twin_socket = has_twin}, test::patience(milliseconds(10'000)));
    ASSERT_TRUE(whole) << whole.error().message;
    EXPECT_GT(bytes, 500u);
    // The last 40 bytes answer what a destructor asks for, and it has nobody to tell.
    for (uint64_t cut = 0; cut < bytes - 40; cut += 7) {
      const Status used = use_with({.has_twin_socket = has_twin, .faults = {.cut_after = cut}},
                                   test::patience(milliseconds(10'000)))
                              .first;
      ASSERT_FALSE(used) << cut;
      EXPECT_EQ(used.error().code, Code::kDeviceLost) << cut << ": " << used.error().message;
    }
  }
}

TEST(VfioUserPci, BytesThatAreInvertedNeverHang) {
  for (uint64_t at = 0; at < 1400; at += 3) {
    const Status used =
        use_with({.has_twin_socket = at % 2 == 0, .faults = {.flip_at = at}}, milliseconds(20))
            .first;
    EXPECT_TRUE(used || !used.error().message.empty());
  }
}

TEST(VfioUserPci, ASilentServerIsATimeout) {
  for (const uint64_t at : {0u, 100u, 400u}) {
    const Status used = use_with({.faults = {.stall_after = at}}, milliseconds(30)).first;
    ASSERT_FALSE(used);
    EXPECT_EQ(used.error().code, Code::kTimeout) << used.error().message;
  }
}

TEST(VfioUserPci, EveryCallOfTheSystemMayFail) {
  uint64_t failures = 0;
  for (uint64_t nth = 0; nth < 4000; ++nth) {
    VfioUserServer server({.has_twin_socket = nth % 2 == 0});
    FailingSystem system(real_system(), nth);
    const Status used = use(system, server.address(), test::patience(milliseconds(10'000)));
    EXPECT_EQ(system.open_files(), 0u) << nth;
    EXPECT_EQ(system.mappings(), 0u) << nth;
    if (!system.has_failed()) {
      EXPECT_TRUE(used) << used.error().message;
      break;
    }
    if (!used) ++failures;
  }
  EXPECT_GT(failures, 50u);
}

}  // namespace
}  // namespace bm
