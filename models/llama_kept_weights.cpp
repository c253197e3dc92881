#include "models/llama_kept_weights.h"

#include <algorithm>
#include <array>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/allocator.h"
#include "runtime/base/bits.h"
#include "runtime/base/log.h"

namespace bm::models {
namespace {

/// Goes up when weights are packed otherwise than before.
constexpr uint64_t kLayout = 2;
constexpr uint64_t kAlignment = 256;
/// Parts of an item begin at multiples of kAlignment.
constexpr uint64_t kMostParts = 6;
constexpr uint64_t kRounding = 64 << 10;
/// What is read of a large tensor to tell it from another: pieces over all of it.
constexpr size_t kWhole = 64 << 10, kPiece = 256, kPieces = 32;

class Digest {
 public:
  Digest() : state_(XXH3_createState()) { XXH3_128bits_reset(state_); }
  ~Digest() { XXH3_freeState(state_); }
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;
  void add(std::span<const std::byte> bytes) {
    XXH3_128bits_update(state_, bytes.data(), bytes.size());
  }
  void add(uint64_t number) { add(std::as_bytes(std::span(&number, 1))); }
  void add(std::string_view text) {
    add(text.size());
    add(std::as_bytes(std::span(text.data(), text.size())));
  }
  hal::KeptKey key() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_);
    return {hash.low64, hash.high64};
  }

 private:
  XXH3_state_t* state_;
};

/// All bytes where nothing else tells files apart; else pieces, since reading a whole model takes
/// longer than a hot restart may.
void add_contents(Digest& digest, std::span<const std::byte> data, bool has_stamp) {
  if (!has_stamp || data.size() <= kWhole) return digest.add(data);
  const size_t step = (data.size() - kPiece) / (kPieces - 1);
  for (size_t i = 0; i < kPieces; ++i) digest.add(data.subspan(i * step, kPiece));
}

}  // namespace

Status can_keep_weights(runtime::Device& device) {
  const auto* memory = dynamic_cast<const hal::KeptMemory*>(&device.hal());
  if (memory != nullptr && memory->can_keep()) return {};
  return fail(Code::kUnsupported,
              "{} frees its memory when the process ends: weights are kept for the next process "
              "(--keep-weights, BM_KEEP_WEIGHTS) on cards without a kernel driver alone, "
              "DEV=AMD:PCI",
              device.name());
}

uint64_t checksum_on_device(const runtime::Buffer& bytes) {
  const auto count = static_cast<int64_t>(bytes.size / sizeof(uint32_t));
  const Tensor words = Tensor::from_buffer(bytes, {count}, DType::kU32);
  const Tensor places = Tensor::arange(count, DType::kU32, bytes.device().name());
  const auto number = [&](uint32_t value) {
    return Tensor::full_int({}, value, DType::kU32, bytes.device().name());
  };
  // Odd factors and shifts of MurmurHash3's and xxHash's finalisers.
  const auto mixed = [&](const Tensor& seen, uint32_t first, uint32_t second, int64_t shift) {
    const Tensor once = seen * number(first);
    return ((once ^ (once >> shift)) * number(second)).sum({0}, false, DType::kU32);
  };
  Tensor low = mixed(words ^ (places * number(0x9e3779b1)), 0x85ebca6b, 0xc2b2ae35, 15);
  Tensor high = mixed(words + places * number(0x27d4eb2f), 0x165667b1, 0x85ebca77, 13);
  const std::array both{&low, &high};
  Tensor::realize(both);
  return uint64_t{high.item<uint32_t>()} << 32 | low.item<uint32_t>();
}

Result<std::unique_ptr<KeptWeights>> KeptWeights::open(runtime::Device& device,
                                                       const GgufFile& file,
                                                       std::vector<Item> items) {
  BM_TRY(can_keep_weights(device));
  auto& memory = dynamic_cast<hal::KeptMemory&>(device.hal());
  std::unique_ptr<KeptWeights> weights(new KeptWeights(device, memory));
  weights->plan(file, items);
  BM_TRY(weights->fill_in());
  return weights;
}

