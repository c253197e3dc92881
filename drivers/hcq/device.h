#pragma once
// Devices over a GPU with hardware command queues: buffers, programs, faults and what is in flight.

#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "drivers/hcq/gpu.h"
#include "drivers/hcq/memory_pool.h"
#include "runtime/base/bits.h"
#include "runtime/base/keep_forever.h"
#include "runtime/base/log.h"
#include "runtime/base/result.h"
#include "runtime/hal/device.h"
#include "runtime/hal/waiting.h"

namespace bm::hcq {

/// Errors: kInvalidArgument unless `interface` is empty or one of `known`.
Status check_interface(std::string_view vendor, std::string_view interface,
                       std::initializer_list<std::string_view> known);
/// Errors: kInvalidArgument unless `arch` is empty or that of this GPU, "gfx1100".
Status check_arch(std::string_view arch, std::string_view gpu);

/// Takes the mutex within 20 ms or not at all: who holds it may be waiting for the GPU itself, as
/// long as BM_WAIT_TIMEOUT_MS.
bool lock_soon(std::unique_lock<std::mutex>& lock);

/// Where a buffer lies. What the CPU sees is system memory: it reads there as often as it writes,
/// and reads through the BAR take a microsecond each. `uncached`: the vendor's domain for it.
MemoryDomain domain_of(const hal::BufferDesc& desc, MemoryDomain uncached);

template <class Gpu>
class GpuBuffer final : public hal::Buffer {
 public:
  GpuBuffer(const hal::BufferDesc& desc, std::shared_ptr<Gpu> gpu, Allocation allocation,
            std::byte* host)
      : Buffer(desc, hal::GpuVa{allocation.va()}, host),
        gpu_(std::move(gpu)),
        allocation_(std::move(allocation)) {}
  ~GpuBuffer() override {
    if (gpu_->fork.is_parents()) return;  // a thread of the parent's may hold the mutex
    const std::lock_guard lock(gpu_->mutex);
    allocation_.reset();
  }
  Gpu& gpu() const { return *gpu_; }
  Memory& memory() const { return allocation_.memory(); }

 private:
  std::shared_ptr<Gpu> gpu_;
  Allocation allocation_;
};

/// What messages and memory requests say of a vendor.
struct Vendor {
  const char* name;       ///< "NV", as in DEV=NV
  const char* log;        ///< "nv", as in BM_LOG
  MemoryDomain uncached;  ///< for buffers that the GPU must not cache
};

template <class Gpu, class Queue>
class DeviceBase : public hal::Device, public hal::Waiting {
 public:
  const hal::Arch& arch() const final { return arch_; }
  hal::Queue& queue(hal::QueueKind kind) final {
    return kind == hal::QueueKind::kCompute ? *compute_ : *copies_;
  }
  Status status() final { return gpu_->health(); }
  void lose(const Error& cause) final { gpu_->lose(cause); }

  Result<std::unique_ptr<hal::Buffer>> allocate(const hal::BufferDesc& desc) final {
    BM_TRY(status());
    if (desc.external != nullptr) return wrap(desc);
    Allocation allocation;
    {
      const std::lock_guard lock(gpu_->mutex);
      allocation = BM_TRY(gpu_->pool.allocate(desc.size, domain_of(desc, vendor_.uncached)));
      if (desc.zero) {
        if (const Status zeroed = zero(allocation); !zeroed) {
          allocation.reset();
          return tl::unexpected(zeroed.error());
        }
      }
    }
    std::byte* host = allocation.view().host();
    return std::make_unique<GpuBuffer<Gpu>>(desc, gpu_, std::move(allocation), host);
  }

  Result<hal::GpuVa> map(hal::Buffer& peer) final {
    BM_TRY(status());
    const auto* other = dynamic_cast<const GpuBuffer<Gpu>*>(&peer);
    if (other == nullptr) return map_imported(peer);
    if (&other->gpu() == gpu_.get()) return peer.va();
    const std::scoped_lock locks(gpu_->mutex, other->gpu().mutex);
    keep_flush(BM_TRY(gpu_->driver->map_peer(other->memory(), *other->gpu().driver)));
    return peer.va();
  }

  Result<std::unique_ptr<hal::Program>> load(const hal::CodeObject& code) final {
    if (code.arch != arch_.name)
      return fail(Code::kInvalidArgument, "kernel '{}' was made for {}, this device is {}",
                  code.entry, code.arch, arch_.name);
    BM_TRY(status());
    return load_program(code);
  }

  std::string activity() final {
    std::unique_lock lock(gpu_->mutex, std::defer_lock);
    if (!lock_soon(lock)) return "another thread waits for the GPU to take more work";
    std::string text = fmt::format("last kernels: {}", kernels_text());
    text += gpu_->log.unmet(gpu_->pool);
    begin_activity();
    for (const auto& ring : gpu_->rings) text += fmt::format("; {}", ring->state());
    return text + more_activity();
  }

