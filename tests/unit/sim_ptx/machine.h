#pragma once
// What the interpreter's tests share: flat memory, one-instruction kernels, readable failures.

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/ptx/interpreter.h"

namespace bm::sim::ptx::test {

/// Allocations at addresses of their own, with unmapped space between them.
class FlatMemory : public Memory {
 public:
  uint64_t allocate(size_t bytes) {
    const uint64_t at = next_;
    next_ += (bytes + 0x1ffff) & ~uint64_t{0xffff};
    ranges_[at].resize(bytes);
    return at;
  }
  template <class T>
  uint64_t put(const std::vector<T>& values) {
    const uint64_t at = allocate(values.size() * sizeof(T));
    std::memcpy(ranges_[at].data(), values.data(), values.size() * sizeof(T));
    return at;
  }
  template <class T>
  std::vector<T> get(uint64_t at) const {
    const auto& bytes = ranges_.at(at);
    std::vector<T> out(bytes.size() / sizeof(T));
    std::memcpy(out.data(), bytes.data(), out.size() * sizeof(T));
    return out;
  }
  std::byte* at(uint64_t address, uint32_t bytes, Access) override {
    auto it = ranges_.upper_bound(address);
    if (it == ranges_.begin()) return nullptr;
    --it;
    const uint64_t offset = address - it->first;
    if (offset > it->second.size() || it->second.size() - offset < bytes) return nullptr;
    return it->second.data() + offset;
  }

 private:
  uint64_t next_ = 0x4000000000;
  std::map<uint64_t, std::vector<std::byte>> ranges_;
};

inline std::shared_ptr<const Module> parsed(const std::string& text) {
  auto module = parse(text);
  EXPECT_TRUE(module.has_value()) << (module ? "" : module.error().message) << "\n" << text;
  return module ? *module : nullptr;
}

/// A module with one kernel `k` of pointers p0 … in %rd0 …, thread index in %r0, address of element
/// `%r0` of 8 bytes in %rd10 … (one per pointer), and `body`.
inline std::string kernel_text(const std::string& body, int pointers, const std::string& more = "",
                               const std::string& target = "sm_90") {
  std::string text =
      ".version 8.6\n.target " + target + "\n.address_size 64\n" + more + "\n.visible .entry k(";
  for (int i = 0; i < pointers; ++i)
    text += (i ? ", " : "") + std::string(".param .u64 p") + std::to_string(i);
  text +=
      ") {\n .reg .pred %p<16>; .reg .b16 %h<32>; .reg .b32 %r<64>; .reg .b64 %rd<64>;\n"
      " .reg .f32 %f<32>; .reg .f64 %fd<32>;\n .reg .b64 %at<16>; .reg .b64 %index;\n"
      " mov.u32 %r0, %tid.x;\n mul.wide.u32 %index, %r0, 8;\n";
  for (int i = 0; i < pointers; ++i) {
    const std::string n = std::to_string(i);
    text +=
        " ld.param.u64 %rd" + n + ", [p" + n + "];\n add.u64 %at" + n + ", %rd" + n + ", %index;\n";
  }
  return text + body + "\n ret;\n}\n";
}

struct Outcome {
  bool ok = false;
  Fault fault;
  Stats stats;
};

inline Outcome launch(const Module& module, FlatMemory& memory, const std::vector<uint64_t>& args,
                      Dim3 grid, Dim3 block, Launch options = {}) {
  options.kernel = module.kernels().front().name;
  options.grid = grid;
  options.block = block;
  options.params = std::as_bytes(std::span(args));
  if (!options.max_instructions) options.max_instructions = 20'000'000;
  auto result = run(module, options, memory);
  if (!result) return {false, result.error(), {}};
  return {true, {}, *result};
}

/// Bit patterns worth trying for every operand, 64 bits wide.
inline std::vector<uint64_t> patterns(uint64_t seed, size_t count) {
  std::vector<uint64_t> out = {0,
                               1,
                               2,
                               31,
                               32,
                               33,
                               63,
                               64,
                               65,
                               0x7f,
                               0x80,
                               0xff,
                               0x7fff,
                               0x8000,
                               0xffff,
                               0x7fffffff,
                               0x80000000,
                               0xffffffff,
                               ~0ull,
                               0x8000000000000000ull,
                               0x7fffffffffffffffull};
  std::mt19937_64 random(seed);
  while (out.size() < count) out.push_back(random() >> (random() % 64));
  return out;
}

}  // namespace bm::sim::ptx::test
