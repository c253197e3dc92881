#include "drivers/transport/usb/asm24.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "runtime/base/bits.h"

namespace bm {
namespace {

// Vendor requests (main.c, handle_usb_control).
constexpr uint8_t kReadXdata = 0xe4;   // IN; wValue: address, wIndex high: bank
constexpr uint8_t kWriteXdata = 0xe5;  // OUT; wValue: address, wIndex low: value
constexpr uint8_t kTlp = 0xf0;         // OUT: 12 bytes {address, value}; IN: 8 bytes, a completion
constexpr uint8_t kSram = 0xf2;        // OUT; wValue: sectors | direction, wIndex: slots
constexpr uint8_t kPower = 0xf3;       // OUT; wValue bit 0: on
// Modes of kTlp: wIndex 1:0.
constexpr uint8_t kSingle = 0, kStreamOut = 1, kStreamIn = 2;
constexpr uint8_t kEndpointOut = 0x02, kEndpointIn = 0x81;
// Format and type of TLPs (PCI Express Base 5.0, table 2-3). Memory requests use the header of four
// double words for every address: the one that the bridge has been seen to send.
constexpr uint8_t kMemoryRead = 0x20, kMemoryWrite = 0x60;
constexpr uint8_t kConfigRead0 = 0x04, kConfigWrite0 = 0x44, kConfigType1 = 0x01;
// XDATA: state of the PCIe link training (REG_PCIE_LTSSM_STATE, pcie_power_on()).
constexpr uint16_t kLtssm = 0xb450;
constexpr uint8_t kLinkUp = 0x78;
// On high speed links the firmware sends no more of XDATA at once.
constexpr size_t kXdataBytes = 64;
constexpr uint32_t kSector = 512;
constexpr uint16_t kSramIn = 0x8000;

// TIMEOUT: control transfers are answered by an 8051 within milliseconds.
constexpr uint32_t kControlMs = 1000;
// TIMEOUT: the firmware polls a completion 500,000 times before it gives up.
constexpr uint32_t kTlpMs = 5000;
// TIMEOUT: powering up polls the link for 20 x 100 ms.
constexpr uint32_t kPowerMs = 10'000;
// TIMEOUT: streams run at 1.8 MB/s and more (README of the firmware); a tenth of it is a failure.
constexpr uint32_t kBulkMs = 2000, kBytesPerMs = 180;
constexpr size_t kStreamBytes = 256 << 10;
/// A request that failed on the way is sent again so often, a millisecond apart; a function that is
/// still starting (configuration request retry status) may take a second (PCIe 2.3.1).
constexpr int kTries = 10, kRetryTries = 1000;
constexpr uint64_t kPauseUs = 1000;

uint32_t bulk_ms(size_t bytes) { return kBulkMs + static_cast<uint32_t>(bytes / kBytesPerMs); }

void put32(std::byte* to, uint32_t value) {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}
uint32_t get32(const std::byte* from) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value |= std::to_integer<uint32_t>(from[i]) << (8 * i);
  return value;
}

uint32_t ones(uint32_t width) { return width == 4 ? ~0u : (1u << (8 * width)) - 1; }

}  // namespace

std::string to_string(const UsbIdentity& identity) {
  return fmt::format("usb {}-{}, {:04x}:{:04x} '{}'", identity.bus, identity.address,
                     identity.vendor, identity.product, identity.product_text);
}

Asm24Kind asm24_kind(uint16_t vendor, uint16_t product) {
  if ((vendor == 0xadd1 || vendor == 0x3801) && product == 0x0001) return Asm24Kind::kProgrammable;
  // ASMedia's own ids; other makers of enclosures use theirs.
  if (vendor == 0x174c && (product == 0x2462 || product == 0x2463 || product == 0x2464))
    return Asm24Kind::kStock;
  return Asm24Kind::kNone;
}

/// What every TLP names; `width` bytes at an address that is a multiple of it.
struct Asm24Bridge::Tlp {
  uint8_t format_type = 0;
  uint64_t address = 0;
  uint32_t width = 4;

