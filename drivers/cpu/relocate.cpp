#include "drivers/cpu/relocate.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "runtime/base/elf.h"

namespace bm::cpu {
namespace {

using V = RelocationValue;
using F = RelocationField;
using elf::kMachineAArch64;
using elf::kMachineX86_64;

// Source: System V ABI AMD64 Architecture Processor Supplement 1.0, table 4.10; ELF for the Arm
// 64-bit Architecture 2023Q3, section 5.7.
constexpr std::array kRules{
    RelocationRule{kMachineX86_64, 0, "R_X86_64_NONE", V::kNone, F::kNone},
    RelocationRule{kMachineX86_64, 1, "R_X86_64_64", V::kAbsolute, F::kWord64},
    RelocationRule{kMachineX86_64, 2, "R_X86_64_PC32", V::kRelative, F::kSigned32},
    RelocationRule{kMachineX86_64, 4, "R_X86_64_PLT32", V::kCall, F::kSigned32},
    RelocationRule{kMachineX86_64, 9, "R_X86_64_GOTPCREL", V::kSlotRelative, F::kSigned32},
    RelocationRule{kMachineX86_64, 10, "R_X86_64_32", V::kAbsolute, F::kUnsigned32},
    RelocationRule{kMachineX86_64, 11, "R_X86_64_32S", V::kAbsolute, F::kSigned32},
    RelocationRule{kMachineX86_64, 24, "R_X86_64_PC64", V::kRelative, F::kWord64},
    RelocationRule{kMachineX86_64, 25, "R_X86_64_GOTOFF64", V::kTableOffset, F::kWord64},
    RelocationRule{kMachineX86_64, 26, "R_X86_64_GOTPC32", V::kTableRelative, F::kSigned32},
    RelocationRule{kMachineX86_64, 27, "R_X86_64_GOT64", V::kSlotOffset, F::kWord64},
    RelocationRule{kMachineX86_64, 28, "R_X86_64_GOTPCREL64", V::kSlotRelative, F::kWord64},
    RelocationRule{kMachineX86_64, 29, "R_X86_64_GOTPC64", V::kTableRelative, F::kWord64},
    RelocationRule{kMachineX86_64, 31, "R_X86_64_PLTOFF64", V::kCallOffset, F::kWord64},
    RelocationRule{kMachineX86_64, 41, "R_X86_64_GOTPCRELX", V::kSlotRelative, F::kSigned32},
    RelocationRule{kMachineX86_64, 42, "R_X86_64_REX_GOTPCRELX", V::kSlotRelative, F::kSigned32},
    RelocationRule{kMachineAArch64, 0, "R_AARCH64_NONE", V::kNone, F::kNone},
    RelocationRule{kMachineAArch64, 257, "R_AARCH64_ABS64", V::kAbsolute, F::kWord64},
    RelocationRule{kMachineAArch64, 260, "R_AARCH64_PREL64", V::kRelative, F::kWord64},
    RelocationRule{kMachineAArch64, 261, "R_AARCH64_PREL32", V::kRelative, F::kSigned32},
    RelocationRule{kMachineAArch64, 275, "R_AARCH64_ADR_PREL_PG_HI21", V::kPage, F::kAdrHi21},
    RelocationRule{kMachineAArch64, 277, "R_AARCH64_ADD_ABS_LO12_NC", V::kAbsolute, F::kAddLo12},
    RelocationRule{kMachineAArch64, 278, "R_AARCH64_LDST8_ABS_LO12_NC", V::kAbsolute, F::kLoad8},
    RelocationRule{kMachineAArch64, 282, "R_AARCH64_JUMP26", V::kCall, F::kBranch26},
    RelocationRule{kMachineAArch64, 283, "R_AARCH64_CALL26", V::kCall, F::kBranch26},
    RelocationRule{kMachineAArch64, 284, "R_AARCH64_LDST16_ABS_LO12_NC", V::kAbsolute, F::kLoad16},
    RelocationRule{kMachineAArch64, 285, "R_AARCH64_LDST32_ABS_LO12_NC", V::kAbsolute, F::kLoad32},
    RelocationRule{kMachineAArch64, 286, "R_AARCH64_LDST64_ABS_LO12_NC", V::kAbsolute, F::kLoad64},
    RelocationRule{kMachineAArch64, 299, "R_AARCH64_LDST128_ABS_LO12_NC", V::kAbsolute,
                   F::kLoad128},
    RelocationRule{kMachineAArch64, 311, "R_AARCH64_ADR_GOT_PAGE", V::kSlotPage, F::kAdrHi21},
    RelocationRule{kMachineAArch64, 312, "R_AARCH64_LD64_GOT_LO12_NC", V::kSlotAbsolute,
                   F::kLoad64},
};
constexpr bool rule_before(const RelocationRule& a, const RelocationRule& b) {
  return a.machine != b.machine ? a.machine < b.machine : a.type < b.type;
}
static_assert(std::is_sorted(kRules.begin(), kRules.end(), rule_before));

constexpr uint64_t page(uint64_t address) { return address & ~uint64_t{0xfff}; }

/// Modulo 2^64, as both documents define it.
uint64_t value_of(RelocationValue value, const RelocationPlace& at) {
  const auto addend = static_cast<uint64_t>(at.addend);
  switch (value) {
    case V::kNone: return 0;
    case V::kAbsolute: return at.symbol + addend;
    case V::kRelative: return at.symbol + addend - at.place;
    case V::kCall: return at.trampoline + addend - at.place;
    case V::kSlotRelative: return at.slot + addend - at.place;
    case V::kSlotOffset: return at.slot + addend - at.table;
    case V::kTableOffset: return at.symbol + addend - at.table;
    case V::kTableRelative: return at.table + addend - at.place;
    case V::kCallOffset: return at.trampoline + addend - at.table;
    case V::kPage: return page(at.symbol + addend) - page(at.place);
    case V::kSlotPage: return page(at.slot + addend) - page(at.place);
    case V::kSlotAbsolute: return at.slot + addend;
  }
  __builtin_unreachable();
}

uint64_t field_bytes(RelocationField field) {
  switch (field) {
    case F::kNone: return 0;
    case F::kWord64: return 8;
    case F::kUnsigned32:
    case F::kSigned32:
    case F::kAdrHi21:
    case F::kAddLo12:
    case F::kLoad8:
    case F::kLoad16:
    case F::kLoad32:
    case F::kLoad64:
    case F::kLoad128:
    case F::kBranch26: return 4;
  }
  __builtin_unreachable();
}

auto out_of_range(const RelocationRule& rule, const RelocationPlace& at, uint64_t value) {
  return fail(Code::kCorrupt, "{} at {:#x} with value {:#x} is out of range or misaligned",
              rule.name, at.place, value);
}

bool fits_signed(uint64_t value, unsigned bits) {
  const auto number = static_cast<int64_t>(value);
  const int64_t limit = int64_t{1} << (bits - 1);
  return number >= -limit && number < limit;
}

/// Replaces the bits of `mask` in the instruction at the start of `bytes`.
void set_bits(std::span<std::byte> bytes, uint32_t mask, uint32_t value) {
  uint32_t word;
  std::memcpy(&word, bytes.data(), sizeof word);
  word = (word & ~mask) | (value & mask);
  std::memcpy(bytes.data(), &word, sizeof word);
}

/// Load and store offsets count in units of the access.
Status set_scaled(const RelocationRule& rule, const RelocationPlace& at, uint64_t value,
                  unsigned shift, std::span<std::byte> bytes) {
  const uint64_t low = value & 0xfff;
  if ((low & ((uint64_t{1} << shift) - 1)) != 0) return out_of_range(rule, at, value);
  set_bits(bytes, 0xfffu << 10, static_cast<uint32_t>(low >> shift) << 10);
  return {};
}

}  // namespace

bool RelocationRule::uses_slot() const {
  return value == V::kSlotRelative || value == V::kSlotOffset || value == V::kSlotPage ||
         value == V::kSlotAbsolute;
}
bool RelocationRule::uses_trampoline() const {
  return value == V::kCall || value == V::kCallOffset;
}
bool RelocationRule::wants_low_address() const {
  return value == V::kAbsolute && (field == F::kUnsigned32 || field == F::kSigned32);
}

const RelocationRule* find_relocation_rule(uint16_t machine, uint32_t type) {
  const RelocationRule key{machine, type, "", V::kNone, F::kNone};
  const auto* found = std::lower_bound(kRules.begin(), kRules.end(), key, rule_before);
  return found != kRules.end() && found->machine == machine && found->type == type ? found
                                                                                   : nullptr;
}

Status apply_relocation(const RelocationRule& rule, const RelocationPlace& at,
                        std::span<std::byte> bytes) {
  if (bytes.size() < field_bytes(rule.field))
    return fail(Code::kCorrupt, "{} at {:#x} runs past the end of its section", rule.name,
                at.place);
  const uint64_t value = value_of(rule.value, at);
  switch (rule.field) {
    case F::kNone: return {};
    case F::kWord64: std::memcpy(bytes.data(), &value, 8); return {};
    case F::kUnsigned32:
      if (value > std::numeric_limits<uint32_t>::max()) return out_of_range(rule, at, value);
      std::memcpy(bytes.data(), &value, 4);
      return {};
    case F::kSigned32:
      if (!fits_signed(value, 32)) return out_of_range(rule, at, value);
      std::memcpy(bytes.data(), &value, 4);
      return {};
    case F::kAdrHi21: {
      if (!fits_signed(value, 33)) return out_of_range(rule, at, value);
      const auto pages = static_cast<uint32_t>(value >> 12);
      set_bits(bytes, 0x60ffffe0u, (pages & 3) << 29 | ((pages >> 2) & 0x7ffff) << 5);
      return {};
    }
    case F::kAddLo12:
    case F::kLoad8: return set_scaled(rule, at, value, 0, bytes);
    case F::kLoad16: return set_scaled(rule, at, value, 1, bytes);
    case F::kLoad32: return set_scaled(rule, at, value, 2, bytes);
    case F::kLoad64: return set_scaled(rule, at, value, 3, bytes);
    case F::kLoad128: return set_scaled(rule, at, value, 4, bytes);
    case F::kBranch26:
      if (!fits_signed(value, 28) || value % 4 != 0) return out_of_range(rule, at, value);
      set_bits(bytes, 0x03ffffffu, static_cast<uint32_t>(value >> 2));
      return {};
  }
  __builtin_unreachable();
}

Status write_trampoline(uint16_t machine, uint64_t target, std::span<std::byte> out) {
  if (machine == kMachineX86_64) {
    // jmp *[rip + 0]; the address; padding that traps
    constexpr std::array<uint8_t, 6> kJump{0xff, 0x25, 0, 0, 0, 0};
    std::memset(out.data(), 0xcc, kTrampolineBytes);
    std::memcpy(out.data(), kJump.data(), kJump.size());
    std::memcpy(out.data() + kJump.size(), &target, sizeof target);
    return {};
  }
  if (machine == kMachineAArch64) {
    // ldr x16, #8; br x16; the address
    constexpr std::array<uint32_t, 2> kJump{0x58000050, 0xd61f0200};
    std::memcpy(out.data(), kJump.data(), sizeof kJump);
    std::memcpy(out.data() + sizeof kJump, &target, sizeof target);
    return {};
  }
  return fail(Code::kUnsupported, "no trampoline for ELF machine {}", machine);
}

}  // namespace bm::cpu
