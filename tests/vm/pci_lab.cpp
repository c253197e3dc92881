// Runs in a guest: our PCI transports over the kernel's VFIO, or over sysfs, against QEMU's "edu"
// device, which has registers, a DMA engine and MSI.
// Source of the device: QEMU docs/specs/edu.rst.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <span>
#include <thread>

#include "drivers/transport/pci_config.h"
#include "drivers/transport/pci_enumerate.h"
#include "drivers/transport/pci_open.h"
#include "drivers/transport/pci_sysfs.h"
#include "drivers/transport/pci_vfio.h"

namespace bm::test {
namespace {

constexpr uint64_t kId = 0x00, kLiveness = 0x04, kFactorial = 0x08, kStatus = 0x20;
constexpr uint64_t kRaise = 0x60, kAcknowledge = 0x64;
constexpr uint64_t kSource = 0x80, kTarget = 0x88, kCount = 0x90, kCommand = 0x98;
// Inside the device: 4 KiB, of which QEMU 7.2 takes one transfer of less than all.
constexpr uint64_t kBuffer = 0x40000, kBufferBytes = 2048;
constexpr uint64_t kPage = 4096, kMapped = 2 << 20;

PciAddress address() {
  static const PciAddress found = [] {
    const auto all = enumerate_pci(real_system(), [](const PciIdentity& identity) {
      return identity.vendor == 0x1234 && identity.device == 0x11e8;
    });
    return all && !all->empty() ? all->front().identity.address : PciAddress{};
  }();
  return found;
}

template <class Condition>
bool comes_true(Condition condition, int seconds = 20) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

/// Pages of this process, mapped for nobody yet, with random contents.
class Pages {
 public:
  explicit Pages(uint64_t bytes) : bytes_(bytes) {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    data_ = at == MAP_FAILED ? nullptr : static_cast<uint8_t*>(at);
    std::mt19937_64 random(static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed()) +
                           1);
    for (uint64_t i = 0; data_ != nullptr && i < bytes; i += 8) {
      const uint64_t value = random();
      std::memcpy(data_ + i, &value, 8);
    }
  }
  ~Pages() { ::munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  uint8_t* data() { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  uint8_t* data_ = nullptr;
  uint64_t bytes_ = 0;
};

class Edu {
 public:
  explicit Edu(PciFunction& function) {
    auto registers = function.map_bar(0);
    EXPECT_TRUE(registers) << registers.error().message;
    if (registers) registers_ = *registers;
    EXPECT_TRUE(set_bus_master(function, true));
  }
  uint32_t read(uint64_t at) const { return registers_.read32(at); }
  void write(uint64_t at, uint32_t value) const { registers_.write32(at, value); }

  /// Between `bus` and the buffer of the device; waits until the device says that it is done.
  bool copy(uint64_t bus, uint64_t bytes, bool is_to_memory) const {
    registers_.write64(kSource, is_to_memory ? kBuffer : bus);
    registers_.write64(kTarget, is_to_memory ? bus : kBuffer);
    registers_.write64(kCount, bytes);
    registers_.write64(kCommand, 1 | (is_to_memory ? 2 : 0));
    return comes_true([&] { return (registers_.read64(kCommand) & 1) == 0; });
  }

 private:
  Mmio registers_;
};

std::unique_ptr<PciFunction> open(const std::string& way) {
  const auto selector = parse_pci_selector(way + ":" + to_string(address()));
  if (!selector) {
    ADD_FAILURE() << selector.error().message;
    return nullptr;
  }
  auto function = open_pci(real_system(), *selector);
  EXPECT_TRUE(function) << function.error().message;
  return function ? std::move(*function) : nullptr;
}

void answers(const Edu& edu) {
  EXPECT_EQ(edu.read(kId) & 0xff, 0xedu);
  edu.write(kLiveness, 0x12345678);
  EXPECT_EQ(edu.read(kLiveness), ~0x12345678u);
  edu.write(kFactorial, 10);
  EXPECT_TRUE(comes_true([&] { return (edu.read(kStatus) & 1) == 0; }));
  EXPECT_EQ(edu.read(kFactorial), 3628800u);
}

/// Runs `work` in a process of its own; its gtest failures end it with 1.
bool passes_elsewhere(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    std::fflush(nullptr);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool write_file(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool is_written = ::write(fd, text.data(), text.size()) == ssize_t(text.size());
  ::close(fd);
  return is_written;
}

class Vfio : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(address(), PciAddress{}) << "the machine has no edu device";
    function_ = open("vfio");
    ASSERT_NE(function_, nullptr);
  }

  /// Maps `pages` at `iova`; where it is on the bus.
  uint64_t map(Pages& pages, uint64_t iova, bool is_read_only = false) {
    const auto ranges = function_->dma_map(
        {.host = pages.data(), .bytes = pages.bytes(), .iova = iova, .is_read_only = is_read_only});
    EXPECT_TRUE(ranges) << ranges.error().message;
    if (!ranges) return 0;
    EXPECT_EQ(ranges->size(), 1u);
    EXPECT_EQ(ranges->front().address, iova);
    return ranges->front().address;
  }

  std::unique_ptr<PciFunction> function_;
};

TEST_F(Vfio, ShowsIdentityBarsAndRegisters) {
  EXPECT_EQ(function_->identity().vendor, 0x1234);
  EXPECT_EQ(function_->identity().device, 0x11e8);
  EXPECT_EQ(function_->bars()[0].size, 1u << 20);
  EXPECT_TRUE(function_->dma_limits().takes_iova);
  answers(Edu(*function_));
}

TEST_F(Vfio, MovesDataBothWaysAtLowAndHighAddresses) {
  const Edu edu(*function_);
  const uint32_t bits = function_->dma_limits().address_bits;
  ASSERT_GE(bits, 32u);
  for (const uint64_t iova :
       {uint64_t(1) << 24, uint64_t(1) << 30, (uint64_t(1) << bits) - kMapped}) {
    SCOPED_TRACE(fmt::format("IOVA {:#x}", iova));
    Pages pages(kMapped);
    const uint64_t bus = map(pages, iova);
    ASSERT_TRUE(edu.copy(bus + 0x1100, 2048, false));
    ASSERT_TRUE(edu.copy(bus + 0x105000, 2048, true));
    EXPECT_EQ(std::memcmp(pages.data() + 0x1100, pages.data() + 0x105000, 2048), 0);
    EXPECT_TRUE(function_->dma_unmap(pages.data()));
  }
}

TEST_F(Vfio, BlocksWhatIsUnmappedOrNeverWasMapped) {
  const Edu edu(*function_);
  Pages pages(kMapped), spare(kMapped);
  const uint64_t bus = map(pages, 1 << 24);
  ASSERT_TRUE(edu.copy(bus, kBufferBytes, false));
  const std::vector<uint8_t> before(pages.data(), pages.data() + pages.bytes());
  ASSERT_TRUE(function_->dma_unmap(pages.data()));
  EXPECT_TRUE(edu.copy(bus + 0x10000, kBufferBytes, true));
  EXPECT_EQ(std::memcmp(before.data(), pages.data(), before.size()), 0);
  // The same place serves other memory afterwards, which alone is written.
  const uint64_t again = map(spare, 1 << 24);
  EXPECT_EQ(again, bus);
  ASSERT_TRUE(edu.copy(again + 0x10000, kBufferBytes, true));
  EXPECT_EQ(std::memcmp(before.data(), pages.data(), before.size()), 0);
  EXPECT_EQ(std::memcmp(spare.data() + 0x10000, before.data(), kBufferBytes), 0);
  EXPECT_TRUE(function_->dma_unmap(spare.data()));
}

TEST_F(Vfio, BlocksWritesToWhatIsReadOnly) {
  const Edu edu(*function_);
  Pages pages(kMapped);
  const uint64_t bus = map(pages, 1 << 24, true);
  const std::vector<uint8_t> before(pages.data(), pages.data() + pages.bytes());
  ASSERT_TRUE(edu.copy(bus, kBufferBytes, false));  // reading is allowed
  EXPECT_TRUE(edu.copy(bus + 0x10000, kBufferBytes, true));
  EXPECT_EQ(std::memcmp(before.data(), pages.data(), before.size()), 0);
  EXPECT_TRUE(function_->dma_unmap(pages.data()));
}

TEST_F(Vfio, RefusesReservedOverlappingAndMissingAddresses) {
  Pages pages(kMapped), spare(kMapped);
  const DmaLimits& limits = function_->dma_limits();
  // The window of x86's interrupt messages cannot be mapped.
  const auto is_window = [](const BusRange& range) {
    return range.address <= 0xfee00000 && range.address + range.bytes > 0xfee00000;
  };
  EXPECT_TRUE(std::any_of(limits.reserved.begin(), limits.reserved.end(), is_window));
  for (const std::optional<uint64_t> iova :
       {std::optional<uint64_t>(0xfee00000), std::optional<uint64_t>(kPage / 2),
        std::optional<uint64_t>(uint64_t(1) << limits.address_bits), std::optional<uint64_t>()}) {
    const auto ranges =
        function_->dma_map({.host = pages.data(), .bytes = pages.bytes(), .iova = iova});
    ASSERT_FALSE(ranges);
    EXPECT_EQ(ranges.error().code, Code::kInvalidArgument) << ranges.error().message;
  }
  map(pages, 1 << 24);
  const auto overlapping = function_->dma_map(
      {.host = spare.data(), .bytes = spare.bytes(), .iova = (1 << 24) + kMapped - kPage});
  ASSERT_FALSE(overlapping);
  EXPECT_EQ(overlapping.error().code, Code::kInvalidArgument) << overlapping.error().message;
  EXPECT_FALSE(function_->dma_unmap(spare.data()));
  EXPECT_TRUE(function_->dma_unmap(pages.data()));
}

TEST_F(Vfio, DeliversMessageSignalledInterrupts) {
  const Edu edu(*function_);
  const auto vectors = function_->enable_interrupts(1);
  ASSERT_TRUE(vectors) << vectors.error().message;
  ASSERT_EQ(*vectors, 1u);
  for (int i = 0; i < 200; ++i) {
    edu.write(kRaise, 1);
    const auto came = function_->wait_interrupt(0, 5000);
    ASSERT_TRUE(came) << came.error().message;
    ASSERT_TRUE(*came);
    edu.write(kAcknowledge, 1);
  }
  const auto more = function_->wait_interrupt(0, 20);
  ASSERT_TRUE(more);
  EXPECT_FALSE(*more);
}

TEST_F(Vfio, WorksAfterABusReset) {
  ASSERT_TRUE(function_->enable_interrupts(1));
  const Status reset = function_->reset(PciReset::kBus);
  ASSERT_TRUE(reset) << reset.error().message;
  const Edu edu(*function_);
  answers(edu);
  Pages pages(kMapped);
  const uint64_t bus = map(pages, 1 << 24);
  ASSERT_TRUE(edu.copy(bus, kBufferBytes, false));
  ASSERT_TRUE(edu.copy(bus + kMapped - kBufferBytes, kBufferBytes, true));
  EXPECT_EQ(std::memcmp(pages.data(), pages.data() + kMapped - kBufferBytes, kBufferBytes), 0);
  const auto vectors = function_->enable_interrupts(1);
  ASSERT_TRUE(vectors) << vectors.error().message;
  edu.write(kRaise, 1);
  EXPECT_TRUE(function_->wait_interrupt(0, 5000).value_or(false));
  edu.write(kAcknowledge, 1);
}

TEST_F(Vfio, TellsAnotherProcessWhoHasIt) {
  const auto text = fmt::format("pid {}", ::getpid());
  EXPECT_TRUE(passes_elsewhere([&] {
    const auto second =
        open_pci(real_system(), *parse_pci_selector("vfio:" + to_string(address())));
    ASSERT_FALSE(second);
    EXPECT_NE(second.error().message.find(text), std::string::npos) << second.error().message;
  }));
}

TEST_F(Vfio, ServesAnOrdinaryUserWhoOwnsTheGroupWithinTheirLimitOfLockedMemory) {
  function_.reset();
  const auto info = describe_pci(real_system(), address());
  ASSERT_TRUE(info && info->iommu_group);
  const std::string node = fmt::format("/dev/vfio/{}", *info->iommu_group);
  constexpr uid_t kUser = 1000;
  ASSERT_EQ(::mkdir("/tmp/locks", 0777), 0);
  ASSERT_EQ(::chown("/tmp/locks", kUser, kUser), 0);
  const VfioPciOptions options{.address = address(), .lock_folder = "/tmp/locks"};
  const auto as_user = [&](const std::function<void()>& work) {
    return passes_elsewhere([&] {
      const rlimit limit{8 << 20, 8 << 20};
      ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &limit), 0);
      ASSERT_EQ(::setgid(kUser), 0);
      ASSERT_EQ(::setuid(kUser), 0);
      work();
    });
  };
  const bool is_refused = as_user([&] {
    const auto refused = open_vfio_pci(real_system(), options);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kPermission) << refused.error().message;
    EXPECT_NE(refused.error().message.find(node), std::string::npos) << refused.error().message;
  });
  EXPECT_TRUE(is_refused);
  ASSERT_EQ(::chown(node.c_str(), kUser, kUser), 0);
  const bool is_served = as_user([&] {
    const auto function = open_vfio_pci(real_system(), options);
    ASSERT_TRUE(function) << function.error().message;
    answers(Edu(**function));
    Pages fits(kMapped), too_large(16 << 20);
    const auto first =
        (*function)->dma_map({.host = fits.data(), .bytes = fits.bytes(), .iova = 1 << 24});
    EXPECT_TRUE(first) << first.error().message;
    const auto second = (*function)->dma_map(
        {.host = too_large.data(), .bytes = too_large.bytes(), .iova = 1 << 26});
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, Code::kOutOfMemory) << second.error().message;
    EXPECT_NE(second.error().message.find("LimitMEMLOCK"), std::string::npos)
        << second.error().message;
  });
  EXPECT_TRUE(is_served);
  ASSERT_EQ(::chown(node.c_str(), 0, 0), 0);
}

