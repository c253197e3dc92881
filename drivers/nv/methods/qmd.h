#pragma once
// Launch descriptors: one table of bit ranges per version, shifts included, and the fields of a
// launch written through it.
//
// Source: open-gpu-doc, classes/compute/clc5c0qmd.h (2.3), clc9c0qmd.h (3.0, equal to clc6c0qmd.h,
// clc7c0qmd.h and clcbc0qmd.h in every field used), clcbc0qmd.h (4.0), clcec0qmd.h (5.0).

#include <array>
#include <cstdint>
#include <span>

#include "drivers/nv/chips.h"
#include "runtime/hal/program.h"

namespace bm::nv {

/// Meaning of a field; the row of every format's table. Values are in bytes or addresses, whatever
/// the descriptor stores.
enum class QmdKey : uint8_t {
  kMajorVersion,
  kMinorVersion,
  kType,
  kGroupId,
  kGridX,
  kGridY,
  kGridZ,
  kBlockX,
  kBlockY,
  kBlockZ,
  kRegisters,
  kBarriers,
  kProgram,
  kSharedBytes,
  kMinSharedConfig,
  kMaxSharedConfig,
  kTargetSharedConfig,
  kLocalLowBytes,
  kLocalHighBytes,
  kSassVersion,
  kGlobalCaching,
  kNoCallLimit,
  kSamplerIndex,
  kInvalidateTextureHeaders,
  kInvalidateSamplers,
  kInvalidateTextureData,
  kInvalidateShaderData,
  kInvalidateInstructions,
  kInvalidateConstants,
  kMembar,
  kBankValid,       ///< per constant bank
  kBankInvalidate,  ///< per constant bank
  kBankAddress,     ///< per constant bank
  kBankBytes,       ///< per constant bank
  kPrefetchAddress,
  kPrefetchSize,
  kReleaseEnable,     ///< per release
  kReleaseSize,       ///< per release
  kReleaseMembar,     ///< per release
  kReleasePayload64,  ///< per release
  kReleaseAddress,    ///< per release
  kReleasePayload,    ///< per release
  kDependentEnable,
  kDependentIsGrid,
  kDependentAction,
  kDependentPrefetch,
  kDependentPointer,
  kClusterX,
  kClusterY,
  kClusterZ,
  kCount
};

/// Where a value lies: its low bits in [low, low + bits), the rest in the upper range. `shift`: the
/// value's low bits that are not stored and must be zero. No bits: the version has no such field.
struct QmdField {
  uint16_t low = 0;
  uint8_t bits = 0;
  uint16_t upper_low = 0;
  uint8_t upper_bits = 0;
  uint8_t shift = 0;
  uint16_t stride = 0;

  constexpr bool exists() const { return bits != 0; }
  constexpr bool fits(uint64_t value) const {
    const uint32_t width = bits + upper_bits;
    const uint64_t stored = value >> shift;
    return stored << shift == value && (width >= 64 || stored >> width == 0);
  }
};

inline constexpr size_t kQmdKeys = static_cast<size_t>(QmdKey::kCount);
inline constexpr uint32_t kMaxQmdDwords = 96;
inline constexpr uint64_t kQmdAlignment = 256;

struct QmdFormat {
  uint32_t dwords;
  std::array<QmdField, kQmdKeys> fields;
  const QmdField& operator[](QmdKey key) const { return fields[static_cast<size_t>(key)]; }
};

const QmdFormat& qmd_format(QmdVersion version);
/// "4.0"
std::string_view qmd_version_text(QmdVersion version);
std::string_view qmd_key_name(QmdKey key);

/// Writes fields of a descriptor lying in `words` (format.dwords of them).
class Qmd {
 public:
  Qmd(const QmdFormat& format, std::span<uint32_t> words) : format_(format), words_(words) {}

  bool has(QmdKey key) const { return format_[key].exists(); }
  /// A value that does not fit is a broken promise of ours: it aborts with the field's name.
  Qmd& with(QmdKey key, uint64_t value, uint32_t instance = 0);
  /// As with(), where the version has the field.
  Qmd& with_if(QmdKey key, uint64_t value, uint32_t instance = 0) {
    return has(key) ? with(key, value, instance) : *this;
  }
  uint64_t get(QmdKey key, uint32_t instance = 0) const;

 private:
  const QmdFormat& format_;
  std::span<uint32_t> words_;
};

/// Constant bank as the descriptor names it.
struct BankRange {
  uint64_t address = 0;  ///< multiple of 64
  uint32_t bytes = 0;    ///< multiple of 16, at most 64 KiB; 0: not valid
};

/// Everything about a launch that does not change between launches of one kernel, and what does.
struct LaunchShape {
  uint64_t program = 0;        ///< address of the code
  uint64_t program_bytes = 0;  ///< for prefetching
  uint32_t registers = 0, barriers = 0;
  uint32_t shared_bytes = 0;  ///< multiple of 128
  /// Splits of L1: the least that holds a block, the wanted one, the chip's largest.
  uint32_t min_shared_config_kib = 0, shared_config_kib = 0, max_shared_config_kib = 0;
  uint32_t local_bytes = 0;  ///< per thread, multiple of 16
  uint32_t sass_version = 0;
  hal::Dim3 block, grid;
  hal::Dim3 cluster;
  bool has_cluster = false;
  std::array<BankRange, 8> banks{};
};

/// The whole descriptor of a launch; `words` becomes format.dwords words.
void encode_qmd(QmdVersion version, const LaunchShape& shape, std::span<uint32_t> words);

/// At most this many releases per descriptor are used.
inline constexpr uint32_t kQmdReleases = 2;
/// True when the version can write exactly the 64-bit word of a timeline.
bool has_exact_release(QmdVersion version);
/// When the grid is done and its writes are visible: 64-bit word at `address` = `value`.
void add_release(QmdVersion version, std::span<uint32_t> words, uint32_t index, uint64_t address,
                 uint64_t value);
/// The grid at `next` starts when this one is done.
void link_qmd(QmdVersion version, std::span<uint32_t> words, uint64_t next);

/// SASS version of a descriptor: 0x90 for sm_90, 0xa4 for sm_120.
uint32_t sass_version(uint32_t sm);

}  // namespace bm::nv
