#include "runtime/device.h"

#include <algorithm>
#include <mutex>

#include "runtime/allocator.h"
#include "runtime/base/keep_forever.h"
#include "runtime/kernarg.h"
#include "runtime/program_cache.h"
#include "runtime/stream.h"
#include "runtime/work_log.h"

namespace bm::runtime {
namespace {

/// Devices alive now, in the order they were made.
struct LiveDevices {
  std::mutex mutex;
  std::vector<Device*> devices;
};

LiveDevices& live_devices() {
  static auto* const live = new LiveDevices;  // process-wide by nature
  return *live;
}

class OpenDevice final : public Device {
 public:
  OpenDevice(std::shared_ptr<hal::Device> hal, std::string name, std::string renderer,
             std::unique_ptr<Stream> stream, std::unique_ptr<KernargRing> kernargs)
      : name_(std::move(name)),
        renderer_(std::move(renderer)),
        hal_(std::move(hal)),
        stream_(std::move(stream)),
        kernargs_(std::move(kernargs)),
        programs_(*hal_),
        allocator_(*hal_, *this, allocator_options()) {
    LiveDevices& live = live_devices();
    const std::lock_guard lock(live.mutex);
    live.devices.push_back(this);
  }

  ~OpenDevice() override {
    {
      LiveDevices& live = live_devices();
      const std::lock_guard lock(live.mutex);
      std::erase(live.devices, this);
    }
    // Nothing may be in flight when the members below go.
    const bool is_done = synchronize().has_value();
    // Another renderer's device may still use the engines.
    const bool is_stopped = hal_.use_count() == 1 && hal_->stop();
    if (!is_stopped && (!is_done || !kept_->empty())) keep_forever(std::move(kept_));
  }

  const std::string& name() const override { return name_; }
  const std::string& renderer() const override { return renderer_; }
  hal::Device& hal() override { return *hal_; }
  Allocator& allocator() override { return allocator_; }
  Stream& stream() override { return *stream_; }
  Status synchronize() override {
    Status done = stream_->synchronize();
    if (!done && !is_loss(done.error()))
      return tl::unexpected(std::move(done.error()).within(name_));
    return done;
  }
  KernargRing* kernargs() override { return kernargs_.get(); }
  ProgramCache* programs() override { return &programs_; }
  void keep_until_closed(std::shared_ptr<void> what) override {
    const std::lock_guard lock(kept_mutex_);
    kept_->push_back(std::move(what));
  }

 private:
  using Kept = std::vector<std::shared_ptr<void>>;
  AllocatorOptions allocator_options() {
    AllocatorOptions options = AllocatorOptions::from_settings();
    // One stream orders everything a queue device does, so memory may change hands within it.
    if (!hal_->is_inline()) options.in_order = &stream_->timeline();
    return options;
  }

  const std::string name_, renderer_;
  // Destroyed bottom up: memory and programs before the stream whose timeline guards them, all
  // before the device.
  std::shared_ptr<hal::Device> hal_;
  std::unique_ptr<Stream> stream_;
  std::mutex kept_mutex_;
  // After the allocator: it looks at no Point any more when this storage comes back.
  std::unique_ptr<Kept> kept_ = std::make_unique<Kept>();
  std::unique_ptr<KernargRing> kernargs_;
  ProgramCache programs_;
  Allocator allocator_;
};

}  // namespace

void Device::keep_until_closed(std::shared_ptr<void> what) {
  keep_forever(std::make_unique<std::shared_ptr<void>>(std::move(what)));
}

Error Device::first_cause(Error error) {
  return is_device_error(error.code) ? stream().lose(std::move(error)) : error;
}

Status Device::lost() {
  BM_TRY(stream().timeline().status());
  if (const Status fault = hal().status(); !fault && !hal().is_inline())
    return tl::unexpected<Error>(first_cause(fault.error()));
  return {};
}

Status Device::recover() {
  Status done = stream().recover();
  if (!done) return tl::unexpected(std::move(done.error()).within(name()));
  return done;
}

Result<std::unique_ptr<Device>> make_device(std::shared_ptr<hal::Device> hal, std::string name,
                                            std::string renderer) {
  std::unique_ptr<Stream> stream = BM_TRY(make_stream(*hal, name));
  std::unique_ptr<KernargRing> kernargs;
  if (!hal->is_inline()) kernargs = BM_TRY(KernargRing::create(*hal));
  return std::unique_ptr<Device>(new OpenDevice(std::move(hal), std::move(name),
                                                std::move(renderer), std::move(stream),
                                                std::move(kernargs)));
}

std::vector<Device*> opened_devices() {
  LiveDevices& live = live_devices();
  const std::lock_guard lock(live.mutex);
  return live.devices;
}

}  // namespace bm::runtime