 protected:
  DeviceBase(std::shared_ptr<Gpu> gpu, hal::Arch arch, const Vendor& vendor)
      : gpu_(std::move(gpu)), arch_(std::move(arch)), vendor_(vendor) {}

  // What the vendors add; all but load_program() under the mutex.
  virtual Result<std::unique_ptr<hal::Program>> load_program(const hal::CodeObject& code) = 0;
  /// Zeroes memory that the CPU does not see and waits for it. `bytes`: multiple of 4.
  virtual Status fill_zero(uint64_t va, uint64_t bytes) = 0;
  /// Address on the GPU of memory of another device.
  virtual Result<uint64_t> map_host(std::byte* host, uint64_t size) = 0;
  /// See DriverInterface::map_peer().
  virtual void keep_flush(std::shared_ptr<Memory> /*flush*/) {}
  virtual std::string kernels_text() const = 0;
  virtual void begin_activity() {}
  virtual std::string more_activity() { return {}; }

  /// All of a destructor. `health`: of the GPU; `release`: frees the vendor's memory, when no queue
  /// uses it any more.
  template <class LookAtHealth, class Release>
  void close(const LookAtHealth& health, const Release& release) {
    if (gpu_->fork.is_parents()) {
      // The parent's GPU, queues and memory; and any mutex may be held by a thread that is not
      // here.
      keep_forever(std::make_unique<std::shared_ptr<Gpu>>(gpu_));
      keep_forever(std::move(compute_));
      keep_forever(std::move(copies_));
      return;
    }
    {
      const std::lock_guard lock(gpu_->mutex);
      // Work that nobody waited for still reads command memory; a dead queue reads nothing.
      if (health()) {
        for (const auto& ring : gpu_->rings)
          if (const Status done = ring->drain(); !done)
            log(vendor_.log, LogLevel::kWarning, "closing the device: {}", done.error().message);
      }
    }
    compute_.reset();
    copies_.reset();
    const std::lock_guard lock(gpu_->mutex);
    gpu_->rings.clear();  // queues stop before anything they use is freed
    release();
    gpu_->pool.trim();
  }
  /// All of recover() but the vendor's part, `rebuild`, under the mutex. `health`: of the GPU, just
  /// looked at; `what`: works again.
  template <class Rebuild>
  Status recover_with(const Status& health, const char* what, const Rebuild& rebuild) {
    if (!health && health.error().code == Code::kDeviceLost) return health;
    // Until there are queues again nothing may wait on them as on those given up.
    gpu_->is_given_up.store(false, std::memory_order_release);
    if (Status done = rebuild(); !done) {
      // Without all its queues the device is of no use; the first cause stays unless more is lost.
      if (!gpu_->fault || done.error().code == Code::kDeviceLost) gpu_->fault = done.error();
      gpu_->has_fault.store(true, std::memory_order_release);
      return done;
    }
    log(vendor_.log, LogLevel::kWarning, "{} work again after: {}", what,
        health ? "work that did not end" : health.error().message);
    gpu_->clear();
    return {};
  }
  /// Three rings, in Gpu::rings, become two queues.
  Status make_queues() {
    compute_ = BM_TRY(Queue::create(gpu_, gpu_->rings[0].get(), gpu_->rings[2].get()));
    copies_ = BM_TRY(Queue::create(gpu_, nullptr, gpu_->rings[1].get()));
    return {};
  }
  auto& compute_ring() { return *gpu_->rings[0]; }

  std::shared_ptr<Gpu> gpu_;
  const hal::Arch arch_;
  std::unique_ptr<Queue> compute_, copies_;

 private:
  Status zero(const Allocation& allocation) {
    // Behind a transport the GPU itself is faster.
    if (allocation.view().host() == nullptr)
      return fill_zero(allocation.va(), align_up(allocation.size(), uint64_t{4}));
    allocation.view().fill(0, allocation.size(), std::byte{0});
    return {};
  }
  Result<std::unique_ptr<hal::Buffer>> wrap(const hal::BufferDesc& desc) {
    if (desc.external_kind != hal::ExternalKind::kHostPointer)
      return fail(Code::kUnsupported, "DEV={} wraps host pointers only", vendor_.name);
    const std::lock_guard lock(gpu_->mutex);
    Allocation allocation = BM_TRY(gpu_->pool.wrap(desc.external, desc.size));
    return std::make_unique<GpuBuffer<Gpu>>(desc, gpu_, std::move(allocation),
                                            static_cast<std::byte*>(desc.external));
  }
  Result<hal::GpuVa> map_imported(const hal::Buffer& peer) {
    if (peer.host() == nullptr)
      return fail(Code::kUnsupported,
                  "DEV={} reaches other devices' memory only where the host does", vendor_.name);
    const std::lock_guard lock(gpu_->mutex);
    return hal::GpuVa{BM_TRY(map_host(peer.host(), peer.size()))};
  }

  const Vendor vendor_;
};

}  // namespace bm::hcq
