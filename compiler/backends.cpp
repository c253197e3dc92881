#include "compiler/backends.h"

#include <algorithm>
#include <array>
#include <mutex>

#include <fmt/format.h>

#include "compiler/render/render.h"
#include "compiler/toolchain/comgr.h"
#include "compiler/toolchain/cuda_disassembler.h"
#include "compiler/toolchain/nvjitlink.h"
#include "compiler/toolchain/nvrtc.h"
#include "compiler/toolchain/toolchain.h"
#include "runtime/base/env.h"
#include "runtime/base/log.h"
#include "runtime/base/paired_image.h"

namespace bm::compiler {
namespace {

using Image = Result<std::vector<std::byte>>;
using Text = Result<std::string>;

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// Whether devices are handed PTX text instead of machine code.
bool wants_ptx() { return settings().nv_code == "ptx"; }

/// Whether the device's driver compiles PTX itself: then the text goes behind the machine code, in
/// case the driver is too old for the latter.
bool takes_text(const hal::Arch& arch) { return arch.features == "ptx"; }

/// PTX stays text, ending in NUL, where that is wanted or nothing can assemble it.
Image assemble_ptx(const std::string& ptx, const std::string& cpu, const hal::Arch& arch) {
  if (!wants_ptx()) {
    auto cubin = nvjitlink_assemble(ptx, cpu);
    if (cubin && takes_text(arch)) return pair_image(*cubin, ptx);
    if (cubin || cubin.error().code != Code::kNotFound) return cubin;
  }
  return bytes_of({ptx.c_str(), ptx.size() + 1});
}

Image assemble_cuda(const Source& source, const hal::Arch& arch) {
  std::string ptx;
  const bool is_pair = takes_text(arch) && !wants_ptx();
  auto image =
      BM_TRY(nvrtc_compile(source.text, source.cpu, wants_ptx(), is_pair ? &ptx : nullptr));
  return ptx.empty() ? std::move(image) : pair_image(image, ptx);
}

Image assemble_llvm(const Source& source, const hal::Arch& arch) {
  return llvm_compile(source.text, target_info(arch));
}

/// What of settings NVIDIA's code depends on, and of the toolkit that `version` is of.
std::string cuda_version(bool is_linked, Result<std::string> (*version)()) {
  std::string code = wants_ptx() ? "ptx" : "cubin";
  if (settings().allow_tf32) code += " tf32";
  if (!settings().nv_wgmma) code += " no wgmma";
  if (is_linked && wants_ptx()) return code;
  return code + " " + version().value_or("none");
}
std::string nvrtc_key() { return cuda_version(false, nvrtc_version); }
std::string nvjitlink_key() { return cuda_version(true, nvjitlink_version); }

Text disassemble_llvm(std::span<const std::byte> image, const Source&, const hal::Arch& arch) {
  return llvm_disassemble(image, target_info(arch));
}

/// Machine code as text, or the PTX it was made from where nothing can take it apart.
Text disassemble_cuda(std::span<const std::byte> image, const Result<std::string>& ptx) {
  auto text = cuda_disassemble(split_image(image).code);
  if (text || text.error().code != Code::kNotFound) return text;
  return fmt::format("// PTX: {}\n", text.error().message) + BM_TRY(Text(ptx));
}

constexpr std::array kBackends = {
    Backend{.name = "LLVM",
            .setting = "LLVM",
            .family = Family::kCpu,
            .render = render_llvm,
            .assemble = assemble_llvm,
            .disassemble = disassemble_llvm},
    Backend{.name = "CLANG",
            .setting = "CLANG",
            .family = Family::kCpu,
            .render = render_c,
            .assemble =
                [](const Source& source, const hal::Arch& arch) {
                  return clang_compile(source.text, target_info(arch));
                },
            .assemble_all =
                [](std::span<const std::string> texts, const hal::Arch& arch) {
                  return clang_compile_all(texts, target_info(arch));
                },
            .disassemble = disassemble_llvm},
    Backend{
        .name = "OPENCL",
        .setting = "OPENCL",
        .family = Family::kOpenCl,
        .render = [](const Program& program, const TargetInfo&) { return render_opencl(program); },
        // The device's driver compiles the text.
        .assemble = [](const Source& source,
                       const hal::Arch&) { return Image(bytes_of(source.text)); },
        .disassemble =
            [](std::span<const std::byte>, const Source&, const hal::Arch&) {
              return Text(
                  "; the device's driver compiles the source: ask the device to disassemble\n");
            }},
    Backend{
        .name = "NVRTC",
        .setting = "NVRTC",
        .family = Family::kNvidia,
        .render = [](const Program& program, const TargetInfo&) { return render_cuda(program); },
        .assemble = assemble_cuda,
        .version = nvrtc_key,
        .disassemble = [](std::span<const std::byte> image, const Source& source,
                          const hal::Arch&) -> Text {
          auto text = cuda_disassemble(split_image(image).code);
          if (text || text.error().code != Code::kNotFound) return text;
          const auto ptx = BM_TRY(nvrtc_compile(source.text, source.cpu, true));
          return Text(fmt::format("// PTX: {}\n", text.error().message) +
                      reinterpret_cast<const char*>(ptx.data()));
        }},
    Backend{.name = "PTX",
            .setting = "PTX",
            .family = Family::kNvidia,
            .render = render_ptx,
            .assemble =
                [](const Source& source, const hal::Arch& arch) {
                  return assemble_ptx(source.text, source.cpu, arch);
                },
            .version = nvjitlink_key,
            .disassemble = [](std::span<const std::byte> image, const Source& source,
                              const hal::Arch&) { return disassemble_cuda(image, source.text); }},
    Backend{.name = "NVPTX",
            .setting = "LLVM",
            .family = Family::kNvidia,
            .limit =
                [](TargetInfo& target) {  // nobody writes these as LLVM IR
                  target.pipe.group_memory_bytes = 0;
                  target.has_bf16_round = target.has_nan_min_max = false;
                  target.has_f16_arithmetic = target.has_bf16_arithmetic = false;
                },
            .render = [](const Program& program,
                         const TargetInfo&) { return render_nvptx(program); },
            .assemble = [](const Source& source, const hal::Arch& arch) -> Image {
              return assemble_ptx(BM_TRY(llvm_ptx(source.text, target_info(arch))), source.cpu,
                                  arch);
            },
            .version = nvjitlink_key,
            .disassemble =
                [](std::span<const std::byte> image, const Source& source, const hal::Arch& arch) {
                  return disassemble_cuda(image, llvm_ptx(source.text, target_info(arch)));
                }},
    Backend{.name = "AMDGPU",
            .setting = "LLVM",
            .family = Family::kAmd,
            .render = render_amdgpu,
            .assemble = assemble_llvm,
            .disassemble = disassemble_llvm},
    Backend{.name = "HIP",
            .setting = "HIP",
            .family = Family::kAmd,
            .limit =
                [](TargetInfo& target) {  // nobody writes them as HIP
                  target.matrix.clear();
                  target.quantised.clear();
                  target.has_shuffles = target.has_segments = target.has_wide_stores = false;
                },
            .render = render_hip,
            .assemble =
                [](const Source& source, const hal::Arch& arch) {
                  return comgr_compile(source.text, target_info(arch));
                },
            .version = [] { return comgr_version().value_or("none"); },
            .disassemble = disassemble_llvm}};

constexpr std::array kDevices = {"the CPU compiler has", "OpenCL devices have",
                                 "NVIDIA devices have", "AMD devices have"};

/// "LLVM and HIP"
std::string settings_of(Family family) {
  std::vector<std::string_view> names;
  for (const Backend& row : kBackends)
    if (row.family == family) names.push_back(row.setting);
  std::string out(names[0]);
  for (size_t i = 1; i < names.size(); ++i)
    out += fmt::format("{}{}", i + 1 == names.size() ? " and " : ", ", names[i]);
  return out;
}

const Backend& row_of(std::string_view name) {
  return *std::ranges::find(kBackends, name, &Backend::name);
}

/// The backend that needs no toolkit, for devices whose driver compiles its text, where NVRTC
/// cannot be used.
const Backend& usable(const Backend& backend, const hal::Arch& arch) {
  if (backend.name != "NVRTC" || !takes_text(arch)) return backend;
  const auto version = nvrtc_version();
  if (version) return backend;
  static std::once_flag once;
  std::call_once(once, [&] {
    log("compiler", LogLevel::kWarning, "{}; kernels come from the PTX renderer instead",
        version.error().message);
  });
  return row_of("PTX");
}

}  // namespace

Family family_of(const hal::Arch& arch) {
  if (arch.vendor == hal::Vendor::kOpenCl) return Family::kOpenCl;
  if (is_cuda(arch)) return Family::kNvidia;
  return is_amd(arch) ? Family::kAmd : Family::kCpu;
}

std::span<const Backend> backends() { return kBackends; }

Result<const Backend*> find_backend(const hal::Arch& arch, std::string_view setting) {
  const Family family = family_of(arch);
  // NULL stands for devices of any architecture, so that its default names no renderer.
  const bool is_any = setting.empty() || (setting == "AUTO" && arch.vendor == hal::Vendor::kNull);
  for (const Backend& row : kBackends)
    if (row.family == family && (is_any || row.setting == setting)) return &usable(row, arch);
  return fail(Code::kUnsupported, "renderer {}: {} {}", setting,
              kDevices[static_cast<size_t>(family)], settings_of(family));
}

TargetInfo target_of(const hal::Arch& arch, const Backend& backend) {
  TargetInfo target = target_info(arch);
  if (backend.limit) backend.limit(target);
  return target;
}

}  // namespace bm::compiler
