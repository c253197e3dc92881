// Each call that a transport may refuse is refused once: an open and a day's work end with words,
// give back what they took, and the next open works.

#include <gtest/gtest.h>

#include "drivers/amd/device.h"
#include "tests/unit/amd_am/rig.h"

namespace bm::amd::am {
namespace {

using test::CardRig;

/// Calls that fail are counted from 1; what frees is not among them.
class FailingFunction final : public PciFunction {
 public:
  FailingFunction(std::unique_ptr<PciFunction> function, uint64_t* left)
      : function_(std::move(function)), left_(left) {}

  const PciIdentity& identity() const override { return function_->identity(); }
  const std::array<PciBar, kPciBars>& bars() const override { return function_->bars(); }
  Result<Mmio> map_bar(uint32_t index) override {
    BM_TRY(count("map_bar"));
    return function_->map_bar(index);
  }
  Result<HostView> map_bar_memory(uint32_t index, bool is_write_combined) override {
    BM_TRY(count("map_bar_memory"));
    return function_->map_bar_memory(index, is_write_combined);
  }
  Status resize_bar(uint32_t index, uint64_t bytes) override {
    BM_TRY(count("resize_bar"));
    return function_->resize_bar(index, bytes);
  }
  const DmaLimits& dma_limits() const override { return function_->dma_limits(); }
  Result<std::vector<BusRange>> dma_map(const DmaRequest& request) override {
    BM_TRY(count("dma_map"));
    return function_->dma_map(request);
  }
  Status dma_unmap(void* host) override { return function_->dma_unmap(host); }
  Result<std::unique_ptr<DmaMemory>> dma_allocate(uint64_t bytes, bool is_contiguous,
                                                  std::optional<uint64_t> iova) override {
    BM_TRY(count("dma_allocate"));
    return function_->dma_allocate(bytes, is_contiguous, iova);
  }
  Result<uint32_t> enable_interrupts(uint32_t wanted) override {
    BM_TRY(count("enable_interrupts"));
    return function_->enable_interrupts(wanted);
  }
  Result<int> interrupt_fd(uint32_t vector) override {
    BM_TRY(count("interrupt_fd"));
    return function_->interrupt_fd(vector);
  }
  Result<bool> wait_interrupt(uint32_t vector, int timeout_ms) override {
    BM_TRY(count("wait_interrupt"));
    return function_->wait_interrupt(vector, timeout_ms);
  }
  Status reset(PciReset kind) override {
    BM_TRY(count("reset"));
    return function_->reset(kind);
  }
  Status status() const override { return function_->status(); }

 protected:
  uint32_t config_size() const override { return 4096; }
  Result<uint32_t> do_read_config(uint32_t offset, uint32_t width) override {
    BM_TRY(count("read_config"));
    return function_->read_config(offset, width);
  }
  Status do_write_config(uint32_t offset, uint32_t width, uint32_t value) override {
    BM_TRY(count("write_config"));
    return function_->write_config(offset, width, value);
  }

