#pragma once
// GPUs as the kernel driver describes them in sysfs. Opens nothing, disturbs nothing.
//
// Source: Linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c, node_show() (properties);
// amdgpu_discovery.c (ip_discovery); kfd_queue.c, kfd_queue_ctx_save_restore_size().

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/amd/chips.h"
#include "drivers/transport/system.h"
#include "runtime/base/result.h"

namespace bm::amd::kfd {

/// A version and the segment bases of one block.
struct IpBlock {
  uint32_t major = 0, minor = 0, revision = 0;
  std::vector<uint32_t> bases;  ///< dword addresses
};

/// One GPU node.
struct Node {
  uint32_t number = 0;  ///< of the node's folder
  uint32_t gpu_id = 0;
  std::string name;
  std::map<std::string, uint64_t> properties;
  uint64_t video_memory = 0;
  std::vector<uint32_t> near_nodes;  ///< numbers of nodes with a link of their own (XGMI)

  /// A property, or `fallback` where the kernel does not have it.
  uint64_t get(const std::string& key, uint64_t fallback = 0) const;
  uint32_t render_minor() const { return static_cast<uint32_t>(get("drm_render_minor")); }
  uint32_t target_version() const { return static_cast<uint32_t>(get("gfx_target_version")); }
  uint32_t xccs() const;
  uint32_t cus_per_xcc() const;
  uint32_t engines_per_xcc() const;
};

/// Every GPU this process may use, by node number. Nodes that a control group hides are left out.
/// Errors: kNotFound where there is no such folder (the driver is not loaded), kCorrupt for
/// contents that are none.
Result<std::vector<Node>> read_nodes(System& system);

/// A block of the card behind a render node. `hardware_id`: 11 graphics, 42 SDMA0, 108 bus.
/// Errors: kNotFound where the kernel does not tell; kCorrupt.
Result<IpBlock> read_block(System& system, uint32_t render_minor, uint32_t hardware_id);
inline constexpr uint32_t kGraphicsBlock = 11, kBusBlock = 108;

/// Bytes of a compute queue's save areas, each for one chiplet; the kernel compares them for
/// equality. From sysfs where the kernel publishes them, else by its formula.
struct SaveSizes {
  uint32_t control_stack = 0;
  uint32_t save = 0;   ///< control stack included
  uint32_t debug = 0;  ///< behind it
  /// Of the mapping over all chiplets.
  uint64_t total(uint32_t xccs) const;
};
SaveSizes save_sizes(const Node& node, const ChipRow& chip);

/// End-of-pipe buffer of a compute queue.
inline constexpr uint32_t kEopBytes = 4096;

}  // namespace bm::amd::kfd
