#pragma once
// An ASM2464PD with the firmware of github.com/tinygrad/asm2464pd-firmware (handmade/src/main.c and
// pcie_pio.h, read 2026-11) and a PCI bus behind it: root port, switch of a card, one function.
// Constants are this file's own. What it refuses, each with a line in violations():
//   - a vendor request that main.c does not know, or with other data than it reads
//   (handle_usb_control)
//   - a TLP with no or torn byte enables, or of a kind that the engine does not send (PCIe 5.0,
//   table 2-3)
//   - bulk transfers that no request armed (they are answered by NAK: a time-out), or longer than
//   armed
//   - streams through an endpoint that the SRAM's engine has armed (one FIFO: handle_usb_bulk_data)
//   - slots beyond the SRAM of 512 KiB
//   - memory requests that no window of a port leads on, ports that do not decode, configuration
//     requests that no bus number leads on: unsupported request, as the specification has it; a
//     violation only where the request is a write of memory, which nobody would notice

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "drivers/transport/usb/usb.h"

namespace bm::sim {

struct Asm24Options {
  std::string product_text = "custom";
  bool is_usb2 = false;
  bool has_card = true;        ///< else the link never comes up
  bool is_powered = false;     ///< at first
  uint32_t not_ready = 0;      ///< configuration requests to the function answered by retry status
  uint32_t lost_requests = 0;  ///< TLPs that are not completed, from the first on
};

class Asm24Model final : public UsbDevice {
 public:
  /// `function`: at the end of the bus, decoding by its own BARs. Outlives the model.
  Asm24Model(PciFunction& function, const Asm24Options& options = {});

  const UsbIdentity& identity() const override { return identity_; }
  Result<size_t> control_in(const UsbRequest& request, std::span<std::byte> to,
                            uint32_t timeout_ms) override;
  Status control_out(const UsbRequest& request, std::span<const std::byte> from,
                     uint32_t timeout_ms) override;
  Result<size_t> bulk_in(uint8_t endpoint, std::span<std::byte> to, uint32_t timeout_ms) override;
  Status bulk_out(uint8_t endpoint, std::span<const std::byte> from, uint32_t timeout_ms) override;
  Status clear_halt(uint8_t endpoint) override;

  /// What goes wrong with transfer `at` (from 0), and with all later ones where `is_for_ever`.
  enum class Failure : uint8_t { kTimeout, kStall, kShort, kUnplug };
  void plant(uint64_t at, Failure failure) { planted_ = {at, failure}; }
  uint64_t transfers() const { return transfers_; }
  void unplug() { is_unplugged_ = true; }

  /// What the function on the bus does to the bridge's own memories.
  bool device_write(uint64_t address, std::span<const std::byte> from);
  bool device_read(uint64_t address, std::span<std::byte> to);
  /// The same memories for functions whose DMA goes by pointers: the SRAM, and the page where any
  /// byte written (another than kUntouched) lets an armed read go. Addresses: on the bus.
  static constexpr uint64_t kSramAddress = 0x200000, kReleaseAddress = 0x822000;
  static constexpr std::byte kUntouched{0xa5};
  std::span<std::byte> sram() { return {sram_.get(), kSramBytes}; }
  std::span<std::byte> release_page() { return {release_page_.get(), kPage}; }
  /// Transfers of one kind so far, for those who count what a piece of work costs.
  struct Counts {
    uint64_t control_out = 0, control_in = 0, bulk_out = 0, bulk_in = 0, bulk_bytes = 0;
    uint64_t sram_bytes = 0;  ///< of bulk_bytes, those to and from the SRAM
    uint64_t all() const { return control_out + control_in + bulk_out + bulk_in; }
  };
  const Counts& counts() const { return counts_; }
  const std::vector<std::string>& violations() const { return violations_; }

 private:
  struct Port {
    uint32_t type = 0;  ///< device/port type of the PCI Express capability
    std::vector<uint8_t> config, writable;
  };
  struct Completion {
    uint32_t data = 0;
    uint8_t status = 0;   ///< 0 successful, 1 unsupported request, 2 retry, 4 abort
    uint8_t outcome = 0;  ///< 0 completed, 1 error, 0xff nobody answered
  };
  enum class Armed : uint8_t { kNothing, kStreamOut, kStreamIn, kSramOut };
  static constexpr size_t kSramBytes = 0x80000, kPage = 4096;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  using Pages = std::unique_ptr<std::byte[], Free>;
  static Pages make_pages(size_t bytes);
  void land();
  bool is_let_go();
  void stream(bool is_write, std::span<std::byte> data);
  size_t fetch_sram(std::span<std::byte> to, uint32_t timeout_ms);

  std::optional<Failure> next_failure();
  Status fail_as(Failure failure, const char* what);
  void violate(std::string text) { violations_.push_back(std::move(text)); }
  void power_on();
  Port make_port(uint32_t type) const;
  Completion run_tlp(uint8_t format_type, uint8_t enables, uint64_t address, uint32_t data);
  Completion configure(bool is_write, uint8_t enables, uint64_t address, uint32_t data);
  Completion access(bool is_write, uint8_t enables, uint64_t address, uint32_t data);
  PciFunction* route(uint64_t address, uint32_t* bar, uint64_t* offset);
  static uint32_t get(const Port& port, uint32_t offset, uint32_t width);

  PciFunction& function_;
  const Asm24Options options_;
  UsbIdentity identity_;
  std::vector<uint8_t> xdata_;
  Pages sram_, release_page_;
  std::vector<std::byte> incoming_;  ///< sent, on its way to incoming_at_ of the SRAM
  uint64_t incoming_at_ = 0;
  Counts counts_;
  std::vector<Port> ports_;
  std::map<uint32_t, Mmio> bars_;
  Completion completion_;
  Armed armed_ = Armed::kNothing;
  uint64_t stream_address_ = 0;
  uint64_t stream_left_ = 0;  ///< bytes
  uint64_t sram_at_ = 0;
  uint64_t sram_left_ = 0;  ///< bytes
  bool is_sram_armed_ = false;
  uint32_t not_ready_ = 0, lost_ = 0;
  std::atomic<uint64_t> transfers_{0};
  std::optional<std::pair<uint64_t, Failure>> planted_;
  std::atomic<bool> is_unplugged_{false};
  std::vector<std::string> violations_;
};

}  // namespace bm::sim
