// nv-page-tables CHIP DUMP CLAIMS: boots a modelled card, maps memory of many kinds and sizes,
// takes some away again, and writes down the card's video memory and what the driver says it has
// mapped, for tests/oracle/nv_page_tables.py.

#include <cstdio>
#include <fstream>
#include <vector>

#include "drivers/nv/rm_gsp/booted_card.h"
#include "drivers/nv/rm_gsp/gpu.h"
#include "tests/unit/nv_gsp/card_rig.h"

namespace bm::nv::gsp::test {
namespace {

Status write_down(const std::string& chip, const std::string& dump, const std::string& claims) {
  CardRig rig(chip);
  auto card = BM_TRY(rig.open());
  const auto gpu = BM_TRY(GspGpu::open(make_running(std::move(card))));
  std::vector<std::unique_ptr<Memory>> kept;
  std::vector<uint64_t> gone;
  constexpr uint64_t kSizes[] = {4096,     12288,   64 << 10,         (64 << 10) + 4096,
                                 2 << 20,  6 << 20, (2 << 20) + 8192, 1 << 20,
                                 40 << 10, 3 << 20};
  for (const MemoryDomain domain :
       {MemoryDomain::kVideo, MemoryDomain::kVideoMapped, MemoryDomain::kSystem})
    for (const uint64_t size : kSizes) {
      auto one = BM_TRY(gpu->allocate({.size = size, .domain = domain}));
      // Every third is given back, so that there are holes.
      if (kept.size() % 3 == 2 && gone.size() < kept.size() / 2)
        gone.push_back(one->va);
      else
        kept.push_back(std::move(one));
    }
  const memory::PageTable& tables = gpu->space().tables();
  std::ofstream text(claims);
  text << fmt::format("root {} {:#x}\n", tables.format().va_bits > 49 ? 3 : 2,
                      tables.root_address());
  for (const auto& one : kept)
    for (uint64_t done = 0; done < one->size;) {
      const auto mapping = tables.find(one->va + done);
      if (!mapping) return fail(Code::kInternal, "{:#x} is not mapped", one->va + done);
      const uint64_t skipped = one->va + done - mapping->va;
      const uint64_t bytes = std::min(one->size - done, mapping->bytes - skipped);
      text << fmt::format(
          "map {:#x} {:#x} {} {:#x}\n", one->va + done, bytes,
          mapping->attributes.aperture == memory::Aperture::kSystem ? "system" : "video",
          mapping->address + skipped);
      done += bytes;
    }
  for (const uint64_t va : gone)
    if (!tables.find(va)) text << fmt::format("unmapped {:#x}\n", va);
  text << fmt::format("bytes {}\n", tables.mapped_bytes());
  std::ofstream pages(dump, std::ios::binary);
  for (const uint64_t page : rig.card->vram().written_pages()) {
    pages.write(reinterpret_cast<const char*>(&page), 8);
    pages.write(reinterpret_cast<const char*>(rig.card->vram().at(page, 4096)), 4096);
  }
  return text && pages ? Status{} : fail(Code::kIo, "{} cannot be written", dump);
}

}  // namespace
}  // namespace bm::nv::gsp::test

int main(int count, char** words) {
  if (count != 4) return 2;
  const bm::Status done = bm::nv::gsp::test::write_down(words[1], words[2], words[3]);
  if (!done) std::fprintf(stderr, "nv-page-tables: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
