#include "drivers/transport/dma_mappings.h"

#include <iterator>

#include "runtime/base/bits.h"

namespace bm {

Status DmaMappings::check(const DmaLimits& limits, const DmaRequest& request) const {
  const auto host = reinterpret_cast<uintptr_t>(request.host);
  if (host == 0 || request.bytes == 0 || host % limits.page_bytes != 0 ||
      request.bytes % limits.page_bytes != 0 || !checked_add(uint64_t{host}, request.bytes))
    return fail(Code::kInvalidArgument, "{:#x} bytes at {:#x} are no whole pages of {:#x}",
                request.bytes, host, limits.page_bytes);
  if (request.iova.has_value() != limits.takes_iova)
    return fail(Code::kInvalidArgument, "{:#x} bytes at {:#x}: an IOVA {}", request.bytes, host,
                limits.takes_iova ? "is missing" : "is not ours to choose");
  const auto after = by_host_.lower_bound(request.host);
  const auto* const end = static_cast<const std::byte*>(request.host) + request.bytes;
  const auto is_mapped_before = [&] {
    if (after == by_host_.begin()) return false;
    const auto& [start, mapping] = *std::prev(after);
    return static_cast<const std::byte*>(start) + mapping.bytes > request.host;
  };
  if ((after != by_host_.end() && after->first < end) || is_mapped_before())
    return fail(Code::kInvalidArgument, "{:#x} bytes at {:#x} are mapped already, at least in part",
                request.bytes, host);
  if (limits.mappings != 0 && by_host_.size() >= limits.mappings)
    return fail(Code::kOutOfMemory, "all {} DMA mappings are in use; map larger pieces",
                limits.mappings);
  if (!request.iova) return {};
  const uint64_t iova = *request.iova;
  const std::optional<uint64_t> stop = checked_add(iova, request.bytes - 1);
  if (iova % limits.page_bytes != 0 || !stop ||
      (limits.address_bits < 64 && *stop >> limits.address_bits != 0))
    return fail(Code::kInvalidArgument,
                "{:#x} bytes cannot have the IOVA {:#x} (pages of {:#x}, {} bits)", request.bytes,
                iova, limits.page_bytes, limits.address_bits);
  for (const BusRange& range : limits.reserved)
    if (range.bytes != 0 && iova <= range.address + (range.bytes - 1) && range.address <= *stop)
      return fail(Code::kInvalidArgument,
                  "{:#x} bytes at the IOVA {:#x} overlap {:#x} bytes at {:#x}, which the machine "
                  "reserves",
                  request.bytes, iova, range.bytes, range.address);
  const auto next = by_iova_.lower_bound(iova);
  const bool hits_next = next != by_iova_.end() && next->first <= *stop;
  bool hits_before = false;
  if (next != by_iova_.begin()) {
    const auto before = std::prev(next);
    hits_before = before->first + (by_host_.at(before->second).bytes - 1) >= iova;
  }
  if (hits_next || hits_before)
    return fail(Code::kInvalidArgument, "{:#x} bytes at the IOVA {:#x} overlap another mapping",
                request.bytes, iova);
  return {};
}

void DmaMappings::add(const DmaRequest& request) {
  const uint64_t iova = request.iova.value_or(0);
  by_host_[request.host] = {iova, request.bytes, request.is_read_only};
  if (request.iova) by_iova_[iova] = request.host;
  mapped_bytes_ += request.bytes;
}

Result<DmaMapping> DmaMappings::find(const void* host) const {
  const auto found = by_host_.find(host);
  if (found == by_host_.end())
    return fail(Code::kInvalidArgument, "no DMA mapping starts at {}", host);
  return found->second;
}

void DmaMappings::remove(const void* host) {
  const auto found = by_host_.find(host);
  if (found == by_host_.end()) return;
  mapped_bytes_ -= found->second.bytes;
  by_iova_.erase(found->second.iova);
  by_host_.erase(found);
}

std::byte* DmaMappings::resolve(uint64_t address, uint64_t bytes, bool is_write) const {
  auto at = by_iova_.upper_bound(address);
  if (at == by_iova_.begin() || bytes == 0) return nullptr;
  --at;
  const DmaMapping& mapping = by_host_.at(at->second);
  const uint64_t offset = address - at->first;
  if (offset >= mapping.bytes || bytes > mapping.bytes - offset) return nullptr;
  if (is_write && mapping.is_read_only) return nullptr;
  return static_cast<std::byte*>(const_cast<void*>(at->second)) + offset;
}

}  // namespace bm
