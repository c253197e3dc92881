#include "tests/unit/sim_amd_chip/boot.h"

#include <array>
#include <chrono>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "tests/patience.h"

namespace bm::test {

using namespace bm::sim::amd;

std::vector<std::byte> signed_image(uint32_t bytes) {
  std::vector<std::byte> image(bytes, std::byte{0x11});
  const uint32_t is_signed = bytes - 0x200;
  std::memcpy(&image[0x10], "$PS1", 4);
  std::memcpy(&image[0x14], &is_signed, 4);
  return image;
}

Bench::Bench(ChipOptions options) : function_(std::make_unique<ChipFunction>(options)) {
  (void)function_->resize_bar(0, options.vram_bytes);
  registers_ = *function_->map_bar(5);
  memory_ = *function_->map_bar_memory(0, true);
  doorbells_ = *function_->map_bar_memory(2, false);
  (void)function_->write_config(4, 2, 6);
}

uint32_t Bench::read_at(uint32_t address) {
  if (address * 4ull < Chip::kRegisterBytes) return registers_.read32(address * 4ull);
  write(Ip::kNbio, "BIF_BX_PF0_RSMU_INDEX", address * 4);
  return read(Ip::kNbio, "BIF_BX_PF0_RSMU_DATA");
}
void Bench::write_at(uint32_t address, uint32_t value) {
  if (address * 4ull < Chip::kRegisterBytes) return registers_.write32(address * 4ull, value);
  write(Ip::kNbio, "BIF_BX_PF0_RSMU_INDEX", address * 4);
  write(Ip::kNbio, "BIF_BX_PF0_RSMU_DATA", value);
}
uint32_t Bench::read(Ip ip, const std::string& name) {
  return read_at(chip().registers().address_of(ip, name).value());
}
void Bench::write(Ip ip, const std::string& name, uint32_t value) {
  write_at(chip().registers().address_of(ip, name).value(), value);
}
uint32_t Bench::field(Ip ip, const std::string& name, const std::string& field, uint32_t value) {
  return chip().registers().field(ip, name, field).put(value);
}
bool Bench::poll(Ip ip, const std::string& name, uint32_t mask, uint32_t wanted) {
  for (int i = 0; i < 1000; ++i)
    if ((read(ip, name) & mask) == wanted) return true;
  return false;
}

void Bench::store(uint64_t offset, std::span<const uint32_t> words) {
  memory_.copy_in(offset, words);
}
void Bench::store64(uint64_t offset, uint64_t value) { memory_.store<uint64_t>(offset, value); }
uint32_t Bench::load(uint64_t offset) { return memory_.load<uint32_t>(offset); }
void Bench::flush_hdp() { write_at(read(Ip::kNbio, "BIF_BX0_REMAP_HDP_MEM_FLUSH_CNTL") / 4, 0); }

uint64_t Bench::pte_flags() {
  const uint64_t leaf = is_gfx12() ? uint64_t{1} << 63 : 0;
  return 1 | 0x10 | 0x20 | 0x40 | leaf;  // valid, executable, readable, writable
}

/// Four levels, one table of each.
void Bench::map(uint64_t va, uint64_t physical, uint64_t flags) {
  const uint64_t page = (va - kVaBase) >> 12;
  store64(kRoot + 0x3000 + page * 8, physical | flags);
}

void Bench::set_up_hub(HubKind kind) {
  const Ip ip = kind == HubKind::kGc ? Ip::kGc : Ip::kMmhub;
  const std::string p = kind == HubKind::kGc ? "GC" : "MM";
  const uint64_t fb = uint64_t{read(ip, p + "MC_VM_FB_LOCATION_BASE")} << 24,
                 top = uint64_t{read(ip, p + "MC_VM_FB_LOCATION_TOP")} << 24;
  write(ip, p + "MC_VM_SYSTEM_APERTURE_LOW_ADDR", static_cast<uint32_t>(fb >> 18));
  write(ip, p + "MC_VM_SYSTEM_APERTURE_HIGH_ADDR", static_cast<uint32_t>((top | 0xffffff) >> 18));
  write(ip, p + "MC_VM_MX_L1_TLB_CNTL",
        field(ip, p + "MC_VM_MX_L1_TLB_CNTL", "ENABLE_L1_TLB", 1) |
            field(ip, p + "MC_VM_MX_L1_TLB_CNTL", "SYSTEM_ACCESS_MODE", 3));
  const std::string context = p + "VM_CONTEXT0_";
  const auto pair = [&](const std::string& name, uint64_t value) {
    write(ip, name + "_LO32", static_cast<uint32_t>(value));
    write(ip, name + "_HI32", static_cast<uint32_t>(value >> 32));
  };
  const std::vector<uint32_t> empty(0x4000 / 4);
  store(kRoot, empty);
  for (uint64_t level = 0; level < 3; ++level)
    store64(kRoot + level * 0x1000, (kRoot + (level + 1) * 0x1000) | 1);
  for (uint32_t i = 0; i < kPages; ++i) map(kVaBase + i * 4096, kData + i * 4096, pte_flags());
  flush_hdp();
  pair(context + "PAGE_TABLE_START_ADDR", kVaBase >> 12);
  pair(context + "PAGE_TABLE_END_ADDR", (kVaBase + (uint64_t{1} << 40)) >> 12);
  pair(context + "PAGE_TABLE_BASE_ADDR", kRoot | 1);
  for (int i = 0; i < 18; ++i)
    pair(fmt::format("{}VM_INVALIDATE_ENG{}_ADDR_RANGE", p, i), 0x1fffffffff);
  write(ip, context + "CNTL",
        field(ip, context + "CNTL", "ENABLE_CONTEXT", 1) |
            field(ip, context + "CNTL", "PAGE_TABLE_DEPTH", 3) |
            field(ip, context + "CNTL", "VALID_PROTECTION_FAULT_ENABLE_INTERRUPT", 1));
}

void Bench::flush_tlb(HubKind kind) {
  const Ip ip = kind == HubKind::kGc ? Ip::kGc : Ip::kMmhub;
  const std::string engine =
      std::string(kind == HubKind::kGc ? "GC" : "MM") + "VM_INVALIDATE_ENG17_";
  flush_hdp();
  if (kind == HubKind::kMm) poll(ip, engine + "SEM", 1, 1);
  uint32_t request = 1;
  for (const char* const what : {"INVALIDATE_L2_PTES", "INVALIDATE_L2_PDE0", "INVALIDATE_L2_PDE1",
                                 "INVALIDATE_L2_PDE2", "INVALIDATE_L1_PTES"})
    request |= field(ip, engine + "REQ", what, 1);
  write(ip, engine + "REQ", request);
  poll(ip, engine + "ACK", 1, 1);
  if (kind == HubKind::kMm) write(ip, engine + "SEM", 0);
}

namespace {
std::string psp_register(Chip& chip, int number) {
  return fmt::format("{}_SMN_C2PMSG_{}", chip.row().generation == 12 ? "MPASP" : "MP0", number);
}
}  // namespace

bool Bench::boot_os() {
  const auto image = signed_image(0x2200);
  const auto words = std::span(reinterpret_cast<const uint32_t*>(image.data()), image.size() / 4);
  const uint64_t base = uint64_t{read(Ip::kMmhub, "MMMC_VM_FB_LOCATION_BASE")} << 24;
  for (const uint32_t step :
       {0x80000u, 0x10000000u, 0x10000u, 0xb0000u, 0xd0000u, 0xc0000u, 0xe0000u, 0x20000u}) {
    if (!poll(Ip::kMp0, psp_register(chip(), 35), UINT32_MAX, 0x80000000)) return false;
    store(kMessage, words);
    flush_hdp();
    write(Ip::kMp0, psp_register(chip(), 36), static_cast<uint32_t>((base + kMessage) >> 20));
    write(Ip::kMp0, psp_register(chip(), 35), step);
  }
  for (int i = 0; i < 1000; ++i)
    if (read(Ip::kMp0, psp_register(chip(), 81)) != 0) return true;
  return false;
}

void Bench::make_ring() {
  const uint64_t ring = (uint64_t{read(Ip::kMmhub, "MMMC_VM_FB_LOCATION_BASE")} << 24) + kFrames;
  poll(Ip::kMp0, psp_register(chip(), 64), 0x80000000, 0x80000000);
  write(Ip::kMp0, psp_register(chip(), 69), static_cast<uint32_t>(ring));
  write(Ip::kMp0, psp_register(chip(), 70), static_cast<uint32_t>(ring >> 32));
  write(Ip::kMp0, psp_register(chip(), 71), 0x10000);
  write(Ip::kMp0, psp_register(chip(), 64), 2u << 16);
  poll(Ip::kMp0, psp_register(chip(), 64), 0x8000ffff, 0x80000000);
}

uint32_t Bench::command(uint32_t id, std::span<const uint32_t> arguments) {
  const uint64_t base = uint64_t{read(Ip::kMmhub, "MMMC_VM_FB_LOCATION_BASE")} << 24;
  std::vector<uint32_t> words(256);
  words[2] = id;
  std::ranges::copy(arguments, words.begin() + 7);
  words[216] = 0xbad;
  store(kCommand, words);
  const uint64_t at = base + kCommand, fence = base + kFence;
  const std::array<uint32_t, 16> frame = {
      static_cast<uint32_t>(at),    static_cast<uint32_t>(at >> 32),    1024,
      static_cast<uint32_t>(fence), static_cast<uint32_t>(fence >> 32), ++fence_};
  store(kFrames + frame_ * 4, frame);
  flush_hdp();
  frame_ += 16;
  write(Ip::kMp0, psp_register(chip(), 67), frame_);
  return load(kFence) == fence_ ? load(kCommand + 864) : UINT32_MAX;
}

uint32_t Bench::load(FirmwareType type, std::span<const std::byte> image) {
  const uint64_t at = (uint64_t{read(Ip::kMmhub, "MMMC_VM_FB_LOCATION_BASE")} << 24) + kMessage;
  memory_.copy_in(kMessage, image);
  flush_hdp();
  return command(
      6, std::array<uint32_t, 4>{static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32),
                                 static_cast<uint32_t>(image.size()), static_cast<uint32_t>(type)});
}

