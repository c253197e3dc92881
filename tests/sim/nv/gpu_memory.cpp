#include "tests/sim/nv/gpu_memory.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace bm::sim::nv {

GpuMemory::~GpuMemory() {
  for (Backing* const backing : touched_) backing->flush();
}

const PageRange* GpuMemory::find(uint64_t address, Use use, uint64_t* offset) {
  const auto refuse = [&](uint32_t type) {
    fault_ = {.address = address, .type = type, .access = static_cast<uint32_t>(use)};
    return nullptr;
  };
  const PageRange* range = nullptr;
  if (last_ != nullptr && address - last_base_ < last_->size) {
    range = last_;
    *offset = address - last_base_;
  } else if (walk_ != nullptr) {
    uint32_t type = kFaultPte;
    uint64_t base = 0;
    range = walk_->find(address, &base, &type);
    if (range == nullptr) return refuse(type);
    last_ = range;
    last_base_ = base;
    *offset = address - base;
  } else {
    range = find_pages(*map_, address, 1, offset);
    if (range == nullptr) return refuse(kFaultPte);
    last_ = range;
    last_base_ = address - *offset;
  }
  if (use != Use::kRead && !range->is_writable) return refuse(kFaultReadOnly);
  if (use == Use::kAtomic && !range->takes_atomics) return refuse(kFaultAtomic);
  return range;
}

std::byte* GpuMemory::at(uint64_t address, uint64_t bytes, Use use) {
  uint64_t offset = 0;
  const PageRange* const range = find(address, use, &offset);
  if (range == nullptr) return nullptr;
  if (bytes > range->size - offset) {
    // The first byte that is missing, or the seam of two ranges.
    fault_ = {.address = last_base_ + range->size,
              .type = kFaultPte,
              .access = static_cast<uint32_t>(use)};
    return nullptr;
  }
  std::byte* const pointer = range->backing->at(range->offset + offset, bytes);
  if (pointer == nullptr) {
    fault_ = {.address = address, .type = kFaultPte, .access = static_cast<uint32_t>(use)};
  } else if (touched_.empty() || touched_.back() != range->backing.get()) {
    if (std::find(touched_.begin(), touched_.end(), range->backing.get()) == touched_.end())
      touched_.push_back(range->backing.get());
  }
  return pointer;
}

bool GpuMemory::read(uint64_t address, void* out, uint64_t bytes) {
  auto* to = static_cast<std::byte*>(out);
  while (bytes != 0) {
    uint64_t offset = 0;
    const PageRange* const range = find(address, Use::kRead, &offset);
    if (range == nullptr) return false;
    const uint64_t part = std::min(bytes, range->size - offset);
    if (!range->backing->read(range->offset + offset, to, part)) return false;
    address += part, to += part, bytes -= part;
  }
  return true;
}

bool GpuMemory::write(uint64_t address, const void* data, uint64_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes != 0) {
    uint64_t offset = 0;
    const PageRange* const range = find(address, Use::kWrite, &offset);
    if (range == nullptr) return false;
    const uint64_t part = std::min(bytes, range->size - offset);
    if (!range->backing->write(range->offset + offset, from, part)) return false;
    address += part, from += part, bytes -= part;
  }
  return true;
}

bool GpuMemory::copy(uint64_t to, uint64_t from, uint64_t bytes) {
  std::array<std::byte, 32768> chunk;
  while (bytes != 0) {
    uint64_t source_offset = 0, target_offset = 0;
    const PageRange* const source = find(from, Use::kRead, &source_offset);
    if (source == nullptr) return false;
    const PageRange* const target = find(to, Use::kWrite, &target_offset);
    if (target == nullptr) return false;
    uint64_t part = std::min({bytes, source->size - source_offset, target->size - target_offset});
    std::byte* const read_at = source->backing->local(source->offset + source_offset, part);
    std::byte* const write_at = target->backing->local(target->offset + target_offset, part);
    if (read_at != nullptr && write_at != nullptr) {
      std::memmove(write_at, read_at, part);
    } else {
      part = std::min<uint64_t>(part, chunk.size());
      if (!source->backing->read(source->offset + source_offset, chunk.data(), part) ||
          !target->backing->write(target->offset + target_offset, chunk.data(), part))
        return false;
    }
    to += part, from += part, bytes -= part;
  }
  return true;
}

bool GpuMemory::is_mapped(uint64_t address, uint64_t bytes) const {
  while (bytes != 0) {
    uint64_t offset = 0, base = 0;
    uint32_t type = 0;
    const PageRange* const range = walk_ != nullptr ? walk_->find(address, &base, &type)
                                                    : find_pages(*map_, address, 1, &offset);
    if (range == nullptr) return false;
    if (walk_ != nullptr) offset = address - base;
    const uint64_t part = std::min(bytes, range->size - offset);
    address += part, bytes -= part;
  }
  return true;
}

}  // namespace bm::sim::nv
