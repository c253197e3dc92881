// `bellmetal gpu …` on NVIDIA's cards: modelled ones behind a socket of this process.

#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "drivers/nv/rm_gsp/booted_card.h"
#include "drivers/nv/rm_gsp/gpu.h"
#include "runtime/base/env.h"
#include "tests/unit/bringup/bench.h"
#include "tests/unit/nv_gsp/card_rig.h"

namespace bm::cli {
namespace {

using test::Outcome;

/// Serves the card of a rig, one client after another, until it ends.
class NvBench {
 public:
  explicit NvBench(const std::string& chip) : rig(chip) {
    std::string name = "/tmp/bringup-nv-XXXXXX";
    folder_ = mkdtemp(name.data());
    rig.card->place_bars();
    uint16_t port = 0;
    listener_ = sim::listen_at(socket_path(), &port);
    EXPECT_GE(listener_, 0) << socket_path();
    server_ = std::thread([this] {
      for (;;) {
        const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        if (client < 0) return;
        sim::RemoteServer(*rig.card).serve(client);
        close(client);
      }
    });
  }
  ~NvBench() {
    shutdown(listener_, SHUT_RDWR);
    server_.join();
    close(listener_);
    std::filesystem::remove_all(folder_);
  }
  NvBench(const NvBench&) = delete;
  NvBench& operator=(const NvBench&) = delete;

  Outcome gpu(std::vector<std::string> words) const {
    words.insert(words.begin(), "gpu");
    for (const std::string& word : {std::string("--pci"), "remote:" + socket_path(),
                                    std::string("--firmware-dir"), rig.files.search().folders[0]})
      words.push_back(word);
    return test::run_command(words);
  }
  std::string cause() const { return gpu({"autopsy", "--json"}).json()["cause"]; }

  nv::gsp::test::CardRig rig;

