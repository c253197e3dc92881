#pragma once
// VFIO of a fake machine: what Linux 6.1's vfio, vfio_iommu_type1 and vfio-pci answer, the order
// they insist on included, for one function. Its DMA is checked against what is mapped.

#include <map>
#include <string>
#include <vector>

#include "tests/unit/transport/fake_machine.h"

namespace bm::test {

class FakeVfio final : public FakeMachine {
 public:
  struct Options {
    std::string address = "0000:03:00.0", group = "14";
    bool is_no_iommu = false;
    bool has_ranges = true;  ///< the IOVA range capability (Linux 5.4)
    bool is_sparse = false;  ///< BAR 0 can be mapped in part, BAR 2 not at all
    uint32_t msi = 0, msi_x = 4;
    uint32_t free_vectors = 256;
    bool has_reset = true;
    uint32_t other_group = 0;  ///< not 0: one more function shares the bus reset
    uint64_t page_bytes = 4096;
    uint32_t mappings = 65535;
    uint64_t locked_limit = ~uint64_t{0};
  };
  FakeVfio() : FakeVfio(Options()) {}
  explicit FakeVfio(Options options);
  ~FakeVfio() override;

  int open(const std::string& path, int flags) override;
  int close(int fd) override;
  int ioctl(int fd, unsigned long request, void* argument) override;
  int mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset,
           void** out) override;
  ssize_t pread(int fd, void* to, size_t bytes, uint64_t offset) override;
  ssize_t pwrite(int fd, const void* from, size_t bytes, uint64_t offset) override;
  uint64_t locked_memory_limit() override { return options.locked_limit; }

  // The device's side.
  bool device_write(uint64_t iova, uint64_t value);
  bool device_read(uint64_t iova, uint64_t* value);
  bool device_interrupt(uint32_t vector);
  void request_device() { signal(4, 0); }  ///< as an unplug does
  void report_error() { signal(3, 0); }
  std::byte* bar(uint32_t index);  ///< its memory
  uint32_t resets = 0, bus_resets = 0;
  /// Lines about what the caller did that a kernel would not like to see.
  std::vector<std::string> complaints;
  size_t mapped() const { return mappings_.size(); }
  Options options;

 private:
  enum class Kind { kContainer, kGroup, kDevice };
  struct Mapping {
    uint64_t host, bytes;
    bool is_writable;
  };
  int container(unsigned long request, void* argument);
  int group(int fd, unsigned long request, void* argument);
  int device(unsigned long request, void* argument);
  int region_info(void* argument);
  int set_irqs(void* argument);
  int iommu_info(void* argument);
  int map(void* argument);
  int unmap(void* argument);
  bool signal(uint32_t index, uint32_t vector);
  uint64_t bar_size(uint32_t index);

  std::map<int, Kind> kinds_;
  std::map<uint64_t, Mapping> mappings_;
  std::map<uint32_t, std::vector<int>> eventfds_;  ///< by interrupt index; duplicates of ours
  std::map<uint32_t, std::byte*> bars_;
  bool is_group_attached_ = false, is_iommu_set_ = false;
};

}  // namespace bm::test
