// Own declarations of the few functions used. Source: nvJitLink.h of CUDA 13.0.
#include "compiler/toolchain/nvjitlink.h"

#include <array>

#include "compiler/toolchain/cuda_library.h"
#include "compiler/toolchain/nvrtc.h"

namespace bm::compiler {
namespace {

using Handle = void*;
constexpr int kSuccess = 0;
constexpr int kOutdated = 14;  // PTX of a newer toolkit
constexpr int kUnknownArch = 16, kUnsupportedArch = 17;
constexpr int kPtx = 2;

struct Api {
  int (*create)(Handle*, uint32_t count, const char** options) = nullptr;
  int (*destroy)(Handle*) = nullptr;
  int (*add)(Handle, int kind, const void* data, size_t size, const char* name) = nullptr;
  int (*complete)(Handle) = nullptr;
  int (*cubin_size)(Handle, size_t*) = nullptr;
  int (*cubin)(Handle, void*) = nullptr;
  int (*log_size)(Handle, size_t*) = nullptr;
  int (*log)(Handle, char*) = nullptr;
  int (*version)(unsigned* major, unsigned* minor) = nullptr;
  std::string path;
  unsigned major = 0, minor = 0;
};

/// The plain name, or the one with a release behind it that headers map it to.
void* find(const CudaLibrary& library, const std::string& name) {
  if (void* plain = library.symbol("nvJitLink" + name)) return plain;
  for (int major = 13; major >= 12; --major)
    for (int minor = 9; minor >= 0; --minor)
      if (void* f = library.symbol(fmt::format("__nvJitLink{}_{}_{}", name, major, minor)))
        return f;
  return nullptr;
}

Result<Api> load() {
  const CudaLibrary library = BM_TRY(open_cuda_library("nvJitLink"));
  Api api;
  api.path = library.path;
  bool is_complete = true;
  const auto bind = [&]<class F>(F*& fn, const char* name) {
    fn = reinterpret_cast<F*>(find(library, name));
    is_complete = is_complete && fn;
  };
  bind(api.create, "Create");
  bind(api.destroy, "Destroy");
  bind(api.add, "AddData");
  bind(api.complete, "Complete");
  bind(api.cubin_size, "GetLinkedCubinSize");
  bind(api.cubin, "GetLinkedCubin");
  bind(api.log_size, "GetErrorLogSize");
  bind(api.log, "GetErrorLog");
  bind(api.version, "Version");
  if (!is_complete || api.version(&api.major, &api.minor) != kSuccess)
    return fail(Code::kUnsupported,
                "{} lacks functions of nvJitLink 12 and 13; install one of them", api.path);
  return api;
}

const Result<Api>& api() {
  static const Result<Api> loaded = load();
  return loaded;
}

class Link {
 public:
  explicit Link(const Api& used) : api_(used) {}
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link() {
    if (handle_) api_.destroy(&handle_);
  }

  Result<std::vector<std::byte>> run(std::string_view ptx, std::string_view target) {
    const std::string arch = fmt::format("-arch={}", target);
    std::array options{arch.c_str()};
    BM_TRY(check(api_.create(&handle_, options.size(), options.data()), ptx, target));
    BM_TRY(check(api_.add(handle_, kPtx, ptx.data(), ptx.size(), "kernel"), ptx, target));
    BM_TRY(check(api_.complete(handle_), ptx, target));
    size_t size = 0;
    BM_TRY(check(api_.cubin_size(handle_, &size), ptx, target));
    std::vector<std::byte> out(size);
    BM_TRY(check(api_.cubin(handle_, out.data()), ptx, target));
    return out;
  }

 private:
  std::string log() {
    size_t size = 0;
    if (!handle_ || api_.log_size(handle_, &size) != kSuccess || size == 0) return "no log";
    std::string text(size, '\0');
    if (api_.log(handle_, text.data()) != kSuccess) return "no log";
    return text.c_str();
  }

  Status check(int status, std::string_view ptx, std::string_view target) {
    if (status == kSuccess) return {};
    if (status == kOutdated || status == kUnknownArch || status == kUnsupportedArch)
      return fail(Code::kUnsupported,
                  "nvJitLink {}.{} ({}) does not assemble for {}; install a newer CUDA toolkit",
                  api_.major, api_.minor, api_.path, target);
    return fail(Code::kCompile, "nvJitLink {}.{} (status {}): {}", api_.major, api_.minor, status,
                with_source_line(log(), ptx));
  }

  const Api& api_;
  Handle handle_ = nullptr;
};

}  // namespace

Result<std::string> nvjitlink_version() {
  const Result<Api>& loaded = api();
  if (!loaded) return tl::unexpected(loaded.error());
  return fmt::format("{}.{}", loaded->major, loaded->minor);
}

Result<std::vector<std::byte>> nvjitlink_assemble(std::string_view ptx, std::string_view target) {
  const Result<Api>& loaded = api();
  if (!loaded) return tl::unexpected(loaded.error());
  return Link(*loaded).run(ptx, target);
}

}  // namespace bm::compiler
