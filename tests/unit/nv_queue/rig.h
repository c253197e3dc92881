#pragma once
// A device over the stub GPU with what queue tests need.

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

#include "drivers/nv/device.h"
#include "runtime/base/env.h"
#include "tests/unit/nv_queue/stub_gpu.h"

namespace bm::nv::test {

struct Rig {
  explicit Rig(const StubOptions& stub_options = {}, DeviceOptions device_options = {}) {
    auto kernel = std::make_unique<StubGpu>(stub_options);
    gpu = kernel.get();
    gpu->define("store",
                [](const StubLaunch& launch) {  // out, value: out[i] = value for each block
                  auto* out = reinterpret_cast<uint64_t*>(launch.arguments[0]);
                  for (uint32_t i = 0; i < launch.grid.x; ++i) out[i] = launch.arguments[1];
                });
    gpu->define("add", [](const StubLaunch& launch) {  // out, value: out[0] = out[0] * 3 + value
      auto* out = reinterpret_cast<uint64_t*>(launch.arguments[0]);
      out[0] = out[0] * 3 + launch.arguments[1];
    });
    device_options.slab_bytes = std::min<uint64_t>(device_options.slab_bytes, 8 << 20);
    auto opened = make_device(std::move(kernel), device_options);
    EXPECT_TRUE(opened) << opened.error().message;
    device = std::move(*opened);
    timeline = allocate(4096);
  }
  ~Rig() { EXPECT_EQ(gpu->problem(), ""); }

  std::unique_ptr<hal::Buffer> allocate(uint64_t size) {
    auto buffer = device->allocate(
        {.size = size, .host_visible = true, .host_memory = true, .uncached = true, .zero = true});
    EXPECT_TRUE(buffer) << buffer.error().message;
    return std::move(*buffer);
  }
  hal::CodeObject code(const std::string& name, uint32_t buffers, uint32_t vars) const {
    hal::CodeObject object;
    object.entry = name;
    object.arch = device->arch().name;
    object.num_buffers = buffers;
    object.num_vars = vars;
    object.block = {.x = 32};
    const std::string text = ".version 7.5\n.target sm_75\n.address_size 64\n.visible .entry " +
                             name + "()\n{\nret;\n}\n";
    object.image.resize(text.size() + 1);
    std::memcpy(object.image.data(), text.c_str(), text.size() + 1);
    return object;
  }
  std::unique_ptr<hal::Program> load(const std::string& name, uint32_t buffers = 1,
                                     uint32_t vars = 1) {
    auto program = device->load(code(name, buffers, vars));
    EXPECT_TRUE(program) << program.error().message;
    return std::move(*program);
  }
  hal::Queue& queue(hal::QueueKind kind = hal::QueueKind::kCompute) { return device->queue(kind); }

  static uint64_t* words(hal::Buffer& buffer) { return reinterpret_cast<uint64_t*>(buffer.host()); }
  hal::Signal next() { return {timeline->va(), ++value}; }
  bool wait(uint64_t wanted) {
    const std::atomic_ref<uint64_t> word(*words(*timeline));
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (word.load(std::memory_order_acquire) < wanted) {
      if (std::chrono::steady_clock::now() > limit || !gpu->problem().empty()) return false;
      std::this_thread::yield();
    }
    return true;
  }
  bool run(std::vector<hal::Command> commands, hal::QueueKind kind = hal::QueueKind::kCompute) {
    commands.emplace_back(next());
    const Status submitted = queue(kind).submit(commands);
    EXPECT_TRUE(submitted) << submitted.error().message;
    return submitted && wait(value);
  }

  ScopedSetting ptx{"BM_NV_CODE", "ptx"};
  StubGpu* gpu = nullptr;
  std::unique_ptr<hal::Device> device;
  std::unique_ptr<hal::Buffer> timeline;
  uint64_t value = 0;
};

}  // namespace bm::nv::test
