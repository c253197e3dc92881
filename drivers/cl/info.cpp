#include "drivers/cl/info.h"

#include <CL/cl_ext.h>

#include <algorithm>

#include "runtime/base/bits.h"

namespace bm::cl {
namespace {

// cl_nv_device_attribute_query; not in every edition of cl_ext.h.
constexpr cl_device_info kPciBusNv = 0x4008, kPciSlotNv = 0x4009;
// cl_khr_pci_bus_info
constexpr cl_device_info kPciBusInfoKhr = 0x410F;

/// Extensions kernels or their speed depend on.
constexpr std::string_view kExtensions[] = {"cl_khr_fp16",
                                            "cl_khr_fp64",
                                            "cl_khr_int64_base_atomics",
                                            "cl_khr_int64_extended_atomics",
                                            "cl_khr_subgroups",
                                            "cl_khr_command_buffer"};

template <class T>
T device_value(const Api& api, cl_device_id device, cl_device_info what, T fallback = {}) {
  T value{};
  const cl_int error = api.clGetDeviceInfo(device, what, sizeof value, &value, nullptr);
  return error == CL_SUCCESS ? value : fallback;
}

/// Text of a query function; empty when it is not answered.
template <class Function, class Object>
std::string text_of(Function query, Object object, cl_uint what) {
  size_t bytes = 0;
  if (query(object, what, 0, nullptr, &bytes) != CL_SUCCESS || bytes <= 1) return {};
  std::string text(bytes, '\0');
  if (query(object, what, bytes, text.data(), nullptr) != CL_SUCCESS) return {};
  text.resize(text.find('\0'));
  const size_t begin = text.find_first_not_of(' '), end = text.find_last_not_of(' ');
  return begin == std::string::npos ? std::string() : text.substr(begin, end - begin + 1);
}

/// Versions of OpenCL C as "1.2", newest first. Before 3.0 a device has one, and 1.2 below it;
/// Oclgrind 21.10, of OpenCL 1.2, answers the query of 3.0 with versions that it cannot compile.
std::vector<std::string> c_versions(const Api& api, cl_device_id device) {
  std::vector<std::string> versions;
  size_t bytes = 0;
  if (text_of(api.clGetDeviceInfo, device, CL_DEVICE_VERSION) >= "OpenCL 3" &&
      api.clGetDeviceInfo(device, CL_DEVICE_OPENCL_C_ALL_VERSIONS, 0, nullptr, &bytes) ==
          CL_SUCCESS) {
    std::vector<cl_name_version> rows(bytes / sizeof(cl_name_version));
    if (api.clGetDeviceInfo(device, CL_DEVICE_OPENCL_C_ALL_VERSIONS, bytes, rows.data(), nullptr) ==
        CL_SUCCESS)
      for (const cl_name_version& row : rows)
        versions.push_back(
            fmt::format("{}.{}", CL_VERSION_MAJOR(row.version), CL_VERSION_MINOR(row.version)));
  }
  const std::string text = text_of(api.clGetDeviceInfo, device, CL_DEVICE_OPENCL_C_VERSION);
  constexpr std::string_view kPrefix = "OpenCL C ";  // "OpenCL C 1.2 vendor's words"
  if (versions.empty() && text.starts_with(kPrefix)) {
    versions.push_back(text.substr(kPrefix.size(), 3));
    versions.emplace_back("1.2");
  }
  std::erase_if(versions, [](const std::string& version) { return version < "1.2"; });
  std::sort(versions.rbegin(), versions.rend());
  versions.erase(std::unique(versions.begin(), versions.end()), versions.end());
  return versions;
}

bool has_word(std::string_view list, std::string_view word) {
  for (size_t at = list.find(word); at != std::string_view::npos; at = list.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || list[at - 1] == ' ') && (end == list.size() || list[end] == ' ')) return true;
  }
  return false;
}

/// ", PCI 0000:01:00.0" where the device tells.
std::string pci_place(const Api& api, cl_device_id device, std::string_view extensions) {
  if (has_word(extensions, "cl_khr_pci_bus_info")) {
    struct Place {
      cl_uint domain, bus, device, function;
    };
    const auto place = device_value<Place>(api, device, kPciBusInfoKhr);
    return fmt::format(", PCI {:04x}:{:02x}:{:02x}.{}", place.domain, place.bus, place.device,
                       place.function);
  }
  if (!has_word(extensions, "cl_nv_device_attribute_query")) return {};
  const auto bus = device_value<cl_uint>(api, device, kPciBusNv),
             slot = device_value<cl_uint>(api, device, kPciSlotNv);
  return fmt::format(", PCI {:02x}:{:02x}.{}", bus, slot >> 3, slot & 7);
}

