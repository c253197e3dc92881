#pragma once
// A GPU as objects of the resource manager: device, subdevice, classes, facts, address space.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "drivers/nv/chips.h"
#include "drivers/nv/driver_interface.h"
#include "drivers/nv/rm/client.h"

namespace bm::nv {

/// One GPU as it is listed.
struct RmGpuId {
  uint32_t gpu = 0;                 ///< the resource manager's id
  std::string text;                 ///< "GPU 10de:2335 at 0000:01:00.0"
  uint64_t least_video_memory = 0;  ///< bytes, should the resource manager not tell
};

/// Opened in steps, in this order; a step that fails leaves an object to be destroyed.
class RmDevice {
 public:
  RmDevice(RmClient& client, RmGpuId id) : client_(client), id_(std::move(id)) {}
  ~RmDevice();

  /// Device, subdevice, and the classes of the chip.
  Status open_objects();
  /// The page with doorbell and clock.
  Status map_usermode();
  /// An address space whose page tables belong to somebody else (`is_externally_owned` of nvos.h),
  /// and the GPU's uuid.
  Status open_va_space();
  Status read_facts();

  RmClient& client() { return client_; }
  const RmGpuId& id() const { return id_; }
  const GpuFacts& facts() const { return facts_; }
  const ClassChoice& classes() const { return classes_; }
  uint32_t device() const { return device_.handle(); }
  uint32_t subdevice() const { return subdevice_.handle(); }
  uint32_t va_space() const { return va_space_.handle(); }
  Mmio usermode() const { return page_->view().registers(); }
  /// Engine types of the copy engines with runlists of their own, as far as the driver tells.
  const std::vector<uint32_t>& copy_engines() const { return copy_engines_; }

 private:
  Result<std::vector<uint32_t>> class_list();
  Result<std::array<uint32_t, 5>> read_gr_info();
  void read_optional_facts();
  void read_copy_engines();
  void drop_graphics_copies();

  RmClient& client_;
  const RmGpuId id_;
  GpuFacts facts_;
  ClassChoice classes_;
  std::vector<uint32_t> copy_engines_;
  RmObject device_, subdevice_, usermode_, va_space_;
  std::unique_ptr<RmMapping> page_;
};

}  // namespace bm::nv
