// Own declarations of the few functions used. Source: nvrtc.h of CUDA 13.0.
#include "compiler/toolchain/nvrtc.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>

#include "compiler/toolchain/cuda_library.h"
#include "compiler/toolchain/quote_line.h"
#include "runtime/base/trust.h"

namespace bm::compiler {
namespace {

using Handle = void*;
constexpr int kSuccess = 0, kInvalidOption = 5;

struct Api {
  int (*version)(int* major, int* minor) = nullptr;
  int (*create)(Handle*, const char* source, const char* name, int num_headers,
                const char* const* headers, const char* const* names) = nullptr;
  int (*destroy)(Handle*) = nullptr;
  int (*compile)(Handle, int count, const char* const* options) = nullptr;
  int (*ptx_size)(Handle, size_t*) = nullptr;
  int (*ptx)(Handle, char*) = nullptr;
  int (*cubin_size)(Handle, size_t*) = nullptr;
  int (*cubin)(Handle, char*) = nullptr;
  int (*log_size)(Handle, size_t*) = nullptr;
  int (*log)(Handle, char*) = nullptr;
  std::string path;
  int major = 0, minor = 0;

  bool is_at_least(int wanted_major, int wanted_minor) const {
    return major > wanted_major || (major == wanted_major && minor >= wanted_minor);
  }
};

/// NVRTC asks the loader for its built-ins by name: from a folder that the loader does not search,
/// they are found only if they are there already.
void load_builtins(const Api& api) {
  const size_t slash = api.path.rfind('/');
  if (slash == std::string::npos) return;
  const std::string file =
      fmt::format("{}/libnvrtc-builtins.so.{}.{}", api.path.substr(0, slash), api.major, api.minor);
  if (check_library(file)) (void)dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);
}

/// NVRTC asks the CUDA driver it finds for a table of functions, and crashes where a library under
/// the driver's name has none to give (models of GPUs).
Status check_driver() {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr || dlsym(driver, "cuGetExportTable") != nullptr) return {};
  return fail(Code::kUnsupported,
              "the libcuda.so.1 here lacks cuGetExportTable, without which NVRTC crashes; use the "
              "PTX renderer (DEV=CUDA:PTX)");
}

Result<Api> load() {
  BM_TRY(check_driver());
  const CudaLibrary library = BM_TRY(open_cuda_library("nvrtc"));
  Api api;
  api.path = library.path;
  bool is_complete = true;
  const auto bind = [&]<class F>(F*& fn, const char* name) {
    fn = reinterpret_cast<F*>(library.symbol(name));
    is_complete = is_complete && fn;
  };
  bind(api.version, "nvrtcVersion");
  bind(api.create, "nvrtcCreateProgram");
  bind(api.destroy, "nvrtcDestroyProgram");
  bind(api.compile, "nvrtcCompileProgram");
  bind(api.ptx_size, "nvrtcGetPTXSize");
  bind(api.ptx, "nvrtcGetPTX");
  bind(api.cubin_size, "nvrtcGetCUBINSize");
  bind(api.cubin, "nvrtcGetCUBIN");
  bind(api.log_size, "nvrtcGetProgramLogSize");
  bind(api.log, "nvrtcGetProgramLog");
  if (!is_complete || api.version(&api.major, &api.minor) != kSuccess)
    return fail(Code::kUnsupported, "{} lacks functions of NVRTC 12 and 13; install one of them",
                api.path);
  load_builtins(api);
  return api;
}

const Result<Api>& api() {
  static const Result<Api> loaded = load();
  return loaded;
}

/// While NVRTC compiles, its front end has handlers of its own for SIGINT, SIGTERM and others,
/// which call exit(4) with the locks of the compiler held (seen with 13.0). What exits then was
/// ended by that signal, and nothing but saying so is safe to do.
class SignalGuard {
 public:
  SignalGuard() {
    static const bool is_registered = std::atexit(end_if_signalled) == 0;
    static_cast<void>(is_registered);
    compiling().fetch_add(1, std::memory_order_relaxed);
  }
  ~SignalGuard() { compiling().fetch_sub(1, std::memory_order_relaxed); }
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

 private:
  static std::atomic<int>& compiling() {
    static constinit std::atomic<int> count{0};
    return count;
  }

  static bool is_handled_by_nvrtc(int number) {
    struct sigaction now{};
    Dl_info place{};
    return ::sigaction(number, nullptr, &now) == 0 &&
           ::dladdr(reinterpret_cast<void*>(now.sa_handler), &place) != 0 &&
           place.dli_fname != nullptr &&
           std::string_view(place.dli_fname).find("nvrtc") != std::string_view::npos;
  }

