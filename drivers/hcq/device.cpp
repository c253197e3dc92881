#include "drivers/hcq/device.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace bm::hcq {

Status check_interface(std::string_view vendor, std::string_view interface,
                       std::initializer_list<std::string_view> known) {
  if (interface.empty() || std::ranges::find(known, interface) != known.end()) return {};
  return fail(Code::kInvalidArgument, "DEV={} has no interface '{}' (there are: {})", vendor,
              interface, fmt::join(known, " "));
}

Status check_arch(std::string_view arch, std::string_view gpu) {
  if (arch.empty() || arch == gpu) return {};
  return fail(Code::kInvalidArgument, "{} was asked for, this GPU is {}", arch, gpu);
}

bool lock_soon(std::unique_lock<std::mutex>& lock) {
  constexpr auto kLimit = std::chrono::milliseconds(20);
  const auto start = std::chrono::steady_clock::now();
  while (!lock.try_lock()) {
    if (std::chrono::steady_clock::now() - start > kLimit) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

MemoryDomain domain_of(const hal::BufferDesc& desc, MemoryDomain uncached) {
  if (desc.uncached) return uncached;
  return desc.host_visible || desc.host_memory ? MemoryDomain::kSystem : MemoryDomain::kVideo;
}

}  // namespace bm::hcq
