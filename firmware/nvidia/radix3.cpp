#include "firmware/nvidia/radix3.h"

#include <algorithm>
#include <cstring>

namespace bm::firmware::nvidia {
namespace {

constexpr uint64_t pages_for(uint64_t bytes) {
  return bytes / kRadixPageBytes + (bytes % kRadixPageBytes != 0);
}

Status check_addresses(std::span<const uint64_t> addresses, uint64_t count, std::string_view what) {
  if (addresses.size() != count)
    return fail(Code::kInvalidArgument, "{} addresses of {} for {} pages", addresses.size(), what,
                count);
  for (const uint64_t address : addresses)
    if (address % kRadixPageBytes != 0)
      return fail(Code::kInvalidArgument, "address {:#x} of {} is no multiple of {}", address, what,
                  kRadixPageBytes);
  return {};
}

}  // namespace

Result<Radix3> size_radix3(uint64_t image_bytes) {
  constexpr uint64_t kMostPages = kRadixEntries * kRadixEntries * kRadixEntries;
  Radix3 radix{.pages = {}, .image_pages = pages_for(image_bytes)};
  if (image_bytes == 0 || radix.image_pages > kMostPages)
    return fail(Code::kInvalidArgument, "an image of {:#x} bytes: 1 to {:#x} can be listed",
                image_bytes, kMostPages * kRadixPageBytes);
  uint64_t next = radix.image_pages;
  for (size_t level = radix.pages.size(); level-- > 0;) {
    next = pages_for(next * sizeof(uint64_t));
    radix.pages[level] = next;
  }
  return radix;
}

Status write_radix3(const Radix3& radix, std::span<std::byte> tables,
                    std::span<const uint64_t> table_addresses,
                    std::span<const uint64_t> image_addresses) {
  BM_TRY(check_addresses(table_addresses, radix.table_pages(), "tables"));
  BM_TRY(check_addresses(image_addresses, radix.image_pages, "the image"));
  if (tables.size() / kRadixPageBytes < radix.table_pages())
    return fail(Code::kInvalidArgument, "{:#x} bytes for {} pages of tables", tables.size(),
                radix.table_pages());
  // A level holds the addresses of what follows it; levels lie one behind the other.
  std::ranges::fill(tables.first(radix.table_pages() * kRadixPageBytes), std::byte{0});
  uint64_t page = 0;
  for (size_t level = 0; level < radix.pages.size(); ++level) {
    const bool is_last = level + 1 == radix.pages.size();
    const uint64_t next = page + radix.pages[level];
    const std::span<const uint64_t> entries =
        is_last ? image_addresses : table_addresses.subspan(next, radix.pages[level + 1]);
    if (entries.size() > radix.pages[level] * kRadixEntries)
      return fail(Code::kInvalidArgument, "{} entries in {} pages of level {}", entries.size(),
                  radix.pages[level], level);
    std::memcpy(tables.subspan(page * kRadixPageBytes).data(), entries.data(),
                entries.size_bytes());
    page = next;
  }
  return {};
}

}  // namespace bm::firmware::nvidia
