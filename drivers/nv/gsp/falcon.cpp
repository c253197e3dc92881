#include "drivers/nv/gsp/falcon.h"

#include <cstring>
#include <vector>

#include "runtime/base/bits.h"
#include "runtime/base/check.h"

namespace bm::nv::gsp {
namespace {

using namespace falcon_reg;

// TIMEOUT: memories are scrubbed in 10 to 20 ms (nova-core); 200 ms cover a slow bus.
constexpr uint64_t kScrubUs = 200'000;
// TIMEOUT: a core is switched in 10 ms (nova-core); as above.
constexpr uint64_t kSwitchUs = 200'000;
// TIMEOUT: RESET_READY does not always come, and the kernel's module goes on after 150 us.
constexpr uint64_t kReadyUs = 150;
// TIMEOUT: a block of 256 bytes is fetched in microseconds; the kernel gives it 2 s.
constexpr uint64_t kDmaUs = 2'000'000;
constexpr uint32_t kBlock = 256;

std::vector<uint32_t> words_of(std::span<const std::byte> bytes) {
  std::vector<uint32_t> words(bytes.size() / 4 + (bytes.size() % 4 != 0));
  if (!bytes.empty()) std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

}  // namespace

Status Falcon::wait_scrubbed() {
  switch (generation_.riscv) {
    case RiscvStatus::kCoreSwitch:
      return bus_.wait_for(reg(kDmactl), kDmactlScrubbing, 0, kScrubUs,
                           fmt::format("{}'s memories are not scrubbed", name_));
    case RiscvStatus::kCpuctl:
      return bus_.wait_for(reg(kHwcfg2), kHwcfg2Scrubbing, 0, kScrubUs,
                           fmt::format("{}'s memories are not scrubbed", name_));
  }
  __builtin_unreachable();
}

Status Falcon::reset_engine() {
  if (generation_.riscv == RiscvStatus::kCpuctl)
    BM_TRY(
        bus_.poll(kReadyUs, [&] { return (bus_.probe(reg(kHwcfg2)) & kHwcfg2ResetReady) != 0; }));
  bus_.update(reg(kEngine), 1, 1);
  bus_.sleep_us(10);
  bus_.update(reg(kEngine), 1, 0);
  return wait_scrubbed();
}

Status Falcon::reset() {
  BM_TRY(reset_engine());
  // Turing and GA100 have no switch: the core that is started runs.
  if (generation_.riscv == RiscvStatus::kCpuctl && (bus_.read(reg(kHwcfg2)) & kHwcfg2Riscv) != 0 &&
      (bus_.read(reg(kBcrControl)) & kBcrRiscv) != 0) {
    bus_.write(reg(kBcrControl), 0);
    BM_TRY(bus_.wait_for(reg(kBcrControl), kBcrValid, kBcrValid, kSwitchUs,
                         fmt::format("{} does not switch to its falcon core", name_)));
    BM_TRY(wait_scrubbed());
  }
  bus_.write(reg(kRm), bus_.read(reg::kBoot0));
  return bus_.status();
}

Status Falcon::reset_into_riscv() {
  if (generation_.riscv == RiscvStatus::kCoreSwitch) return reset();
  BM_TRY(reset_engine());
  bus_.write(reg(kBcrControl), kBcrRiscv | kBcrValid | kBcrFetch);
  return bus_.status();
}

void Falcon::allow_no_context() {
  bus_.update(reg(kFbifControl), kFbifPhysicalNoContext, kFbifPhysicalNoContext);
  bus_.write(reg(kDmactl), 0);
}

void Falcon::allow_system_memory(uint32_t index) {
  allow_no_context();
  bus_.update(reg(kTransferConfig.of(index)), kTransferMask, kTransferSystem);
}

/// Blocks of 256 bytes at `base` + `memory_offset` and on: the offset is code's virtual address, by
/// which its blocks are tagged.
Status Falcon::copy(uint32_t to, uint32_t memory_offset, uint64_t base, uint32_t bytes,
                    uint32_t command, std::string_view what) {
  if (base % kBlock != 0 || base >> 49 != 0)
    return fail(Code::kUnsupported,
                "{}: {} lies at {:#x}, and a falcon fetches 256 bytes below {:#x}", name_, what,
                base, uint64_t{1} << 49);
  const std::string waiting = fmt::format("{} does not fetch {}", name_, what);
  BM_TRY(bus_.wait_for(reg(kDmaCommand), kDmaFull, 0, kDmaUs, waiting));
  bus_.write(reg(kDmaBase), static_cast<uint32_t>(base >> 8));
  bus_.write(reg(kDmaBaseHigh), static_cast<uint32_t>(base >> 40));
  for (uint32_t at = 0; at < bytes; at += kBlock) {
    bus_.write(reg(kDmaFalconOffset), to + at);
    bus_.write(reg(kDmaMemoryOffset), memory_offset + at);
    bus_.write(reg(kDmaCommand), command);
    BM_TRY(bus_.wait_for(reg(kDmaCommand), kDmaIdle, kDmaIdle, kDmaUs, waiting));
  }
  return {};
}

Status Falcon::load(const DmaProgram& program) {
  constexpr uint32_t kContext = 0;
  allow_system_memory(kContext);
  if (program.code_address < program.code_virtual)
    return fail(Code::kUnsupported, "{}: code for {:#x} lies at {:#x}", name_, program.code_virtual,
                program.code_address);
  BM_TRY(copy(program.code_at, program.code_virtual, program.code_address - program.code_virtual,
              program.code_bytes, kDma256Bytes | kDmaCode | kDmaSecure, "its code"));
  BM_TRY(
      copy(program.data_at, 0, program.data_address, program.data_bytes, kDma256Bytes, "its data"));
  bus_.write(reg(kBromParameters), program.signature_in_data);
  bus_.write(reg(kBromEngines), program.engine_mask);
  bus_.write(reg(kBromUcodeId), program.ucode_id);
  bus_.write(reg(kModSel), kModSelRsa3k);
  bus_.write(reg(kBootVector), program.code_virtual);
  return bus_.status();
}

void Falcon::write_code(std::span<const std::byte> code, uint32_t at, uint32_t virtual_address,
                        bool is_secure) {
  if (code.empty()) return;
  std::vector<uint32_t> words = words_of(code);
  words.resize(align_up(words.size(), size_t{kBlock / 4}));
  bus_.write(reg(kImemControl), at | kImemIncrement | (is_secure ? kImemSecure : 0));
  for (size_t i = 0; i < words.size(); i += kBlock / 4) {
    bus_.write(reg(kImemTag), (virtual_address >> 8) + static_cast<uint32_t>(i / (kBlock / 4)));
    bus_.write_port(reg(kImemData), std::span(words).subspan(i, kBlock / 4));
  }
}

Status Falcon::load(const PioProgram& program) {
  if (program.code_at % kBlock != 0 || program.secure_at % kBlock != 0)
    return fail(Code::kUnsupported,
                "{}: code for {:#x} and {:#x}, and code memory has blocks of {}", name_,
                program.code_at, program.secure_at, kBlock);
  allow_no_context();
  write_code(program.code, program.code_at, program.code_virtual, false);
  write_code(program.secure_code, program.secure_at, program.secure_at, true);
  bus_.write(reg(kDmemControl), program.data_at | kDmemIncrement);
  bus_.write_port(reg(kDmemData), words_of(program.data));
  bus_.write(reg(kBootVector), program.entry);
  return bus_.status();
}

uint32_t Falcon::code_memory_bytes() { return (bus_.read(reg(kHwcfg)) & 0x1ff) * kBlock; }

void Falcon::start() {
  if ((bus_.read(reg(kCpuctl)) & kCpuctlAliasEnabled) != 0)
    bus_.write(reg(kCpuctlAlias), kCpuctlStart);
  else
    bus_.write(reg(kCpuctl), kCpuctlStart);
}

Status Falcon::wait_halted(uint64_t timeout_us, std::string_view what) {
  Status halted = bus_.wait_for(reg(kCpuctl), kCpuctlHalted, kCpuctlHalted, timeout_us,
                                fmt::format("{} does not end {}", name_, what));
  if (halted || halted.error().code != Code::kTimeout) return halted;
  const Mailboxes seen = mailboxes();
  return fail(Code::kTimeout, "{}; mailboxes {:#x} and {:#x}", halted.error().message, seen.low,
              seen.high);
}

Result<Mailboxes> Falcon::run(std::optional<uint32_t> low, std::optional<uint32_t> high,
                              uint64_t timeout_us, std::string_view what) {
  if (low) bus_.write(reg(kMailbox0), *low);
  if (high) bus_.write(reg(kMailbox1), *high);
  start();
  BM_TRY(wait_halted(timeout_us, what));
  const Mailboxes seen = mailboxes();
  BM_TRY(bus_.status());
  return seen;
}

void Falcon::write_mailboxes(uint64_t value) {
  bus_.write(reg(kMailbox0), lo32(value));
  bus_.write(reg(kMailbox1), hi32(value));
}

Mailboxes Falcon::mailboxes() {
  const uint32_t low = bus_.read(reg(kMailbox0));
  return {low, bus_.read(reg(kMailbox1))};
}

bool Falcon::is_riscv_active() {
  switch (generation_.riscv) {
    case RiscvStatus::kCoreSwitch: return (bus_.probe(reg(kCoreSwitchStatus)) & 1) != 0;
    case RiscvStatus::kCpuctl: return (bus_.probe(reg(kRiscvCpuctl)) & kRiscvActive) != 0;
  }
  __builtin_unreachable();
}

Status Falcon::wait_riscv_active(uint64_t timeout_us) {
  if (BM_TRY(bus_.poll(timeout_us, [&] { return is_riscv_active(); }))) return {};
  const Mailboxes seen = mailboxes();
  return fail(Code::kTimeout, "{}'s RISC-V core does not run; mailboxes {:#x} and {:#x}", name_,
              seen.low, seen.high);
}

}  // namespace bm::nv::gsp
