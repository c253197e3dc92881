#pragma once
// The process that makes the calls, as the simulated kernel sees it: its memory, by address.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace bm::sim::notify {

/// Thread: any. Addresses are the process's own; a bad one is an answer, never a crash.
class Process {
 public:
  virtual ~Process() = default;
  virtual pid_t id() const = 0;
  virtual bool read(uint64_t address, void* out, size_t bytes) const = 0;
  virtual bool write(uint64_t address, const void* data, size_t bytes) const = 0;
  /// Where the memory is usable as plain memory here, or nullptr: another process.
  virtual std::byte* direct(uint64_t address) const = 0;

  template <class T>
  bool get(uint64_t address, T* out) const {
    return read(address, out, sizeof(T));
  }
};

/// Reads and writes with process_vm_readv and process_vm_writev, also on the process itself, where
/// direct() works too.
std::shared_ptr<Process> open_process(pid_t pid);

}  // namespace bm::sim::notify
