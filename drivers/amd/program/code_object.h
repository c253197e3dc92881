#pragma once
// Loader of AMD code objects: bytes in, launch facts and a laid-out image out. Touches no device;
// who owns the memory copies the image there. Takes objects as the compiler makes them (ET_REL),
// without a linker, and linked ones (ET_DYN).
//
// Source: LLVM 19, docs/AMDGPUUsage.rst: "Code Object", "Relocation Records", "Kernel Descriptor".

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/amd/chips.h"
#include "runtime/base/result.h"

namespace bm::amd {

/// One kernel's descriptor, decoded.
struct KernelFacts {
  std::string name;
  uint64_t descriptor_offset = 0;  ///< in the image, multiple of 64
  uint64_t entry_offset = 0;       ///< in the image, multiple of 256
  uint32_t group_bytes = 0;        ///< LDS known at compile time
  uint32_t private_bytes = 0;      ///< scratch of one lane
  uint32_t kernarg_bytes = 0;      ///< of the argument block, hidden arguments included
  uint32_t rsrc1 = 0, rsrc2 = 0, rsrc3 = 0;
  uint32_t vgprs = 0;  ///< of a lane, rounded as the descriptor rounds
  bool is_wave32 = false;
  bool has_dynamic_stack = false;  ///< private_bytes is not all
  /// Four and two words that describe the stack; chips without architected flat scratch ask for one
  /// of them in every kernel. Accepted from kernels without a stack, which read neither.
  bool takes_private_buffer = false, takes_flat_scratch = false;
  bool takes_dispatch_packet = false;
  bool takes_queue = false;
  bool takes_kernarg = false;
  bool takes_dispatch_id = false;
  bool takes_private_size = false;
};

/// One file with the kernel of interest, ready to be copied to kAlignment-aligned GPU memory.
class ProgramImage {
 public:
  static constexpr uint64_t kAlignment = 4096;
  /// Instruction fetch runs ahead: so many bytes after the last instruction belong to the image.
  static constexpr uint64_t kFetchAhead = 256;

  const KernelFacts& kernel() const { return kernel_; }
  /// Zeroed where the file has no contents. Addresses are right after relocate().
  std::span<const std::byte> bytes() const { return bytes_; }
  /// Writes what depends on where the image lies. May be repeated for another place.
  /// Errors: kInvalidArgument when `address` is not a multiple of kAlignment or the image would end
  /// beyond 48 bits.
  Status relocate(uint64_t address);

 private:
  friend class CodeObjectLoader;
  enum class Field : uint8_t { kWord64, kWord32, kLow32, kHigh32 };
  struct Fixup {
    uint64_t place = 0;  ///< offset in the image
    uint64_t value = 0;  ///< addend included
    Field field = Field::kWord64;
  };
  void store(const Fixup& fixup, uint64_t value);

  KernelFacts kernel_;
  std::vector<std::byte> bytes_;
  std::vector<Fixup> fixups_;  ///< that need the address; the others are done at loading
};

/// Reads kernel `kernel` of a code object for `chip`.
/// Errors: kInvalidArgument (no such kernel; the message lists those there are), kUnsupported (of
/// another chip, an ABI version we do not know, an undefined symbol, a relocation or start-up
/// register we do not provide; the message names it and the remedy), kCorrupt with section and
/// offset.
Result<ProgramImage> load_code_object(std::span<const std::byte> file, std::string_view kernel,
                                      const ChipRow& chip);

}  // namespace bm::amd