  uint8_t byte_enables() const {
    return static_cast<uint8_t>(((1u << width) - 1) << (address & 3));
  }
  uint32_t shift() const { return static_cast<uint32_t>(address & 3) * 8; }
};

/// Memory space behind the bridge.
class Asm24Bridge::Window final : public RemoteWindow {
 public:
  Window(Asm24Bridge& bridge, uint64_t address, uint64_t bytes)
      : bridge_(bridge), address_(address), size_(bytes) {}

  uint64_t size() const override { return size_; }
  uint64_t read(uint64_t offset, uint32_t width) override {
    if (width == 8) {
      std::array<std::byte, 8> bytes;
      read_block(offset, bytes);
      return get32(bytes.data()) | uint64_t{get32(bytes.data() + 4)} << 32;
    }
    return bridge_.read_memory(address_ + offset, width).value_or(ones(width));
  }
  void write(uint64_t offset, uint32_t width, uint64_t value) override {
    if (width < 8) {
      (void)bridge_.write_memory(address_ + offset, width, static_cast<uint32_t>(value));
      return;
    }
    std::array<std::byte, 8> bytes;
    put32(bytes.data(), static_cast<uint32_t>(value));
    put32(bytes.data() + 4, static_cast<uint32_t>(value >> 32));
    (void)bridge_.stream_out(address_ + offset, bytes);
  }
  void read_block(uint64_t offset, std::span<std::byte> to) override {
    // Streams move whole words; what hangs over at either end is read alone.
    const auto byte = [&](std::byte& at) {
      at = static_cast<std::byte>(read(offset + static_cast<uint64_t>(&at - to.data()), 1));
    };
    const auto [head, body] = split(offset, to.size());
    for (std::byte& at : to.first(head)) byte(at);
    if (body != 0 && !bridge_.stream_in(address_ + offset + head, to.subspan(head, body)))
      std::ranges::fill(to.subspan(head, body), std::byte{0xff});
    for (std::byte& at : to.subspan(head + body)) byte(at);
  }
  void write_block(uint64_t offset, std::span<const std::byte> from) override {
    const auto byte = [&](const std::byte& at) {
      write(offset + static_cast<uint64_t>(&at - from.data()), 1, std::to_integer<uint64_t>(at));
    };
    const auto [head, body] = split(offset, from.size());
    for (const std::byte& at : from.first(head)) byte(at);
    if (body != 0) (void)bridge_.stream_out(address_ + offset + head, from.subspan(head, body));
    for (const std::byte& at : from.subspan(head + body)) byte(at);
  }
  /// Posted writes are pushed ahead by a read (PCIe 2.4.1).
  void flush() override { (void)bridge_.read_memory(address_, 4); }
  Status status() const override { return bridge_.status(); }

 private:
  /// Bytes before the first whole word, and in whole words.
  static std::pair<size_t, size_t> split(uint64_t offset, size_t bytes) {
    const size_t head = std::min<size_t>(bytes, (4 - offset % 4) % 4);
    return {head, (bytes - head) / 4 * 4};
  }
  Asm24Bridge& bridge_;
  const uint64_t address_, size_;
};

class Asm24Bridge::Sram final : public StagingMemory {
 public:
  explicit Sram(Asm24Bridge& bridge) : bridge_(bridge) {}
  BusRange range() const override { return {kSramAddress, kSramBytes}; }
  uint64_t slot_bytes() const override { return kSlotBytes; }
  uint64_t sector_bytes() const override { return kSector; }
  Status write(uint64_t offset, std::span<const std::byte> from) override {
    return bridge_.write_sram(offset, from);
  }
  BusRange release() const override { return {kReleaseAddress, kReleaseBytes}; }
  Status read(std::span<std::byte> to, const std::function<Status()>& start) override {
    return bridge_.read_sram(to, start);
  }

 private:
  Asm24Bridge& bridge_;
};

Asm24Bridge::Asm24Bridge(std::unique_ptr<UsbDevice> usb, Clock& clock)
    : usb_(std::move(usb)), clock_(clock), staging_(std::make_unique<Sram>(*this)) {}
