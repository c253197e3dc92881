#pragma once
// CodeObject: what a compiler produces. Program: what a device made of it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace bm::hal {

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
  bool operator==(const Dim3&) const = default;
};

/// Launch dimension: ceil((constant + Σ coefficient·var) / divisor), at least 0.
struct DimExpr {
  int64_t constant = 1;
  struct Term {
    uint32_t var = 0;
    int64_t coefficient = 0;
  };
  std::vector<Term> terms;
  int64_t divisor = 1;

  bool is_constant() const { return terms.empty(); }
  /// `vars`: values of the kernel's variables in order.
  int64_t evaluate(std::span<const int64_t> vars) const {
    int64_t sum = constant;
    for (const Term& t : terms) sum += t.coefficient * vars[t.var];
    return sum <= 0 ? 0 : (sum + divisor - 1) / divisor;
  }
};

/// Compiled kernel. Arguments: `num_buffers` 64-bit addresses, then `num_vars` int64 scalars, 8
/// bytes each.
///
/// CPU entry point (exported from the image under `entry`):
///   extern "C" void entry(const uint64_t* args, uint64_t block_begin, uint64_t block_end,
///                         void* scratch);
/// runs blocks [block_begin, block_end) of the linearised grid (x fastest). `scratch`:
/// `scratch_bytes` of any content, aligned to 64, that no other call uses meanwhile.
struct CodeObject {
  std::string entry;
  std::string arch;  ///< Arch::name it was made for; checked by Device::load
  std::vector<std::byte>
      image;  ///< ELF relocatable object (CPU), code object (GPU), text (API devices)
  uint32_t num_buffers = 0;
  uint32_t num_vars = 0;
  std::array<DimExpr, 3> grid;  ///< blocks in x, y, z
  Dim3 block;                   ///< threads per block (1,1,1 on CPU)
  uint32_t shared_memory_bytes = 0;
  /// Shared memory that launches ask for besides, where a device gives more than a program may
  /// declare (Arch::shared_memory_bytes): NVIDIA only.
  uint32_t launch_memory_bytes = 0;
  uint64_t scratch_bytes = 0;   ///< CPU: working memory of one executing thread
  uint64_t work_per_block = 0;  ///< rough operations per block; decides inline or pool on the CPU

  /// Flat checked encoding for caches and bundles.
  std::vector<std::byte> serialize() const;
  static Result<CodeObject> deserialize(std::span<const std::byte> bytes);
};

/// Loaded kernel, owned by its device's caller; immutable, usable from any thread.
class Program {
 public:
  virtual ~Program() = default;
  const CodeObject& code() const { return code_; }
  /// What the device's own compiler made of a textual image: Device::load takes it in place of
  /// CodeObject::image on the same device and driver and refuses it elsewhere.
  /// Errors: kUnsupported where the image is machine code already.
  virtual Result<std::vector<std::byte>> native_image() const {
    return fail(Code::kUnsupported, "kernel '{}' is machine code already", code_.entry);
  }

 protected:
  explicit Program(CodeObject code) : code_(std::move(code)) {}
  CodeObject code_;
};

}  // namespace bm::hal
