#pragma once
// NVIDIA GPUs: memory, programs, queues and faults over a DriverInterface.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "drivers/nv/driver_interface.h"
#include "drivers/hcq/memory_pool.h"
#include "drivers/transport/pci.h"
#include "firmware/store.h"
#include "runtime/base/result.h"
#include "runtime/hal/device.h"

namespace bm::nv {

namespace gsp {
class GspCard;
}

/// GPUs that the nvidia kernel driver lists, or for the interface "PCI" the cards of BM_PCI, else
/// those that are free (cards.h). Errors: kNotFound, kPermission naming the node; of find_cards().
Result<uint32_t> count_devices(std::string_view interface);
/// `arch`: empty, or "sm_90" to insist. Errors: as open_rm(), or as open_card(), naming the card;
/// kInvalidArgument for another `arch`.
hal::OpenedDevice open_device(std::string_view interface, uint32_t index, std::string_view arch);

/// A card without a kernel driver, booted with the files of `firmware` (gsp/card.h), whoever gives
/// its function. Errors: of the boot, naming the stage; kInvalidArgument for another `arch`.
hal::OpenedDevice open_card(std::unique_ptr<PciFunction> function, std::string_view arch,
                            const firmware::Search& firmware = firmware::default_search());

struct DeviceOptions {
  uint64_t slab_bytes = hcq::MemoryPool::kSlabBytes;
  uint32_t ring_entries = 1024;
  uint64_t command_bytes = 4 << 20;
  std::string launch_form = {};  ///< as BM_NV_LAUNCH, which it overrides when not empty
};

/// A device over a card whose GSP runs. Errors: name the stage (P12 to P15); kInvalidArgument as
/// above.
hal::OpenedDevice open_booted(std::unique_ptr<gsp::GspCard> card, std::string_view arch = {},
                              const DeviceOptions& options = {});

/// A device over any owner of a GPU. Errors: what creating its channels returns.
hal::OpenedDevice make_device(std::unique_ptr<DriverInterface> driver,
                              const DeviceOptions& options = {});

}  // namespace bm::nv