Asm24Bridge::~Asm24Bridge() = default;

Status Asm24Bridge::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

Result<std::unique_ptr<Asm24Bridge>> Asm24Bridge::open(std::unique_ptr<UsbDevice> usb,
                                                       Clock& clock) {
  const UsbIdentity& id = usb->identity();
  if (!id.product_text.starts_with("custom") && !id.product_text.starts_with("AS2462"))
    return fail(Code::kUnsupported,
                "{}: this bridge runs the firmware it is sold with, which passes no PCI accesses "
                "on. It needs one that does (github.com/tinygrad/asm2464pd-firmware); nothing here "
                "writes it",
                to_string(id));
  std::unique_ptr<Asm24Bridge> bridge(new Asm24Bridge(std::move(usb), clock));
  BM_TRY(bridge->connect());
  return bridge;
}

Status Asm24Bridge::connect() {
  if (BM_TRY(has_link())) return {};
  BM_TRY(set_power(true));
  if (BM_TRY(has_link())) return {};
  return fail(Code::kNotFound,
              "{}: no PCI Express link behind the bridge: is the card seated, and its power supply "
              "on?",
              to_string(identity()));
}

Result<bool> Asm24Bridge::has_link() {
  std::byte state{};
  BM_TRY(read_xdata(kLtssm, {&state, 1}));
  return state == std::byte{kLinkUp};
}

Status Asm24Bridge::set_power(bool is_on) {
  return keep(usb_->control_out({kUsbVendorOut, kPower, is_on ? uint16_t{1} : uint16_t{0}, 0}, {},
                                kPowerMs));
}

