#include "tests/sim/usb/asm24_model.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <thread>

namespace bm::sim {
namespace {

constexpr uint32_t kXdata = 0x10000, kSlot = 0x4000, kSectorBytes = 512;
constexpr uint32_t kLinkState = 0xb450;  // registers.h, REG_PCIE_LTSSM_STATE
constexpr uint32_t kFirstCapability = 0x40;

uint32_t word(std::span<const std::byte> from, size_t at) {
  uint32_t value = 0;
  std::memcpy(&value, from.data() + at, 4);
  return value;
}

/// Width and first byte of contiguous byte enables.
std::optional<std::pair<uint32_t, uint32_t>> lanes(uint8_t enables) {
  if (enables == 0 || enables > 0xf) return std::nullopt;
  const auto first = static_cast<uint32_t>(std::countr_zero(enables));
  const auto width = static_cast<uint32_t>(std::popcount(enables));
  if (enables >> first != (1 << width) - 1) return std::nullopt;
  return std::pair{width, first};
}

}  // namespace

Asm24Model::Asm24Model(PciFunction& function, const Asm24Options& options)
    : function_(function),
      options_(options),
      xdata_(kXdata),
      sram_(make_pages(kSramBytes)),
      release_page_(make_pages(kPage)),
      not_ready_(options.not_ready),
      lost_(options.lost_requests) {
  identity_ = {.vendor = 0x3801,
               .product = 0x0001,
               .manufacturer_text = "test",
               .product_text = options.product_text,
               .serial = "1",
               .bus = 2,
               .address = 3,
               .speed_mbit = options.is_usb2 ? 480u : 10000u};
  if (options.is_powered) power_on();
}

Asm24Model::Pages Asm24Model::make_pages(size_t bytes) {
  Pages pages(static_cast<std::byte*>(std::aligned_alloc(kPage, bytes)));
  std::memset(pages.get(), 0, bytes);
  return pages;
}

/// The last word last: engines of the function look for it meanwhile.
void Asm24Model::land() {
  if (incoming_.empty()) return;
  const size_t before = incoming_.size() - 4;
  std::byte* const to = sram_.get() + incoming_at_;
  std::memcpy(to, incoming_.data(), before);
  std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(to + before))
      .store(word(incoming_, before), std::memory_order_release);
  incoming_.clear();
}

bool Asm24Model::is_let_go() {
  for (size_t at = 0; at < kPage; at += 4)
    if (std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(release_page_.get() + at))
            .load(std::memory_order_acquire) !=
        0x0101'0101u * std::to_integer<uint32_t>(kUntouched))
      return true;
  return false;
}

