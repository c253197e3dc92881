#include "drivers/amd/am/host_path.h"

#include <cstring>

namespace bm::amd::am {
namespace {

constexpr size_t kLongestRun = 64 << 10;

}  // namespace

class HostPath::Window final : public RemoteWindow {
 public:
  Window(HostPath& path, uint64_t physical, uint64_t bytes)
      : path_(path), physical_(physical), size_(bytes) {}
  uint64_t size() const override { return size_; }
  uint64_t read(uint64_t offset, uint32_t width) override {
    uint64_t value = 0;
    path_.get(physical_ + offset, std::as_writable_bytes(std::span(&value, 1)).first(width));
    return value;
  }
  void write(uint64_t offset, uint32_t width, uint64_t value) override {
    path_.put(physical_ + offset, std::as_bytes(std::span(&value, 1)).first(width));
  }
  void read_block(uint64_t offset, std::span<std::byte> to) override {
    path_.get(physical_ + offset, to);
  }
  void write_block(uint64_t offset, std::span<const std::byte> from) override {
    path_.put(physical_ + offset, from);
  }
  void flush() override { path_.publish(); }
  Status status() const override { return path_.bus_.visible_memory().status(); }

 private:
  HostPath& path_;
  const uint64_t physical_, size_;
};

std::unique_ptr<RemoteWindow> HostPath::window(uint64_t physical, uint64_t bytes) {
  return std::make_unique<Window>(*this, physical, bytes);
}

void HostPath::use(BridgeCopies* copies) {
  const std::lock_guard lock(copies_mutex_);
  copies_ = copies;
}

Status HostPath::write(uint64_t va, std::span<const std::byte> from) {
  const uint64_t physical = BM_TRY(places_.find(va, from.size()));
  if (from.size() >= BridgeCopies::kLeastBytes) {
    const std::lock_guard lock(copies_mutex_);
    if (copies_ != nullptr) {
      publish();  // what was written there before must not come later
      BM_TRY(copies_->write(va, from));
      return bus_.visible_memory().status();
    }
  }
  put(physical, from);
  return bus_.visible_memory().status();
}

Status HostPath::read(uint64_t va, std::span<std::byte> to) {
  const uint64_t physical = BM_TRY(places_.find(va, to.size()));
  if (to.size() >= BridgeCopies::kLeastBytes) {
    const std::lock_guard lock(copies_mutex_);
    if (copies_ != nullptr) {
      publish();
      // The read has the transport to itself and writes its packets under that: in this order.
      const std::lock_guard path_lock(mutex_);
      BM_TRY(copies_->read(va, to));
      return bus_.visible_memory().status();
    }
  }
  get(physical, to);
  return bus_.visible_memory().status();
}

/// In the order of the calls: only what continues the run joins it.
void HostPath::put(uint64_t physical, std::span<const std::byte> from) {
  const std::lock_guard lock(mutex_);
  if (!run_.empty() && (physical != run_at_ + run_.size() || run_.size() > kLongestRun)) send_run();
  if (run_.empty()) run_at_ = physical;
  run_.insert(run_.end(), from.begin(), from.end());
}

void HostPath::send_run() {
  if (run_.empty()) return;
  const HostView& video = bus_.visible_memory();
  // One request without a block, where the transport has such.
  if (run_.size() == 4 && run_at_ % 4 == 0) {
    uint32_t word = 0;
    std::memcpy(&word, run_.data(), sizeof word);
    video.store(run_at_, word);
  } else {
    video.copy_in(run_at_, run_);
  }
  run_.clear();
  is_unpublished_ = true;
}

void HostPath::get(uint64_t physical, std::span<std::byte> to) {
  const std::lock_guard lock(mutex_);
  send_run();
  bus_.visible_memory().copy_out(physical, to);
}

/// Requests of one bridge arrive in their order, so nothing need be read back. Source:
/// hdp_v6_0_flush_hdp().
void HostPath::publish() {
  const std::lock_guard lock(mutex_);
  send_run();
  if (!is_unpublished_) return;
  is_unpublished_ = false;
  bus_.registers().write32(gmc_.hdp_flush_dword() * 4, 0);
}

}  // namespace bm::amd::am
