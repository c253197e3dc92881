// Loads the LLVM component. The compiler itself does not link LLVM.
#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

#include "compiler/toolchain/component_folders.h"
#include "compiler/toolchain/llvm_plugin.h"
#include "compiler/toolchain/toolchain.h"

namespace bm::compiler {
namespace {

constexpr const char* kFile = "libbellmetal_llvm.so";

struct Plugin {
  bm_llvm_version_fn* version = nullptr;
  bm_llvm_compile_fn* compile = nullptr;
  bm_llvm_disassemble_fn* disassemble = nullptr;
  bm_llvm_free_fn* free = nullptr;
};

Result<Plugin> open_plugin(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* text = dlerror();
    return fail(Code::kNotFound, "{}", text ? text : path);
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

/// The first file of its name decides, unless it cannot be used; what was wrong with it is said.
Result<Plugin> load() {
  std::string tried, why;
  for (const ComponentFolder& folder : BM_TRY(component_folders())) {
    const std::string path = folder.path + "/" + kFile;
    tried += (tried.empty() ? "" : ", ") + folder.path;
    if (access(path.c_str(), F_OK) != 0) continue;
    const auto trusted = trusted_component(path);
    Result<Plugin> loaded =
        trusted ? open_plugin(*trusted) : Result<Plugin>(tl::unexpected<Error>(trusted.error()));
    if (loaded || loaded.error().code == Code::kUnsupported) return loaded;
    if (folder.is_named && !trusted)
      return tl::unexpected<Error>(std::move(loaded.error()).within("BM_PLUGIN_DIR"));
    why += fmt::format(" ({})", loaded.error().message);
  }
  return fail(
      Code::kNotFound,
      "LLVM component {} not found{}; install libllvm19 (or libllvm22) and the "
      "bellmetal-llvm component, or set BM_PLUGIN_DIR to the absolute folder that holds it; "
      "looked in {}",
      kFile, why, tried);
}

/// Loaded once per process and kept: unloading LLVM is not safe.
const Result<Plugin>& plugin() {
  static const Result<Plugin> loaded = load();
  return loaded;
}

/// First major release of LLVM that knows a card, oldest card first. Source: NVPTX.td of LLVM 17 to
/// 21, "class Proc".
struct NvptxRow {
  std::string_view target;
  int from_release;
};
constexpr std::array kNvptxRows = {
    NvptxRow{"sm_75", 17},  NvptxRow{"sm_80", 17},  NvptxRow{"sm_86", 17},  NvptxRow{"sm_87", 17},
    NvptxRow{"sm_89", 17},  NvptxRow{"sm_90", 17},  NvptxRow{"sm_90a", 18}, NvptxRow{"sm_100", 20},
    NvptxRow{"sm_103", 21}, NvptxRow{"sm_120", 21}, NvptxRow{"sm_121", 21}};

/// What a card runs of what this LLVM can name: the card itself or the last one before it.
std::string_view nvptx_target(std::string_view card, int release) {
  std::string_view last = kNvptxRows[0].target;
  const auto number = [](std::string_view name) { return std::atoi(name.data() + 3); };
  for (const NvptxRow& row : kNvptxRows) {
    if (row.from_release > release) continue;
    if (row.target == card) return row.target;
    // Code for an "a" target runs on that card alone.
    if (number(row.target) <= number(card) && row.target.back() != 'a') last = row.target;
  }
  return last;
}

/// The component, or why there is none and what could compile for this CPU instead.
Result<Plugin> plugin_for(const TargetInfo& target) {
  const Result<Plugin>& loaded = plugin();
  if (loaded || target.has_groups) return loaded;
  const auto clang = clang_version();
  if (!clang) return loaded;
  return fail(loaded.error().code, "{}; {} is here: DEV=CPU:CLANG compiles with it",
              loaded.error().message, *clang);
}

Result<std::string> run(const Plugin& p, const bm_llvm_request& request) {
  bm_llvm_buffer out{}, error{};
  if (const int failed = p.compile(&request, &out, &error); failed != 0) {
    const std::string text(error.data, error.size);
    p.free(&error);
    if (failed == 2)
      return fail(Code::kNotFound, "LLVM {} was built without the target {}: {}", p.version(),
                  request.triple, text);
    return fail(Code::kCompile, "LLVM {}: {}", p.version(), text);
  }
  std::string made(out.data, out.size);
  p.free(&out);
  return made;
}

}  // namespace

Result<std::string> llvm_version() {
  const Plugin p = BM_TRY(plugin());
  return std::string(p.version());
}

Result<std::vector<std::byte>> llvm_compile(std::string_view ir, const TargetInfo& target) {
  const Plugin p = BM_TRY(plugin_for(target));
  // LLVM itself takes a name it does not know for an old processor.
  if (std::atoi(p.version()) < target.llvm_release)
    return fail(Code::kNotFound,
                "LLVM {} does not know {}: install libllvm{} or later and the bellmetal-llvm "
                "component made with it",
                p.version(), target.cpu, target.llvm_release);
  const bm_llvm_request request{.text = ir.data(),
                                .text_size = ir.size(),
                                .triple = target.triple.c_str(),
                                .cpu = target.cpu.c_str(),
                                .features = target.features.c_str(),
                                .optimize = 1,
                                .is_assembly = 0,
                                .is_inlined = target.has_groups};
  const std::string object = BM_TRY(run(p, request));
  const auto bytes = std::as_bytes(std::span(object));
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

Result<std::string> llvm_ptx(std::string_view ir, const TargetInfo& target) {
  const Plugin p = BM_TRY(plugin());
  const std::string card(nvptx_target(target.cpu, std::atoi(p.version())));
  const bm_llvm_request request{.text = ir.data(),
                                .text_size = ir.size(),
                                .triple = "nvptx64-nvidia-cuda",
                                .cpu = card.c_str(),
                                .features = "",
                                .optimize = 1,
                                .is_assembly = 1,
                                .is_inlined = 1};
  return run(p, request);
}

Result<std::string> llvm_disassemble(std::span<const std::byte> object, const TargetInfo& target) {
  const Plugin p = BM_TRY(plugin());
  const bm_llvm_request request{.text = reinterpret_cast<const char*>(object.data()),
                                .text_size = object.size(),
                                .triple = target.triple.c_str(),
                                .cpu = target.cpu.c_str(),
                                .features = target.features.c_str(),
                                .optimize = 0,
                                .is_assembly = 0,
                                .is_inlined = 0};
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
