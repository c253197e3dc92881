#include "drivers/ref/device.h"

#include <string>

#include "drivers/cpu/host_memory.h"
#include "drivers/cpu/host_queue.h"
#include "runtime/base/env.h"

namespace bm::ref {
namespace {

class RefDevice final : public hal::Device {
 public:
  explicit RefDevice(uint32_t wait_timeout_ms) : queue_({.wait_timeout_ms = wait_timeout_ms}) {
    arch_.vendor = hal::Vendor::kRef;
    arch_.name = "ref";
  }

  const hal::Arch& arch() const override { return arch_; }
  std::string description() const override { return "reference results by host functions"; }
  Result<std::unique_ptr<hal::Buffer>> allocate(const hal::BufferDesc& desc) override {
    return cpu::allocate_host(desc);
  }
  Result<hal::GpuVa> map(hal::Buffer& peer) override { return cpu::map_host(peer); }
  Result<std::unique_ptr<hal::Program>> load(const hal::CodeObject& code) override {
    return fail(Code::kUnsupported,
                "kernel '{}': REF loads no programs, it runs operations as host functions",
                code.entry);
  }
  hal::Queue& queue(hal::QueueKind) override { return queue_; }
  bool is_inline() const override { return true; }
  Status status() override { return {}; }
  hal::MemoryInfo memory() const override { return cpu::host_memory_info(); }
  Result<std::string> disassemble(const hal::CodeObject& code) override {
    return fail(Code::kUnsupported, "kernel '{}': REF has no programs", code.entry);
  }

 private:
  hal::Arch arch_;
  cpu::HostQueue queue_;
};

}  // namespace

Result<uint32_t> count_devices(std::string_view interface) {
  if (!interface.empty())
    return fail(Code::kInvalidArgument, "REF has no interface '{}'", interface);
  return uint32_t{1};
}

Result<std::unique_ptr<hal::Device>> open_device(std::string_view interface, uint32_t,
                                                 std::string_view arch) {
  BM_TRY(count_devices(interface));
  if (!arch.empty())
    return fail(Code::kInvalidArgument, "REF has no architectures, '{}' was asked for", arch);
  return std::make_unique<RefDevice>(settings().wait_timeout_ms);
}

}  // namespace bm::ref