TEST_F(Vfio, LeavesNothingBehindWhenKilled) {
  function_.reset();
  for (int round = 0; round < 3; ++round) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const auto function = open("vfio");
      Pages pages(kMapped);
      if (function == nullptr ||
          !function->dma_map({.host = pages.data(), .bytes = pages.bytes(), .iova = 1 << 24}))
        ::_exit(1);
      const Edu edu(*function);
      (void)!::write(ready[1], "r", 1);
      for (;;) edu.copy(1 << 24, kBufferBytes, true);
    }
    char byte = 0;
    ::close(ready[1]);
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    const auto function = open("vfio");
    ASSERT_NE(function, nullptr);
    answers(Edu(*function));
  }
}

/// What the kernel does when somebody takes the device away: it asks for it and waits for us.
void is_lost_by(std::unique_ptr<PciFunction>& function, const std::string& path,
                const std::string& text) {
  ASSERT_TRUE(function->enable_interrupts(1));
  std::thread taking([&] { EXPECT_TRUE(write_file(path, text)) << path; });
  const bool is_told = comes_true([&] {
    return !function->wait_interrupt(0, 20).has_value() || !function->status().has_value();
  });
  EXPECT_TRUE(is_told);
  if (is_told) {
    EXPECT_EQ(function->status().error().code, Code::kDeviceLost);
    EXPECT_FALSE(function->read_config(0, 4));
  }
  function.reset();  // the kernel goes on from here
  taking.join();
}