void Bench::load_all_firmware() {
  using enum FirmwareType;
  const auto image = signed_image(0x1200);
  load(kSmu, image);
  const uint64_t base = uint64_t{read(Ip::kMmhub, "MMMC_VM_FB_LOCATION_BASE")} << 24;
  if (!is_gfx12()) {
    const uint64_t at = base + kMessage;
    memory_.copy_in(kMessage, std::span<const std::byte>(image));
    flush_hdp();
    command(0x20,
            std::array<uint32_t, 3>{static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32),
                                    static_cast<uint32_t>(image.size())});
    const uint64_t region = base + kTmr;
    command(5, std::array<uint32_t, 3>{static_cast<uint32_t>(region),
                                       static_cast<uint32_t>(region >> 32), 0xe00000});
  }
  for (const FirmwareType type :
       {kImuI, kImuD, kRlcG, kRlcIram, kRlcDram, kRs64Mec, kRs64MecStack, kSdmaTh0, kSdmaTh1,
        kRs64Pfp, kRs64Me, kRs64PfpStack, kRs64MeStack})
    load(type, image);
  command(0x21, {});
}

void Bench::start_mec() {
  const uint64_t start = chip().options().mec_start;
  write(Ip::kGc, "GRBM_GFX_CNTL", field(Ip::kGc, "GRBM_GFX_CNTL", "MEID", 1));
  write(Ip::kGc, "CP_MEC_RS64_PRGRM_CNTR_START", static_cast<uint32_t>(start));
  write(Ip::kGc, "CP_MEC_RS64_PRGRM_CNTR_START_HI", static_cast<uint32_t>(start >> 32));
  write(Ip::kGc, "GRBM_GFX_CNTL", 0);
  const char* const reg = "CP_MEC_RS64_CNTL";
  write(Ip::kGc, reg,
        field(Ip::kGc, reg, "MEC_PIPE0_RESET", 1) | field(Ip::kGc, reg, "MEC_HALT", 1));
  write(Ip::kGc, reg, field(Ip::kGc, reg, "MEC_PIPE0_ACTIVE", 1));
  write(Ip::kGc, "SH_MEM_CONFIG", 0xc00c);
  write(Ip::kGc, "CP_MEC_DOORBELL_RANGE_LOWER", 0);
  write(Ip::kGc, "CP_MEC_DOORBELL_RANGE_UPPER", 0xf8);
  write(Ip::kNbio, "RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN", 1);
  const std::string entry = is_gfx12() ? "GDC_S2A0_S2A_DOORBELL_ENTRY_" : "S2A_DOORBELL_ENTRY_";
  write(Ip::kNbio, entry + "0_CTRL", 0x30000007);
}

