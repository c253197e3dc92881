#include "compiler/compile.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <mutex>

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "compiler/bundle.h"
#include "compiler/codegen_version.h"
#include "compiler/program/checks.h"
#include "compiler/lowering/lower.h"
#include "compiler/targets/target.h"
#include "compiler/schedules/attention/attention_plan.h"
#include "compiler/schedules/schedule.h"
#include "compiler/render/render.h"
#include "compiler/toolchain/comgr.h"
#include "compiler/toolchain/cuda_disassembler.h"
#include "compiler/toolchain/nvjitlink.h"
#include "compiler/toolchain/nvrtc.h"
#include "compiler/toolchain/toolchain.h"
#include "compiler/tune/tuned.h"
#include "runtime/base/env.h"
#include "runtime/base/log.h"
#include "runtime/base/paired_image.h"
#ifdef BM_HAS_DISK_CACHE
#include "compiler/cache/disk_cache.h"
#endif

namespace bm::compiler {
namespace {

constexpr std::string_view kCacheKind = "kernel";

/// Programs beyond this size take LLVM more than about 0.1 s; they are lowered again with less
/// unrolling, in this order.
constexpr size_t kMaxValues = 2500;
/// Products of matrices are worth NVIDIA's assembler a second.
constexpr size_t kMaxMatrixValues = 6000;
constexpr std::array kLimits = {ScheduleLimits{}, ScheduleLimits{.max_sums = 32},
                                ScheduleLimits{.max_lanes = 16, .has_tiles = false},
                                ScheduleLimits{.max_lanes = 4, .has_tiles = false},
                                ScheduleLimits{.max_lanes = 1, .has_tiles = false}};

enum class Renderer : uint8_t { kLlvm, kClang, kOpenCl, kNvrtc, kPtx, kNvptx, kAmdgpu, kHip };

Result<Renderer> choose_renderer(const hal::Arch& arch, std::string_view name) {
  if (arch.vendor == hal::Vendor::kOpenCl) {
    if (name.empty() || name == "OPENCL") return Renderer::kOpenCl;
    return fail(Code::kUnsupported, "renderer {}: OpenCL devices have OPENCL", name);
  }
  if (is_cuda(arch)) {
    if (name == "PTX") return Renderer::kPtx;
    if (name == "LLVM" && arch.vendor != hal::Vendor::kNull) return Renderer::kNvptx;
    // NULL gives its devices the CPU's names.
    if (name.empty() || name == "NVRTC" || arch.vendor == hal::Vendor::kNull)
      return Renderer::kNvrtc;
    return fail(Code::kUnsupported, "renderer {}: NVIDIA devices have NVRTC, PTX and LLVM", name);
  }
  if (is_amd(arch)) {
    // NULL gives its devices the CPU's names.
    if (name.empty() || name == "LLVM" || arch.vendor == hal::Vendor::kNull)
      return Renderer::kAmdgpu;
    if (name == "HIP") return Renderer::kHip;
    return fail(Code::kUnsupported, "renderer {}: AMD devices have LLVM and HIP", name);
  }
  if (name.empty() || name == "LLVM") return Renderer::kLlvm;
  if (name == "CLANG") return Renderer::kClang;
  return fail(Code::kUnsupported, "renderer {}: the CPU compiler has LLVM and CLANG", name);
}

/// Whether the device's driver compiles PTX itself: then the text goes behind the machine code, in
/// case the driver is too old for the latter.
bool takes_text(const hal::Arch& arch) { return arch.features == "ptx"; }

/// The renderer that needs no toolkit, for devices whose driver compiles its text, where NVRTC
/// cannot be used.
Renderer usable(Renderer renderer, const hal::Arch& arch) {
  if (renderer != Renderer::kNvrtc || !takes_text(arch)) return renderer;
  const auto version = nvrtc_version();
  if (version) return renderer;
  static std::once_flag once;
  std::call_once(once, [&] {
    log("compiler", LogLevel::kWarning, "{}; kernels come from the PTX renderer instead",
        version.error().message);
  });
  return Renderer::kPtx;
}

std::string_view renderer_name(Renderer renderer) {
  switch (renderer) {
    case Renderer::kLlvm: return "LLVM";
    case Renderer::kClang: return "CLANG";
    case Renderer::kOpenCl: return "OPENCL";
    case Renderer::kNvrtc: return "NVRTC";
    case Renderer::kPtx: return "PTX";
    case Renderer::kNvptx: return "NVPTX";
    case Renderer::kAmdgpu: return "AMDGPU";
    case Renderer::kHip: return "HIP";
  }
  __builtin_unreachable();
}

struct Stages {
  Schedule schedule;
  Program program;
  std::string source;
  std::string cpu;  ///< what a CUDA program is made for
};

/// What the architecture lacks although the program needs it.
Status check_program(const Program& program, const TargetInfo& target, const hal::Arch& arch) {
  const auto is_f64 = [](const auto& of) { return of.dtype == DType::kF64; };
  const bool needs_f64 = std::any_of(program.params.begin(), program.params.end(), is_f64) ||
                         std::any_of(program.values.begin(), program.values.end(),
                                     [&](const Value& v) { return is_f64(v.type); });
  if (needs_f64 && !target.has_f64)
    return fail(Code::kUnsupported, "kernel {}: {} has no {}", program.name, arch.name,
                dtype_name(DType::kF64));
  const uint32_t most =
      program.has_launch_locals ? target.pipe.group_memory_bytes : target.local_memory_bytes;
  if (local_bytes(program) > most)
    return fail(Code::kUnsupported, "kernel {}: {} bytes of local memory, {} has {}", program.name,
                local_bytes(program), arch.name, most);
  return {};
}

std::string render(const Program& program, const TargetInfo& target, Renderer renderer) {
  switch (renderer) {
    case Renderer::kLlvm: return render_llvm(program, target);
    case Renderer::kClang: return render_c(program, target);
    case Renderer::kOpenCl: return render_opencl(program);
    case Renderer::kNvrtc: return render_cuda(program);
    case Renderer::kPtx: return render_ptx(program, target);
    case Renderer::kNvptx: return render_nvptx(program);
    case Renderer::kAmdgpu: return render_amdgpu(program, target);
    case Renderer::kHip: return render_hip(program, target);
  }
  __builtin_unreachable();
}

/// Whether kernels check their accesses: text for devices' own compilers has nobody to report to.
bool is_checked(const hal::Arch& arch) {
  return settings().checked && arch.vendor == hal::Vendor::kCpu;
}

/// What `renderer` can write for `arch`.
TargetInfo target_of(const hal::Arch& arch, Renderer renderer) {
  TargetInfo target = target_info(arch);
  if (renderer == Renderer::kHip) target.matrix.clear();  // nobody writes them as HIP
  if (renderer == Renderer::kNvptx) {                     // nor these as LLVM IR
    target.pipe.group_memory_bytes = 0;
    target.has_bf16_round = target.has_extremes = false;
    target.has_f16_arithmetic = target.has_bf16_arithmetic = false;
  }
  return target;
}

Result<Stages> generate(const ir::KernelIr& kernel, const hal::Arch& arch, Renderer renderer,
                        const Knobs& knobs = {}) {
  const TargetInfo target = target_of(arch, renderer);
  Stages s;
  for (ScheduleLimits limits : kLimits) {
    limits.knobs = knobs.empty() ? nullptr : &knobs;
    const bool is_same = limits.max_sums < ScheduleLimits{}.max_sums && !s.schedule.matrix();
    if (is_same && !s.program.values.empty()) continue;
    s.schedule = make_schedule(kernel, target, arch.units, limits);
    s.program = BM_TRY(lower(kernel, s.schedule, target));
    // Without its tiles attention would make every score many times.
    if (s.schedule.group_attention() ||
        s.program.values.size() <= (s.schedule.matrix() ? kMaxMatrixValues : kMaxValues))
      break;
  }
  BM_TRY(check_program(s.program, target, arch));
  if (is_checked(arch)) {
    insert_checks(s.program, !s.schedule.stages.empty());
    BM_TRY(verify(s.program));
  }
  s.source = render(s.program, target, renderer);
  s.cpu = cuda_target(s.program, target);
  return s;
}

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// Whether devices are handed PTX text instead of machine code.
bool wants_ptx() { return settings().nv_code == "ptx"; }

/// PTX stays text, ending in NUL, where that is wanted or nothing can assemble it.
Result<std::vector<std::byte>> assemble_ptx(const std::string& ptx, const std::string& cpu,
                                            const hal::Arch& arch) {
  if (!wants_ptx()) {
    auto cubin = nvjitlink_assemble(ptx, cpu);
    if (cubin && takes_text(arch)) return pair_image(*cubin, ptx);
    if (cubin || cubin.error().code != Code::kNotFound) return cubin;
  }
  return bytes_of({ptx.c_str(), ptx.size() + 1});
}

Result<std::vector<std::byte>> assemble_cuda(const Stages& stages, const hal::Arch& arch) {
  std::string ptx;
  const bool is_pair = takes_text(arch) && !wants_ptx();
  auto image =
      BM_TRY(nvrtc_compile(stages.source, stages.cpu, wants_ptx(), is_pair ? &ptx : nullptr));
  return ptx.empty() ? std::move(image) : pair_image(image, ptx);
}

Result<std::vector<std::byte>> assemble(const Stages& stages, const hal::Arch& arch,
                                        Renderer renderer) {
  const std::string& source = stages.source;
  switch (renderer) {
    case Renderer::kLlvm:
    case Renderer::kAmdgpu: return llvm_compile(source, target_info(arch));
    case Renderer::kHip: return comgr_compile(source, target_info(arch));
    case Renderer::kClang: return clang_compile(source, target_info(arch));
    case Renderer::kOpenCl: return bytes_of(source);  // the device's driver compiles the text
    case Renderer::kNvrtc: return assemble_cuda(stages, arch);
    case Renderer::kPtx: return assemble_ptx(source, stages.cpu, arch);
    case Renderer::kNvptx:
      return assemble_ptx(BM_TRY(llvm_ptx(source, target_info(arch))), stages.cpu, arch);
  }
  __builtin_unreachable();
}

hal::CodeObject describe(const ir::KernelIr& kernel, const hal::Arch& arch,
                         const Schedule& schedule, uint64_t local_memory_bytes = 0,
                         uint64_t scratch_bytes = 0) {
  hal::CodeObject code;
  code.entry = kernel.name;
  code.arch = arch.name;
  code.num_buffers = static_cast<uint32_t>(kernel.params.size());
  code.num_vars = static_cast<uint32_t>(kernel.vars.size());
  code.grid = schedule.grid;
  code.block.x = std::max(schedule.block, 1u);
  code.local_memory_bytes = static_cast<uint32_t>(local_memory_bytes);
  code.scratch_bytes = scratch_bytes;
  code.work_per_block = schedule.work_per_block;
  return code;
}

Status check_arch(const hal::Arch& arch) {
  if (is_amd(arch)) return check_amd(arch);
  switch (arch.vendor) {
    case hal::Vendor::kCpu:
    case hal::Vendor::kNull:
    case hal::Vendor::kNv:
    case hal::Vendor::kOpenCl: return {};
    case hal::Vendor::kRef:
    case hal::Vendor::kAmd: break;
  }
  return fail(Code::kUnsupported,
              "architecture {}: code is generated for CPU, CL, NV, AMD and NULL", arch.name);
}

/// What of a CUDA toolkit and of settings the code depends on. Mixed toolkits have given programs
/// that a driver refuses, so their versions count.
std::string toolkit(Renderer renderer) {
  if (renderer == Renderer::kHip) return comgr_version().value_or("none");
  if (renderer != Renderer::kNvrtc && renderer != Renderer::kPtx && renderer != Renderer::kNvptx)
    return "";
  std::string code = wants_ptx() ? "ptx" : "cubin";
  if (settings().allow_tf32) code += " tf32";
  if (!settings().nv_wgmma) code += " no wgmma";
  if (renderer != Renderer::kNvrtc && wants_ptx()) return code;
  const auto version = renderer == Renderer::kNvrtc ? nvrtc_version() : nvjitlink_version();
  return code + " " + version.value_or("none");
}

/// The version of LLVM or clang is left out on purpose: an object of an older one is as right, and
/// a start from a full cache must not need a compiler at all.
std::string cache_key(const ir::KernelIr& kernel, const hal::Arch& arch, Renderer renderer) {
  return fmt::format("{}\n{}\n{}{}{}\n{}\n{}", BM_CODEGEN_VERSION, arch.key(),
                     renderer_name(renderer), toolkit(renderer), is_checked(arch) ? " checked" : "",
                     kernel.name, ir::serialize(kernel));
}

std::string id_of(const std::string& key) {
  const XXH128_hash_t hash = XXH3_128bits(key.data(), key.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

#ifdef BM_HAS_DISK_CACHE
std::optional<hal::CodeObject> cached(const std::string& key) {
  auto blob = DiskCache::instance().get(kCacheKind, key);
  if (!blob || !*blob) return std::nullopt;
  auto code = hal::CodeObject::deserialize(**blob);
  if (!code) return std::nullopt;
  return std::move(*code);
}

void remember(const std::string& key, const hal::CodeObject& code) {
  // A blob that cannot be stored is compiled again next time.
  (void)DiskCache::instance().put(kCacheKind, key, code.serialize());
}
#else
std::optional<hal::CodeObject> cached(const std::string&) { return std::nullopt; }
void remember(const std::string&, const hal::CodeObject&) {}
#endif

}  // namespace

bool has_tiled_attention(const hal::Arch& arch, std::string_view renderer) {
  const auto chosen = choose_renderer(arch, renderer);
  return chosen && has_group_attention(target_of(arch, usable(*chosen, arch)));
}

bool is_tiled_attention(const ir::KernelIr& kernel, const hal::Arch& arch,
                        std::string_view renderer) {
  const auto chosen = choose_renderer(arch, renderer);
  if (!chosen) return false;
  const TargetInfo target = target_of(arch, usable(*chosen, arch));
  return make_group_attention_schedule(kernel, target, arch.units).has_value();
}

Result<std::string> schedule_id(const ir::KernelIr& kernel, const hal::Arch& arch,
                                std::string_view wanted) {
  BM_TRY(check_arch(arch));
  if (arch.vendor == hal::Vendor::kNull)
    return fail(Code::kUnsupported, "kernel {}: nothing runs on {}", kernel.name, arch.name);
  return id_of(cache_key(kernel, arch, usable(BM_TRY(choose_renderer(arch, wanted)), arch)));
}

Result<hal::CodeObject> compile(const ir::KernelIr& kernel, const hal::Arch& arch,
                                std::string_view wanted, CompileOptions options) {
  BM_TRY(check_arch(arch));
  if (arch.vendor == hal::Vendor::kNull)
    return describe(kernel, arch, make_schedule(kernel, target_info(arch), arch.units));
  if (options.use_cache && !settings().checked)
    if (auto ready = BM_TRY(find_in_bundles(kernel, arch))) return std::move(*ready);
  const Renderer renderer = usable(BM_TRY(choose_renderer(arch, wanted)), arch);
  const bool is_printing = settings().debug >= 4;
  std::string key;
  Knobs knobs = options.knobs ? *options.knobs : Knobs{};
  if (options.use_cache) {
    key = cache_key(kernel, arch, renderer);
    if (const auto tuned = options.knobs ? std::nullopt : find_tuned(id_of(key)))
      knobs = tuned->knobs;
    if (!knobs.empty()) key += "\n" + knobs.text();
    if (auto hit = is_printing ? std::nullopt : cached(key)) return std::move(*hit);
  }
  const Stages stages = BM_TRY(generate(kernel, arch, renderer, knobs));
  if (options.watcher) options.watcher->see(stages.schedule, stages.program);
  if (is_printing) std::fprintf(stderr, "%s\n", stages.source.c_str());
  const uint64_t bytes = local_bytes(stages.program);
  const uint64_t declared = stages.program.has_launch_locals ? 0 : bytes;
  hal::CodeObject code =
      describe(kernel, arch, stages.schedule, declared, scratch_bytes(stages.program));
  code.launch_memory_bytes = static_cast<uint32_t>(bytes - declared);
  auto image = assemble(stages, arch, renderer);
  if (!image && image.error().code == Code::kNotFound && !settings().bundle.empty())
    image = tl::unexpected(
        std::move(image.error()).within(fmt::format("not in {}", settings().bundle)));
  if (!image)
    return tl::unexpected(std::move(image.error()).within(fmt::format("kernel {}", kernel.name)));
  code.image = std::move(*image);
  if (options.use_cache) remember(key, code);
  return code;
}

namespace {

/// Machine code as text, or what it was made from where nothing can take it apart.
Result<std::string> cuda_assembly(std::span<const std::byte> image, const Stages& stages,
                                  const hal::Arch& arch, Renderer renderer) {
  const std::string& source = stages.source;
  auto text = cuda_disassemble(image);
  if (text || text.error().code != Code::kNotFound) return text;
  const std::string note = fmt::format("// PTX: {}\n", text.error().message);
  if (renderer == Renderer::kPtx) return note + source;
  if (renderer == Renderer::kNvptx) return note + BM_TRY(llvm_ptx(source, target_info(arch)));
  const auto ptx = BM_TRY(nvrtc_compile(source, stages.cpu, true));
  return note + reinterpret_cast<const char*>(ptx.data());
}

}  // namespace

Result<Explained> explain(const ir::KernelIr& kernel, const hal::Arch& arch,
                          std::string_view wanted) {
  BM_TRY(check_arch(arch));
  const Renderer renderer = usable(BM_TRY(choose_renderer(arch, wanted)), arch);
  const Stages stages = BM_TRY(generate(kernel, arch, renderer));
  Explained out{.ir = ir::to_string(kernel),
                .schedule = to_string(stages.schedule),
                .lowered = to_string(stages.program),
                .source = stages.source,
                .assembly = {}};
  if (arch.vendor == hal::Vendor::kNull) return out;
  if (renderer == Renderer::kOpenCl) {
    out.assembly = "; the device's driver compiles the source: ask the device to disassemble\n";
    return out;
  }
  const std::vector<std::byte> object = BM_TRY(assemble(stages, arch, renderer));
  if (is_cuda(arch))
    out.assembly = BM_TRY(cuda_assembly(split_image(object).code, stages, arch, renderer));
  else
    out.assembly = BM_TRY(llvm_disassemble(object, target_info(arch)));
  return out;
}

Result<std::string> disassemble(const hal::CodeObject& code, const hal::Arch& arch) {
  if (arch.vendor == hal::Vendor::kOpenCl)
    return fail(Code::kUnsupported, "kernel {}: source text; the device can disassemble it",
                code.entry);
  if (is_cuda(arch)) return cuda_disassemble(split_image(code.image).code);
  return llvm_disassemble(code.image, target_info(arch));
}

}  // namespace bm::compiler
