#pragma once
// A CPU device with a chain of small dependent kernels, recorded; for tests and the benchmark of
// replay.

#include <memory>
#include <vector>

#include "drivers/cpu/device.h"
#include "runtime/base/check.h"
#include "tests/unit/drivers/kernels.h"

namespace bm::test {

/// `count` kernels that each add 1 to the same 16 floats, then a signal and a timestamp.
/// Slots: 0: address of the floats, 1: value of the signal.
struct ReplayRig {
  explicit ReplayRig(size_t count, bool with_timeline = true) : args(count * 2), floats(16) {
    auto opened = cpu::open_device("", 0, "");
    BM_CHECK(opened.has_value());
    device = std::move(*opened);
    auto loaded = device->load(kernel("increment", 1, 1));
    BM_CHECK(loaded.has_value());
    program = std::move(*loaded);
    std::vector<hal::Patch> patches;
    for (size_t i = 0; i < count; ++i) {
      args[i * 2 + 1] = 16;
      patches.push_back({.command = static_cast<uint32_t>(commands.size())});
      commands.push_back(hal::Dispatch{program.get(), hal::GpuVa{address(&args[i * 2])}, {}});
    }
    if (with_timeline) {
      patches.push_back({.command = static_cast<uint32_t>(commands.size()),
                         .field = hal::PatchField::kSignalValue,
                         .slot = 1});
      commands.push_back(hal::Signal{hal::GpuVa{address(&words[0])}, 0});
      commands.push_back(hal::Timestamp{hal::GpuVa{address(&words[1])}});
    }
    auto recorded = queue().record(commands, patches);
    BM_CHECK(recorded.has_value());
    recording = std::move(*recorded);
  }
  hal::Queue& queue() { return device->queue(hal::QueueKind::kCompute); }
  Status replay(uint64_t step) {
    const uint64_t values[] = {address(floats.data()), step};
    return queue().replay(*recording, values);
  }

  std::vector<uint64_t> args;
  std::vector<float> floats;
  uint64_t words[2] = {};
  std::unique_ptr<hal::Device> device;
  std::unique_ptr<hal::Program> program;
  std::vector<hal::Command> commands;
  std::unique_ptr<hal::Recording> recording;
};

}  // namespace bm::test
