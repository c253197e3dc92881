#include "compiler/toolchain/code_resources.h"

#include <algorithm>
#include <string>

#include "runtime/base/byte_reader.h"
#include "runtime/base/elf.h"

namespace bm::compiler {
namespace {

/// Attributes of .nv.info: records {format, attribute, value or size}, of format 4 with a payload.
/// Source: CUDA binary utilities, `cuobjdump -elf` and `nvdisasm -h` of CUDA 13.0.
constexpr uint8_t kWithPayload = 4, kFrameSize = 0x11, kRegisters = 0x2f;

Status read_module_info(std::span<const std::byte> section, uint32_t symbol, CodeResources* out) {
  ByteReader in(section);
  while (in.remaining() >= 4) {
    const auto format = BM_TRY(in.read<uint8_t>());
    const auto attribute = BM_TRY(in.read<uint8_t>());
    const auto size = BM_TRY(in.read<uint16_t>());
    if (format != kWithPayload) continue;
    ByteReader payload(BM_TRY(in.bytes(size)));
    if (size < 8 || BM_TRY(payload.read<uint32_t>()) != symbol) continue;
    const auto value = BM_TRY(payload.read<uint32_t>());
    if (attribute == kRegisters) out->registers = value;
    if (attribute == kFrameSize) out->stack_bytes = value;
  }
  return {};
}

Result<CodeResources> read_cubin(const elf::File& file, std::string_view entry) {
  CodeResources out;
  const elf::Section* text = file.find_section(".text." + std::string(entry));
  if (text == nullptr) return fail(Code::kCorrupt, "cubin: no kernel '{}'", entry);
  out.code_bytes = text->size;
  uint32_t symbol = 0;
  for (uint32_t i = 0; i < file.symbols().size(); ++i)
    if (file.symbols()[i].name == entry && file.symbols()[i].type == elf::SymbolType::kFunction)
      symbol = i;
  if (const elf::Section* info = file.find_section(".nv.info"))
    BM_TRY(read_module_info(info->bytes, symbol, &out));
  // Up to sm_89 the count is also in the text section's sh_info.
  if (out.registers == 0) out.registers = text->info >> 24;
  if (const elf::Section* shared = file.find_section(".nv.shared." + std::string(entry)))
    out.shared_bytes = static_cast<uint32_t>(shared->size);
  return out;
}

/// An unsigned number of the MessagePack map in AMD's note, by its key. Source: LLVM,
/// AMDGPUUsage.rst, "Code Object V5 Metadata"; MessagePack specification, "int format family".
uint32_t note_number(std::string_view note, std::string_view key) {
  const size_t at = note.find(key);
  if (at == note.npos) return 0;
  const auto byte = [&](size_t i) -> uint32_t {
    const size_t place = at + key.size() + i;
    return place < note.size() ? static_cast<uint8_t>(note[place]) : 0;
  };
  switch (byte(0)) {
    case 0xcc: return byte(1);
    case 0xcd: return byte(1) << 8 | byte(2);
    case 0xce: return byte(1) << 24 | byte(2) << 16 | byte(3) << 8 | byte(4);
    default: return byte(0) < 0x80 ? byte(0) : 0;
  }
}

Result<CodeResources> read_amd(const elf::File& file, std::string_view entry) {
  CodeResources out;
  for (const elf::Section& s : file.sections()) {
    if (s.has(elf::kExec)) out.code_bytes += s.size;
    if (s.type != elf::kNote) continue;
    const std::string_view note(reinterpret_cast<const char*>(s.bytes.data()), s.bytes.size());
    if (note.find(entry) == note.npos) continue;
    out.registers = std::max(note_number(note, ".vgpr_count"), note_number(note, ".agpr_count"));
    out.scalar_registers = note_number(note, ".sgpr_count");
    out.shared_bytes = note_number(note, ".group_segment_fixed_size");
    out.stack_bytes = note_number(note, ".private_segment_fixed_size");
    return out;
  }
  return fail(Code::kCorrupt, "code object: no metadata of kernel '{}'", entry);
}

}  // namespace

Result<CodeResources> read_resources(std::span<const std::byte> image, std::string_view entry) {
  constexpr std::string_view kMagic = "\177ELF";
  const std::string_view text(reinterpret_cast<const char*>(image.data()), image.size());
  if (!text.starts_with(kMagic))
    return fail(Code::kUnsupported, "kernel '{}' is text, no machine code", entry);
  const elf::File file = BM_TRY(elf::File::parse(image));
  if (file.machine() == elf::kMachineCuda) return read_cubin(file, entry);
  if (file.machine() == elf::kMachineAmdGpu) return read_amd(file, entry);
  return fail(Code::kUnsupported, "kernel '{}' is code of no GPU", entry);
}

}  // namespace bm::compiler
