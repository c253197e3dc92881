#include "tests/unit/compiler/runner.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <vector>

#include "compiler/targets/target.h"
#include "compiler/toolchain/nvrtc.h"
#include "compiler/toolchain/toolchain.h"
#include "drivers/cpu/cpu_info.h"
#include "runtime/base/check.h"
#include "runtime/base/env.h"
#include "tests/unit/compiler/amd_runner.h"
#include "tests/unit/compiler/cl_runner.h"
#include "tests/unit/compiler/ptx_runner.h"

namespace bm::test {

hal::Arch native_arch() {
  auto arch = cpu::make_arch("native");
  BM_CHECK(arch.has_value());
  arch->units = 2;
  return *arch;
}

hal::Arch baseline_arch() {
  hal::Arch arch;
  arch.name = "x86_64";
  return arch;
}

hal::Arch varied(hal::Arch arch, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](std::initializer_list<uint64_t> list) {
    return list.begin()[random() % list.size()];
  };
  arch.l1_bytes = pick({1 << 10, 4 << 10, 32 << 10, 48 << 10});
  arch.l2_bytes = pick({2 << 10, 16 << 10, 512 << 10, 2 << 20});
  arch.llc_bytes = pick({4 << 10, 64 << 10, 8 << 20, 256 << 20});
  arch.vector_bits =
      static_cast<uint32_t>(std::min<uint64_t>(pick({128, 256, 512}), arch.vector_bits));
  arch.units = static_cast<uint32_t>(pick({1, 2, 3, 16, 96}));
  // A maker whose dot products of bfloat16 are fast.
  if (arch.features.find("+avx512bf16") != std::string::npos && pick({0, 1})) arch.cpu = "znver4";
  return arch;
}

GuardedBuffers::GuardedBuffers(std::span<const std::vector<std::byte>> contents) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (const std::vector<std::byte>& c : contents) {
    const size_t inside = (c.size() / page + 1) * page;  // at least one byte in front
    void* const base =
        mmap(nullptr, inside + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    BM_CHECK(base != MAP_FAILED);
    auto* const bytes = static_cast<std::byte*>(base);
    BM_CHECK(mprotect(bytes + inside, page, PROT_NONE) == 0);
    std::fill(bytes, bytes + inside, std::byte{0xa5});
    std::copy(c.begin(), c.end(), bytes + inside - c.size());
    mappings_.push_back({bytes, inside + page});
    pointers_.push_back(bytes + inside - c.size());
  }
}

GuardedBuffers::~GuardedBuffers() {
  for (const Mapping& m : mappings_) munmap(m.base, m.bytes);
}

bool GuardedBuffers::copy_out(std::span<std::vector<std::byte>> contents) const {
  bool is_good = true;
  for (size_t i = 0; i < contents.size(); ++i) {
    const auto* const at = static_cast<const std::byte*>(pointers_[i]);
    std::copy(at, at + contents[i].size(), contents[i].begin());
    for (const std::byte* b = mappings_[i].base; b < at; ++b) is_good &= *b == std::byte{0xa5};
  }
  return is_good;
}

void run_kernel(const cpu::CpuProgram& program, std::span<void* const> buffers,
                std::span<const int64_t> vars) {
  std::vector<uint64_t> args;
  for (void* b : buffers) args.push_back(reinterpret_cast<uint64_t>(b));
  for (int64_t v : vars) args.push_back(static_cast<uint64_t>(v));
  uint64_t blocks = 1;
  for (const hal::DimExpr& dim : program.code().grid)
    blocks *= static_cast<uint64_t>(dim.evaluate(vars));
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  // What is in the scratch before must not matter.
  std::vector<Line> scratch((program.code().scratch_bytes + 63) / 64);
  for (Line& line : scratch) std::memset(line.bytes, 0xff, sizeof(line.bytes));
  for (uint64_t b = blocks; b-- > 0;) program.entry()(args.data(), b, b + 1, scratch.data());
}

Result<std::unique_ptr<cpu::CpuProgram>> build_kernel(const ir::KernelIr& kernel,
                                                      const hal::Arch& arch,
                                                      std::string_view renderer,
                                                      compiler::CompileOptions options) {
  options.use_cache = false;
  BM_TRY(ir::verify(kernel));
  const hal::CodeObject code = BM_TRY(compiler::compile(kernel, arch, renderer, options));
  return cpu::CpuProgram::load(code, arch.name);
}

