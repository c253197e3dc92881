#include "runtime/allocator.h"

#include "runtime/allocator_core.h"
#include "runtime/base/bits.h"
#include "runtime/base/env.h"
#include "runtime/device.h"
#include "runtime/staging.h"

namespace bm::runtime {
namespace {

/// A leased block. Address, size and host pointer are copies: they stay readable when the
/// allocator has gone first.
class BlockStorage final : public Storage {
 public:
  BlockStorage(std::shared_ptr<AllocatorCore> core, Device& device, const Lease& lease,
               std::function<void()> release)
      : core_(std::move(core)),
        device_(device),
        lease_(lease),
        va_(lease.block.va()),
        host_(lease.block.host()),
        uses_(lease.last_use),
        release_(std::move(release)) {}
  ~BlockStorage() override { core_->retire(lease_, uses_, std::move(release_)); }

  Device& device() const override { return device_; }
  hal::GpuVa va() const override { return va_; }
  uint64_t size() const override { return lease_.block.size; }
  std::byte* host() const override { return host_; }
  Result<hal::GpuVa> va_on(Device& other) override {
    if (&other == &device_) return va_;
    const hal::GpuVa chunk = BM_TRY(other.hal().map(*lease_.block.chunk->memory));
    return hal::offset(chunk, lease_.block.offset);
  }
  void used_until(Point point) override { uses_.record(point); }
  Point last_use() const override { return uses_.latest(); }
  std::vector<Point> uses() const override { return uses_.outstanding(); }
  Status wait_idle() override { return uses_.wait(); }

 private:
  const std::shared_ptr<AllocatorCore> core_;
  Device& device_;
  const Lease lease_;
  const hal::GpuVa va_;
  std::byte* const host_;
  UseList uses_;
  std::function<void()> release_;
};

}  // namespace

AllocatorOptions AllocatorOptions::from_settings() {
  const Settings& now = settings();
  return {.hard_cap = now.memory_cap,
          .soft_cap = now.pool_soft_cap,
          .max_buffer_size = now.max_buffer_size,
          .lru = now.lru};
}

Allocator::Allocator(hal::Device& device, Device& owner, AllocatorOptions options)
    : device_(device),
      owner_(owner),
      core_(std::make_shared<AllocatorCore>(device, owner, options)),
      max_buffer_size_(options.max_buffer_size) {}

Allocator::~Allocator() {
  staging_.reset();
  core_->close();
}

Result<StoragePtr> Allocator::allocate(const hal::BufferDesc& desc) {
  if (desc.external != nullptr) return wrap(desc, {});
  const std::optional<uint64_t> rounded =
      checked_align_up(std::max<uint64_t>(desc.size, 1), Pool::kGranule);
  const bool is_too_large = max_buffer_size_ != 0 && desc.size > max_buffer_size_;
  if (!rounded || is_too_large)
    return fail(Code::kInvalidArgument, "{}: one buffer of {} bytes is larger than {} allows",
                owner_.name(), desc.size, is_too_large ? "MAX_BUFFER_SIZE" : "an address");
  hal::BufferDesc normal = desc;
  normal.size = *rounded;
  const Lease lease = BM_TRY(core_->obtain(normal));
  return std::make_shared<BlockStorage>(core_, owner_, lease, nullptr);
}

Result<StoragePtr> Allocator::wrap(const hal::BufferDesc& desc, std::function<void()> release) {
  if (desc.external == nullptr || desc.size == 0)
    return fail(Code::kInvalidArgument, "cannot wrap {} bytes at {}", desc.size,
                fmt::ptr(desc.external));
  const Lease lease = BM_TRY(core_->adopt(desc));
  return std::make_shared<BlockStorage>(core_, owner_, lease, std::move(release));
}

Result<StoragePtr> Allocator::adopt(std::unique_ptr<hal::Buffer> memory) {
  const Lease lease = BM_TRY(core_->adopt(std::move(memory)));
  return std::make_shared<BlockStorage>(core_, owner_, lease, nullptr);
}

void Allocator::free_cache() { core_->trim(0); }
uint64_t Allocator::trim(uint64_t target) { return core_->trim(target); }
void Allocator::collect() { core_->collect(); }
Status Allocator::wait_pending() { return core_->wait_pending(); }
AllocatorStats Allocator::stats() const { return core_->stats(); }
std::vector<BlockInfo> Allocator::snapshot() const { return core_->snapshot(); }

Staging& Allocator::staging() {
  std::call_once(staging_once_,
                 [this] { staging_ = std::make_unique<Staging>(*this, owner_.stream()); });
  return *staging_;
}

}  // namespace bm::runtime