using VfioLoss = Vfio;

TEST_F(VfioLoss, UnbindingIsToldAndWaitsUntilItIsClosed) {
  is_lost_by(function_, "/sys/bus/pci/drivers/vfio-pci/unbind", to_string(address()));
  const auto gone = open_pci(real_system(), *parse_pci_selector("vfio:" + to_string(address())));
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, Code::kPermission) << gone.error().message;
  ASSERT_TRUE(write_file("/sys/bus/pci/drivers/vfio-pci/bind", to_string(address())));
  function_ = open("vfio");
  ASSERT_NE(function_, nullptr);
  answers(Edu(*function_));
}

TEST_F(VfioLoss, RemovalFromTheBusIsToldAndWaitsUntilItIsClosed) {
  const std::string folder = "/sys/bus/pci/devices/" + to_string(address());
  is_lost_by(function_, folder + "/remove", "1");
  const auto gone = open_pci(real_system(), *parse_pci_selector("vfio:" + to_string(address())));
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, Code::kNotFound) << gone.error().message;
}

TEST(WithIommu, SysfsIsRefusedBehindATranslatingOne) {
  const auto function =
      open_pci(real_system(), *parse_pci_selector("sysfs:" + to_string(address())));
  ASSERT_FALSE(function);
  EXPECT_EQ(function.error().code, Code::kUnsupported) << function.error().message;
  EXPECT_NE(function.error().message.find("vfio"), std::string::npos) << function.error().message;
}