void Bench::make_queue() {
  const uint64_t base = uint64_t{read(Ip::kMmhub, "MMMC_VM_FB_LOCATION_BASE")} << 24;
  std::vector<uint32_t> mqd(0x100);
  mqd[0] = 0xc0310800;
  // v11_structs.h, v11_compute_mqd.
  mqd[0x80] = static_cast<uint32_t>(base + kMqd);
  mqd[0x81] = static_cast<uint32_t>((base + kMqd) >> 32);
  mqd[0x88] = static_cast<uint32_t>(kRingVa >> 8);
  mqd[0x89] = static_cast<uint32_t>(kRingVa >> 40);
  mqd[0x8b] = static_cast<uint32_t>(kPointersVa);
  mqd[0x8c] = static_cast<uint32_t>(kPointersVa >> 32);
  mqd[0x8d] = static_cast<uint32_t>(kPointersVa + 8);
  mqd[0x8e] = static_cast<uint32_t>(kPointersVa >> 32);
  mqd[0x8f] = 1u << 30 | 6 << 2;  // doorbell 3
  mqd[0x91] = 11;                 // 4096 dwords
  mqd[0xa5] = static_cast<uint32_t>(kEopVa >> 8);
  mqd[0xa6] = static_cast<uint32_t>(kEopVa >> 40);
  mqd[0xa7] = 8;
  store(kMqd, mqd);
  flush_hdp();
  write(Ip::kGc, "GRBM_GFX_CNTL", field(Ip::kGc, "GRBM_GFX_CNTL", "MEID", 1));
  const uint32_t first = chip().registers().address_of(Ip::kGc, "CP_MQD_BASE_ADDR").value();
  for (uint32_t i = 0x80; i < 0xb8; ++i)
    if (i != 0x82) write_at(first + i - 0x80, mqd[i]);
  write(Ip::kGc, "CP_HQD_ACTIVE", 1);
  write(Ip::kGc, "GRBM_GFX_CNTL", 0);
  written_ = 0;
}

