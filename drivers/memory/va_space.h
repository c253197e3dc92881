#pragma once
// Which addresses of an address space are taken: GPU virtual addresses, IOVAs, video memory of a
// card that nobody else manages.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "runtime/base/result.h"

namespace bm::memory {

/// Ranges of [base, base + size), best fit: a request goes to the smallest gap that holds it, there
/// to the lowest aligned address, so small requests do not cut up the gaps that large ones need.
/// Adjacent free ranges merge. Unlike Tlsf it takes fixed addresses too and costs
/// a logarithm of the number of ranges. Not thread-safe.
class VaSpace {
 public:
  /// Errors: kInvalidArgument: granule no power of two, base or size no multiple of it, size 0, or
  /// the range passes 2^64.
  static Result<VaSpace> create(uint64_t base, uint64_t size, uint64_t granule = 4096);

  /// Address of `size` free bytes, rounded up to granules, a multiple of `alignment` (a power of
  /// two). Errors: kInvalidArgument; kOutOfMemory with the largest gap.
  Result<uint64_t> allocate(uint64_t size, uint64_t alignment = 1);
  /// Takes exactly [address, address + size). Errors: kInvalidArgument (not of whole granules,
  /// outside, size 0); kOutOfMemory naming the range that is in the way.
  Status reserve(uint64_t address, uint64_t size);
  /// Gives back what allocate() or reserve() took, as a whole. Errors: kInvalidArgument (not the
  /// start of a taken range); nothing changes then.
  Status free(uint64_t address);

  /// Size of the taken range that starts at `address`.
  std::optional<uint64_t> size_of(uint64_t address) const;
  /// Start and size of the taken range that holds `address`.
  std::optional<std::pair<uint64_t, uint64_t>> range_at(uint64_t address) const;
  uint64_t base() const { return base_; }
  uint64_t size() const { return size_; }
  uint64_t free_bytes() const { return free_bytes_; }
  uint64_t largest_gap() const;

 private:
  VaSpace(uint64_t base, uint64_t size, uint64_t granule);
  void add_gap(uint64_t address, uint64_t size);
  void remove_gap(std::map<uint64_t, uint64_t>::iterator gap);
  void take(std::map<uint64_t, uint64_t>::iterator gap, uint64_t address, uint64_t size);

  uint64_t base_, size_, granule_, free_bytes_ = 0;
  std::map<uint64_t, uint64_t> gaps_, taken_;        ///< size by address
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  ///< size and address of every gap
};

}  // namespace bm::memory
