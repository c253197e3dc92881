#pragma once
// The chips the simulator can be: what their kernel driver lists and what their engines accept.

#include <cstdint>
#include <span>
#include <string_view>

namespace bm::sim::nv {

enum class TokenForm : uint8_t {
  kRunlistChannel,      ///< Turing … GB10x: runlist 22:16, channel 11:0
  kRunlistChannelRing,  ///< GB20x: as above and bit 30, ring by runlist
};

struct Chip {
  std::string_view name;       ///< "gh100"
  std::string_view marketing;  ///< name string
  uint16_t pci_device;
  uint32_t sm_version;      ///< register form: 0x900 for sm_90
  uint32_t usermode_class;  ///< native one
  uint32_t compute_class, copy_class;
  uint32_t qmd_major;  ///< native descriptor
  bool takes_qmd3;     ///< V3 descriptors too (Hopper's compatibility form)
  TokenForm token;
  uint32_t copy_engines;
  uint32_t graphics_copies;  ///< of these, the first: they share graphics' runlist
  uint32_t gpcs, tpcs_per_gpc, sms_per_tpc, warps_per_sm;
  std::span<const uint32_t> classes;       ///< what GET_CLASSLIST reports
  std::span<const uint32_t> shared_sizes;  ///< KiB configurations of shared memory
  uint32_t shared_reserve;                 ///< bytes of a configuration that no block gets
};

const Chip* find_chip(std::string_view name);
std::span<const Chip> all_chips();

/// NV2080_ENGINE_TYPE_COPYn of a copy engine that works in step with graphics.
constexpr bool is_graphics_copy(const Chip& chip, uint32_t engine) {
  return engine >= 9 && engine < 9 + chip.graphics_copies;
}

}  // namespace bm::sim::nv
