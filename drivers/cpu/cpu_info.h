#pragma once
// What this machine's processor can do, in LLVM's words, and what a requested architecture makes of
// it.

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/hal/arch.h"

namespace bm::cpu {

/// "x86_64" or "aarch64".
std::string_view host_arch_name();

/// Architecture of this machine: `cpu` as LLVM names it, `features` with every feature code
/// generation depends on, present ("+") or not ("-"), so nothing is claimed that a hypervisor has
/// masked. `request`: empty, "native", or "x86_64,znver2,avx2,-avx512f": a name, then optionally an
/// LLVM cpu, then features to add or remove; removing one removes what builds on it. `units` is
/// left at 1. Errors: kInvalidArgument (unknown name, cpu or feature); kUnsupported naming the
/// feature this machine lacks.
Result<hal::Arch> make_arch(std::string_view request);

/// Architecture of a machine that need not be this one, to compile for: "x86_64,znver4,avx512bf16"
/// has the features that LLVM gives the processor and those named. Sizes of caches are
/// hal::Arch's own. Errors: kInvalidArgument (unknown name, cpu or feature, no cpu).
Result<hal::Arch> other_arch(std::string_view request);

/// Processor's marketing name, e.g. from /proc/cpuinfo.
std::string cpu_model_name();

/// Cores this process may use: affinity mask limited by cgroup CPU quota, at least 1.
uint32_t usable_cores();
/// Cores a quota allows, from the contents of cpu.max ("200000 100000", "max 100000"); 0: no limit.
uint32_t cores_of_quota(std::string_view cpu_max);

/// Data caches of a core, in bytes; 0: not known.
struct CacheSizes {
  uint64_t first = 0;        ///< first level
  uint64_t private_one = 0;  ///< largest that a core does not share with other cores
  uint64_t last = 0;         ///< largest of all
};
/// What the processor says of itself, not of `last`.
CacheSizes processor_caches();
/// Source: sysfs cache/index*/ of `folder`, a core's; where the system has no such files (Linux in
/// some virtual machines) `processor`, and last the sizes hal::Arch starts with. Errors: kIo,
/// kOutOfMemory if the system has these files and they cannot be read now: kernels are made for
/// these sizes, and a guess would make others than the next process asks for.
Result<CacheSizes> cache_sizes(const std::string& folder = "/sys/devices/system/cpu/cpu0",
                               const CacheSizes& processor = processor_caches());

}  // namespace bm::cpu
