#include "drivers/cuda/clock.h"

#include <chrono>

namespace bm::cuda {
namespace {

constexpr int64_t kBaseLifeNs = 1'000'000'000;
constexpr int kProbes = 5;

}  // namespace

int64_t steady_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

Clock::~Clock() {
  for (const Base& base : bases_)
    if (base.event != nullptr) context_.api.cuEventDestroy(base.event);
  if (stream_ != nullptr) context_.api.cuStreamDestroy(stream_);
}

Result<uint32_t> Clock::acquire() {
  const Base& now = bases_[current_];
  const bool is_old = now.event == nullptr || steady_ns() - now.ns > kBaseLifeNs;
  const uint32_t next = now.event == nullptr ? current_ : (current_ + 1) % kBases;
  // A base that something still counts from is kept: late times are then a little coarser.
  if (is_old && bases_[next].users == 0) {
    BM_TRY(measure(bases_[next]));
    current_ = next;
  }
  ++bases_[current_].users;
  return current_;
}

/// The probe with the shortest round trip; its event keeps standing for its middle.
Status Clock::measure(Base& base) {
  const Api& api = context_.api;
  if (stream_ == nullptr)
    BM_TRY(context_.done(api.cuStreamCreate(&stream_, kStreamNonBlocking), "cuStreamCreate"));
  int64_t shortest = INT64_MAX;
  for (int i = 0; i < kProbes; ++i) {
    CuEvent event = nullptr;
    BM_TRY(context_.done(api.cuEventCreate(&event, kEventDefault), "cuEventCreate"));
    const int64_t before = steady_ns();
    CuResult error = api.cuEventRecord(event, stream_);
    if (error == kSuccess) error = api.cuEventSynchronize(event);
    const int64_t took = steady_ns() - before;
    const bool is_better = error == kSuccess && took < shortest;
    if (is_better) {
      shortest = took;
      std::swap(base.event, event);
      base.ns = before + took / 2;
    }
    if (event != nullptr) api.cuEventDestroy(event);
    BM_TRY(context_.done(error, "clock probe"));
  }
  return {};
}

Result<int64_t> Clock::time_of(CuEvent event, uint32_t base) const {
  float milliseconds = 0;
  BM_TRY(context_.done(context_.api.cuEventElapsedTime(&milliseconds, bases_[base].event, event),
                       "cuEventElapsedTime"));
  return bases_[base].ns + static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
}

}  // namespace bm::cuda