void Bench::make_copy_queue() {
  const std::string halt = is_gfx12() ? "SDMA0_MCU_CNTL" : "SDMA0_F32_CNTL", q = "SDMA0_QUEUE0_";
  write(Ip::kGc, halt, 0);
  const auto pair = [&](const std::string& lo, const std::string& hi, uint64_t value) {
    write(Ip::kGc, q + lo, static_cast<uint32_t>(value));
    write(Ip::kGc, q + hi, static_cast<uint32_t>(value >> 32));
  };
  pair("RB_RPTR", "RB_RPTR_HI", 0);
  pair("RB_WPTR", "RB_WPTR_HI", 0);
  pair("RB_BASE", "RB_BASE_HI", kCopyRingVa >> 8);
  pair("RB_RPTR_ADDR_LO", "RB_RPTR_ADDR_HI", kPointersVa + 16);
  pair("RB_WPTR_POLL_ADDR_LO", "RB_WPTR_POLL_ADDR_HI", kPointersVa + 24);
  write(Ip::kGc, q + "DOORBELL_OFFSET", field(Ip::kGc, q + "DOORBELL_OFFSET", "OFFSET", 0x200));
  write(Ip::kGc, q + "DOORBELL", field(Ip::kGc, q + "DOORBELL", "ENABLE", 1));
  write(Ip::kGc, "SDMA0_CNTL", field(Ip::kGc, "SDMA0_CNTL", "TRAP_ENABLE", 1));
  write(Ip::kGc, q + "RB_CNTL",
        field(Ip::kGc, q + "RB_CNTL", "RB_ENABLE", 1) |
            field(Ip::kGc, q + "RB_CNTL", "RB_SIZE", 10) |
            field(Ip::kGc, q + "RB_CNTL", "RPTR_WRITEBACK_ENABLE", 1));
  const std::string entry =
      fmt::format("{}S2A_DOORBELL_ENTRY_2_CTRL", is_gfx12() ? "GDC_S2A0_" : "");
  write(Ip::kNbio, entry, 1 | 0xe << 1 | 0x200 << 7 | 4 << 17 | 3u << 28);
  copy_written_ = 0;
}

