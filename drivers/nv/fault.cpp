#include "drivers/nv/fault.h"

#include <algorithm>

#include "drivers/nv/loaded_program.h"

namespace bm::nv {
namespace {

constexpr ChannelError kErrors[] = {
    {1, "FIFO method error", "", false},
    {2, "software method error", "", false},
    {6, "push buffer error", "", false},
    {13, "graphics engine exception", "a kernel accessed or executed something it must not", false},
    {31, "MMU fault", "a kernel or copy used an address that is not mapped", false},
    {32, "push buffer DMA error", "the channel found a broken push buffer", false},
    {38, "driver firmware error", "", true},
    {39, "copy engine 0 exception", "", false},
    {40, "copy engine 1 exception", "", false},
    {41, "copy engine 2 exception", "", false},
    {43, "channel reset", "the driver stopped the channel", false},
    {44, "fault during a context switch", "", false},
    {45, "preemptive removal", "another channel of the group failed", false},
    {48, "double-bit ECC error", "the memory of this GPU is damaged", true},
    {56, "display engine error", "", false},
    {61, "internal microcontroller breakpoint", "", true},
    {62, "internal microcontroller halt", "", true},
    {63, "row remapping recorded", "", false},
    {64, "row remapping failed", "the memory of this GPU is damaged", true},
    {68, "video decoder exception", "", false},
    {69, "graphics engine class error", "a method the class does not take", false},
    {70, "copy engine 3 exception", "", false},
    {71, "copy engine 4 exception", "", false},
    {72, "copy engine 5 exception", "", false},
    {74, "NVLink error", "", true},
    {75, "copy engine 6 exception", "", false},
    {76, "copy engine 7 exception", "", false},
    {77, "copy engine 8 exception", "", false},
    {79, "GPU has fallen off the bus", "power, cable or slot; the machine needs a restart", true},
    {80, "push buffer checksum mismatch", "the channel found a broken push buffer", false},
    {85, "copy engine 9 exception", "", false},
    {94, "contained memory error", "", false},
    {95, "uncontained memory error", "the GPU must be reset", true},
    {109, "context switch timeout", "a kernel could not be preempted", false},
    {119, "GSP RPC timeout", "the GPU's firmware does not answer; reload the driver", true},
    {120, "GSP error", "the GPU's firmware failed; reload the driver", true},
    {126, "copy engine 10 exception", "", false},
    {127, "copy engine 11 exception", "", false},
    {128, "copy engine 12 exception", "", false},
    {129, "copy engine 13 exception", "", false},
    {130, "copy engine 14 exception", "", false},
    {131, "copy engine 15 exception", "", false},
    {132, "copy engine 16 exception", "", false},
    {133, "copy engine 17 exception", "", false},
    {134, "copy engine 18 exception", "", false},
    {135, "copy engine 19 exception", "", false},
    {140, "unrecovered ECC error", "", true},
    {143, "GPU initialization failure", "", true},
    {154, "recovery action changed", "see the kernel log for the action", true},
    {160, "channel retired after uncorrectable memory error", "", false},
};

/// Kernel whose code holds `pc`, with the offset.
std::string place_of(const Gpu& gpu, uint64_t pc) {
  for (const NvProgram* program : gpu.programs)
    if (program->holds(pc))
      return fmt::format(" in kernel '{}' + {:#x}", program->code().entry,
                         pc - program->plan().shape.program);
  return "";
}

std::string details_text(Gpu& gpu, const FaultDetails& details) {
  std::string text;
  for (const FaultDetails::Mmu& fault : details.mmu)
    text += fmt::format(
        "; {} of {} address {:#x} ({})", fault.access.empty() ? "use" : fault.access,
        fault.kind.empty() ? "bad" : fault.kind, fault.address, gpu.pool.describe(fault.address));
  constexpr size_t kMostSms = 4;
  for (size_t i = 0; i < std::min(details.sms.size(), kMostSms); ++i) {
    const FaultDetails::Sm& sm = details.sms[i];
    text += fmt::format("; SM {}: {} at {:#x}{}", sm.sm, sm.text.empty() ? "exception" : sm.text,
                        sm.pc, place_of(gpu, sm.pc));
  }
  if (details.sms.size() > kMostSms) text += fmt::format("; {} SMs in all", details.sms.size());
  return text;
}

}  // namespace

ChannelError channel_error(uint32_t code) {
  const auto* row = std::ranges::find(kErrors, code, &ChannelError::code);
  return row == std::end(kErrors) ? ChannelError{code, "", "", false} : *row;
}

Error describe_fault(Gpu& gpu, HardwareRing& ring) {
  const uint32_t code = ring.channel().error_code();
  const ChannelError row = channel_error(code);
  const FaultDetails details = gpu.driver->fault_details(ring.channel());
  std::string text = fmt::format("channel error {} ({})", code,
                                 row.name.empty() ? "a code this program does not know" : row.name);
  if (!row.hint.empty()) text += fmt::format(": {}", row.hint);
  text += details_text(gpu, details);
  if (ring.classes().copy != 0) text += gpu.log.suspects(gpu.pool);
  text += fmt::format("; last kernels: {}; {}", gpu.log.kernels(), ring.state());
  if (!details.kernel_log.empty()) text += fmt::format("; kernel log: {}", details.kernel_log);
  return {row.loses_device ? Code::kDeviceLost : Code::kDeviceFault, std::move(text)};
}

uint32_t Gpu::sm_count() const {
  const GpuFacts& facts = driver->facts();
  const uint32_t all = facts.gpcs * facts.tpcs_per_gpc * facts.sms_per_tpc;
  return std::max(facts.enabled_sms != 0 ? facts.enabled_sms : all, 1u);
}

Status Gpu::health() {
  // Channels are replaced only while there is a fault.
  if (!has_fault.load(std::memory_order_acquire)) [[likely]] {
    const std::shared_lock looking(channels);
    if (std::ranges::none_of(rings, [](const auto& l) { return l->has_error(); })) [[likely]]
      return {};
  }
  const std::lock_guard lock(mutex);
  return health_locked();
}

Status Gpu::health_locked() {
  adopt_loss();
  if (!has_fault.load(std::memory_order_relaxed)) {
    // The earliest record is the cause: a dead group takes its neighbours with it.
    HardwareRing* first = nullptr;
    for (const auto& ring : rings)
      if (ring->has_error() &&
          (first == nullptr || ring->channel().error_time_ns() < first->channel().error_time_ns()))
        first = ring.get();
    if (first == nullptr) [[likely]]
      return {};
    fault = describe_fault(*this, *first);
    has_fault.store(true, std::memory_order_release);
  }
  return tl::unexpected<Error>(*fault);
}

}  // namespace bm::nv
