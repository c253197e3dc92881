#include "drivers/cpu/device.h"

#include <algorithm>
#include <string>
#include <utility>

#include "drivers/cpu/cpu_info.h"
#include "drivers/cpu/host_memory.h"
#include "drivers/cpu/host_queue.h"
#include "drivers/cpu/pool.h"
#include "drivers/cpu/program.h"
#include "runtime/base/env.h"
#include "runtime/base/thread.h"

namespace bm::cpu {
namespace {

class CpuDevice final : public hal::Device {
 public:
  CpuDevice(hal::Arch arch, const Pool::Options& pool, uint32_t wait_timeout_ms)
      : arch_(std::move(arch)),
        pool_(pool),
        queue_({.pool = &pool_, .wait_timeout_ms = wait_timeout_ms}) {}

  const hal::Arch& arch() const override { return arch_; }
  std::string description() const override { return cpu_model_name(); }
  Result<std::unique_ptr<hal::Buffer>> allocate(const hal::BufferDesc& desc) override {
    return allocate_host(desc);
  }
  Result<hal::GpuVa> map(hal::Buffer& peer) override { return map_host(peer); }
  Result<std::unique_ptr<hal::Program>> load(const hal::CodeObject& code) override {
    auto program = BM_TRY(CpuProgram::load(code, arch_.name));
    BM_TRY(pool_.reserve_scratch(code.scratch_bytes));
    return program;
  }
  hal::Queue& queue(hal::QueueKind) override { return queue_; }
  bool is_inline() const override { return true; }
  /// Nothing here can be lost: a Wait that timed out is the submission's error, not the device's.
  Status status() override { return {}; }
  hal::MemoryInfo memory() const override { return host_memory_info(); }
  Result<std::string> disassemble(const hal::CodeObject& code) override {
    return fail(Code::kUnsupported,
                "kernel '{}': the CPU driver has no disassembler; the compiler's toolchain has",
                code.entry);
  }

 private:
  hal::Arch arch_;
  Pool pool_;
  HostQueue queue_;
};

}  // namespace

Result<uint32_t> count_devices(std::string_view interface) {
  if (!interface.empty())
    return fail(Code::kInvalidArgument, "CPU has no interface '{}'", interface);
  return uint32_t{1};
}

Result<std::unique_ptr<hal::Device>> open_device(std::string_view interface, uint32_t,
                                                 std::string_view arch) {
  BM_TRY(count_devices(interface));
  hal::Arch made = BM_TRY(make_arch(arch));
  const Settings& options = settings();
  made.units = options.threads != 0 ? worker_threads(options.threads) : usable_cores();
  const Pool::Options pool{.threads = made.units, .pin = options.pin};
  return std::make_unique<CpuDevice>(std::move(made), pool, options.wait_timeout_ms);
}

}  // namespace bm::cpu
