#pragma once
// Loads an ELF relocatable object into executable memory.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "drivers/cpu/pool.h"
#include "runtime/base/result.h"
#include "runtime/hal/program.h"

namespace bm::cpu {

/// Anonymous memory of one program: [code | constants | data], each part whole pages.
class ImageMemory {
 public:
  ImageMemory() = default;
  ImageMemory(ImageMemory&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  ImageMemory& operator=(ImageMemory&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~ImageMemory();
  /// Zeroed, writable. `low`: below 2 GiB, for code that holds 32-bit addresses. Errors:
  /// kOutOfMemory.
  static Result<ImageMemory> map(uint64_t size, bool low);
  /// Errors: kIo (kPermission where the system forbids executable memory).
  Status protect(uint64_t offset, uint64_t size, int protection);
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  explicit ImageMemory(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

/// No page is ever writable and executable at once. A crash in the kernel is a crash of the
/// process.
class CpuProgram final : public hal::Program {
 public:
  /// Accepts what LLVM, clang and gcc emit with -fPIC or the small, medium-free and large code
  /// models. Errors: kInvalidArgument (other architecture, threads per block, entry that is no
  /// function); kUnsupported (undefined symbol, thread-local or common data, constructors,
  /// relocation type); kCorrupt (malformed object, relocation out of range); kOutOfMemory.
  static Result<std::unique_ptr<CpuProgram>> load(const hal::CodeObject& code,
                                                  std::string_view arch);

  KernelEntry entry() const { return entry_; }
  /// The mapped image, for tests and disassembly.
  std::span<const std::byte> image() const { return memory_.bytes(); }

 private:
  CpuProgram(hal::CodeObject code, ImageMemory memory, KernelEntry address)
      : Program(std::move(code)), memory_(std::move(memory)), entry_(address) {}
  ImageMemory memory_;
  KernelEntry entry_;
};

}  // namespace bm::cpu
