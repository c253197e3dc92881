#include "drivers/cuda/info.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "drivers/cuda/errors.h"

namespace bm::cuda {
namespace {

/// Static shared memory a kernel may have on every architecture; more must be asked for at launch.
constexpr uint32_t kStaticShared = 48 << 10;

uint32_t attribute(const Api& api, CuDevice device, int what, uint32_t fallback = 0) {
  int value = 0;
  if (api.cuDeviceGetAttribute(&value, what, device) != kSuccess || value < 0) return fallback;
  return static_cast<uint32_t>(value);
}

std::string name_of(const Api& api, CuDevice device) {
  std::array<char, 256> text{};
  if (api.cuDeviceGetName(text.data(), static_cast<int>(text.size()) - 1, device) != kSuccess)
    return "NVIDIA GPU";
  return text.data();
}

std::string pci_place(const Api& api, CuDevice device) {
  std::array<char, 64> text{};
  if (api.cuDeviceGetPCIBusId == nullptr ||
      api.cuDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()) - 1, device) != kSuccess)
    return {};
  return fmt::format("PCI {}, ", text.data());
}

/// Code of an older architecture runs where the major version is the same; PTX of any older one.
Result<uint32_t> choose_arch(std::string_view wanted, uint32_t own) {
  if (wanted.empty()) return own;
  uint32_t number = 0;
  if (wanted.starts_with("sm_")) {
    const char* const end = wanted.data() + wanted.size();
    const auto [stop, problem] = std::from_chars(wanted.data() + 3, end, number);
    if (problem != std::errc() || stop != end) number = 0;
  }
  if (number != 0 && number <= own && number / 10 == own / 10) return number;
  return fail(Code::kInvalidArgument,
              "unknown architecture '{}': this GPU is sm_{} and runs code of sm_{}0 to sm_{}",
              wanted, own, own / 10, own);
}

uint64_t physical_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page)
                               : UINT64_MAX;
}

}  // namespace

Result<uint32_t> count_devices(const Api& api) {
  int count = 0;
  BM_TRY(check(api, api.cuDeviceGetCount(&count), "cuDeviceGetCount"));
  return static_cast<uint32_t>(std::max(count, 0));
}

Result<DeviceInfo> read_info(const Api& api, uint32_t index, std::string_view arch) {
  const uint32_t count = BM_TRY(count_devices(api));
  if (index >= count) return fail(Code::kNotFound, "CUDA device {} of {}", index, count);
  DeviceInfo info;
  info.index = index;
  BM_TRY(check(api, api.cuDeviceGet(&info.device, static_cast<int>(index)), "cuDeviceGet"));
  const auto value = [&](int what, uint32_t fallback = 0) {
    return attribute(api, info.device, what, fallback);
  };
  if (value(kUnifiedAddressing, 1) == 0)
    return fail(Code::kUnsupported, "CUDA device {} has no unified addressing", index);
  info.capability = value(kCapabilityMajor) * 10 + value(kCapabilityMinor);
  if (info.capability == 0)
    return fail(Code::kUnsupported, "CUDA device {} does not tell its compute capability", index);
  info.host_bytes = physical_memory();
  size_t bytes = info.host_bytes;
  if (api.cuDeviceTotalMem != nullptr)
    BM_TRY(check(api, api.cuDeviceTotalMem(&bytes, info.device), "cuDeviceTotalMem"));
  info.memory_bytes = bytes;
  info.arch.vendor = hal::Vendor::kNv;
  info.arch.name = fmt::format("sm_{}", BM_TRY(choose_arch(arch, info.capability)));
  info.arch.features = "ptx";  // the driver compiles text too
  info.arch.units = std::max(value(kMultiprocessors, 1), 1u);
  info.arch.max_block = std::max(value(kMaxThreadsPerBlock, 1024), 1u);
  info.arch.shared_memory_bytes = std::min(value(kMaxSharedPerBlock, kStaticShared), kStaticShared);
  info.launch_shared_bytes = api.cuFuncSetAttribute != nullptr
                                 ? value(kMaxSharedPerBlockOptin, info.arch.shared_memory_bytes)
                                 : info.arch.shared_memory_bytes;
  info.arch.clock_hz = 1'000'000'000;  // times of events on the host's clock
  constexpr std::array<uint32_t, 3> kBlock{1024, 1024, 64}, kGrid{0x7fffffff, 65535, 65535};
  for (uint32_t axis = 0; axis < 3; ++axis) {
    info.max_block[axis] = value(kMaxBlockX + static_cast<int>(axis), kBlock[axis]);
    info.max_grid[axis] = value(kMaxGridX + static_cast<int>(axis), kGrid[axis]);
  }
  info.has_mem_ops = api.cuStreamWaitValue64 != nullptr && api.cuStreamWriteValue64 != nullptr &&
                     value(kStreamMemOps64) != 0;
  info.has_read_only_register = value(kReadOnlyHostRegister) != 0;
  info.description = fmt::format("{} ({}CUDA {})", name_of(api, info.device),
                                 pci_place(api, info.device), version_text(api));
  return info;
}

}  // namespace bm::cuda