  // The handler that calls exit() runs with its own signal blocked (signal(7), BSD semantics),
  // which tells which one it was.
  static void end_if_signalled() {
    sigset_t blocked;
    if (compiling().load(std::memory_order_relaxed) == 0 ||
        ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked) != 0)
      return;
    for (int number = 1; number < SIGRTMIN; ++number) {
      if (::sigismember(&blocked, number) != 1 || !is_handled_by_nvrtc(number)) continue;
      if (number == SIGINT) {
        constexpr char kText[] = "\ninterrupted while NVRTC compiled\n";
        (void)!::write(STDERR_FILENO, kText, sizeof kText - 1);
        ::_exit(128 + SIGINT);
      }
      // Other signals end the process as they would without NVRTC.
      sigset_t one;
      ::sigemptyset(&one);
      ::sigaddset(&one, number);
      ::signal(number, SIG_DFL);
      ::raise(number);
      ::pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
      ::_exit(128 + number);
    }
  }
};

class Compilation {
 public:
  explicit Compilation(const Api& used) : api_(used) {}
  Compilation(const Compilation&) = delete;
  Compilation& operator=(const Compilation&) = delete;
  ~Compilation() {
    if (handle_) api_.destroy(&handle_);
  }

  Result<std::vector<std::byte>> run(std::string_view source, std::string_view target,
                                     bool wants_ptx, std::string* ptx) {
    const std::string text(source);
    if (const int s = api_.create(&handle_, text.c_str(), "kernel.cu", 0, nullptr, nullptr))
      return fail(Code::kCompile, "NVRTC {}.{}: status {} for a new program", api_.major,
                  api_.minor, s);
    BM_TRY(compile(source, target, wants_ptx));
    size_t size = 0;
    if ((wants_ptx ? api_.ptx_size : api_.cubin_size)(handle_, &size) != kSuccess || size == 0)
      return fail(Code::kCompile, "NVRTC {}.{} made no code for {}", api_.major, api_.minor,
                  target);
    std::vector<std::byte> out(size);
    (wants_ptx ? api_.ptx : api_.cubin)(handle_, reinterpret_cast<char*>(out.data()));
    if (ptx != nullptr && api_.ptx_size(handle_, &size) == kSuccess && size != 0) {
      ptx->resize(size);
      api_.ptx(handle_, ptx->data());
      ptx->resize(size - 1);  // without the NUL
    }
    return out;
  }

 private:
  Status compile(std::string_view source, std::string_view target, bool wants_ptx) {
    const std::string number(target.substr(target.find('_') + 1));
    const std::string arch =
        fmt::format("--gpu-architecture={}_{}", wants_ptx ? "compute" : "sm", number);
    // What the program says is what is computed: no contraction, no flushing of small numbers.
    std::vector<const char*> options{arch.c_str(),      "--fmad=false",     "--ftz=false",
                                     "--prec-div=true", "--prec-sqrt=true", "--disable-warnings"};
    // Without NVRTC's own headers, which no kernel needs.
    if (api_.is_at_least(12, 4)) options.push_back("--minimal");
    int status = 0;
    {
      const SignalGuard guard;
      status = api_.compile(handle_, static_cast<int>(options.size()), options.data());
    }
    if (status == kSuccess) return {};
    if (status == kInvalidOption)
      return fail(Code::kUnsupported,
                  "NVRTC {}.{} ({}) does not compile for {}; install a newer CUDA toolkit: {}",
                  api_.major, api_.minor, api_.path, target, log());
    return fail(Code::kCompile, "NVRTC {}.{} (status {}): {}", api_.major, api_.minor, status,
                with_source_line(log(), source));
  }

  std::string log() {
    size_t size = 0;
    if (api_.log_size(handle_, &size) != kSuccess || size == 0) return "no log";
    std::string text(size, '\0');
    if (api_.log(handle_, text.data()) != kSuccess) return "no log";
    return text.c_str();
  }

  const Api& api_;
  Handle handle_ = nullptr;
};

/// Number behind `before` in a log; 0 if there is none.
int number_behind(const std::string& log, std::string_view before) {
  const size_t at = log.find(before);
  return at == std::string::npos ? 0 : std::atoi(log.c_str() + at + before.size());
}

}  // namespace

std::string with_source_line(const std::string& log, std::string_view source) {
  // "kernel.cu(12): error: …", "ptxas kernel, line 12; error : …".
  int wanted = number_behind(log, "kernel.cu(");
  if (wanted < 1) wanted = number_behind(log, "line ");
  return quote_line(log, wanted, source);
}

Result<std::string> nvrtc_version() {
  const Result<Api>& loaded = api();
  if (!loaded) return tl::unexpected(loaded.error());
  return fmt::format("{}.{}", loaded->major, loaded->minor);
}

Result<std::vector<std::byte>> nvrtc_compile(std::string_view source, std::string_view target,
                                             bool wants_ptx, std::string* ptx) {
  const Result<Api>& loaded = api();
  if (!loaded) return tl::unexpected(loaded.error());
  return Compilation(*loaded).run(source, target, wants_ptx, ptx);
}

}  // namespace bm::compiler