/// "OpenCL 3.0 PoCL 3.1+debian" without the build options some vendors append.
std::string_view short_version(std::string_view version) {
  return version.substr(0, std::min(version.find("  "), version.find(',')));
}

Result<std::string> choose_version(const Api& api, cl_device_id device, std::string_view arch) {
  const std::vector<std::string> versions = c_versions(api, device);
  if (versions.empty()) return fail(Code::kUnsupported, "the device has no OpenCL C 1.2");
  if (arch.empty()) return versions.front();
  std::string known;
  for (const std::string& version : versions) {
    const std::string name = "opencl_c_" + version;
    if (name == arch) return version;
    known += (known.empty() ? "" : ", ") + name;
  }
  return fail(Code::kInvalidArgument, "unknown architecture '{}' (there are: {})", arch, known);
}

Status check_usable(const Api& api, cl_device_id device) {
  if (device_value<cl_bool>(api, device, CL_DEVICE_AVAILABLE, CL_TRUE) == CL_FALSE)
    return fail(Code::kDeviceLost, "the OpenCL device says it is not available");
  if (device_value<cl_bool>(api, device, CL_DEVICE_COMPILER_AVAILABLE) == CL_FALSE)
    return fail(Code::kUnsupported, "the OpenCL device has no compiler");
  if (device_value<cl_bool>(api, device, CL_DEVICE_ENDIAN_LITTLE) == CL_FALSE ||
      device_value<cl_uint>(api, device, CL_DEVICE_ADDRESS_BITS) != 64)
    return fail(Code::kUnsupported, "the OpenCL device is not 64-bit little-endian");
  return {};
}

Svm svm_of(const Api& api, cl_device_id device, Svm limit) {
  if (api.clSVMAlloc == nullptr) return Svm::kNone;
  const auto offered =
      device_value<cl_device_svm_capabilities>(api, device, CL_DEVICE_SVM_CAPABILITIES);
  Svm svm = Svm::kNone;
  if (offered & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER) svm = Svm::kCoarse;
  if (offered & CL_DEVICE_SVM_FINE_GRAIN_BUFFER) svm = Svm::kFine;
  return std::min(svm, limit);
}

void read_arch(const Api& api, cl_device_id device, std::string_view extensions, hal::Arch& arch) {
  arch.vendor = hal::Vendor::kOpenCl;
  arch.cpu = text_of(api.clGetDeviceInfo, device, CL_DEVICE_NAME);
  arch.features = text_of(api.clGetDeviceInfo, device, CL_DRIVER_VERSION);
  for (const std::string_view extension : kExtensions)
    if (has_word(extensions, extension)) arch.features += fmt::format(" {}", extension);
  const auto float32 = device_value<cl_device_fp_config>(api, device, CL_DEVICE_SINGLE_FP_CONFIG);
  if ((float32 & CL_FP_FMA) == 0) arch.features += " -fma";
  arch.vector_bits =
      32 * std::max<cl_uint>(
               device_value<cl_uint>(api, device, CL_DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT), 1);
  arch.units =
      std::max<cl_uint>(device_value<cl_uint>(api, device, CL_DEVICE_MAX_COMPUTE_UNITS), 1);
  arch.max_block = static_cast<uint32_t>(
      std::max<size_t>(device_value<size_t>(api, device, CL_DEVICE_MAX_WORK_GROUP_SIZE), 1));
  arch.shared_memory_bytes = static_cast<uint32_t>(std::min<cl_ulong>(
      device_value<cl_ulong>(api, device, CL_DEVICE_LOCAL_MEM_SIZE), UINT32_MAX));
  if (const auto cache = device_value<cl_ulong>(api, device, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE))
    arch.l2_bytes = cache;
  arch.clock_hz = 1'000'000'000;  // OpenCL's event times are nanoseconds
  arch.has_f16 = has_word(extensions, "cl_khr_fp16");
  arch.has_f64 = device_value<cl_device_fp_config>(api, device, CL_DEVICE_DOUBLE_FP_CONFIG) != 0;
}

