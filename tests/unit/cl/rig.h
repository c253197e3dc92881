#pragma once
// What the OpenCL tests share. They run on the first OpenCL device and are skipped without one.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "drivers/cl/api.h"
#include "drivers/cl/device.h"
#include "runtime/base/env.h"
#include "runtime/hal/device.h"
#include "tests/patience.h"

namespace bm::cl::test {

/// TIMEOUT: commands here take milliseconds; 20 s covers a busy machine with sanitizers.
inline const std::chrono::milliseconds kDeadline = bm::test::patience(std::chrono::seconds(20));

inline bool has_device() {
  const auto count = count_devices("");
  return count && *count > 0;
}

#define BM_NEEDS_OPENCL() \
  if (!::bm::cl::test::has_device()) GTEST_SKIP() << "no OpenCL device (package pocl-opencl-icd)"

/// BM_CL_SVM values: each kind of memory a device may have.
inline constexpr const char* kSvmModes[] = {"0", "1", "2"};

inline std::unique_ptr<hal::Device> open(const char* svm = "2") {
  const ScopedSetting setting("BM_CL_SVM", svm);
  auto device = open_device("", 0, "");
  EXPECT_TRUE(device) << device.error().message;
  return device ? std::move(*device) : nullptr;
}

/// A copy of the real functions, for tests to replace some of.
inline std::shared_ptr<Api> real_api() {
  const auto api = load_api();
  EXPECT_TRUE(api);
  return std::make_shared<Api>(**api);
}

inline std::unique_ptr<hal::Device> open_on(std::shared_ptr<const Api> api, uint32_t index = 0) {
  auto device = open_device_on(std::move(api), index, "");
  EXPECT_TRUE(device) << device.error().message;
  return device ? std::move(*device) : nullptr;
}

inline hal::CodeObject code(const hal::Device& device, std::string_view entry,
                            std::string_view text, uint32_t buffers, uint32_t vars,
                            hal::Dim3 block = {.x = 64}) {
  hal::CodeObject made;
  made.entry = entry;
  made.arch = device.arch().name;
  made.num_buffers = buffers;
  made.num_vars = vars;
  made.block = block;
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  made.image.assign(bytes, bytes + text.size());
  return made;
}

/// out[i] += by
inline hal::CodeObject add_code(const hal::Device& device) {
  return code(device, "add",
              "kernel void add(global long* out, long n, long by) {\n"
              "  if (get_global_id(0) < n) out[get_global_id(0)] += by;\n"
              "}\n",
              1, 2);
}

inline std::unique_ptr<hal::Buffer> allocate(hal::Device& device, const hal::BufferDesc& desc) {
  auto buffer = device.allocate(desc);
  EXPECT_TRUE(buffer) << buffer.error().message;
  return buffer ? std::move(*buffer) : nullptr;
}

/// Zeroed words for signals.
inline std::unique_ptr<hal::Buffer> words(hal::Device& device, uint64_t count = 64) {
  return allocate(device, {.size = count * 8,
                           .host_visible = true,
                           .host_memory = true,
                           .uncached = true,
                           .zero = true});
}
inline std::unique_ptr<hal::Buffer> visible(hal::Device& device, uint64_t bytes) {
  return allocate(device, {.size = bytes, .host_visible = true, .zero = true});
}
inline hal::GpuVa at(const hal::Buffer& buffer, uint64_t index) {
  return hal::offset(buffer.va(), index * 8);
}
inline std::atomic_ref<uint64_t> word(hal::Buffer& buffer, uint64_t index = 0) {
  return std::atomic_ref(reinterpret_cast<uint64_t*>(buffer.host())[index]);
}
inline uint64_t address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }
inline uint64_t address(const hal::Buffer& buffer) { return hal::raw(buffer.va()); }

/// Polls until the word is >= value or the device fails or kDeadline passes.
inline Status wait_for(hal::Device& device, std::atomic_ref<uint64_t> word, uint64_t value) {
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (word.load(std::memory_order_acquire) < value) {
    BM_TRY(device.status());
    if (std::chrono::steady_clock::now() > deadline)
      return fail(Code::kTimeout, "waited for {}, it is {}", value, word.load());
    std::this_thread::yield();
  }
  return {};
}

/// Submits and waits until everything is done.
inline Status run(hal::Device& device, std::vector<hal::Command> commands,
                  hal::QueueKind kind = hal::QueueKind::kCompute) {
  const auto end = words(device);
  commands.push_back(hal::Signal{end->va(), 1});
  BM_TRY(device.queue(kind).submit(commands));
  return wait_for(device, word(*end), 1);
}

#define EXPECT_OK(...)                                                \
  do {                                                                \
    const auto status_ = (__VA_ARGS__);                               \
    EXPECT_TRUE(status_) << (status_ ? "" : status_.error().message); \
  } while (false)

}  // namespace bm::cl::test
