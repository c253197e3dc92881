#include "firmware/image.h"

#include "firmware/decompress.h"

namespace bm::firmware {

tl::unexpected<Error> Image::outside(uint64_t offset, uint64_t count, uint64_t each,
                                     std::string_view what) const {
  return fail(Code::kCorrupt, "{}: {} ({} × {} bytes at {:#x}) is not inside its {:#x} bytes",
              name_, what, count, each, offset, size());
}

Result<std::span<const std::byte>> Image::section(uint64_t offset, uint64_t bytes,
                                                  std::string_view what) const {
  if (bytes > size() || offset > size() - bytes) return outside(offset, 1, bytes, what);
  return bytes_.subspan(offset, bytes);
}

Result<Image> Image::part(uint64_t offset, uint64_t bytes, std::string_view what) const {
  const std::span<const std::byte> inside = BM_TRY(section(offset, bytes, what));
  return Image(fmt::format("{}: {}", name_, what), inside);
}

Status Image::check_crc32(uint64_t from, uint32_t expected) const {
  if (from > size()) return outside(from, 1, 0, "start of the checksum");
  const uint32_t sum = crc32(bytes_.subspan(from));
  if (sum != expected)
    return fail(Code::kCorrupt, "{}: CRC-32 from {:#x} on is {:08x}, its header says {:08x}", name_,
                from, sum, expected);
  return {};
}

}  // namespace bm::firmware
