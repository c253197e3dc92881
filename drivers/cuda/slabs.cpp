#include "drivers/cuda/slabs.h"

#include <optional>

namespace bm::cuda {
namespace {

constexpr uint64_t kVideoSlab = 32 << 20, kPinnedSlab = 4 << 20;
/// Requests above this part of a slab go to the driver.
constexpr uint64_t kLargestShare = 8;
/// What cuMemAlloc promises.
constexpr uint64_t kAlignment = 256;

}  // namespace

uint64_t Slabs::slab_bytes() const {
  return backing_ == Backing::kVideo ? kVideoSlab : kPinnedSlab;
}

Slabs::~Slabs() {
  const Current current(context_);
  for (const auto& [va, slab] : slabs_) to_driver(slab.piece);
  context_.settle();  // no stream is left, so nothing stays put off
}

Result<Piece> Slabs::from_driver(uint64_t bytes) {
  const Api& api = context_.api;
  Piece piece{.va = 0, .host = nullptr, .size = bytes};
  CuResult error = kSuccess;
  if (backing_ == Backing::kVideo) {
    error = api.cuMemAlloc(&piece.va, bytes);
  } else {
    void* host = nullptr;
    error = api.cuMemHostAlloc(&host, bytes, kHostPortable | kHostDeviceMap);
    piece.host = static_cast<std::byte*>(host);
    piece.va = reinterpret_cast<uintptr_t>(host);
    // Equal under unified addressing, but it is the driver that says so.
    if (error == kSuccess && api.cuMemHostGetDevicePointer != nullptr)
      error = api.cuMemHostGetDevicePointer(&piece.va, host, 0);
  }
  if (error == kSuccess) {
    held_.fetch_add(bytes, std::memory_order_relaxed);
    return piece;
  }
  if (error != kErrorOutOfMemory)
    return tl::unexpected(
        context_.failed(error, fmt::format("allocation of {} bytes", bytes)).error());
  size_t free = 0, total = 0;
  const bool knows = api.cuMemGetInfo != nullptr && api.cuMemGetInfo(&free, &total) == kSuccess;
  return fail(Code::kOutOfMemory, "{} bytes of {} memory requested, {} held by this device, {}",
              bytes, backing_ == Backing::kVideo ? "video" : "pinned", held(),
              knows ? fmt::format("{} of {} free on the GPU", free, total)
                    : std::string("the driver has no more"));
}

void Slabs::to_driver(const Piece& piece) {
  context_.give_back([this, piece] {
    // A context that is lost refuses; its memory goes with it.
    if (backing_ == Backing::kVideo)
      context_.api.cuMemFree(piece.va);
    else
      context_.api.cuMemFreeHost(piece.host);
    held_.fetch_sub(piece.size, std::memory_order_relaxed);
  });
}

void Slabs::free_empty(const Slab* but) {
  std::erase_if(slabs_, [&](const auto& entry) {
    const Slab& slab = entry.second;
    if (&slab == but || !slab.ranges.is_empty()) return false;
    to_driver(slab.piece);
    return true;
  });
}

Result<Piece> Slabs::allocate(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto exactly = [&]() -> Result<Piece> {
    const uint64_t before = held();
    Result<Piece> piece = from_driver(bytes);
    if (piece || piece.error().code != Code::kOutOfMemory) return piece;
    free_empty(nullptr);
    if (context_.wait_idle()) context_.settle();  // what was freed while the GPU was busy
    if (held() != before) piece = from_driver(bytes);
    return piece;
  };
  if (bytes > slab_bytes() / kLargestShare) return exactly();
  const auto part_of = [bytes](Slab& slab) -> std::optional<Piece> {
    const auto offset = slab.ranges.try_allocate(bytes, kAlignment);
    if (!offset) return std::nullopt;
    return Piece{.va = slab.piece.va + *offset,
                 .host = slab.piece.host == nullptr ? nullptr : slab.piece.host + *offset,
                 .size = bytes};
  };
  for (auto& [va, slab] : slabs_)
    if (const auto piece = part_of(slab)) return *piece;
  const Result<Piece> fresh = from_driver(slab_bytes());
  if (!fresh) return exactly();  // no room for a whole slab
  Tlsf ranges = BM_TRY(Tlsf::create(0, fresh->size, kAlignment));
  Slab& slab = slabs_.emplace(fresh->va, Slab{*fresh, std::move(ranges)}).first->second;
  return *part_of(slab);
}

void Slabs::free(const Piece& piece) {
  const std::lock_guard lock(mutex_);
  const auto after = slabs_.upper_bound(piece.va);
  if (after != slabs_.begin()) {
    Slab& slab = std::prev(after)->second;
    if (piece.va - slab.piece.va < slab.piece.size) {
      static_cast<void>(slab.ranges.free(piece.va - slab.piece.va));
      // One empty slab stays, so that a lonely small buffer does not take and give it in turn.
      if (slab.ranges.is_empty()) free_empty(&slab);
      return;
    }
  }
  to_driver(piece);
}

}  // namespace bm::cuda
