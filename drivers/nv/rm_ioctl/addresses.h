#pragma once
// Which addresses of the GPU belong to whom. The page tables are UVM's; this only hands out ranges.

#include <cstdint>
#include <memory>
#include <mutex>

#include "drivers/transport/system.h"
#include "runtime/base/result.h"
#include "runtime/base/tlsf.h"

namespace bm::nv {

/// Address plan of a process, shared by its GPUs.
///
/// The low window lies below 2^40, where ring entries, launch descriptors and old semaphores must
/// be; everything the CPU sees lies there at equal addresses, so the process's own address space is
/// kept for it. The high window is for memory that no CPU sees. The two shader windows are kept
/// free of mappings of the process: the GPU never reaches memory at these addresses.
/// Thread: any.
class Addresses {
 public:
  /// `base`: of the low window, 0 for the driver's choice.
  /// Errors: kUnsupported when the process already has mappings there; the message says how to
  /// choose another.
  static Result<std::unique_ptr<Addresses>> create(System& system, uint64_t base);
  ~Addresses();
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;

  Result<uint64_t> take_low(uint64_t bytes, uint64_t alignment);
  Result<uint64_t> take_high(uint64_t bytes, uint64_t alignment);
  /// Gives back a range taken from either window; others (a process's own memory) are ignored.
  void give_back(uint64_t address);

  /// Whether memory of the process at these addresses can have them on the GPU too.
  bool is_outside(uint64_t address, uint64_t bytes) const;

  /// Puts a mapping of `fd` (or, at -1, zeroed shared memory) at an address of the low window.
  Status map_cpu(uint64_t address, uint64_t bytes, int fd);
  /// Keeps the addresses for the window again.
  void unmap_cpu(uint64_t address, uint64_t bytes);

  uint64_t shared_window() const { return kSharedWindow; }
  uint64_t local_window() const { return kLocalWindow; }

 private:
  // As tinygrad places them: each spans 4 GiB at most.
  static constexpr uint64_t kLocalWindow = 0x7293'0000'0000;
  static constexpr uint64_t kSharedWindow = 0x7294'0000'0000;
  static constexpr uint64_t kShaderBytes = 0x1'0000'0000;

  Addresses(System& system, uint64_t low, uint64_t low_bytes, Tlsf low_ranges, Tlsf high_ranges)
      : system_(system),
        low_(low),
        low_bytes_(low_bytes),
        low_ranges_(std::move(low_ranges)),
        high_ranges_(std::move(high_ranges)) {}
  void reserve_shader_windows();

  System& system_;
  uint64_t low_, low_bytes_;
  bool keeps_local_ = false, keeps_shared_ = false;
  std::mutex mutex_;
  Tlsf low_ranges_, high_ranges_;
};

}  // namespace bm::nv
