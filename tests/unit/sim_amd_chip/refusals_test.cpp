// What the modelled card refuses: an item of a block's header a test. Each fails when the block
// takes what it should refuse.

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <thread>

#include "tests/patience.h"
#include "tests/unit/sim_amd_chip/boot.h"

namespace bm::test {
namespace {

using namespace bm::sim::amd;

constexpr uint64_t kMemory = uint64_t{1} << 30;

class Refusals : public testing::Test {
 protected:
  void open(ChipOptions options = {.chip = "gfx1201"}) {
    options.vram_bytes = kMemory;
    bench_ = std::make_unique<Bench>(options);
  }
  Bench& bench() { return *bench_; }
  uint64_t fb() { return uint64_t{bench().read(Ip::kMmhub, "MMMC_VM_FB_LOCATION_BASE")} << 24; }
  bool is_refused(const std::string& what) {
    for (const std::string& text : bench().chip().violations())
      if (text.find(what) != text.npos) return true;
    return false;
  }
  std::string all() {
    std::string out;
    for (const std::string& text : bench().chip().violations()) out += text + "\n";
    return out;
  }
  std::array<uint32_t, 3> toc(uint64_t bytes) {
    const uint64_t at = fb() + Bench::kMessage;
    return {static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32),
            static_cast<uint32_t>(bytes)};
  }
  /// A secure OS with a ring.
  void open_os(ChipOptions options) {
    open(std::move(options));
    bench().set_up_hub(HubKind::kMm);
    ASSERT_TRUE(bench().boot_os()) << all();
    bench().make_ring();
    ASSERT_EQ(all(), "");
  }
  void open_booted(const char* chip = "gfx1201") {
    open({.chip = chip});
    bench().boot();
    ASSERT_EQ(all(), "");
  }
  std::string psp(int number) {
    return (bench().is_gfx12() ? "MPASP_SMN_C2PMSG_" : "MP0_SMN_C2PMSG_") + std::to_string(number);
  }

