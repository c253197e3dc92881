#include "drivers/cuda/api.h"

#include <dlfcn.h>

#include <algorithm>
#include <vector>

#include "drivers/cuda/errors.h"
#include "drivers/transport/system.h"
#include "drivers/vendor/library.h"
#include "runtime/base/trust.h"

namespace bm::cuda {
namespace {

/// Where the driver's library is found: the linker's paths, then where container runtimes and
/// Windows' Linux put it without telling the linker.
constexpr const char* kPlaces[] = {"libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1",
                                   "/usr/lib/wsl/lib/libcuda.so.1"};
constexpr const char* kModuleVersionFile = "/proc/driver/nvidia/version";

/// Stand-ins for what a model of a driver may lack: waiting in place of asking, a stream that
/// stays.
void stand_in(Api& api) {
  if (api.cuStreamQuery == nullptr) api.cuStreamQuery = api.cuStreamSynchronize;
  if (api.cuEventQuery == nullptr) api.cuEventQuery = api.cuEventSynchronize;
  if (api.cuStreamDestroy == nullptr)
    api.cuStreamDestroy = [](CuStream) -> CuResult { return kSuccess; };
}

/// What became of one place. `is_absent`: another may do better.
struct Attempt {
  ApiPtr api;
  std::string problem;
  bool is_absent = false;
};

Attempt try_library(const std::string& library) {
  if (const Status trusted = check_library(library); !trusted)
    return {nullptr, trusted.error().message, true};
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return {nullptr, why == nullptr ? library : why, true};
  }
  auto api = std::make_shared<Api>();
  api->library = library;
  std::string missing;
  bool lacks_graphs = false;
  const auto load = [handle]<class F>(F& function, const char* symbol) {
    function = reinterpret_cast<F>(dlsym(handle, symbol));
    return function != nullptr;
  };
#define BM_CUDA_REQUIRED(member, symbol, parameters) \
  if (!load(api->member, symbol)) missing += missing.empty() ? symbol : ", " symbol;
#define BM_CUDA_OPTIONAL(member, symbol, parameters) load(api->member, symbol);
#define BM_CUDA_GRAPH(member, symbol, parameters) lacks_graphs |= !load(api->member, symbol);
#include "drivers/cuda/functions.inc"
#undef BM_CUDA_REQUIRED
#undef BM_CUDA_OPTIONAL
#undef BM_CUDA_GRAPH
  if (lacks_graphs) api->cuGraphCreate = nullptr;
  if (api->cuMemcpyDtoHAsync == nullptr && api->cuMemcpyDtoH == nullptr)
    missing += missing.empty() ? "cuMemcpyDtoHAsync_v2" : ", cuMemcpyDtoHAsync_v2";
  stand_in(*api);
  if (api->cuInit != nullptr && api->cuInit(0) == kErrorStubLibrary) {
    dlclose(handle);
    return {nullptr,
            fmt::format("{} is the toolkit's stub: no NVIDIA driver is installed there", library),
            true};
  }
  if (!missing.empty())
    return {nullptr,
            fmt::format("{} lacks {}: a driver of CUDA 11.2 or later is needed", library, missing),
            false};
  return {std::move(api), {}, false};
}

Result<ApiPtr> open_library(const std::string& library) {
  std::vector<std::string> places(std::begin(kPlaces), std::end(kPlaces));
  if (!library.empty()) places = {library};
  std::string problems;
  for (const std::string& place : places) {
    Attempt attempt = try_library(place);
    if (attempt.api != nullptr) return std::move(attempt.api);
    if (!attempt.is_absent) return fail(Code::kUnsupported, "{}", attempt.problem);
    problems += (problems.empty() ? "" : "; ") + attempt.problem;
  }
  return fail(Code::kNotFound,
              "no CUDA driver ({}): install the NVIDIA driver (Debian: libcuda1) or name its "
              "library in BM_CUDA_LIBRARY",
              problems);
}

/// "580.105.08" of the kernel module, or why it is not known.
std::string module_version(System& system) {
  std::string text;
  if (system.read_file(kModuleVersionFile, &text) != 0)
    return fmt::format("unknown: no {}, the module is not loaded or not of this container",
                       kModuleVersionFile);
  // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build …": the
  // first word of digits and dots.
  constexpr std::string_view kDigits = "0123456789.";
  for (size_t at = 0; (at = text.find_first_not_of(" \n", at)) != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(" \n", at), text.size());
    const std::string word = text.substr(at, end - at);
    if (word.find_first_not_of(kDigits) == std::string::npos && word.find('.') != std::string::npos)
      return word;
    at = end;
  }
  return text.substr(0, text.find('\n'));
}

}  // namespace

Result<ApiPtr> load_api(std::string_view library) {
  return vendor::load_once<ApiPtr>(std::string(library), open_library);
}

std::string version_text(const Api& api) {
  int version = 0;
  if (api.cuDriverGetVersion(&version) != kSuccess || version <= 0) return "?";
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

Status initialize(const Api& api) { return initialize(api, real_system()); }

Status initialize(const Api& api, System& system) {
  const CuResult error = api.cuInit(0);
  if (error == kSuccess) [[likely]]
    return {};
  constexpr CuResult kMismatch = 803, kUnknown = 999;
  if (error == kErrorNoDevice)
    return fail(Code::kNotFound,
                "{}: the driver ({}, CUDA {}) is there but no GPU: see `nvidia-smi`, "
                "CUDA_VISIBLE_DEVICES, and in a container whether GPUs are passed to it",
                error_name(api, error), api.library, version_text(api));
  if (error == kMismatch || error == kUnknown)
    return fail(Code::kUnsupported,
                "{}: {} is of CUDA {}, the kernel module is {}: after a driver update restart the "
                "machine (or reload the modules); in a container use the host's library",
                error_name(api, error), api.library, version_text(api), module_version(system));
  return fail(code_of(error), "cuInit of {}: {}", api.library, explain(api, error));
}

}  // namespace bm::cuda
