#pragma once
// What a driver release does to the shapes of the structures the simulator checks.

#include <cstdint>
#include <string>
#include <string_view>

#include "tests/sim/nv/status.h"

namespace bm::sim::nv {

/// Sizes and offsets in bytes, and answers, that differ among releases; what never moved is written
/// where it is used.
struct Release {
  int major = 0;
  std::string_view version;  ///< string the module reports unless a test overrides it
  uint32_t channel_params, channel_userd_handles, channel_userd_offsets, channel_engine;
  uint32_t memory_params, va_space_params;
  uint32_t map_external, map_external_gpus;  ///< size; attribute records in it
  uint32_t uvm_free, uvm_free_status, unregister_channel, unregister_channel_status;
  uint32_t group_schedule;
  RmStatus no_gpu, no_device_params;  ///< of a device allocation without either
  uint32_t probed_ids, build_version, name_string, class_list_v2, fb_info_v2, gpu_info_v2;
};

/// Row for "535", "550", …, or for a whole version "580.105.08"; nullptr for releases never seen.
const Release* find_release(std::string_view name);

}  // namespace bm::sim::nv
