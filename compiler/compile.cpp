#include "compiler/compile.h"

#include <array>
#include <cstdio>

#include <fmt/format.h>

#include "compiler/codegen/lower.h"
#include "compiler/codegen/target.h"
#include "compiler/opt/schedule.h"
#include "compiler/render/render.h"
#include "compiler/toolchain/toolchain.h"
#include "runtime/base/env.h"
#ifdef BM_HAS_DISK_CACHE
#include "compiler/cache/disk_cache.h"
#endif

namespace bm::compiler {
namespace {

/// Raise whenever the same kernel would be compiled to different code.
constexpr int kCodegenVersion = 1;
constexpr std::string_view kCacheKind = "kernel";

/// Programs beyond this size take LLVM more than about 0.1 s; they are lowered again with less
/// unrolling, in this order.
constexpr size_t kMaxValues = 2500;
constexpr std::array kLimits = {ScheduleLimits{},
                                ScheduleLimits{.max_lanes = 16, .has_tiles = false},
                                ScheduleLimits{.max_lanes = 4, .has_tiles = false},
                                ScheduleLimits{.max_lanes = 1, .has_tiles = false}};

enum class Renderer : uint8_t { kLlvm, kClang };

Result<Renderer> renderer_from_name(std::string_view name) {
  if (name.empty() || name == "LLVM") return Renderer::kLlvm;
  if (name == "CLANG") return Renderer::kClang;
  return fail(Code::kUnsupported, "renderer {}: the CPU compiler has LLVM and CLANG", name);
}

struct Stages {
  Schedule schedule;
  Program program;
  std::string source;
};

Result<Stages> generate(const ir::KernelIr& kernel, const hal::Arch& arch, Renderer renderer) {
  const TargetInfo target = target_info(arch);
  Stages s;
  for (const ScheduleLimits& limits : kLimits) {
    s.schedule = make_schedule(kernel, target, arch.units, limits);
    s.program = BM_TRY(lower(kernel, s.schedule, target));
    if (s.program.values.size() <= kMaxValues) break;
  }
  s.source =
      renderer == Renderer::kLlvm ? render_llvm(s.program, target) : render_c(s.program, target);
  return s;
}

Result<std::vector<std::byte>> assemble(const std::string& source, const hal::Arch& arch,
                                        Renderer renderer) {
  const TargetInfo target = target_info(arch);
  return renderer == Renderer::kLlvm ? llvm_compile(source, target) : clang_compile(source, target);
}

hal::CodeObject describe(const ir::KernelIr& kernel, const hal::Arch& arch,
                         const Schedule& schedule) {
  hal::CodeObject code;
  code.entry = kernel.name;
  code.arch = arch.name;
  code.num_buffers = static_cast<uint32_t>(kernel.params.size());
  code.num_vars = static_cast<uint32_t>(kernel.vars.size());
  code.grid[0] = schedule.grid;
  code.work_per_block = schedule.work_per_block;
  return code;
}

Status check_arch(const hal::Arch& arch) {
  switch (arch.vendor) {
    case hal::Vendor::kCpu:
    case hal::Vendor::kNull: return {};
    case hal::Vendor::kRef:
    case hal::Vendor::kAmd:
    case hal::Vendor::kNv:
    case hal::Vendor::kOpenCl: break;
  }
  return fail(Code::kUnsupported, "architecture {}: code is generated for CPU and NULL", arch.name);
}

/// The version of LLVM or clang is left out on purpose: an object of an older one is as right, and
/// a start from a full cache must not need a compiler at all.
std::string cache_key(const ir::KernelIr& kernel, const hal::Arch& arch, Renderer renderer) {
  return fmt::format("{}\n{}\n{}\n{}\n{}", kCodegenVersion, arch.key(),
                     renderer == Renderer::kLlvm ? "LLVM" : "CLANG", kernel.name,
                     ir::serialize(kernel));
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

Result<hal::CodeObject> compile(const ir::KernelIr& kernel, const hal::Arch& arch,
                                std::string_view renderer_name, CompileOptions options) {
  BM_TRY(check_arch(arch));
  if (arch.vendor == hal::Vendor::kNull)
    return describe(kernel, arch, make_schedule(kernel, target_info(arch), arch.units));
  const Renderer renderer = BM_TRY(renderer_from_name(renderer_name));
  const bool is_printing = settings().debug >= 4;
  std::string key;
  if (options.use_cache) {
    key = cache_key(kernel, arch, renderer);
    if (auto hit = is_printing ? std::nullopt : cached(key)) return std::move(*hit);
  }
  const Stages stages = BM_TRY(generate(kernel, arch, renderer));
  if (is_printing) std::fprintf(stderr, "%s\n", stages.source.c_str());
  hal::CodeObject code = describe(kernel, arch, stages.schedule);
  auto image = assemble(stages.source, arch, renderer);
  if (!image)
    return tl::unexpected(std::move(image.error()).within(fmt::format("kernel {}", kernel.name)));
  code.image = std::move(*image);
  if (options.use_cache) remember(key, code);
  return code;
}

Result<Explained> explain(const ir::KernelIr& kernel, const hal::Arch& arch,
                          std::string_view renderer_name) {
  BM_TRY(check_arch(arch));
  const Renderer renderer = BM_TRY(renderer_from_name(renderer_name));
  Stages stages = BM_TRY(generate(kernel, arch, renderer));
  Explained out{.ir = ir::to_string(kernel),
                .lowered = to_string(stages.program),
                .source = std::move(stages.source),
                .assembly = {}};
  if (arch.vendor == hal::Vendor::kNull) return out;
  const std::vector<std::byte> object = BM_TRY(assemble(out.source, arch, renderer));
  out.assembly = BM_TRY(llvm_disassemble(object, target_info(arch)));
  return out;
}

Result<std::string> disassemble(const hal::CodeObject& code, const hal::Arch& arch) {
  return llvm_disassemble(code.image, target_info(arch));
}

}  // namespace bm::compiler
