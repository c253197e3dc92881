#pragma once
// What the CUDA tests share. They run on the fake driver.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "drivers/cuda/device.h"
#include "runtime/base/env.h"
#include "runtime/hal/device.h"
#include "tests/patience.h"
#include "tests/unit/cuda/fake_driver.h"

namespace bm::cuda::test {

/// TIMEOUT: commands here take milliseconds; 20 s covers a busy machine with sanitizers.
inline const std::chrono::milliseconds kDeadline = bm::test::patience(std::chrono::seconds(20));

inline std::unique_ptr<hal::Device> open_on(const std::shared_ptr<const Api>& api,
                                            uint32_t index = 0, std::string_view arch = "") {
  auto device = open_device_on(api, index, arch);
  EXPECT_TRUE(device) << device.error().message;
  return device ? std::move(*device) : nullptr;
}

/// A fresh driver with the kernels below. `has_mem_ops`: streams wait for and write words.
inline std::shared_ptr<Api> usual_api(bool has_mem_ops = true) {
  auto api = fake_api();
  fake().attributes[kStreamMemOps64] = has_mem_ops ? 1 : 0;
  // x, n, by: x[i] += by
  fake().kernels["add"] = [](FakeDriver&, const uint64_t* a, hal::Dim3) {
    auto* x = reinterpret_cast<uint64_t*>(a[0]);
    for (uint64_t i = 0; i < a[1]; ++i) x[i] += a[2];
  };
  // log, n: log[n] = blocks
  fake().kernels["blocks"] = [](FakeDriver&, const uint64_t* a, hal::Dim3 grid) {
    reinterpret_cast<uint64_t*>(a[0])[a[1]] = uint64_t{grid.x} * grid.y * grid.z;
  };
  fake().kernels["crash"] = [](FakeDriver& driver, const uint64_t*, hal::Dim3) {
    driver.fault = kErrorIllegalAddress;
  };
  return api;
}

inline hal::CodeObject code(std::string_view entry, uint32_t buffers, uint32_t vars,
                            hal::Dim3 block = {.x = 64}) {
  hal::CodeObject made;
  made.entry = entry;
  made.arch = "sm_90";
  made.num_buffers = buffers;
  made.num_vars = vars;
  made.block = block;
  constexpr std::string_view kText = ".version 8.0";
  const auto* bytes = reinterpret_cast<const std::byte*>(kText.data());
  made.image.assign(bytes, bytes + kText.size());
  return made;
}

inline std::unique_ptr<hal::Program> load(hal::Device& device, const hal::CodeObject& object) {
  auto program = device.load(object);
  EXPECT_TRUE(program) << program.error().message;
  return program ? std::move(*program) : nullptr;
}

inline std::unique_ptr<hal::Buffer> allocate(hal::Device& device, const hal::BufferDesc& desc) {
  auto buffer = device.allocate(desc);
  EXPECT_TRUE(buffer) << buffer.error().message;
  return buffer ? std::move(*buffer) : nullptr;
}

/// Zeroed words for signals and argument blocks.
inline std::unique_ptr<hal::Buffer> words(hal::Device& device, std::vector<uint64_t> values = {}) {
  auto buffer = allocate(
      device,
      {.size = 64 * 8, .host_visible = true, .host_memory = true, .uncached = true, .zero = true});
  std::copy(values.begin(), values.end(), reinterpret_cast<uint64_t*>(buffer->host()));
  return buffer;
}
inline hal::GpuVa at(const hal::Buffer& buffer, uint64_t index) {
  return hal::offset(buffer.va(), index * 8);
}
inline std::atomic_ref<uint64_t> word(hal::Buffer& buffer, uint64_t index = 0) {
  return std::atomic_ref(reinterpret_cast<uint64_t*>(buffer.host())[index]);
}
inline uint64_t address(const hal::Buffer& buffer) { return hal::raw(buffer.va()); }
inline hal::GpuVa va_of(const void* memory) {
  return hal::GpuVa{reinterpret_cast<uintptr_t>(memory)};
}

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

using Commands = std::vector<hal::Command>;

/// Submits and waits until everything is done.
inline Status run(hal::Device& device, Commands commands,
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

#define EXPECT_REFUSED(code_, ...)                                                             \
  do {                                                                                         \
    const auto& status_ = (__VA_ARGS__);                                                       \
    EXPECT_FALSE(status_);                                                                     \
    if (!status_) {                                                                            \
      EXPECT_EQ(code_name(status_.error().code), code_name(code_)) << status_.error().message; \
    }                                                                                          \
  } while (false)

}  // namespace bm::cuda::test
