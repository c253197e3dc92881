// Own declarations of the few functions used. Source: amd_comgr.h of ROCm 5.7 (release 2.5) and of
// ROCm 6.4 (release 3.0).
#include "compiler/toolchain/comgr.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <mutex>

#include <fmt/format.h>

#include "compiler/toolchain/nvrtc.h"
#include "runtime/base/trust.h"

namespace bm::compiler {
namespace {

struct Handle {
  uint64_t value = 0;
};
constexpr int kSuccess = 0;
// amd_comgr_data_kind_t.
constexpr int kSource = 1, kLog = 5, kBitcode = 6, kRelocatable = 7;

/// Numbers that differ between major releases: amd_comgr_language_t and amd_comgr_action_kind_t.
struct Release {
  size_t major;
  int hip;
  int source_to_bitcode, bitcode_to_relocatable;
};
constexpr std::array kReleases = {Release{2, 4, 2, 6}, Release{3, 3, 2, 4}};

struct Api {
  void (*get_version)(size_t* major, size_t* minor) = nullptr;
  int (*create_data)(int kind, Handle*) = nullptr;
  int (*release_data)(Handle) = nullptr;
  int (*set_data)(Handle, size_t, const char*) = nullptr;
  int (*set_data_name)(Handle, const char*) = nullptr;
  int (*get_data)(Handle, size_t*, char*) = nullptr;
  int (*create_data_set)(Handle*) = nullptr;
  int (*destroy_data_set)(Handle) = nullptr;
  int (*data_set_add)(Handle, Handle) = nullptr;
  int (*action_data_count)(Handle, int kind, size_t*) = nullptr;
  int (*action_data_get_data)(Handle, int kind, size_t index, Handle*) = nullptr;
  int (*create_action_info)(Handle*) = nullptr;
  int (*destroy_action_info)(Handle) = nullptr;
  int (*set_isa_name)(Handle, const char*) = nullptr;
  int (*set_language)(Handle, int) = nullptr;
  int (*set_option_list)(Handle, const char* options[], size_t count) = nullptr;
  int (*set_logging)(Handle, bool) = nullptr;
  int (*do_action)(int kind, Handle info, Handle in, Handle out) = nullptr;
  const Release* release = nullptr;
  size_t major = 0, minor = 0;
};

std::vector<std::string> candidates() {
  std::vector<std::string> places;
  if (const char* root = std::getenv("ROCM_PATH"); root != nullptr && *root != 0)
    places.push_back(std::string(root) + "/lib/libamd_comgr.so");
  for (const char* place : {"/opt/rocm/lib/libamd_comgr.so", "libamd_comgr.so.3",
                            "libamd_comgr.so.2", "libamd_comgr.so"})
    places.emplace_back(place);
  return places;
}

Result<Api> load() {
  void* library = nullptr;
  std::string tried;
  for (const std::string& place : candidates()) {
    const Status trusted = check_library(place);
    if (trusted) library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    tried += (tried.empty() ? "" : ", ") + place;
    if (!trusted && trusted.error().code != Code::kNotFound)
      tried += fmt::format(" ({})", trusted.error().message);
  }
  if (library == nullptr)
    return fail(Code::kNotFound,
                "AMD's code object manager (libamd_comgr) not found; install ROCm's comgr or "
                "package libamd-comgr2, set ROCM_PATH, or use DEV=AMD:LLVM; looked at {}",
                tried);
  Api api;
  bool is_complete = true;
  const auto bind = [&]<class F>(F*& fn, const char* name) {
    fn = reinterpret_cast<F*>(dlsym(library, fmt::format("amd_comgr_{}", name).c_str()));
    is_complete = is_complete && fn != nullptr;
  };
  bind(api.get_version, "get_version");
  bind(api.create_data, "create_data");
  bind(api.release_data, "release_data");
  bind(api.set_data, "set_data");
  bind(api.set_data_name, "set_data_name");
  bind(api.get_data, "get_data");
  bind(api.create_data_set, "create_data_set");
  bind(api.destroy_data_set, "destroy_data_set");
  bind(api.data_set_add, "data_set_add");
  bind(api.action_data_count, "action_data_count");
  bind(api.action_data_get_data, "action_data_get_data");
  bind(api.create_action_info, "create_action_info");
  bind(api.destroy_action_info, "destroy_action_info");
  bind(api.set_isa_name, "action_info_set_isa_name");
  bind(api.set_language, "action_info_set_language");
  bind(api.set_option_list, "action_info_set_option_list");
  bind(api.set_logging, "action_info_set_logging");
  bind(api.do_action, "do_action");
  if (is_complete) api.get_version(&api.major, &api.minor);
  for (const Release& release : kReleases)
    if (is_complete && release.major == api.major) api.release = &release;
  if (api.release == nullptr)
    return fail(Code::kUnsupported,
                "libamd_comgr {}.{}: releases 2 and 3 are known; install one of them or use "
                "DEV=AMD:LLVM",
                api.major, api.minor);
  return api;
}

/// Kept: unloading compilers is not safe.
const Result<Api>& api() {
  static const Result<Api> loaded = load();
  return loaded;
}

/// One compilation; frees what it made.
class Job {
 public:
  Job(const Api& used, std::string_view source) : api_(used), source_(source) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() {
    for (const Handle info : infos_) api_.destroy_action_info(info);
    for (const Handle set : sets_) api_.destroy_data_set(set);
    for (const Handle data : datas_) api_.release_data(data);
  }

