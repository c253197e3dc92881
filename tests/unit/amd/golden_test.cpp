// Every packet the driver emits, and a whole launch per chip, as words. The files name the source
// that each case was checked against. BM_UPDATE_GOLDEN=1 rewrites them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "drivers/amd/aql/packets.h"
#include "drivers/amd/chips.h"
#include "drivers/amd/pm4/compute.h"
#include "drivers/amd/pm4/packets.h"
#include "drivers/amd/sdma/packets.h"

namespace bm::amd {
namespace {

constexpr uint64_t kFirst = 0x12'3456'7800, kSecond = 0x0a'bcde'f120;

class Golden {
 public:
  explicit Golden(std::string name) : path_("tests/golden/amd/" + name + ".txt") {}
  void words(const std::string& title, const char* source, std::span<const uint32_t> words) {
    text_ += fmt::format("# {}\n# source: {}\n", title, source);
    for (size_t i = 0; i < words.size(); ++i)
      text_ += fmt::format("{:08x}{}", words[i], i % 8 == 7 || i + 1 == words.size() ? '\n' : ' ');
    text_ += '\n';
  }
  /// One line a packet: words, then what the decoder reads in them.
  void pm4(const std::string& title, const char* source, std::span<const uint32_t> words,
           CacheForm form) {
    text_ += fmt::format("# {}\n# source: {}\n", title, source);
    while (!words.empty()) {
      const auto decoded = pm4::decode(words, form);
      ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
      text_ += fmt::format("{:08x}  # {}\n", fmt::join(words.first(decoded->dwords), " "),
                           pm4::describe(decoded->packet));
      words = words.subspan(decoded->dwords);
    }
    text_ += '\n';
  }
  void check() const {
    if (std::getenv("BM_UPDATE_GOLDEN")) {
      std::ofstream(path_) << text_;
      return;
    }
    std::ostringstream want;
    want << std::ifstream(path_).rdbuf();
    EXPECT_EQ(text_, want.str()) << path_;
  }

