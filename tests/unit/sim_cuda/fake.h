#pragma once
// The fake libcuda.so.1 as a program sees it: by dlopen and versioned names.

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace bm::sim::cuda::test {

using Environment = std::vector<std::pair<std::string, std::string>>;

/// Starts the driver anew with the given environment, and without it at the end.
class Fake {
 public:
  explicit Fake(Environment environment = {}) : environment_(std::move(environment)) {
    environment_.emplace_back("FAKE_CUDA_QUIET", "1");
    for (const auto& [name, value] : environment_) setenv(name.c_str(), value.c_str(), 1);
    handle_ = dlopen(BM_FAKE_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(handle_, nullptr) << dlerror();
    reset();
  }
  ~Fake() {
    for (const auto& [name, value] : environment_) unsetenv(name.c_str());
    reset();
  }
  Fake(const Fake&) = delete;
  Fake& operator=(const Fake&) = delete;

  /// Calls an entry point; pointers and integers as the ABI passes them.
  template <class... A>
  int operator()(const char* name, A... arguments) const {
    auto* f = reinterpret_cast<int (*)(A...)>(dlsym(handle_, name));
    EXPECT_NE(f, nullptr) << name;
    return f ? f(arguments...) : -1;
  }
  bool has(const char* name) const { return dlsym(handle_, name) != nullptr; }
  uint64_t live() const {
    return reinterpret_cast<uint64_t (*)()>(dlsym(handle_, "fake_cuda_live"))();
  }
  std::string last_fault() const {
    return reinterpret_cast<const char* (*)()>(dlsym(handle_, "fake_cuda_last_fault"))();
  }

  /// cuInit and the first device's primary context made current.
  void* start() const {
    void* context = nullptr;
    EXPECT_EQ((*this)("cuInit", 0u), 0);
    EXPECT_EQ((*this)("cuDevicePrimaryCtxRetain", &context, 0), 0);
    EXPECT_EQ((*this)("cuCtxSetCurrent", context), 0);
    return context;
  }
  void* function(const std::string& text, const char* name) const {
    void *module = nullptr, *out = nullptr;
    EXPECT_EQ((*this)("cuModuleLoadData", &module, static_cast<const void*>(text.c_str())), 0);
    EXPECT_EQ((*this)("cuModuleGetFunction", &out, module, name), 0);
    return out;
  }
  uint64_t allocate(size_t bytes) const {
    uint64_t out = 0;
    EXPECT_EQ((*this)("cuMemAlloc_v2", &out, bytes), 0);
    return out;
  }
  /// One-dimensional launch with arguments as one packed block.
  int launch(void* f, unsigned grid, unsigned block, std::vector<uint64_t> arguments,
             void* stream = nullptr, unsigned shared = 0) const {
    size_t bytes = arguments.size() * 8;
    void* extra[] = {reinterpret_cast<void*>(1), arguments.data(), reinterpret_cast<void*>(2),
                     &bytes, nullptr};
    return (*this)("cuLaunchKernel", f, grid, 1u, 1u, block, 1u, 1u, shared, stream,
                   static_cast<void**>(nullptr), static_cast<void**>(extra));
  }
  std::vector<uint64_t> read(uint64_t from, size_t count) const {
    std::vector<uint64_t> out(count);
    EXPECT_EQ((*this)("cuMemcpyDtoH_v2", static_cast<void*>(out.data()), from, count * 8), 0);
    return out;
  }

 private:
  void reset() const { reinterpret_cast<void (*)()>(dlsym(handle_, "fake_cuda_reset"))(); }

  Environment environment_;
  void* handle_ = nullptr;
};

/// out[i] = in[i] * 3 + value, 64 bits each; and a kernel that adds one everywhere.
inline const std::string kText = R"(
.version 8.0
.target sm_75
.address_size 64
.global .align 8 .u64 total = 5;
.visible .entry scale(.param .u64 out, .param .u64 in, .param .s64 value) {
  .reg .b32 %r<5>; .reg .b64 %rd<10>;
  ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [in]; ld.param.u64 %rd3, [value];
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r4, %r1, %r2, %r3;
  mul.wide.u32 %rd4, %r4, 8; add.u64 %rd1, %rd1, %rd4; add.u64 %rd2, %rd2, %rd4;
  ld.global.u64 %rd5, [%rd2]; mad.lo.u64 %rd6, %rd5, 3, %rd3; st.global.u64 [%rd1], %rd6;
  ret;
}
.visible .entry increment(.param .u64 out) .maxntid 64, 1, 1 {
  .reg .b32 %r<2>; .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 8; add.u64 %rd1, %rd1, %rd2;
  ld.global.u64 %rd3, [%rd1]; add.u64 %rd3, %rd3, 1; st.global.u64 [%rd1], %rd3;
  atom.global.add.u64 %rd4, [total], 1;
  ret;
}
)";

}  // namespace bm::sim::cuda::test
