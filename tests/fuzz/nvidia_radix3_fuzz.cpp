// Sizes and addresses of an image as page lists: 8 bytes of size, then addresses. What is written
// stays in its tables, and each page of the image has its entry.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "firmware/nvidia/radix3.h"
#include "runtime/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bm::firmware::nvidia;
  uint64_t image_bytes = 0;
  if (size < sizeof image_bytes) return 0;
  std::memcpy(&image_bytes, data, sizeof image_bytes);
  data += sizeof image_bytes;
  size -= sizeof image_bytes;
  const auto asked = size_radix3(image_bytes);
  if (asked) BM_CHECK(asked->pages[0] == 1 && asked->pages[1] <= 512);
  const auto radix = size_radix3(image_bytes % (uint64_t{2000} * kRadixPageBytes));
  if (!radix) return 0;
  const auto address = [&](uint64_t i) {
    uint64_t value = i;
    if (size >= 4) std::memcpy(&value, data + i * 4 % (size - 3), 4);
    return value * kRadixPageBytes;
  };
  std::vector<uint64_t> tables_at, image_at;
  for (uint64_t i = 0; i < radix->table_pages(); ++i) tables_at.push_back(address(i));
  for (uint64_t i = 0; i < radix->image_pages; ++i) image_at.push_back(address(i + 1));
  std::vector<std::byte> tables(radix->table_pages() * kRadixPageBytes);
  BM_CHECK(write_radix3(*radix, tables, tables_at, image_at).has_value());
  const uint64_t last = radix->pages[0] + radix->pages[1];
  for (uint64_t i = 0; i < radix->image_pages; ++i)
    BM_CHECK(std::memcmp(&tables[last * kRadixPageBytes + i * 8], &image_at[i], 8) == 0);
  image_at.push_back(0);
  BM_CHECK(!write_radix3(*radix, tables, tables_at, image_at));
  return 0;
}
