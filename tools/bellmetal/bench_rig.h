#pragma once
// A queue of a device as the measurements of its driver use it, and how they time it.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device.h"
#include "tensor/exception.h"

namespace bm::cli {

inline double time_us(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

/// Of the samples, which it reorders; 0 of none.
inline double median(std::vector<double>& samples) {
  if (samples.empty()) return 0;
  const auto middle = samples.begin() + static_cast<long>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

/// Memory of the contract with a 64-bit signal the host polls, and one program.
class Rig {
 public:
  static Result<std::unique_ptr<Rig>> open(runtime::Device& device, hal::QueueKind kind) {
    auto rig = std::unique_ptr<Rig>(new Rig(device.hal(), kind));
    rig->signal_ = BM_TRY(device.hal().allocate(
        {.size = 4096, .host_visible = true, .uncached = true, .zero = true}));
    return rig;
  }

  Status load(const hal::CodeObject& code) {
    scratch_ = BM_TRY(device_.allocate({.size = 4096}));
    kernarg_ = BM_TRY(device_.allocate({.size = 4096, .host_visible = true}));
    program_ = BM_TRY(device_.load(code));
    const std::vector<uint64_t> words(code.num_buffers + code.num_vars, hal::raw(scratch_->va()));
    if (!words.empty()) std::memcpy(kernarg_->host(), words.data(), words.size() * 8);
    const std::vector<int64_t> vars(code.num_vars, 1);
    grid_ = {static_cast<uint32_t>(code.grid[0].evaluate(vars)),
             static_cast<uint32_t>(code.grid[1].evaluate(vars)),
             static_cast<uint32_t>(code.grid[2].evaluate(vars))};
    return {};
  }

  hal::Dispatch dispatch() const { return {program_.get(), kernarg_->va(), grid_}; }
  hal::Signal next_signal() { return {signal_->va(), ++value_}; }

  void submit(std::span<const hal::Command> commands) {
    unwrap(device_.queue(kind_).submit(commands));
  }

  /// Recording of `kernels` launches and a signal whose value a replay gives.
  Status record(uint32_t kernels) {
    std::vector<hal::Command> commands;
    for (uint32_t i = 0; i < kernels; ++i) {
      if (i != 0) commands.emplace_back(hal::Barrier{});
      commands.emplace_back(dispatch());
    }
    commands.emplace_back(hal::Signal{signal_->va(), 0});
    const hal::Patch patch{.command = static_cast<uint32_t>(commands.size() - 1),
                           .field = hal::PatchField::kSignalValue};
    recording_ = BM_TRY(device_.queue(kind_).record(commands, {&patch, 1}));
    return {};
  }
  void replay() {
    const uint64_t value = ++value_;
    unwrap(device_.queue(kind_).replay(*recording_, {&value, 1}));
  }

  /// Spins as long as a GPU takes for small work, then yields to whatever simulates one.
  void wait() {
    const auto* word = reinterpret_cast<const std::atomic<uint64_t>*>(signal_->host());
    for (uint32_t polls = 0; word->load(std::memory_order_acquire) < value_; ++polls) {
      if (polls < 10'000) continue;
      if (polls % 1024 == 0) unwrap(device_.status());
      std::this_thread::yield();
    }
  }

 private:
  Rig(hal::Device& device, hal::QueueKind kind) : device_(device), kind_(kind) {}
  hal::Device& device_;
  hal::QueueKind kind_;
  std::unique_ptr<hal::Buffer> signal_, scratch_, kernarg_;
  std::unique_ptr<hal::Program> program_;
  std::unique_ptr<hal::Recording> recording_;
  hal::Dim3 grid_;
  uint64_t value_ = 0;
};

/// The unit that DEV=NV:n, CL:n or CUDA:n names.
inline uint32_t unit_of(const runtime::Device& device) {
  const size_t colon = device.name().find(':');
  return colon == std::string::npos
             ? 0
             : static_cast<uint32_t>(std::strtoul(device.name().c_str() + colon + 1, nullptr, 10));
}

}  // namespace bm::cli