  std::unique_ptr<Bench> bench_;
};

// Registers.

TEST_F(Refusals, ReadsOfRegistersThatNobodyDeclared) {
  open();
  EXPECT_EQ(bench().read_at(0x3fff0), 0u);
  EXPECT_TRUE(is_refused("undeclared register: read of dword 0x3fff0"));
}

TEST_F(Refusals, WritesOfRegistersThatNobodyDeclared) {
  open();
  bench().write_at(0x3fff0, 5);
  EXPECT_TRUE(is_refused("undeclared register: write of 0x5 to dword 0x3fff0"));
}

TEST_F(Refusals, WritesOfRegistersThatCannotBeWritten) {
  open();
  bench().write(Ip::kGc, "CP_STAT", 0);
  EXPECT_TRUE(is_refused("CP_STAT is read-only"));
}

TEST_F(Refusals, TheListOfToleratedOnesIsKeptApart) {
  open();
  bench().chip().violation_list().tolerate("undeclared register");
  bench().read_at(0x3fff0);
  EXPECT_EQ(all(), "");
  ASSERT_EQ(bench().chip().violation_list().tolerated().size(), 1u);
}

// Bus interface.

TEST_F(Refusals, N1DoorbellsBeforeTheApertureIsOn) {
  open_booted();
  bench().write(Ip::kNbio, "RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN", 0);
  bench().submit(std::array<uint32_t, 1>{0xffff1000});
  EXPECT_TRUE(is_refused("before RCC_DOORBELL_APER_EN")) << all();
}

TEST_F(Refusals, N2DoorbellsThatNoEntryLetsThrough) {
  open_booted();
  bench().write(Ip::kNbio, "GDC_S2A0_S2A_DOORBELL_ENTRY_0_CTRL", 0);
  bench().submit(std::array<uint32_t, 1>{0xffff1000});
  EXPECT_TRUE(is_refused("no S2A_DOORBELL_ENTRY lets it through")) << all();
}

TEST_F(Refusals, N2CopyDoorbellsOutsideTheirEntrysRange) {
  open_booted();
  bench().write(Ip::kNbio, "GDC_S2A0_S2A_DOORBELL_ENTRY_2_CTRL",
                1 | 0xe << 1 | 0x300 << 7 | 4 << 17);
  bench().submit_copy(std::array<uint32_t, 1>{0});
  EXPECT_TRUE(is_refused("lets it through to the copy engines")) << all();
}

TEST_F(Refusals, N3FlushesAtAnotherPlaceThanTheRemappedOne) {
  open();
  const uint32_t was = bench().read(Ip::kNbio, "BIF_BX0_REMAP_HDP_MEM_FLUSH_CNTL") / 4;
  bench().write(Ip::kNbio, "BIF_BX0_REMAP_HDP_MEM_FLUSH_CNTL", 0x7f000);
  bench().store64(0x1000, 7);
  bench().write_at(was, 0);
  EXPECT_TRUE(is_refused("undeclared register")) << all();
  EXPECT_NE(bench().chip().vram().held_bytes(), 0u);
  bench().flush_hdp();
  EXPECT_EQ(bench().chip().vram().held_bytes(), 0u);
}

// Memory.

TEST_F(Refusals, MemoryThatNobodyWroteIsPoison) {
  open();
  EXPECT_EQ(bench().load(0x12340), Vram::kPoison);
}

TEST_F(Refusals, EnginesDoNotSeeWhatWaitsInTheHostDataPath) {
  open();
  bench().store64(0x1000, 7);
  EXPECT_EQ(bench().load(0x1000), 7u);  // the host does
  uint32_t seen = 0;
  bench().chip().vram().read(0x1000, std::as_writable_bytes(std::span(&seen, 1)));
  EXPECT_EQ(seen, Vram::kPoison);
  bench().flush_hdp();
  bench().chip().vram().read(0x1000, std::as_writable_bytes(std::span(&seen, 1)));
  EXPECT_EQ(seen, 7u);
}

class Hubs : public Refusals {
 protected:
  void SetUp() override { set_up("gfx1201"); }
  void set_up(const char* chip) {
    open({.chip = chip});
    bench().set_up_hub(HubKind::kGc);
    bench().chip().vram().write(Bench::kData, std::as_bytes(std::span(&kOld, 1)));
    bench().chip().vram().write(Bench::kData + 0x20000, std::as_bytes(std::span(&kNew, 1)));
  }
  /// What an engine reads; 0: a fault.
  uint32_t at(uint64_t va) {
    uint32_t value = 0;
    return bench().chip().hub(HubKind::kGc).read(va, std::as_writable_bytes(std::span(&value, 1)))
               ? value
               : 0;
  }
  void remap(uint64_t physical, uint64_t flags) {
    bench().map(Bench::kVaBase, physical, flags);
    bench().flush_hdp();
  }
  static constexpr uint32_t kOld = 0x01d, kNew = 0x4e3;
};

TEST_F(Hubs, TranslationsStayUntilTheyAreFlushed) {
  EXPECT_EQ(at(Bench::kVaBase), kOld);
  remap(Bench::kData + 0x20000, bench().pte_flags());
  EXPECT_EQ(at(Bench::kVaBase), kOld);
  bench().flush_tlb(HubKind::kGc);
  EXPECT_EQ(at(Bench::kVaBase), kNew);
  EXPECT_EQ(all(), "");
}

TEST_F(Hubs, AFlushIsDoneWhenItsAnswerIsSeen) {
  EXPECT_EQ(at(Bench::kVaBase), kOld);
  remap(Bench::kData + 0x20000, bench().pte_flags());
  bench().write(Ip::kGc, "GCVM_INVALIDATE_ENG17_REQ", 0x00f80001);
  EXPECT_EQ(at(Bench::kVaBase), kOld);
  EXPECT_EQ(bench().read(Ip::kGc, "GCVM_INVALIDATE_ENG17_ACK") & 1, 0u);
  EXPECT_EQ(at(Bench::kVaBase), kOld);
  EXPECT_EQ(bench().read(Ip::kGc, "GCVM_INVALIDATE_ENG17_ACK") & 1, 1u);
  EXPECT_EQ(at(Bench::kVaBase), kNew);
}

TEST_F(Hubs, DirectoryEntriesStayUntilTheirLevelIsFlushed) {
  EXPECT_EQ(at(Bench::kVaBase), kOld);
  // Another last-level table, where the first page is the new one.
  bench().store64(0x18'0000, (Bench::kData + 0x20000) | bench().pte_flags());
  bench().store64(Bench::kRoot + 0x2000, 0x18'0000 | 1);
  bench().flush_hdp();
  const auto flush = [&](uint32_t request) {
    bench().write(Ip::kGc, "GCVM_INVALIDATE_ENG17_REQ", request);
    bench().poll(Ip::kGc, "GCVM_INVALIDATE_ENG17_ACK", 1, 1);
  };
  flush(0x00880001);  // leaves alone
  EXPECT_EQ(at(Bench::kVaBase), kOld);
  flush(0x00980001);  // and PDE0
  EXPECT_EQ(at(Bench::kVaBase), kNew);
}

TEST_F(Hubs, AccessesCrossPagesThatFollowEachOther) {
  const auto whole = bench().chip().hub(HubKind::kGc).local_range(0, Bench::kVaBase);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->bytes, Bench::kPages * 4096u);
  bench().map(Bench::kVaBase + 4096, Bench::kData + 0x20000, bench().pte_flags());
  bench().flush_tlb(HubKind::kGc);
  const auto first = bench().chip().hub(HubKind::kGc).local_range(0, Bench::kVaBase);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->bytes, 4096u);
}

TEST_F(Hubs, PagesThatDoNotAllowItAreNotWritten) {
  remap(Bench::kData, bench().pte_flags() & ~uint64_t{0x40});
  uint32_t value = 9;
  EXPECT_FALSE(
      bench().chip().hub(HubKind::kGc).write(Bench::kVaBase, std::as_bytes(std::span(&value, 1))));
  const uint32_t status = bench().read(Ip::kGc, "GCVM_L2_PROTECTION_FAULT_STATUS_LO32");
  EXPECT_NE(status & 1u << 18, 0u);  // a write
  EXPECT_EQ(bench().read(Ip::kGc, "GCVM_L2_PROTECTION_FAULT_ADDR_LO32"),
            static_cast<uint32_t>(Bench::kVaBase >> 12));
}

TEST_F(Hubs, FaultRegistersKeepTheFirstOneUntilTheyAreCleared) {
  EXPECT_EQ(at(Bench::kVaBase + 0x100000), 0u);
  EXPECT_EQ(at(Bench::kVaBase + 0x200000), 0u);
  EXPECT_EQ(bench().read(Ip::kGc, "GCVM_L2_PROTECTION_FAULT_ADDR_LO32"),
            static_cast<uint32_t>((Bench::kVaBase + 0x100000) >> 12));
  EXPECT_EQ(bench().read(Ip::kGc, "GCVM_L2_PROTECTION_FAULT_STATUS_LO32") & 1, 1u);
  bench().write(Ip::kGc, "GCVM_L2_PROTECTION_FAULT_CNTL", 1);
  EXPECT_EQ(bench().read(Ip::kGc, "GCVM_L2_PROTECTION_FAULT_STATUS_LO32"), 0u);
}

TEST_F(Hubs, AddressesOutsideContext0Fault) {
  EXPECT_EQ(at(Bench::kVaBase - 4096), 0u);
  EXPECT_NE(bench().read(Ip::kGc, "GCVM_L2_PROTECTION_FAULT_STATUS_LO32"), 0u);
}

TEST_F(Hubs, G1FlushesWithoutAnAddressRangeFlushNothing) {
  EXPECT_EQ(at(Bench::kVaBase), kOld);
  remap(Bench::kData + 0x20000, bench().pte_flags());
  bench().write(Ip::kGc, "GCVM_INVALIDATE_ENG17_ADDR_RANGE_HI32", 0);
  bench().flush_tlb(HubKind::kGc);
  EXPECT_EQ(at(Bench::kVaBase), kOld);
  EXPECT_TRUE(is_refused("its address range is not all")) << all();
}

TEST_F(Hubs, G2FlushesOfTheMmHubWithoutItsSemaphore) {
  bench().write(Ip::kMmhub, "MMVM_INVALIDATE_ENG17_REQ", 0x00f80001);
  EXPECT_TRUE(is_refused("without the semaphore")) << all();
}

TEST_F(Hubs, G3EntriesWithReservedBits) {
  remap(Bench::kData, bench().pte_flags() | uint64_t{1} << 50);
  at(Bench::kVaBase);
  EXPECT_TRUE(is_refused("has reserved bits")) << all();
}

TEST_F(Hubs, G3LargePagesThatAreNotAligned) {
  bench().store64(Bench::kRoot + 0x2000, 0x1000 | bench().pte_flags());
  bench().flush_hdp();
  at(Bench::kVaBase);
  EXPECT_TRUE(is_refused("is not aligned")) << all();
}

TEST_F(Hubs, G3FragmentsWhoseEntriesDiffer) {
  remap(Bench::kData, bench().pte_flags() | 1 << 7);
  at(Bench::kVaBase);
  EXPECT_TRUE(is_refused("its fragment of 2 pages holds")) << all();
}

TEST_F(Hubs, G4LeavesOfGfx12WithoutTheirMark) {
  remap(Bench::kData, bench().pte_flags() & ~(uint64_t{1} << 63));
  at(Bench::kVaBase);
  EXPECT_TRUE(is_refused("without IS_PTE")) << all();
}

TEST_F(Hubs, G4LeavesOfGfx11HaveNone) {
  set_up("gfx1100");
  EXPECT_EQ(at(Bench::kVaBase), kOld);
  EXPECT_EQ(all(), "");
}

TEST_F(Hubs, G5BusAddressesOfMoreThan44Bits) {
  remap(uint64_t{1} << 44, bench().pte_flags() | 2);
  EXPECT_EQ(at(Bench::kVaBase), 0u);
  EXPECT_TRUE(is_refused("more than 44 bits")) << all();
}

TEST_F(Hubs, G6DirectoriesWithoutTheirValidBit) {
  bench().write(Ip::kGc, "GCVM_CONTEXT0_PAGE_TABLE_BASE_ADDR_LO32", Bench::kRoot);
  EXPECT_EQ(at(Bench::kVaBase), 0u);
  EXPECT_TRUE(is_refused("without its valid bit")) << all();
}

TEST_F(Hubs, MemoryOfTheHostIsReachedByBusMastersOnly) {
  alignas(4096) static std::array<uint32_t, 1024> page{};
  page[0] = 77;
  ASSERT_TRUE(bench().function().dma_map({.host = page.data(), .bytes = 4096, .iova = 0x10000}));
  remap(0x10000, bench().pte_flags() | 2);
  EXPECT_EQ(at(Bench::kVaBase), 77u);
  (void)bench().function().write_config(4, 2, 2);
  EXPECT_EQ(at(Bench::kVaBase), 0u);
  ASSERT_TRUE(bench().function().dma_unmap(page.data()));
}

// Security processor.

TEST_F(Refusals, P1BootLoaderStepsOutOfOrder) {
  open();
  bench().set_up_hub(HubKind::kMm);
  bench().write(Ip::kMp0, psp(36), static_cast<uint32_t>(fb() >> 20));
  bench().write(Ip::kMp0, psp(35), 0x20000);
  EXPECT_TRUE(is_refused("no key database yet")) << all();
  EXPECT_NE(bench().read(Ip::kMp0, psp(35)), 0x80000000u);
  EXPECT_EQ(bench().read(Ip::kMp0, psp(81)), 0u);
}

TEST_F(Refusals, P1BootLoaderCommandsWhileItIsBusy) {
  open();
  bench().set_up_hub(HubKind::kMm);
  const auto image = signed_image(0x1000);
  bench().store(Bench::kMessage, std::span(reinterpret_cast<const uint32_t*>(image.data()), 0x400));
  bench().flush_hdp();
  bench().write(Ip::kMp0, psp(36), static_cast<uint32_t>((fb() + Bench::kMessage) >> 20));
  bench().write(Ip::kMp0, psp(35), 0x80000);
  bench().write(Ip::kMp0, psp(35), 0x10000);
  EXPECT_TRUE(is_refused("it is not ready")) << all();
}

TEST_F(Refusals, P2ImagesThatAreNone) {
  open_os({.chip = "gfx1201"});
  std::vector<std::byte> image = signed_image(0x1200);
  image[0x10] = std::byte{0};
  EXPECT_NE(bench().load(FirmwareType::kSmu, image), 0u);
  EXPECT_TRUE(is_refused("has no $PS1")) << all();
}

TEST_F(Refusals, P2ImagesOfAnotherLengthThanTheySay) {
  open_os({.chip = "gfx1201"});
  std::vector<std::byte> image = signed_image(0x1200);
  image.resize(0x1100);
  EXPECT_NE(bench().load(FirmwareType::kSmu, image), 0u);
  EXPECT_TRUE(is_refused("says that it has 0x1200")) << all();
}

TEST_F(Refusals, P2StacksMayBeLonger) {
  open_os({.chip = "gfx1201"});
  std::vector<std::byte> image = signed_image(0x1200);
  image.resize(0x2000);
  EXPECT_EQ(bench().load(FirmwareType::kRs64MecStack, image), 0u) << all();
}

TEST_F(Refusals, P3ARingThatIsMadeTwice) {
  open_os({.chip = "gfx1201"});
  bench().write(Ip::kMp0, psp(64), 2u << 16);
  EXPECT_FALSE(bench().poll(Ip::kMp0, psp(64), 0x8000ffff, 0x80000000));
  EXPECT_TRUE(is_refused("there is a ring already")) << all();
}

TEST_F(Refusals, P3ARingBeforeTheSecureOs) {
  open();
  bench().make_ring();
  EXPECT_TRUE(is_refused("the secure OS does not run")) << all();
}

TEST_F(Refusals, P4UnknownCommands) {
  open_os({.chip = "gfx1201"});
  EXPECT_EQ(bench().command(0x77, {}), 0x100u);
  EXPECT_TRUE(is_refused("unknown command 0x77")) << all();
}

TEST_F(Refusals, P5FirmwareBeforeItsMemoryRegion) {
  open_os({.chip = "gfx1100"});
  EXPECT_EQ(bench().load(FirmwareType::kSmu, signed_image(0x1200)), 0u);
  EXPECT_NE(bench().load(FirmwareType::kRlcG, signed_image(0x1200)), 0u);
  EXPECT_TRUE(is_refused("before SETUP_TMR")) << all();
}

TEST_F(Refusals, P6ARegionThatIsTooSmall) {
  open_os({.chip = "gfx1100"});
  const auto image = signed_image(0x1200);
  bench().store(Bench::kMessage,
                std::span(reinterpret_cast<const uint32_t*>(image.data()), image.size() / 4));
  bench().flush_hdp();
  EXPECT_EQ(bench().command(0x20, toc(image.size())), 0u) << all();
  const uint64_t at = fb() + Bench::kTmr;
  EXPECT_NE(bench().command(5, std::array<uint32_t, 3>{static_cast<uint32_t>(at),
                                                       static_cast<uint32_t>(at >> 32), 0x100000}),
            0u);
  EXPECT_TRUE(is_refused("0xe00000 are needed")) << all();
}

TEST_F(Refusals, P7AutoloadWithoutAllFirmware) {
  open_os({.chip = "gfx1201"});
  bench().load(FirmwareType::kSmu, signed_image(0x1200));
  EXPECT_EQ(bench().command(0x21, {}), 0u);
  EXPECT_TRUE(is_refused("AUTOLOAD_RLC without IMU_I")) << all();
  EXPECT_EQ(bench().read(Ip::kGc, "RLC_RLCS_BOOTLOAD_STATUS") >> 31, 0u);
  EXPECT_NE(bench().read(Ip::kGc, "CP_STAT"), 0u);
}

TEST_F(Refusals, P8FramesThatNobodyFlushed) {
  open_os({.chip = "gfx1201"});
  bench().store(Bench::kFrames, std::array<uint32_t, 16>{});
  bench().write(Ip::kMp0, psp(67), 16);
  EXPECT_TRUE(is_refused("nobody flushed it")) << all();
}

// Power management.

TEST_F(Refusals, M1MessagesThatThereAreNot) {
  open_booted();
  EXPECT_EQ(bench().send_message(0x90, 0), 0xfeu);
  EXPECT_TRUE(is_refused("SMU: unknown message 0x90")) << all();
}

TEST_F(Refusals, M4TablesThatThereAreNot) {
  open_booted();
  bench().send_message(0xe, 0);
  bench().send_message(0xf, 0x100000);
  EXPECT_EQ(bench().send_message(0x12, 13), 0xffu);
  EXPECT_TRUE(is_refused("SMU: there is no table 13")) << all();
}

TEST_F(Refusals, M5PowerLimitsThatTheBoardHasNot) {
  open_booted();
  uint32_t watts = 0;
  EXPECT_EQ(bench().send_message(0x33, 0, &watts), 1u);
  EXPECT_EQ(watts, 300u);
  EXPECT_EQ(bench().send_message(0x32, 301), 0xffu);
  EXPECT_TRUE(is_refused("a power limit of 0x12d, the board has 300 W")) << all();
  EXPECT_EQ(bench().send_message(0x32, 0x10000 | 200), 0xffu);
  EXPECT_EQ(bench().send_message(0x32, 0), 0xffu);
  EXPECT_EQ(bench().send_message(0x33, 2 << 16), 0xffu);
  EXPECT_TRUE(is_refused("the power limit of source 0x20000")) << all();
  EXPECT_EQ(bench().send_message(0x32, 200), 1u);
  EXPECT_EQ(bench().send_message(0x33, 1 << 16, &watts), 1u);
  EXPECT_EQ(watts, 200u);
}

TEST_F(Refusals, M1Mode1ResetByMessageIsNoMessageOf14) {
  open_booted("gfx1201");
  EXPECT_EQ(bench().send_message(0x2f, 0), 0xfeu);
}

TEST_F(Refusals, M2MessagesOverAnAnswer) {
  open_booted();
  EXPECT_EQ(bench().send_message(1, 4), 1u);
  const uint32_t base = bench().chip().row().ip(Ip::kMp1).bases[0];
  bench().write_at(base + 0x282, 1);
  EXPECT_TRUE(is_refused("while the last one's answer is there")) << all();
  EXPECT_EQ(bench().read_at(base + 0x29a), 0xfcu);
}

TEST_F(Refusals, M3TablesWithoutMemoryForThem) {
  open_booted();
  EXPECT_EQ(bench().send_message(0x12, 5), 0xfdu);
  EXPECT_TRUE(is_refused("a table before SetDriverDramAddr")) << all();
}

TEST_F(Refusals, M3LevelsThatThereAreNot) {
  open_booted();
  uint32_t count = 0;
  EXPECT_EQ(bench().send_message(0x1f, 2 << 16 | 0xff, &count), 1u);
  EXPECT_EQ(count, 4u);
  EXPECT_EQ(bench().send_message(0x1f, 2 << 16 | 4), 0xffu);
}

TEST_F(Refusals, ThePowerFirmwareAnswersOnlyOnceItIsThere) {
  open();
  EXPECT_EQ(bench().send_message(1, 0), 0u);
}

// Interrupts.

TEST_F(Refusals, H1ReadPointersThatCountSomethingElse) {
  open_booted();
  bench().write(Ip::kOsssys, "IH_RB_RPTR", 8);
  EXPECT_TRUE(is_refused("it counts bytes")) << all();
}

TEST_F(Refusals, H2RingsWithoutABase) {
  open();
  bench().write(Ip::kOsssys, "IH_RB_CNTL",
                bench().field(Ip::kOsssys, "IH_RB_CNTL", "RB_ENABLE", 1) |
                    bench().field(Ip::kOsssys, "IH_RB_CNTL", "RB_SIZE", 12));
  EXPECT_TRUE(is_refused("the ring is enabled")) << all();
}

// Command processor.

TEST_F(Refusals, X1QueueRegistersWithNothingSelected) {
  open_booted();
  bench().write(Ip::kGc, "CP_HQD_PQ_BASE", 1);
  EXPECT_TRUE(is_refused("no compute pipe selected")) << all();
}

TEST_F(Refusals, X2PipesThatLeaveResetBeforeAutoload) {
  open();
  bench().start_mec();
  EXPECT_TRUE(is_refused("leaves reset before autoload")) << all();
}

TEST_F(Refusals, X2QueuesOnAPipeThatStartsElsewhere) {
  open_booted();
  bench().write(Ip::kGc, "GRBM_GFX_CNTL", bench().field(Ip::kGc, "GRBM_GFX_CNTL", "MEID", 1));
  bench().write(Ip::kGc, "CP_HQD_DEQUEUE_REQUEST", 1);
  bench().write(Ip::kGc, "CP_MEC_RS64_PRGRM_CNTR_START", 0x100);
  const char* const reg = "CP_MEC_RS64_CNTL";
  bench().write(Ip::kGc, reg, bench().field(Ip::kGc, reg, "MEC_PIPE0_RESET", 1));
  bench().write(Ip::kGc, reg, bench().field(Ip::kGc, reg, "MEC_PIPE0_ACTIVE", 1));
  bench().make_queue();
  EXPECT_TRUE(is_refused("was not started from")) << all();
}

TEST_F(Refusals, X3DoorbellsWhileTheProcessorIsHalted) {
  open_booted();
  const char* const reg = "CP_MEC_RS64_CNTL";
  bench().write(Ip::kGc, reg,
                bench().field(Ip::kGc, reg, "MEC_PIPE0_ACTIVE", 1) |
                    bench().field(Ip::kGc, reg, "MEC_HALT", 1));
  bench().submit(std::array<uint32_t, 1>{0xffff1000});
  EXPECT_TRUE(is_refused("while MEC pipe 0 does not run")) << all();
}

TEST_F(Refusals, X4DescriptorsThatDifferFromTheRegisters) {
  open_booted();
  bench().chip().vram().write(Bench::kMqd + 0x91 * 4, std::as_bytes(std::span("\x05\0\0", 4)));
  bench().submit(std::array<uint32_t, 1>{0xffff1000});
  EXPECT_TRUE(is_refused("CP_HQD_PQ_CONTROL is 0xb, and 0x5 in the queue descriptor")) << all();
}

TEST_F(Refusals, X4DescriptorsWithoutTheirHeader) {
  open_booted();
  bench().chip().vram().write(Bench::kMqd, std::as_bytes(std::span("\x05\0\0", 4)));
  bench().submit(std::array<uint32_t, 1>{0xffff1000});
  EXPECT_TRUE(is_refused("starts with 0x5")) << all();
}

TEST_F(Refusals, X5DoorbellsOutsideTheProcessorsRange) {
  open_booted();
  bench().write(Ip::kGc, "CP_MEC_DOORBELL_RANGE_LOWER", 0x40);
  bench().submit(std::array<uint32_t, 1>{0xffff1000});
  EXPECT_TRUE(is_refused("outside CP_MEC_DOORBELL_RANGE")) << all();
}

TEST_F(Refusals, X6QueuesOfAnotherVmid) {
  open_booted();
  bench().write(Ip::kGc, "GRBM_GFX_CNTL", bench().field(Ip::kGc, "GRBM_GFX_CNTL", "MEID", 1));
  bench().write(Ip::kGc, "CP_HQD_DEQUEUE_REQUEST", 1);
  bench().write(Ip::kGc, "CP_HQD_VMID", 3);
  bench().write(Ip::kGc, "CP_HQD_ACTIVE", 1);
  EXPECT_TRUE(is_refused("a VMID that is not modelled")) << all();
}

TEST_F(Refusals, X6QueuesWithoutAnEopBuffer) {
  open_booted();
  bench().write(Ip::kGc, "GRBM_GFX_CNTL", bench().field(Ip::kGc, "GRBM_GFX_CNTL", "MEID", 1));
  bench().write(Ip::kGc, "CP_HQD_DEQUEUE_REQUEST", 1);
  bench().write(Ip::kGc, "CP_HQD_EOP_BASE_ADDR", 0);
  bench().write(Ip::kGc, "CP_HQD_EOP_BASE_ADDR_HI", 0);
  bench().write(Ip::kGc, "CP_HQD_ACTIVE", 1);
  EXPECT_TRUE(is_refused("has no EOP buffer")) << all();
}

// Copy engines.

TEST_F(Refusals, D1RingsBeforeTheCoreBooted) {
  open();
  bench().make_copy_queue();
  EXPECT_TRUE(is_refused("a ring before autoload")) << all();
}

TEST_F(Refusals, D1DoorbellsWhileTheEngineIsHalted) {
  open_booted();
  bench().write(Ip::kGc, "SDMA0_MCU_CNTL", 1);
  bench().submit_copy(std::array<uint32_t, 1>{0});
  EXPECT_TRUE(is_refused("while the engine is halted")) << all();
}

TEST_F(Refusals, D2DoorbellsThatAreOff) {
  open_booted();
  bench().write(Ip::kGc, "SDMA0_QUEUE0_DOORBELL", 0);
  bench().submit_copy(std::array<uint32_t, 1>{0});
  EXPECT_TRUE(is_refused("of a queue that has it off")) << all();
}

TEST_F(Refusals, D3IndirectBuffersRunOnlyWhereTheyAreEnabled) {
  open_booted();
  const uint64_t buffer = Bench::kScratchVa + 0x1000, target = Bench::kScratchVa;
  const uint64_t where = Bench::kData + (target - Bench::kVaBase);
  bench().store(where + 0x1000,
                std::array<uint32_t, 8>{5 | 3 << 16, static_cast<uint32_t>(target),
                                        static_cast<uint32_t>(target >> 32), 42, 0, 0, 0, 0});
  const std::array<uint32_t, 6> indirect = {
      4, static_cast<uint32_t>(buffer), static_cast<uint32_t>(buffer >> 32), 8, 0, 0};
  bench().write(Ip::kGc, "SDMA0_QUEUE0_IB_CNTL", 0x101);
  bench().submit_copy(indirect);
  EXPECT_TRUE(bench().wait_for(where, 42));
  bench().write(Ip::kGc, "SDMA0_QUEUE0_IB_CNTL", 0x100);
  bench().store64(where, 0);
  bench().submit_copy(indirect);
  const auto deadline = std::chrono::steady_clock::now() + patience(std::chrono::seconds(10));
  while (bench().chip().engines().all_findings().empty() &&
         std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  EXPECT_EQ(bench().chip().engines().all_findings().size(), 1u);
  EXPECT_EQ(bench().load(where), 0u);
}

TEST_F(Refusals, D4RingsOfAnotherVmid) {
  open_booted();
  bench().write(Ip::kGc, "SDMA0_QUEUE0_RB_CNTL", 0);
  bench().write(Ip::kGc, "SDMA0_QUEUE0_RB_CNTL",
                1 | bench().field(Ip::kGc, "SDMA0_QUEUE0_RB_CNTL", "RB_VMID", 2));
  EXPECT_TRUE(is_refused("a VMID that is not modelled")) << all();
}

// The bus.

TEST_F(Refusals, C1AccessesWhileDecodingIsOff) {
  open();
  (void)bench().function().write_config(4, 2, 0);
  EXPECT_EQ(bench().read_at(0xde3), UINT32_MAX);
  EXPECT_TRUE(is_refused("is not decoded")) << all();
}

TEST_F(Refusals, C2RegistersInPieces) {
  open();
  EXPECT_EQ(bench().chip().read(Chip::kRegisterBar, 0xde3 * 4, 2), 0xffffu);
  EXPECT_TRUE(is_refused("read of 2 bytes of registers")) << all();
}

TEST_F(Refusals, C3DoorbellsThatNoQueueHas) {
  open_booted();
  bench().chip().write(Chip::kDoorbellBar, 0x40, 8, 1);
  EXPECT_TRUE(is_refused("that no queue has")) << all();
}

}  // namespace
}  // namespace bm::test
