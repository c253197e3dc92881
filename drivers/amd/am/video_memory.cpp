#include "drivers/amd/am/video_memory.h"

#include <algorithm>
#include <string>

#include "runtime/base/bits.h"

namespace bm::amd::am {
namespace {

/// FNV-1a.
uint32_t mix(uint32_t hash, uint64_t value) {
  for (int i = 0; i < 8; ++i) hash = (hash ^ static_cast<uint8_t>(value >> (8 * i))) * 0x01000193u;
  return hash;
}

}  // namespace

Result<VideoMemory> VideoMemory::create(uint64_t bytes, uint64_t visible, uint64_t top_bytes) {
  const uint64_t least = kBootBytes + top_bytes + (32 << 20);
  if (bytes < least || visible <= kBootBytes)
    return fail(Code::kUnsupported,
                "{} MiB of video memory, {} MiB of it visible: at least {} and {} are needed",
                bytes >> 20, visible >> 20, least >> 20, (kBootBytes >> 20) + 1);
  const uint64_t top = align_down(bytes - top_bytes, uint64_t{4096});
  const uint64_t seen = align_down(std::min(visible, top), uint64_t{4096});
  VideoMemory memory(bytes, BM_TRY(memory::VaSpace::create(kBootBytes, seen - kBootBytes)));
  if (seen < top) memory.hidden_ = BM_TRY(memory::VaSpace::create(seen, top - seen));
  return memory;
}

Result<uint64_t> VideoMemory::boot_rest(uint64_t bytes, uint64_t alignment,
                                        std::string_view what) const {
  const uint64_t at = align_up(boot_used_, alignment);
  if (at > kBootBytes || bytes > kBootBytes - at)
    return fail(Code::kOutOfMemory, "{} wants {:#x} bytes; of {:#x} for the boot {:#x} are taken",
                what, bytes, kBootBytes, boot_used_);
  return at;
}

Result<uint64_t> VideoMemory::allocate_boot(uint64_t bytes, uint64_t alignment,
                                            std::string_view what) {
  const uint64_t at = BM_TRY(boot_rest(bytes, alignment, what));
  boot_used_ = at + align_up(bytes, uint64_t{4096});
  hash_ = mix(mix(hash_, at), bytes);
  return at;
}

Result<uint64_t> VideoMemory::allocate(uint64_t bytes, uint64_t alignment, bool is_visible) {
  if (!is_visible && hidden_)
    if (auto address = hidden_->allocate(bytes, alignment)) return address;
  return visible_.allocate(bytes, alignment);
}

Status VideoMemory::reserve(uint64_t address, uint64_t bytes) {
  const bool is_hidden = hidden_ && address >= hidden_->base();
  if (const Status taken =
          is_hidden ? hidden_->reserve(address, bytes) : visible_.reserve(address, bytes);
      !taken)
    return fail(Code::kOutOfMemory, "{}", taken.error().message);
  return {};
}

void VideoMemory::free(uint64_t address) {
  const bool is_hidden = hidden_ && address >= hidden_->base();
  static_cast<void>(is_hidden ? hidden_->free(address) : visible_.free(address));
}

uint64_t VideoMemory::free_bytes() const {
  return visible_.free_bytes() + (hidden_ ? hidden_->free_bytes() : 0);
}

}  // namespace bm::amd::am
