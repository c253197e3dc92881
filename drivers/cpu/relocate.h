#pragma once
// Relocation arithmetic as a table: what value a relocation asks for and how it is stored.
// Pure: no memory is mapped here, so every encoding is tested on bytes.

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/result.h"

namespace bm::cpu {

/// What is stored, in the ABI documents' letters: S symbol, A addend, P place, G slot of the symbol
/// in the table of addresses, GOT that table, L symbol or its trampoline.
enum class RelocationValue : uint8_t {
  kNone,
  kAbsolute,       ///< S + A
  kRelative,       ///< S + A - P
  kCall,           ///< L + A - P
  kSlotRelative,   ///< G + A - P
  kSlotOffset,     ///< G + A - GOT
  kTableOffset,    ///< S + A - GOT
  kTableRelative,  ///< GOT + A - P
  kCallOffset,     ///< L + A - GOT
  kPage,           ///< Page(S + A) - Page(P), pages of 4 KiB
  kSlotPage,       ///< Page(G + A) - Page(P)
  kSlotAbsolute,   ///< G + A
};

/// How it is stored.
enum class RelocationField : uint8_t {
  kNone,
  kWord64,
  kUnsigned32,
  kSigned32,
  kAdrHi21,  ///< aarch64 ADRP immediate, in pages
  kAddLo12,  ///< aarch64 ADD immediate: low 12 bits
  kLoad8,
  kLoad16,
  kLoad32,
  kLoad64,
  kLoad128,   ///< aarch64 load/store offset: low 12 bits, scaled
  kBranch26,  ///< aarch64 B and BL
};

struct RelocationRule {
  uint16_t machine;
  uint32_t type;
  const char* name;
  RelocationValue value;
  RelocationField field;

  bool uses_slot() const;
  bool uses_trampoline() const;
  /// The field holds an address in 32 bits, so the image must lie in the low 2 GiB.
  bool wants_low_address() const;
};

/// Rule of a relocation type, or nullptr if it is not supported.
const RelocationRule* find_relocation_rule(uint16_t machine, uint32_t type);

struct RelocationPlace {
  uint64_t place = 0;       ///< P
  uint64_t symbol = 0;      ///< S
  uint64_t trampoline = 0;  ///< L
  uint64_t slot = 0;        ///< G
  uint64_t table = 0;       ///< GOT
  int64_t addend = 0;       ///< A
};

/// Writes the relocation at the start of `bytes` (the rest of its section).
/// Errors: kCorrupt when the field does not fit into `bytes`, the value into the field or an
/// instruction immediate is misaligned.
Status apply_relocation(const RelocationRule& rule, const RelocationPlace& at,
                        std::span<std::byte> bytes);

/// Jump to any 64-bit address in 16 bytes. `out` has room for them.
inline constexpr uint64_t kTrampolineBytes = 16;
Status write_trampoline(uint16_t machine, uint64_t target, std::span<std::byte> out);

}  // namespace bm::cpu