Asm24Model::Port Asm24Model::make_port(uint32_t type) const {
  Port port{
      .type = type, .config = std::vector<uint8_t>(4096), .writable = std::vector<uint8_t>(4096)};
  const auto put = [&](uint32_t offset, uint32_t width, uint32_t value, uint32_t writable = 0) {
    std::memcpy(port.config.data() + offset, &value, width);
    std::memcpy(port.writable.data() + offset, &writable, width);
  };
  put(0x00, 4, 0x2463'1b21);
  put(0x04, 2, 0, 0x0547);
  put(0x06, 2, 0x0010);
  put(0x08, 4, 0x0604'0000);
  put(0x0e, 1, 1);                         // header of a bridge
  put(0x18, 4, 0, 0x00ff'ffff);            // bus numbers
  put(0x20, 4, 0, 0xfff0'fff0);            // memory window
  put(0x24, 4, 0x0001'0001, 0xfff0'fff0);  // prefetchable window, 64 bits
  put(0x28, 4, 0, ~0u);
  put(0x2c, 4, 0, ~0u);
  put(0x34, 1, kFirstCapability);
  put(kFirstCapability, 4, 0x0002'0010 | type << 20);
  return port;
}

void Asm24Model::power_on() {
  ports_.clear();
  if (!options_.has_card) return;
  xdata_[kLinkState] = 0x78;
  for (const uint32_t type : {4u, 5u, 6u}) ports_.push_back(make_port(type));
  (void)function_.reset(PciReset::kBus);
  bars_.clear();
}

std::optional<Asm24Model::Failure> Asm24Model::next_failure() {
  land();
  const uint64_t now = transfers_++;
  if (is_unplugged_) return Failure::kUnplug;
  if (planted_ && planted_->first == now) {
    if (planted_->second == Failure::kUnplug) is_unplugged_ = true;
    return planted_->second;
  }
  return std::nullopt;
}

Status Asm24Model::fail_as(Failure failure, const char* what) {
  switch (failure) {
    case Failure::kTimeout: return fail(Code::kTimeout, "{}: no answer", what);
    case Failure::kStall: return fail(Code::kIo, "{}: stalled", what);
    case Failure::kShort: return fail(Code::kCorrupt, "{}: short", what);
    case Failure::kUnplug: return fail(Code::kDeviceLost, "{}: the device is gone", what);
  }
  __builtin_unreachable();
}

uint32_t Asm24Model::get(const Port& port, uint32_t offset, uint32_t width) {
  uint32_t value = 0;
  std::memcpy(&value, port.config.data() + offset, width);
  return value;
}

Result<size_t> Asm24Model::control_in(const UsbRequest& request, std::span<std::byte> to,
                                      uint32_t timeout_ms) {
  ++counts_.control_in;
  const auto failure = next_failure();
  if (failure && *failure != Failure::kShort)
    return tl::unexpected<Error>(fail_as(*failure, "control in").error());
  if (timeout_ms == 0) violate("a transfer without a time-out");
  size_t bytes = to.size();
  if (request.request_type == 0xc0 && request.request == 0xe4) {
    bytes = std::min<size_t>(bytes, options_.is_usb2 ? 64 : 512);
    for (size_t i = 0; i < bytes; ++i)
      to[i] = static_cast<std::byte>(xdata_[(request.value + i) % kXdata]);
  } else if (request.request_type == 0xc0 && request.request == 0xf0) {
    std::array<std::byte, 8> reply{};
    if (completion_.outcome == 0) {
      std::memcpy(reply.data(), &completion_.data, 4);
      reply[4] = static_cast<std::byte>(completion_.status << 5);
    }
    reply[7] = static_cast<std::byte>(completion_.outcome);
    bytes = std::min(bytes, reply.size());
    std::copy_n(reply.begin(), bytes, to.begin());
  } else {
    violate(fmt::format("control in {:#x}", request.request));
    return fail(Code::kIo, "stalled");
  }
  if (failure) bytes /= 2;
  return bytes;
}

Status Asm24Model::control_out(const UsbRequest& request, std::span<const std::byte> from,
                               uint32_t timeout_ms) {
  ++counts_.control_out;
  if (const auto failure = next_failure()) return fail_as(*failure, "control out");
  if (timeout_ms == 0) violate("a transfer without a time-out");
  const size_t wanted = request.request == 0xf0 ? 12 : 0;
  if (request.request_type != 0x40 || from.size() != wanted) {
    violate(fmt::format("control out {:#x}/{:#x} with {} bytes", request.request_type,
                        request.request, from.size()));
    return fail(Code::kIo, "stalled");
  }
  switch (request.request) {
    case 0xe5: xdata_[request.value] = static_cast<uint8_t>(request.index); return {};
    case 0xf3:
      xdata_[kLinkState] = 0;
      ports_.clear();
      if ((request.value & 1) != 0) power_on();
      return {};
    case 0xf2: {
      const uint64_t first = request.index & 0xff;
      const auto slots = static_cast<uint64_t>(std::max(1, request.index >> 8));
      const uint64_t bytes = uint64_t{request.value & 0x7fffu} * kSectorBytes;
      if ((first + slots) * kSlot > kSramBytes || bytes > slots * kSlot || bytes == 0) {
        violate(fmt::format("{} bytes in {} slots from {} of the SRAM", bytes, slots, first));
        return {};
      }
      sram_at_ = first * kSlot;
      sram_left_ = bytes;
      is_sram_armed_ = (request.value & 0x8000) != 0;
      armed_ = is_sram_armed_ ? Armed::kNothing : Armed::kSramOut;
      if (is_sram_armed_) std::memset(release_page_.get(), std::to_integer<int>(kUntouched), kPage);
      return {};
    }
    case 0xf0: break;
    default:
      violate(fmt::format("control out {:#x}", request.request));
      return fail(Code::kIo, "stalled");
  }
  const auto format_type = static_cast<uint8_t>(request.value);
  const auto enables = static_cast<uint8_t>(request.value >> 8);
  const uint64_t address = word(from, 0) | uint64_t{word(from, 4)} << 32;
  if (address % 4 != 0) violate(fmt::format("a TLP at {:#x}", address));
  // handle_usb_control() ends streams with every such request; the SRAM's engine goes on.
  if (armed_ != Armed::kSramOut) armed_ = Armed::kNothing;
  switch (request.index & 3) {
    case 0: completion_ = run_tlp(format_type, enables, address, word(from, 8)); return {};
    case 1:
    case 2: {
      const bool is_out = (request.index & 3) == 1;
      if (is_out ? armed_ == Armed::kSramOut : is_sram_armed_)
        violate("a stream through an endpoint that the SRAM's engine has armed");
      if ((format_type & ~0x20) != (is_out ? 0x40 : 0x00) || enables != 0xf)
        violate(fmt::format("a stream of TLPs {:#x}, byte enables {:#x}", format_type, enables));
      armed_ = is_out ? Armed::kStreamOut : Armed::kStreamIn;
      stream_address_ = address;
      stream_left_ = uint64_t{word(from, 8)} * 4;
      return {};
    }
    default: violate("stream mode 3"); return {};
  }
}

Asm24Model::Completion Asm24Model::run_tlp(uint8_t format_type, uint8_t enables, uint64_t address,
                                           uint32_t data) {
  if (!lanes(enables)) violate(fmt::format("byte enables {:#x}", enables));
  if (lost_ != 0) {
    --lost_;
    return {.outcome = 0xff};
  }
  if (xdata_[kLinkState] != 0x78) return {.outcome = 1};
  switch (format_type) {
    case 0x04:
    case 0x05:
    case 0x44:
    case 0x45: {
      // Type 0 requests end at the first port, type 1 requests begin behind it.
      const bool is_type1 = (format_type & 1) != 0;
      if (is_type1 != ((address >> 24 & 0xff) != 0))
        violate(fmt::format("configuration request of type {} for bus {}", is_type1 ? 1 : 0,
                            address >> 24 & 0xff));
      return configure((format_type & 0x40) != 0, enables, address, data);
    }
    case 0x00:
    case 0x20: return access(false, enables, address, data);
    case 0x40:
    case 0x60: return access(true, enables, address, data);
    default: violate(fmt::format("TLP {:#x}", format_type)); return {.outcome = 1};
  }
}

Asm24Model::Completion Asm24Model::configure(bool is_write, uint8_t enables, uint64_t address,
                                             uint32_t data) {
  const auto found = lanes(enables);
  if (!found) return {.outcome = 1};
  const auto [width, first] = *found;
  const auto bus = static_cast<uint32_t>(address >> 24 & 0xff);
  const auto device = static_cast<uint32_t>(address >> 16 & 0xff);  // and function
  const auto offset = static_cast<uint32_t>(address & 0xffc) + first;
  const Completion nobody{.data = ~0u, .status = 1};
  if (device != 0) return nobody;
  uint32_t at = 0;  // the port whose primary bus is looked at
  for (uint32_t here = 0; at < ports_.size(); ++at) {
    if (bus == here) break;
    const uint32_t secondary = get(ports_[at], 0x19, 1), subordinate = get(ports_[at], 0x1a, 1);
    if (bus < secondary || bus > subordinate || secondary <= here) return nobody;
    here = secondary;
    if (at + 1 == ports_.size() && bus != here) return nobody;
  }
  if (at == ports_.size()) {  // the function
    if (not_ready_ != 0) {
      --not_ready_;
      return {.data = 0xffff'0001, .status = 2};
    }
    if (is_write) {
      const uint32_t value = width == 4 ? data : data >> 8 * first & ((1u << 8 * width) - 1);
      if (!function_.write_config(offset, width, value))
        violate(fmt::format("configuration write of {} bytes at {:#x}", width, offset));
      return {};
    }
    uint32_t value = 0;
    for (uint32_t i = 0; i < width; ++i)
      value |= function_.read_config(offset + i, 1).value_or(0xff) << 8 * (first + i);
    return {.data = value};
  }
  Port& port = ports_[at];
  for (uint32_t i = 0; is_write && i < width; ++i) {
    const uint8_t mask = port.writable[offset + i];
    const auto byte = static_cast<uint8_t>(data >> 8 * (first + i));
    port.config[offset + i] =
        static_cast<uint8_t>((port.config[offset + i] & ~mask) | (byte & mask));
  }
  return {.data = get(port, offset & ~3u, 4)};
}

/// The function, where the windows of all ports lead `address` on to one of its BARs.
PciFunction* Asm24Model::route(uint64_t address, uint32_t* bar, uint64_t* offset) {
  for (const Port& port : ports_) {
    const uint64_t low = uint64_t{get(port, 0x20, 2) & 0xfff0} << 16;
    const uint64_t high = uint64_t{get(port, 0x22, 2) & 0xfff0} << 16 | 0xfffff;
    const uint64_t pre_low =
        uint64_t{get(port, 0x28, 4)} << 32 | uint64_t{get(port, 0x24, 2) & 0xfff0} << 16;
    const uint64_t pre_high =
        uint64_t{get(port, 0x2c, 4)} << 32 | uint64_t{get(port, 0x26, 2) & 0xfff0} << 16 | 0xfffff;
    const bool is_inside =
        (address >= low && address <= high) || (address >= pre_low && address <= pre_high);
    if ((get(port, 0x04, 2) & 2) == 0 || !is_inside) return nullptr;
  }
  if (ports_.empty()) return nullptr;
  for (uint32_t i = 0; i < kPciBars; ++i) {
    const PciBar& there = function_.bars()[i];
    if (there.size == 0) continue;
    uint64_t base = function_.read_config(0x10 + i * 4, 4).value_or(0) & ~0xfu;
    if (there.is_64_bit) base |= uint64_t{function_.read_config(0x14 + i * 4, 4).value_or(0)} << 32;
    if (address >= base && address - base < there.size) {
      *bar = i;
      *offset = address - base;
      return &function_;
    }
    if (there.is_64_bit) ++i;
  }
  return nullptr;
}

Asm24Model::Completion Asm24Model::access(bool is_write, uint8_t enables, uint64_t address,
                                          uint32_t data) {
  const auto found = lanes(enables);
  if (!found) return {.outcome = 1};
  const auto [width, first] = *found;
  uint32_t bar = 0;
  uint64_t offset = 0;
  if (route(address, &bar, &offset) == nullptr) {
    if (is_write) violate(fmt::format("a memory write to {:#x}, where nobody is", address));
    return {.data = ~0u, .status = 1};
  }
  if (!bars_.contains(bar)) bars_[bar] = *function_.map_bar(bar);
  const Mmio& window = bars_[bar];
  const uint64_t at = offset + first;
  if (width == 4) {
    if (is_write) return window.write32(at, data), Completion{};
    return {.data = window.read32(at)};
  }
  uint32_t value = 0;
  for (uint32_t i = 0; i < width; ++i) {
    const uint32_t shift = 8 * (first + i);
    if (is_write)
      window.write8(at + i, static_cast<uint8_t>(data >> shift));
    else
      value |= uint32_t{window.read8(at + i)} << shift;
  }
  return {.data = value};
}

/// Dwords in ascending order, one TLP each (pcie_pio.h); where all of them meet one BAR they are
/// handed over together, which the function cannot tell apart.
void Asm24Model::stream(bool is_write, std::span<std::byte> data) {
  uint32_t bar = 0, last_bar = 0;
  uint64_t offset = 0, last_offset = 0;
  const bool is_inside =
      data.size() >= 4 && route(stream_address_, &bar, &offset) != nullptr &&
      route(stream_address_ + data.size() - 4, &last_bar, &last_offset) != nullptr &&
      bar == last_bar && last_offset == offset + data.size() - 4;
  if (is_inside) {
    if (!bars_.contains(bar)) bars_[bar] = *function_.map_bar(bar);
    std::vector<uint32_t> words(data.size() / 4);
    if (is_write) {
      std::memcpy(words.data(), data.data(), data.size());
      bars_[bar].write_block(offset, words);
    } else {
      bars_[bar].read_block(offset, words);
      std::memcpy(data.data(), words.data(), data.size());
    }
    return;
  }
  for (size_t at = 0; at + 4 <= data.size(); at += 4) {
    const uint32_t value =
        access(is_write, 0xf, stream_address_ + at, is_write ? word(data, at) : 0).data;
    if (!is_write) std::memcpy(data.data() + at, &value, 4);
  }
}

/// Bytes; 0: nobody let it go.
size_t Asm24Model::fetch_sram(std::span<std::byte> to, uint32_t timeout_ms) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!is_let_go()) {
    if (is_unplugged_ || std::chrono::steady_clock::now() > end) return 0;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  if (to.size() != sram_left_)
    violate(fmt::format("{} bytes are fetched of {}", to.size(), sram_left_));
  const size_t bytes = std::min<uint64_t>(to.size(), sram_left_);
  std::memcpy(to.data(), sram_.get() + sram_at_, bytes);
  is_sram_armed_ = false;
  counts_.sram_bytes += bytes;
  return bytes;
}

Result<size_t> Asm24Model::bulk_in(uint8_t endpoint, std::span<std::byte> to, uint32_t timeout_ms) {
  ++counts_.bulk_in;
  counts_.bulk_bytes += to.size();
  const auto failure = next_failure();
  if (failure && *failure != Failure::kShort)
    return tl::unexpected<Error>(fail_as(*failure, "bulk in").error());
  if (timeout_ms == 0) violate("a transfer without a time-out");
  if (endpoint == 0x81 && is_sram_armed_) {
    const size_t bytes = fetch_sram(to, timeout_ms);
    if (is_unplugged_) return tl::unexpected<Error>(fail_as(Failure::kUnplug, "bulk in").error());
    if (bytes == 0) return fail(Code::kTimeout, "bulk in: nothing is sent");
    return failure ? bytes / 2 : bytes;
  }
  if (endpoint != 0x81 || armed_ != Armed::kStreamIn) {
    violate("a bulk transfer in that nothing armed");
    return fail(Code::kTimeout, "bulk in: nothing is sent");
  }
  if (to.size() != stream_left_)
    violate(fmt::format("{} bytes are fetched of {}", to.size(), stream_left_));
  const size_t bytes = std::min<uint64_t>(to.size(), stream_left_);
  stream(false, to.first(bytes));
  armed_ = Armed::kNothing;
  return failure ? bytes / 2 : bytes;
}

Status Asm24Model::bulk_out(uint8_t endpoint, std::span<const std::byte> from,
                            uint32_t timeout_ms) {
  ++counts_.bulk_out;
  counts_.bulk_bytes += from.size();
  if (const auto failure = next_failure()) return fail_as(*failure, "bulk out");
  if (timeout_ms == 0) violate("a transfer without a time-out");
  if (endpoint != 0x02 || (armed_ != Armed::kStreamOut && armed_ != Armed::kSramOut)) {
    violate("a bulk transfer out that nothing armed");
    return fail(Code::kTimeout, "bulk out: nothing is taken");
  }
  const uint64_t left = armed_ == Armed::kSramOut ? sram_left_ : stream_left_;
  if (from.size() != left) violate(fmt::format("{} bytes are sent of {}", from.size(), left));
  std::vector<std::byte> data(from.begin(),
                              from.begin() + static_cast<ptrdiff_t>(std::min(from.size(), left)));
  if (armed_ == Armed::kSramOut) {
    counts_.sram_bytes += data.size();
    incoming_ = std::move(data);
    incoming_at_ = sram_at_;
  } else {
    stream(true, data);
  }
  armed_ = Armed::kNothing;
  return {};
}

Status Asm24Model::clear_halt(uint8_t) {
  if (const auto failure = next_failure()) return fail_as(*failure, "clear halt");
  armed_ = Armed::kNothing;
  is_sram_armed_ = false;
  stream_left_ = 0;
  return {};
}

bool Asm24Model::device_write(uint64_t address, std::span<const std::byte> from) {
  if (address >= kReleaseAddress && address + from.size() <= kReleaseAddress + kPage) {
    std::ranges::copy(from, release_page_.get() + (address - kReleaseAddress));
    return true;
  }
  if (address < kSramAddress || address + from.size() > kSramAddress + kSramBytes) return false;
  std::ranges::copy(from, sram_.get() + (address - kSramAddress));
  return true;
}

bool Asm24Model::device_read(uint64_t address, std::span<std::byte> to) {
  if (address < kSramAddress || address + to.size() > kSramAddress + kSramBytes) return false;
  std::copy_n(sram_.get() + (address - kSramAddress), to.size(), to.begin());
  return true;
}

}  // namespace bm::sim
