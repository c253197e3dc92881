#include "drivers/amd/am/bridge_copies.h"

#include <algorithm>
#include <utility>

#include "drivers/amd/sdma/packets.h"
#include "runtime/base/bits.h"

namespace bm::amd::am {
namespace {

// The bridge's memory holds two windows: one is filled while the engine empties the other. The last
// word of each is the sentinel: bytes of the host land in order, so when it has come, they have.
constexpr uint64_t kWindows = 2, kSentinel = sizeof(uint32_t);
constexpr size_t kBatch = 32;  // pieces whose packets go to the ring at once
// TIMEOUT: a piece takes a millisecond; the rest is for engines that finish something long first.
constexpr uint64_t kWaitUs = 5'000'000, kStartUs = 500'000, kPollUs = 50;

void put_copy(sdma::Writer& writer, uint64_t source, uint64_t target, uint64_t bytes) {
  const uint64_t most = sdma::max_piece(writer.form());
  for (uint64_t done = 0; done < bytes; done += most)
    writer.put(sdma::Copy{source + done, target + done, std::min(most, bytes - done)});
}

}  // namespace

BridgeCopies::BridgeCopies(StagingMemory& staging, const Places& places, Clock& clock,
                           SdmaForm form, std::unique_ptr<Memory> ring,
                           std::unique_ptr<Memory> fence, std::unique_ptr<HardwareQueue> queue)
    : staging_(staging),
      places_(places),
      clock_(clock),
      form_(form),
      ring_(std::move(ring)),
      fence_(std::move(fence)),
      queue_(std::move(queue)),
      window_bytes_(align_down(staging.range().bytes / kWindows, staging.slot_bytes())) {}

uint64_t BridgeCopies::sentinel(uint64_t window) const {
  return places_.memory + (window + 1) * window_bytes_ - kSentinel;
}

Status BridgeCopies::start() {
  fence_->view.fill(0, fence_->size, std::byte{0});
  fence_->view.publish();
  std::vector<uint32_t> words;
  sdma::Writer writer(words, form_);
  const uint32_t none = 0;
  for (uint64_t window = 0; window < kWindows; ++window)
    writer.put(sdma::Write{sentinel(window), {&none, 1}});
  writer.put(sdma::Fence{fence_->va, ++sequence_});
  submit(words);
  return wait(sequence_, kStartUs);
}

/// A batch is at most a quarter of the ring and waited for before the next but one, so nothing that
/// the engine has not read is overwritten.
void BridgeCopies::submit(std::span<const uint32_t> words) {
  const uint64_t at = written_ % ring_->size, bytes = words.size_bytes();
  const uint64_t left = ring_->size - at;
  if (bytes > left) {
    const std::vector<uint32_t> nops(left / sizeof(uint32_t), sdma::kNopWord);
    ring_->view.copy_in(at, std::span(nops));
    written_ += left;
  }
  ring_->view.copy_in(written_ % ring_->size, words);
  written_ += bytes;
  ring_->view.publish();
  queue_->write_pointer.store_release<uint64_t>(0, written_);
  queue_->write_pointer.publish();
  queue_->doorbell.ring(written_);
}

Status BridgeCopies::wait(uint32_t sequence, uint64_t longest_us) {
  const uint64_t begun = clock_.now_us();
  // Sequences wrap after a petabyte.
  while (static_cast<int32_t>(passed_ - sequence) < 0) {
    passed_ = fence_->view.load_acquire<uint32_t>(0);
    BM_TRY(fence_->view.status());
    if (static_cast<int32_t>(passed_ - sequence) >= 0) break;
    if (clock_.now_us() - begun > longest_us)
      return fail(
          Code::kTimeout,
          "copy {} through the bridge's memory has not ended within {} ms, the last that did "
          "is {}: the copy engine hangs",
          sequence, longest_us / 1000, passed_);
    clock_.sleep_us(kPollUs);
  }
  return {};
}

/// Its slots end where the window ends, so that the sentinel's place never holds anything else.
uint64_t BridgeCopies::place(const Piece& piece) const {
  const uint64_t slots = align_up(piece.bytes.size() + kSentinel, staging_.slot_bytes());
  return (piece.window + 1) * window_bytes_ - slots;
}

Status BridgeCopies::send(const Piece& piece) {
  const uint64_t at = place(piece);
  buffer_.assign((piece.window + 1) * window_bytes_ - at, std::byte{0});
  std::ranges::copy(piece.bytes, buffer_.begin());
  std::ranges::copy(std::as_bytes(std::span(&piece.sequence, 1)), buffer_.end() - kSentinel);
  return staging_.write(at, buffer_);
}

Status BridgeCopies::write(uint64_t va, std::span<const std::byte> from) {
  const uint64_t most = window_bytes_ - kSentinel;
  while (!from.empty()) {
    std::vector<uint32_t> words;
    sdma::Writer writer(words, form_);
    std::vector<Piece> pieces;
    while (!from.empty() && pieces.size() < kBatch) {
      const uint64_t bytes = std::min<uint64_t>(most, from.size());
      const Piece piece{va, from.first(bytes), pieces.size() % kWindows, ++sequence_};
      writer.put(sdma::WaitMemory{.address = sentinel(piece.window), .value = piece.sequence});
      put_copy(writer, places_.memory + place(piece), va, bytes);
      writer.put(sdma::Fence{fence_->va, piece.sequence});
      pieces.push_back(piece);
      va += bytes;
      from = from.subspan(bytes);
    }
    submit(words);
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i >= kWindows) BM_TRY(wait(pieces[i - kWindows].sequence, kWaitUs));
      BM_TRY(send(pieces[i]));
    }
    BM_TRY(wait(sequence_, kWaitUs));
  }
  return {};
}

Status BridgeCopies::read(uint64_t va, std::span<std::byte> to) {
  const uint64_t most = window_bytes_ - kSentinel;  // sentinels stay what they are
  for (uint64_t done = 0; done < to.size();) {
    const uint64_t bytes = std::min<uint64_t>(most, to.size() - done);
    std::vector<uint32_t> words;
    sdma::Writer writer(words, form_);
    put_copy(writer, va + done, places_.memory, bytes);
    // A fence comes after the bytes; any word lets the read go.
    writer.put(sdma::Fence{places_.release, 1});
    writer.put(sdma::Fence{fence_->va, ++sequence_});
    BM_TRY(staging_.read(to.subspan(done, bytes), [&]() -> Status {
      submit(words);
      return fence_->view.status();
    }));
    BM_TRY(wait(sequence_, kWaitUs));
    done += bytes;
  }
  return {};
}

}  // namespace bm::amd::am
