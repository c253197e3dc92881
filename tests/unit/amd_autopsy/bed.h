#pragma once
// A modelled card with a queue on it, and hands that damage it.

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "drivers/amd/am/autopsy.h"
#include "drivers/amd/am/gpu.h"
#include "drivers/amd/aql/packets.h"
#include "drivers/amd/pm4/compute.h"
#include "drivers/amd/sdma/packets.h"
#include "runtime/base/bits.h"
#include "tests/patience.h"
#include "tests/sim/amd/engine/interpreter.h"
#include "tests/unit/amd_am/rig.h"

namespace bm::test {

class AutopsyBed {
 public:
  explicit AutopsyBed(sim::amd::ChipOptions options)
      : rig_([&] {
          options.execute = sim::amd::interpreter(options.chip);
          return options;
        }()) {}

  sim::amd::Chip& card() { return *rig_.card; }
  std::shared_ptr<sim::amd::Chip> shared_card() { return rig_.card; }
  amd::am::AmGpu& gpu() { return *gpu_; }
  bool is_gfx12() const { return rig_.card->row().generation == 12; }

  void boot() {
    auto opened = rig_.open();
    ASSERT_TRUE(opened) << opened.error().message << rig_.violations();
    gpu_ = std::move(*opened);
  }
  /// A boot that is to fail half-way.
  std::string failed_boot() {
    const auto opened = rig_.open();
    return opened ? "it booted" : opened.error().message;
  }

  amd::Memory& memory(uint64_t bytes = 4096,
                      amd::MemoryDomain domain = amd::MemoryDomain::kSystemUncached) {
    auto made = gpu_->allocate({.size = bytes, .domain = domain});
    EXPECT_TRUE(made) << made.error().message;
    kept_.push_back(std::move(*made));
    if (kept_.back()->view.size() != 0)
      kept_.back()->view.fill(0, kept_.back()->size, std::byte{0});
    return *kept_.back();
  }
  /// An address in our window that nothing of a test comes to.
  uint64_t unmapped() const { return amd::am::Gmc::kWindowBase + (uint64_t{300} << 30); }

  void open_queue(amd::QueueType type) {
    type_ = type;
    auto made = gpu_->allocate({.size = 4096, .domain = amd::MemoryDomain::kSystemUncached});
    ASSERT_TRUE(made) << made.error().message;
    ring_ = std::move(*made);
    ring_->view.fill(0, 4096, std::byte{0});
    auto queue = gpu_->create_queue({.type = type, .ring = ring_.get()});
    ASSERT_TRUE(queue) << queue.error().message;
    queue_ = std::move(*queue);
  }
  uint64_t ring_va() const { return ring_->va; }
  /// For the card alone: the driver's queue needs it until it goes.
  void unmap_ring() {
    constexpr uint64_t kValid = 1;
    turn_entry(ring_va(), kValid);
    forget_translations();
  }
  std::vector<uint32_t>& words() { return words_; }
  amd::pm4::Writer pm4() { return {words_, gpu_->facts().chip->caches}; }
  amd::sdma::Writer sdma() { return {words_, gpu_->facts().chip->sdma}; }

  /// Words into the ring, the pointer in memory, and the doorbell.
  void submit(bool rings = true) {
    ring_->view.copy_in(0, words_);
    uint64_t pointer = words_.size();  // dwords; bytes; packets, whose last one's number is told
    if (type_ == amd::QueueType::kSdma) pointer *= 4;
    if (type_ == amd::QueueType::kAql) pointer /= amd::aql::kPacketBytes / 4;
    queue_->write_pointer.store_release(0, pointer);
    if (rings) queue_->doorbell.ring(pointer - (type_ == amd::QueueType::kAql ? 1 : 0));
  }

  /// Code in memory of its own.
  uint64_t load(const std::vector<uint32_t>& code) {
    amd::Memory& program = memory();
    program.view.copy_in(0, code);
    return program.va;
  }
  /// A kernel of one work-group; s[0:1] is `argument`. Nothing is mapped for it.
  void launch(uint64_t entry, uint64_t argument = 0, uint32_t threads = 32) {
    const amd::GpuFacts& facts = gpu_->facts();
    amd::pm4::Launch launch{.entry = entry, .rsrc2 = 2u << 1, .num_user_data = 2};
    launch.user_data = {lo32(argument), hi32(argument)};
    launch.threads = {threads, 1, 1};
    amd::pm4::Writer writer = pm4();
    amd::pm4::launch(writer, facts.registers, facts.chip->registers, launch);
    submit();
  }