void read_limits(const Api& api, cl_device_id device, DeviceInfo& info) {
  // Deprecated as a query name, answered by every implementation, and without a successor.
  info.is_unified = device_value<cl_bool>(api, device, CL_DEVICE_HOST_UNIFIED_MEMORY) != CL_FALSE;
  info.memory_bytes = device_value<cl_ulong>(api, device, CL_DEVICE_GLOBAL_MEM_SIZE);
  info.max_alloc_bytes = device_value<cl_ulong>(api, device, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
  const auto align_bits = device_value<cl_uint>(api, device, CL_DEVICE_MEM_BASE_ADDR_ALIGN);
  info.sub_buffer_align = std::max<uint64_t>(align_bits / 8, 1);
  std::array<size_t, 3> sizes{1, 1, 1};
  if (api.clGetDeviceInfo(device, CL_DEVICE_MAX_WORK_ITEM_SIZES, sizeof sizes, sizes.data(),
                          nullptr) == CL_SUCCESS)
    std::copy(sizes.begin(), sizes.end(), info.max_block.begin());
  info.max_argument_bytes =
      device_value<size_t>(api, device, CL_DEVICE_MAX_PARAMETER_SIZE, info.max_argument_bytes);
}

}  // namespace

Result<std::vector<Unit>> list_units(const Api& api) {
  cl_uint num_platforms = 0;
  const cl_int error = api.clGetPlatformIDs(0, nullptr, &num_platforms);
  if (error != CL_SUCCESS && code_of(error) != Code::kNotFound)
    BM_TRY(check(error, "clGetPlatformIDs"));
  if (error != CL_SUCCESS || num_platforms == 0)
    return fail(Code::kNotFound, "no OpenCL platform: install pocl-opencl-icd or the vendor's ICD");
  std::vector<cl_platform_id> platforms(num_platforms);
  BM_TRY(check(api.clGetPlatformIDs(num_platforms, platforms.data(), nullptr), "clGetPlatformIDs"));
  std::vector<Unit> units;
  for (uint32_t p = 0; p < num_platforms; ++p) {
    cl_uint num_devices = 0;
    // A platform without devices, or one that fails, must not hide the others.
    if (api.clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, 0, nullptr, &num_devices) !=
            CL_SUCCESS ||
        num_devices == 0)
      continue;
    std::vector<cl_device_id> devices(num_devices);
    if (api.clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, num_devices, devices.data(),
                           nullptr) != CL_SUCCESS)
      continue;
    for (uint32_t d = 0; d < num_devices; ++d) units.push_back({platforms[p], devices[d], p, d});
  }
  return units;
}

Result<DeviceInfo> read_info(const Api& api, const Unit& unit, std::string_view arch, Svm limit) {
  const cl_device_id device = unit.device;
  BM_TRY(check_usable(api, device));
  const std::string version = BM_TRY(choose_version(api, device, arch));
  const std::string extensions = text_of(api.clGetDeviceInfo, device, CL_DEVICE_EXTENSIONS);
  DeviceInfo info;
  read_arch(api, device, extensions, info.arch);
  read_limits(api, device, info);
  info.arch.name = "opencl_c_" + version;
  info.svm = svm_of(api, device, limit);
  info.build_options = "-cl-std=CL" + version;
  const auto fp32 = device_value<cl_device_fp_config>(api, device, CL_DEVICE_SINGLE_FP_CONFIG);
  if (fp32 & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT)
    info.build_options += " -cl-fp32-correctly-rounded-divide-sqrt";
  const std::string platform_name = text_of(api.clGetPlatformInfo, unit.platform, CL_PLATFORM_NAME),
                    platform_version =
                        text_of(api.clGetPlatformInfo, unit.platform, CL_PLATFORM_VERSION);
  info.description = fmt::format(
      "{} ({} [{}:{}], {}{})", info.arch.cpu, platform_name, unit.platform_index, unit.device_index,
      short_version(platform_version), pci_place(api, device, extensions));
  info.identity =
      fmt::format("{}|{}|{}", info.arch.cpu,
                  text_of(api.clGetDeviceInfo, device, CL_DRIVER_VERSION), platform_version);
  return info;
}

}  // namespace bm::cl
