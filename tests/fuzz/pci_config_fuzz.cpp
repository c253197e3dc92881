// Any bytes as configuration space, as what VFIO says of regions and IOMMUs, as a journal and as a
// lock's note: nothing may crash, hang or read outside.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "drivers/transport/pci_config.h"
#include "drivers/transport/pci_lock.h"
#include "drivers/transport/pci_take.h"
#include "drivers/transport/vfio_info.h"
#include "runtime/base/check.h"

namespace {

/// Configuration space that keeps what is written to it.
class Bytes final : public bm::PciConfig {
 public:
  explicit Bytes(std::span<const uint8_t> from) {
    std::copy_n(from.begin(), std::min(from.size(), space_.size()), space_.begin());
  }

 protected:
  uint32_t config_size() const override { return static_cast<uint32_t>(space_.size()); }
  bm::Result<uint32_t> do_read_config(uint32_t offset, uint32_t width) override {
    uint32_t value = 0;
    std::memcpy(&value, &space_[offset], width);
    return value;
  }
  bm::Status do_write_config(uint32_t offset, uint32_t width, uint32_t value) override {
    std::memcpy(&space_[offset], &value, width);
    return {};
  }

 private:
  std::array<uint8_t, 4096> space_{};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes config({data, size});
  (void)bm::read_identity(config, {});
  (void)bm::find_capability(config, bm::PciCapability::kMsiX);
  (void)bm::find_extended_capability(config, bm::PciExtendedCapability::kAccessControl);
  for (uint32_t bar = 0; bar < bm::kPciBars; ++bar) (void)bm::resizable_bar_sizes(config, bar);
  if (const auto bars = bm::size_bars(config))
    for (const bm::PciBar& bar : *bars) BM_CHECK((bar.size & (bar.size - 1)) == 0);
  const auto bytes = std::as_bytes(std::span(data, size));
  if (const auto region = bm::parse_vfio_region(bytes))
    for (const bm::BusRange& area : region->areas)
      BM_CHECK(area.address + area.bytes <= region->size);
  if (const auto iommu = bm::parse_vfio_iommu(bytes)) BM_CHECK(iommu->limits.address_bits <= 64);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto changes = bm::parse_pci_journal(text))
    BM_CHECK(*bm::parse_pci_journal(bm::format_pci_journal(*changes)) == *changes);
  (void)bm::parse_lock_owner(text);
  return 0;
}
