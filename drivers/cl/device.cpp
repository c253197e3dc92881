#include "drivers/cl/device.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "drivers/cl/api.h"
#include "drivers/cl/context.h"
#include "drivers/cl/memory.h"
#include "drivers/cl/program.h"
#include "drivers/cl/queue.h"
#include "runtime/base/keep_forever.h"
#include "runtime/base/env.h"

namespace bm::cl {
namespace {

/// The queues with what they share; destroyed together or, when stuck, not at all.
struct Queues {
  Queues(ContextPtr context, std::shared_ptr<Memory> memory, uint32_t wait_timeout_ms)
      : shared(std::move(context), std::move(memory), wait_timeout_ms) {}
  QueueShared shared;
  std::unique_ptr<ClQueue> compute, copy;
};

class ClDevice final : public hal::Device {
 public:
  ClDevice(ContextPtr context, std::unique_ptr<Queues> queues)
      : context_(std::move(context)), queues_(std::move(queues)) {}

  ~ClDevice() override {
    const bool is_idle = queues_->compute->drain() && queues_->copy->drain();
    queues_->shared.tasks.close();
    // What waits for an event that never comes can be neither cancelled nor freed in OpenCL, and
    // its callbacks point into the queues.
    if (!is_idle) keep_forever(std::move(queues_));
  }

  const hal::Arch& arch() const override { return context_->info.arch; }
  std::string description() const override { return context_->info.description; }
  Result<std::unique_ptr<hal::Buffer>> allocate(const hal::BufferDesc& desc) override {
    BM_TRY(status());
    return memory().allocate(desc);
  }
  Result<hal::GpuVa> map(hal::Buffer& peer) override { return memory().map(peer); }
  Result<std::unique_ptr<hal::Program>> load(const hal::CodeObject& code) override {
    BM_TRY(status());
    return BM_TRY(ClProgram::load(context_, code));
  }
  hal::Queue& queue(hal::QueueKind kind) override {
    return kind == hal::QueueKind::kCopy ? *queues_->copy : *queues_->compute;
  }
  Status status() override { return queues_->shared.health.status(); }
  void lose(const Error& cause) override { queues_->shared.health.fail(cause); }
  hal::MemoryInfo memory() const override { return queues_->shared.memory->info(); }
  Result<std::string> disassemble(const hal::CodeObject& code) override;
  const Context& context() const { return *context_; }

 private:
  Memory& memory() { return *queues_->shared.memory; }
  const ContextPtr context_;
  std::unique_ptr<Queues> queues_;
};

/// Some drivers' binaries are assembly text; nothing is known of the others.
Result<std::string> ClDevice::disassemble(const hal::CodeObject& code) {
  const auto program = BM_TRY(ClProgram::load(context_, code));
  const std::vector<std::byte> binary = BM_TRY(program->raw_binary());
  std::string text(reinterpret_cast<const char*>(binary.data()), binary.size());
  while (!text.empty() && text.back() == '\0') text.pop_back();
  const bool is_text = std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= ' ' && c <= '~') || c == '\n' || c == '\t' || c == '\r';
  });
  if (is_text && !text.empty()) return text;
  return fail(Code::kUnsupported, "kernel '{}': the binary of {} is no text", code.entry,
              context_->info.arch.cpu);
}

Status check_interface(std::string_view interface) {
  if (interface.empty()) return {};
  return fail(Code::kInvalidArgument, "CL has no interface '{}'", interface);
}

Result<ContextPtr> make_context(ApiPtr table, const Unit& unit, DeviceInfo info) {
  const Api& api = *table;
  const cl_context_properties properties[] = {
      CL_CONTEXT_PLATFORM, reinterpret_cast<cl_context_properties>(unit.platform), 0};
  cl_int error = CL_SUCCESS;
  const cl_context handle =
      api.clCreateContext(properties, 1, &unit.device, nullptr, nullptr, &error);
  BM_TRY(check(error, "clCreateContext"));
  return std::make_shared<const Context>(std::move(table), unit, std::move(info), handle);
}

}  // namespace

Result<uint32_t> count_devices(std::string_view interface) {
  BM_TRY(check_interface(interface));
  const ApiPtr api = BM_TRY(load_api(settings().cl_library));
  return static_cast<uint32_t>(BM_TRY(list_units(*api)).size());
}

Result<std::string> installed() {
  // A library that is named may be a driver itself, and has nothing to be looked for.
  if (!settings().cl_library.empty()) return std::string();
  BM_TRY(load_api({}));
  return installed_icds();
}

Result<std::unique_ptr<hal::Device>> open_device(std::string_view interface, uint32_t index,
                                                 std::string_view arch) {
  BM_TRY(check_interface(interface));
  return open_device_on(BM_TRY(load_api(settings().cl_library)), index, arch);
}

Result<std::unique_ptr<hal::Device>> open_device_on(ApiPtr api, uint32_t index,
                                                    std::string_view arch) {
  const std::vector<Unit> units = BM_TRY(list_units(*api));
  if (index >= units.size())
    return fail(Code::kNotFound, "OpenCL device {} of {}", index, units.size());
  const auto svm_limit = static_cast<Svm>(settings().cl_svm);
  DeviceInfo info = BM_TRY(read_info(*api, units[index], arch, svm_limit));
  const ContextPtr context = BM_TRY(make_context(std::move(api), units[index], std::move(info)));
  auto queues = std::make_unique<Queues>(context, std::make_shared<Memory>(context),
                                         settings().wait_timeout_ms);
  queues->compute = BM_TRY(ClQueue::create(queues->shared));
  queues->copy = BM_TRY(ClQueue::create(queues->shared));
  return std::make_unique<ClDevice>(context, std::move(queues));
}

NativeHandles native_handles(const hal::Device& device) {
  const Context& context = static_cast<const ClDevice&>(device).context();
  return {context.unit.platform, context.unit.device, context.handle};
}

Result<std::vector<std::byte>> program_binary(const hal::Program& program) {
  return static_cast<const ClProgram&>(program).binary();
}

}  // namespace bm::cl
