#pragma once
// Cubin loader: bytes in, launch facts and a laid-out image out. Touches no device; who owns the
// memory copies the image there.
//
// Sources: cubins of nvcc, nvrtc, ptxas and nvlink 12.4 and 13.0 compared with -Xptxas -v; names of
// attributes and relocations: message tables of nvlink 13.0.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/hal/program.h"

namespace bm::nv {

/// Constant bank in the image. Banks 2 and 4 belong to the compiler, 3 holds __constant__ data.
struct ConstantBank {
  uint64_t offset = 0;  ///< in the image, a multiple of 256
  uint32_t bytes = 0;   ///< multiple of 16; 0: the kernel has no such bank
};

/// Kernel parameter as compiled.
struct Parameter {
  uint32_t offset = 0;  ///< from KernelInfo::param_base
  uint32_t bytes = 0;
  bool operator==(const Parameter&) const = default;
};

/// What a launch of one kernel needs to know.
struct KernelInfo {
  std::string name;
  uint32_t sm = 0;              ///< architecture of the code: 90 for sm_90 and sm_90a
  bool is_sm_specific = false;  ///< sm_90a: runs on exactly `sm`
  bool is_ptx = false;          ///< the image is PTX text for a model that executes it

  uint32_t registers = 0;              ///< per thread
  uint32_t barriers = 0;               ///< named barriers in use, 0 … 16
  uint32_t shared_bytes = 0;           ///< per block, the system's share included; not rounded
  uint32_t shared_reserved_bytes = 0;  ///< that share
  /// Per thread, frames of called functions included, as the compiler reports it, or 1 KiB where
  /// more functions are called than it can follow. What lies above the initial stack pointer
  /// (chips.h, kStackReserve) comes on top.
  uint32_t stack_bytes = 0;

  uint32_t param_base = 0;   ///< offset of the first parameter in constant bank 0
  uint32_t param_bytes = 0;  ///< from there
  std::vector<Parameter> parameters;
  uint32_t max_threads = 1024;  ///< per block: launch bound, or what the registers allow
  std::optional<hal::Dim3> required_block;   ///< .reqntid: no other block may be launched
  std::optional<hal::Dim3> cluster;          ///< blocks per cluster: a grid of clusters
  std::optional<uint32_t> max_cluster_rank;  ///< .maxclusterrank

  uint64_t code_offset = 0;  ///< in the image, a multiple of 256
  uint64_t code_bytes = 0;
  /// Bank 0 is made per launch: `bytes` is its size (parameters included), `offset` is unused.
  std::array<ConstantBank, 8> banks;
};

/// One kernel with everything of its module that it can reach, ready to be copied to 256-byte
/// aligned GPU memory. 4 KiB after the last instruction belong to the image: instruction fetch runs
/// ahead. Programs loaded from one module do not share its __device__ variables.
class ProgramImage {
 public:
  static constexpr uint64_t kAlignment = 256;

  const KernelInfo& kernel() const { return kernel_; }
  /// Zeroed where the file has no contents. Addresses are right after relocate().
  std::span<const std::byte> bytes() const { return bytes_; }
  /// Writes the addresses that depend on where the image lies. May be repeated for another place.
  /// Errors: kInvalidArgument when `address` is not a multiple of kAlignment or too high.
  Status relocate(uint64_t address);

 private:
  friend class CubinLoader;
  friend Result<ProgramImage> load_ptx(std::span<const std::byte> text, std::string_view kernel,
                                       uint32_t sm);
  /// What is written at a patch site; the values are bits of an instruction.
  enum class Field : uint8_t { kWord64, kWord32, kLow32At32, kHigh32At32, kCall47, kCall55 };
  struct Fixup {
    uint64_t place = 0;  ///< offset in the image
    uint64_t value = 0;  ///< addend included
    Field field = Field::kWord64;
    bool is_relative = true;  ///< `value` is an offset in the image
  };
  KernelInfo kernel_;
  std::vector<std::byte> bytes_;
  std::vector<Fixup> fixups_;
};

/// Reads kernel `kernel` of a cubin for a device of architecture `sm` (90 for sm_90).
/// Errors: kNotFound (no such kernel; the message lists those there are), kUnsupported (cubin of
/// another architecture, unknown relocation, undefined symbol, PTX text or another container; the
/// message names it and the remedy), kCorrupt with section and offset.
Result<ProgramImage> load_cubin(std::span<const std::byte> file, std::string_view kernel,
                                uint32_t sm);

/// PTX text as a program, for models that execute PTX. The image is the text with its final NUL;
/// code_offset is 0, parameters start at 0x160.
/// Errors: kInvalidArgument (no NUL at the end), kNotFound (no .entry of that name).
Result<ProgramImage> load_ptx(std::span<const std::byte> text, std::string_view kernel,
                              uint32_t sm);

}  // namespace bm::nv
