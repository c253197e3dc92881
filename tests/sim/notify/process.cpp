#include "tests/sim/notify/process.h"

#include <sys/uio.h>
#include <unistd.h>

namespace bm::sim::notify {
namespace {

class VmProcess final : public Process {
 public:
  explicit VmProcess(pid_t pid) : pid_(pid), is_self_(pid == getpid()) {}

  pid_t id() const override { return pid_; }

  bool read(uint64_t address, void* out, size_t bytes) const override {
    const iovec here{out, bytes};
    const iovec there{reinterpret_cast<void*>(address), bytes};
    return bytes == 0 ||
           process_vm_readv(pid_, &here, 1, &there, 1, 0) == static_cast<ssize_t>(bytes);
  }

  bool write(uint64_t address, const void* data, size_t bytes) const override {
    const iovec here{const_cast<void*>(data), bytes};
    const iovec there{reinterpret_cast<void*>(address), bytes};
    return bytes == 0 ||
           process_vm_writev(pid_, &here, 1, &there, 1, 0) == static_cast<ssize_t>(bytes);
  }

  std::byte* direct(uint64_t address) const override {
    return is_self_ ? reinterpret_cast<std::byte*>(address) : nullptr;
  }

 private:
  pid_t pid_;
  bool is_self_;
};

}  // namespace

std::shared_ptr<Process> open_process(pid_t pid) { return std::make_shared<VmProcess>(pid); }

}  // namespace bm::sim::notify