 private:
  std::string socket_path() const { return folder_ + "/card.sock"; }
  std::string folder_;
  int listener_ = -1;
  std::thread server_;
};

class NvidiaBench : public testing::TestWithParam<const char*> {};

TEST_P(NvidiaBench, IsDiscoveredReadAndBootedWithoutAComplaintOfTheCard) {
  const NvBench bench(GetParam());
  EXPECT_EQ(bench.cause(), "not-booted");
  const auto found = bench.gpu({"discover", "--json"}).json();
  EXPECT_EQ(found["chip"], GetParam()) << found;
  EXPECT_EQ(found["rom_done"], true) << found;
  EXPECT_EQ(found["video_memory_bytes"], uint64_t{4} << 30);
  EXPECT_EQ(bench.gpu({"firmware", "check"}).exit, kOk);
  const auto registers = bench.gpu({"regs", "read", "*", "--json"}).json()["registers"];
  EXPECT_GT(registers.size(), 20u) << registers;
  const auto by_name = bench.gpu({"regs", "read", "pmc_boot_42", "--json"}).json()["registers"][0];
  const auto by_place = bench.gpu({"regs", "read", "0xa00", "--json"}).json()["registers"][0];
  EXPECT_EQ(by_name["value"], by_place["value"]);
  EXPECT_NE(by_name["fields"]["ARCHITECTURE"], 0);
  const Outcome booted = bench.gpu({"boot", "--stats", "--json"});
  ASSERT_EQ(booted.exit, kOk) << booted.out << booted.err;
  EXPECT_EQ(booted.json()["chip"], GetParam());
  EXPECT_EQ(booted.json()["stages"].size(), 12u);
  EXPECT_EQ(bench.cause(), "not-booted");
  EXPECT_EQ(bench.rig.violations(), "");
}

TEST_P(NvidiaBench, AutopsyOfACardInUseWalksItsPageTables) {
  NvBench bench(GetParam());
  auto card = bench.rig.open();
  ASSERT_TRUE(card) << card.error().message;
  const auto gpu = nv::gsp::GspGpu::open(nv::gsp::make_running(std::move(*card)));
  ASSERT_TRUE(gpu) << gpu.error().message;
  // Seen from outside while it is open, through windows that the driver uses, too.
  const auto small = (*gpu)->allocate({.size = 4096, .domain = nv::MemoryDomain::kVideo});
  const auto large = (*gpu)->allocate({.size = 8 << 20, .domain = nv::MemoryDomain::kVideo});
  const auto host = (*gpu)->allocate({.size = 64 << 10, .domain = nv::MemoryDomain::kSystem});
  ASSERT_TRUE(small && large && host);
  const auto seen = bench
                        .gpu({"autopsy", "--json", "--address", std::to_string((*small)->va),
                              "--address", std::to_string((*large)->va + 0x345000), "--address",
                              std::to_string((*host)->va), "--address", "0x123456000"})
                        .json();
  EXPECT_EQ(seen["cause"], "gsp-running") << seen;
  ASSERT_EQ(seen["walks"].size(), 4u);
  const auto wanted = [&](uint64_t va) { return (*gpu)->space().tables().find(va)->address; };
  EXPECT_EQ(seen["walks"][0]["target"], wanted((*small)->va)) << seen["walks"][0];
  EXPECT_EQ(seen["walks"][0]["page_bytes"], 4096);
  EXPECT_EQ(seen["walks"][1]["target"], wanted((*large)->va) + 0x345000) << seen["walks"][1];
  EXPECT_EQ(seen["walks"][1]["page_bytes"], 2 << 20);
  EXPECT_EQ(seen["walks"][2]["in_host_memory"], true) << seen["walks"][2];
  EXPECT_EQ(seen["walks"][3]["mapped"], false);
  const Outcome text = bench.gpu({"autopsy", "--address", "0x123456000"});
  for (const char* const words : {"cause: gsp-running", "0x123456000: not mapped", "PMC_BOOT_42"})
    EXPECT_NE(text.out.find(words), std::string::npos) << words << "\n" << text.out;
}

INSTANTIATE_TEST_SUITE_P(Chips, NvidiaBench, testing::Values("tu102", "ga102", "gb202"),
                         [](const auto& chip) { return std::string(chip.param); });

TEST(NvidiaAutopsy, NamesWhatAKilledStartLeaves) {
  NvBench bench("gh100");
  bench.rig.card->write(0, 0x8f2c00, 4, 0x40);  // the FSP's queue: a head, and nobody reads on
  EXPECT_EQ(bench.cause(), "fsp-message");
  const Outcome next = bench.gpu({"boot", "--json"});
  EXPECT_EQ(next.exit, kOk) << next.out << next.err;
}

TEST(NvidiaAutopsy, BeginsWithCauseAndRemedyInOneLine) {
  const NvBench bench("ga102");
  const Outcome seen = bench.gpu({"autopsy"});
  const std::string line = seen.out.substr(0, seen.out.find('\n'));
  EXPECT_TRUE(line.starts_with("cause: not-booted: ")) << line;
  EXPECT_NE(line.find("; remedy: "), std::string::npos) << line;
}

TEST(NvidiaBoot, WhatIsForAmdsCardsIsRefusedByNameAndTheirLimitIsNotItsOwn) {
  const NvBench bench("gh100");
  {
    const ScopedSetting setting("BM_AMD_POWER_LIMIT", "150");
    const Outcome booted = bench.gpu({"boot"});
    EXPECT_EQ(booted.exit, kOk) << booted.err;
  }
  const std::vector<std::vector<std::string>> options = {
      {"--kernel"}, {"--reset"}, {"--power-limit", "150"}};
  for (const std::vector<std::string>& words : options) {
    std::vector<std::string> all = {"boot"};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome refused = bench.gpu(all);
    EXPECT_EQ(refused.exit, kUnavailable);
    EXPECT_NE(refused.err.find(words[0] + " is for AMD cards"), std::string::npos) << refused.err;
  }
  EXPECT_NE(bench.gpu({"forget"}).err.find("hot restart is for AMD cards"), std::string::npos);
  const Outcome top = bench.gpu({"top", "--once"});
  EXPECT_NE(top.out.find("resource manager"), std::string::npos) << top.out;
}

TEST(NvidiaAutopsy, ACardThatIsGoneIsSaidToBe) {
  NvBench bench("ga102");
  bench.rig.card->write_config(4, 2, 0);
  bench.rig.card->unplug();
  const Outcome seen = bench.gpu({"autopsy", "--json"});
  EXPECT_TRUE(seen.exit != kOk || seen.json()["cause"] == "card-gone") << seen.out << seen.err;
}

TEST(NvidiaRegisters, AreWrittenWithYesAndDecodedWithoutACard) {
  NvBench bench("ga102");
  EXPECT_EQ(bench.gpu({"regs", "write", "PBUS_BAR0_WINDOW", "0x12"}).exit, kUsage);
  const Outcome written = bench.gpu({"regs", "write", "PBUS_BAR0_WINDOW.BASE", "0x12", "--yes"});
  EXPECT_EQ(written.exit, kOk) << written.out << written.err;
  EXPECT_NE(written.out.find("PBUS_BAR0_WINDOW = 0x00000012"), std::string::npos) << written.out;
  const Outcome decoded = test::run_command(
      {"gpu", "regs", "decode", "PMC_BOOT_42", "0x172a1000", "--chip", "ga102", "--json"});
  EXPECT_EQ(decoded.json()["registers"][0]["fields"]["ARCHITECTURE"], 0x17) << decoded.out;
  EXPECT_EQ(bench.gpu({"regs", "read", "NO_SUCH_REGISTER"}).exit, kUsage);
  EXPECT_EQ(bench.gpu({"regs", "read", "0x3"}).exit, kUsage);
}

}  // namespace
}  // namespace bm::cli
