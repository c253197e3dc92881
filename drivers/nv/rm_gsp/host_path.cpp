#include "drivers/nv/rm_gsp/host_path.h"

#include <iterator>

namespace bm::nv::gsp {

void BarPath::add(uint64_t va, uint64_t physical, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  places_[va] = {physical, bytes};
}

void BarPath::remove(uint64_t va) {
  const std::lock_guard lock(mutex_);
  places_.erase(va);
}

Result<uint64_t> BarPath::find(uint64_t va, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto after = places_.upper_bound(va);
  if (after != places_.begin()) {
    const auto& [start, place] = *std::prev(after);
    if (bytes <= place.bytes && va - start <= place.bytes - bytes)
      return place.physical + (va - start);
  }
  return fail(Code::kInvalidArgument, "{} bytes at {:#x} are no memory that the host sees", bytes,
              va);
}

Status BarPath::write(uint64_t va, std::span<const std::byte> from) {
  bar1_.copy_in(BM_TRY(find(va, from.size())), from);
  return bar1_.status();
}

Status BarPath::read(uint64_t va, std::span<std::byte> to) {
  bar1_.copy_out(BM_TRY(find(va, to.size())), to);
  return bar1_.status();
}

}  // namespace bm::nv::gsp