TEST(WithoutIommu, VfioIsRefusedAndSaysWhatToDo) {
  const auto function =
      open_pci(real_system(), *parse_pci_selector("vfio:" + to_string(address())));
  ASSERT_FALSE(function);
  EXPECT_NE(function.error().message.find("IOMMU"), std::string::npos) << function.error().message;
}

TEST(WithoutIommu, SysfsMovesDataByPhysicalAddresses) {
  ASSERT_TRUE(write_file("/proc/sys/vm/nr_hugepages", "8"));
  const auto function = open("sysfs");
  ASSERT_NE(function, nullptr);
  EXPECT_FALSE(function->dma_limits().takes_iova);
  const Edu edu(*function);
  answers(edu);
  const auto memory = function->dma_allocate(kMapped, true, std::nullopt);
  ASSERT_TRUE(memory) << memory.error().message;
  ASSERT_EQ((*memory)->ranges().size(), 1u);
  const uint64_t bus = (*memory)->ranges().front().address;
  Pages source(kBufferBytes);
  (*memory)->view().copy_in(0x3000, std::as_bytes(std::span(source.data(), kBufferBytes)));
  ASSERT_TRUE(edu.copy(bus + 0x3000, kBufferBytes, false));
  ASSERT_TRUE(edu.copy(bus + 0x9000, kBufferBytes, true));
  Pages target(kBufferBytes);
  (*memory)->view().copy_out(0x9000,
                             std::as_writable_bytes(std::span(target.data(), kBufferBytes)));
  EXPECT_EQ(std::memcmp(source.data(), target.data(), kBufferBytes), 0);
}

}  // namespace
}  // namespace bm::test
