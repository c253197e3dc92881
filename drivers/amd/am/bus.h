#pragma once
// The way to a card's registers and video memory: BAR5, BAR0, what lies beyond them, and the one
// bounded wait. Counts every access.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "drivers/amd/am/stages.h"
#include "drivers/amd/regs/boot_registers.h"
#include "drivers/transport/clock.h"
#include "drivers/transport/pci.h"
#include "runtime/base/result.h"

namespace bm::amd::am {

/// A register of a card. `add`: dwords behind it, for the same register of another engine or queue.
struct At {
  Block block = Block::kGc;
  Reg reg{};
  uint32_t add = 0;
};

/// A field and what is to be written to it.
struct Set {
  Field field{};
  uint32_t value = 0;
};

/// The first failure is sticky: a card that is gone (all ones), a transport that failed, a register
/// or field that this card has not. From then on reads give all ones, writes are dropped and every
/// wait ends at once, so that a boot comes to its next check without asking after each access.
/// Thread: callers serialise.
class Bus {
 public:
  Bus(PciFunction& pci, Clock& clock) : pci_(pci), clock_(clock) {}

  /// The same card and registers without the failure: for a look at a card after one.
  Bus anew() const;
  /// Maps BAR0 (video memory), BAR2 (doorbells) and BAR5 (registers); memory decoding on.
  /// Source: amdgpu_device_init() in amdgpu_device.c, amdgpu_gmc_init_vram_resize()'s callers.
  Status open();
  Status status() const;
  /// Keeps the first one.
  void fail_with(Error error);

  void add_block(Block block, const BlockTable& table, std::vector<uint64_t> bases);
  /// The blocks whose registers are known, with their tables.
  std::vector<std::pair<Block, BlockTable>> blocks() const;
  bool has(Reg reg, Block block) const;
  bool has(Field field, Block block) const;
  /// Dword address.
  uint64_t address(const At& at);
  std::string name(const At& at) const;

  uint32_t read(const At& at);
  void write(const At& at, uint32_t value);
  /// Low half to `low`, high half to `high`.
  void write_pair(Block block, Reg low, Reg high, uint64_t value, uint32_t add = 0);
  /// Word with these fields, all others as in `rest`. All are fields of one register.
  uint32_t encode(Block block, std::initializer_list<Set> fields, uint32_t rest = 0);
  /// encode() written to the register of the fields.
  void write_fields(Block block, std::initializer_list<Set> fields, uint32_t rest = 0,
                    uint32_t add = 0);
  /// Reads the register and writes it back with these fields.
  void update(Block block, std::initializer_list<Set> fields, uint32_t add = 0);
  uint32_t get(Block block, Field field, uint32_t word);
  uint32_t read_field(Block block, Field field, uint32_t add = 0);
  /// Consecutive registers from `at` on, one transaction where the transport can.
  void write_block(const At& at, std::span<const uint32_t> words);

  /// Polls until (register & mask) == value. kTimeout names register, value, fields and stage,
  /// kDeviceLost comes at once. `what`: what the wait is for.
  Status wait_for(const At& at, uint32_t mask, uint32_t value, uint64_t timeout_us,
                  std::string_view what);
  void sleep_us(uint64_t us) { clock_.sleep_us(us); }

  /// Registers by dword address, for what is known before the discovery table.
  uint32_t read_dword(uint64_t dword);
  void write_dword(uint64_t dword, uint32_t value);
  /// All ones are an answer: for a card that is being reset.
  uint32_t probe_dword(uint64_t dword);

  // Video memory by physical address. What the window does not show goes through MM_INDEX, dword
  // by dword.
  uint64_t visible_bytes() const { return vram_.size(); }
  void read_memory(uint64_t address, std::span<std::byte> to);
  void write_memory(uint64_t address, std::span<const std::byte> from);
  void fill_memory(uint64_t address, uint64_t bytes);
  uint32_t read_memory_word(uint64_t address);
  /// Window into video memory, `address` + `bytes` inside visible_bytes().
  HostView memory_view(uint64_t address, uint64_t bytes) const {
    return vram_.slice(address, bytes);
  }
  /// Writes to memory before it reach the card before anything after it.
  void publish() const { vram_.publish(); }
  void count_table_write() { ++counts_.table_writes; }

  const Mmio& doorbells() const { return doorbells_; }
  const Mmio& registers() const { return registers_; }
  const HostView& visible_memory() const { return vram_; }
  PciFunction& pci() { return pci_; }
  Clock& clock() { return clock_; }
  const BusCounts& counts() const { return counts_; }

  Result<uint32_t> read_config(uint32_t offset, uint32_t width);
  Status write_config(uint32_t offset, uint32_t width, uint32_t value);

  StageLog stages{boot_terms()};
  /// One stage: `work` is a Status(); its end checks the bus. Errors name the stage.
  template <class Work>
  Status run(std::string_view name, Work&& work) {
    stages.begin(name, counts_, clock_.now_us());
    Status done = work();
    // What the bus has met is the cause of what the stage says.
    if (const Status seen = status(); !seen) done = seen;
    stages.end(done, counts_, clock_.now_us());
    if (!done) return tl::unexpected(stages.explain(done.error()));
    return {};
  }

 private:
  struct Bases {
    BlockTable table;
    std::vector<uint64_t> bases;
  };
  bool is_dead(uint32_t value);
  uint32_t load(uint64_t dword);
  void store(uint64_t dword, uint32_t value);

  PciFunction& pci_;
  Clock& clock_;
  HostView vram_;
  Mmio doorbells_, registers_;
  std::map<Block, Bases> blocks_;
  Status first_error_;
  BusCounts counts_;
};

}  // namespace bm::amd::am
