// Finds and loads the LLVM component. The compiler itself does not link LLVM.
#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <string>

#include "compiler/toolchain/llvm_plugin.h"
#include "compiler/toolchain/toolchain.h"
#include "runtime/base/env.h"

namespace bm::compiler {
namespace {

constexpr const char* kFile = "libbellmetal_llvm.so";

struct Plugin {
  bm_llvm_version_fn* version = nullptr;
  bm_llvm_compile_fn* compile = nullptr;
  bm_llvm_disassemble_fn* disassemble = nullptr;
  bm_llvm_free_fn* free = nullptr;
};

std::string executable_folder() {
  std::array<char, 4096> path{};
  const ssize_t n = readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (n <= 0) return ".";
  const std::string text(path.data(), static_cast<size_t>(n));
  return text.substr(0, text.rfind('/'));
}

std::vector<std::string> candidates() {
  std::vector<std::string> out;
  if (const std::string& dir = settings().plugin_dir; !dir.empty())
    out.push_back(dir + "/" + kFile);
  const std::string here = executable_folder();
  out.push_back(here + "/" + kFile);
  out.push_back(here + "/../lib/" + kFile);
  out.push_back(std::string("/usr/local/lib/") + kFile);
  out.push_back(std::string("/usr/lib/x86_64-linux-gnu/") + kFile);
  out.emplace_back(kFile);
  return out;
}

Result<Plugin> load() {
  std::string tried, why;
  for (const std::string& path : candidates()) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      const char* text = dlerror();
      tried += (tried.empty() ? "" : ", ") + path;
      // A file that is there but does not load says more than the missing ones.
      if (text && access(path.c_str(), F_OK) == 0) why = std::string(" (") + text + ")";
      continue;
    }
    const auto find = [&]<class F>(F*& fn, const char* name) {
      fn = reinterpret_cast<F*>(dlsym(handle, name));
    };
    bm_llvm_abi_fn* abi = nullptr;
    Plugin p;
    find(abi, "bm_llvm_abi");
    find(p.version, "bm_llvm_version");
    find(p.compile, "bm_llvm_compile");
    find(p.disassemble, "bm_llvm_disassemble");
    find(p.free, "bm_llvm_free");
    if (!abi || abi() != BM_LLVM_ABI || !p.version || !p.compile || !p.disassemble || !p.free)
      return fail(Code::kUnsupported, "{} is of another Bellmetal version; reinstall it", path);
    return p;
  }
  return fail(Code::kNotFound,
              "LLVM component {} not found{}; install libllvm19 (or libllvm22) and the "
              "bellmetal-llvm component, "
              "or set BM_PLUGIN_DIR; looked at {}",
              kFile, why, tried);
}

/// Loaded once per process and kept: unloading LLVM is not safe.
const Result<Plugin>& plugin() {
  static const Result<Plugin> loaded = load();
  return loaded;
}

}  // namespace

Result<std::string> llvm_version() {
  const Plugin p = BM_TRY(plugin());
  return std::string(p.version());
}

Result<std::vector<std::byte>> llvm_compile(std::string_view ir, const TargetInfo& target) {
  const Plugin p = BM_TRY(plugin());
  const bm_llvm_request request{.text = ir.data(),
                                .text_size = ir.size(),
                                .triple = target.triple.c_str(),
                                .cpu = target.cpu.c_str(),
                                .features = target.features.c_str(),
                                .optimize = 1};
  bm_llvm_buffer out{}, error{};
  if (p.compile(&request, &out, &error) != 0) {
    const std::string text(error.data, error.size);
    p.free(&error);
    return fail(Code::kCompile, "LLVM {}: {}", p.version(), text);
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(out.data);
  std::vector<std::byte> object(bytes, bytes + out.size);
  p.free(&out);
  return object;
}

Result<std::string> llvm_disassemble(std::span<const std::byte> object, const TargetInfo& target) {
  const Plugin p = BM_TRY(plugin());
  const bm_llvm_request request{.text = reinterpret_cast<const char*>(object.data()),
                                .text_size = object.size(),
                                .triple = target.triple.c_str(),
                                .cpu = target.cpu.c_str(),
                                .features = target.features.c_str(),
                                .optimize = 0};
  bm_llvm_buffer out{}, error{};
  if (p.disassemble(&request, &out, &error) != 0) {
    const std::string text(error.data, error.size);
    p.free(&error);
    return fail(Code::kCompile, "disassembly: {}", text);
  }
  std::string text(out.data, out.size);
  p.free(&out);
  return text;
}

}  // namespace bm::compiler