  // Registers, past the driver.
  uint32_t peek(sim::amd::Ip ip, std::string_view name) {
    return static_cast<uint32_t>(card().read(5, uint64_t{address(ip, name)} * 4, 4));
  }
  void poke(sim::amd::Ip ip, std::string_view name, uint32_t value) {
    const uint32_t at = address(ip, name);
    if (uint64_t{at} * 4 < sim::amd::Chip::kRegisterBytes)
      card().write(5, uint64_t{at} * 4, 4, value);
    else  // beyond the BAR
      card().registers().write(at, value);
  }
  void select_queue(uint32_t queue) {
    const auto field = [&](const char* name) {
      return card().registers().field(sim::amd::Ip::kGc, "GRBM_GFX_CNTL", name);
    };
    poke(sim::amd::Ip::kGc, "GRBM_GFX_CNTL", field("MEID").put(1) | field("QUEUEID").put(queue));
  }
  void set_field(std::string_view name, std::string_view field, uint32_t value) {
    const auto place = card().registers().field(sim::amd::Ip::kGc, name, field);
    poke(sim::amd::Ip::kGc, name, (peek(sim::amd::Ip::kGc, name) & ~place.mask) | place.put(value));
  }
  /// INVALIDATE_ALL_L1_TLBS and INVALIDATE_L2_CACHE.
  void forget_translations() { poke(sim::amd::Ip::kGc, "GCVM_L2_CNTL2", 3); }
  /// Turns bits of the last entry that translates `va`, in video memory itself.
  void turn_entry(uint64_t va, uint64_t bits) {
    const amd::am::PageWalk walk = gpu_->walk(va);
    ASSERT_TRUE(walk.is_mapped) << walk.text();
    const uint64_t entry = walk.steps.back().entry ^ bits;
    card().vram().write(walk.steps.back().table + uint64_t{walk.steps.back().index} * 8,
                        std::as_bytes(std::span(&entry, 1)));
  }

  /// Looks until the verdict is the one wanted and says all of `says`, since engines take their
  /// time (the second wave of a group comes after the first); the last one seen.
  amd::am::Autopsy look(amd::am::HangCause wanted, std::span<const char* const> says = {}) {
    const auto end = std::chrono::steady_clock::now() + patience(std::chrono::seconds(5));
    for (;;) {
      amd::am::Autopsy seen = gpu_ ? gpu_->autopsy() : look_from_outside();
      const std::string line = seen.verdict.line();
      const bool is_wanted =
          seen.verdict.cause == wanted && std::ranges::all_of(says, [&](const char* words) {
            return line.find(words) != std::string::npos;
          });
      if (is_wanted || std::chrono::steady_clock::now() > end) return seen;
      std::this_thread::yield();
    }
  }

  void close() {
    queue_.reset();
    ring_.reset();
    kept_.clear();
    gpu_.reset();
  }
  ~AutopsyBed() { close(); }

 private:
  uint32_t address(sim::amd::Ip ip, std::string_view name) {
    const auto found = card().registers().address_of(ip, name);
    EXPECT_TRUE(found) << name;
    return found.value_or(0);
  }
  /// As another process, which has nothing but the function.
  amd::am::Autopsy look_from_outside() {
    sim::amd::ChipFunction function(rig_.card);
    amd::am::Bus bus(function, rig_.clock);
    EXPECT_TRUE(bus.open());
    const auto card = amd::am::discover(bus, "");
    EXPECT_TRUE(card) << card.error().message;
    return card ? amd::am::examine(bus, *card) : amd::am::Autopsy{};
  }

  CardRig rig_;
  std::unique_ptr<amd::am::AmGpu> gpu_;
  std::vector<std::unique_ptr<amd::Memory>> kept_;
  std::unique_ptr<amd::Memory> ring_;
  std::unique_ptr<amd::HardwareQueue> queue_;
  amd::QueueType type_ = amd::QueueType::kPm4;
  std::vector<uint32_t> words_;
};

}  // namespace bm::test
