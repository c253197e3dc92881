#pragma once
// Launch descriptors (QMD) as the compute engine reads them.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/sim/nv/chip.h"

namespace bm::sim::nv {

struct Descriptor {
  uint32_t major = 0, minor = 0, type = 0, group = 0;
  std::array<uint32_t, 3> grid{}, block{};
  uint32_t registers = 0, barriers = 0, shared = 0;
  uint32_t min_config = 0, max_config = 0, target_config = 0;
  uint64_t program = 0;
  uint32_t local_bytes = 0;  ///< of a thread, low and high together
  struct Bank {
    bool is_valid = false;
    uint64_t address = 0;
    uint32_t size = 0;  ///< bytes
  };
  std::array<Bank, 8> banks{};
  struct Release {
    bool is_enabled = false;
    uint64_t address = 0, payload = 0;
    uint32_t words = 4;
  };
  std::array<Release, 3> releases{};
  struct Dependent {
    bool is_enabled = false;
    uint32_t action = 0;
    uint64_t address = 0;
  };
  std::array<Dependent, 2> dependents{};
};

/// Bytes of the descriptor of a major version.
constexpr uint32_t descriptor_bytes(uint32_t major) { return major >= 4 ? 384 : 256; }

/// Version of the descriptor in `words` for a compute class, where the class takes it; nullopt with
/// the reason in *why.
std::optional<uint32_t> descriptor_version(uint32_t object_class, std::span<const uint32_t> words,
                                           std::string* why);
Descriptor decode_descriptor(uint32_t major, std::span<const uint32_t> words);
/// Fields that may be damaged.
enum class DescriptorField : uint8_t { kMajor, kGridY, kBlockX, kBlockZ, kShared, kProgramHigh };
/// `value` as decode_descriptor() would give it; what does not fit is cut.
void set_field(uint32_t major, std::span<uint32_t> words, DescriptorField field, uint64_t value);
/// What the chip would refuse about it, empty when nothing.
std::string descriptor_problem(const Descriptor& descriptor, const Chip& chip);

}  // namespace bm::sim::nv
