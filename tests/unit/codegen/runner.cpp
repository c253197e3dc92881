#include "tests/unit/codegen/runner.h"

#include <cstring>
#include <vector>

#include "compiler/codegen/target.h"
#include "compiler/toolchain/nvrtc.h"
#include "compiler/toolchain/toolchain.h"
#include "drivers/cpu/cpu_info.h"
#include "runtime/base/check.h"
#include "runtime/base/env.h"
#include "tests/unit/codegen/cl_runner.h"
#include "tests/unit/codegen/ptx_runner.h"

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

// Generated code carries no type information for -fsanitize=function.
#if defined(__clang__)
__attribute__((no_sanitize("function")))
#endif
void run_kernel(const cpu::CpuProgram& program, std::span<void* const> buffers, std::span<const int64_t> vars) {
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
  std::memset(static_cast<void*>(scratch.data()), 0xff, scratch.size() * sizeof(Line));
  for (uint64_t b = blocks; b-- > 0;) program.entry()(args.data(), b, b + 1, scratch.data());
}

Result<std::unique_ptr<cpu::CpuProgram>> build_kernel(const ir::KernelIr& kernel,
                                                      const hal::Arch& arch,
                                                      std::string_view renderer) {
  BM_TRY(ir::verify(kernel));
  const hal::CodeObject code =
      BM_TRY(compiler::compile(kernel, arch, renderer, {.use_cache = false}));
  return cpu::CpuProgram::load(code, arch.name);
}

bool is_nv(const Where& where) {
  const std::string_view name = where.renderer;
  return name == "PTX" || name == "NVRTC" || name == "NVPTX";
}

std::string where_name(const Where& where) {
  const std::string name = where.renderer;
  return name == "OPENCL" || is_nv(where) ? name : name + (where.is_native ? "Native" : "Baseline");
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
  return name == "OPENCL" ? why_no_cl() : "";
}

const char* renderer_of(const Where& where) {
  return where.renderer == std::string_view("NVPTX") ? "LLVM" : where.renderer;
}

hal::Arch arch_of(const Where& where) {
  if (is_nv(where)) return ptx_arch();
  if (where.renderer != std::string_view("OPENCL"))
    return where.is_native ? native_arch() : baseline_arch();
  const auto device = cl_device();
  BM_CHECK(device.has_value());
  return (*device)->arch();
}

Status run_on(const Where& where, const ir::KernelIr& kernel,
              std::span<std::vector<std::byte>> buffers, std::span<const int64_t> vars) {
  const hal::Arch arch = arch_of(where);
  if (arch.vendor == hal::Vendor::kOpenCl) {
    BM_TRY(ir::verify(kernel));
    return run_on_cl(BM_TRY(compiler::compile(kernel, arch, where.renderer, {.use_cache = false})),
                     buffers, vars);
  }
  if (is_nv(where)) {
    BM_TRY(ir::verify(kernel));
    const ScopedSetting text("BM_NV_CODE", "ptx");
    const auto code =
        BM_TRY(compiler::compile(kernel, arch, renderer_of(where), {.use_cache = false}));
    BM_TRY(run_on_ptx(code, buffers, vars));
    return {};
  }
  const auto program = BM_TRY(build_kernel(kernel, arch, where.renderer));
  std::vector<void*> pointers;
  for (auto& b : buffers) pointers.push_back(b.data());
  run_kernel(*program, pointers, vars);
  return {};
}

}  // namespace bm::test
