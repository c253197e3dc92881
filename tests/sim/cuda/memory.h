#pragma once
// Addresses of the fake driver: device allocations behind inaccessible reservations, pinned,
// managed and registered host memory at its own address.

#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>
#include <span>

#include "tests/sim/cuda/types.h"
#include "tests/sim/ptx/interpreter.h"

namespace bm::sim::cuda {

struct Context;

struct Range {
  enum class Kind : uint8_t { kDevice, kPinned, kManaged, kRegistered };
  uint64_t address = 0;
  size_t bytes = 0;
  Kind kind = Kind::kDevice;
  std::byte* host = nullptr;  ///< where the bytes are
  Context* context = nullptr;
  int device = 0;
  unsigned flags = 0;
};

/// Thread: any.
class AddressSpace {
 public:
  AddressSpace();
  ~AddressSpace();
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  /// 0: no room. Device memory starts with rubbish, as the real one does.
  uint64_t allocate(Range::Kind kind, size_t bytes, Context* context, int device, unsigned flags,
                    size_t limit);
  int add_registered(void* host, size_t bytes, Context* context, unsigned flags);
  /// kInvalidValue unless `address` is the start of a range of this kind.
  int remove(uint64_t address, Range::Kind kind);
  void remove_all(Context* context);

  /// The range that holds the address; a copy with bytes == 0 if none.
  Range find(uint64_t address) const;
  /// Host pointer to bytes that lie in one range, or nullptr.
  std::byte* at(uint64_t address, size_t bytes) const;
  size_t used(int device) const;
  size_t live() const;

 private:
  const Range* find_locked(uint64_t address, size_t bytes) const;
  void release(const Range& range);

  mutable std::shared_mutex mutex_;
  std::map<uint64_t, Range> ranges_;
  std::byte* window_ = nullptr;
  std::map<uint64_t, size_t> holes_;  ///< free parts of the window: offset to size
};

/// The address space as a kernel of one context sees it: device memory of others only by peer
/// access.
class KernelView : public ptx::Memory {
 public:
  KernelView(const AddressSpace& space, const Context& context)
      : space_(space), context_(context) {}
  std::byte* at(uint64_t address, uint32_t bytes, ptx::Access access) override;

 private:
  const AddressSpace& space_;
  const Context& context_;
};

}  // namespace bm::sim::cuda
