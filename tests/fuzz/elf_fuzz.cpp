// Any bytes: parsing must neither crash nor read outside, and what it accepts must be consistent.

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/check.h"
#include "runtime/base/elf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto file = bm::elf::File::parse(bytes);
  if (!file) {
    BM_CHECK(!file.error().message.empty());
    return 0;
  }
  for (const bm::elf::Section& section : file->sections()) {
    if (section.type != bm::elf::kNobits && section.type != bm::elf::kNull)
      BM_CHECK(section.bytes.size() == section.size);
    if (section.type != bm::elf::kRela && section.type != bm::elf::kRel) continue;
    const auto relocations = file->relocations(section);
    if (!relocations || file->type() != bm::elf::FileType::kRelocatable) continue;
    for (const bm::elf::Relocation& r : *relocations)
      BM_CHECK(r.offset < file->sections()[section.info].size);
  }
  for (const bm::elf::Symbol& symbol : file->symbols()) {
    BM_CHECK(symbol.section >= bm::elf::kFirstReserved || symbol.section < file->sections().size());
    if (symbol.is_defined() && !symbol.name.empty())
      BM_CHECK(file->find_symbol(symbol.name) != nullptr);
  }
  return 0;
}
