#pragma once
// A flat memory, kernels compiled on the spot by clang where it is installed, and the loader for
// them: no product code.

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/amd/exec/interpreter.h"

namespace bm::sim::amd::test {

class FlatMemory : public Memory {
 public:
  static constexpr uint64_t kBase = 0x200000;
  explicit FlatMemory(size_t bytes = 8 << 20) : bytes_(bytes) {}
  Place at(uint64_t address, uint32_t bytes, Access) override {
    if (address < kBase || address - kBase > bytes_.size() ||
        bytes_.size() - (address - kBase) < bytes)
      return {};
    return {bytes_.data() + (address - kBase), false};
  }
  /// Address of a fresh range, aligned to 256.
  uint64_t allocate(size_t bytes) {
    const uint64_t address = kBase + used_;
    used_ += (bytes + 255) & ~size_t{255};
    return address;
  }
  template <class T>
  uint64_t put(const std::vector<T>& values) {
    const uint64_t address = allocate(values.size() * sizeof(T));
    std::memcpy(host(address), values.data(), values.size() * sizeof(T));
    return address;
  }
  template <class T>
  std::vector<T> get(uint64_t address, size_t count) {
    std::vector<T> values(count);
    std::memcpy(values.data(), host(address), count * sizeof(T));
    return values;
  }
  std::byte* host(uint64_t address) { return bytes_.data() + (address - kBase); }

 private:
  std::vector<std::byte> bytes_;
  size_t used_ = 0;
};

struct Kernel {
  std::string name;
  std::vector<uint8_t> descriptor;  ///< 64 bytes
  uint64_t entry_offset = 0;        ///< in the text section
};
struct Object {
  std::vector<uint8_t> text;
  std::vector<Kernel> kernels;
};

/// The compiler's path, or nothing where it is not installed.
std::optional<std::string> find_tool(const char* name);
/// OpenCL C to a code object. Nothing where there is no compiler; fails the test when it refuses.
std::optional<Object> compile(const std::string& source, const std::string& chip,
                              const std::string& options = "");

/// Runs `kernel` with `arguments` as its kernarg segment.
tl::expected<Statistics, Fault> launch(FlatMemory& memory, const Object& object,
                                       const std::string& kernel, const std::string& chip,
                                       Extent3 grid, Extent3 group,
                                       const std::vector<uint64_t>& arguments);

}  // namespace bm::sim::amd::test
