#pragma once
// ASMedia ASM2462 and ASM2464PD: USB bridges to PCI Express whose firmware lets the host send
// transaction layer packets (TLPs). The firmware that they are sold with does not: it is told apart
// and explained, never replaced.
// Source: github.com/tinygrad/asm2464pd-firmware, handmade/src/main.c (handle_usb_control) and
// pcie_pio.h, read 2026-11; nothing here ran on a bridge.

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>

#include "drivers/transport/clock.h"
#include "drivers/transport/usb/usb.h"

namespace bm {

/// Whether vendor and product id are those of a bridge with firmware that this file drives, or of
/// one as it is sold.
enum class Asm24Kind : uint8_t { kNone, kProgrammable, kStock };
Asm24Kind asm24_kind(uint16_t vendor, uint16_t product);

class Asm24Bridge final : public UsbBridge {
 public:
  /// Memory of the bridge that both sides reach: the host by bulk transfers at hundreds of MB/s,
  /// PCI functions by DMA.
  static constexpr uint64_t kSramBytes = 512 << 10;
  static constexpr uint64_t kSramAddress = 0x200000;  ///< on the PCI bus
  static constexpr uint64_t kSlotBytes = 16 << 10;    ///< transfers begin at a multiple of it
  /// A write there by a PCI function lets an armed read of the SRAM go.
  static constexpr uint64_t kReleaseAddress = 0x822000, kReleaseBytes = 0x1000;

  /// Powers the PCI side up when it is not, and waits for the link.
  /// Errors: kUnsupported (stock firmware); kNotFound (no link: what to look at); of transfers.
  static Result<std::unique_ptr<Asm24Bridge>> open(std::unique_ptr<UsbDevice> usb,
                                                   Clock& clock = real_clock());
  ~Asm24Bridge() override;

  const UsbIdentity& identity() const override { return usb_->identity(); }
  Result<uint32_t> read_config(const PciAddress& function, uint32_t offset,
                               uint32_t width) override;
  Status write_config(const PciAddress& function, uint32_t offset, uint32_t width,
                      uint32_t value) override;
  std::unique_ptr<RemoteWindow> memory_window(uint64_t address, uint64_t bytes) override;
  StagingMemory* staging() override { return staging_.get(); }
  Status power_cycle() override;
  Status status() const override;

  /// Bytes into the SRAM at `offset`, a multiple of kSlotBytes; what lies behind them up to a
  /// multiple of 512 is overwritten with zeros. Errors: kInvalidArgument; of transfers.
  Status write_sram(uint64_t offset, std::span<const std::byte> from);
  /// The first bytes of the SRAM, after a write to kReleaseAddress, which `start` brings about.
  Status read_sram(std::span<std::byte> to, const std::function<Status()>& start);

  /// The bridge controller's own address space (XDATA). Errors: of transfers.
  Status read_xdata(uint16_t address, std::span<std::byte> to);
  Status write_xdata(uint16_t address, std::byte value);

 private:
  class Window;
  class Sram;
  struct Tlp;
  Asm24Bridge(std::unique_ptr<UsbDevice> usb, Clock& clock);
  Status connect();
  Result<bool> has_link();
  Status set_power(bool is_on);
  Status send(const Tlp& tlp, uint8_t mode, uint32_t value);
  Result<uint32_t> request(const Tlp& tlp, uint32_t value);
  Result<uint32_t> read_memory(uint64_t address, uint32_t width);
  Status write_memory(uint64_t address, uint32_t width, uint32_t value);
  Status stream_in(uint64_t address, std::span<std::byte> to);
  Status stream_out(uint64_t address, std::span<const std::byte> from);
  /// Keeps the first failure that no retry can cure.
  Status keep(Status status);

  std::unique_ptr<UsbDevice> usb_;
  Clock& clock_;
  std::unique_ptr<StagingMemory> staging_;
  /// Of all transfers: a request, its answer and its block are one. Calls nest.
  mutable std::recursive_mutex mutex_;
  Status status_;
};

}  // namespace bm
