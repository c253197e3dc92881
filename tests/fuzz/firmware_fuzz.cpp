// Any bytes: as an .xz or .zst file, and as a container that names its own offsets. Nothing may
// crash, read outside or grow beyond the limit.

#include <cstddef>
#include <cstdint>
#include <span>

#include "firmware/decompress.h"
#include "firmware/image.h"
#include "runtime/base/check.h"

namespace {

constexpr uint64_t kLimit = 1 << 20;

/// A container as firmware has them: counts, offsets and sizes from the file itself.
void walk(const bm::firmware::Image& image, int depth) {
  struct Entry {
    uint32_t kind, offset, size;
  };
  const auto count = image.at<uint16_t>(0, "count");
  if (!count) return;
  const auto table = image.at<uint32_t>(2, "table");
  if (!table) return;
  const auto entries = image.table<Entry>(*table, *count, "entries");
  if (!entries) return;
  BM_CHECK(entries->size() == *count && *count * sizeof(Entry) <= image.size());
  for (const Entry& entry : *entries) {
    const uint64_t offset = uint64_t{entry.offset} << (entry.kind & 32);
    const auto section = image.section(offset, entry.size, "section");
    const auto part = image.part(offset, entry.size, "part");
    BM_CHECK(section.has_value() == part.has_value());
    if (!section) continue;
    BM_CHECK(section->data() >= image.bytes().data() &&
             section->data() + section->size() <= image.bytes().data() + image.size());
    (void)image.check_crc32(offset, entry.kind);
    if (depth < 3 && part->size() < image.size()) walk(*part, depth + 1);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 3) {
    case 0: walk(bm::firmware::Image("fuzz", bytes), 0); break;
    case 1:
    case 2: {
      const auto how =
          data[0] % 3 == 1 ? bm::firmware::Compression::kXz : bm::firmware::Compression::kZstd;
      const auto out = bm::firmware::decompress(bytes, how, kLimit);
      BM_CHECK(out ? out->size() <= kLimit : !out.error().message.empty());
      break;
    }
    default: break;
  }
  return 0;
}
