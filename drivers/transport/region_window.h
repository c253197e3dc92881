#pragma once
// A BAR that can be mapped in part or not at all: the parts by pointer, the rest by calls.

#include <cstdint>
#include <span>
#include <vector>

#include "drivers/transport/mmio.h"
#include "drivers/transport/system.h"
#include "runtime/base/result.h"

namespace bm {

/// Accesses to the regions of a device by calls. Failures are remembered by whoever implements it.
class RegionIo {
 public:
  virtual ~RegionIo() = default;
  /// One access where `to` has 1, 2, 4 or 8 bytes, else as few transactions as there are;
  /// `is_registers`: of whole 32-bit words, ascending, where offset and size are multiples of 4.
  virtual Status read_region(uint32_t region, uint64_t offset, std::span<std::byte> to,
                             bool is_registers) = 0;
  virtual Status write_region(uint32_t region, uint64_t offset, std::span<const std::byte> from,
                              bool is_registers) = 0;
  /// Returns when all writes have reached the device.
  virtual void flush_regions() = 0;
  virtual Status region_status() const = 0;
};

/// Mapped bytes of a region.
struct RegionPart {
  uint64_t offset = 0;  ///< in the region
  SystemMapping mapping;
};

class RegionWindow final : public RemoteWindow {
 public:
  RegionWindow(RegionIo& io, uint32_t region, uint64_t size, bool is_registers)
      : io_(io), region_(region), size_(size), is_registers_(is_registers) {}
  /// Accesses inside `part` go there. It outlives the window.
  void add(const RegionPart& part) { parts_.push_back(&part); }

  uint64_t size() const override { return size_; }
  uint64_t read(uint64_t offset, uint32_t width) override;
  void write(uint64_t offset, uint32_t width, uint64_t value) override;
  void read_block(uint64_t offset, std::span<std::byte> to) override;
  void write_block(uint64_t offset, std::span<const std::byte> from) override;
  void flush() override;
  Status status() const override { return io_.region_status(); }

 private:
  /// The mapped bytes at `offset`, cut to `bytes`; nothing where it is not mapped, and then
  /// `bytes` is cut to where a mapping begins.
  std::byte* find(uint64_t offset, uint64_t& bytes) const;

  RegionIo& io_;
  const uint32_t region_;
  const uint64_t size_;
  const bool is_registers_;
  std::vector<const RegionPart*> parts_;
};

}  // namespace bm
