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
#include "drivers/transport/card_bus.h"
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

/// A register or field that this card has not is a failure of the bus, too.
class Bus : public CardBus {
 public:
  Bus(PciFunction& pci, Clock& clock) : CardBus(pci, clock, boot_terms()) {}

  /// The same card and registers without the failure: for a look at a card after one.
  Bus anew() const;
  /// Maps BAR0 (video memory), BAR2 (doorbells) and BAR5 (registers); memory decoding on.
  /// Source: amdgpu_device_init() in amdgpu_device.c, amdgpu_gmc_init_vram_resize()'s callers.
  Status open();

  /// `instances`: bases of each, the first one's first.
  void add_block(Block block, const BlockTable& table,
                 std::vector<std::vector<uint64_t>> instances);
  uint32_t instances(Block block) const;
  /// What `work()` does to the block, it does to that instance; otherwise it is the first.
  template <class Work>
  auto with_instance(Block block, uint32_t instance, Work&& work) {
    const Selection selection(*this, block, instance);
    return work();
  }
  /// `work(instance)` for each, until one fails.
  template <class Work>
  Status for_each_instance(Block block, Work&& work) {
    for (uint32_t i = 0; i < instances(block); ++i)
      BM_TRY(with_instance(block, i, [&] { return work(i); }));
    return {};
  }
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

  /// Registers by dword address, for what is known before the discovery table.
  uint32_t read_dword(uint64_t dword);
  void write_dword(uint64_t dword, uint32_t value);
  /// The same register of another active interposer die (AID), by the bus block's index register.
  /// Source: amdgpu_device_indirect_wreg_ext(), aqua_vanjaram_encode_ext_smn_addressing().
  void write_on_die(const At& at, uint32_t die, uint32_t value);
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
  const HostView& visible_memory() const { return vram_; }

 private:
  struct Bases {
    BlockTable table;
    std::vector<std::vector<uint64_t>> instances;
    uint32_t selected = 0;
  };
  class Selection {
   public:
    Selection(Bus& bus, Block block, uint32_t instance)
        : bus_(bus), block_(block), before_(bus.select(block, instance)) {}
    ~Selection() { bus_.select(block_, before_); }
    Selection(const Selection&) = delete;
    Selection& operator=(const Selection&) = delete;

   private:
    Bus& bus_;
    const Block block_;
    const uint32_t before_;
  };
  /// The one before.
  uint32_t select(Block block, uint32_t instance);
  uint32_t load(uint64_t dword);
  void store(uint64_t dword, uint32_t value);

  HostView vram_;
  Mmio doorbells_;
  std::map<Block, Bases> blocks_;
};

}  // namespace bm::amd::am