bool is_nv(const Where& where) {
  const std::string_view name = where.renderer;
  return name == "PTX" || name == "NVRTC" || name == "NVPTX";
}

/// "gfx1100" of "GFX1100"; empty for others.
std::string amd_chip(const Where& where) {
  const std::string_view name = where.renderer;
  return name.starts_with("GFX") ? "gfx" + std::string(name.substr(3)) : "";
}

std::string where_name(const Where& where) {
  const std::string name = where.renderer;
  if (!is_cpu(where)) return name;
  std::string text = name + (where.is_native ? "Native" : "Baseline");
  for (const char* c = where.without; *c; ++c) text += std::isalnum(*c) ? *c : '_';
  return text;
}

bool is_cpu(const Where& where) {
  return where.renderer != std::string_view("OPENCL") && !is_nv(where) && amd_chip(where).empty();
}

std::string why_not(const Where& where) {
  const std::string_view name = where.renderer;
  if (name == "NVRTC") {
    const auto version = compiler::nvrtc_version();
    return version ? "" : version.error().message;
  }
  if (name == "NVPTX") {
    const auto made = compiler::llvm_ptx("", compiler::target_info(ptx_arch()));
    return made ? "" : made.error().message;
  }
  if (!amd_chip(where).empty()) {
    const auto made = compiler::llvm_compile("", compiler::target_info(arch_of(where)));
    return made ? "" : made.error().message;
  }
  return name == "OPENCL" ? why_no_cl() : "";
}

const char* renderer_of(const Where& where) {
  const bool is_llvm = where.renderer == std::string_view("NVPTX") || !amd_chip(where).empty();
  return is_llvm ? "LLVM" : where.renderer;
}

hal::Arch arch_of(const Where& where) {
  if (is_nv(where)) return ptx_arch();
  if (const std::string chip = amd_chip(where); !chip.empty()) return amd_arch(chip);
  if (is_cpu(where)) {
    if (!*where.without) return where.is_native ? native_arch() : baseline_arch();
    auto arch = cpu::make_arch(std::string("native,") + where.without);
    BM_CHECK(arch.has_value());
    arch->units = 2;
    return *arch;
  }
  const auto device = cl_device();
  BM_CHECK(device.has_value());
  return (*device)->arch();
}

Status run_on(const Where& where, const ir::KernelIr& kernel,
              std::span<std::vector<std::byte>> buffers, std::span<const int64_t> vars,
              compiler::CompileOptions options) {
  const hal::Arch arch = arch_of(where);
  options.use_cache = false;
  if (arch.vendor == hal::Vendor::kOpenCl) {
    BM_TRY(ir::verify(kernel));
    const auto code = BM_TRY(compiler::compile(kernel, arch, where.renderer, options));
    return run_on_cl(code, buffers, vars);
  }
  if (is_nv(where)) {
    BM_TRY(ir::verify(kernel));
    const ScopedSetting text("BM_NV_CODE", "ptx");
    const auto code = BM_TRY(compiler::compile(kernel, arch, renderer_of(where), options));
    BM_TRY(run_on_ptx(code, buffers, vars));
    return {};
  }
  if (arch.vendor == hal::Vendor::kAmd) {
    BM_TRY(ir::verify(kernel));
    const auto code = BM_TRY(compiler::compile(kernel, arch, "LLVM", options));
    const auto done = run_on_amd(code, buffers, vars);
    return done ? Status{} : tl::unexpected(done.error());
  }
  return run_on_cpu(arch, where.renderer, kernel, buffers, vars, options);
}

Status run_on_cpu(const hal::Arch& arch, std::string_view renderer, const ir::KernelIr& kernel,
                  std::span<std::vector<std::byte>> buffers, std::span<const int64_t> vars,
                  compiler::CompileOptions options) {
  const auto program = BM_TRY(build_kernel(kernel, arch, renderer, options));
  const GuardedBuffers guarded(buffers);
  run_kernel(*program, guarded.pointers(), vars);
  if (!guarded.copy_out(buffers))
    return fail(Code::kInternal, "kernel {} wrote in front of a buffer", kernel.name);
  return {};
}

}  // namespace bm::test
