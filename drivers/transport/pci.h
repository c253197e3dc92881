#pragma once
// One function of a PCI device, whoever gives it to us: VFIO, sysfs, a process on a socket, a USB
// bridge or a test. No vendor's word in here. What every function has by the PCI specification
// (capabilities, BAR sizing, power states) is in pci_config.h, over the configuration space alone.

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/transport/mmio.h"
#include "runtime/base/result.h"

namespace bm {

/// Place of a function on its bus; written as Linux writes it, "0000:03:00.0".
struct PciAddress {
  uint16_t domain = 0;
  uint8_t bus = 0, device = 0, function = 0;
  auto operator<=>(const PciAddress&) const = default;
};
std::string to_string(const PciAddress& address);
/// "0000:03:00.0" or "03:00.0". Errors: kInvalidArgument naming the text.
Result<PciAddress> parse_pci_address(std::string_view text);

struct PciIdentity {
  PciAddress address;
  uint16_t vendor = 0, device = 0;
  uint16_t subsystem_vendor = 0, subsystem_device = 0;
  uint32_t class_code = 0;  ///< base class, subclass and interface: 0x030000 is a VGA controller
  uint8_t revision = 0;
};

inline constexpr uint32_t kPciBars = 6;

/// A base address register. The second word of a 64-bit one is a PciBar of no bytes.
struct PciBar {
  uint64_t size = 0;     ///< bytes; 0: not there
  uint64_t address = 0;  ///< on the bus; 0 where whoever gives us the function hides it
  bool is_memory = true, is_64_bit = false, is_prefetchable = false;
};

/// Configuration space: 256 bytes, 4096 on PCI Express.
class PciConfig {
 public:
  virtual ~PciConfig() = default;
  /// `width` is 1, 2 or 4 bytes, `offset` a multiple of it. A function that is gone gives all ones.
  /// Errors: kInvalidArgument (offset, width); kDeviceLost, kIo (the transport failed).
  Result<uint32_t> read_config(uint32_t offset, uint32_t width);
  Status write_config(uint32_t offset, uint32_t width, uint32_t value);

 protected:
  virtual uint32_t config_size() const = 0;
  /// Arguments are checked.
  virtual Result<uint32_t> do_read_config(uint32_t offset, uint32_t width) = 0;
  virtual Status do_write_config(uint32_t offset, uint32_t width, uint32_t value) = 0;
};

/// A range of addresses as the device sends them.
struct BusRange {
  uint64_t address = 0, bytes = 0;
  bool operator==(const BusRange&) const = default;
};

/// What may be mapped for DMA.
struct DmaLimits {
  /// False: no memory of the host is in the function's reach, neither dma_map()'s nor
  /// dma_allocate()'s. What the function reads lies in its own memory then, and bytes go through
  /// its BARs or PciFunction::staging().
  bool reaches_host = true;
  bool takes_iova = false;  ///< behind an IOMMU: the caller says at which bus address
  uint64_t page_bytes = 4096;
  uint32_t address_bits = 64;  ///< of the bus address that the transport can serve
  uint32_t mappings = 0;       ///< at most so many at once; 0: unlimited
  std::vector<BusRange> reserved =
      {};  ///< bus addresses that cannot be IOVAs (MSI window, firmware)
};

/// Process memory that the device may read and write, while it exists in dma_map()'s record.
struct DmaRequest {
  void* host = nullptr;  ///< aligned to DmaLimits::page_bytes, as is `bytes`
  uint64_t bytes = 0;
  std::optional<uint64_t> iova = std::nullopt;  ///< present exactly where DmaLimits::takes_iova
  bool is_read_only = false;  ///< the device must not write it; honoured behind an IOMMU only
};

/// Memory of the transport's own making: pinned here, or on the other side of a socket, where
/// nothing of this process can be mapped. Unmapped and freed with the object.
class DmaMemory {
 public:
  virtual ~DmaMemory() = default;
  const HostView& view() const { return view_; }
  const std::vector<BusRange>& ranges() const { return ranges_; }  ///< in order; sum: view().size()

