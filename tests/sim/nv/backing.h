#pragma once
// Bytes behind a memory object: a memfd that clients can map, or pages of a client registered for
// the GPU.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/base/scoped_fd.h"
#include "tests/sim/nv/process.h"

namespace bm::sim::nv {

/// Thread: any; two writers of the same bytes race as they would on hardware.
class Backing {
 public:
  virtual ~Backing() = default;
  uint64_t size() const { return size_; }
  /// Descriptor that maps the memory at file offset 0, or -1.
  virtual int fd() const { return -1; }
  /// Pointer to [offset, offset + bytes), valid until flush(); nullptr when it cannot be had.
  virtual std::byte* at(uint64_t offset, uint64_t bytes) = 0;
  /// The same, but only for memory that is in this process and needs no flush().
  virtual std::byte* local(uint64_t, uint64_t) { return nullptr; }
  /// Makes what was written through at() visible to the owner of the memory.
  virtual void flush() {}
  /// Copies; false when the memory is gone (the client has unmapped it).
  virtual bool read(uint64_t offset, void* out, uint64_t bytes) = 0;
  virtual bool write(uint64_t offset, const void* data, uint64_t bytes) = 0;

 protected:
  explicit Backing(uint64_t size) : size_(size) {}
  uint64_t size_;
};

/// Zeroed memory in a memfd named `name`; nullptr when the system has none left.
std::shared_ptr<Backing> create_shared_backing(uint64_t size, const std::string& name);
/// `size` bytes of `process` at `address`.
std::shared_ptr<Backing> create_process_backing(std::shared_ptr<Process> process, uint64_t address,
                                                uint64_t size);

}  // namespace bm::sim::nv
