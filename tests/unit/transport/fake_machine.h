#pragma once
// A machine's sysfs, procfs and devices in this process: PCI functions, their drivers and IOMMU
// groups, processes with open files. Writes do what the kernel does: binding, unbinding, overrides.

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "drivers/transport/system.h"

namespace bm::test {

/// A function as a test describes it.
struct FakeFunction {
  std::string address = "0000:03:00.0";
  uint32_t vendor = 0x1234, device = 0x5678, class_code = 0x030000;
  std::string driver = "fakegpu";  ///< bound, and what the kernel would bind; empty: none
  std::string group = "14";        ///< empty: no IOMMU
  std::string iommu_type = "DMA-FQ";
  std::vector<uint64_t> bars = {256 << 10, 0, 8 << 10, 0, 0, 4 << 10};
  bool is_boot_display = false;
};

/// Descriptors are real ones. Thread: any.
class FakeMachine : public System {
 public:
  FakeMachine();
  ~FakeMachine() override;

  void add(const FakeFunction& function);
  /// A process that has `path` open.
  void add_process(int pid, const std::string& command, const std::string& path);
  void put(const std::string& path, const std::string& text);
  void link(const std::string& path, const std::string& target);
  void remove(const std::string& path);  ///< and all below
  /// What a file holds; "(none)" where it is not there.
  std::string text(const std::string& path) const;
  bool exists(const std::string& path) const;
  /// Everything, one line each, to compare states of the machine.
  std::string dump() const;
  std::string driver_of(const std::string& address) const;
  /// Memory behind a BAR, shared with who maps it; made on first use.
  int bar_file(const std::string& address, uint32_t bar);
  /// Every write to a file, in order: "path = text".
  std::vector<std::string> writes;
  /// Called before a write happens; what is not 0 is its result.
  std::function<int(const std::string& path, const std::string& text)> on_write;

  int open(const std::string& path, int flags) override;
  int create(const std::string& path, int flags, mode_t mode) override;
  int close(int fd) override;
  int mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset,
           void** out) override;
  ssize_t write(int fd, const void* from, size_t bytes) override;
  ssize_t pread(int fd, void* to, size_t bytes, uint64_t offset) override;
  ssize_t pwrite(int fd, const void* from, size_t bytes, uint64_t offset) override;
  int read_file(const std::string& path, std::string* out) override;
  int list(const std::string& path, std::vector<std::string>* out) override;
  int read_link(const std::string& path, std::string* out) override;

 protected:
  /// Whether a path belongs to the fake; others go to the real system.
  static bool is_ours(const std::string& path);
  std::string resolve(const std::string& path) const;
  std::string path_of(int fd) const;
  int open_as(const std::string& path);  ///< a descriptor that stands for `path`

  std::map<std::string, std::string> files_, links_;
  std::map<int, std::string> opened_;
  mutable std::recursive_mutex mutex_;

 private:
  int store(const std::string& path, const std::string& text);
  int bind(const std::string& address, const std::string& driver);
  std::map<std::string, std::string> drivers_;  ///< that the kernel would bind, by address
  std::map<std::string, int> bars_;
};

}  // namespace bm::test
