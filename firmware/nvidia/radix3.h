#pragma once
// The page lists by which the GSP's boot loader finds an image that lies scattered in the host's
// memory: three levels of pages of 64-bit bus addresses, each of the next level's pages, the last
// of the image's. Source: open-gpu-kernel-modules 570.144, kernel_gsp.c, kgspCreateRadix3_IMPL;
// libos_init_args.h.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/result.h"

namespace bm::firmware::nvidia {

inline constexpr uint64_t kRadixPageBytes = 4096;
inline constexpr uint64_t kRadixEntries = kRadixPageBytes / sizeof(uint64_t);

struct Radix3 {
  std::array<uint64_t, 3> pages{};  ///< of each level, the first has one
  uint64_t image_pages = 0;

  uint64_t table_pages() const { return pages[0] + pages[1] + pages[2]; }
};

/// How many pages an image of `image_bytes` takes. Errors: kInvalidArgument: none, or more than
/// the levels reach (512 GiB).
Result<Radix3> size_radix3(uint64_t image_bytes);

/// Writes the lists. `tables`: table_pages() pages, level by level, which the GPU sees at
/// `table_addresses`, one a page; `image_addresses`: of each page of the image. What has no entry
/// is 0. The first of `table_addresses` is what the GSP is told.
/// Errors: kInvalidArgument: a count that does not fit, an address that is no multiple of a page.
Status write_radix3(const Radix3& radix, std::span<std::byte> tables,
                    std::span<const uint64_t> table_addresses,
                    std::span<const uint64_t> image_addresses);

}  // namespace bm::firmware::nvidia
