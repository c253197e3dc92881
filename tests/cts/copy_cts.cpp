#include <algorithm>
#include <numeric>

#include "tests/cts/cts.h"

namespace bm::cts {
namespace {

/// Copies [src_at, +bytes) to dst_at and checks every byte of the destination, also around it.
Status copy_exactly(Rig& rig, uint64_t dst_at, uint64_t src_at, uint64_t bytes,
                    hal::QueueKind kind) {
  auto src = BM_TRY(rig.visible(src_at + bytes + 16)),
       dst = BM_TRY(rig.visible(dst_at + bytes + 16));
  const auto from = view<uint8_t>(*src), to = view<uint8_t>(*dst);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i * 31 + 1);
  std::ranges::fill(to, uint8_t{0xee});
  BM_TRY(rig.run({hal::Barrier{},
                  hal::Copy{hal::offset(dst->va(), dst_at), hal::offset(src->va(), src_at), bytes}},
                 kind));
  for (size_t i = 0; i < to.size(); ++i) {
    const bool is_inside = i >= dst_at && i < dst_at + bytes;
    CTS_CHECK(to[i] == (is_inside ? from[i - dst_at + src_at] : 0xee));
  }
  return {};
}

Status exact(Rig& rig) {
  for (uint64_t bytes : Sizes{1, 3, 4, 7, 64, 255, 4096, 5000})
    for (uint64_t at : Sizes{0, 1, 4, 13})
      BM_TRY(copy_exactly(rig, at, 17 - at, bytes, hal::QueueKind::kCompute));
  return {};
}

Status copy_queue(Rig& rig) { return copy_exactly(rig, 8, 3, 1000, hal::QueueKind::kCopy); }

Status large(Rig& rig) { return copy_exactly(rig, 0, 64, (9 << 20) + 5, hal::QueueKind::kCopy); }

Status nothing(Rig& rig) { return copy_exactly(rig, 4, 4, 0, hal::QueueKind::kCompute); }

Status in_order(Rig& rig) {
  // Each copy reads what the one before wrote.
  constexpr uint64_t kSteps = 500, kBytes = 32;
  auto buffer = BM_TRY(rig.visible((kSteps + 1) * kBytes));
  const auto bytes = view<uint8_t>(*buffer);
  std::ranges::fill(bytes, uint8_t{0});
  std::iota(bytes.begin(), bytes.begin() + kBytes, uint8_t{1});
  std::vector<hal::Command> commands;
  for (uint64_t i = 0; i < kSteps; ++i)
    commands.push_back(hal::Copy{hal::offset(buffer->va(), (i + 1) * kBytes),
                                 hal::offset(buffer->va(), i * kBytes), kBytes});
  BM_TRY(rig.run(commands));
  CTS_CHECK(std::equal(bytes.end() - kBytes, bytes.end(), bytes.begin()));
  return {};
}

constexpr Case kCopyCases[] = {{"copy.exact", exact, Needs::kCopies},
                               {"copy.copy_queue", copy_queue, Needs::kCopies},
                               {"copy.large", large, Needs::kCopies},
                               {"copy.nothing", nothing},
                               {"copy.in_order", in_order, Needs::kCopies}};

}  // namespace

std::span<const Case> copy_cases() { return kCopyCases; }

}  // namespace bm::cts
