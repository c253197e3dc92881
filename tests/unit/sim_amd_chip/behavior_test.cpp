// What the modelled card does besides refusing: faults told through the interrupt ring, resets,
// what goes wrong when it is planted, and the socket.

#include <sys/socket.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/patience.h"
#include "tests/sim/pci/remote.h"
#include "tests/unit/sim_amd_chip/boot.h"

namespace bm::test {
namespace {

using namespace bm::sim::amd;

constexpr uint64_t kMemory = uint64_t{1} << 30;
constexpr std::array<uint32_t, 1> kNop = {0xffff1000};

ChipOptions card(const char* chip = "gfx1201") { return {.chip = chip, .vram_bytes = kMemory}; }

std::array<uint32_t, 5> write_to(uint64_t va, uint32_t value) {
  return {0xc0033700, 0x00100500, static_cast<uint32_t>(va), static_cast<uint32_t>(va >> 32),
          value};
}

uint64_t offset_of(uint64_t va) { return Bench::kData + (va - Bench::kVaBase); }

bool wait_for_interrupts(Bench& bench, uint64_t count) {
  const auto deadline = std::chrono::steady_clock::now() + patience(std::chrono::seconds(10));
  while (bench.chip().interrupts().posted() < count && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  return bench.chip().interrupts().posted() >= count;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += line + "\n";
  return out;
}

// Faults and interrupts.

TEST(ChipFaults, AWriteToNowhereKillsTheQueueAndIsTold) {
  Bench bench(card());
  bench.boot();
  ASSERT_TRUE(bench.function().enable_interrupts(1));
  bench.submit(write_to(Bench::kVaBase + 0x100000, 1));
  ASSERT_TRUE(wait_for_interrupts(bench, 1));
  EXPECT_TRUE(*bench.function().wait_interrupt(0, 10'000));
  // Client, source; page number in the first two words of its data.
  EXPECT_EQ(bench.load(Bench::kIhRing) & 0xffff, 0x000au);
  EXPECT_EQ(bench.load(Bench::kIhRing + 16),
            static_cast<uint32_t>((Bench::kVaBase + 0x100000) >> 12));
  EXPECT_EQ(bench.load(Bench::kIhRing + 20), static_cast<uint32_t>(Bench::kVaBase >> 44));
  EXPECT_EQ(bench.read(Ip::kOsssys, "IH_RB_WPTR"), 32u);
  EXPECT_NE(bench.read(Ip::kGc, "GCVM_L2_PROTECTION_FAULT_STATUS_LO32") & 1u << 18, 0u);
  EXPECT_EQ(bench.chip().deaths().size(), 1u);
  EXPECT_EQ(joined(bench.chip().violations()), "");
}

TEST(ChipFaults, APacketThatThereIsNotIsTold) {
  Bench bench(card("gfx1100"));
  bench.boot();
  bench.write(Ip::kGc, "CP_ME1_PIPE0_INT_CNTL",
              bench.field(Ip::kGc, "CP_ME1_PIPE0_INT_CNTL", "OPCODE_ERROR_INT_ENABLE", 1));
  bench.submit(std::array<uint32_t, 2>{0xc0009900, 0});
  ASSERT_TRUE(wait_for_interrupts(bench, 1));
  EXPECT_EQ(bench.load(Bench::kIhRing) & 0xffff, 183u << 8 | 0x14);
}

TEST(ChipFaults, EndOfPipeInterruptsNameTheirQueue) {
  Bench bench(card("gfx1100"));
  bench.boot();
  const uint64_t va = Bench::kScratchVa;
  // RELEASE_MEM: cache flush event, 32 bits, interrupt after the write; context 5.
  const auto release = [](uint32_t value) {
    return std::array<uint32_t, 8>{0xc0064900,
                                   0x514,
                                   1 << 29 | 2 << 24,
                                   static_cast<uint32_t>(va),
                                   static_cast<uint32_t>(va >> 32),
                                   value,
                                   0,
                                   5};
  };
  // Not before the pipe's register says so.
  bench.submit(release(76));
  ASSERT_TRUE(bench.wait_for(offset_of(va), 76));
  bench.write(Ip::kGc, "CP_ME1_PIPE0_INT_CNTL",
              bench.field(Ip::kGc, "CP_ME1_PIPE0_INT_CNTL", "TIME_STAMP_INT_ENABLE", 1));
  EXPECT_EQ(bench.chip().interrupts().posted(), 0u);
  bench.submit(release(77));
  ASSERT_TRUE(wait_for_interrupts(bench, 1)) << joined(bench.chip().deaths());
  EXPECT_EQ(bench.load(Bench::kIhRing) & 0xffffff, 4u << 16 | 181u << 8 | 0x14);
  EXPECT_EQ(bench.load(Bench::kIhRing + 16), 5u);
}

TEST(ChipFaults, CopyEnginesInterruptWhereTheyMay) {
  Bench bench(card());
  bench.boot();
  bench.submit_copy(std::array<uint32_t, 2>{6, 9});
  ASSERT_TRUE(wait_for_interrupts(bench, 1));
  EXPECT_EQ(bench.load(Bench::kIhRing) & 0xffff, 49u << 8 | 0x0a);
  bench.write(Ip::kGc, "SDMA0_CNTL", 0);
  const uint64_t where = offset_of(Bench::kScratchVa);
  bench.submit_copy(std::array<uint32_t, 6>{6, 9, 5 | 3 << 16,
                                            static_cast<uint32_t>(Bench::kScratchVa),
                                            static_cast<uint32_t>(Bench::kScratchVa >> 32), 3});
  ASSERT_TRUE(bench.wait_for(where, 3));
  EXPECT_EQ(bench.chip().interrupts().posted(), 1u);
}

TEST(ChipFaults, AFullInterruptRingTellsSo) {
  Bench bench(card());
  bench.boot();
  // 16 KiB: 512 entries, of which one is always free.
  for (int i = 0; i < 512; ++i) bench.chip().interrupts().post({10, 49, 0, 0, 0, {}});
  EXPECT_EQ(bench.read(Ip::kOsssys, "IH_RB_WPTR") & 1, 1u);
  const uint32_t clear = bench.field(Ip::kOsssys, "IH_RB_CNTL", "WPTR_OVERFLOW_CLEAR", 1);
  bench.write(Ip::kOsssys, "IH_RB_CNTL", bench.read(Ip::kOsssys, "IH_RB_CNTL") | clear);
  EXPECT_EQ(bench.read(Ip::kOsssys, "IH_RB_WPTR") & 1, 0u);
}

TEST(ChipFaults, InterruptsNeedMsiAndABusMaster) {
  Bench bench(card());
  bench.boot();
  bench.chip().interrupts().post({10, 49, 0, 0, 0, {}});
  EXPECT_FALSE(*bench.function().wait_interrupt(0, 0));
  ASSERT_TRUE(bench.function().enable_interrupts(1));
  bench.chip().interrupts().post({10, 49, 0, 0, 0, {}});
  EXPECT_TRUE(*bench.function().wait_interrupt(0, 0));
}

// Resets.

TEST(ChipResets, Mode1LosesEverythingButTheConfiguration) {
  Bench bench(card());
  bench.boot();
  bench.store64(0x5000, 7);
  bench.flush_hdp();
  bench.write(Ip::kGc, "SCRATCH_REG7", 0x1234);
  const uint32_t base = bench.chip().row().ip(Ip::kMp1).bases[0];
  bench.write_at(base + 0x276, 0);
  bench.write_at(base + 0x28b, 2);
  // It is away for a while, then it answers.
  EXPECT_EQ(bench.read_at(0xde3), UINT32_MAX);
  for (int i = 0; i < 10'000 && bench.read_at(0xde3) == UINT32_MAX; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(bench.read_at(0xde3), 1024u);
  EXPECT_EQ(bench.load(0x5000), Vram::kPoison);
  EXPECT_EQ(bench.load(kMemory - (64 << 10)), 0x28211407u);
  EXPECT_EQ(bench.read(Ip::kGc, "SCRATCH_REG7"), 0u);
  EXPECT_EQ(bench.read(Ip::kMp0, "MPASP_SMN_C2PMSG_81"), 0u);
  EXPECT_EQ(bench.chip().active_queues(), 0u);
  EXPECT_EQ(bench.chip().bar_bytes(0), kMemory);
  EXPECT_EQ(joined(bench.chip().violations()), "");
}

TEST(ChipResets, FunctionLevelResetLosesTheConfigurationToo) {
  Bench bench(card());
  bench.boot();
  ASSERT_TRUE(bench.function().reset(PciReset::kFunction));
  EXPECT_EQ(bench.chip().active_queues(), 0u);
  EXPECT_EQ(*bench.function().read_config(4, 2) & 6, 0u);
  EXPECT_EQ(bench.chip().bar_bytes(0), uint64_t{256} << 20);
}

TEST(ChipResets, ADequeuedQueueRunsNoMore) {
  Bench bench(card());
  bench.boot();
  bench.write(Ip::kGc, "GRBM_GFX_CNTL", bench.field(Ip::kGc, "GRBM_GFX_CNTL", "MEID", 1));
  EXPECT_EQ(bench.read(Ip::kGc, "CP_HQD_ACTIVE"), 1u);
  bench.write(Ip::kGc, "CP_HQD_DEQUEUE_REQUEST", 1);
  EXPECT_EQ(bench.read(Ip::kGc, "CP_HQD_ACTIVE"), 0u);
  bench.write(Ip::kGc, "GRBM_GFX_CNTL", 0);
  bench.submit(kNop);
  EXPECT_NE(joined(bench.chip().violations()).find("that no queue has"), std::string::npos);
}

TEST(ChipResets, ASoftResetTakesTheQueuesOfItsEngine) {
  Bench bench(card("gfx1100"));
  bench.boot();
  EXPECT_EQ(bench.chip().active_queues(), 2u);
  bench.write(Ip::kGc, "GRBM_SOFT_RESET",
              bench.field(Ip::kGc, "GRBM_SOFT_RESET", "SOFT_RESET_SDMA0", 1));
  EXPECT_EQ(bench.chip().active_queues(), 1u);
  bench.write(Ip::kGc, "GRBM_SOFT_RESET",
              bench.field(Ip::kGc, "GRBM_SOFT_RESET", "SOFT_RESET_CPC", 1));
  EXPECT_EQ(bench.chip().active_queues(), 0u);
}

TEST(ChipResets, ACardThatAnotherDriverLeftHasItsSecureOs) {
  ChipOptions options = card();
  options.start = ChipOptions::Start::kDriverWasHere;
  Bench bench(options);
  EXPECT_NE(bench.read(Ip::kMp0, "MPASP_SMN_C2PMSG_81"), 0u);
  EXPECT_NE(bench.read(Ip::kMp0, "MPASP_SMN_C2PMSG_71"), 0u);
  EXPECT_EQ(bench.send_message(1, 4), 1u);
}

// What is planted.

TEST(ChipPlants, TheNthAccessGivesOnes) {
  ChipOptions options = card();
  Bench counted(options);
  const uint64_t before = counted.chip().accesses();
  ASSERT_TRUE(plant_fault("all-ones," + std::to_string(before + 2), options));
  Bench bench(options);
  EXPECT_EQ(bench.read_at(0xde3), 1024u);
  EXPECT_EQ(bench.read_at(0xde3), UINT32_MAX);
  EXPECT_EQ(bench.read_at(0xde3), 1024u);
}

TEST(ChipPlants, TheNthAccessGivesAWrongAnswer) {
  ChipOptions options = card();
  const uint64_t before = Bench(options).chip().accesses();
  ASSERT_TRUE(plant_fault("wrong-answer," + std::to_string(before + 1), options));
  Bench bench(options);
  EXPECT_EQ(bench.read_at(0xde3), ~1024u);
  EXPECT_EQ(bench.read_at(0xde3), 1024u);
}

TEST(ChipPlants, ACardThatIsPulledOutIsOnes) {
  ChipOptions options = card();
  const uint64_t before = Bench(options).chip().accesses();
  ASSERT_TRUE(plant_fault("unplug," + std::to_string(before + 2), options));
  Bench bench(options);
  EXPECT_EQ(bench.read_at(0xde3), 1024u);
  EXPECT_EQ(bench.read_at(0xde3), UINT32_MAX);
  EXPECT_EQ(*bench.function().read_config(0, 2), 0xffffu);
  EXPECT_FALSE(bench.function().status());
}

TEST(ChipPlants, AStalledAccessTakesItsTime) {
  ChipOptions options = card();
  const uint64_t before = Bench(options).chip().accesses();
  ASSERT_TRUE(plant_fault("stall," + std::to_string(before + 1) + ",50", options));
  Bench bench(options);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(bench.read_at(0xde3), 1024u);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(50));
}

TEST(ChipPlants, ACommandOfTheSecurityProcessorFails) {
  ChipOptions options = card();
  ASSERT_TRUE(plant_fault("psp,6,0xffff0006", options));
  Bench bench(options);
  bench.set_up_hub(HubKind::kMm);
  bench.boot_os();
  bench.make_ring();
  EXPECT_EQ(bench.load(FirmwareType::kSmu, signed_image(0x1200)), 0xffff0006u);
}

TEST(ChipPlants, AMessageIsAnsweredBusy) {
  ChipOptions options = card();
  ASSERT_TRUE(plant_fault("smu,6,0xfc;smu,7,0", options));
  Bench bench(options);
  bench.boot();
  EXPECT_EQ(bench.send_message(6, 0), 0xfcu);
  EXPECT_EQ(bench.send_message(7, 0), 0u);
  EXPECT_EQ(bench.send_message(1, 1), 1u);
}

TEST(ChipMessages, AnAnswerThatIsClearedUnreadIsGone) {
  Bench bench(card());
  bench.boot();
  const uint32_t base = bench.chip().row().ip(Ip::kMp1).bases[0];
  bench.write_at(base + 0x29a, 0);
  bench.write_at(base + 0x282, 1);
  EXPECT_EQ(bench.send_message(1, 4), 1u);
  EXPECT_EQ(joined(bench.chip().violations()), "");
}

TEST(ChipPlants, AHungProcessorFetchesNothingAndKeepsItsQueue) {
  ChipOptions options = card();
  ASSERT_TRUE(plant_fault("mec-hang", options));
  Bench bench(options);
  bench.boot();
  bench.submit(write_to(Bench::kScratchVa, 3));
  bench.write(Ip::kGc, "GRBM_GFX_CNTL", bench.field(Ip::kGc, "GRBM_GFX_CNTL", "MEID", 1));
  bench.write(Ip::kGc, "CP_HQD_DEQUEUE_REQUEST", 1);
  EXPECT_EQ(bench.read(Ip::kGc, "CP_HQD_ACTIVE"), 1u);
  EXPECT_EQ(bench.chip().engines().packets, 0u);
}

TEST(ChipPlants, LostInterruptsAreInTheRingAllTheSame) {
  ChipOptions options = card();
  ASSERT_TRUE(plant_fault("lost-interrupts", options));
  Bench bench(options);
  bench.boot();
  ASSERT_TRUE(bench.function().enable_interrupts(1));
  bench.chip().interrupts().post({10, 49, 0, 0, 0, {}});
  EXPECT_FALSE(*bench.function().wait_interrupt(0, 0));
  EXPECT_EQ(bench.read(Ip::kOsssys, "IH_RB_WPTR"), 32u);
}

TEST(ChipPlants, WhatIsNoFaultIsSaid) {
  ChipOptions options;
  for (const char* const text :
       {"", "all-ones", "all-ones,0", "stall,x", "psp,1", "unplug,1,2", "fire"})
    EXPECT_FALSE(plant_fault(text, options)) << text;
}

// The function.

TEST(ChipFunctions, OfferWhatThePciContractSays) {
  ChipFunction function(card());
  EXPECT_EQ(function.identity().vendor, 0x1002);
  EXPECT_EQ(function.identity().device, 0x7550);
  EXPECT_EQ(function.identity().class_code, 0x030000u);
  EXPECT_EQ(function.bars()[0].size, uint64_t{256} << 20);
  EXPECT_FALSE(function.map_bar(1));
  EXPECT_FALSE(function.resize_bar(0, 12345));
  EXPECT_FALSE(function.resize_bar(2, uint64_t{512} << 20));
  ASSERT_TRUE(function.resize_bar(0, kMemory));
  ASSERT_TRUE(function.map_bar_memory(0, true));
  EXPECT_FALSE(function.resize_bar(0, uint64_t{256} << 20));
  alignas(4096) static std::array<std::byte, 4096> page;
  EXPECT_FALSE(function.dma_map({.host = page.data(), .bytes = 4096}));
  EXPECT_FALSE(function.dma_map({.host = page.data(), .bytes = 4096, .iova = 0xfee00000}));
  EXPECT_TRUE(function.dma_map({.host = page.data(), .bytes = 4096, .iova = 0x1000}));
  EXPECT_TRUE(function.dma_unmap(page.data()));
  EXPECT_FALSE(function.dma_unmap(page.data()));
}

TEST(ChipFunctions, WithoutAnIommuPagesLieAnywhere) {
  ChipOptions options = card();
  options.has_iommu = false;
  ChipFunction function(options);
  const auto memory = function.dma_allocate(3 * 4096, false, std::nullopt);
  ASSERT_TRUE(memory);
  EXPECT_EQ((*memory)->ranges().size(), 3u);
  EXPECT_FALSE(function.dma_allocate(8192, true, std::nullopt));
}

// The socket.

class Socket : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets_.data()), 0);
    chip_ = std::make_unique<Chip>(card());
    chip_->write_config(4, 2, 2);
    thread_ = std::thread([this] {
      sim::RemoteServer(*chip_).serve(sockets_[1]);
      close(sockets_[1]);
    });
  }
  void TearDown() override {
    close(sockets_[0]);
    thread_.join();
  }
  struct Answer {
    uint8_t status = 0xff;
    uint64_t first = 0, second = 0;
  };
  void ask(uint8_t command, uint32_t handle, std::array<uint64_t, 3> arguments) {
    std::array<std::byte, 33> bytes{};
    std::memcpy(&bytes[0], &command, 1);
    std::memcpy(&bytes[5], &handle, 4);
    std::memcpy(&bytes[9], arguments.data(), 24);
    ASSERT_EQ(write(sockets_[0], bytes.data(), bytes.size()), 33);
  }
  void get(void* to, size_t bytes) {
    ASSERT_EQ(recv(sockets_[0], to, bytes, MSG_WAITALL), static_cast<ssize_t>(bytes));
  }
  Answer answer() {
    std::array<std::byte, 17> bytes{};
    get(bytes.data(), bytes.size());
    Answer out;
    std::memcpy(&out.status, &bytes[0], 1);
    std::memcpy(&out.first, &bytes[1], 8);
    std::memcpy(&out.second, &bytes[9], 8);
    return out;
  }
  std::string text(uint64_t bytes) {
    std::string out(bytes, ' ');
    get(out.data(), bytes);
    return out;
  }
  std::array<int, 2> sockets_{};
  std::unique_ptr<Chip> chip_;
  std::thread thread_;
};

TEST_F(Socket, ListsTheCardThatIsAskedFor) {
  const std::array<uint32_t, 2> wanted = {0xffff, 0x7550};
  ask(0, 0, {3, 8, 0x1002});
  ASSERT_EQ(write(sockets_[0], wanted.data(), 8), 8);
  const Answer found = answer();
  EXPECT_EQ(found.status, 0);
  EXPECT_EQ(text(found.first), "0000:03:00.0:0");
  const std::array<uint32_t, 2> other = {0xffff, 0x744c};
  ask(0, 0, {3, 8, 0x1002});
  ASSERT_EQ(write(sockets_[0], other.data(), 8), 8);
  EXPECT_EQ(answer().first, 0u);
}

TEST_F(Socket, ReadsRegistersConfigurationAndMemory) {
  ask(12, 0, {});
  EXPECT_EQ(answer().status, 0);
  ask(3, 0, {0, 4, 0});
  EXPECT_EQ(answer().first, 0x75501002u);
  ask(6, 5, {0xde3 * 4, 4, 0});
  EXPECT_EQ(answer().first, 4u);
  uint32_t value = 0;
  get(&value, 4);
  EXPECT_EQ(value, 1024u);
  ask(7, 0, {0x2000, 4, 0});
  value = 99;
  ASSERT_EQ(write(sockets_[0], &value, 4), 4);
  ask(6, 0, {0x2000, 4, 0});
  EXPECT_EQ(answer().status, 0);
  value = 0;
  get(&value, 4);
  EXPECT_EQ(value, 99u);
}

TEST_F(Socket, GivesMemoryForDma) {
  ask(8, 0, {8192, 0, 0});
  const Answer made = answer();
  ASSERT_EQ(made.first, 16u);
  std::array<uint64_t, 2> pages{};
  get(pages.data(), 16);
  const uint64_t word = 0x1234;
  ask(10, static_cast<uint32_t>(made.second), {4096, 8, 0});
  ASSERT_EQ(write(sockets_[0], &word, 8), 8);
  ask(12, 0, {});
  EXPECT_EQ(answer().status, 0);
  uint64_t seen = 0;
  std::memcpy(&seen, chip_->system_memory().at(pages[1], 8, false), 8);
  EXPECT_EQ(seen, word);
}

TEST_F(Socket, RefusesWhatIsNotThereInWords) {
  for (const auto& [command, handle, arguments] :
       std::initializer_list<std::tuple<uint8_t, uint32_t, std::array<uint64_t, 3>>>{
           {1, 1, {}},
           {1, 77, {}},
           {3, 0, {4096, 4, 0}},
           {3, 0, {0, 3, 0}},
           {6, 5, {1 << 20, 4, 0}},
           {6, 5, {0, UINT64_MAX, 0}},
           {9, 0, {0, 4, 0}},
           {8, 0, {UINT64_MAX, 0, 0}},
           {11, 2, {}},
           {200, 0, {}}}) {
    ask(command, handle, arguments);
    const Answer refused = answer();
    EXPECT_EQ(refused.status, 1) << int{command};
    EXPECT_FALSE(text(refused.first).empty());
  }
}

TEST_F(Socket, ABadWriteEndsTheConnection) {
  ask(7, 5, {1 << 20, 4, 0});
  char byte = 0;
  EXPECT_EQ(recv(sockets_[0], &byte, 1, 0), 0);
}

}  // namespace
}  // namespace bm::test