 protected:
  HostView view_;
  std::vector<BusRange> ranges_;
};

/// Memory on the way to a function that reaches none of the host's: the host moves bytes in and out
/// by calls, the function by DMA. Thread: callers serialise among themselves; beside anything else
/// of the function.
/// Errors: kInvalidArgument (place, size); of the transport.
class StagingMemory {
 public:
  virtual ~StagingMemory() = default;
  virtual BusRange range() const = 0;  ///< where the function reaches it
  /// write() begins at a multiple of it.
  virtual uint64_t slot_bytes() const = 0;
  /// Sizes of writes are rounded up to a multiple of it, with zeros.
  virtual uint64_t sector_bytes() const = 0;
  /// Bytes land in order, and some time after the call: let the function wait for the last word.
  virtual Status write(uint64_t offset, std::span<const std::byte> from) = 0;
  /// A write of the function anywhere in this range lets a read go.
  virtual BusRange release() const = 0;
  /// The first bytes, once the function has written to release(). `start`, called when that is
  /// waited for, makes the function fill them and write there; its failure is the read's. Others'
  /// use of the transport waits meanwhile.
  virtual Status read(std::span<std::byte> to, const std::function<Status()>& start) = 0;
};

enum class PciReset : uint8_t {
  kFunction,  ///< function level reset
  kBus,       ///< secondary bus reset: every function behind the port, siblings included
};

/// One function, owned: closing it gives it back. Thread: callers serialise, but wait_interrupt()
/// may run beside anything. After the function or the way to it is lost every call says so, and
/// register windows read as all ones; one that is mapped keeps reading the function as long as that
/// is there, which it is while the kernel waits for it to be closed.
class PciFunction : public PciConfig {
 public:
  virtual const PciIdentity& identity() const = 0;

  virtual const std::array<PciBar, kPciBars>& bars() const = 0;
  /// The registers or memory behind a BAR; valid until resize_bar() of it or the end of the
  /// function. `is_write_combined`: for memory; a wish.
  /// Errors: kInvalidArgument (no such memory BAR); kPermission; kIo.
  virtual Result<Mmio> map_bar(uint32_t index) = 0;
  virtual Result<HostView> map_bar_memory(uint32_t index, bool is_write_combined) = 0;
  /// Asks for another size of a resizable BAR that nothing is mapped of. Errors: kUnsupported,
  /// kInvalidArgument (size not offered), kOutOfMemory (no room below the bridge).
  virtual Status resize_bar(uint32_t index, uint64_t bytes) = 0;

  virtual const DmaLimits& dma_limits() const = 0;
  /// Another process answers for the function, which may be a model of one.
  virtual bool is_served() const { return false; }
  /// nullptr: none. Lives as long as the function.
  virtual StagingMemory* staging() { return nullptr; }
  /// Lets the device reach `request.host`. The ranges are in the order of the memory: one at `iova`
  /// behind an IOMMU, physical pieces without. The memory must stay where it is until dma_unmap().
  /// Errors: kInvalidArgument (alignment, overlap, reserved or missing IOVA); kOutOfMemory (locked
  /// memory or mappings, with need and limit); kUnsupported (memory of this process is out of
  /// reach: dma_allocate()).
  virtual Result<std::vector<BusRange>> dma_map(const DmaRequest& request) = 0;
  /// After it the device's accesses there fault behind an IOMMU; without one they hit whatever
  /// lies there, so stop its engines first. Errors: kInvalidArgument (not the start of a mapping).
  virtual Status dma_unmap(void* host) = 0;
  /// At least `bytes`, zeroed. `iova` as in DmaRequest. Errors: as dma_map().
  virtual Result<std::unique_ptr<DmaMemory>> dma_allocate(uint64_t bytes, bool is_contiguous,
                                                          std::optional<uint64_t> iova) = 0;

  /// Sets up to `wanted` MSI or MSI-X vectors going; how many there are. Errors: kUnsupported: poll
  /// the device instead.
  virtual Result<uint32_t> enable_interrupts(uint32_t wanted) = 0;
  /// A descriptor that is readable while interrupts of `vector` are pending, for poll(2); owned by
  /// the function. Errors: kUnsupported (no descriptor on this transport; wait_interrupt() works),
  /// kInvalidArgument (vector not enabled).
  virtual Result<int> interrupt_fd(uint32_t vector) = 0;
  /// Waits for an interrupt and consumes what is pending; false: `timeout_ms` ran out.
  virtual Result<bool> wait_interrupt(uint32_t vector, int timeout_ms) = 0;

  /// Back to the state after power-on: configuration space (BARs are restored by whoever resets),
  /// registers and engines; interrupts are off. Errors: kUnsupported, kTimeout (not back in time).
  virtual Status reset(PciReset kind) = 0;

  /// The first failure of function or transport; sticky.
  virtual Status status() const = 0;
};

}  // namespace bm
