#include "tests/unit/codegen/runner.h"

#include <dlfcn.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>

extern char** environ;  // NOLINT: declared nowhere else

namespace bm::test {

hal::Arch native_arch() {
  hal::Arch arch;
  arch.name = "x86_64";
  arch.units = 2;
  // Only what the tests' expectations depend on is asked for.
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl")) {
    arch.cpu = "x86-64-v4";
    arch.vector_bits = 512;
  } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    arch.cpu = "x86-64-v3";
    arch.vector_bits = 256;
  }
  return arch;
}

hal::Arch baseline_arch() {
  hal::Arch arch;
  arch.name = "x86_64";
  return arch;
}

LoadedKernel::~LoadedKernel() {
  if (handle_) dlclose(handle_);
}

Result<std::unique_ptr<LoadedKernel>> LoadedKernel::load(const hal::CodeObject& code) {
  std::array<char, 32> folder{"/tmp/bm-codegen-XXXXXX"};
  if (!mkdtemp(folder.data())) return fail(Code::kIo, "mkdtemp: {}", errno_text(errno));
  const std::string object = std::string(folder.data()) + "/k.o", shared = std::string(folder.data()) + "/k.so";
  std::FILE* file = std::fopen(object.c_str(), "wb");
  if (!file) return fail(Code::kIo, "open {}", object);
  std::fwrite(code.image.data(), 1, code.image.size(), file);
  std::fclose(file);
  std::array<const char*, 7> args{"cc", "-shared", "-nostdlib", "-o", shared.c_str(), object.c_str(), nullptr};
  pid_t pid = 0;
  if (posix_spawnp(&pid, "cc", nullptr, nullptr, const_cast<char* const*>(args.data()), environ) != 0)
    return fail(Code::kIo, "cannot run cc");
  int status = 0;
  waitpid(pid, &status, 0);
  auto kernel = std::make_unique<LoadedKernel>();
  kernel->code_ = code;
  kernel->handle_ = dlopen(shared.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* why = kernel->handle_ ? nullptr : dlerror();
  unlink(object.c_str());
  unlink(shared.c_str());
  rmdir(folder.data());
  if (!kernel->handle_) return fail(Code::kIo, "kernel does not load: {}", why ? why : "?");
  void* entry = dlsym(kernel->handle_, code.entry.c_str());
  if (!entry) return fail(Code::kNotFound, "no symbol {}", code.entry);
  kernel->entry_ = reinterpret_cast<void (*)(const uint64_t*, uint64_t, uint64_t)>(entry);
  return kernel;
}

void LoadedKernel::run(std::span<void* const> buffers, std::span<const int64_t> vars) const {
  std::vector<uint64_t> args;
  for (void* b : buffers) args.push_back(reinterpret_cast<uint64_t>(b));
  for (int64_t v : vars) args.push_back(static_cast<uint64_t>(v));
  const auto blocks = static_cast<uint64_t>(code_.grid[0].evaluate(vars)) *
                      static_cast<uint64_t>(code_.grid[1].evaluate(vars)) *
                      static_cast<uint64_t>(code_.grid[2].evaluate(vars));
  // In two parts when possible: blocks must not depend on each other.
  entry_(args.data(), blocks / 2, blocks);
  entry_(args.data(), 0, blocks / 2);
}

}  // namespace bm::test
