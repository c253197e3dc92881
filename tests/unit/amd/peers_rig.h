#pragma once
// Several simulated AMD GPUs with real code in memory of each.

#include <cstring>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "drivers/amd/device.h"
#include "drivers/amd/kfd/gpu.h"
#include "runtime/buffer.h"
#include "runtime/device.h"
#include "runtime/graph.h"
#include "tests/sim/amd/kfd/fake_kfd.h"
#include "tests/sim/amd/engine/interpreter.h"

namespace bm::amd {

struct Mode {
  const char* chip;
  PacketMode packets;
  uint32_t gpus;
};

class AmdPeers : public testing::TestWithParam<Mode> {
 protected:
  void open(sim::amd::Options machine = {}) {
    start(std::move(machine));
    const Status opened = open_devices();
    ASSERT_TRUE(opened) << opened.error().message;
  }
  void start(sim::amd::Options machine) {
    machine.chip = GetParam().chip;
    machine.gpus = GetParam().gpus;
    machine.execute = sim::amd::interpreter(machine.chip);
    system_ = std::make_unique<sim::amd::FakeKfd>(machine);
  }
  Status open_devices() {
    for (uint32_t gpu = 0; gpu < GetParam().gpus; ++gpu) {
      devices_.push_back(BM_TRY(open_gpu(gpu)));
      steps_.push_back(BM_TRY(load(*devices_.back(), "step")));
      buffers_.push_back(BM_TRY(runtime::allocate(*devices_.back(), {.size = 4096})));
      buffers_.back().size = 8;
    }
    return {};
  }
  Result<std::unique_ptr<runtime::Device>> open_gpu(uint32_t gpu) {
    auto kernel = BM_TRY(kfd::open_gpu(*system_, {.index = gpu}));
    auto made = BM_TRY(make_device(std::move(kernel), {.packets = GetParam().packets}));
    return runtime::make_device(std::move(made), fmt::format("AMD:{}", gpu), "LLVM");
  }
  /// Devices last, in this order or its reverse.
  void close(bool in_order = false) {
    steps_.clear();
    buffers_.clear();
    if (in_order)
      for (std::unique_ptr<runtime::Device>& device : devices_) device.reset();
    while (!devices_.empty()) devices_.pop_back();
  }
  void expect_nothing_left() const {
    EXPECT_EQ(system_->memory().objects(), 0u);
    EXPECT_EQ(system_->queues(), 0u);
    EXPECT_EQ(system_->events(), 0u);
    EXPECT_EQ(system_->open_files(), 0u);
  }
  void TearDown() override {
    close();
    if (system_ != nullptr) expect_nothing_left();
  }
  /// "step": at[0] = at[0] * 3 + 1.
  Result<std::shared_ptr<const hal::Program>> load(runtime::Device& device, const char* kernel) {
    std::ifstream file(std::string("tests/unit/amd_faults/data/") + GetParam().chip + ".o",
                       std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const auto bytes = std::as_bytes(std::span(text));
    hal::CodeObject code;
    code.entry = kernel;
    code.arch = GetParam().chip;
    code.image.assign(bytes.begin(), bytes.end());
    code.num_buffers = 1;
    code.block = {.x = 32};
    return std::shared_ptr<const hal::Program>(BM_TRY(device.hal().load(code)));
  }
  runtime::Call step(uint32_t gpu) { return launch(gpu, steps_[gpu]); }
  runtime::Call launch(uint32_t gpu, std::shared_ptr<const hal::Program> program) {
    runtime::KernelCall kernel;
    kernel.program = std::move(program);
    kernel.device = devices_[gpu].get();
    return {.name = "kernel",
            .what = std::move(kernel),
            .args = {{.buffer = buffers_[gpu], .is_written = true}}};
  }
  runtime::Call copy(uint32_t to, uint32_t from) {
    return {.name = "copy",
            .what = runtime::CopyCall{},
            .args = {{.buffer = buffers_[to], .is_written = true, .is_read = false},
                     {.buffer = buffers_[from]}}};
  }
  uint64_t number(uint32_t gpu) {
    uint64_t value = 0;
    const Status read =
        runtime::copy_out(std::as_writable_bytes(std::span(&value, 1)), buffers_[gpu]);
    EXPECT_TRUE(read) << read.error().message << system_->last_death();
    return value;
  }
  void set(uint32_t gpu, uint64_t value) {
    ASSERT_TRUE(runtime::copy_in(buffers_[gpu], std::as_bytes(std::span(&value, 1))));
  }

  std::unique_ptr<sim::amd::FakeKfd> system_;
  std::vector<std::unique_ptr<runtime::Device>> devices_;
  std::vector<std::shared_ptr<const hal::Program>> steps_;
  std::vector<runtime::Buffer> buffers_;
};

}  // namespace bm::amd
