#pragma once
// A world with opened fake devices, and shorthands to make calls on them.

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/graph/fake_hal.h"
#include "runtime/device.h"
#include "runtime/graph.h"
#include "runtime/program_cache.h"

namespace bm::fake {

/// Value of a Result that must not be an error.
template <class T>
T must(Result<T> result) {
  if (!result) {
    ADD_FAILURE() << code_name(result.error().code) << ": " << result.error().message;
    std::abort();
  }
  return std::move(*result);
}
inline void must(Status status) {
  ASSERT_TRUE(status.has_value()) << code_name(status.error().code) << ": "
                                  << status.error().message;
}

inline constexpr FakeOptions kInline{.is_inline = true};
inline constexpr FakeOptions kQueue{};
inline constexpr FakeOptions kOneQueue{.has_copy_queue = false};

struct Rig {
  explicit Rig(const std::vector<FakeOptions>& options, uint32_t seed = 1) : world(seed) {
    for (const FakeOptions& o : options) {
      const auto id = static_cast<uint32_t>(devices.size() + 1);
      auto hal = std::make_unique<FakeDevice>(world, id, o);
      hals.push_back(hal.get());
      devices.push_back(must(runtime::make_device(std::move(hal), fmt::format("FAKE:{}", id), "")));
    }
  }
  ~Rig() {
    world.set({});
    world.drain();    // also what a failed submission left behind
    devices.clear();  // before the world their queues run in
    EXPECT_EQ(world.fault(), "");
  }

  runtime::Device& device(size_t i = 0) { return *devices[i]; }

  runtime::Buffer words(size_t count, size_t on = 0, uint64_t first = 0) {
    auto buffer = must(runtime::allocate(device(on), {.size = count * 8}));
    for (size_t i = 0; i < count; ++i) data(buffer)[i] = first + i;
    return buffer;
  }
  static uint64_t* data(const runtime::Buffer& buffer) {
    return reinterpret_cast<uint64_t*>(peek(buffer));
  }

  /// out = mix(out, in…) over the out buffer's words, or over `grid` if given.
  runtime::Call kernel(std::vector<runtime::Arg> args, std::vector<uint32_t> vars = {},
                       std::optional<hal::DimExpr> grid = {}) {
    for (size_t i = 0; i < args.size(); ++i) {
      args[i].is_written = i == 0;
      args[i].is_read = true;
    }
    runtime::Device& on = args[0].buffer.device();
    hal::DimExpr whole;
    whole.constant = static_cast<int64_t>(args[0].buffer.size / 8);
    const auto code = mix_kernel(static_cast<uint32_t>(args.size()),
                                 static_cast<uint32_t>(vars.size()), grid ? *grid : whole);
    runtime::KernelCall call;
    call.program = must(runtime::load_program(on, code));
    call.device = &on;
    call.vars = std::move(vars);
    return {"mix", std::move(call), std::move(args)};
  }
  static runtime::Call copy(runtime::Arg dst, runtime::Arg src) {
    dst.is_written = true;
    dst.is_read = false;
    return {"copy", runtime::CopyCall{}, {std::move(dst), std::move(src)}};
  }

  World world;
  std::vector<FakeDevice*> hals;
  std::vector<std::unique_ptr<runtime::Device>> devices;
};

inline runtime::Arg fixed(runtime::Buffer buffer) { return {std::move(buffer)}; }
inline runtime::Arg input(int32_t slot, runtime::Buffer buffer) {
  return {std::move(buffer), slot};
}

/// Makes a symbolic dimension of `coefficient`·(the kernel's variable 0) + constant.
inline hal::DimExpr dim_of_var(int64_t coefficient, int64_t constant = 0) {
  hal::DimExpr dim;
  dim.constant = constant;
  dim.terms = {{0, coefficient}};
  return dim;
}

}  // namespace bm::fake
