#include "drivers/amd/am/bus.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "drivers/transport/pci_config.h"
#include "runtime/base/bits.h"
#include "runtime/base/check.h"

namespace bm::amd::am {
namespace {

// Dword offsets that every card has: MM_INDEX, MM_DATA and MM_INDEX_HI (amdgpu_device_mm_access in
// amdgpu_device.c; bif and nbio headers).
constexpr uint64_t kMmIndex = 0, kMmData = 1, kMmIndexHi = 6;
constexpr uint32_t kBarMemory = 0, kBarDoorbells = 2, kBarRegisters = 5;

}  // namespace

Status Bus::open() {
  const auto& bars = pci_.bars();
  for (const uint32_t bar : {kBarMemory, kBarDoorbells, kBarRegisters})
    if (bars[bar].size == 0)
      return fail(Code::kUnsupported, "the function has no BAR{}: not an AMD GPU of gfx11 or later",
                  bar);
  ++counts_.configuration;
  BM_TRY(set_memory_decoding(pci_, true));
  registers_ = BM_TRY(pci_.map_bar(kBarRegisters));
  doorbells_ = BM_TRY(pci_.map_bar(kBarDoorbells));
  vram_ = BM_TRY(pci_.map_bar_memory(kBarMemory, true));
  return {};
}

Bus Bus::anew() const {
  Bus copy = *this;
  copy.first_error_ = {};
  copy.stages = StageLog(boot_terms());
  copy.counts_ = {};
  return copy;
}

void Bus::add_block(Block block, const BlockTable& table,
                    std::vector<std::vector<uint64_t>> instances) {
  blocks_.insert_or_assign(block, Bases{table, std::move(instances)});
}

uint32_t Bus::instances(Block block) const {
  const auto known = blocks_.find(block);
  return known == blocks_.end() ? 0 : static_cast<uint32_t>(known->second.instances.size());
}

uint32_t Bus::select(Block block, uint32_t instance) {
  const auto known = blocks_.find(block);
  if (known == blocks_.end()) return 0;
  BM_CHECK(instance < known->second.instances.size());
  return std::exchange(known->second.selected, instance);
}

std::vector<std::pair<Block, BlockTable>> Bus::blocks() const {
  std::vector<std::pair<Block, BlockTable>> list;
  for (const auto& [block, known] : blocks_) list.emplace_back(block, known.table);
  return list;
}

bool Bus::has(Reg reg, Block block) const {
  const auto known = blocks_.find(block);
  return known != blocks_.end() && known->second.table.find(reg) != nullptr;
}

bool Bus::has(Field field, Block block) const {
  const auto known = blocks_.find(block);
  return known != blocks_.end() && known->second.table.find(field) != nullptr;
}

uint64_t Bus::address(const At& at) {
  const auto known = blocks_.find(at.block);
  const BootRegister* row = known == blocks_.end() ? nullptr : known->second.table.find(at.reg);
  if (row == nullptr) {
    fail_with(
        {Code::kUnsupported, fmt::format("block {} of this card has no register {} known here",
                                         block_name(at.block), static_cast<uint32_t>(at.reg))});
    return 0;
  }
  const std::vector<uint64_t>& bases = known->second.instances[known->second.selected];
  if (row->segment >= bases.size()) {
    fail_with({Code::kUnsupported,
               fmt::format("{} lies in segment {}, and IP discovery gives {} of block {}",
                           row->name, row->segment, bases.size(), block_name(at.block))});
    return 0;
  }
  return bases[row->segment] + row->offset + at.add;
}

std::string Bus::name(const At& at) const {
  const auto known = blocks_.find(at.block);
  const BootRegister* row = known == blocks_.end() ? nullptr : known->second.table.find(at.reg);
  if (row == nullptr) return fmt::format("{} register", block_name(at.block));
  std::string text =
      at.add == 0 ? std::string(row->name) : fmt::format("{}+{:#x}", row->name, at.add);
  if (known->second.instances.size() > 1) text += fmt::format(" of {}", known->second.selected);
  return text;
}

uint32_t Bus::load(uint64_t dword) {
  ++counts_.register_reads;
  return registers_.read32(dword * 4);
}

void Bus::store(uint64_t dword, uint32_t value) {
  ++counts_.register_writes;
  registers_.write32(dword * 4, value);
}

uint32_t Bus::probe_dword(uint64_t dword) {
  return first_error_ && dword < registers_.size() / 4 ? load(dword) : UINT32_MAX;
}

/// Beyond the window: an index and a data register. Source: amdgpu_device_rreg(),
/// amdgpu_device_indirect_rreg(); get_pcie_index_offset of nbio_v4_3.c and nbif_v6_3_1.c.
uint32_t Bus::read_dword(uint64_t dword) {
  if (!status()) return UINT32_MAX;
  uint32_t value = 0;
  if (dword < registers_.size() / 4) {
    value = load(dword);
  } else {
    const uint64_t index = address({Block::kBus, Reg::BIF_BX_PF0_RSMU_INDEX});
    const uint64_t data = address({Block::kBus, Reg::BIF_BX_PF0_RSMU_DATA});
    if (!first_error_) return UINT32_MAX;
    store(index, static_cast<uint32_t>(dword * 4));
    value = load(data);
  }
  return is_dead(value) ? UINT32_MAX : value;
}

void Bus::write_dword(uint64_t dword, uint32_t value) {
  if (!status()) return;
  if (dword < registers_.size() / 4) {
    store(dword, value);
    return;
  }
  const uint64_t index = address({Block::kBus, Reg::BIF_BX_PF0_RSMU_INDEX});
  const uint64_t data = address({Block::kBus, Reg::BIF_BX_PF0_RSMU_DATA});
  if (!first_error_) return;
  store(index, static_cast<uint32_t>(dword * 4));
  store(data, value);
}

void Bus::write_on_die(const At& at, uint32_t die, uint32_t value) {
  constexpr uint64_t kOtherDie = uint64_t{1} << 34;
  const uint64_t place = address(at) * 4 | (die == 0 ? 0 : uint64_t{die & 3} << 32 | kOtherDie);
  const At high{Block::kBus, Reg::BIF_BX0_PCIE_INDEX2_HI};
  write({Block::kBus, Reg::BIF_BX0_PCIE_INDEX2}, lo32(place));
  if (die != 0) write(high, hi32(place) & 0xff);
  write({Block::kBus, Reg::BIF_BX0_PCIE_DATA2}, value);
  if (die != 0) write(high, 0);
}

uint32_t Bus::read(const At& at) {
  const uint64_t dword = address(at);
  return first_error_ ? read_dword(dword) : UINT32_MAX;
}

void Bus::write(const At& at, uint32_t value) {
  const uint64_t dword = address(at);
  if (first_error_) write_dword(dword, value);
}

void Bus::write_pair(Block block, Reg low, Reg high, uint64_t value, uint32_t add) {
  write({block, low, add}, lo32(value));
  write({block, high, add}, hi32(value));
}

uint32_t Bus::encode(Block block, std::initializer_list<Set> fields, uint32_t rest) {
  const auto known = blocks_.find(block);
  for (const Set& set : fields) {
    const RegisterField* bits =
        known == blocks_.end() ? nullptr : known->second.table.find(set.field);
    if (bits == nullptr || set.value > bits->max()) {
      fail_with({bits == nullptr ? Code::kUnsupported : Code::kInvalidArgument,
                 fmt::format("{}.{} of block {}: {}", name({block, register_of(set.field)}),
                             field_name(set.field), block_name(block),
                             bits == nullptr ? std::string("this version has no such field")
                                             : fmt::format("{:#x} does not fit", set.value))});
      return rest;
    }
    rest = (rest & ~bits->put(UINT32_MAX)) | bits->put(set.value);
  }
  return rest;
}

void Bus::write_fields(Block block, std::initializer_list<Set> fields, uint32_t rest,
                       uint32_t add) {
  const uint32_t word = encode(block, fields, rest);
  write({block, register_of(fields.begin()->field), add}, word);
}

void Bus::update(Block block, std::initializer_list<Set> fields, uint32_t add) {
  const At at{block, register_of(fields.begin()->field), add};
  const uint32_t word = encode(block, fields, read(at));
  write(at, word);
}

uint32_t Bus::get(Block block, Field field, uint32_t word) {
  const auto known = blocks_.find(block);
  const RegisterField* bits = known == blocks_.end() ? nullptr : known->second.table.find(field);
  return bits == nullptr ? 0 : bits->get(word);
}

uint32_t Bus::read_field(Block block, Field field, uint32_t add) {
  return get(block, field, read({block, register_of(field), add}));
}

void Bus::write_block(const At& at, std::span<const uint32_t> words) {
  const uint64_t dword = address(at);
  if (!status()) return;
  if (dword + words.size() > registers_.size() / 4) {
    for (size_t i = 0; i < words.size(); ++i) write_dword(dword + i, words[i]);
    return;
  }
  ++counts_.register_writes;
  registers_.write_block(dword * 4, words);
}

Status Bus::wait_for(const At& at, uint32_t mask, uint32_t value, uint64_t timeout_us,
                     std::string_view what) {
  const uint64_t dword = address(at);
  const uint64_t begun = clock_.now_us();
  uint32_t seen = 0;
  const bool came = BM_TRY(poll(timeout_us, [&] {
    seen = read_dword(dword);
    return (seen & mask) == value;
  }));
  if (came) return {};
  const BlockTable& table = blocks_.find(at.block)->second.table;
  return late(what, name(at), seen, table.decode(*table.find(at.reg), seen), mask, value,
              clock_.now_us() - begun);
}

void Bus::read_memory(uint64_t address, std::span<std::byte> to) {
  if (!status()) {
    std::ranges::fill(to, std::byte{0xff});
    return;
  }
  if (address + to.size() <= vram_.size()) {
    ++counts_.memory_reads;
    vram_.copy_out(address, to);
    return;
  }
  uint64_t high = ~uint64_t{0};
  for (size_t at = 0; at < to.size(); at += 4) {
    const uint64_t place = address + at;
    if (place >> 31 != high) write_dword(kMmIndexHi, static_cast<uint32_t>(high = place >> 31));
    write_dword(kMmIndex, static_cast<uint32_t>(place & 0x7fffffff) | 0x80000000u);
    const uint32_t word = read_dword(kMmData);
    std::memcpy(to.data() + at, &word, std::min<size_t>(4, to.size() - at));
  }
}

void Bus::write_memory(uint64_t address, std::span<const std::byte> from) {
  if (!status()) return;
  if (address + from.size() <= vram_.size()) {
    ++counts_.memory_writes;
    vram_.copy_in(address, from);
    return;
  }
  uint64_t high = ~uint64_t{0};
  for (size_t at = 0; at < from.size(); at += 4) {
    const uint64_t place = address + at;
    uint32_t word = 0;
    std::memcpy(&word, from.data() + at, std::min<size_t>(4, from.size() - at));
    if (place >> 31 != high) write_dword(kMmIndexHi, static_cast<uint32_t>(high = place >> 31));
    write_dword(kMmIndex, static_cast<uint32_t>(place & 0x7fffffff) | 0x80000000u);
    write_dword(kMmData, word);
  }
}

void Bus::fill_memory(uint64_t address, uint64_t bytes) {
  if (!status() || address + bytes > vram_.size()) return;
  ++counts_.memory_writes;
  vram_.fill(address, bytes, std::byte{0});
}

uint32_t Bus::read_memory_word(uint64_t address) {
  uint32_t word = 0;
  read_memory(address, std::as_writable_bytes(std::span(&word, 1)));
  return is_dead(word) ? UINT32_MAX : word;
}

}  // namespace bm::amd::am