/// Ranges, and a key for each that changes with everything its bytes depend on.
void KeptWeights::plan(const GgufFile& file, std::span<const Item> items) {
  for (const Item& item : items) {
    const uint64_t bytes = align_up(item.bytes, kAlignment) + kMostParts * kAlignment;
    if (ranges_.empty() || ranges_.back().bytes + bytes > kRangeBytes) ranges_.emplace_back();
    Range& range = ranges_.back();
    places_.push_back({ranges_.size() - 1, range.bytes, range.bytes + bytes});
    range.bytes += bytes;
  }
  for (size_t i = 0; i < ranges_.size(); ++i) {
    Range& range = ranges_[i];
    range.bytes = align_up(range.bytes, kRounding);
    Digest digest;
    digest.add(kLayout);
    digest.add(device_.hal().arch().name);
    digest.add(file.stamp());
    digest.add(range.bytes);
    for (size_t at = 0; at < items.size(); ++at) {
      if (places_[at].range != i) continue;
      const GgufTensor& tensor = *items[at].tensor;
      digest.add(tensor.name);
      digest.add(static_cast<uint64_t>(tensor.type));
      for (const uint64_t dim : tensor.dims) digest.add(dim);
      digest.add(places_[at].offset);
      digest.add(items[at].is_packed ? 1 : 0);
      add_contents(digest, tensor.data, !file.stamp().empty());
    }
    range.key = digest.key();
  }
}

Status KeptWeights::take_over(Range& range, std::unique_ptr<hal::Buffer> memory) {
  range.memory = memory.get();
  auto storage = BM_TRY(device_.allocator().adopt(std::move(memory)));
  range.buffer = runtime::Buffer{std::move(storage), 0, range.bytes};
  return {};
}

Status KeptWeights::fill_in() {
  std::vector<hal::KeptKey> keys;
  for (const Range& range : ranges_) keys.push_back(range.key);
  // Other models first: what they have may be what is missing here.
  const uint64_t other = BM_TRY(memory_.forget_all_but(keys));
  if (other != 0)
    log("models", LogLevel::kInfo, "{}: {} bytes of other models' weights are no longer kept",
        device_.name(), other);
  for (Range& range : ranges_) {
    auto found = BM_TRY(memory_.attach(range.key, range.bytes));
    if (!found) continue;
    BM_TRY(take_over(range, std::move(found->buffer)));
    const uint64_t sum = checksum_on_device(range.buffer);
    range.is_there = sum == found->checksum;
    if (range.is_there) {
      attached_bytes_ += range.bytes;
      continue;
    }
    log("models", LogLevel::kWarning,
        "{}: {} bytes of weights that were kept have checksum {:#018x}, recorded was {:#018x}: "
        "they are loaded again",
        device_.name(), range.bytes, sum, found->checksum);
  }
  // Those that are there stay when memory is short, so they were all attached before.
  for (Range& range : ranges_) {
    if (range.buffer.has_storage()) continue;
    auto memory = BM_TRY(memory_.allocate_to_keep(range.bytes));
    BM_TRY(take_over(range, std::move(memory)));
  }
  return {};
}

bool KeptWeights::next() {
  if (next_ >= places_.size())
    raise(Code::kInternal, "{} weights were said to be loaded, there are more", places_.size());
  return ranges_[places_[next_++].range].is_there;
}

Tensor KeptWeights::make(const Shape& shape, DType dtype) {
  Place& place = places_[next_ - 1];
  const Range& range = ranges_[place.range];
  const auto bytes = static_cast<uint64_t>(max_elements(shape) * item_size(dtype));
  if (bytes > place.end - place.offset)
    raise(Code::kInternal, "a weight needs {} bytes more than the {} that are left for it", bytes,
          place.end - place.offset);
  runtime::Buffer part = unwrap(range.buffer.view(place.offset, bytes));
  place.offset = std::min(align_up(place.offset + bytes, kAlignment), place.end);
  if (!range.is_there) uploaded_bytes_ += bytes;
  return Tensor::from_buffer(std::move(part), shape, dtype);
}

Status KeptWeights::finish() {
  for (Range& range : ranges_) {
    if (range.is_there) continue;
    const uint64_t sum = checksum_on_device(range.buffer);
    BM_TRY(memory_.keep(*range.memory, range.key, sum));
  }
  return {};
}

}  // namespace bm::models
