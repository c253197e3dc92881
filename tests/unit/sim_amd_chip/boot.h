#pragma once
// A boot of the modelled card written by hand, stage by stage, for its tests. It is no driver: it
// knows the card from the inside (register names), and does each thing once.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/sim/amd/chip/function.h"

namespace bm::test {

/// An image as the card's security processor takes it: $PS1 header and what it says of its length.
std::vector<std::byte> signed_image(uint32_t bytes);

class Bench {
 public:
  explicit Bench(sim::amd::ChipOptions options = {});

  sim::amd::Chip& chip() { return function_->chip(); }
  sim::amd::ChipFunction& function() { return *function_; }
  bool is_gfx12() { return chip().row().generation == 12; }

  uint32_t read(sim::amd::Ip ip, const std::string& name);
  void write(sim::amd::Ip ip, const std::string& name, uint32_t value);
  uint32_t field(sim::amd::Ip ip, const std::string& name, const std::string& field,
                 uint32_t value);
  /// By dword address, through the index pair where BAR 5 ends.
  uint32_t read_at(uint32_t address);
  void write_at(uint32_t address, uint32_t value);
  /// Reads until (value & mask) == wanted; false after many reads.
  bool poll(sim::amd::Ip ip, const std::string& name, uint32_t mask, uint32_t wanted);

  // Video memory through BAR 0.
  void store(uint64_t offset, std::span<const uint32_t> words);
  void store64(uint64_t offset, uint64_t value);
  uint32_t load(uint64_t offset);
  void flush_hdp();

  // Stages; each assumes those before it.
  void set_up_hub(sim::amd::HubKind kind);
  bool boot_os();
  void make_ring();
  /// A command's status.
  uint32_t command(uint32_t id, std::span<const uint32_t> arguments);
  /// Status of LOAD_IP_FW.
  uint32_t load(sim::amd::FirmwareType type, std::span<const std::byte> image);
  void load_all_firmware();
  void start_mec();
  /// Queue 0 of pipe 0 with its ring at kRingVa; doorbell 3.
  void make_queue();
  /// SDMA 0, queue 0.
  void make_copy_queue();
  /// Everything up to a running compute and copy queue.
  void boot();
  void submit(std::span<const uint32_t> words);
  void submit_copy(std::span<const uint32_t> words);
  void map(uint64_t va, uint64_t physical, uint64_t flags);
  void flush_tlb(sim::amd::HubKind kind);
  bool wait_for(uint64_t offset, uint32_t value);
  uint32_t send_message(uint32_t message, uint32_t argument, uint32_t* result = nullptr);

  static constexpr uint64_t kVaBase = 0x2000'0000'0000;
  // Places in video memory.
  static constexpr uint64_t kRoot = 0x10'0000, kMessage = 0x20'0000, kFrames = 0x30'0000,
                            kCommand = 0x31'0000, kFence = 0x32'0000, kIhRing = 0x34'0000,
                            kMqd = 0x38'0000, kData = 0x40'0000, kTmr = 0x100'0000;
  // Virtual addresses, each a page of video memory at kData + (va - kVaBase).
  static constexpr uint64_t kRingVa = kVaBase, kPointersVa = kVaBase + 0x4000,
                            kEopVa = kVaBase + 0x5000, kCopyRingVa = kVaBase + 0x8000,
                            kScratchVa = kVaBase + 0xc000;
  static constexpr uint32_t kPages = 32;
  uint64_t pte_flags();

 private:
  std::unique_ptr<sim::amd::ChipFunction> function_;
  Mmio registers_;
  HostView memory_, doorbells_;
  uint32_t frame_ = 0, fence_ = 0;
  uint64_t written_ = 0, copy_written_ = 0;
};

}  // namespace bm::test
