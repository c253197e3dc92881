#include "drivers/transport/pci_remote.h"

#include <thread>

#include <gtest/gtest.h>

#include "drivers/transport/pci_config.h"
#include "tests/patience.h"
#include "tests/unit/transport/failing_system.h"
#include "tests/unit/transport/remote_pci_server.h"

namespace bm {
namespace {

using std::chrono::milliseconds;
using test::FailingSystem;
using test::FakePci;
using test::RemotePciServer;

RemotePciOptions options_of(const RemotePciServer& server) {
  return {.address = server.address(),
          .probe = RemotePciProbe{.vendor = 0x1234},
          .reply_limit = test::patience(milliseconds(10'000))};
}

/// A fake behind a server, and the function that a client sees.
struct Rig {
  explicit Rig(RemotePciServer::Options options = {}) : server(pci, options) {
    EXPECT_TRUE(set_memory_decoding(pci, true));
    Result<std::unique_ptr<PciFunction>> opened =
        open_remote_pci(real_system(), options_of(server));
    EXPECT_TRUE(opened) << opened.error().message;
    if (opened) remote = std::move(*opened);
  }
  /// What the server was asked for since the last call.
  std::vector<std::string> news() {
    const std::vector<std::string> all = server.log();
    std::vector<std::string> fresh(all.begin() + static_cast<ptrdiff_t>(seen), all.end());
    seen = all.size();
    return fresh;
  }
  FakePci pci{{.has_iommu = false}};
  RemotePciServer server;
  std::unique_ptr<PciFunction> remote;
  size_t seen = 0;
};

TEST(RemotePci, AFunctionIsFoundAndDescribed) {
  Rig rig;
  EXPECT_EQ(to_string(rig.remote->identity().address), "0000:03:00.0");
  EXPECT_EQ(rig.remote->identity().vendor, 0x1234);
  EXPECT_EQ(rig.remote->identity().device, 0x5678);
  EXPECT_EQ(rig.remote->identity().class_code, 0x038000u);
  EXPECT_EQ(rig.remote->bars()[0].size, 4u << 20) << "resized to the largest before its first use";
  EXPECT_TRUE(rig.remote->bars()[0].is_64_bit && rig.remote->bars()[0].is_prefetchable);
  EXPECT_EQ(rig.remote->bars()[1].size, 0u);
  EXPECT_EQ(rig.remote->bars()[2].size, 8u << 10);
  EXPECT_EQ(rig.remote->bars()[5].size, 4u << 10);
  EXPECT_FALSE(rig.remote->bars()[5].is_64_bit);
  EXPECT_FALSE(rig.remote->dma_limits().takes_iova);
  const Result<Mmio> missing = rig.remote->map_bar(4);
  EXPECT_EQ(missing.error().code, Code::kInvalidArgument);
  EXPECT_NE(missing.error().message.find("no resource4 file"), std::string::npos)
      << missing.error().message;
  EXPECT_TRUE(rig.remote->status());
}

TEST(RemotePci, TheSameOverTcp) {
  Rig rig({.is_tcp = true});
  ASSERT_TRUE(rig.remote);
  const Mmio mmio = *rig.remote->map_bar(5);
  mmio.write32(8, 77);
  EXPECT_EQ(mmio.read32(8), 77u);
}

// Whoever copies to and fro beside the driver's own thread gets his own answers.
TEST(RemotePci, ThreadsShareAConnection) {
  Rig rig({.is_tcp = true});
  ASSERT_TRUE(rig.remote);
  const Mmio mmio = *rig.remote->map_bar(5);
  const HostView vram = *rig.remote->map_bar_memory(0, true);
  constexpr uint64_t kValue = 0x1122334455667788;
  vram.store<uint64_t>(64, kValue);
  vram.publish();
  mmio.write32(8, 77);
  std::thread other([&] {
    for (int i = 0; i < 500; ++i) EXPECT_EQ(vram.load<uint64_t>(64), kValue);
  });
  for (int i = 0; i < 500; ++i) EXPECT_EQ(mmio.read32(8), 77u);
  other.join();
  EXPECT_TRUE(rig.remote->status());
}

TEST(RemotePci, OnlyMemoryWithADescriptorIsMemoryOfTheHost) {
  EXPECT_FALSE(Rig({.is_tcp = true}).remote->dma_limits().reaches_host);
  EXPECT_FALSE(Rig().remote->dma_limits().reaches_host) << "a server that hands none out";
  EXPECT_TRUE(Rig({.has_shared_memory = true}).remote->dma_limits().reaches_host);
}

// Models of devices may serve none: what they were asked for is what they are.
TEST(RemotePci, WithoutAConfigurationSpaceTheProbeSaysWhatItIs) {
  FakePci pci{{.has_iommu = false}};
  RemotePciServer server(pci, {});
  pci.config.fill(0);
  RemotePciOptions options = options_of(server);
  options.probe->base_class = 0x03;
  const auto remote = open_remote_pci(real_system(), options);
  ASSERT_TRUE(remote) << remote.error().message;
  EXPECT_EQ((*remote)->identity().vendor, 0x1234);
  EXPECT_EQ((*remote)->identity().class_code >> 16, 0x03u);
}

TEST(RemotePci, RegistersAreReachedOneAccessPerMessage) {
  Rig rig;
  std::vector<std::string> accesses;
  rig.pci.on_write = [&accesses](uint32_t bar, uint64_t offset, uint32_t value) {
    accesses.push_back(fmt::format("{} {:#x} {}", bar, offset, value));
  };
  const Mmio mmio = *rig.remote->map_bar(5);
  rig.news();
  mmio.write32(0x10, 1);
  const std::array<uint32_t, 3> block = {2, 3, 4};
  mmio.write_block(0x14, block);
  std::array<uint32_t, 100> read{};
  mmio.read_block(0x100, read);
  const std::vector<std::string> news = rig.news();
  ASSERT_EQ(news.size(), 104u);
  EXPECT_EQ(news[0], "mmio_write 5 0x10 4");
  EXPECT_EQ(news[1], "mmio_write 5 0x14 4");
  EXPECT_EQ(news[3], "mmio_write 5 0x1c 4");
  EXPECT_EQ(news[4], "mmio_read 5 0x100 4");
  EXPECT_EQ(news[103], "mmio_read 5 0x28c 4");
  EXPECT_EQ(accesses, (std::vector<std::string>{"5 0x10 1", "5 0x14 2", "5 0x18 3", "5 0x1c 4"}));
  mmio.write64(0x40, 0x1122334455667788);
  EXPECT_EQ(mmio.read64(0x40), 0x1122334455667788u);
  EXPECT_EQ(mmio.read16(0x42), 0x5566u);
  EXPECT_EQ(rig.news()[0], "mmio_write 5 0x40 8");
}

TEST(RemotePci, MemoryIsMovedInOneMessageAndWritesWaitForPublish) {
  Rig rig;
  const HostView vram = *rig.remote->map_bar_memory(0, true);
  rig.news();
  std::vector<std::byte> data(3 << 20);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 7 + (i >> 9));
  vram.copy_in(0x1000, data);
  vram.store<uint32_t>(0, 5);
  vram.publish();
  EXPECT_EQ(rig.pci.memory(0)[0], std::byte{5});
  EXPECT_TRUE(std::equal(data.begin(), data.end(), rig.pci.memory(0).begin() + 0x1000));
  EXPECT_EQ(rig.news(),
            (std::vector<std::string>{
                "mmio_write 0 0x1000 1048576", "mmio_write 0 0x101000 1048576",
                "mmio_write 0 0x201000 1048576", "mmio_write 0 0x0 4", "ping 0 0x0 0"}));
  std::vector<std::byte> back(data.size());
  vram.copy_out(0x1000, back);
  EXPECT_TRUE(back == data);
  EXPECT_EQ(rig.news().size(), 3u);
}

TEST(RemotePci, WritesKeepTheirOrderAmongWindows) {
  Rig rig;
  const HostView vram = *rig.remote->map_bar_memory(0, true);
  const Mmio mmio = *rig.remote->map_bar(5);
  rig.news();
  vram.store<uint64_t>(16, 1);
  vram.store<uint64_t>(24, 2);
  mmio.write32(0, 1);
  (void)mmio.read32(0);
  EXPECT_EQ(rig.news(), (std::vector<std::string>{"mmio_write 0 0x10 8", "mmio_write 0 0x18 8",
                                                  "mmio_write 5 0x0 4", "mmio_read 5 0x0 4"}));
}

TEST(RemotePci, MemoryOfTheServerIsReachedAndKept) {
  Rig rig;
  ASSERT_TRUE(set_bus_master(*rig.remote, true));
  std::unique_ptr<DmaMemory> memory = *rig.remote->dma_allocate(5000, false, std::nullopt);
  EXPECT_EQ(memory->view().size(), 8192u);
  ASSERT_EQ(memory->ranges().size(), 2u);
  memory->view().store<uint32_t>(4096, 7);
  memory->view().publish();
  std::array<std::byte, 1> byte;
  ASSERT_TRUE(rig.pci.device_read(memory->ranges()[1].address, byte));
  EXPECT_EQ(byte[0], std::byte{7});
  byte[0] = std::byte{9};
  ASSERT_TRUE(rig.pci.device_write(memory->ranges()[0].address, byte));
  EXPECT_EQ(memory->view().load<uint8_t>(0), 9);
  const std::vector<BusRange> ranges = memory->ranges();
  memory.reset();
  memory = *rig.remote->dma_allocate(8192, false, std::nullopt);
  EXPECT_EQ(memory->ranges(), ranges) << "the server frees nothing, so it is used again";
  EXPECT_EQ(memory->view().load<uint32_t>(4096), 0u) << "zeroed";
  EXPECT_EQ(memory->view().load<uint8_t>(0), 0);
  EXPECT_EQ(rig.remote->dma_allocate(4u << 20, true, std::nullopt).error().code,
            Code::kOutOfMemory);
  EXPECT_EQ(rig.remote->dma_allocate(4096, true, 0x1000).error().code, Code::kInvalidArgument);
  alignas(4096) static std::array<std::byte, 4096> own;
  EXPECT_EQ(rig.remote->dma_map({.host = own.data(), .bytes = 4096}).error().code,
            Code::kUnsupported);
  EXPECT_EQ(rig.remote->enable_interrupts(1).error().code, Code::kUnsupported);
  EXPECT_TRUE(rig.remote->status());
}

TEST(RemotePci, SharedMemoryIsMappedWhereTheServerCan) {
  Rig rig({.has_shared_memory = true});
  const std::unique_ptr<DmaMemory> memory = *rig.remote->dma_allocate(8192, true, std::nullopt);
  ASSERT_NE(memory->view().host(), nullptr);
  EXPECT_EQ(memory->ranges(), (std::vector<BusRange>{{0x1000'0000, 8192}}));
  EXPECT_EQ(memory->view().load<uint64_t>(0), 0u) << "its own addresses lay there";
  EXPECT_EQ(memory->view().load<uint64_t>(8), 0u);
}

TEST(RemotePci, ResetReachesTheFunction) {
  Rig rig;
  ASSERT_TRUE(set_bus_master(*rig.remote, true));
  ASSERT_TRUE(rig.remote->reset(PciReset::kFunction));
  EXPECT_EQ(*rig.remote->read_config(4, 2), 0u);
  EXPECT_EQ(rig.remote->reset(PciReset::kBus).error().code, Code::kUnsupported);
}

TEST(RemotePci, FunctionsThatAreNotThere) {
  FakePci pci;
  RemotePciServer server(pci, {});
  RemotePciOptions options = options_of(server);
  options.probe->vendor = 0x4321;
  EXPECT_EQ(open_remote_pci(real_system(), options).error().code, Code::kNotFound);
  EXPECT_TRUE(probe_remote_pci(real_system(), options)->empty());
  options.probe->vendor = 0x1234;
  EXPECT_EQ((*probe_remote_pci(real_system(), options))[0].bus, "0000:03:00.0");
  options.address = "/nowhere/at/all";
  EXPECT_EQ(open_remote_pci(real_system(), options).error().code, Code::kNotFound);
}

TEST(RemotePci, AddressesThatAreNone) {
  for (const char* const text :
       {"", "relative/path", "localhost", "localhost:", "localhost:0", "localhost:70000",
        "localhost:12x", ":1", "10.0.0.1:6667", "[2001:db8::1]:6667", "name.example:6667"}) {
    const auto opened = open_remote_pci(real_system(), {.address = text});
    ASSERT_FALSE(opened) << text;
    EXPECT_EQ(opened.error().code, Code::kInvalidArgument) << text << opened.error().message;
  }
}

/// Everything a client does, briefly.
Status use(System& system, const RemotePciOptions& options) {
  const std::unique_ptr<PciFunction> pci = BM_TRY(open_remote_pci(system, options));
  const Mmio mmio = BM_TRY(pci->map_bar(5));
  mmio.write32(0, 1);
  std::array<uint32_t, 4> words{};
  mmio.read_block(0, words);
  BM_TRY(mmio.status());
  if (words[0] != 1) return fail(Code::kInternal, "register 0 holds {:#x}", words[0]);
  const HostView vram = BM_TRY(pci->map_bar_memory(0, true));
  vram.store<uint64_t>(0, 3);
  vram.publish();
  BM_TRY(vram.status());
  const std::unique_ptr<DmaMemory> memory = BM_TRY(pci->dma_allocate(4096, true, std::nullopt));
  memory->view().store<uint32_t>(0, 1);
  const uint32_t word = memory->view().load<uint32_t>(0);
  BM_TRY(pci->status());
  if (word != 1) return fail(Code::kInternal, "memory holds {:#x}", word);
  return pci->reset(PciReset::kFunction);
}

/// How use() ends when the server's `cut`-th byte is its last, and what the server had sent.
std::pair<Status, uint64_t> use_until(uint64_t cut, bool has_shared_memory) {
  FakePci pci({.has_iommu = false});
  EXPECT_TRUE(set_memory_decoding(pci, true));
  RemotePciServer server(pci,
                         {.has_shared_memory = has_shared_memory, .faults = {.cut_after = cut}});
  FailingSystem system(real_system());
  Status used = use(system, options_of(server));
  EXPECT_EQ(system.open_files(), 0u);
  EXPECT_EQ(system.mappings(), 0u);
  return {std::move(used), server.sent()};
}

TEST(RemotePci, AConnectionThatEndsAtAnyByteIsAnError) {
  for (const bool has_shared_memory : {false, true}) {
    const auto [whole, bytes] = use_until(~uint64_t{0}, has_shared_memory);
    ASSERT_TRUE(whole) << whole.error().message;
    EXPECT_GT(bytes, 500u);
    for (uint64_t cut = 0; cut < bytes; cut += 5) {
      const Status used = use_until(cut, has_shared_memory).first;
      ASSERT_FALSE(used) << cut;
      EXPECT_EQ(used.error().code, Code::kDeviceLost) << cut << ": " << used.error().message;
    }
  }
}

TEST(RemotePci, BytesThatAreInvertedNeverHang) {
  for (uint64_t at = 0; at < 900; ++at) {
    FakePci pci({.has_iommu = false});
    ASSERT_TRUE(set_memory_decoding(pci, true));
    RemotePciServer server(pci, {.has_shared_memory = at % 2 == 0, .faults = {.flip_at = at}});
    RemotePciOptions options = options_of(server);
    // What announces more than it sends is waited for.
    options.reply_limit = options.reset_limit = milliseconds(20);
    FailingSystem system(real_system());
    const Status used = use(system, options);
    EXPECT_TRUE(used || !used.error().message.empty());
    EXPECT_EQ(system.open_files(), 0u);
    EXPECT_EQ(system.mappings(), 0u);
  }
}

TEST(RemotePci, ASilentServerIsATimeout) {
  for (const uint64_t at : {0u, 40u, 400u}) {
    FakePci pci({.has_iommu = false});
    RemotePciServer server(pci, {.faults = {.stall_after = at}});
    RemotePciOptions options = options_of(server);
    options.reply_limit = milliseconds(30);
    const Status used = use(real_system(), options);
    ASSERT_FALSE(used);
    EXPECT_EQ(used.error().code, Code::kTimeout) << used.error().message;
  }
}

TEST(RemotePci, TheFirstFailureStaysAndReadsGiveOnes) {
  auto pci = std::make_unique<FakePci>(test::FakePciOptions{.has_iommu = false});
  auto server = std::make_unique<RemotePciServer>(*pci, RemotePciServer::Options{});
  const std::unique_ptr<PciFunction> remote = *open_remote_pci(real_system(), options_of(*server));
  const Mmio mmio = *remote->map_bar(5);
  server.reset();
  EXPECT_EQ(mmio.read32(0), ~0u);
  mmio.write32(0, 1);
  std::array<uint32_t, 2> words{};
  mmio.read_block(0, words);
  EXPECT_EQ(words[1], ~0u);
  EXPECT_EQ(mmio.status().error().code, Code::kDeviceLost);
  EXPECT_EQ(remote->status().error().message, mmio.status().error().message);
  EXPECT_EQ(remote->read_config(0, 4).error().code, Code::kDeviceLost);
  EXPECT_EQ(remote->dma_allocate(4096, false, std::nullopt).error().code, Code::kDeviceLost);
  EXPECT_EQ(remote->reset(PciReset::kFunction).error().code, Code::kDeviceLost);
  EXPECT_FALSE(remote->map_bar(5));
}

TEST(RemotePci, EveryCallOfTheSystemMayFail) {
  uint64_t failures = 0;
  for (uint64_t nth = 0;; ++nth) {
    FakePci pci({.has_iommu = false});
    ASSERT_TRUE(set_memory_decoding(pci, true));
    RemotePciServer server(pci, {.has_shared_memory = true});
    FailingSystem system(real_system(), nth);
    const Status used = use(system, options_of(server));
    EXPECT_EQ(system.open_files(), 0u);
    EXPECT_EQ(system.mappings(), 0u);
    if (!system.has_failed()) {
      EXPECT_TRUE(used);
      break;
    }
    // Memory that cannot be mapped is reached through the socket.
    if (!used) ++failures;
  }
  EXPECT_GT(failures, 50u);
}

}  // namespace
}  // namespace bm
