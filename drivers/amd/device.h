#pragma once
// AMD GPUs: memory, programs, queues and faults over a DriverInterface.

#include <cstdint>
#include <memory>
#include <string_view>

#include "drivers/amd/driver_interface.h"
#include "drivers/hcq/memory_pool.h"
#include "drivers/transport/pci.h"
#include "firmware/store.h"
#include "runtime/base/result.h"
#include "runtime/hal/device.h"

namespace bm::amd {

/// Interface "" or "KFD": GPUs that the amdgpu kernel driver shows this process. "PCI": cards that
/// cards.h finds, untouched. Errors: those of both; kUnsupported ("USB").
Result<uint32_t> count_devices(std::string_view interface);
/// `arch`: empty, or "gfx1100" to insist. Errors: as kfd::open_gpu(), or as open_card(), naming the
/// card; kInvalidArgument for another `arch`.
hal::OpenedDevice open_device(std::string_view interface, uint32_t index, std::string_view arch);

/// A card without a kernel driver, booted with the files of `firmware` (am/gpu.h), whoever gives
/// its function. Errors: of the boot, naming the stage; kInvalidArgument for another `arch`.
hal::OpenedDevice open_card(std::unique_ptr<PciFunction> function, std::string_view arch,
                            const firmware::Search& firmware = firmware::default_search());

enum class PacketMode : uint8_t { kAutomatic, kPm4, kAql };

struct DeviceOptions {
  PacketMode packets = PacketMode::kAutomatic;  ///< AQL where a grid must be spread over chiplets
  bool cumode = true;
  uint64_t slab_bytes = hcq::MemoryPool::kSlabBytes;
  uint32_t ring_entries = 1024;          ///< of the compute queue
  uint32_t copy_ring_bytes = 256 << 10;  ///< power of two, at least a page
  uint64_t command_bytes = 4 << 20;
  uint32_t priority = 7;  ///< of the compute queue, 0 … 15; copy engines serve all alike
};

/// A device over any owner of a GPU. Errors: what creating its queues returns.
hal::OpenedDevice make_device(std::unique_ptr<DriverInterface> driver,
                              const DeviceOptions& options = {});

}  // namespace bm::amd
