#include "drivers/transport/pci.h"

#include <cstdlib>

namespace bm {
namespace {

/// Hexadecimal digits up to `end`, which must follow (nothing where `end` is 0).
std::optional<uint32_t> take_hex(std::string_view* text, char end, uint32_t limit) {
  uint32_t value = 0;
  size_t digits = 0;
  for (; digits < text->size() && digits < 5; ++digits) {
    const char c = (*text)[digits];
    if (c >= '0' && c <= '9')
      value = value * 16 + static_cast<uint32_t>(c - '0');
    else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
      value = value * 16 + static_cast<uint32_t>((c | 0x20) - 'a' + 10);
    else
      break;
  }
  if (digits == 0 || value > limit) return std::nullopt;
  text->remove_prefix(digits);
  if (end == 0) return text->empty() ? std::optional(value) : std::nullopt;
  if (text->empty() || text->front() != end) return std::nullopt;
  text->remove_prefix(1);
  return value;
}

Status check_access(uint32_t offset, uint32_t width, uint32_t size) {
  if ((width != 1 && width != 2 && width != 4) || offset % width != 0 || offset > size - width)
    return fail(Code::kInvalidArgument, "{} bytes at {:#x} of a configuration space of {:#x} bytes",
                width, offset, size);
  return {};
}

}  // namespace

std::string to_string(const PciAddress& address) {
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", address.domain, address.bus, address.device,
                     address.function);
}

Result<PciAddress> parse_pci_address(std::string_view text) {
  std::string_view rest = text;
  std::optional<uint32_t> domain = 0;
  if (text.find(':') != text.rfind(':')) domain = take_hex(&rest, ':', 0xffff);
  const std::optional<uint32_t> bus = take_hex(&rest, ':', 0xff);
  const std::optional<uint32_t> device = take_hex(&rest, '.', 0x1f);
  const std::optional<uint32_t> function = take_hex(&rest, 0, 7);
  if (!domain || !bus || !device || !function)
    return fail(Code::kInvalidArgument, "'{}' is no PCI address; write it as 0000:03:00.0", text);
  return PciAddress{static_cast<uint16_t>(*domain), static_cast<uint8_t>(*bus),
                    static_cast<uint8_t>(*device), static_cast<uint8_t>(*function)};
}

Result<uint32_t> PciConfig::read_config(uint32_t offset, uint32_t width) {
  BM_TRY(check_access(offset, width, config_size()));
  return do_read_config(offset, width);
}

Status PciConfig::write_config(uint32_t offset, uint32_t width, uint32_t value) {
  BM_TRY(check_access(offset, width, config_size()));
  return do_write_config(offset, width, value);
}

}  // namespace bm
