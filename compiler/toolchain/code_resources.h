#pragma once
// What machine code asks of a compute unit: registers, shared memory, stack and spills.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/base/result.h"

namespace bm::compiler {

struct CodeResources {
  uint32_t registers = 0;         ///< of a work-item, of 32 bits; AMD: vector registers
  uint32_t scalar_registers = 0;  ///< of a wave; AMD only
  uint32_t shared_bytes = 0;      ///< declared by the code, not what a launch asks for
  uint32_t stack_bytes = 0;       ///< of a work-item: spilled registers and arrays
  uint64_t code_bytes = 0;
};

/// Of the kernel `entry` in a cubin or in AMD's relocatable code object. Errors: kUnsupported
/// (other code, such as PTX text); kCorrupt.
Result<CodeResources> read_resources(std::span<const std::byte> image, std::string_view entry);

}  // namespace bm::compiler
