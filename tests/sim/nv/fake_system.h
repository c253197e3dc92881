#pragma once
// The simulated driver in the process under test, at the seam drivers use.

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "drivers/transport/system.h"
#include "tests/sim/nv/kernel.h"

namespace bm::sim::nv {

/// Paths that are not the driver's go to the real system. Descriptors are real ones, so that poll
/// and what else the process does with them works. Thread: any.
class FakeNvSystem : public System {
 public:
  explicit FakeNvSystem(std::unique_ptr<Kernel> kernel);
  ~FakeNvSystem() override;
  /// A machine with `options`; the options are the caller's promise (BM_CHECK-like: aborts).
  static std::unique_ptr<FakeNvSystem> create(const Options& options);

  Kernel& kernel() { return *kernel_; }

  int open(const std::string& path, int flags) override;
  int close(int fd) override;
  int ioctl(int fd, unsigned long request, void* argument) override;
  int mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset,
           void** out) override;
  int read_file(const std::string& path, std::string* out) override;
  int list(const std::string& path, std::vector<std::string>* out) override;

  /// Descriptors of the driver that are open now.
  size_t open_files() const;

 private:
  std::shared_ptr<File> find(int fd) const;

  std::unique_ptr<Kernel> kernel_;
  std::shared_ptr<Process> self_;
  mutable std::mutex mutex_;
  std::map<int, std::shared_ptr<File>> files_;
};

}  // namespace bm::sim::nv