 private:
  Status count(const char* name) {
    if (*left_ == 0 || --*left_ != 0) return {};
    return fail(Code::kIo, "planted: {} failed", name);
  }
  std::unique_ptr<PciFunction> function_;
  uint64_t* left_;  ///< 0: no call fails any more
};

/// Opens, uses and closes; the first thing that did not work.
Status work(CardRig& rig, uint64_t* left) {
  auto function =
      std::make_unique<FailingFunction>(std::make_unique<sim::amd::ChipFunction>(rig.card), left);
  auto gpu = BM_TRY(
      AmGpu::open(std::move(function), {.firmware = rig.folder.search(), .clock = &rig.clock}));
  auto device = BM_TRY(make_device(std::move(gpu), {}));
  auto zeroed = BM_TRY(device->allocate({.size = 1 << 20, .zero = true}));
  auto shared = BM_TRY(device->allocate({.size = 4096, .host_visible = true, .host_memory = true}));
  auto big = BM_TRY(device->allocate({.size = 48 << 20}));
  return device->status();
}

TEST(AmCalls, EachIsRefusedOnceAndNothingIsLost) {
  for (const char* const chip : {"gfx1100", "gfx1201"}) {
    CardRig rig({.chip = chip, .vram_bytes = 256 << 20});
    uint64_t left = 0;
    ASSERT_TRUE(work(rig, &left));
    const uint64_t before = rig.card->system_memory().mappings();
    uint64_t refused = 0;
    for (uint64_t nth = 1;; ++nth) {
      left = nth;
      const Status done = work(rig, &left);
      const bool was_reached = left == 0;
      if (!done) {
        ++refused;
        EXPECT_NE(done.error().message.find("planted: "), std::string::npos)
            << "call " << nth << ": " << done.error().message;
      }
      EXPECT_EQ(rig.card->system_memory().mappings(), before) << "call " << nth;
      left = 0;
      const Status again = work(rig, &left);
      EXPECT_TRUE(again) << "after call " << nth << ": " << again.error().message;
      if (!was_reached) break;
    }
    EXPECT_GT(refused, 10u) << chip;
    EXPECT_EQ(rig.violations(), "") << chip;
  }
}

/// A TLB that was not flushed may lead to memory that was freed: it stays mapped for DMA, and
/// nobody gets its addresses, until the card was shut down.
TEST(AmCalls, WhatCannotBeUnmappedStays) {
  for (const char* const chip : {"gfx1100", "gfx1201"}) {
    CardRig rig({.chip = chip, .vram_bytes = 256 << 20});
    const uint64_t before = rig.card->system_memory().mappings();
    auto gpu = rig.open();
    ASSERT_TRUE(gpu) << gpu.error().message;
    const MemoryRequest request{.size = 64 << 10, .domain = MemoryDomain::kSystemUncached};
    auto memory = (*gpu)->allocate(request);
    ASSERT_TRUE(memory) << memory.error().message;
    const uint64_t va = (*memory)->va;
    const uint64_t mapped = rig.card->system_memory().mappings();
    // Somebody else has the semaphore of the multimedia hub's TLB, which the flush waits for.
    const uint64_t semaphore =
        uint64_t{rig.card->registers()
                     .address_of(sim::amd::Ip::kMmhub, "MMVM_INVALIDATE_ENG17_SEM")
                     .value()} *
        4;
    ASSERT_EQ(rig.card->read(5, semaphore, 4), 1u);
    memory->reset();
    EXPECT_EQ(rig.card->system_memory().mappings(), mapped) << chip;
    // A mapping that cannot be made gives all of its memory back.
    EXPECT_FALSE((*gpu)->allocate(request));
    EXPECT_EQ(rig.card->system_memory().mappings(), mapped) << chip;
    rig.card->write(5, semaphore, 4, 0);
    auto next = (*gpu)->allocate(request);
    ASSERT_TRUE(next) << next.error().message;
    EXPECT_NE((*next)->va, va) << chip;
    next->reset();
    gpu->reset();
    EXPECT_EQ(rig.card->system_memory().mappings(), before) << chip;
    EXPECT_EQ(rig.violations(), "") << chip;
  }
}

/// Whatever the card or the machine is short of is told with sizes, and what was there goes on.
TEST(AmCalls, MemoryThatRunsOutIsAnErrorWithSizes) {
  CardRig rig({.chip = "gfx1100", .vram_bytes = 256 << 20});
  uint64_t left = 0;
  auto gpu = AmGpu::open(
      std::make_unique<FailingFunction>(std::make_unique<sim::amd::ChipFunction>(rig.card), &left),
      {.firmware = rig.folder.search(), .clock = &rig.clock});
  ASSERT_TRUE(gpu) << gpu.error().message;
  std::vector<std::unique_ptr<Memory>> kept;
  std::string message;
  while (message.empty()) {
    auto made = (*gpu)->allocate({.size = 8 << 20, .domain = MemoryDomain::kVideo});
    if (made) {
      kept.push_back(std::move(*made));
      continue;
    }
    EXPECT_EQ(made.error().code, Code::kOutOfMemory);
    message = made.error().message;
  }
  EXPECT_GT(kept.size(), 10u);
  EXPECT_NE(message.find("0x800000 bytes"), std::string::npos) << message;
  kept.pop_back();
  EXPECT_TRUE((*gpu)->allocate({.size = 8 << 20, .domain = MemoryDomain::kVideo}));
}

}  // namespace
}  // namespace bm::amd::am