 private:
  std::string path_, text_;
};

constexpr CacheForm kForms[] = {CacheForm::kCoherCntl, CacheForm::kGcr, CacheForm::kGcrNoGl1};
constexpr const char* kFormNames[] = {"gfx9", "gfx11", "gfx12"};
constexpr const char* kMemSync[] = {"gfx_v9_4_3.c gfx_v9_4_3_emit_mem_sync; soc15d.h",
                                    "gfx_v11_0.c gfx_v11_0_emit_mem_sync; nvd.h",
                                    "gfx_v12_0.c gfx_v12_0_emit_mem_sync; nvd.h"};
constexpr const char* kFence[] = {"gfx_v9_4_3.c gfx_v9_4_3_ring_emit_fence; soc15d.h",
                                  "gfx_v11_0.c gfx_v11_0_ring_emit_fence; nvd.h",
                                  "gfx_v12_0.c gfx_v12_0_ring_emit_fence; nvd.h"};

template <class Emit>
std::vector<uint32_t> pm4_words(CacheForm form, const Emit& emit) {
  std::vector<uint32_t> words;
  pm4::Writer writer(words, form);
  emit(writer);
  return words;
}

TEST(AmdGolden, Pm4) {
  Golden golden("pm4");
  constexpr auto kPlain = CacheForm::kGcr;
  constexpr uint32_t kValues[] = {0x11111111, 0x22222222};
  const auto add = [&](const char* title, const char* source, const pm4::Packet& packet) {
    const auto words = pm4_words(kPlain, [&](pm4::Writer& w) { w.put(packet); });
    golden.pm4(title, source, words, kPlain);
  };
  add("one dword of nothing", "nvd.h PACKET3_NOP; gfx_v11_0.c ring->funcs->nop", pm4::Nop{1});
  add("nothing, four dwords", "nvd.h PACKET3_NOP", pm4::Nop{4});
  add("two SH registers", "nvd.h PACKET3_SET_SH_REG, START 0x2c00",
      pm4::SetRegisters{0x2e0c, kValues});
  add("a UCONFIG register", "nvd.h PACKET3_SET_UCONFIG_REG, START 0xc000",
      pm4::SetRegisters{0xc200, std::span(kValues).first(1)});
  add("launch", "nvd.h PACKET3_DISPATCH_DIRECT", pm4::Dispatch{3, 4, 5, 0x8005});
  add("two dwords for the second chiplet", "soc15d.h PACKET3_PRED_EXEC__*",
      pm4::PredExec{.xccs = 2, .dwords = 2});
  add("wait for at least 7", "nvd.h WAIT_REG_MEM_FUNCTION, _MEM_SPACE",
      pm4::WaitMemory{.address = kFirst, .value = 7});
  add("write a register, wait for another", "nvd.h WAIT_REG_MEM_OPERATION(1)",
      pm4::WriteThenWait{0x106, 0x107, 1, 1});
  add("indirect buffer", "nvd.h PACKET3_INDIRECT_BUFFER, INDIRECT_BUFFER_VALID",
      pm4::IndirectBuffer{kFirst, 96});
  add("two dwords to memory, confirmed", "nvd.h PACKET3_WRITE_DATA, DST_SEL(5), WR_CONFIRM",
      pm4::WriteData{kFirst, kValues, true});
  add("counter to memory", "soc15d.h PACKET3_COPY_DATA__*",
      pm4::CopyData{.source_kind = 9,
                    .target_kind = 5,
                    .is_double = true,
                    .is_confirmed = true,
                    .target = kSecond});
  add("wait for kernels", "nvd.h PACKET3_EVENT_WRITE, EVENT_INDEX 4", pm4::kWaitForKernels);
  for (size_t i = 0; i < std::size(kForms); ++i) {
    const auto form = kForms[i];
    const pm4::CacheActions actions = pm4::cache_actions(form);
    golden.pm4(fmt::format("{}: all caches", kFormNames[i]), kMemSync[i],
               pm4_words(form, [&](auto& w) { w.put(pm4::AcquireMem{actions.acquire_all}); }),
               form);
    golden.pm4(fmt::format("{}: caches between kernels", kFormNames[i]), kMemSync[i],
               pm4_words(form, [&](auto& w) { w.put(pm4::AcquireMem{actions.acquire_kernel}); }),
               form);
    golden.pm4(
        fmt::format("{}: signal with 64 bits", kFormNames[i]), kFence[i],
        pm4_words(form,
                  [&](auto& w) {
                    w.put(pm4::ReleaseMem{
                        .caches = actions.release, .address = kFirst, .value = 0x1'0000'0002});
                  }),
        form);
    golden.pm4(
        fmt::format("{}: clock", kFormNames[i]), kFence[i],
        pm4_words(form,
                  [&](auto& w) {
                    w.put(pm4::ReleaseMem{.data = pm4::ReleaseData::kClock, .address = kSecond});
                  }),
        form);
    golden.pm4(fmt::format("{}: event 9 with its interrupt", kFormNames[i]), kFence[i],
               pm4_words(form,
                         [&](auto& w) {
                           w.put(pm4::ReleaseMem{.caches = actions.release,
                                                 .interrupts = true,
                                                 .address = kSecond,
                                                 .value = 9,
                                                 .context = 9});
                         }),
               form);
  }
  golden.check();
}

/// Segment bases of a card of the generation, as its IP discovery tells.
RegisterMap card_registers(const ChipRow& chip) {
  RegisterMap map;
  const uint32_t gfx9[] = {0x2000, 0xa000, 0x2402c00}, navi[] = {0x1260, 0xa000, 0x2402c00};
  const bool is_gfx9 = chip.registers == RegisterSet::kGc9_4_3;
  EXPECT_TRUE(map.add(gc_registers(chip.registers), is_gfx9 ? gfx9 : navi));
  const uint32_t bus[] = {0x0, 0x14, 0xd20};
  EXPECT_TRUE(map.add(is_gfx9 ? bus_registers(7, 9, 0) : bus_registers(4, 3, 0), bus));
  return map;
}

TEST(AmdGolden, Launch) {
  for (const ChipRow& chip : chips()) {
    Golden golden(fmt::format("launch_{}", chip.name));
    const RegisterMap registers = card_registers(chip);
    const bool is_gfx9 = chip.registers == RegisterSet::kGc9_4_3;
    const uint64_t scratch[] = {0x7f00'0000'0000, 0x7f00'1000'0000};
    pm4::Launch launch{.entry = kFirst,
                       .rsrc1 = 0x600f0081,
                       .rsrc2 = 0x00008384,
                       .rsrc3 = 0x00000010,
                       .tmpring = 0x00001020,
                       .scratch = std::span(scratch).first(is_gfx9 ? 2 : 1),
                       .threads = {64, 2, 1},
                       .groups = {7, 8, 9},
                       .is_wave32 = chip.has_wave32};
    launch.user_data[0] = 0xbcdef120;
    launch.user_data[1] = 0x0a;
    launch.num_user_data = 2;
    std::vector<uint32_t> words;
    pm4::Writer writer(words, chip.caches);
    const pm4::LaunchWords at = pm4::launch(writer, registers, chip.registers, launch);
    EXPECT_EQ(words[at.user_data], 0xbcdef120u);
    EXPECT_EQ(words[at.groups + 2], 9u);
    golden.pm4(fmt::format("{}: a launch, PM4", chip.name),
               is_gfx9
                   ? "gc_9_4_3_offset.h; LLVM AMDGPUUsage, Kernel Dispatch"
                   : "gc_11_0_0_offset.h, gc_12_0_0_offset.h; LLVM AMDGPUUsage, Kernel Dispatch",
               words, chip.caches);
    words.clear();
    pm4::flush_bar_writes(writer, registers);
    golden.pm4(fmt::format("{}: writes through the BAR", chip.name),
               "nbio_4_3_0_offset.h, nbio_7_9_0_offset.h; nbio_v4_3.c, *_hdp_flush_reg", words,
               chip.caches);
    golden.words(fmt::format("{}: a launch, AQL", chip.name),
                 "HSA System Architecture 1.2, 2.9.6 Kernel dispatch packet",
                 aql::encode(aql::Dispatch{.threads = {64, 2, 1},
                                           .grid = {448, 16, 9},
                                           .private_bytes = 256,
                                           .group_bytes = 4096,
                                           .descriptor = kFirst + 0x40,
                                           .kernarg = kSecond}));
    golden.words(fmt::format("{}: queue object", chip.name),
                 "amd_hsa_queue.h amd_queue_t; registers.h SQ_BUF_RSRC_*",
                 aql::encode_queue({.max_cu_id = 95,
                                    .max_wave_id = 31,
                                    .tmpring = 0x1020,
                                    .scratch = scratch[0],
                                    .scratch_bytes = 1 << 20,
                                    .scratch_lane_bytes = 256},
                                   chip.registers));
    golden.check();
  }
}

TEST(AmdGolden, Sdma) {
  Golden golden("sdma");
  constexpr uint32_t kValues[] = {0x11111111, 0x22222222};
  constexpr std::pair<SdmaForm, const char*> kEngines[] = {{SdmaForm::kV4_4, "4.4.2"},
                                                           {SdmaForm::kV5_2, "5.2"},
                                                           {SdmaForm::kV6, "6.0"},
                                                           {SdmaForm::kV7, "7.0"}};
  for (const auto& engine : kEngines) {
    const SdmaForm form = engine.first;
    const char* const name = engine.second;
    const auto add = [&](const char* title, const char* source, const sdma::Packet& packet) {
      std::vector<uint32_t> words;
      sdma::Writer(words, form).put(packet);
      golden.words(fmt::format("{}: {}", name, title), source, words);
    };
    add("nothing", "SDMA_OP_NOP", sdma::Nop{});
    add("two dwords passed over", "SDMA_PKT_NOP_HEADER_count", sdma::Skip{kValues});
    add("copy of 4096 bytes", "SDMA_PKT_COPY_LINEAR_*", sdma::Copy{kFirst, kSecond, 4096});
    add("largest copy", "SDMA_PKT_COPY_LINEAR_COUNT_count_mask",
        sdma::Copy{kFirst, kSecond, sdma::max_piece(form)});
    add("two dwords", "SDMA_PKT_WRITE_UNTILED_*", sdma::Write{kSecond, kValues});
    add("zero 64 bytes", "SDMA_PKT_CONSTANT_FILL_*; sdma_v4_4_2_emit_fill_buffer",
        sdma::Fill{kSecond, 64});
    add("indirect buffer", "SDMA_PKT_INDIRECT_*; sdma_v6_0_ring_emit_ib",
        sdma::Indirect{kFirst, 64});
    add("fence", "SDMA_PKT_FENCE_*; sdma_v6_0_ring_emit_fence", sdma::Fence{kFirst, 5});
    add("interrupt of event 9", "SDMA_PKT_TRAP_*", sdma::Trap{9});
    add("wait for at least 7", "SDMA_PKT_POLL_REGMEM_*", sdma::WaitMemory{kFirst, 7});
    add("clock", "SDMA_PKT_TIMESTAMP_GET_GLOBAL_*", sdma::Timestamp{kSecond});
  }
  golden.check();
}

TEST(AmdGolden, Aql) {
  Golden golden("aql");
  golden.words("PM4 in an AQL packet", "ROCR-Runtime amd_aql_queue.cpp, AqlQueue::ExecutePM4",
               aql::encode(aql::Pm4Indirect{.address = kFirst, .dwords = 96}));
  golden.words("barrier on two signals", "HSA System Architecture 1.2, 2.9.8 Barrier-AND packet",
               aql::encode(aql::BarrierAnd{.dependencies = {kFirst, kSecond}}));
  golden.words("launch in two dimensions without a barrier, scopes of the agent",
               "HSA System Architecture 1.2, 2.9.6 Kernel dispatch packet",
               aql::encode(aql::Dispatch{.header = {false, aql::Scope::kAgent, aql::Scope::kAgent},
                                         .dimensions = 2,
                                         .threads = {32, 4, 1},
                                         .grid = {64, 64, 1},
                                         .descriptor = kFirst,
                                         .kernarg = kSecond,
                                         .completion = kSecond + 64}));
  golden.check();
}

}  // namespace
}  // namespace bm::amd
