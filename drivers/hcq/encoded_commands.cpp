#include "drivers/hcq/encoded_commands.h"

namespace bm::hcq {

Result<std::vector<uint8_t>> patched_bits(std::span<const hal::Command> commands,
                                          std::span<const hal::Patch> patches) {
  using hal::PatchField;
  std::vector<uint8_t> bits(commands.size());
  for (const hal::Patch& patch : patches) {
    if (patch.command >= commands.size())
      return fail(Code::kInvalidArgument, "patch of command {} of {}", patch.command,
                  commands.size());
    switch (patch.field) {
      case PatchField::kGridX:
      case PatchField::kGridY:
      case PatchField::kGridZ: bits[patch.command] |= kPatchedGrid; break;
      case PatchField::kSignalAddress: bits[patch.command] |= kPatchedAddress; break;
      case PatchField::kCopyDst:
      case PatchField::kCopySrc:
      case PatchField::kCopyBytes: bits[patch.command] |= kPatchedCopy; break;
      case PatchField::kSignalValue: bits[patch.command] |= kPatchedValue; break;
      case PatchField::kKernarg: break;
    }
  }
  return bits;
}

Status check_word(uint64_t address, const char* command) {
  if (address != 0 && address % sizeof(uint64_t) == 0) return {};
  return fail(Code::kInvalidArgument, "{} at {:#x}: no address of 8 aligned bytes", command,
              address);
}

Result<HostView> argument_block(const hal::Dispatch& dispatch, uint64_t bytes,
                                const EncodingContext& context) {
  const uint64_t address = hal::raw(dispatch.kernarg);
  const bool is_aligned = address != 0 && address % sizeof(uint64_t) == 0;
  const HostView block = is_aligned ? context.arguments(address, bytes) : HostView();
  if (!block)
    return fail(Code::kInvalidArgument,
                "kernel '{}': no argument block of {} bytes at {:#x} that the CPU can read",
                dispatch.program->code().entry, bytes, address);
  return block;
}

}  // namespace bm::hcq
