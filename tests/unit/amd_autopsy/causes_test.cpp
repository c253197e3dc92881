// Hangs, planted one after the other on the modelled card, and the cause that each is to be named
// by. The card's own engines hang; nothing is told to the examiner.

#include <functional>

#include "tests/unit/amd_autopsy/bed.h"

namespace bm::amd::am {
namespace {

using sim::amd::ChipOptions;
using sim::amd::Ip;
using test::AutopsyBed;

struct Planted {
  const char* name;
  HangCause cause;
  std::vector<const char*> says;  ///< each in the verdict's line
  std::function<void(AutopsyBed&)> plant;
  ChipOptions options = {};
};

// LLVM 19's assembler; the same on gfx11 and gfx12 but for stores and barriers.
constexpr uint32_t kBranchToItself = 0xbfa0ffff, kEnd = 0xbfb00000;

std::vector<uint32_t> store_code(const AutopsyBed& bed) {
  // v_mov_b32 v0, 0; global_store_b32 v0, v0, s[0:1]; s_endpgm
  if (bed.is_gfx12()) return {0x7e000280, 0xee068000, 0, 0, kEnd};
  return {0x7e000280, 0xdc6a0000, 0x00000000, kEnd};
}

/// The first wave loops, the second waits for it: v_readfirstlane_b32 s2, v0; s_cmp_lt_u32 s2, 32;
/// s_cbranch_scc1 to the loop; the barrier; s_endpgm; s_branch to itself.
std::vector<uint32_t> barrier_code(const AutopsyBed& bed) {
  if (bed.is_gfx12())
    return {0x7e040500, 0xbf0aa002, 0xbfa20003, 0xbe804ec1, 0xbf94ffff, kEnd, kBranchToItself};
  return {0x7e040500, 0xbf0aa002, 0xbfa20002, 0xbfbd0000, kEnd, kBranchToItself};
}

void open_compute(AutopsyBed& bed) {
  bed.boot();
  bed.open_queue(QueueType::kPm4);
}
void open_copies(AutopsyBed& bed) {
  bed.boot();
  bed.open_queue(QueueType::kSdma);
}
/// A queue with a packet that would be done at once.
void submit_something(AutopsyBed& bed) {
  bed.pm4().put(
      pm4::WriteData{.address = bed.memory().va, .values = std::span<const uint32_t>(&kEnd, 1)});
  bed.submit();
}
void copy_something(AutopsyBed& bed) {
  bed.sdma().put(sdma::Fence{.address = bed.memory().va, .value = 1});
  bed.submit();
}

void plant_wait(AutopsyBed& bed) {
  open_compute(bed);
  Memory& word = bed.memory();
  word.view.store<uint32_t>(0x40, 0x1234);
  bed.pm4().put(pm4::WaitMemory{.address = word.va + 0x40, .value = 0x5678});
  bed.submit();
}

void plant_wait_in_buffer(AutopsyBed& bed) {
  open_compute(bed);
  Memory& buffer = bed.memory();
  const uint64_t word = bed.memory().va;
  bed.pm4().put(pm4::WaitMemory{.address = word, .value = 7, .compare = pm4::Compare::kEqual});
  buffer.view.copy_in(0, bed.words());
  const auto dwords = static_cast<uint32_t>(bed.words().size());
  bed.words().clear();
  bed.pm4().put(pm4::IndirectBuffer{.address = buffer.va, .dwords = dwords});
  bed.submit();
}

constexpr uint64_t kWriteable = 1 << 6;  // AMDGPU_PTE_WRITEABLE

const std::vector<Planted>& planted() {
  static const std::vector<Planted> all = {
      {"CardOffTheBus",
       HangCause::kCardGone,
       {"fallen off the bus"},
       [](AutopsyBed& bed) {
         open_compute(bed);
         bed.card().unplug();
       }},
      {"NeverBooted", HangCause::kNotBooted, {"boot loader only"}, [](AutopsyBed&) {}},
      {"PspBootLoader",
       HangCause::kPspHangs,
       {"C2PMSG_35"},
       [](AutopsyBed& bed) { EXPECT_NE(bed.failed_boot(), "it booted"); },
       {.hangs_psp = true}},
      {"SmuSilent",
       HangCause::kSmuSilent,
       {"message 0x6"},
       [](AutopsyBed& bed) { EXPECT_NE(bed.failed_boot(), "it booted"); },
       {.smu_answer = {{6, 0}}}},
      {"ProcessorNotLoaded",
       HangCause::kProcessorNotLoaded,
       {"RLC_RLCS_BOOTLOAD_STATUS"},
       [](AutopsyBed& bed) { EXPECT_NE(bed.failed_boot(), "it booted"); },
       {.psp_status = {{0x21, 0x1234}}}},
      {"GraphicsGated",
       HangCause::kGraphicsGated,
       {"GFXOFF"},
       [](AutopsyBed& bed) {
         open_compute(bed);
         bed.card().options().gates_graphics = true;
       }},
      {"PageTableBaseWrong",
       HangCause::kPageTableBase,
       {"page table base", "GC hub"},
       [](AutopsyBed& bed) {
         open_compute(bed);
         const uint64_t zeroes = 512 << 20;  // nobody's
         bed.poke(Ip::kGc, "GCVM_CONTEXT0_PAGE_TABLE_BASE_ADDR_HI32", 0);
         bed.poke(Ip::kGc, "GCVM_CONTEXT0_PAGE_TABLE_BASE_ADDR_LO32", zeroes | 1);
         bed.forget_translations();
         submit_something(bed);
       }},
      {"StaleTlb",
       HangCause::kStaleTlb,
       {"stale TLB", "write"},
       [](AutopsyBed& bed) {
         open_compute(bed);
         const uint64_t code = bed.load(store_code(bed));
         Memory& target = bed.memory(4096, MemoryDomain::kVideo);
         bed.turn_entry(target.va, kWriteable);
         bed.forget_translations();
         ASSERT_TRUE(bed.card()
                         .hub(sim::amd::HubKind::kGc)
                         .translate(target.va, sim::amd::HubAccess::kRead));
         bed.turn_entry(target.va, kWriteable);
         bed.launch(code, target.va);
       }},
      {"KernelWritesUnmapped",
       HangCause::kShaderFault,
       {"a kernel faulted: write", "not mapped"},
       [](AutopsyBed& bed) {
         open_compute(bed);
         bed.launch(bed.load(store_code(bed)), bed.unmapped());
       }},
      {"KernelWritesReadOnly",
       HangCause::kShaderReadOnlyFault,
       {"read-only page"},
       [](AutopsyBed& bed) {
         open_compute(bed);
         const uint64_t code = bed.load(store_code(bed));
         Memory& target = bed.memory(4096, MemoryDomain::kVideo);
         bed.turn_entry(target.va, kWriteable);
         bed.forget_translations();
         bed.launch(code, target.va);
       }},
      {"RingUnmapped",
       HangCause::kPacketFetchFault,
       {"compute queue 0", "in its ring"},
       [](AutopsyBed& bed) {
         open_compute(bed);
         bed.pm4().put(pm4::Nop{8});
         bed.unmap_ring();
         bed.submit();
       }},
      {"BufferUnmapped",
       HangCause::kPacketFetchFault,
       {"command processor faulted: read"},
       [](AutopsyBed& bed) {
         open_compute(bed);
         bed.pm4().put(pm4::IndirectBuffer{.address = bed.unmapped(), .dwords = 8});
         bed.submit();
       }},
      {"CopySourceUnmapped",
       HangCause::kCopyFault,
       {"read (the source)", "not mapped"},
       [](AutopsyBed& bed) {
         open_copies(bed);
         bed.sdma().put(
             sdma::Copy{.source = bed.unmapped(), .target = bed.memory().va, .bytes = 64});
         bed.submit();
       }},
      {"CopyTargetUnmapped",
       HangCause::kCopyFault,
       {"write (the target)", "not mapped"},
       [](AutopsyBed& bed) {
         open_copies(bed);
         bed.sdma().put(
             sdma::Copy{.source = bed.memory().va, .target = bed.unmapped(), .bytes = 64});
         bed.submit();
       }},
      {"EndlessLoop",
       HangCause::kEndlessLoop,
       {"1 waves of a kernel run and do not end", "PC 0x"},
       [](AutopsyBed& bed) {
         open_compute(bed);
         bed.launch(bed.load({kBranchToItself, kEnd}));
       }},
      {"Barrier",
       HangCause::kBarrier,
       {"1 of 2 waves wait at a barrier"},
       [](AutopsyBed& bed) {
         open_compute(bed);
         bed.launch(bed.load(barrier_code(bed)), 0, 64);
       }},
      {"IllegalInstruction",
       HangCause::kIllegalInstruction,
       {"illegal instruction", "PC 0x"},
       [](AutopsyBed& bed) {
         open_compute(bed);
         bed.launch(bed.load({0xffffffff, kEnd}));
       }},
      {"Trap",
       HangCause::kWaveTrapped,
       {"trapped", "PC 0x"},
       [](AutopsyBed& bed) {
         open_compute(bed);
         bed.launch(bed.load({0xbf900002, kEnd}));  // s_trap 2
       }},
      {"ProcessorHalted",
       HangCause::kProcessorHalted,
       {"MEC_HALT is set"},
       [](AutopsyBed& bed) {
         open_compute(bed);
         bed.set_field("CP_MEC_RS64_CNTL", "MEC_HALT", 1);
         submit_something(bed);
       }},
      {"ProcessorStands",
       HangCause::kProcessorStands,
       {"WRITE_DATA"},
       [](AutopsyBed& bed) {
         open_compute(bed);
         bed.card().options().hangs_mec = true;
         submit_something(bed);
       }},
      {"QueueInactive",
       HangCause::kQueueInactive,
       {"compute queue 0", "CP_HQD_ACTIVE"},
       [](AutopsyBed& bed) {
         open_compute(bed);
         bed.select_queue(0);
         bed.poke(Ip::kGc, "CP_HQD_ACTIVE", 0);
         submit_something(bed);
       }},
      {"DoorbellsOff",
       HangCause::kDoorbellsOff,
       {"RCC_DOORBELL_APER_EN"},
       [](AutopsyBed& bed) {
         open_compute(bed);
         bed.poke(Ip::kNbio, "RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN", 0);
         submit_something(bed);
       }},
      {"DoorbellNotRouted",
       HangCause::kDoorbellNotRouted,
       {"S2A_DOORBELL_ENTRY"},
       [](AutopsyBed& bed) {
         open_compute(bed);
         bed.poke(
             Ip::kNbio,
             bed.is_gfx12() ? "GDC_S2A0_S2A_DOORBELL_ENTRY_0_CTRL" : "S2A_DOORBELL_ENTRY_0_CTRL",
             0);
         submit_something(bed);
       }},
      {"DoorbellOutOfRange",
       HangCause::kDoorbellOutOfRange,
       {"CP_MEC_DOORBELL_RANGE"},
       [](AutopsyBed& bed) {
         open_compute(bed);
         bed.poke(Ip::kGc, "CP_MEC_DOORBELL_RANGE_UPPER", 8);
         submit_something(bed);
       }},
      {"DoorbellDisabled",
       HangCause::kDoorbellDisabled,
       {"DOORBELL_EN"},
       [](AutopsyBed& bed) {
         open_compute(bed);
         bed.select_queue(0);
         bed.set_field("CP_HQD_PQ_DOORBELL_CONTROL", "DOORBELL_EN", 0);
         submit_something(bed);
       }},
      {"DoorbellNeverRung",
       HangCause::kDoorbellNeverRung,
       {"was not rung"},
       [](AutopsyBed& bed) {
         open_compute(bed);
         bed.pm4().put(pm4::Nop{8});
         bed.submit(false);
       }},
      {"WaitNeverMet",
       HangCause::kWaitNeverMet,
       {"WAIT_REG_MEM", "040]", ">= 0x5678", "there is 0x1234"},
       plant_wait},
      {"WaitInABuffer",
       HangCause::kWaitNeverMet,
       {"WAIT_REG_MEM", "== 0x7", "there is 0x0"},
       plant_wait_in_buffer},
      {"AqlWaitNeverMet",
       HangCause::kWaitNeverMet,
       {"BARRIER_AND on 0x", "there is 0x7"},
       [](AutopsyBed& bed) {
         bed.boot();
         bed.open_queue(QueueType::kAql);
         Memory& signal = bed.memory();
         signal.view.store<uint64_t>(8, 7);
         const aql::Words packet =
             aql::encode(aql::BarrierAnd{.dependencies = {signal.va, 0, 0, 0, 0}});
         bed.words().assign(packet.begin(), packet.end());
         bed.submit();
       }},
      {"BadPacket",
       HangCause::kBadPacket,
       {"0x12345678", "no packet"},
       [](AutopsyBed& bed) {
         open_compute(bed);
         bed.words() = {0x12345678, 0, 0, 0};
         bed.submit();
       }},
      {"CopyEngineHalted",
       HangCause::kCopyEngineHalted,
       {"HALT"},
       [](AutopsyBed& bed) {
         open_copies(bed);
         bed.set_field(bed.is_gfx12() ? "SDMA0_MCU_CNTL" : "SDMA0_F32_CNTL", "HALT", 1);
         copy_something(bed);
       }},
      {"CopyBuffersOff",
       HangCause::kCopyBuffersOff,
       {"IB_ENABLE"},
       [](AutopsyBed& bed) {
         open_copies(bed);
         bed.set_field("SDMA0_QUEUE0_IB_CNTL", "IB_ENABLE", 0);
         while (bed.words().size() % 8 != 2) bed.sdma().put(sdma::Nop{});
         bed.sdma().put(sdma::Indirect{.address = bed.memory().va, .dwords = 8});
         bed.submit();
       }},
      {"CopyWaitNeverMet",
       HangCause::kCopyWaitNeverMet,
       {"there is 0x0"},
       [](AutopsyBed& bed) {
         open_copies(bed);
         bed.sdma().put(sdma::WaitMemory{.address = bed.memory().va, .value = 9});
         bed.submit();
       }},
      {"CopyBadPacket",
       HangCause::kCopyBadPacket,
       {"no packet"},
       [](AutopsyBed& bed) {
         open_copies(bed);
         bed.words() = {0xff, 0, 0, 0, 0, 0, 0, 0};
         bed.submit();
       }},
      {"CopyEngineStands",
       HangCause::kCopyEngineStands,
       {"FENCE"},
       [](AutopsyBed& bed) {
         open_copies(bed);
         bed.card().options().hangs_sdma = true;
         copy_something(bed);
       }},
      {"InterruptOverflow",
       HangCause::kInterruptOverflow,
       {"overflowed"},
       [](AutopsyBed& bed) {
         bed.boot();
         for (uint32_t i = 0; i < 8300; ++i)
           bed.card().interrupts().post({.client = 20, .source = 181});
       }},
      {"InterruptsNotTaken",
       HangCause::kInterruptsNotTaken,
       {"3 interrupts wait"},
       [](AutopsyBed& bed) {
         bed.boot();
         for (uint32_t i = 0; i < 3; ++i)
           bed.card().interrupts().post({.client = 20, .source = 181});
       }},
  };
  return all;
}

class Autopsies : public ::testing::TestWithParam<size_t> {};

TEST_P(Autopsies, TheCauseIsNamed) {
  const Planted& one = planted()[GetParam()];
  for (const char* const chip : {"gfx1100", "gfx1201"}) {
    ChipOptions options = one.options;
    options.chip = chip;
    AutopsyBed bed(options);
    one.plant(bed);
    const Autopsy seen = bed.look(one.cause, one.says);
    EXPECT_EQ(hang_cause_name(seen.verdict.cause), hang_cause_name(one.cause)) << chip << "\n"
                                                                               << seen.text();
    for (const char* const words : one.says)
      EXPECT_NE(seen.verdict.line().find(words), std::string::npos) << chip << ": " << words << "\n"
                                                                    << seen.text();
    EXPECT_TRUE(seen.text(1).starts_with("cause: ")) << seen.text();
    EXPECT_NE(seen.verdict.line().find("; remedy: "), std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(Causes, Autopsies, ::testing::Range<size_t>(0, planted().size()),
                         [](const auto& index) {
                           return std::string(planted()[index.param].name);
                         });

TEST(Autopsy, AnIdleCardHasNoCause) {
  for (const char* const chip : {"gfx1100", "gfx1101", "gfx1102", "gfx1200", "gfx1201"}) {
    AutopsyBed bed({.chip = chip});
    open_compute(bed);
    submit_something(bed);
    const Autopsy seen = bed.look(HangCause::kNone);
    EXPECT_EQ(seen.verdict.cause, HangCause::kNone) << seen.text();
    ASSERT_EQ(seen.queues.size(), 1u);
    EXPECT_EQ(seen.queues[0].ring, bed.ring_va());
  }
}

TEST(Autopsy, LeavesTheCardAsItWas) {
  AutopsyBed bed({});
  open_compute(bed);
  static_cast<void>(bed.look(HangCause::kNone));
  EXPECT_TRUE(bed.card().violations().empty()) << bed.card().violations().front();
  submit_something(bed);
  EXPECT_EQ(bed.look(HangCause::kNone).verdict.cause, HangCause::kNone);
  bed.close();
  // In order: the next boot is warm.
  bed.boot();
  EXPECT_TRUE(bed.gpu().was_warm());
}

TEST(Autopsy, TheMessageOfAHangBeginsWithTheVerdict) {
  AutopsyBed bed({});
  plant_wait(bed);
  static_cast<void>(bed.look(HangCause::kWaitNeverMet));
  const std::string text = bed.gpu().recent_errors();
  EXPECT_TRUE(text.starts_with("autopsy: cause: compute queue 0 stands at ")) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

/// As if every access to the card took a millisecond: what a USB bridge needs.
class AccessClock final : public Clock {
 public:
  explicit AccessClock(const sim::amd::Chip& card) : card_(card) {}
  uint64_t now_us() override { return card_.accesses() * 1000; }
  void sleep_us(uint64_t /*us*/) override {}

 private:
  const sim::amd::Chip& card_;
};

TEST(Autopsy, OneThatIsToBeShortEndsInTimeAndSaysWhatItLeftOut) {
  AutopsyBed bed({});
  // From before the boot to the end: taking a function and giving it back both stop the card's DMA,
  // and an engine at work would fault.
  sim::amd::ChipFunction function(bed.shared_card());
  plant_wait(bed);
  static_cast<void>(bed.look(HangCause::kWaitNeverMet));
  AccessClock clock(bed.card());
  const auto look = [&](uint64_t limit_us, uint64_t* took_us) {
    Bus bus(function, clock);
    EXPECT_TRUE(bus.open());
    const auto card = discover(bus, "");
    EXPECT_TRUE(card);
    const uint64_t begun = clock.now_us();
    Autopsy seen = examine(bus, *card, {.compute_queues = 1, .limit_us = limit_us});
    *took_us = clock.now_us() - begun;
    return seen;
  };
  uint64_t took_us = 0;
  const Autopsy brief = look(300'000, &took_us);
  EXPECT_LT(took_us, 450'000u) << "300 ms and the look that it was in";
  ASSERT_FALSE(brief.left_out.empty());
  EXPECT_NE(brief.text(1).find("\nno time for "), std::string::npos) << brief.text(1);
  const Autopsy none = look(0, &took_us);
  EXPECT_LT(took_us, 150'000u);
  EXPECT_EQ(none.verdict.cause, HangCause::kNone);
  EXPECT_NE(none.verdict.text.find("there was time for"), std::string::npos) << none.text();
  const Autopsy whole = look(60'000'000, &took_us);
  EXPECT_TRUE(whole.left_out.empty()) << whole.text();
  // The ring lies in memory of the host, which nobody here has.
  EXPECT_EQ(whole.verdict.cause, HangCause::kProcessorStands) << whole.text();
  EXPECT_EQ(brief.verdict.cause, whole.verdict.cause) << "found first: " << brief.text(4);
}

}  // namespace
}  // namespace bm::amd::am
