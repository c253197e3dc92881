// The modelled card behind sockets: boots through remote PCI and through vfio-user, by the
// transports that users name in BM_PCI.

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "drivers/amd/device.h"
#include "drivers/amd/pm4/packets.h"
#include "drivers/transport/pci_open.h"
#include "tests/sim/pci/remote.h"
#include "tests/sim/pci/vfio_user.h"
#include "tests/unit/amd_am/rig.h"

namespace bm::amd::am {
namespace {

using test::CardRig;

/// A card that serves whoever comes, one after another, until the end.
template <class Server>
class Served {
 public:
  Served(CardRig& rig, const char* prefix) : path_(rig.folder.path() + "/card.sock") {
    uint16_t port = 0;
    listener_ = sim::listen_at(path_, &port);
    selector = std::string(prefix) + ":" + path_;
    // As firmware leaves it.
    rig.card->config().set_bar_address(sim::amd::Chip::kMemoryBar, 0x60'0000'0000);
    rig.card->config().set_bar_address(sim::amd::Chip::kDoorbellBar, 0x70'0000'0000);
    rig.card->config().set_bar_address(sim::amd::Chip::kRegisterBar, 0xf000'0000);
    rig.card->write_config(4, 2, 2);
    thread_ = std::thread([this, card = rig.card] {
      for (;;) {
        const int client = accept(listener_, nullptr, nullptr);
        if (client < 0) return;
        Server server(*card);
        server.serve(client);
        close(client);
      }
    });
  }
  ~Served() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  Result<std::unique_ptr<AmGpu>> open(CardRig& rig) {
    const PciSelector named = BM_TRY(parse_pci_selector(selector));
    auto function = BM_TRY(open_pci(real_system(), named));
    return AmGpu::open(
        std::move(function),
        {.firmware = rig.folder.search(), .clock = &rig.clock, .experimental = rig.experimental});
  }

  std::string selector;

 private:
  std::string path_;
  int listener_ = -1;
  std::thread thread_;
};

template <class Server>
void boot_twice(const char* chip, const char* prefix) {
  CardRig rig({.chip = chip});
  {
    Served<Server> served(rig, prefix);
    for (const bool is_warm : {false, true}) {
      auto gpu = served.open(rig);
      ASSERT_TRUE(gpu) << gpu.error().message << "\n" << rig.violations();
      EXPECT_EQ((*gpu)->was_warm(), is_warm);
      EXPECT_EQ((*gpu)->facts().chip->name, chip);
      const auto device = make_device(std::move(*gpu));
      ASSERT_TRUE(device) << device.error().message;
      // The card itself zeroes video memory.
      const auto memory = (*device)->allocate({.size = 3 << 20, .zero = true});
      ASSERT_TRUE(memory) << memory.error().message;
    }
  }
  EXPECT_EQ(rig.violations(), "");
  const auto tables = rig.card->host_table_accesses();
  EXPECT_GT(tables.writes, 0u);
  EXPECT_LE(tables.writes, 500u);
  EXPECT_EQ(tables.reads, 0u);
}

TEST(AmSockets, RemotePci) { boot_twice<sim::RemoteServer>("gfx1201", "remote"); }
TEST(AmSockets, RemotePciOfAnEarlierGeneration) {
  boot_twice<sim::RemoteServer>("gfx1100", "remote");
}
TEST(AmSockets, RemotePciOfChiplets) { boot_twice<sim::RemoteServer>("gfx942", "remote"); }
TEST(AmSockets, VfioUser) { boot_twice<sim::VfioUserServer>("gfx1201", "vfio-user"); }
TEST(AmSockets, VfioUserOfAnEarlierGeneration) {
  boot_twice<sim::VfioUserServer>("gfx1102", "vfio-user");
}
TEST(AmSockets, VfioUserOfChiplets) { boot_twice<sim::VfioUserServer>("gfx942", "vfio-user"); }

/// A waiter sleeps on the transport's interrupt, and the end of a packet wakes it.
void wakes_a_sleeper(AmGpu& gpu, uint32_t& sleeps) {
  constexpr uint64_t kDone = 2048;
  const auto ring = gpu.allocate({.size = 4096, .domain = MemoryDomain::kSystemUncached});
  ASSERT_TRUE(ring) << ring.error().message;
  ring.value()->view.fill(0, 4096, std::byte{0});
  std::vector<uint32_t> words;
  pm4::Writer writer(words, gpu.facts().chip->caches);
  writer.put(pm4::ReleaseMem{.caches = pm4::cache_actions(gpu.facts().chip->caches).release,
                             .interrupts = true,
                             .address = ring.value()->va + kDone,
                             .value = 1,
                             // Of context 0 gfx9 tells nobody.
                             .context = 1});
  ring.value()->view.copy_in(0, words);
  const auto queue = gpu.create_queue({.type = QueueType::kPm4, .ring = ring->get()});
  ASSERT_TRUE(queue) << queue.error().message;
  // What the boot has raised is not what is waited for.
  while (*gpu.wait_event(0)) {}
  (*queue)->write_pointer.store_release<uint64_t>(0, words.size());
  (*queue)->doorbell.ring(words.size());
  // Bounded sleeps one after another: an interrupt that never comes ends them, too.
  constexpr uint32_t kMost = 2000;
  for (sleeps = 0; sleeps < kMost; ++sleeps) {
    const auto woken = gpu.wait_event(1000);
    ASSERT_TRUE(woken) << woken.error().message;
    if (*woken) break;
  }
  EXPECT_LT(sleeps, kMost) << "no interrupt came";
  EXPECT_EQ(ring.value()->view.load_acquire<uint64_t>(kDone), 1u);
}

class AmInterrupts : public ::testing::TestWithParam<const char*> {};

TEST_P(AmInterrupts, TheEndOfAPacketWakesWhoWaits) {
  CardRig rig({.chip = GetParam()});
  for (const bool is_warm : {false, true}) {
    const auto gpu = rig.open();
    ASSERT_TRUE(gpu) << gpu.error().message;
    EXPECT_EQ((*gpu)->was_warm(), is_warm);
    uint32_t sleeps = 0;
    wakes_a_sleeper(**gpu, sleeps);
  }
  EXPECT_EQ(rig.violations(), "");
}

TEST_P(AmInterrupts, OverVfioUserByADescriptor) {
  CardRig rig({.chip = GetParam()});
  Served<sim::VfioUserServer> served(rig, "vfio-user");
  const auto gpu = served.open(rig);
  ASSERT_TRUE(gpu) << gpu.error().message;
  uint32_t sleeps = 0;
  wakes_a_sleeper(**gpu, sleeps);
}

INSTANTIATE_TEST_SUITE_P(Chips, AmInterrupts,
                         ::testing::Values("gfx942", "gfx1100", "gfx1101", "gfx1201"),
                         [](const auto& chip) { return std::string(chip.param); });

// The protocol has no reset of the bus, and the boot loader goes on where it was left.
TEST(AmSockets, ABootLoaderThatWasLeftHalfWayStartsAnew) {
  CardRig rig({.chip = "gfx1200"});
  const auto stopped = [&] {
    // In the middle of the PSP's system, wherever that is.
    for (uint64_t access = 5000; access < 6000; access += 5) {
      rig.card->options().fault = sim::amd::BusFault::kUnplug;
      rig.card->options().fault_access = rig.card->accesses() + access;
      const auto gpu = rig.open();
      rig.card->options().fault = sim::amd::BusFault::kNone;
      rig.card->plug_in();
      if (gpu) return false;
      if (gpu.error().message.find("stage 'PSP system'") != std::string::npos) return true;
    }
    return false;
  }();
  ASSERT_TRUE(stopped);
  Served<sim::VfioUserServer> served(rig, "vfio-user");
  const auto gpu = served.open(rig);
  EXPECT_TRUE(gpu) << gpu.error().message;
}

// The model's engines want the memory of its client by descriptor; callers copy instead.
TEST(AmSockets, MemoryOfThisProcessIsUnsupportedNotAFailure) {
  CardRig rig;
  Served<sim::VfioUserServer> served(rig, "vfio-user");
  const auto gpu = served.open(rig);
  ASSERT_TRUE(gpu) << gpu.error().message;
  alignas(4096) static std::array<std::byte, 8192> mine{};
  const auto memory = (*gpu)->allocate({.size = mine.size(), .host = mine.data()});
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, Code::kUnsupported) << memory.error().message;
  EXPECT_TRUE((*gpu)->allocate({.size = mine.size(), .domain = MemoryDomain::kSystem}));
}

// A client that the server does not know what to do with is told so, and the next one is served.
TEST(AmSockets, AnotherProtocolIsAnErrorWithTheFunctionsName) {
  CardRig rig;
  Served<sim::VfioUserServer> served(rig, "remote");
  const auto gpu = served.open(rig);
  ASSERT_FALSE(gpu);
  EXPECT_NE(gpu.error().message.find("card.sock"), std::string::npos) << gpu.error().message;
  served.selector.replace(0, 6, "vfio-user");
  const auto right = served.open(rig);
  EXPECT_TRUE(right) << right.error().message;
}

}  // namespace
}  // namespace bm::amd::am