Status Asm24Bridge::power_cycle() {
  const std::lock_guard lock(mutex_);
  BM_TRY(status_);
  BM_TRY(set_power(false));
  // Rails of the card must be down before they rise again (PCIe CEM, 2.2: 100 ms of stable power
  // follow in the firmware).
  clock_.sleep_us(100'000);
  return connect();
}

Status Asm24Bridge::keep(Status status) {
  if (!status && status_) status_ = status;
  return status;
}

Status Asm24Bridge::read_xdata(uint16_t address, std::span<std::byte> to) {
  const std::lock_guard lock(mutex_);
  BM_TRY(status_);
  for (size_t at = 0; at < to.size(); at += kXdataBytes) {
    const auto part = to.subspan(at, std::min(kXdataBytes, to.size() - at));
    const UsbRequest request{kUsbVendorIn, kReadXdata, static_cast<uint16_t>(address + at), 0};
    const Result<size_t> got = usb_->control_in(request, part, kControlMs);
    if (!got) return keep(tl::unexpected<Error>(got.error()));
    if (*got != part.size())
      return keep(fail(Code::kCorrupt, "{}: {} of {} bytes of XDATA at {:#x}",
                       to_string(identity()), *got, part.size(), address + at));
  }
  return {};
}

Status Asm24Bridge::write_xdata(uint16_t address, std::byte value) {
  const std::lock_guard lock(mutex_);
  BM_TRY(status_);
  return keep(usb_->control_out(
      {kUsbVendorOut, kWriteXdata, address, std::to_integer<uint16_t>(value)}, {}, kControlMs));
}

Status Asm24Bridge::send(const Tlp& tlp, uint8_t mode, uint32_t value) {
  std::array<std::byte, 12> data;
  const uint64_t aligned = tlp.address & ~uint64_t{3};
  put32(data.data(), static_cast<uint32_t>(aligned));
  put32(data.data() + 4, static_cast<uint32_t>(aligned >> 32));
  put32(data.data() + 8, value);
  const auto what = static_cast<uint16_t>(tlp.format_type | tlp.byte_enables() << 8);
  return keep(usb_->control_out({kUsbVendorOut, kTlp, what, mode}, data, kTlpMs));
}

/// A TLP that is answered. Errors: kNotFound for an unsupported request, which is no failure of the
/// bridge.
Result<uint32_t> Asm24Bridge::request(const Tlp& tlp, uint32_t value) {
  int lost = 0, starting = 0;
  for (;;) {
    BM_TRY(send(tlp, kSingle, value << tlp.shift()));
    std::array<std::byte, 8> reply;
    const Result<size_t> got = usb_->control_in({kUsbVendorIn, kTlp, 0, 0}, reply, kTlpMs);
    if (!got) return tl::unexpected<Error>(keep(tl::unexpected<Error>(got.error())).error());
    if (*got != reply.size())
      return tl::unexpected<Error>(
          keep(fail(Code::kCorrupt, "{}: a completion of {} bytes", to_string(identity()), *got))
              .error());
    const auto outcome = std::to_integer<uint32_t>(reply[7]);
    const uint32_t completion = std::to_integer<uint32_t>(reply[4]) >> 5;
    if (outcome != 0) {
      if (++lost == kTries)
        return tl::unexpected<Error>(
            keep(fail(Code::kIo, "{}: TLP {:#x} at {:#x} was not completed ({})",
                      to_string(identity()), tlp.format_type, tlp.address,
                      outcome == 0xff ? "no answer" : "error"))
                .error());
      clock_.sleep_us(kPauseUs);
      continue;
    }
    switch (completion) {
      case 0: return (get32(reply.data()) >> tlp.shift()) & ones(tlp.width);
      case 1:
        return fail(Code::kNotFound, "{}: unsupported request at {:#x}", to_string(identity()),
                    tlp.address);
      case 2:
        if (++starting < kRetryTries) break;
        return fail(Code::kTimeout, "{}: the function at {:#x} is not ready after a second",
                    to_string(identity()), tlp.address);
      default:
        return fail(Code::kIo, "{}: completer abort ({}) at {:#x}", to_string(identity()),
                    completion, tlp.address);
    }
    clock_.sleep_us(kPauseUs);
  }
}

namespace {
/// Bus, device, function and register of a configuration request (PCIe 2.2.7).
uint64_t config_address(const PciAddress& function, uint32_t offset) {
  return uint64_t{function.bus} << 24 | uint64_t{function.device} << 19 |
         uint64_t{function.function} << 16 | (offset & 0xfff);
}
}  // namespace

Result<uint32_t> Asm24Bridge::read_config(const PciAddress& function, uint32_t offset,
                                          uint32_t width) {
  const std::lock_guard lock(mutex_);
  BM_TRY(status_);
  const auto type = static_cast<uint8_t>(kConfigRead0 | (function.bus > 0 ? kConfigType1 : 0));
  return request({type, config_address(function, offset), width}, 0);
}

Status Asm24Bridge::write_config(const PciAddress& function, uint32_t offset, uint32_t width,
                                 uint32_t value) {
  const std::lock_guard lock(mutex_);
  BM_TRY(status_);
  const auto type = static_cast<uint8_t>(kConfigWrite0 | (function.bus > 0 ? kConfigType1 : 0));
  BM_TRY(request({type, config_address(function, offset), width}, value & ones(width)));
  return {};
}

std::unique_ptr<RemoteWindow> Asm24Bridge::memory_window(uint64_t address, uint64_t bytes) {
  return std::make_unique<Window>(*this, address, bytes);
}

/// An unsupported request or an abort reads as ones, as behind any other root port.
Result<uint32_t> Asm24Bridge::read_memory(uint64_t address, uint32_t width) {
  const std::lock_guard lock(mutex_);
  BM_TRY(status_);
  return request({kMemoryRead, address, width}, 0);
}

Status Asm24Bridge::write_memory(uint64_t address, uint32_t width, uint32_t value) {
  const std::lock_guard lock(mutex_);
  BM_TRY(status_);
  const Tlp tlp{kMemoryWrite, address, width};
  return send(tlp, kSingle, (value & ones(width)) << tlp.shift());
}

Status Asm24Bridge::stream_in(uint64_t address, std::span<std::byte> to) {
  const std::lock_guard lock(mutex_);
  BM_TRY(status_);
  for (size_t at = 0; at < to.size(); at += kStreamBytes) {
    const auto part = to.subspan(at, std::min(kStreamBytes, to.size() - at));
    BM_TRY(send({kMemoryRead, address + at}, kStreamIn, static_cast<uint32_t>(part.size() / 4)));
    const Result<size_t> got = usb_->bulk_in(kEndpointIn, part, bulk_ms(part.size()));
    if (got && *got == part.size()) continue;
    // What the bridge still has to say would be taken for the next answer.
    (void)usb_->clear_halt(kEndpointIn);
    if (!got) return keep(tl::unexpected<Error>(got.error()));
    return keep(fail(Code::kCorrupt, "{}: {} of {} bytes read from {:#x}", to_string(identity()),
                     *got, part.size(), address + at));
  }
  return {};
}

Status Asm24Bridge::stream_out(uint64_t address, std::span<const std::byte> from) {
  const std::lock_guard lock(mutex_);
  BM_TRY(status_);
  for (size_t at = 0; at < from.size(); at += kStreamBytes) {
    const auto part = from.subspan(at, std::min(kStreamBytes, from.size() - at));
    BM_TRY(send({kMemoryWrite, address + at}, kStreamOut, static_cast<uint32_t>(part.size() / 4)));
    const Status sent = usb_->bulk_out(kEndpointOut, part, bulk_ms(part.size()));
    if (sent) continue;
    (void)usb_->clear_halt(kEndpointOut);
    return keep(sent);
  }
  return {};
}

Status Asm24Bridge::write_sram(uint64_t offset, std::span<const std::byte> from) {
  const std::lock_guard lock(mutex_);
  BM_TRY(status_);
  const uint64_t bytes = align_up<uint64_t>(from.size(), kSector);
  if (offset % kSlotBytes != 0 || from.empty() || offset > kSramBytes ||
      bytes > kSramBytes - offset)
    return fail(Code::kInvalidArgument, "{} bytes at {:#x} of the bridge's SRAM", from.size(),
                offset);
  const auto slots = static_cast<uint16_t>(align_up(bytes, kSlotBytes) / kSlotBytes);
  const auto first = static_cast<uint16_t>(offset / kSlotBytes);
  BM_TRY(keep(usb_->control_out({kUsbVendorOut, kSram, static_cast<uint16_t>(bytes / kSector),
                                 static_cast<uint16_t>(first | slots << 8)},
                                {}, kControlMs)));
  if (bytes == from.size()) return keep(usb_->bulk_out(kEndpointOut, from, bulk_ms(bytes)));
  std::vector<std::byte> padded(bytes);
  std::ranges::copy(from, padded.begin());
  return keep(usb_->bulk_out(kEndpointOut, padded, bulk_ms(bytes)));
}

/// Under the mutex from arming on: a stream in between would take the armed endpoint's bytes.
Status Asm24Bridge::read_sram(std::span<std::byte> to, const std::function<Status()>& start) {
  const std::lock_guard lock(mutex_);
  BM_TRY(status_);
  if (to.empty() || to.size() > kSramBytes)
    return fail(Code::kInvalidArgument, "{} bytes of the bridge's SRAM", to.size());
  const uint64_t sectors = align_up<uint64_t>(to.size(), kSector) / kSector;
  const uint64_t slots = align_up<uint64_t>(to.size(), kSlotBytes) / kSlotBytes;
  BM_TRY(keep(usb_->control_out({kUsbVendorOut, kSram, static_cast<uint16_t>(sectors | kSramIn),
                                 static_cast<uint16_t>(slots << 8)},
                                {}, kControlMs)));
  BM_TRY(keep(start()));
  std::vector<std::byte> padded(align_up<uint64_t>(to.size(), kSector));
  const Result<size_t> got = usb_->bulk_in(kEndpointIn, padded, bulk_ms(padded.size()));
  if (!got) return keep(tl::unexpected<Error>(got.error()));
  if (*got != padded.size())
    return keep(fail(Code::kCorrupt, "{}: {} of {} bytes of the SRAM", to_string(identity()), *got,
                     padded.size()));
  std::ranges::copy(std::span(padded).first(to.size()), to.begin());
  return {};
}

}  // namespace bm