  Result<std::vector<std::byte>> run(const TargetInfo& target) {
    const Release& numbers = *api_.release;
    const Handle source = BM_TRY(make_data(kSource, source_, "kernel.hip"));
    const Handle first = BM_TRY(make_set());
    BM_TRY(check(api_.data_set_add(first, source), "data_set_add"));
    const std::string arch = "--offload-arch=" + target.cpu;
    const bool is_cumode = target.features.find("+cumode") != std::string::npos;
    const bool is_wgp = target.features.find("-cumode") != std::string::npos;
    std::vector<const char*> options = {"-O3",       "-std=c++17",        "-nogpuinc",
                                        "-nogpulib", "-ffp-contract=off", "-mcode-object-version=5",
                                        "-w",        arch.c_str()};
    if (is_cumode) options.push_back("-mcumode");
    if (is_wgp) options.push_back("-mno-cumode");
    const Handle bitcode =
        BM_TRY(act(numbers.source_to_bitcode, numbers.hip, target, options, first));
    BM_TRY(require(bitcode, kBitcode));
    const Handle object =
        BM_TRY(act(numbers.bitcode_to_relocatable, 0, target, {options[0]}, bitcode));
    return contents(object, kRelocatable);
  }

 private:
  Status check(int status, std::string_view what) const {
    if (status == kSuccess) return {};
    return fail(Code::kCompile, "comgr {}.{}: {} gave status {}", api_.major, api_.minor, what,
                status);
  }
  Result<Handle> make_data(int kind, std::string_view text, const char* name) {
    Handle data;
    BM_TRY(check(api_.create_data(kind, &data), "create_data"));
    datas_.push_back(data);
    BM_TRY(check(api_.set_data(data, text.size(), text.data()), "set_data"));
    BM_TRY(check(api_.set_data_name(data, name), "set_data_name"));
    return data;
  }
  Result<Handle> make_set() {
    Handle set;
    BM_TRY(check(api_.create_data_set(&set), "create_data_set"));
    sets_.push_back(set);
    return set;
  }

  Result<Handle> act(int kind, int language, const TargetInfo& target,
                     std::vector<const char*> options, Handle in) {
    Handle info;
    BM_TRY(check(api_.create_action_info(&info), "create_action_info"));
    infos_.push_back(info);
    const std::string isa = "amdgcn-amd-amdhsa--" + target.cpu;
    if (api_.set_isa_name(info, isa.c_str()) != kSuccess)
      return fail(
          Code::kUnsupported,
          "libamd_comgr {}.{} does not know {}; install a newer release of ROCm's comgr, or "
          "use DEV=AMD:LLVM",
          api_.major, api_.minor, target.cpu);
    if (language != 0) BM_TRY(check(api_.set_language(info, language), "set_language"));
    BM_TRY(check(api_.set_option_list(info, options.data(), options.size()), "set_option_list"));
    BM_TRY(check(api_.set_logging(info, true), "action_info_set_logging"));
    const Handle out = BM_TRY(make_set());
    if (api_.do_action(kind, info, in, out) == kSuccess) return out;
    const auto log = contents(out, kLog);
    const std::string text =
        log ? std::string(reinterpret_cast<const char*>(log->data()), log->size()) : "no log";
    return fail(Code::kCompile, "comgr {}.{}: {}", api_.major, api_.minor,
                with_source_line(text, source_));
  }

  Status require(Handle set, int kind) {
    size_t count = 0;
    BM_TRY(check(api_.action_data_count(set, kind, &count), "action_data_count"));
    if (count != 0) return {};
    return fail(Code::kCompile, "comgr {}.{} made nothing of kind {}", api_.major, api_.minor,
                kind);
  }
  Result<std::vector<std::byte>> contents(Handle set, int kind) {
    BM_TRY(require(set, kind));
    Handle data;
    BM_TRY(check(api_.action_data_get_data(set, kind, 0, &data), "action_data_get_data"));
    datas_.push_back(data);
    size_t size = 0;
    BM_TRY(check(api_.get_data(data, &size, nullptr), "get_data"));
    std::vector<std::byte> bytes(size);
    BM_TRY(check(api_.get_data(data, &size, reinterpret_cast<char*>(bytes.data())), "get_data"));
    return bytes;
  }

  const Api& api_;
  std::string_view source_;
  std::vector<Handle> infos_, sets_, datas_;
};

}  // namespace

Result<std::string> comgr_version() {
  const Result<Api>& loaded = api();
  if (!loaded) return tl::unexpected(loaded.error());
  return fmt::format("{}.{}", loaded->major, loaded->minor);
}

Result<std::vector<std::byte>> comgr_compile(std::string_view source, const TargetInfo& target) {
  const Result<Api>& loaded = api();
  if (!loaded) return tl::unexpected(loaded.error());
  // Compilers inside change the process's state.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  return Job(*loaded, source).run(target);
}

}  // namespace bm::compiler
