// What went wrong on the GPU, in words.

#include <algorithm>
#include <chrono>

#include "drivers/amd/gpu.h"

namespace bm::amd {
namespace {

/// Program whose code holds an address.
std::string code_at(const Gpu& gpu, uint64_t address) {
  for (const AmdProgram* program : gpu.programs)
    if (program->holds(address)) return fmt::format(", code of kernel '{}'", program->code().entry);
  return "";
}

std::string memory_text(const Gpu& gpu, const GpuFault& fault) {
  std::string kind;
  if (fault.is_read_only) kind = "write to a read-only page";
  if (fault.is_no_execute) kind = "execution of a page without code";
  if (fault.is_not_present) kind = kind.empty() ? "unmapped page" : kind + ", unmapped";
  if (kind.empty()) kind = "access refused";
  // Faults are reported by page: an allocation that ends in it is the likely one.
  return fmt::format(
      "memory fault at {:#x} ({}{}): {}{}; the address is that of a page of 4096 bytes",
      fault.address, kind, fault.is_imprecise ? ", imprecise" : "",
      gpu.pool.describe(fault.address), code_at(gpu, fault.address));
}

std::string reset_text(const GpuFault& fault) {
  if (fault.reset_gpu_id != 0)
    return fmt::format(
        "GPU {} of this process was reset, and the kernel driver stopped the process's queues on "
        "all GPUs; start the program again",
        fault.reset_gpu_id);
  std::string text = fault.is_ecc ? "uncorrectable memory error (ECC)" : "hang or exception";
  text +=
      fault.is_whole_reset ? "; the driver reset the whole GPU" : "; the driver reset an engine";
  if (fault.is_memory_lost) text += ", its video memory is lost";
  const bool is_over = fault.is_whole_reset || fault.is_ecc;
  return text + (is_over ? "; start the program again" : "; open the device again");
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Error describe_fault(Gpu& gpu, const GpuFault& fault) {
  const bool is_memory = fault.kind == GpuFault::Kind::kMemory;
  std::string text = is_memory ? memory_text(gpu, fault) : reset_text(fault);
  if (gpu.own_work != nullptr) text = fmt::format("{}: {}", gpu.own_work, text);
  text += gpu.log.suspects(gpu.pool);
  text += fmt::format("; last kernels: {}", gpu.log.kernels(true));
  if (const std::string kernel = gpu.kernel_at_read_index(); !kernel.empty())
    text += fmt::format("; the compute ring is at kernel '{}'", kernel);
  for (const auto& ring : gpu.rings)
    if (ring->is_busy()) text += fmt::format("; {}", ring->state());
  if (!fault.log.empty()) text += fmt::format("; driver's log: {}", fault.log);
  if (is_memory)
    text +=
        "; a kernel or copy used an address that is not its buffer's: check sizes and indices; "
        "this "
        "process cannot use the GPU any more";
  const bool is_lost = !is_memory && (fault.is_whole_reset || fault.is_ecc);
  return {is_lost ? Code::kDeviceLost : Code::kDeviceFault, std::move(text)};
}

Status Gpu::health_locked() {
  if (!has_fault.load(std::memory_order_acquire)) [[likely]]
    return {};
  if (!fault) return look_for_fault();
  return tl::unexpected<Error>(*fault);
}

std::string Gpu::kernel_at_read_index() const {
  if (rings.empty()) return {};
  const uint64_t descriptor = rings[0]->descriptor_at_read_index();
  const auto at = std::ranges::find_if(programs, [&](const AmdProgram* program) {
    return descriptor != 0 && program->descriptor() == descriptor;
  });
  return at == programs.end() ? std::string() : (*at)->code().entry;
}

Status Gpu::look_for_fault() {
  adopt_loss();
  if (fault) return health_locked();
  if (const auto found = driver->take_fault()) {
    fault = describe_fault(*this, *found);
    has_fault.store(true, std::memory_order_release);
  }
  return health_locked();
}

Status Gpu::with_cause(Status status) {
  if (status || status.error().code != Code::kDeviceFault) return status;
  const Status cause = look_for_fault();
  return cause ? status : cause;
}

Status Gpu::health() {
  constexpr int64_t kBetweenLooks = 5'000'000;  // asking is a system call; waiters ask all the time
  if (!has_fault.load(std::memory_order_acquire)) [[likely]] {
    const int64_t now = now_ns();
    int64_t last = last_look_ns.load(std::memory_order_relaxed);
    if (now - last < kBetweenLooks || !last_look_ns.compare_exchange_strong(last, now)) return {};
  }
  std::unique_lock lock(mutex, std::defer_lock);
  if (has_fault.load(std::memory_order_acquire))
    lock.lock();
  else if (!lock.try_lock())
    return {};
  return look_for_fault();
}

}  // namespace bm::amd
