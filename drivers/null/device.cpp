#include "drivers/null/device.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <string>
#include <utility>

#include "drivers/cpu/host_addresses.h"
#include "drivers/cpu/host_memory.h"
#include "drivers/cpu/host_queue.h"
#include "runtime/base/bits.h"
#include "runtime/base/env.h"

namespace bm::null {
namespace {

/// As large as today's largest cards, so that fitting tests are not decided by this device.
constexpr uint64_t kMemoryBytes = 256_GiB;
constexpr uint64_t kAddressStep = 4_KiB;
constexpr uint64_t kAddressSpace = uint64_t{1} << 62;

class InventedBuffer final : public hal::Buffer {
 public:
  InventedBuffer(const hal::BufferDesc& desc, hal::GpuVa va, std::atomic<uint64_t>& used)
      : Buffer(desc, va, nullptr), used_(used) {
    used_.fetch_add(desc.size, std::memory_order_relaxed);
  }
  ~InventedBuffer() override { used_.fetch_sub(size(), std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t>& used_;
};

class NullProgram final : public hal::Program {
 public:
  explicit NullProgram(hal::CodeObject code) : Program(std::move(code)) {}
};

/// Compute units of the largest card of an architecture, as its vendor's data sheets count them.
struct CardRow {
  std::string_view name;
  uint32_t units;
};
constexpr CardRow kCards[] = {{"sm_75", 72},   {"sm_80", 108},  {"sm_86", 84},   {"sm_89", 142},
                              {"sm_90", 132},  {"sm_100", 148}, {"sm_120", 188}, {"gfx942", 304},
                              {"gfx950", 256}, {"gfx1030", 80}, {"gfx1031", 40}, {"gfx1032", 32},
                              {"gfx1033", 8},  {"gfx1034", 16}, {"gfx1035", 12}, {"gfx1036", 2},
                              {"gfx1100", 96}, {"gfx1101", 60}, {"gfx1102", 32}, {"gfx1103", 12},
                              {"gfx1150", 16}, {"gfx1151", 40}, {"gfx1200", 32}, {"gfx1201", 64}};
constexpr uint32_t kOtherUnits = 64;

/// What the compiler has facts of, besides x86: names that LLVM's triples begin with.
constexpr std::string_view kProcessors[] = {"x86_64",      "aarch64",     "riscv64",
                                            "powerpc64le", "loongarch64", "s390x"};

bool is_gpu(std::string_view name) { return name.starts_with("gfx") || name.starts_with("sm_"); }

/// "sm_90", "sm_90a": digits, then perhaps a letter.
bool is_cuda_name(std::string_view name) {
  if (!name.starts_with("sm_")) return false;
  name.remove_prefix(3);
  if (!name.empty() && (name.back() == 'a' || name.back() == 'f')) name.remove_suffix(1);
  return name.size() >= 2 && std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
}

/// What would be compiled for as for some unknown processor is a typing mistake. The compiler
/// knows which of AMD's names there are.
Status check_name(std::string_view name) {
  if (is_cuda_name(name) || name.starts_with("gfx") ||
      std::ranges::find(kProcessors, name) != std::end(kProcessors))
    return {};
  std::string known;
  for (const std::string_view processor : kProcessors) known += fmt::format("{}, ", processor);
  return fail(Code::kInvalidArgument,
              "architecture \"{}\": NULL stands for {}cards named as sm_90 or gfx1100", name,
              known);
}

uint32_t units_of(std::string_view name) {
  const auto* row = std::ranges::find(kCards, name, &CardRow::name);
  return row == std::end(kCards) ? kOtherUnits : row->units;
}

/// Limits of the target that is compiled for: cards run work-groups, and have as many units as the
/// largest of their kind unless a number follows the name: "sm_90,78".
Result<hal::Arch> make_arch(std::string_view request) {
  hal::Arch arch{
      .vendor = hal::Vendor::kNull, .name = "x86_64", .cpu = "x86-64-v3", .features = {}};
  arch.vector_bits = 256;
  if (request.empty()) return arch;
  const size_t name_end = request.find(',');
  arch.name = request.substr(0, name_end);
  BM_TRY(check_name(arch.name));
  arch.cpu.clear();
  if (name_end != std::string_view::npos) {
    std::string_view rest = request.substr(name_end + 1);
    const size_t cpu_end = rest.find(',');
    arch.cpu = rest.substr(0, cpu_end);
    if (cpu_end != std::string_view::npos) arch.features = rest.substr(cpu_end + 1);
  }
  arch.vector_bits = 128;
  if (is_gpu(arch.name)) {
    constexpr uint32_t kMostUnits = 4096;
    uint32_t units = units_of(arch.name);
    if (name_end != std::string_view::npos) {
      const char* const last = arch.cpu.data() + arch.cpu.size();
      const auto [end, error] = std::from_chars(arch.cpu.data(), last, units);
      if (error != std::errc() || end != last || units == 0 || units > kMostUnits)
        return fail(Code::kInvalidArgument,
                    "architecture \"{}\": behind the comma is the number of compute units, 1 to {}",
                    request, kMostUnits);
      arch.cpu.clear();
    }
    arch.units = units;
    arch.max_block = 1024;
    arch.shared_memory_bytes = 48 << 10;
  }
  return arch;
}

class NullDevice final : public hal::Device {
 public:
  NullDevice(hal::Arch arch, uint32_t wait_timeout_ms)
      : arch_(std::move(arch)), queue_({.wait_timeout_ms = wait_timeout_ms, .counts_only = true}) {}

  const hal::Arch& arch() const override { return arch_; }
  std::string description() const override { return "no device: work is counted, not done"; }

  Result<std::unique_ptr<hal::Buffer>> allocate(const hal::BufferDesc& desc) override {
    if (desc.host_visible || desc.uncached || desc.external != nullptr)
      return cpu::allocate_host(desc);
    if (desc.size == 0) return fail(Code::kInvalidArgument, "buffer of 0 bytes");
    const uint64_t used = used_.load(std::memory_order_relaxed);
    const auto step = checked_align_up(desc.size, kAddressStep);
    if (!step || desc.size > kMemoryBytes || used > kMemoryBytes - desc.size ||
        next_.load(std::memory_order_relaxed) > kAddressSpace)
      return fail(Code::kOutOfMemory, "{} bytes requested, {} used of {}", desc.size, used,
                  kMemoryBytes);
    const uint64_t offset = next_.fetch_add(*step, std::memory_order_relaxed);
    return std::make_unique<InventedBuffer>(desc, hal::GpuVa{cpu::kFirstInventedAddress + offset},
                                            used_);
  }
  Result<hal::GpuVa> map(hal::Buffer& peer) override { return peer.va(); }
  Result<std::unique_ptr<hal::Program>> load(const hal::CodeObject& code) override {
    return std::make_unique<NullProgram>(code);
  }
  hal::Queue& queue(hal::QueueKind) override { return queue_; }
  bool is_inline() const override { return true; }
  Status status() override { return {}; }
  hal::MemoryInfo memory() const override {
    return {.total = kMemoryBytes, .used = used_.load(std::memory_order_relaxed)};
  }
  Result<std::string> disassemble(const hal::CodeObject& code) override {
    return fail(Code::kUnsupported, "kernel '{}': NULL holds no code; `bellmetal explain` makes it",
                code.entry);
  }
  Counts counts() const {
    const cpu::QueueCounts seen = queue_.counts();
    return {.submits = seen.submits,
            .replays = seen.replays,
            .kernels_and_copies = seen.kernels_and_copies};
  }

 private:
  hal::Arch arch_;
  cpu::HostQueue queue_;
  std::atomic<uint64_t> used_{0};
  std::atomic<uint64_t> next_{kAddressStep};
};

}  // namespace

Result<uint32_t> count_devices(std::string_view interface) {
  if (!interface.empty())
    return fail(Code::kInvalidArgument, "NULL has no interface '{}'", interface);
  return uint32_t{1};
}

Result<std::unique_ptr<hal::Device>> open_device(std::string_view interface, uint32_t,
                                                 std::string_view arch) {
  BM_TRY(count_devices(interface));
  return std::make_unique<NullDevice>(BM_TRY(make_arch(arch)), settings().wait_timeout_ms);
}

Counts counts_of(const hal::Device& device) {
  return static_cast<const NullDevice&>(device).counts();
}

}  // namespace bm::null
