#include "drivers/transport/region_window.h"

#include <algorithm>
#include <cstring>

namespace bm {
namespace {

// Views begin at multiples of 8 bytes.
constexpr uint64_t kViewAlignment = 8;

/// A view of mapped bytes that need not begin aligned, and where they begin in it.
Mmio view_of(std::byte* at, uint64_t bytes, uint64_t& skipped) {
  skipped = reinterpret_cast<uintptr_t>(at) % kViewAlignment;
  return *Mmio::mapped(at - skipped, bytes + skipped);
}

}  // namespace

std::byte* RegionWindow::find(uint64_t offset, uint64_t& bytes) const {
  for (const RegionPart* part : parts_) {
    const uint64_t size = part->mapping.bytes();
    if (offset >= part->offset && offset - part->offset < size) {
      bytes = std::min(bytes, size - (offset - part->offset));
      return static_cast<std::byte*>(part->mapping.address()) + (offset - part->offset);
    }
    if (part->offset > offset) bytes = std::min(bytes, part->offset - offset);
  }
  return nullptr;
}

uint64_t RegionWindow::read(uint64_t offset, uint32_t width) {
  uint64_t bytes = width, skipped = 0;
  std::byte* const mapped = find(offset, bytes);
  if (mapped != nullptr && bytes == width) {
    const Mmio view = view_of(mapped, width, skipped);
    switch (width) {
      case 1: return view.read8(skipped);
      case 2: return view.read16(skipped);
      case 4: return view.read32(skipped);
      default: return view.read64(skipped);
    }
  }
  uint64_t value = 0;
  const auto to = std::as_writable_bytes(std::span(&value, 1)).first(width);
  if (!io_.read_region(region_, offset, to, is_registers_)) return ~uint64_t{0};
  return value;
}

void RegionWindow::write(uint64_t offset, uint32_t width, uint64_t value) {
  uint64_t bytes = width, skipped = 0;
  std::byte* const mapped = find(offset, bytes);
  if (mapped == nullptr || bytes != width) {
    (void)io_.write_region(region_, offset, std::as_bytes(std::span(&value, 1)).first(width),
                           is_registers_);
    return;
  }
  const Mmio view = view_of(mapped, width, skipped);
  switch (width) {
    case 1: return view.write8(skipped, static_cast<uint8_t>(value));
    case 2: return view.write16(skipped, static_cast<uint16_t>(value));
    case 4: return view.write32(skipped, static_cast<uint32_t>(value));
    default: return view.write64(skipped, value);
  }
}

void RegionWindow::read_block(uint64_t offset, std::span<std::byte> to) {
  const bool is_words = is_registers_ && offset % 4 == 0 && to.size() % 4 == 0;
  while (!to.empty()) {
    uint64_t bytes = to.size(), skipped = 0;
    const std::byte* const mapped = find(offset, bytes);
    const auto part = to.first(bytes);
    if (mapped != nullptr && is_words) {
      const Mmio view = view_of(const_cast<std::byte*>(mapped), bytes, skipped);
      for (size_t at = 0; at < part.size(); at += 4) {
        const uint32_t word = view.read32(skipped + at);
        std::memcpy(&part[at], &word, sizeof word);
      }
    } else if (mapped != nullptr) {
      std::memcpy(part.data(), mapped, part.size());
    } else if (!io_.read_region(region_, offset, part, is_registers_)) {
      std::fill(part.begin(), part.end(), std::byte{0xff});
    }
    offset += bytes;
    to = to.subspan(bytes);
  }
}

void RegionWindow::write_block(uint64_t offset, std::span<const std::byte> from) {
  const bool is_words = is_registers_ && offset % 4 == 0 && from.size() % 4 == 0;
  while (!from.empty()) {
    uint64_t bytes = from.size(), skipped = 0;
    std::byte* const mapped = find(offset, bytes);
    const auto part = from.first(bytes);
    if (mapped != nullptr && is_words) {
      const Mmio view = view_of(mapped, bytes, skipped);
      for (size_t at = 0; at < part.size(); at += 4) {
        uint32_t word = 0;
        std::memcpy(&word, &part[at], sizeof word);
        view.write32(skipped + at, word);
      }
    } else if (mapped != nullptr) {
      std::memcpy(mapped, part.data(), part.size());
    } else {
      (void)io_.write_region(region_, offset, part, is_registers_);
    }
    offset += bytes;
    from = from.subspan(bytes);
  }
}

void RegionWindow::flush() {
  store_fence();
  io_.flush_regions();
}

}  // namespace bm