void Bench::boot() {
  set_up_hub(HubKind::kMm);
  const uint64_t ring = (uint64_t{read(Ip::kMmhub, "MMMC_VM_FB_LOCATION_BASE")} << 24) + kIhRing;
  write(Ip::kOsssys, "IH_RB_BASE", static_cast<uint32_t>(ring >> 8));
  write(Ip::kOsssys, "IH_RB_BASE_HI", static_cast<uint32_t>(ring >> 40));
  write(Ip::kOsssys, "IH_RB_CNTL",
        field(Ip::kOsssys, "IH_RB_CNTL", "RB_ENABLE", 1) |
            field(Ip::kOsssys, "IH_RB_CNTL", "RB_SIZE", 12) |
            field(Ip::kOsssys, "IH_RB_CNTL", "MC_SPACE", 4) |
            field(Ip::kOsssys, "IH_RB_CNTL", "ENABLE_INTR", 1) |
            field(Ip::kOsssys, "IH_RB_CNTL", "WPTR_OVERFLOW_ENABLE", 1));
  boot_os();
  make_ring();
  load_all_firmware();
  set_up_hub(HubKind::kGc);
  start_mec();
  make_queue();
  make_copy_queue();
}

void Bench::submit(std::span<const uint32_t> words) {
  store(kData + written_ * 4, words);
  written_ += words.size();
  store64(kData + (kPointersVa - kVaBase) + 8, written_);
  flush_hdp();
  doorbells_.store<uint64_t>(24, written_);
}

void Bench::submit_copy(std::span<const uint32_t> words) {
  store(kData + (kCopyRingVa - kVaBase) + copy_written_, words);
  copy_written_ += words.size() * 4;
  store64(kData + (kPointersVa - kVaBase) + 24, copy_written_);
  flush_hdp();
  doorbells_.store<uint64_t>(0x800, copy_written_);
}

bool Bench::wait_for(uint64_t offset, uint32_t value) {
  const auto deadline = std::chrono::steady_clock::now() + patience(std::chrono::seconds(10));
  while (std::chrono::steady_clock::now() < deadline) {
    if (load(offset) == value) return true;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return false;
}

uint32_t Bench::send_message(uint32_t message, uint32_t argument, uint32_t* result) {
  // smu_v13_0_0_ppt.c, mmMP1_SMN_C2PMSG_*.
  const uint32_t base = chip().row().ip(Ip::kMp1).bases[0];
  write_at(base + 0x29a, 0);
  write_at(base + 0x292, argument);
  write_at(base + 0x282, message);
  for (int i = 0; i < 100; ++i)
    if (const uint32_t answer = read_at(base + 0x29a); answer != 0) {
      if (result != nullptr) *result = read_at(base + 0x292);
      return answer;
    }
  return 0;
}

}  // namespace bm::test
