#include "drivers/amd/am/psp.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/base/bits.h"

namespace bm::amd::am {
namespace {

using firmware::amd::Kind;
using firmware::amd::PartId;

constexpr uint64_t kMebibyte = 1 << 20, kPage = 4096;
constexpr uint32_t kRingBytes = 0x10000;
// enum psp_gfx_cmd_id.
constexpr uint32_t kSetupTmr = 5, kLoadIpFirmware = 6, kLoadToc = 0x20, kAutoloadRlc = 0x21,
                   kSpatialPartition = 0x27;
// C2PMSG_64: enum psp_gfx_crtl_cmd_id and enum psp_ring_type (kernel mode) << 16.
constexpr uint32_t kDestroyRings = 0x30000, kRingKernelMode = 2u << 16;
constexpr uint32_t kReady = 0x80000000u, kReadyWithoutError = 0x8000ffffu;
constexpr uint32_t kVirtualAddress = 1u << 1;  // psp_gfx_cmd_setup_tmr: virt_phy_addr
// TIMEOUT: components take up to a second each (psp_v13_0_wait_for_bootloader: ten turns of
// psp_timeout = 20 s where the board trains memory); ten seconds.
constexpr uint64_t kBootloaderTimeoutUs = 10'000'000;
// TIMEOUT: firmware files take milliseconds; the kernel gives a command psp_timeout = 20 s.
constexpr uint64_t kCommandTimeoutUs = 20'000'000;
// "There might be handshake issue with hardware which needs delay": psp_v13_0_ring_create waits
// 20 ms after creating and destroying rings.
constexpr uint64_t kHandshakeUs = 20'000;

At mailbox(Reg reg) { return {Block::kPsp, reg}; }

void put_address(PspCommand* words, size_t at, uint64_t address) {
  (*words)[at] = lo32(address);
  (*words)[at + 1] = hi32(address);
}

constexpr size_t kCommandId = 2, kArguments = 7;  // dwords of psp_gfx_cmd_resp

PspCommand command(uint32_t id) {
  PspCommand words{};
  words[kCommandId] = id;
  return words;
}

struct Component {
  PartId part;
  uint32_t command;  ///< enum psp_bootloader_cmd
  std::string_view name;
};
// The order of psp_hw_start(). A file has those that its chip wants.
constexpr Component kComponents[] = {
    {PartId::kKdb, 0x80000, "KDB"},
    {PartId::kSpl, 0x10000000, "SPL"},
    {PartId::kSysDrv, 0x10000, "SYS_DRV"},
    {PartId::kSocDrv, 0xb0000, "SOC_DRV"},
    {PartId::kIntfDrv, 0xd0000, "INTF_DRV"},
    {PartId::kDbgDrv, 0xc0000, "DBG_DRV"},
    {PartId::kRasDrv, 0xe0000, "RAS_DRV"},
    {PartId::kIpkeymgrDrv, 0xf0000, "IPKEYMGR_DRV"},
    {PartId::kSpdmDrv, 0x20000000, "SPDM_DRV"},
    {PartId::kSos, 0x20000, "SOS"},
};
constexpr uint32_t kLoadSos = 0x20000;

}  // namespace

PspFrame encode_psp_frame(uint64_t command_address, uint64_t fence, uint32_t fence_value) {
  PspFrame words{};
  words[0] = lo32(command_address);
  words[1] = hi32(command_address);
  words[3] = lo32(fence);
  words[4] = hi32(fence);
  words[5] = fence_value;
  return words;
}

PspCommand encode_load_toc(uint64_t address, uint32_t bytes) {
  PspCommand words = command(kLoadToc);
  put_address(&words, kArguments, address);
  words[kArguments + 2] = bytes;
  return words;
}

PspCommand encode_load_firmware(uint64_t address, uint32_t bytes, uint32_t type) {
  PspCommand words = command(kLoadIpFirmware);
  put_address(&words, kArguments, address);
  words[kArguments + 2] = bytes;
  words[kArguments + 3] = type;
  return words;
}

PspCommand encode_setup_tmr(uint64_t address, uint64_t physical, uint32_t bytes) {
  PspCommand words = command(kSetupTmr);
  put_address(&words, kArguments, address);
  words[kArguments + 2] = bytes;
  words[kArguments + 3] = kVirtualAddress;
  put_address(&words, kArguments + 4, physical);
  return words;
}

PspCommand encode_autoload() { return command(kAutoloadRlc); }

PspCommand encode_partitions(uint32_t count) {
  PspCommand words = command(kSpatialPartition);
  words[kArguments] = count;
  return words;
}

PspReply decode_psp_reply(std::span<const std::byte, kPspCommandBytes> bytes) {
  constexpr size_t kTmrSize = 16;
  PspReply reply;
  std::memcpy(&reply.status, bytes.data() + kPspReplyOffset, sizeof reply.status);
  std::memcpy(&reply.tmr_bytes, bytes.data() + kPspReplyOffset + kTmrSize, sizeof reply.tmr_bytes);
  return reply;
}

Status Psp::allocate_boot() {
  message_ = BM_TRY(memory_.allocate_boot(kMebibyte, kMebibyte, "PSP messages"));
  command_ = BM_TRY(memory_.allocate_boot(kPage, kPage, "PSP command"));
  fence_ = BM_TRY(memory_.allocate_boot(kPage, kPage, "PSP fence"));
  ring_ = BM_TRY(memory_.allocate_boot(kRingBytes, kPage, "PSP ring"));
  return {};
}

bool Psp::is_alive() { return bus_.read(mailbox(Reg::SMN_C2PMSG_81)) != 0; }

Status Psp::wait_bootloader() {
  return bus_.wait_for(mailbox(Reg::SMN_C2PMSG_35), kReady, kReady, kBootloaderTimeoutUs,
                       "the PSP's bootloader is not ready");
}

Status Psp::put_message(std::string_view name, std::span<const std::byte> bytes) {
  if (bytes.size() > kMebibyte)
    return fail(Code::kCorrupt, "{}: {} bytes, and the PSP takes a mebibyte at a time", name,
                bytes.size());
  // What an earlier, longer part left behind is not the PSP's business.
  std::vector<std::byte> whole(align_up(bytes.size() + 4, size_t{16}));
  std::memcpy(whole.data(), bytes.data(), bytes.size());
  whole.resize(std::min<size_t>(whole.size(), kMebibyte));
  bus_.write_memory(message_, whole);
  gmc_.flush_hdp();
  return bus_.status();
}

Status Psp::send_component(uint32_t bootloader_command, std::string_view name,
                           std::span<const std::byte> bytes) {
  BM_TRY(wait_bootloader());
  BM_TRY(put_message(name, bytes));
  bus_.write(mailbox(Reg::SMN_C2PMSG_36),
             static_cast<uint32_t>(gmc_.controller_address(message_) >> 20));
  bus_.write(mailbox(Reg::SMN_C2PMSG_35), bootloader_command);
  if (bootloader_command == kLoadSos) {
    bus_.sleep_us(kHandshakeUs);
    return bus_.status();
  }
  if (Status ready = wait_bootloader(); !ready) {
    if (ready.error().code != Code::kTimeout) return ready;
    return fail(Code::kTimeout, "component {}: {}", name, ready.error().message);
  }
  return {};
}

Result<bool> Psp::wants_aux(const firmware::amd::Ucode& sos) {
  constexpr uint64_t kPmfwVersion = 0x3b10090 / 4;  // regMP1_PUB_SCRATCH0, psp_v13_0.c
  if (sos.find(PartId::kSos, true) == nullptr) return false;
  const uint32_t version = bus_.read_dword(kPmfwVersion);
  BM_TRY(bus_.status());
  return firmware::amd::needs_aux_sos(version);
}

Status Psp::load_system(const Firmware& firmware) {
  const firmware::amd::Ucode* sos = firmware.find(Kind::kSos);
  if (sos == nullptr) return fail(Code::kUnsupported, "the card's set of files has no SOS file");
  const bool is_aux = BM_TRY(wants_aux(*sos));
  for (const Component& row : kComponents) {
    const auto* part = sos->find(row.part, is_aux);
    if (part == nullptr || part->bytes.empty()) continue;
    BM_TRY(send_component(row.command, row.name, part->bytes));
    has_taken_any_ = true;
  }
  // The register becomes something; what depends on the version.
  const uint64_t begun = bus_.clock().now_us();
  while (!is_alive()) {
    BM_TRY(bus_.status());
    if (bus_.clock().now_us() - begun > kBootloaderTimeoutUs)
      return fail(
          Code::kTimeout,
          "{} stays 0 after SOS was handed over: the PSP refused the file (is it the chip's, "
          "and newer than what the board demands?)",
          bus_.name(mailbox(Reg::SMN_C2PMSG_81)));
    bus_.sleep_us(1000);
  }
  return bus_.status();
}

Status Psp::create_ring() {
  if (bus_.read(mailbox(Reg::SMN_C2PMSG_71)) != 0) {
    bus_.write(mailbox(Reg::SMN_C2PMSG_64), kDestroyRings);
    bus_.sleep_us(kHandshakeUs);
  }
  BM_TRY(bus_.wait_for(mailbox(Reg::SMN_C2PMSG_64), kReady, kReady, kCommandTimeoutUs,
                       "the PSP's system is not ready for a ring"));
  bus_.fill_memory(ring_, kRingBytes);
  bus_.fill_memory(fence_, kPage);
  gmc_.flush_hdp();
  bus_.write_pair(Block::kPsp, Reg::SMN_C2PMSG_69, Reg::SMN_C2PMSG_70,
                  gmc_.controller_address(ring_));
  bus_.write(mailbox(Reg::SMN_C2PMSG_71), kRingBytes);
  bus_.write(mailbox(Reg::SMN_C2PMSG_64), kRingKernelMode);
  bus_.sleep_us(kHandshakeUs);
  fence_value_ = 0;
  return bus_.wait_for(mailbox(Reg::SMN_C2PMSG_64), kReadyWithoutError, kReady, kCommandTimeoutUs,
                       "the PSP did not create the ring");
}

/// Source: psp_ring_cmd_submit(), psp_cmd_submit_buf().
Result<PspReply> Psp::submit(const PspCommand& words, std::string_view what) {
  const uint32_t written = bus_.read(mailbox(Reg::SMN_C2PMSG_67));  // in dwords
  BM_TRY(bus_.status());
  if (written % (kPspFrameBytes / 4) != 0 || written >= kRingBytes / 4)
    return fail(Code::kCorrupt, "{}: the PSP's ring pointer is {:#x}", what, written);
  const PspFrame frame = encode_psp_frame(gmc_.controller_address(command_),
                                          gmc_.controller_address(fence_), ++fence_value_);
  bus_.write_memory(command_, std::as_bytes(std::span(words)));
  bus_.write_memory(ring_ + uint64_t{written} * 4, std::as_bytes(std::span(frame)));
  gmc_.flush_hdp();
  bus_.write(mailbox(Reg::SMN_C2PMSG_67), (written + kPspFrameBytes / 4) % (kRingBytes / 4));
  const uint64_t begun = bus_.clock().now_us();
  for (uint32_t turn = 0; bus_.read_memory_word(fence_) != fence_value_; ++turn) {
    BM_TRY(bus_.status());
    const uint64_t waited = bus_.clock().now_us() - begun;
    if (waited > kCommandTimeoutUs)
      return fail(Code::kTimeout,
                  "PSP command {}: no answer in {} ms (ring pointer {:#x}, fence {})", what,
                  waited / 1000, written, fence_value_);
    if (turn > 16) bus_.sleep_us(std::clamp<uint64_t>(waited / 8, 20, 2000));
  }
  std::array<std::byte, kPspCommandBytes> answer{};
  bus_.read_memory(command_, answer);
  BM_TRY(bus_.status());
  const PspReply reply = decode_psp_reply(answer);
  if (reply.status != 0)
    return fail(
        Code::kIo,
        "PSP command {}: status {:#x}; the file may not be this chip's, or older than what the "
        "board demands",
        what, reply.status);
  return reply;
}

Status Psp::load(const LoadItem& item) {
  BM_TRY(put_message(item.name, item.bytes));
  BM_TRY(submit(encode_load_firmware(gmc_.controller_address(message_),
                                     static_cast<uint32_t>(item.bytes.size()), item.type),
                fmt::format("LOAD_IP_FW {} (type {})", item.name, item.type)));
  return {};
}

Status Psp::setup_protected_memory(const Card& card, const Firmware& firmware) {
  if (card.generation->protected_memory == ProtectedMemory::kAtBootWanted) {
    BM_TRY(submit(encode_setup_tmr(0, 0, 0), "SETUP_TMR (the boot loader's)"));
    return {};
  }
  const bool is_boot_time = card.generation->protected_memory == ProtectedMemory::kAtBoot;
  uint32_t bytes = 0;
  const firmware::amd::Ucode* sos = firmware.find(Kind::kSos);
  const auto* toc = sos == nullptr ? nullptr : sos->find(PartId::kToc);
  if (toc != nullptr && !toc->bytes.empty()) {
    BM_TRY(put_message("TOC", toc->bytes));
    const PspReply reply = BM_TRY(submit(encode_load_toc(gmc_.controller_address(message_),
                                                         static_cast<uint32_t>(toc->bytes.size())),
                                         "LOAD_TOC"));
    bytes = reply.tmr_bytes;
  }
  const LoadItem smu = BM_TRY(smu_item(card, firmware));
  BM_TRY(load(smu));
  if (is_boot_time) return {};
  if (bytes == 0)
    return fail(Code::kCorrupt, "the PSP's answer to LOAD_TOC names no size of protected memory");
  // As large as the table says: Navi32's is larger than Navi31's.
  const uint64_t at = BM_TRY(memory_.boot_rest(bytes, kMebibyte, "the PSP's protected memory"));
  BM_TRY(submit(encode_setup_tmr(gmc_.controller_address(at), at, bytes), "SETUP_TMR"));
  return {};
}

Status Psp::load_firmware(const Card& card, const Firmware& firmware) {
  const firmware::amd::Ucode* sos = firmware.find(Kind::kSos);
  const bool is_aux = sos != nullptr && BM_TRY(wants_aux(*sos));
  const std::vector<LoadItem> items = BM_TRY(load_items(card, firmware, is_aux));
  for (const LoadItem& item : items) BM_TRY(load(item));
  if (card.generation->processor == ProcessorKind::kRs64)
    BM_TRY(submit(encode_autoload(), "AUTOLOAD_RLC"));
  return {};
}

Status Psp::set_partitions(uint32_t count) {
  BM_TRY(submit(encode_partitions(count), fmt::format("SPATIAL_PART {}", count)));
  return {};
}

}  // namespace bm::amd::am
