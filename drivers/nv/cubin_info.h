#pragma once
// .nv.info sections of a cubin: attributes of the module's functions and of each kernel.
// Source: sections written by ptxas 12.4 and 13.0; names from nvlink's message table (EIATTR_*).

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/elf.h"
#include "runtime/base/result.h"

namespace bm::nv {

enum class Attribute : uint8_t {
  kMaxThreads = 0x05,
  kParamBank = 0x0a,
  kRequiredBlock = 0x10,
  kFrameSize = 0x11,
  kMinStackSize = 0x12,
  kParameter = 0x17,
  kParamBytes = 0x19,
  kRegisters = 0x2f,
  kClusterSize = 0x3d,
  kExplicitCluster = 0x3e,
  kMaxClusterRank = 0x3f,
  kParameterV2 = 0x45,
  kBarriers = 0x4c,
};

/// One record: {format, attribute, value or size, payload}.
struct InfoRecord {
  uint8_t attribute = 0;
  uint32_t value = 0;  ///< formats without payload
  std::span<const std::byte> payload;

  bool is(Attribute wanted) const { return attribute == static_cast<uint8_t>(wanted); }
  /// 32-bit word of the payload; 0 past its end.
  uint32_t word(size_t index) const;
};

/// Records of a section in this form (.nv.compat has attributes of its own). Errors: kCorrupt
/// naming section and offset: a record of unknown format or past the end.
Result<std::vector<InfoRecord>> read_records(const elf::Section& section);

/// Records of an .nv.info section. Errors: as above, and a known attribute with too few bytes.
Result<std::vector<InfoRecord>> read_info(const elf::Section& section);

/// Value of the module's record {symbol, value}; nothing if there is none for `symbol`.
std::optional<uint32_t> symbol_value(std::span<const InfoRecord> module, Attribute attribute,
                                     uint32_t symbol);

}  // namespace bm::nv
