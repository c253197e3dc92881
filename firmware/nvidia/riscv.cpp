#include "firmware/nvidia/riscv.h"

#include <algorithm>
#include <array>

#include "firmware/nvidia/container.h"

namespace bm::firmware::nvidia {
namespace {

constexpr uint64_t kFewestWords = 14;  // what nova-core reads of one
constexpr size_t kWords = 21;          // of 570.144

}  // namespace

Result<RiscvUcode> parse_riscv_ucode(const Image& file) {
  const Container container = BM_TRY(parse_container(file));
  const BinHeader& header = container.header;
  if (header.data_offset < header.header_offset ||
      header.data_offset - header.header_offset < kFewestWords * 4)
    return fail(Code::kCorrupt, "{}: descriptor from {:#x} to {:#x}, it has {:#x} bytes at least",
                file.name(), header.header_offset, header.data_offset, kFewestWords * 4);
  const uint64_t there = (header.data_offset - header.header_offset) / 4;
  const auto found = BM_TRY(file.table<uint32_t>(
      header.header_offset, std::min<uint64_t>(there, kWords), "RM_RISCV_UCODE_DESC"));
  std::array<uint32_t, kWords> words{};
  std::ranges::copy(found, words.begin());
  const auto range = [&](size_t at) { return Range{words[at], words[at + 1]}; };
  RiscvUcode ucode{.image = container.data,
                   .version = words[0],
                   .app_version = words[7],
                   .bootloader = range(1),
                   .bootloader_params = range(3),
                   .riscv_elf = range(5),
                   .manifest = range(8),
                   .monitor_data = range(10),
                   .monitor_code = range(12),
                   .is_monitor_enabled = words[14] != 0,
                   .swbrom_code = range(15),
                   .swbrom_data = range(17),
                   .fb_reserved_size = words[19],
                   .is_signed_as_code = words[20] != 0};
  const std::pair<Range, std::string_view> parts[] = {
      {ucode.bootloader, "bootloader"},     {ucode.bootloader_params, "bootloader params"},
      {ucode.riscv_elf, "RISC-V ELF"},      {ucode.manifest, "manifest"},
      {ucode.monitor_data, "monitor data"}, {ucode.monitor_code, "monitor code"},
      {ucode.swbrom_code, "swbrom code"},   {ucode.swbrom_data, "swbrom data"}};
  for (const auto& [part, what] : parts)
    if (part.size != 0 &&
        (part.size > ucode.image.size() || part.offset > ucode.image.size() - part.size))
      return fail(Code::kCorrupt, "{}: {} ({:#x} bytes at {:#x}) is not inside its image of {:#x}",
                  file.name(), what, part.size, part.offset, ucode.image.size());
  return ucode;
}

}  // namespace bm::firmware::nvidia
