#pragma once
// FWSEC, the program in the ROM of Turing, Ampere and Ada that sets up the GSP's protected memory
// (FRTS) and, at the end, has the PMU's firmware started again (SB). Signed; only the command's
// input in its data and, from GA10x on, the place of its signature are written.
// Source: open-gpu-kernel-modules 570.144, kernel_gsp_fwsec.c and kernel_gsp_frts_tu102.c; nouveau,
// nvkm/subdev/gsp/fwsec.c.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "firmware/nvidia/falcon.h"
#include "firmware/nvidia/rom.h"
#include "runtime/base/result.h"

namespace bm::firmware::nvidia {

/// FALCON_UCODE_DESC_V2 or _V3 with what they lead to.
struct Fwsec {
  std::string name;                ///< for messages
  uint8_t descriptor_version = 0;  ///< 2: Turing, GA100; 3: GA10x, AD10x
  uint8_t application = 0;         ///< of its entry
  std::span<const std::byte> code;
  std::span<const std::byte> data;
  uint32_t code_base = 0;     ///< in code memory
  uint32_t code_virtual = 0;  ///< address that it runs at
  uint32_t data_base = 0;     ///< in data memory
  uint32_t interface_at = 0;  ///< of the application interfaces, in data

  // Version 2: code has a part that is not secure, from its start on, and a secure one.
  uint32_t entry = 0;
  Range secure;  ///< in code memory; the size is rounded up to 256

  // Version 3.
  uint32_t signature_at = 0;  ///< in data
  uint16_t engine_id_mask = 0;
  uint8_t ucode_id = 0;
  uint16_t signature_versions = 0;  ///< a bit a fuse version that has a signature, lowest first
  std::vector<std::span<const std::byte>> signatures;  ///< none: not signed (boards of engineers)
};

/// Which cards' keys a program is signed with.
enum class Fusing : uint8_t { kProduction, kDebug };

/// The first usable entry for firmware security of the ROM's table. Errors: kNotFound (the table
/// has none, as from Hopper on); kCorrupt; kUnsupported (a descriptor of another version).
Result<Fwsec> find_fwsec(const Rom& rom, Fusing fusing = Fusing::kProduction);

/// FALCON_APPLICATION_INTERFACE_DMEM_MAPPER_V3, as far as it is used.
struct DmemMapper {
  uint32_t offset = 0;  ///< in data
  uint16_t version = 0;
  uint16_t size = 0;
  Range command_in;  ///< in data
  uint32_t command = 0;
};
Result<DmemMapper> find_dmem_mapper(const Fwsec& fwsec);

/// The index of the signature for a card. Errors: kUnsupported: its fuses want a version that has
/// none; kInvalidArgument: nothing is to be signed.
Result<size_t> signature_index(const Fwsec& fwsec, uint32_t fuse_register);

enum class FwsecCommand : uint32_t {
  kFrts = 0x15,  ///< set up the protected memory at `frts`
  kSb = 0x19,    ///< bring the PMU back
};

struct FwsecRequest {
  FwsecCommand command = FwsecCommand::kFrts;
  /// Of video memory, multiples of 4096, for kFrts.
  uint64_t frts_address = 0;
  uint64_t frts_size = 0;
  uint32_t fuse_register = 0;  ///< see fuse_version(); looked at where there are signatures
};

/// What is loaded: with the command's input, the signature, and zeros up to 256 bytes.
struct PreparedFwsec {
  std::vector<std::byte> code;  ///< from code memory 0 on for version 2, else from code_base on
  std::vector<std::byte> data;  ///< likewise
};

/// Errors: kInvalidArgument (the region); those of find_dmem_mapper and signature_index.
Result<PreparedFwsec> prepare(const Fwsec& fwsec, const FwsecRequest& request);

}  // namespace bm::firmware::nvidia
