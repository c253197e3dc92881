#include "drivers/cuda/device.h"

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "drivers/cuda/context.h"
#include "drivers/cuda/memory.h"
#include "drivers/cuda/program.h"
#include "drivers/cuda/progress_thread.h"
#include "drivers/cuda/queue.h"
#include "runtime/base/keep_forever.h"
#include "runtime/base/env.h"

namespace bm::cuda {
namespace {

/// The queues with what they share; destroyed together or, when stuck, not at all.
struct Queues {
  Queues(ContextPtr context, std::shared_ptr<Memory> memory, uint32_t wait_timeout_ms)
      : shared(std::move(context), std::move(memory), wait_timeout_ms) {}
  QueueShared shared;
  std::unique_ptr<CudaQueue> compute, copy;
  std::unique_ptr<ProgressThread> progress;
};

class CudaDevice final : public hal::Device {
 public:
  CudaDevice(ContextPtr context, std::unique_ptr<Queues> queues)
      : context_(std::move(context)), queues_(std::move(queues)) {}

  ~CudaDevice() override {
    const Current current(*context_);
    const bool is_idle = queues_->compute->drain() && queues_->copy->drain();
    queues_->progress->close();
    if (is_idle) {
      queues_.reset();  // with the context current
      context_->settle();
    } else {
      context_->give_up();
      // A stream that waits for a word that never comes can be neither cancelled nor destroyed, and
      // the driver may still write what its commands name.
      keep_forever(std::move(queues_));
    }
  }

  const hal::Arch& arch() const override { return context_->info.arch; }
  std::string description() const override { return context_->info.description; }
  Result<std::unique_ptr<hal::Buffer>> allocate(const hal::BufferDesc& desc) override {
    BM_TRY(context_->health.status());
    return queues_->shared.memory->allocate(desc);
  }
  Result<hal::GpuVa> map(hal::Buffer& peer) override { return queues_->shared.memory->map(peer); }
  Result<std::unique_ptr<hal::Program>> load(const hal::CodeObject& code) override {
    BM_TRY(context_->health.status());
    return BM_TRY(CudaProgram::load(context_, code));
  }
  hal::Queue& queue(hal::QueueKind kind) override {
    return kind == hal::QueueKind::kCopy ? *queues_->copy : *queues_->compute;
  }
  void lose(const Error& cause) override { context_->health.fail(cause); }
  /// Faults come with the next call: this makes one.
  Status status() override {
    BM_TRY(context_->health.status());
    const Current current(*context_);
    BM_TRY(queues_->compute->check_stream());
    return queues_->copy->check_stream();
  }
  hal::MemoryInfo memory() const override { return queues_->shared.memory->info(); }
  Result<std::string> disassemble(const hal::CodeObject& code) override;

  const Context& context() const { return *context_; }
  CuStream stream() const { return queues_->compute->stream(); }

 private:
  const ContextPtr context_;
  std::unique_ptr<Queues> queues_;
};

/// PTX is its own text; cubins need a disassembler that the driver does not have.
Result<std::string> CudaDevice::disassemble(const hal::CodeObject& code) {
  std::string text(reinterpret_cast<const char*>(code.image.data()), code.image.size());
  while (!text.empty() && text.back() == '\0') text.pop_back();
  if (text.starts_with("\x7f"
                       "ELF"))
    return fail(Code::kUnsupported, "kernel '{}' is a cubin: see it with `nvdisasm` or `cuobjdump`",
                code.entry);
  return text;
}

Status check_interface(std::string_view interface) {
  if (interface.empty()) return {};
  return fail(Code::kInvalidArgument, "CUDA has no interface '{}'", interface);
}

Result<ContextPtr> make_context(ApiPtr table, DeviceInfo info) {
  const Api& api = *table;
  CuContext handle = nullptr;
  BM_TRY(check(api, api.cuDevicePrimaryCtxRetain(&handle, info.device),
               fmt::format("CUDA device {}", info.index)));
  return std::make_shared<const Context>(std::move(table), std::move(info), handle);
}

}  // namespace

Result<uint32_t> count_devices(std::string_view interface) {
  BM_TRY(check_interface(interface));
  const ApiPtr api = BM_TRY(load_api(settings().cuda_library));
  BM_TRY(initialize(*api));
  return count_devices(*api);
}

Result<std::unique_ptr<hal::Device>> open_device(std::string_view interface, uint32_t index,
                                                 std::string_view arch) {
  BM_TRY(check_interface(interface));
  return open_device_on(BM_TRY(load_api(settings().cuda_library)), index, arch);
}

Result<std::unique_ptr<hal::Device>> open_device_on(ApiPtr api, uint32_t index,
                                                    std::string_view arch) {
  BM_TRY(initialize(*api));
  DeviceInfo info = BM_TRY(read_info(*api, index, arch));
  const ContextPtr context = BM_TRY(make_context(std::move(api), std::move(info)));
  const Current current(*context);
  auto queues = std::make_unique<Queues>(context, std::make_shared<Memory>(context),
                                         settings().wait_timeout_ms);
  queues->compute = BM_TRY(CudaQueue::create(queues->shared));
  queues->copy = BM_TRY(CudaQueue::create(queues->shared));
  queues->progress = std::make_unique<ProgressThread>(queues->shared);
  queues->shared.progress = queues->progress.get();
  return std::make_unique<CudaDevice>(context, std::move(queues));
}

NativeHandles native_handles(const hal::Device& device) {
  const auto& mine = static_cast<const CudaDevice&>(device);
  return {mine.context().info.device, mine.context().handle, mine.stream()};
}

}  // namespace bm::cuda
