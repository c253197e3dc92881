#include "compiler/compile.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "compiler/analysis/static_roofline.h"
#include "compiler/backends.h"
#include "compiler/bundle.h"
#include "compiler/codegen_version.h"
#include "compiler/compile_all.h"
#include "compiler/lowering/lower.h"
#include "compiler/program/checks.h"
#include "compiler/program/numbering.h"
#include "compiler/render/render.h"
#include "compiler/schedules/groups/segments.h"
#include "compiler/schedules/schedule.h"
#include "compiler/schedules/strategy.h"
#include "compiler/targets/card.h"
#include "compiler/targets/target.h"
#include "compiler/toolchain/code_resources.h"
#include "compiler/toolchain/cuda_disassembler.h"
#include "compiler/toolchain/ptxas.h"
#include "compiler/toolchain/toolchain.h"
#include "compiler/tune/tuned.h"
#include "runtime/base/env.h"
#include "runtime/base/paired_image.h"
#ifdef BM_HAS_DISK_CACHE
#include "compiler/cache/disk_cache.h"
#include "compiler/schedules/quantised_gemm/quantised_gemm.h"
#endif

namespace bm::compiler {
namespace {

constexpr std::string_view kCacheKind = "kernel";

/// Programs beyond this size take LLVM more than about 0.1 s; they are lowered again with less
/// unrolling, in this order.
constexpr size_t kMaxValues = 2500;
/// GEMM is worth NVIDIA's assembler a second or two: GELU of a tile of 128×256 takes half of these.
constexpr size_t kMaxMatrixValues = 20000;
constexpr std::array kLimits = {ScheduleLimits{}, ScheduleLimits{.max_accumulators = 32},
                                ScheduleLimits{.max_lanes = 16, .has_tiles = false},
                                ScheduleLimits{.max_lanes = 4, .has_tiles = false},
                                ScheduleLimits{.max_lanes = 1, .has_tiles = false}};

struct Stages {
  Schedule schedule;
  Program program;
  Source source;
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
      program.has_dynamic_shared ? target.pipe.group_memory_bytes : target.shared_memory_bytes;
  if (local_bytes(program) > most)
    return fail(Code::kUnsupported, "kernel {}: {} bytes of shared memory, {} has {}", program.name,
                local_bytes(program), arch.name, most);
  return {};
}

/// Whether kernels check their accesses: text for devices' own compilers has nobody to report to.
bool is_checked(const hal::Arch& arch) {
  return settings().checked && arch.vendor == hal::Vendor::kCpu;
}

Result<Stages> generate(const ir::KernelIr& kernel, const hal::Arch& arch, const Backend& backend,
                        const Knobs& knobs = {}) {
  const TargetInfo target = target_of(arch, backend);
  Stages s;
  for (ScheduleLimits limits : kLimits) {
    limits.knobs = knobs.empty() ? nullptr : &knobs;
    const bool is_dequantised = s.schedule.quantised() && s.schedule.quantised()->dequantised;
    const bool has_accumulators = s.schedule.matrix() || s.schedule.implicit() || is_dequantised;
    const bool is_same =
        limits.max_accumulators < ScheduleLimits{}.max_accumulators && !has_accumulators;
    if (is_same && !s.program.values.empty()) continue;
    s.schedule = make_schedule(kernel, target, arch.units, limits);
    s.program = BM_TRY(lower(kernel, s.schedule, target));
    // Without its tiles attention would compute every logit many times.
    const bool is_gemm = s.schedule.matrix() || s.schedule.quantised() || s.schedule.implicit();
    if (s.schedule.group_attention() ||
        s.program.values.size() <= (is_gemm ? kMaxMatrixValues : kMaxValues))
      break;
  }
  BM_TRY(check_program(s.program, target, arch));
  if (is_checked(arch)) {
    insert_checks(s.program, !s.schedule.row_caches.empty());
    BM_TRY(verify(s.program));
  }
  number_values(s.program);
  s.source = {.text = backend.render(s.program, target),
              .cpu = std::string(cuda_target(s.program, target))};
  return s;
}

hal::CodeObject describe(const ir::KernelIr& kernel, const hal::Arch& arch,
                         const Schedule& schedule, uint64_t shared_memory_bytes = 0,
                         uint64_t scratch_bytes = 0) {
  hal::CodeObject code;
  code.entry = kernel.name;
  code.arch = arch.name;
  code.num_buffers = static_cast<uint32_t>(kernel.params.size());
  code.num_vars = static_cast<uint32_t>(kernel.vars.size());
  code.grid = schedule.grid;
  code.block.x = std::max(schedule.block, 1u);
  code.shared_memory_bytes = static_cast<uint32_t>(shared_memory_bytes);
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

std::string cache_key(const ir::KernelIr& kernel, const hal::Arch& arch, const Backend& backend) {
  return fmt::format("{}\n{}\n{}{}{}\n{}\n{}", BM_CODEGEN_VERSION, arch.key(), backend.name,
                     backend.version ? backend.version() : "", is_checked(arch) ? " checked" : "",
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

/// A kernel on its way: its code, or what that is made from.
struct Draft {
  const ir::KernelIr* kernel = nullptr;
  const Backend* backend = nullptr;
  std::optional<hal::CodeObject> code;
  Stages stages;
  std::string key;  ///< in the disk cache; empty: not to be kept
};

Result<Draft> begin(const ir::KernelIr& kernel, const hal::Arch& arch, std::string_view wanted,
                    const CompileOptions& options) {
  BM_TRY(check_arch(arch));
  Draft draft{.kernel = &kernel, .backend = nullptr, .code = {}, .stages = {}, .key = {}};
  if (arch.vendor == hal::Vendor::kNull) {
    const Backend& backend = *BM_TRY(find_backend(arch, wanted));
    draft.code =
        describe(kernel, arch, make_schedule(kernel, target_of(arch, backend), arch.units));
    return draft;
  }
  if (options.use_cache && !settings().checked)
    if ((draft.code = BM_TRY(find_in_bundles(kernel, arch)))) return draft;
  const Backend& backend = *BM_TRY(find_backend(arch, wanted));
  draft.backend = &backend;
  const bool is_printing = settings().debug >= 4;
  Knobs knobs = options.knobs ? *options.knobs : Knobs{};
  if (options.use_cache) {
    draft.key = cache_key(kernel, arch, backend);
    if (const auto tuned = options.knobs ? std::nullopt : find_tuned(id_of(draft.key)))
      knobs = tuned->knobs;
    if (!knobs.empty()) draft.key += "\n" + knobs.text();
    if ((draft.code = is_printing ? std::nullopt : cached(draft.key))) return draft;
  }
  draft.stages = BM_TRY(generate(kernel, arch, backend, knobs));
  if (options.watcher) options.watcher->see(draft.stages.schedule, draft.stages.program);
  if (is_printing) std::fprintf(stderr, "%s\n", draft.stages.source.text.c_str());
  return draft;
}

Result<hal::CodeObject> finish(const Draft& draft, const hal::Arch& arch,
                               Result<std::vector<std::byte>> image) {
  const ir::KernelIr& kernel = *draft.kernel;
  const Program& program = draft.stages.program;
  const uint64_t bytes = local_bytes(program);
  const uint64_t declared = program.has_dynamic_shared ? 0 : bytes;
  hal::CodeObject code =
      describe(kernel, arch, draft.stages.schedule, declared, scratch_bytes(program));
  code.launch_memory_bytes = static_cast<uint32_t>(bytes - declared);
  if (!image && image.error().code == Code::kNotFound && !settings().bundle.empty())
    image = tl::unexpected(
        std::move(image.error()).within(fmt::format("not in {}", settings().bundle)));
  if (!image)
    return tl::unexpected(std::move(image.error()).within(fmt::format("kernel {}", kernel.name)));
  code.image = std::move(*image);
  if (!draft.key.empty()) remember(draft.key, code);
  return code;
}

}  // namespace

bool would_fuse(const ir::KernelIr& kernel, const hal::Arch& arch, std::string_view renderer) {
  const auto backend = find_backend(arch, renderer);
  if (!backend) return false;
  const TargetInfo target = target_of(arch, **backend);
  return std::ranges::any_of(strategies(), [&](const Strategy& row) {
    return row.fuses_reductions && row.has_groups == target.has_groups &&
           row.match(kernel, target, arch.units, {});
  });
}

std::optional<SplitAttention> split_attention(const ir::KernelIr& kernel, const hal::Arch& arch,
                                              std::string_view renderer) {
  const auto backend = find_backend(arch, renderer);
  if (!backend) return std::nullopt;
  return split_attention(kernel, target_of(arch, **backend), arch.units);
}

bool would_share_segments(const ir::KernelIr& kernel, const hal::Arch& arch,
                          std::string_view renderer) {
  const auto backend = find_backend(arch, renderer);
  return backend && has_segments_only(kernel, target_of(arch, **backend));
}

Result<std::string> schedule_id(const ir::KernelIr& kernel, const hal::Arch& arch,
                                std::string_view wanted) {
  BM_TRY(check_arch(arch));
  if (arch.vendor == hal::Vendor::kNull)
    return fail(Code::kUnsupported, "kernel {}: nothing runs on {}", kernel.name, arch.name);
  return id_of(cache_key(kernel, arch, *BM_TRY(find_backend(arch, wanted))));
}

Result<hal::CodeObject> compile(const ir::KernelIr& kernel, const hal::Arch& arch,
                                std::string_view wanted, CompileOptions options) {
  Draft draft = BM_TRY(begin(kernel, arch, wanted, options));
  if (draft.code) return std::move(*draft.code);
  return finish(draft, arch, draft.backend->assemble(draft.stages.source, arch));
}

size_t most_together(const hal::Arch& arch, std::string_view renderer) {
  // A start is half of what a kernel takes then: 16 of them leave little of it.
  constexpr size_t kMost = 16;
  const auto backend = find_backend(arch, renderer);
  return backend && (*backend)->assemble_all != nullptr ? kMost : 1;
}

std::vector<Result<hal::CodeObject>> compile_all(std::span<const ir::KernelIr* const> kernels,
                                                 const hal::Arch& arch, std::string_view renderer) {
  std::vector<Result<Draft>> drafts;
  std::vector<std::string> texts;
  const auto is_open = [](const Result<Draft>& draft) { return draft && !draft->code; };
  for (const ir::KernelIr* kernel : kernels) {
    drafts.push_back(begin(*kernel, arch, renderer, {}));
    if (is_open(drafts.back())) texts.push_back(drafts.back()->stages.source.text);
  }
  std::vector<std::vector<std::byte>> images;
  const auto backend = find_backend(arch, renderer);
  if (texts.size() > 1 && backend && (*backend)->assemble_all != nullptr)
    // Whatever is wrong with them together is said one by one, by whom it concerns.
    images = (*backend)->assemble_all(texts, arch).value_or(decltype(images){});
  std::vector<Result<hal::CodeObject>> codes;
  size_t next = 0;
  for (Result<Draft>& draft : drafts) {
    if (!draft)
      codes.emplace_back(tl::unexpected<Error>(std::move(draft.error())));
    else if (draft->code)
      codes.emplace_back(std::move(*draft->code));
    else if (next < images.size())
      codes.push_back(finish(*draft, arch, std::move(images[next++])));
    else
      codes.push_back(finish(*draft, arch, draft->backend->assemble(draft->stages.source, arch)));
  }
  return codes;
}

namespace {

/// What NULL stands for: code is made for that.
hal::Arch as_card(hal::Arch arch) {
  if (arch.vendor == hal::Vendor::kNull)
    arch.vendor = is_cuda(arch)  ? hal::Vendor::kNv
                  : is_amd(arch) ? hal::Vendor::kAmd
                                 : hal::Vendor::kCpu;
  return arch;
}

/// PTX images end in NUL.
std::string_view as_ptx(std::span<const std::byte> image) {
  const std::string_view text(reinterpret_cast<const char*>(image.data()), image.size());
  return text.substr(0, text.find('\0'));
}

/// Machine code as text, and what it asks for.
Status explain_code(const Backend& backend, const Stages& stages, const hal::Arch& arch,
                    const std::string& entry, Explained* out) {
  std::vector<std::byte> object = BM_TRY(backend.assemble(stages.source, arch));
  std::string missing;
  if (const bool is_elf = !object.empty() && object[0] == std::byte{0x7f};
      is_cuda(arch) && !is_elf && settings().nv_code != "ptx") {
    // nvJitLink is not there; what devices get as text may still be shown as machine code.
    auto cubin = ptxas_assemble(as_ptx(object), stages.source.cpu);
    if (cubin)
      object = std::move(*cubin);
    else if (cubin.error().code == Code::kNotFound)
      missing = fmt::format("// PTX: {}\n", cubin.error().message);
    else
      return tl::unexpected(std::move(cubin.error()));
  }
  out->assembly = missing + BM_TRY(backend.disassemble(object, stages.source, arch));
  // PTX text and code of CPUs have none.
  if (auto found = read_resources(split_image(object).code, entry))
    out->resources = *found;
  else if (found.error().code != Code::kUnsupported)
    return tl::unexpected(std::move(found.error()));
  return {};
}

}  // namespace

Result<Explained> explain(const ir::KernelIr& kernel, const hal::Arch& arch,
                          std::string_view wanted, std::span<const int64_t> vars) {
  BM_TRY(check_arch(arch));
  const Backend& backend = *BM_TRY(find_backend(arch, wanted));
  const Stages stages = BM_TRY(generate(kernel, arch, backend));
  Explained out{.ir = ir::to_string(kernel),
                .schedule = to_string(stages.schedule),
                .lowered = to_string(stages.program),
                .source = stages.source.text,
                .assembly = {},
                .block = std::max(stages.schedule.block, 1u),
                .shared_bytes = local_bytes(stages.program),
                .count = {},
                .resources = {},
                .occupancy = {}};
  const TargetInfo target = target_of(arch, backend);
  if (target.has_groups) out.count = count_program(stages.program, stages.schedule, target, vars);
  Status made = explain_code(backend, stages, as_card(arch), kernel.name, &out);
  if (!made) {
    // Whoever has no card may have no toolchain either.
    if (arch.vendor != hal::Vendor::kNull || made.error().code != Code::kNotFound)
      return tl::unexpected(std::move(made.error()));
    out.assembly = fmt::format("; no machine code: {}\n", made.error().message);
  }
  if (const CardInfo* card = find_card(arch.name); card != nullptr && out.resources)
    out.occupancy = occupancy(target, *card, out.block, out.resources->registers, out.shared_bytes);
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
