// DS, FLAT, GLOBAL, SCRATCH and BUFFER: where lanes point and what is moved.

#include <algorithm>
#include <bit>
#include <string>

#include "tests/sim/amd/exec/access_kind.h"
#include "tests/sim/amd/exec/memory_access.h"
#include "tests/sim/amd/exec/tables.h"

namespace bm::sim::amd {
namespace {

using U32 = uint32_t;
using U64 = uint64_t;

/// Host places of the lanes that are on; null entries are lanes that touch nothing.
struct Places {
  HostPlace at[kMaxLanes] = {};
};

bool is_aligned(const Wave& w, U64 address, U32 bytes, Access access) {
  if (access == Access::kAtomic) return address % bytes == 0;
  if (w.group->dispatch->unaligned_access) return true;
  return address % std::min<U32>(bytes, 4) == 0;
}

/// `offset` is the sum of a register and an immediate in 32 bits, as compilers rely on.
HostPlace lds_place(Wave& w, U64 offset, U32 bytes, U32 lane, Access access) {
  if (offset + bytes > w.group->lds.size()) {
    w.fail(Fault::Kind::kLdsOutOfRange, offset, lane, access);
    return {};
  }
  // LDS wants natural alignment in the aligned mode, also of 8 and 16 bytes.
  const U32 natural = bytes == 12 ? 16 : bytes;
  if ((access == Access::kAtomic || !w.group->dispatch->unaligned_access) && offset % natural) {
    w.fail(Fault::Kind::kMisaligned, offset, lane, access);
    return {};
  }
  return {.at = w.group->lds.data() + offset};
}

HostPlace global_place(Wave& w, U64 address, U32 bytes, U32 lane, Access access) {
  if (!is_aligned(w, address, bytes, access)) {
    w.fail(Fault::Kind::kMisaligned, address, lane, access);
    return {};
  }
  return place(w, address, bytes, access, lane);
}

/// Lanes have their scratch one after another, in the order of waves.
HostPlace scratch_place(Wave& w, int64_t offset, U32 bytes, U32 lane, Access access) {
  const Dispatch& d = *w.group->dispatch;
  if (offset < 0 || static_cast<U64>(offset) + bytes > d.scratch_per_lane) {
    w.fail(Fault::Kind::kScratchOutOfRange, static_cast<U64>(offset), lane, access);
    return {};
  }
  const U64 base = w.group->scratch + (U64{w.index} * w.lanes + lane) * d.scratch_per_lane;
  return global_place(w, base + static_cast<U64>(offset), bytes, lane, access);
}

/// One question for all lanes where their addresses lie close together.
void global_places(Wave& w, const U64* address, U32 bytes, Access access, Places& out) {
  constexpr U64 kNear = 1 << 16;
  const U64 exec = w.exec();
  if (!exec) return;
  U64 low = ~U64{0}, high = 0;
  bool aligned = true;
  each_lane(exec, [&](U32 l) {
    low = std::min(low, address[l]);
    high = std::max(high, address[l]);
    aligned &= is_aligned(w, address[l], bytes, access);
  });
  if (aligned && high - low < kNear) {
    const Memory::Place p = w.group->memory->at(low, static_cast<U32>(high - low) + bytes, access);
    if (p.host) {
      each_lane(exec, [&](U32 l) { out.at[l].at = p.host + (address[l] - low); });
      return;
    }
  }
  each_lane(exec, [&](U32 l) {
    if (!w.failed) out.at[l] = global_place(w, address[l], bytes, l, access);
  });
}

void flat_places(Wave& w, const U64* address, U32 bytes, Access access, Places& out) {
  const Dispatch& d = *w.group->dispatch;
  const U64 exec = w.exec();
  bool all_global = true;
  each_lane(exec, [&](U32 l) {
    const U64 top = address[l] >> 32;
    all_global &= top != d.shared_aperture >> 32 && top != d.private_aperture >> 32;
  });
  if (all_global) return global_places(w, address, bytes, access, out);
  each_lane(exec, [&](U32 l) {
    if (w.failed) return;
    const U64 top = address[l] >> 32, offset = address[l] & 0xffffffff;
    if (top == d.shared_aperture >> 32)
      out.at[l] = lds_place(w, offset, bytes, l, access);
    else if (top == d.private_aperture >> 32)
      out.at[l] = scratch_place(w, static_cast<int64_t>(offset), bytes, l, access);
    else
      out.at[l] = global_place(w, address[l], bytes, l, access);
  });
}

void address_lanes(Wave& w, const Step& in, U64* address) {
  const MemoryFields& m = in.mem;
  const U64 base =
      (m.saddr == kNull ? 0 : w.read64(m.saddr, 0, false)) + static_cast<U64>(int64_t{m.offset});
  const U32* lo = w.reg(in.src[0].code - kVgpr);
  const bool wide = in.src[0].dwords == 2;
  each_lane(w.exec(),
            [&](U32 l) { address[l] = base + lo[l] + (wide ? U64{lo[l + w.lanes]} << 32 : 0); });
}

/// Buffers: out of range reads 0 and writes nothing, as an unset place.
void buffer_places(Wave& w, const Step& in, U32 bytes, Access access, Places& out) {
  const MemoryFields& m = in.mem;
  const U64 low = w.read64(m.saddr, 0, false), high = w.read64(m.saddr + 2u, 0, false);
  const U64 base = low & 0xffffffffffff, stride = low >> 48 & 0x3fff, records = high & 0xffffffff;
  if (low >> 62) return w.fail(Fault::Kind::kIllegalOpcode);  // swizzled buffers are not modelled
  const U64 soffset = w.read32(m.soffset, 0, '1');
  const U32* v = m.use_vaddr ? w.reg(in.src[0].code - kVgpr) : nullptr;
  each_lane(w.exec(), [&](U32 l) {
    if (w.failed) return;
    const U64 index = m.idxen ? v[l] : 0;
    const U64 offset =
        static_cast<U64>(int64_t{m.offset}) + (m.offen ? v[l + (m.idxen ? w.lanes : 0)] : 0);
    const bool in_range = m.idxen && stride ? index < records && offset + bytes <= stride
                                            : offset + soffset + bytes <= records;
    if (in_range)
      out.at[l] = global_place(w, base + soffset + index * stride + offset, bytes, l, access);
  });
}

void find_places(Wave& w, const Step& in, U32 bytes, Access access, Places& out) {
  U64 address[kMaxLanes];
  const MemoryFields& m = in.mem;
  switch (in.format()) {
    case Format::kGlobal:
      address_lanes(w, in, address);
      return global_places(w, address, bytes, access, out);
    case Format::kFlat:
      address_lanes(w, in, address);
      return flat_places(w, address, bytes, access, out);
    case Format::kBuffer: return buffer_places(w, in, bytes, access, out);
    case Format::kScratch: {
      const U32* v = m.use_vaddr ? w.reg(in.src[0].code - kVgpr) : nullptr;
      const int64_t base =
          int64_t{m.offset} + (m.saddr == kNull ? 0 : int64_t{w.read32(m.saddr, 0, '1')});
      return each_lane(w.exec(), [&](U32 l) {
        if (!w.failed)
          out.at[l] = scratch_place(w, base + (v ? int64_t{static_cast<int32_t>(v[l])} : 0), bytes,
                                    l, access);
      });
    }
    default: {
      const U32* v = w.reg(in.src[0].code - kVgpr);
      return each_lane(w.exec(), [&](U32 l) {
        if (!w.failed)
          out.at[l] = lds_place(w, v[l] + static_cast<U32>(m.offset), bytes, l, access);
      });
    }
  }
}

/// What a wave's lanes ask of the banks of LDS, as many lanes at a time as move 128 bytes.
void count_conflicts(Wave& w, const Places& places, U32 bytes) {
  constexpr U32 kBanks = 32;
  const U32 words = std::max<U32>((bytes + 3) / 4, 1), each = kBanks / std::bit_ceil(words);
  for (U32 first = 0; first < w.lanes; first += each) {
    U64 asked[kBanks][kBanks];
    U32 count[kBanks] = {}, passes = 1;
    for (U32 l = first; l < first + each; ++l) {
      if (!places.at[l]) continue;
      const auto start = static_cast<U64>(places.at[l].at - w.group->lds.data()) / 4;
      for (U64 word = start; word < start + words; ++word) {
        const U32 bank = word % kBanks;
        U64* end = asked[bank] + count[bank];
        if (std::find(asked[bank], end, word) != end) continue;
        *end = word;
        passes = std::max(passes, ++count[bank]);
      }
    }
    w.group->lds_conflicts += passes - 1;
  }
}

/// The register that holds what is stored: FLAT and DS have it as a source, BUFFER as destination.
const Slot& data_slot(const Step& in) {
  return in.format() == Format::kBuffer ? in.dst : in.src[1];
}

/// `whole`: memory with error correction, CDNA3's, writes the other half too, with zeros.
void put_small(U32& reg, U32 value, const AccessKind& k, bool whole) {
  if (whole) reg = 0;
  if (!k.d16)
    reg = value;
  else if (k.high)
    reg = (reg & 0xffff) | value << 16;
  else
    reg = (reg & 0xffff0000) | (value & 0xffff);
}
U32 load_small(const HostPlace& at, const AccessKind& k) {
  if (k.bytes == 1) {
    const auto v = static_cast<uint8_t>(*at.at);
    return k.is_signed ? static_cast<U32>(int32_t{static_cast<int8_t>(v)}) : v;
  }
  uint16_t v = 0;
  at.read(&v, 2);
  return k.is_signed ? static_cast<U32>(int32_t{static_cast<int16_t>(v)}) : v;
}

void load(Wave& w, const Step& in) {
  const auto& k = *static_cast<const AccessKind*>(in.detail);
  Places places;
  find_places(w, in, k.bytes, Access::kRead, places);
  if (w.failed) return;
  if (in.format() == Format::kDs) count_conflicts(w, places, k.bytes);
  U32* d = w.reg(in.dst.code - kVgpr);
  if (k.bytes < 4) {
    each_lane(w.exec(), [&](U32 l) {
      put_small(d[l], places.at[l] ? load_small(places.at[l], k) : 0, k, w.isa == Isa::kGfx9);
    });
    return;
  }
  each_lane(w.exec(), [&](U32 l) {
    U32 value[4] = {};
    if (places.at[l]) places.at[l].read(value, k.bytes);
    for (U32 i = 0; i < k.bytes / 4u; ++i) d[i * w.lanes + l] = value[i];
  });
}

void store(Wave& w, const Step& in) {
  const auto& k = *static_cast<const AccessKind*>(in.detail);
  Places places;
  find_places(w, in, k.bytes, Access::kWrite, places);
  if (w.failed) return;
  if (in.format() == Format::kDs) count_conflicts(w, places, k.bytes);
  const U32* d = w.reg(data_slot(in).code - kVgpr);
  each_lane(w.exec(), [&](U32 l) {
    if (!places.at[l]) return;
    U32 value[4] = {};
    const U32 dwords = std::max<U32>(k.bytes / 4u, 1);
    for (U32 i = 0; i < dwords; ++i) value[i] = d[i * w.lanes + l];
    if (k.high) value[0] >>= 16;
    places.at[l].write(value, k.bytes);
  });
}

/// Read, change, write as one step also for host threads that look at the memory meanwhile.
template <class T>
U64 exchange(std::byte* at, const AtomicKind& k, U64 data, U64 compare) {
  T* p = reinterpret_cast<T*>(at);
  T old = __atomic_load_n(p, __ATOMIC_SEQ_CST);
  while (!__atomic_compare_exchange_n(p, &old, static_cast<T>(k.apply(old, data, compare)), false,
                                      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
  return old;
}

U64 read_value(const Wave& w, const U32* reg, U32 lane, U32 bytes) {
  return reg[lane] | (bytes == 8 ? U64{reg[lane + w.lanes]} << 32 : 0);
}

void atomic(Wave& w, const Step& in) {
  const auto& k = *static_cast<const AtomicKind*>(in.detail);
  Places places;
  find_places(w, in, k.bytes, Access::kAtomic, places);
  if (w.failed) return;
  const U32 dwords = k.bytes / 4u;
  const U32* data = w.reg(data_slot(in).code - kVgpr);
  // The value to compare with follows the new one, in DS it is an operand of its own.
  const U32* compare = !k.compares                  ? data
                       : in.format() == Format::kDs ? w.reg(in.src[2].code - kVgpr)
                                                    : data + size_t{dwords} * w.lanes;
  // DS_CMPST of RDNA2 and CDNA3 has them the other way round ("CMPSTORE" says the new order).
  if (k.compares && in.format() == Format::kDs && (w.isa == Isa::kGfx10 || w.isa == Isa::kGfx9))
    std::swap(data, compare);
  U64 old[kMaxLanes] = {};
  each_lane(w.exec(), [&](U32 l) {
    if (!places.at[l]) return;
    const U64 value = read_value(w, data, l, k.bytes),
              expected = read_value(w, compare, l, k.bytes);
    old[l] = k.bytes == 8 ? exchange<U64>(places.at[l].at, k, value, expected)
                          : exchange<U32>(places.at[l].at, k, value, expected);
  });
  if (!in.mem.returns) return;
  U32* d = w.reg(in.dst.code - kVgpr);
  each_lane(w.exec(), [&](U32 l) {
    d[l] = static_cast<U32>(old[l]);
    if (k.bytes == 8) d[l + w.lanes] = static_cast<U32>(old[l] >> 32);
  });
}

// ---- two addresses ----
struct TwoAddress {
  std::string_view name;
  U32 bytes, stride;
  enum class What : uint8_t { kLoad, kStore, kExchange } what;
};
constexpr TwoAddress kTwoAddress[] = {
    {"ds_load_2addr_b32", 4, 4, TwoAddress::What::kLoad},
    {"ds_load_2addr_b64", 8, 8, TwoAddress::What::kLoad},
    {"ds_load_2addr_stride64_b32", 4, 256, TwoAddress::What::kLoad},
    {"ds_load_2addr_stride64_b64", 8, 512, TwoAddress::What::kLoad},
    {"ds_store_2addr_b32", 4, 4, TwoAddress::What::kStore},
    {"ds_store_2addr_b64", 8, 8, TwoAddress::What::kStore},
    {"ds_store_2addr_stride64_b32", 4, 256, TwoAddress::What::kStore},
    {"ds_store_2addr_stride64_b64", 8, 512, TwoAddress::What::kStore},
    {"ds_storexchg_2addr_rtn_b32", 4, 4, TwoAddress::What::kExchange},
    {"ds_storexchg_2addr_rtn_b64", 8, 8, TwoAddress::What::kExchange},
    {"ds_storexchg_2addr_stride64_rtn_b32", 4, 256, TwoAddress::What::kExchange},
    {"ds_storexchg_2addr_stride64_rtn_b64", 8, 512, TwoAddress::What::kExchange},
};

void two_addresses(Wave& w, const Step& in) {
  const auto& k = *static_cast<const TwoAddress*>(in.detail);
  using What = TwoAddress::What;
  const Access access = k.what == What::kLoad    ? Access::kRead
                        : k.what == What::kStore ? Access::kWrite
                                                 : Access::kAtomic;
  Places places[2];
  const U32* v = w.reg(in.src[0].code - kVgpr);
  for (U32 i = 0; i < 2; ++i) {
    const U32 offset = (i ? in.mem.offset1 : in.mem.offset0) * k.stride;
    each_lane(w.exec(), [&](U32 l) {
      if (!w.failed) places[i].at[l] = lds_place(w, v[l] + offset, k.bytes, l, access);
    });
  }
  if (w.failed) return;
  for (const Places& one : places) count_conflicts(w, one, k.bytes);
  const U32 dwords = k.bytes / 4;
  U32 old[4][kMaxLanes];
  for (U32 i = 0; i < 2; ++i) {
    const U32* data = k.what == What::kLoad ? nullptr : w.reg(in.src[1 + i].code - kVgpr);
    each_lane(w.exec(), [&](U32 l) {
      for (U32 j = 0; j < dwords; ++j) {
        std::memcpy(&old[i * dwords + j][l], places[i].at[l].at + 4 * j, 4);
        if (data) std::memcpy(places[i].at[l].at + 4 * j, &data[j * w.lanes + l], 4);
      }
    });
  }
  if (k.what == What::kStore) return;
  U32* d = w.reg(in.dst.code - kVgpr);
  for (U32 j = 0; j < 2 * dwords; ++j)
    each_lane(w.exec(), [&](U32 l) { d[j * w.lanes + l] = old[j][l]; });
}

// ---- exchange among lanes through the LDS hardware ----
/// Lane that a byte address names: of 32, RDNA's halves of a wave do not meet, or of CDNA's 64.
U32 lane_named(const Wave& w, U32 address, U32 lane) {
  return w.isa == Isa::kGfx9 ? address / 4 & 63 : (address / 4 & 31) | (lane & 32);
}
void backward_permute(Wave& w, const Step& in) {
  const U32* address = w.reg(in.src[0].code - kVgpr);
  const U32* data = w.reg(in.src[1].code - kVgpr);
  U32 d[kMaxLanes];
  const U64 exec = w.exec();
  each_lane(exec, [&](U32 l) {
    const U32 from = lane_named(w, address[l] + static_cast<U32>(in.mem.offset), l);
    d[l] = exec >> from & 1 ? data[from] : 0;
  });
  U32* out = w.reg(in.dst.code - kVgpr);
  each_lane(exec, [&](U32 l) { out[l] = d[l]; });
}
void forward_permute(Wave& w, const Step& in) {
  const U32* address = w.reg(in.src[0].code - kVgpr);
  const U32* data = w.reg(in.src[1].code - kVgpr);
  U32 d[kMaxLanes] = {};
  each_lane(w.exec(), [&](U32 l) {
    d[lane_named(w, address[l] + static_cast<U32>(in.mem.offset), l)] = data[l];
  });
  U32* out = w.reg(in.dst.code - kVgpr);
  each_lane(w.exec(), [&](U32 l) { out[l] = d[l]; });
}
/// Source lane of ds_swizzle: quads, rotation or masks over 32 lanes.
U32 swizzle_source(U32 pattern, U32 lane) {
  const U32 at = lane & 31;
  if ((pattern & 0xe000) == 0xc000) {  // rotate
    const U32 keep = pattern & 31, n = pattern >> 5 & 31;
    const U32 moved = pattern >> 10 & 1 ? at - n : at + n;
    return (lane & 32) | (at & keep) | (moved & 31 & ~keep);
  }
  if (pattern & 0x8000) return (lane & ~3u) | (pattern >> (2 * (lane & 3)) & 3);
  const U32 mask = pattern & 31, set = pattern >> 5 & 31, flip = pattern >> 10 & 31;
  return (lane & 32) | (((at & mask) | set) ^ flip);
}
void swizzle(Wave& w, const Step& in) {
  const auto pattern = static_cast<U32>(in.mem.offset);
  if ((pattern & 0xe000) == 0xe000) return w.fail(Fault::Kind::kIllegalOpcode);  // FFT order
  const U32* data = w.reg(in.src[0].code - kVgpr);
  U32 d[kMaxLanes];
  const U64 exec = w.exec();
  each_lane(exec, [&](U32 l) {
    const U32 from = swizzle_source(pattern, l);
    d[l] = exec >> from & 1 ? data[from] : 0;
  });
  U32* out = w.reg(in.dst.code - kVgpr);
  each_lane(exec, [&](U32 l) { out[l] = d[l]; });
}

constexpr Semantics kLaneOps[] = {
    {"ds_bpermute_b32", backward_permute},
    {"ds_permute_b32", forward_permute},
    {"ds_swizzle_b32", swizzle},
    {"buffer_gl0_inv", [](Wave&, const Step&) {}},
    {"buffer_gl1_inv", [](Wave&, const Step&) {}},
    {"buffer_inv", [](Wave&, const Step&) {}},
    {"buffer_wbl2", [](Wave&, const Step&) {}},
    {"global_inv", [](Wave&, const Step&) {}},
    {"global_wb", [](Wave&, const Step&) {}},
    {"global_wbinv", [](Wave&, const Step&) {}},
};

/// What follows `part` in `name`, or nothing.
std::string_view after(std::string_view name, std::string_view part) {
  const size_t at = name.find(part);
  return at == std::string_view::npos ? std::string_view() : name.substr(at + part.size());
}

}  // namespace

std::span<const Semantics> lds_lane_ops() { return kLaneOps; }

Bound memory_handler(const OpcodeRow& row) {
  const std::string_view name_of_row = row.meaning();
  for (const TwoAddress& k : kTwoAddress)
    if (k.name == name_of_row) return {two_addresses, &k};
  if (const auto rest = after(name_of_row, "_load_"); !rest.empty())
    if (const AccessKind* k = find_access(rest)) return {load, k};
  if (const auto rest = after(name_of_row, "_store_"); !rest.empty())
    if (const AccessKind* k = find_access(rest)) return {store, k};
  std::string name(row.format == Format::kDs ? name_of_row.substr(3)
                                             : after(name_of_row, "_atomic_"));
  if (const size_t at = name.find("_rtn"); at != std::string::npos) name.erase(at, 4);
  if (const AtomicKind* k = find_atomic(name)) return {atomic, k};
  return {};
}

}  // namespace bm::sim::amd
