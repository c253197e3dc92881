#include "tests/sim/amd/exec/waits.h"

#include <algorithm>

#include <fmt/format.h>

namespace bm::sim::amd {
namespace {

using Kind = Traffic::Kind;

/// LGKM_CNT of all but gfx12, which counts LDS and scalars apart (DS_CNT and KM_CNT).
constexpr uint8_t kVectorCounter = 0, kLdsCounter = 1, kScalarCounter = 2;

constexpr uint8_t flag_of(uint8_t counter) { return static_cast<uint8_t>(1u << counter); }

uint8_t bits_of(uint32_t imm, uint32_t first, uint32_t count) {
  return static_cast<uint8_t>(imm >> first & ((1u << count) - 1));
}

/// Fields of S_WAITCNT.
void set_combined(Traffic& t, uint32_t imm, Isa isa) {
  switch (isa) {
    case Isa::kGfx9:
    case Isa::kGfx10:
      t.most[kVectorCounter] = static_cast<uint8_t>(bits_of(imm, 0, 4) | bits_of(imm, 14, 2) << 4);
      t.most[kLdsCounter] = bits_of(imm, 8, isa == Isa::kGfx9 ? 4 : 6);
      return;
    case Isa::kGfx11:
    case Isa::kGfx115:
      t.most[kVectorCounter] = bits_of(imm, 10, 6);
      t.most[kLdsCounter] = bits_of(imm, 4, 6);
      return;
    case Isa::kGfx12: return;
  }
}

/// Limits of an instruction that waits; false: `name` is none.
bool set_limits(Traffic& t, std::string_view name, uint32_t imm, Isa isa) {
  if (name == "s_waitcnt") {
    set_combined(t, imm, isa);
  } else if (name == "s_wait_idle") {
    t.most = {};
  } else if (name == "s_waitcnt_vmcnt" || name == "s_wait_loadcnt") {
    t.most[kVectorCounter] = bits_of(imm, 0, 6);
  } else if (name == "s_waitcnt_lgkmcnt" || name == "s_wait_dscnt" ||
             name == "s_wait_storecnt_dscnt") {
    t.most[kLdsCounter] = bits_of(imm, 0, 6);
  } else if (name == "s_wait_loadcnt_dscnt") {
    t.most[kVectorCounter] = bits_of(imm, 8, 6);
    t.most[kLdsCounter] = bits_of(imm, 0, 6);
  } else if (name == "s_wait_kmcnt") {
    t.most[kScalarCounter] = bits_of(imm, 0, 5);
  } else {
    return false;
  }
  return true;
}

/// gfx9 counts stores with loads; the others have a counter for them that no register waits for.
bool counts_stores(Isa isa) { return isa == Isa::kGfx9; }

std::string register_name(uint32_t code) {
  if (code >= kAccVgpr) return fmt::format("a{}", code - kAccVgpr);
  return code >= kVgpr ? fmt::format("v{}", code - kVgpr) : fmt::format("s{}", code);
}

}  // namespace

Traffic traffic_of(const Instruction& in, Isa isa) {
  Traffic t;
  const std::string_view name = in.row->meaning();
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  const uint8_t scalar = isa == Isa::kGfx12 ? kScalarCounter : kLdsCounter;
  const bool is_atomic = has("_atomic_"),
             returns = has("_load_") || (is_atomic && (in.mem.returns || in.row->has('R')));
  switch (in.format()) {
    case Format::kSopp:
    case Format::kSopk:
    case Format::kSop1:
      if (set_limits(t, name, in.imm, isa)) t.kind = Kind::kWait;
      if (name == "s_barrier" || name.starts_with("s_barrier_signal")) t.kind = Kind::kBarrier;
      if (!name.starts_with("s_sendmsg_rtn")) return t;
      [[fallthrough]];
    case Format::kSmem:
      if (in.dst.dwords == 0) return t;
      t.kind = Kind::kScalar;
      t.counters = flag_of(scalar);
      t.has_dst = true;
      return t;
    case Format::kDs:
      t.kind = Kind::kLds;
      t.counters = flag_of(kLdsCounter);
      t.has_dst = in.dst.dwords != 0;
      t.writes_lds = !has("_load_") && !has("permute") && !has("swizzle");
      return t;
    case Format::kFlat:
      t.kind = Kind::kFlat;
      t.counters = flag_of(kLdsCounter);
      if (returns || counts_stores(isa)) t.counters |= flag_of(kVectorCounter);
      t.has_dst = returns;
      t.writes_lds = !has("_load_");
      return t;
    case Format::kScratch:
    case Format::kGlobal:
    case Format::kBuffer:
      if (has("_inv") || has("_wb") || (!returns && !counts_stores(isa))) return t;
      t.kind = Kind::kVector;
      t.counters = flag_of(kVectorCounter);
      t.has_dst = returns;
      return t;
    default: return t;
  }
}

bool Waits::is_pending(uint32_t code, uint32_t dwords) const {
  for (uint32_t i = 0; i < dwords && code + i < kCodes; ++i)
    if (pending_[code + i]) return true;
  return false;
}

/// Whether all that will write `dst` returns before an operation of `kind` does.
bool Waits::is_in_order_behind(const Slot& dst, Kind kind) const {
  if (kind != Kind::kVector && kind != Kind::kLds) return false;
  return std::ranges::all_of(operations_, [&](const Operation& o) {
    return o.kind == kind || o.dst.code >= dst.code + dst.dwords ||
           dst.code >= o.dst.code + o.dst.dwords;
  });
}

std::optional<std::string> Waits::problem(const Instruction& in, const Traffic& t) const {
  if (operations_.empty()) return std::nullopt;
  if (t.kind == Kind::kBarrier &&
      std::ranges::any_of(operations_, [](const Operation& o) { return o.writes_lds; }))
    return "others may read LDS before what this wave has written is there";
  if (pending_.none()) return std::nullopt;
  const auto refuse = [](uint32_t code, std::string_view what) {
    return fmt::format("{} is {} before its load was waited for", register_name(code), what);
  };
  const auto is_register = [](uint32_t code) {
    return code < 128 ? code != kNull : code >= kVgpr && code != kNone;
  };
  const auto reads = [&](uint32_t code, uint32_t dwords) {
    return is_register(code) && is_pending(code, dwords);
  };
  for (int i = 0; i < 3; ++i)
    for (const Slot& s : {in.src[i], in.src_y[i]})
      if (reads(s.code, s.dwords)) return refuse(s.code, "read");
  if (in.format() >= Format::kDs || in.format() == Format::kSmem) {
    const uint32_t base = in.format() == Format::kBuffer ? 4 : 2;
    if (reads(in.mem.saddr, base)) return refuse(in.mem.saddr, "read");
    if (reads(in.mem.soffset, 1)) return refuse(in.mem.soffset, "read");
  }
  for (const Slot& s : {in.dst, in.sdst, in.dst_y})
    if (reads(s.code, s.dwords) && !(t.has_dst && is_in_order_behind(s, t.kind)))
      return refuse(s.code, "written");
  return std::nullopt;
}

void Waits::issue(const Instruction& in, const Traffic& t) {
  if (t.kind == Kind::kWait) return wait(t);
  if (t.counters == 0) return;
  for (uint32_t c = 0; c < Traffic::kCounters; ++c)
    if (t.counters >> c & 1) ++counts_[c];
  Operation& o = operations_.emplace_back();
  o.kind = t.kind;
  o.counters = t.counters;
  o.writes_lds = t.writes_lds;
  if (!t.has_dst || in.dst.code == kNull) return;
  o.dst = in.dst;
  for (uint32_t i = 0; i < o.dst.dwords; ++i) pending_[o.dst.code + i] = true;
}

/// What has returned for certain: all but the newest of a kind that returns in order, and of others
/// all or nothing. Either of its counters says so of a flat one.
void Waits::wait(const Traffic& t) {
  for (uint32_t c = 0; c < Traffic::kCounters; ++c) {
    if (t.most[c] >= counts_[c]) continue;
    counts_[c] = t.most[c];
    std::array<uint32_t, 8> left = {};
    left[static_cast<size_t>(Kind::kVector)] = left[static_cast<size_t>(Kind::kLds)] = counts_[c];
    // Newest first; those that stay move to the back.
    auto kept = operations_.rbegin();
    for (auto o = operations_.rbegin(); o != operations_.rend(); ++o) {
      const bool is_counted = (o->counters >> c & 1) != 0;
      // On the way to memory flat ones keep their order among the others.
      const Kind kind = o->kind == Kind::kFlat && c == kVectorCounter ? Kind::kVector : o->kind;
      uint32_t& rest = left[static_cast<size_t>(kind)];
      const bool is_in_order = kind == Kind::kVector || kind == Kind::kLds;
      const bool stays = !is_counted || (is_in_order ? rest > 0 : counts_[c] > 0);
      if (is_counted && is_in_order && rest > 0) --rest;
      if (stays) *kept++ = *o;
    }
    operations_.erase(operations_.begin(), kept.base());
  }
  pending_.reset();
  for (const Operation& o : operations_)
    for (uint32_t i = 0; i < o.dst.dwords; ++i) pending_[o.dst.code + i] = true;
}

}  // namespace bm::sim::amd
