#include "tests/sim/ptx/memory_access.h"

#include <algorithm>

#include "tests/sim/ptx/beside.h"

namespace bm::sim::ptx {
namespace {

constexpr uint64_t kMaxSpan = 1 << 30;

uint64_t address_of(const Exec& x, const Inst& in, uint32_t op, uint32_t lane) {
  const uint64_t base = in.is_wide ? x.reg<uint64_t>(op)[lane] : x.reg<uint32_t>(op)[lane];
  return base + in.imm;
}

/// One lane anywhere. Windows hold offsets from zero.
bool resolve_one(Exec& x, const Inst& in, uint32_t lane, uint64_t address, Space space,
                 uint32_t bytes, Access access) {
  if (space == Space::kGeneric) {
    const uint64_t window = address & kWindowMask, offset = address & ~kWindowMask;
    if (window == kSharedWindow)
      return resolve_one(x, in, lane, offset, Space::kShared, bytes, access);
    if (window == kLocalWindow)
      return resolve_one(x, in, lane, offset, Space::kLocal, bytes, access);
    if (window == kParamWindow)
      return resolve_one(x, in, lane, offset, Space::kParam, bytes, access);
    space = Space::kGlobal;
  }
  const auto refuse = [&](Fault::Kind kind, std::string_view detail = {}) {
    x.raise(in, lane, kind, address, access, detail);
    return false;
  };
  if (address % bytes) return refuse(Fault::Kind::kMisaligned, fmt::format("{} bytes", bytes));
  std::byte*& out = x.pointers[lane];
  const auto fits = [&](uint64_t size) { return size >= bytes && address <= size - bytes; };
  switch (space) {
    case Space::kGeneric:
    case Space::kGlobal:
      out = x.memory->at(address, bytes, access);
      if (!out) return refuse(Fault::Kind::kUnmapped);
      return true;
    case Space::kShared:
      if (!fits(x.shared_bytes))
        return refuse(Fault::Kind::kSharedOutOfRange,
                      fmt::format("{} bytes of shared memory", x.shared_bytes));
      out = x.shared + address;
      return !x.cells || x.cells->touch(x, in, lane, address, bytes, access);
    case Space::kLocal: {
      const uint32_t size = x.kernel->info.local_bytes;
      if (!fits(size))
        return refuse(Fault::Kind::kLocalOutOfRange, fmt::format("{} bytes of local memory", size));
      out = x.local + size_t{lane} * size + address;
      return true;
    }
    case Space::kParam:
      if (!fits(x.params.size()) || access != Access::kRead)
        return refuse(Fault::Kind::kParamOutOfRange,
                      fmt::format("{} bytes of parameters", x.params.size()));
      out = const_cast<std::byte*>(x.params.data()) + address;
      return true;
  }
  return false;
}

/// Global addresses of all lanes lie in one mapping, nearly always: one question for all of them.
bool resolve_span(Exec& x, const Inst& in, uint32_t op, uint32_t bytes, Access access) {
  uint64_t least = ~uint64_t{0}, most = 0, low_bits = 0;
  const uint64_t* wide = x.reg<uint64_t>(op);
  for (uint32_t k = 0; k < x.count; ++k) {
    const uint64_t address = wide[x.active[k]] + in.imm;
    least = std::min(least, address);
    most = std::max(most, address);
    low_bits |= address;
  }
  if ((low_bits & (bytes - 1)) || (most >> 48) || most - least >= kMaxSpan) return false;
  std::byte* base = x.memory->at(least, static_cast<uint32_t>(most - least) + bytes, access);
  if (!base) return false;
  for (uint32_t k = 0; k < x.count; ++k) {
    const uint32_t lane = x.active[k];
    x.pointers[lane] = base + (wide[lane] + in.imm - least);
  }
  return true;
}

bool resolve_shared(Exec& x, const Inst& in, uint32_t op, uint32_t bytes) {
  for (uint32_t k = 0; k < x.count; ++k) {
    const uint32_t lane = x.active[k];
    const uint64_t address = address_of(x, in, op, lane);
    if ((address & (bytes - 1)) || address >= x.shared_bytes || x.shared_bytes - address < bytes)
      return false;
    x.pointers[lane] = x.shared + address;
  }
  return true;
}

/// Parameters of a kernel are at one address for all, nearly always.
bool resolve_param(Exec& x, const Inst& in, uint32_t op, uint32_t bytes) {
  const uint64_t first = address_of(x, in, op, x.active[0]);
  if (first % bytes || first >= x.params.size() || x.params.size() - first < bytes) return false;
  auto* p = const_cast<std::byte*>(x.params.data()) + first;
  bool is_uniform = true;
  each_thread(x, [&](uint32_t i) {
    is_uniform &= address_of(x, in, op, i) == first;
    x.pointers[i] = p;
  });
  return is_uniform;
}

}  // namespace

bool resolve(Exec& x, const Inst& in, uint32_t address_op, uint32_t bytes, Access access) {
  const bool is_global = in.space == Space::kGlobal || in.space == Space::kGeneric;
  if (is_global && in.is_wide && resolve_span(x, in, address_op, bytes, access)) return true;
  if (in.space == Space::kShared && !x.cells && resolve_shared(x, in, address_op, bytes))
    return true;
  const bool is_param = in.space == Space::kParam && access == Access::kRead;
  if (is_param && resolve_param(x, in, address_op, bytes)) return true;
  for (uint32_t k = 0; k < x.count; ++k) {
    const uint32_t lane = x.active[k];
    const uint64_t address = address_of(x, in, address_op, lane);
    if (!resolve_one(x, in, lane, address, in.space, bytes, access)) return false;
  }
  return true;
}

void SharedCells::start(uint32_t bytes, const Checks& what) {
  cells.assign(bytes, {});
  warp_epochs.fill(0);
  fences.fill(0);
  epoch = 0;
  checks = what;
}

bool SharedCells::is_concurrent(const Touch& other, uint32_t lane) const {
  if (other.lane == 0xffff || other.lane == lane || other.epoch != epoch) return false;
  const uint32_t warp = lane / kWarp;
  return other.lane / kWarp != warp || other.warp_epoch == warp_epochs[warp];
}

bool SharedCells::touch(Exec& x, const Inst& in, uint32_t lane, uint64_t address, uint32_t bytes,
                        Access access) {
  const Touch now{static_cast<uint16_t>(lane), epoch, warp_epochs[lane / kWarp]};
  const auto race = [&](const Touch& other, std::string_view did) {
    x.raise(in, lane, Fault::Kind::kSharedRace, address, access,
            fmt::format("thread {} {} it since the last barrier", other.lane, did));
    return false;
  };
  const auto beside = [&](std::string_view who) {
    x.raise(in, lane, Fault::Kind::kSharedRace, address, access,
            fmt::format("it belongs to {}", who));
    return false;
  };
  for (uint64_t at = address; at < address + bytes; ++at) {
    Cell& cell = cells[at];
    const bool is_read = access == Access::kRead;
    if (cell.copies) return beside("a cp.async that was not waited for");
    if (!is_read && cell.commit > x.beside->tensor.threads[lane].known_commit)
      return beside("a tcgen05.mma whose mbarrier this thread did not wait for");
    if (!is_read && cell.products) return beside("a wgmma that was not waited for");
    if (access != Access::kWrite && checks.uninitialised_shared && !cell.is_initialised) {
      x.raise(in, lane, Fault::Kind::kUninitialisedShared, at, access);
      return false;
    }
    if (checks.shared_races) {
      const bool both_atomic = access == Access::kAtomic && cell.writer_is_atomic;
      if (!both_atomic && is_concurrent(cell.writer, lane)) return race(cell.writer, "wrote");
      for (const Touch& reader : cell.readers)
        if (!is_read && is_concurrent(reader, lane)) return race(reader, "read");
    }
    if (is_read) {
      if (cell.readers[0].lane != lane) cell.readers[1] = cell.readers[0];
      cell.readers[0] = now;
    } else {
      cell.writer = now;
      cell.writer_is_atomic = access == Access::kAtomic;
      cell.is_initialised = true;
      cell.writer_fences = fences[lane];
    }
  }
  return true;
}

bool SharedCells::read_beside(Exec& x, const Inst& in, uint32_t lane, uint64_t address,
                              uint32_t bytes, uint64_t commit) {
  const auto refuse = [&](Fault::Kind kind, uint64_t at, std::string_view why) {
    x.raise(in, lane, kind, at, Access::kRead, why);
    return false;
  };
  for (uint64_t at = address; at < address + bytes; ++at) {
    Cell& cell = cells[at];
    if (checks.uninitialised_shared && !cell.is_initialised)
      return refuse(Fault::Kind::kUninitialisedShared, at, "read by a product");
    if (checks.shared_races) {
      if (cell.copies)
        return refuse(Fault::Kind::kSharedRace, at, "it belongs to a cp.async not waited for");
      if (is_concurrent(cell.writer, lane))
        return refuse(Fault::Kind::kSharedRace, at,
                      fmt::format("thread {} wrote it since the last barrier", cell.writer.lane));
      if (cell.writer.lane != 0xffff && fences[cell.writer.lane] == cell.writer_fences)
        return refuse(Fault::Kind::kSharedRace, at,
                      fmt::format("thread {} wrote it with no fence.proxy.async after that",
                                  cell.writer.lane));
    }
    ++cell.products;
    if (commit != 0) cell.commit = static_cast<uint32_t>(commit);
  }
  return true;
}

void SharedCells::end_read(uint64_t address, uint32_t bytes) {
  for (uint64_t at = address; at < address + bytes; ++at) --cells[at].products;
}

void count_sectors(Exec& x, const Inst& in, uint32_t address_op, uint32_t bytes, Access access) {
  uint64_t sectors = 0;
  for (uint32_t k = 0; k < x.count;) {
    const uint32_t warp = x.active[k] / kWarp;
    // An access is aligned and not wider than a sector: one for each lane at most.
    std::array<uint64_t, kWarp> seen;
    uint32_t n = 0;
    for (; k < x.count && x.active[k] / kWarp == warp; ++k) {
      const uint64_t sector = address_of(x, in, address_op, x.active[k]) / kSectorBytes;
      if (n > 0 && seen[n - 1] == sector) continue;
      if (std::find(seen.begin(), seen.begin() + n, sector) == seen.begin() + n) seen[n++] = sector;
    }
    sectors += n;
  }
  const uint64_t moved = uint64_t{x.count} * bytes;
  if (access == Access::kRead) {
    x.traffic.global_load_bytes += moved;
    x.traffic.global_load_sectors += sectors;
  } else {
    x.traffic.global_store_bytes += moved;
    x.traffic.global_store_sectors += sectors;
  }
}

void count_banks(Exec& x, uint32_t bytes) {
  constexpr uint32_t kBanks = 32, kPass = 128;
  const uint32_t together = std::max(1u, std::min(kWarp, kPass / bytes));
  for (uint32_t k = 0; k < x.count;) {
    const uint32_t part = x.active[k] / together;
    std::array<std::array<uint64_t, kWarp>, kBanks> words;
    std::array<uint32_t, kBanks> used{};
    for (; k < x.count && x.active[k] / together == part; ++k) {
      const auto at = static_cast<uint64_t>(x.pointers[x.active[k]] - x.shared);
      for (uint64_t word = at / 4; word <= (at + bytes - 1) / 4; ++word) {
        auto& bank = words[word % kBanks];
        uint32_t& n = used[word % kBanks];
        if (n < kWarp && std::find(bank.begin(), bank.begin() + n, word) == bank.begin() + n)
          bank[n++] = word;
      }
    }
    const uint32_t passes = *std::max_element(used.begin(), used.end());
    x.traffic.shared_passes += passes;
    x.traffic.shared_conflicts += passes - 1;
  }
}

}  // namespace bm::sim::ptx
