// What is pure in drivers/amd/am: words, tables and layouts, against the kernel's own headers.

#include <map>

#include <gtest/gtest.h>

#include "drivers/amd/am/interrupts.h"
#include "drivers/amd/am/mqd.h"
#include "drivers/amd/am/psp.h"
#include "drivers/amd/am/smu.h"
#include "drivers/amd/am/video_memory.h"
#include "tests/unit/amd_am/firmware_files.h"
#include "tests/unit/transport/fake_pci.h"

namespace bm::amd::am {
namespace {

/// A bus that has the tables of a chip and is never opened.
struct TableBus {
  explicit TableBus(uint32_t gc_major, uint32_t gc_revision = 0) : bus(pci, real_clock()) {
    bus.add_block(Block::kGc, *block_table(Block::kGc, gc_major, 0, gc_revision),
                  {{0x1260, 0xa000, 0x1c000, 0x2402c00}});
  }
  test::FakePci pci;
  Bus bus;
};

TEST(AmRegisters, AddressIsBaseOfTheSegmentAndOffset) {
  TableBus gfx11(11), gfx12(12);
  // gc_11_0_0_offset.h: regRLC_RLCS_BOOTLOAD_STATUS 0x4e82, base index 1; 0x4e7c in gc_12_0_0.
  EXPECT_EQ(gfx11.bus.address({Block::kGc, Reg::RLC_RLCS_BOOTLOAD_STATUS}), 0xa000u + 0x4e82);
  EXPECT_EQ(gfx12.bus.address({Block::kGc, Reg::RLC_RLCS_BOOTLOAD_STATUS}), 0xa000u + 0x4e7c);
  EXPECT_EQ(gfx11.bus.name({Block::kGc, Reg::VM_L2_CNTL}), "GCVM_L2_CNTL");
  EXPECT_TRUE(gfx11.bus.status());
}

TEST(AmRegisters, WhatAVersionLacksIsAnErrorThatNamesIt) {
  TableBus gfx12(12);
  EXPECT_FALSE(gfx12.bus.has(Reg::SDMA0_F32_CNTL, Block::kGc));
  static_cast<void>(gfx12.bus.encode(Block::kGc, {{Field::SDMA0_F32_CNTL_halt, 1}}));
  ASSERT_FALSE(gfx12.bus.status());
  EXPECT_NE(gfx12.bus.status().error().message.find("halt"), std::string::npos)
      << gfx12.bus.status().error().message;
  const auto table = block_table(Block::kMmhub, 9, 9, 9);
  ASSERT_FALSE(table);
  EXPECT_NE(table.error().message.find("MMHUB 9.9.9"), std::string::npos) << table.error().message;
}

TEST(AmRegisters, AValueThatDoesNotFitItsFieldIsAnError) {
  TableBus gfx11(11);
  static_cast<void>(gfx11.bus.encode(Block::kGc, {{Field::GRBM_GFX_CNTL_pipeid, 4}}));
  ASSERT_FALSE(gfx11.bus.status());
  EXPECT_NE(gfx11.bus.status().error().message.find("GRBM_GFX_CNTL.pipeid"), std::string::npos);
}

TEST(AmRegisters, FieldsAreNamedInMessages) {
  TableBus gfx11(11);
  const BlockTable table = *block_table(Block::kGc, 11, 0, 0);
  EXPECT_EQ(table.decode(*table.find(Reg::RLC_RLCS_BOOTLOAD_STATUS), 0x80000001),
            "gfx_init_done=0x1 bootload_complete=0x1");
}

TEST(AmMqd, DwordsAreThoseOfTheKernelsStructs) {
  for (const uint32_t major : {11u, 12u}) {
    TableBus rig(major);
    const MqdWords words = encode_mqd(rig.bus, *find_generation(11, 0),
                                      {.address = 0x80'0001'2000,
                                       .ring = 0x2000'0010'0000,
                                       .ring_bytes = 0x8000,
                                       .read_pointer = 0x2000'0020'0080,
                                       .write_pointer = 0x2000'0020'0038,
                                       .eop = 0x2000'0030'0000,
                                       .eop_bytes = 0x1000,
                                       .doorbell_dword = 6,
                                       .priority = 7});
    ASSERT_TRUE(rig.bus.status()) << rig.bus.status().error().message;
    // Offsets counted in struct v11_compute_mqd and v12_compute_mqd; values of init_mqd() and
    // update_mqd() in kfd_mqd_manager_v11.c, fields from gc_11_0_0_sh_mask.h.
    const std::map<size_t, uint32_t> expected{
        {0x00, 0xc0310800}, {0x0b, 1},          {0x17, ~0u},    {0x18, ~0u},
        {0x1a, ~0u},        {0x1b, ~0u},        {0x20, 7},      {0x2c, ~0u},
        {0x2d, ~0u},        {0x2e, ~0u},        {0x2f, ~0u},    {0x80, 0x00012000},
        {0x81, 0x80},       {0x84, 0x5501},     {0x85, 1},      {0x86, 7},
        {0x87, 0x111},      {0x88, 0x00001000}, {0x89, 0x20},   {0x8b, 0x00200080},
        {0x8c, 0x2000},     {0x8d, 0x00200038}, {0x8e, 0x2000}, {0x8f, 0x40000018},
        {0x91, 0x1000050c}, {0x95, 0x00300000}, {0xa0, 0x4000}, {0xa2, 0x100},
        {0xa5, 0x00003000}, {0xa6, 0x20},       {0xa7, 9}};
    for (size_t i = 0; i < words.size(); ++i) {
      const auto at = expected.find(i);
      EXPECT_EQ(words[i], at == expected.end() ? 0 : at->second)
          << "gfx" << major << " dword " << std::hex << i;
    }
  }
}

TEST(AmMqd, AqlQueuesCountSlotsAndDropDoorbellsThatDoNotFit) {
  TableBus rig(11);
  const MqdWords words = encode_mqd(rig.bus, *find_generation(11, 0),
                                    {.ring_bytes = 0x10000, .eop_bytes = 0x1000, .is_aql = true});
  EXPECT_EQ(words[0x91], 0x1808450du + 0x00000000u);
  EXPECT_EQ(words[0x8f], 0x40000002u);
  EXPECT_EQ(words[0xb5], 1u);
}

TEST(AmPsp, FramesAndCommandsAreThoseOfTheInterfaceHeader) {
  const PspFrame frame = encode_psp_frame(0x80'1234'5000, 0x80'2345'6000, 7);
  EXPECT_EQ((std::vector<uint32_t>(frame.begin(), frame.begin() + 7)),
            (std::vector<uint32_t>{0x12345000, 0x80, 0, 0x23456000, 0x80, 7, 0}));
  const auto head = [](const PspCommand& words) {
    return std::vector<uint32_t>(words.begin(), words.begin() + 13);
  };
  EXPECT_EQ(head(encode_load_firmware(0x80'0010'0000, 0x123, 89)),
            (std::vector<uint32_t>{0, 0, 6, 0, 0, 0, 0, 0x00100000, 0x80, 0x123, 89, 0, 0}));
  EXPECT_EQ(head(encode_load_toc(0x80'0010'0000, 0x900)),
            (std::vector<uint32_t>{0, 0, 0x20, 0, 0, 0, 0, 0x00100000, 0x80, 0x900, 0, 0, 0}));
  EXPECT_EQ(
      head(encode_setup_tmr(0x80'0200'0000, 0x0200'0000, 0xe00000)),
      (std::vector<uint32_t>{0, 0, 5, 0, 0, 0, 0, 0x02000000, 0x80, 0xe00000, 2, 0x02000000, 0}));
  EXPECT_EQ(encode_autoload()[2], 0x21u);
  std::array<std::byte, kPspCommandBytes> answer{};
  answer[864] = std::byte{9};
  answer[864 + 16 + 2] = std::byte{0x30};
  EXPECT_EQ(decode_psp_reply(answer).status, 9u);
  EXPECT_EQ(decode_psp_reply(answer).tmr_bytes, 0x300000u);
}

TEST(AmSmu, AnswersAreNamed) {
  EXPECT_EQ(smu_answer(0xfc), "busy with something else");
  EXPECT_EQ(smu_answer(0xfe), "unknown message");
}

TEST(AmInterrupts, EntriesOfTheRing) {
  // client 10, source 0, ring 1, VMID 0; time 0x1_0000_0002; address 0x2000_0123_4000, a write.
  const Interrupt fault = decode_interrupt({0x0001000a, 2, 1, 0x00040007, 0x00012340, 0x22, 0, 0});
  EXPECT_EQ(fault.client, 10);
  EXPECT_EQ(fault.source, 0);
  EXPECT_EQ(fault.ring, 1);
  EXPECT_EQ(fault.pasid, 7);
  EXPECT_EQ(fault.node, 4);
  EXPECT_EQ(fault.timestamp, 0x1'0000'0002u);
  const InterruptMeaning meaning = explain_interrupt(fault, InterruptForm::kSoc21);
  EXPECT_EQ(meaning.kind, InterruptKind::kMemoryFault);
  EXPECT_EQ(meaning.address, 0x2000'1234'0000u);
  EXPECT_TRUE(meaning.is_write);
}

TEST(AmInterrupts, WhatTheySay) {
  const auto meaning = [](uint32_t client, uint32_t source, uint32_t data0 = 0,
                          uint32_t data1 = 0) {
    return explain_interrupt(decode_interrupt({client | source << 8, 0, 0, 0, data0, data1, 0, 0}),
                             InterruptForm::kSoc21);
  };
  EXPECT_EQ(meaning(20, 181).kind, InterruptKind::kDone);
  EXPECT_EQ(meaning(10, 49).kind, InterruptKind::kDone);
  EXPECT_EQ(meaning(20, 183).text, "CP_BAD_OPCODE_ERROR");
  EXPECT_EQ(meaning(18, 0).kind, InterruptKind::kMemoryFault);
  EXPECT_EQ(meaning(10, 239, 1u << 21, 2u << 6).text, "a wave's illegal instruction");
  EXPECT_EQ(meaning(10, 239, 0, 1u << 6).kind, InterruptKind::kWave);
  EXPECT_EQ(meaning(4, 7).kind, InterruptKind::kOther);
}

TEST(AmVideoMemory, SameCallsGiveTheSamePlacesAndAnotherLayoutAnotherHash) {
  const auto layout = [](std::vector<uint64_t> sizes) {
    auto memory = VideoMemory::create(uint64_t{4} << 30, uint64_t{256} << 20, 64 << 20);
    for (const uint64_t size : sizes) EXPECT_TRUE(memory->allocate_boot(size, 4096, "test"));
    return memory->layout_hash();
  };
  EXPECT_EQ(layout({0x1000, 0x100000}), layout({0x1000, 0x100000}));
  EXPECT_NE(layout({0x1000, 0x100000}), layout({0x2000, 0x100000}));
}

TEST(AmVideoMemory, HiddenMemoryIsTakenFirstAndVisibleWhenItIsGone) {
  constexpr uint64_t kVisible = uint64_t{256} << 20;
  auto memory = VideoMemory::create(uint64_t{1} << 30, kVisible, 64 << 20);
  ASSERT_TRUE(memory);
  EXPECT_GE(*memory->allocate(1 << 20, 4096, false), kVisible);
  EXPECT_LT(*memory->allocate(1 << 20, 4096, true), kVisible);
  const auto large = memory->allocate(uint64_t{700} << 20, 4096, false);
  ASSERT_TRUE(large);
  const auto next = memory->allocate(uint64_t{100} << 20, 4096, false);
  ASSERT_TRUE(next) << next.error().message;
  EXPECT_LT(*next, kVisible);
  EXPECT_EQ(memory->allocate_boot(uint64_t{1} << 30, 4096, "too much").error().code,
            Code::kOutOfMemory);
}

TEST(AmFirmware, PartsAreLoadedInTheKernelsOrder) {
  test::FirmwareFolder folder;
  const auto types = [&](firmware::amd::ChipId id) {
    Card card;
    card.id = id;
    card.generation = find_generation(id.gc.major, id.gc.minor);
    card.firmware = *firmware::amd::firmware_set(id);
    folder.write(card.firmware);
    const auto loaded = Firmware::load(card.firmware, folder.search());
    EXPECT_TRUE(loaded) << loaded.error().message;
    std::vector<uint32_t> result;
    const auto items = load_items(card, *loaded, false);
    EXPECT_TRUE(items) << items.error().message;
    for (const LoadItem& item : *items) result.push_back(item.type);
    return result;
  };
  EXPECT_EQ(types({{11, 0, 0}, {13, 0, 0}, {13, 0, 0}, {6, 0, 0}, 0x744c, 0xc8}),
            (std::vector<uint32_t>{71, 72, 89, 94, 95, 96, 97, 68, 69, 26, 48, 25, 7, 8}));
  EXPECT_EQ(types({{12, 0, 1}, {14, 0, 3}, {14, 0, 3}, {7, 0, 1}, 0x7550, 0xc0}),
            (std::vector<uint32_t>{71, 87, 88, 89, 90, 92, 94, 95, 68, 69, 26, 48, 8}));
}

TEST(AmFirmware, AMissingFileIsNamed) {
  test::FirmwareFolder folder;
  const auto set =
      firmware::amd::firmware_set({{11, 0, 0}, {13, 0, 0}, {13, 0, 0}, {6, 0, 0}, 0x744c, 0xc8});
  const auto loaded = Firmware::load(*set, folder.search());
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, Code::kNotFound);
  EXPECT_NE(loaded.error().message.find("psp_13_0_0_sos.bin"), std::string::npos)
      << loaded.error().message;
}

}  // namespace
}  // namespace bm::amd::am
