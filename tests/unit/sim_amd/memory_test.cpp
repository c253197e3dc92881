// Loads, stores and atomics of every address space, by the names in the tables: every row is
// encoded here from its fields and executed against a model in ten lines.

#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "runtime/base/half.h"
#include "tests/unit/sim_amd/one_wave.h"
#include "tests/unit/sim_amd/snippets.h"

namespace bm::sim::amd::test {
namespace {

constexpr uint32_t kLanes = 32;
constexpr uint32_t kData = 8, kResult = 16, kAddress = 2;

std::string after(std::string_view name, std::string_view part) {
  const size_t at = name.find(part);
  return at == std::string_view::npos ? "" : std::string(name.substr(at + part.size()));
}

/// The words of `row` with vdst 16, data 8 (second data 12), address v[2:3], offset `offset`;
/// GLOBAL and FLAT without SADDR, BUFFER with offen and its resource in s[8:11].
std::vector<uint32_t> encode(const OpcodeRow& r, Isa isa, uint32_t offset, bool returns) {
  const uint32_t c = r.code, g = returns ? 1 : 0;
  const bool is12 = isa == Isa::kGfx12, is10 = isa == Isa::kGfx10;
  const auto present = [&](uint32_t i) { return r.operands[2 * i] != '-'; };
  if (isa == Isa::kGfx9) {
    const uint32_t segment = r.format == Format::kFlat ? 0 : r.format == Format::kScratch ? 1 : 2;
    if (r.format == Format::kDs)
      return {0xd8000000 | c << 17 | offset,
              (present(0) ? kResult << 24 : 0) | (present(1) ? kAddress : 0) |
                  (present(2) ? kData << 8 : 0) | (present(3) ? 12u << 16 : 0)};
    if (r.format == Format::kBuffer)
      return {0xe0000000 | c << 18 | g << 14 | 1 << 12 | offset,
              kAddress | kData << 8 | 2 << 16 | 128u << 24};
    return {0xdc000000 | segment << 14 | c << 18 | g << 16 | (segment == 1 ? 0x2000 : 0) | offset,
            kAddress | kData << 8 | (segment ? 127u << 16 : 0) | kResult << 24};
  }
  switch (r.format) {
    case Format::kDs:
      return {0xd8000000 | c << 18 | offset,
              (present(0) ? kResult << 24 : 0) | (present(1) ? kAddress : 0) |
                  (present(2) ? kData << 8 : 0) | (present(3) ? 12u << 16 : 0)};
    case Format::kFlat:
    case Format::kGlobal:
    case Format::kScratch: {
      const uint32_t segment = r.format == Format::kFlat ? 0 : r.format == Format::kScratch ? 1 : 2;
      const uint32_t sve = segment == 1;
      if (is12)
        return {0xec000000 | segment << 24 | c << 14 | 124,
                kResult | sve << 17 | g << 20 | kData << 23, kAddress | offset << 8};
      if (is10)
        return {0xdc000000 | segment << 14 | c << 18 | g << 16 | offset,
                kAddress | kData << 8 | 125u << 16 | kResult << 24};
      return {0xdc000000 | segment << 16 | c << 18 | g << 14 | offset,
              kAddress | kData << 8 | 124u << 16 | sve << 23 | kResult << 24};
    }
    default:
      if (is12)
        return {0xc4000000 | c << 14 | 124, kData | 8 << 9 | g << 20 | 1u << 30,
                kAddress | offset << 8};
      if (is10)
        return {0xe0000000 | c << 18 | g << 14 | 1 << 12 | offset,
                kAddress | kData << 8 | 2 << 16 | 125u << 24};
      return {0xe0000000 | c << 18 | g << 14 | offset,
              kAddress | kData << 8 | 2 << 16 | 1 << 22 | 124u << 24};
  }
}

struct Rig : OneWave {
  explicit Rig(Isa isa) : OneWave(isa), random(3) {
    base = memory.allocate(4096);
    for (uint32_t i = 0; i < 4096; ++i) memory.host(base)[i] = static_cast<std::byte>(random());
    for (auto& x : group.lds) x = static_cast<std::byte>(random());
    for (uint32_t r = kData; r < kData + 8; ++r)
      for (uint32_t l = 0; l < kLanes; ++l) v(r, l) = static_cast<uint32_t>(random());
    for (uint32_t r = kResult; r < kResult + 4; ++r)
      for (uint32_t l = 0; l < kLanes; ++l) v(r, l) = 0xabcd0000 + l;
    wave.s[kExecLo + 1] = 0;
    wave.write64(8, base);
    wave.write64(10, uint64_t{4096});
  }
  /// Points every lane at its own 16 bytes; the host's view of them.
  std::byte* aim(Format format, uint32_t lane, uint32_t offset) {
    const uint32_t at = lane * 16;
    switch (format) {
      case Format::kDs: put(kAddress, lane, at); return group.lds.data() + at + offset;
      case Format::kScratch:
        put(kAddress, lane, lane & 1 ? 16 : 0);
        return memory.host(group.scratch + lane * 64 + (lane & 1 ? 16 : 0) + offset);
      case Format::kBuffer: put(kAddress, lane, at); return memory.host(base + at + offset);
      case Format::kFlat:
        if (lane < 8) {
          put(kAddress, lane, dispatch.shared_aperture + at);
          return group.lds.data() + at + offset;
        }
        [[fallthrough]];
      default: put(kAddress, lane, base + at); return memory.host(base + at + offset);
    }
  }
  uint64_t base = 0;
  std::mt19937 random;
};

Isa isa_for(const OpcodeRow& r) {
  return r.in(Isa::kGfx9)    ? Isa::kGfx9
         : r.in(Isa::kGfx10) ? Isa::kGfx10
         : r.in(Isa::kGfx11) ? Isa::kGfx11
                             : Isa::kGfx12;
}

uint32_t bytes_of(const std::string& kind) {
  if (kind.find("128") != std::string::npos) return 16;
  if (kind.find("96") != std::string::npos) return 12;
  if (kind.find("64") != std::string::npos) return 8;
  if (kind.find("u8") != std::string::npos || kind.find("i8") != std::string::npos ||
      kind.find("b8") != std::string::npos)
    return 1;
  if (kind.find("32") != std::string::npos) return 4;
  return 2;
}

void try_load(const OpcodeRow& r, Isa isa, const std::string& kind) {
  SCOPED_TRACE(r.name);
  Rig o(isa);
  const uint32_t bytes = bytes_of(kind), result = r.format == Format::kBuffer ? kData : kResult;
  std::vector<std::array<uint32_t, 4>> expected(kLanes);
  for (uint32_t l = 0; l < kLanes; ++l) {
    const std::byte* at = o.aim(r.format, l, 4);
    uint32_t value[4] = {};
    std::memcpy(value, at, bytes);
    if (kind.find("i8") != std::string::npos)
      value[0] = static_cast<uint32_t>(int32_t{static_cast<int8_t>(value[0])});
    if (kind.find("i16") != std::string::npos)
      value[0] = static_cast<uint32_t>(int32_t{static_cast<int16_t>(value[0])});
    const uint32_t old = o.v(result, l);
    if (kind.find("d16_hi") != std::string::npos)
      value[0] = (isa == Isa::kGfx9 ? 0 : old & 0xffff) | value[0] << 16;
    else if (kind.find("d16") != std::string::npos)
      value[0] = (isa == Isa::kGfx9 ? 0 : old & 0xffff0000) | (value[0] & 0xffff);
    for (int i = 0; i < 4; ++i) expected[l][static_cast<size_t>(i)] = value[i];
  }
  ASSERT_TRUE(o.step(encode(r, isa, 4, false)));
  ASSERT_FALSE(o.wave.failed) << fault_name(o.wave.fault.kind);
  for (uint32_t l = 0; l < kLanes; ++l)
    for (uint32_t i = 0; i < std::max(bytes / 4, 1u); ++i)
      EXPECT_EQ(o.v(result + i, l), expected[l][i]) << "lane " << l;
  covers(r.name);
}

void try_store(const OpcodeRow& r, Isa isa, const std::string& kind) {
  SCOPED_TRACE(r.name);
  Rig o(isa);
  const uint32_t bytes = bytes_of(kind);
  std::byte* at[kLanes];
  for (uint32_t l = 0; l < kLanes; ++l) at[l] = o.aim(r.format, l, 4);
  std::vector<std::byte> next(kLanes);
  o.wave.s[kExecLo] = 0x7fffffff;
  const std::byte untouched = *at[31];
  ASSERT_TRUE(o.step(encode(r, isa, 4, false)));
  ASSERT_FALSE(o.wave.failed) << fault_name(o.wave.fault.kind);
  for (uint32_t l = 0; l < 31; ++l) {
    uint32_t value[4];
    for (uint32_t i = 0; i < 4; ++i) value[i] = o.v(kData + i, l);
    if (kind.find("d16_hi") != std::string::npos) value[0] >>= 16;
    EXPECT_EQ(std::memcmp(at[l], value, bytes), 0) << "lane " << l;
  }
  EXPECT_EQ(*at[31], untouched);
  covers(r.name);
}

template <class T>
T as(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <class T>
uint64_t raw(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}
uint64_t pair_sum(uint64_t a, uint64_t b, bool brain) {
  uint64_t sum = 0;
  for (int s = 0; s < 32; s += 16) {
    const auto x = static_cast<uint16_t>(a >> s), y = static_cast<uint16_t>(b >> s);
    sum |= uint64_t{brain ? f32_to_bf16(bf16_to_f32(x) + bf16_to_f32(y))
                          : f32_to_f16(f16_to_f32(x) + f16_to_f32(y))}
           << s;
  }
  return sum;
}
/// What an atomic leaves in memory.
uint64_t model(const std::string& kind, uint64_t old, uint64_t data, uint64_t compare) {
  const bool wide = kind.find("64") != std::string::npos,
             is_signed = kind.find("_i") != std::string::npos;
  const bool is_float = kind.find("_f") != std::string::npos;
  const auto starts = [&](const char* what) { return kind.starts_with(what); };
  const auto less = [&](uint64_t a, uint64_t b) {
    if (is_float) return wide ? as<double>(a) < as<double>(b) : as<float>(a) < as<float>(b);
    if (!is_signed) return a < b;
    return wide ? static_cast<int64_t>(a) < static_cast<int64_t>(b)
                : static_cast<int32_t>(a) < static_cast<int32_t>(b);
  };
  const uint64_t mask = wide ? ~uint64_t{0} : 0xffffffff;
  if (starts("cmp"))
    return (is_float ? (wide ? as<double>(old) == as<double>(compare)
                             : as<float>(old) == as<float>(compare))
                     : old == compare)
               ? data
               : old;
  if (starts("swap") || starts("storexchg")) return data;
  if (starts("pk_add")) return pair_sum(old, data, kind.ends_with("bf16"));
  if (kind == "add_f64") return raw(as<double>(old) + as<double>(data));
  if (starts("add")) return is_float ? raw(as<float>(old) + as<float>(data)) : (old + data) & mask;
  if (starts("sub_clamp") || starts("csub")) return old < data ? 0 : old - data;
  if (starts("cond_sub")) return old >= data ? old - data : old;
  if (starts("sub")) return (old - data) & mask;
  if (starts("rsub")) return (data - old) & mask;
  if (starts("min")) return less(data, old) ? data : old;
  if (starts("max")) return less(old, data) ? data : old;
  if (starts("and")) return old & data;
  if (starts("or")) return old | data;
  if (starts("xor")) return old ^ data;
  if (starts("inc")) return old >= data ? 0 : old + 1;
  if (starts("dec")) return old == 0 || old > data ? data : old - 1;
  ADD_FAILURE() << "no model of " << kind;
  return 0;
}

void try_atomic(const OpcodeRow& r, Isa isa, std::string kind, bool returns) {
  SCOPED_TRACE(r.name);
  if (const size_t at = kind.find("_rtn"); at != std::string::npos) kind.erase(at, 4);
  Rig o(isa);
  const bool wide = kind.find("64") != std::string::npos, ds = r.format == Format::kDs;
  const uint32_t bytes = wide ? 8 : 4, offset = 8;
  const uint32_t result = r.format == Format::kBuffer ? kData : kResult;
  // DS_CMPST of RDNA2 and CDNA3 has the value to compare with first.
  const bool is_swapped =
      ds && (isa == Isa::kGfx10 || isa == Isa::kGfx9) && kind.starts_with("cmp");
  const uint32_t first = is_swapped ? 12 : kData;
  const uint32_t second = is_swapped ? kData : ds ? 12 : kData + bytes / 4;
  std::byte* at[kLanes];
  uint64_t old[kLanes], expected[kLanes];
  for (uint32_t l = 0; l < kLanes; ++l) {
    at[l] = o.aim(r.format, l, offset);
    uint64_t value = 0;
    if (kind.find("_f") != std::string::npos || kind.starts_with("pk")) {  // ordinary floats
      value = wide ? raw(static_cast<double>(l) - 9.5) : raw(static_cast<float>(l) - 9.5f);
      const uint64_t d = wide ? raw(3.25) : raw(3.25f);
      for (uint32_t i = 0; i < bytes / 4; ++i)
        o.v(kData + i, l) = static_cast<uint32_t>(d >> (32 * i));
      std::memcpy(at[l], &value, bytes);
    }
    std::memcpy(&value, at[l], bytes);
    if (l % 3 == 0)  // some that compare equal
      for (uint32_t i = 0; i < bytes / 4; ++i)
        o.v(second + i, l) = static_cast<uint32_t>(value >> (32 * i));
    const auto operand = [&](uint32_t reg) {
      return o.v(reg, l) | (wide ? uint64_t{o.v(reg + 1, l)} << 32 : 0);
    };
    old[l] = value;
    expected[l] = model(kind, value, operand(first), operand(second));
  }
  ASSERT_TRUE(o.step(encode(r, isa, offset, returns)));
  ASSERT_FALSE(o.wave.failed) << fault_name(o.wave.fault.kind);
  for (uint32_t l = 0; l < kLanes; ++l) {
    uint64_t value = 0;
    std::memcpy(&value, at[l], bytes);
    EXPECT_EQ(value, expected[l]) << "lane " << l;
    if (returns) {
      EXPECT_EQ(o.v(result, l) | (wide ? uint64_t{o.v(result + 1, l)} << 32 : 0), old[l])
          << "lane " << l;
    }
  }
  covers(r.name);
}

void try_row(const OpcodeRow& r, Isa isa) {
  if (const auto kind = after(r.meaning(), "_load_"); !kind.empty()) return try_load(r, isa, kind);
  if (const auto store = after(r.meaning(), "_store_"); !store.empty())
    return try_store(r, isa, store);
  if (const auto atomic = after(r.meaning(), "_atomic_"); !atomic.empty()) {
    if (!r.has('R')) try_atomic(r, isa, atomic, false);
    return try_atomic(r, isa, atomic, true);
  }
  if (r.format == Format::kDs && r.meaning().find("permute") == std::string_view::npos &&
      r.meaning().find("swizzle") == std::string_view::npos)
    try_atomic(r, isa, std::string(r.meaning().substr(3)), r.operands[0] != '-');
}

TEST(MemoryOps, EveryLoadStoreAndAtomic) {
  for (const OpcodeRow& r : opcode_rows()) {
    if (r.format < Format::kDs || r.meaning().find("2addr") != std::string_view::npos) continue;
    for (const Isa isa : {Isa::kGfx9, Isa::kGfx10, Isa::kGfx11, Isa::kGfx115, Isa::kGfx12})
      if (r.in(isa)) try_row(r, isa);
  }
}

/// Two pages of another memory, the second in front of the first.
class ApartPages final : public Memory {
 public:
  static constexpr uint64_t kPage = 4096;
  explicit ApartPages(FlatMemory& memory) : memory_(memory), base_(memory.allocate(3 * kPage)) {
    first = (base_ + kPage - 1) / kPage * kPage;
  }
  std::byte* host(uint64_t address) {
    return memory_.host(address < first + kPage ? address + kPage : address - kPage);
  }
  Place at(uint64_t address, uint32_t bytes, Access) override {
    const uint64_t offset = address - first;
    if (offset >= 2 * kPage || offset % kPage + bytes > kPage) return {};
    return {host(address), false};
  }
  uint64_t first = 0;

 private:
  FlatMemory& memory_;
  uint64_t base_;
};

/// An access of several dwords is aligned to one: tinygrad's kernels for gfx942 store three of them
/// wherever a row ends.
TEST(MemoryOps, GoOverTheEndsOfPages) {
  size_t tried = 0;
  for (const OpcodeRow& r : opcode_rows()) {
    const std::string load = after(r.meaning(), "_load_"), store = after(r.meaning(), "_store_");
    const uint32_t bytes = bytes_of(load + store);
    if (r.format != Format::kGlobal || (load + store).empty() || bytes < 8) continue;
    SCOPED_TRACE(r.name);
    for (uint32_t before = 4; before < bytes; before += 4) {
      Rig o(isa_for(r));
      ApartPages apart(o.memory);
      const uint64_t address = apart.first + ApartPages::kPage - before;
      for (uint32_t i = 0; i < bytes; ++i) *apart.host(address + i) = static_cast<std::byte>(i + 1);
      o.group.memory = &apart;
      o.wave.s[kExecLo] = 1;
      o.put(kAddress, 0, address);
      ASSERT_TRUE(o.step(encode(r, isa_for(r), 0, false)));
      ASSERT_FALSE(o.wave.failed) << fault_name(o.wave.fault.kind);
      for (uint32_t i = 0; i < bytes; ++i) {
        const uint32_t word = o.v((load.empty() ? kData : kResult) + i / 4);
        EXPECT_EQ(static_cast<uint32_t>(*apart.host(address + i)), word >> (8 * (i % 4)) & 0xff)
            << "byte " << i << " with " << before << " before the end";
      }
      // What lies behind the second page is not there.
      o.put(kAddress, 0, address + ApartPages::kPage);
      ASSERT_TRUE(o.step(encode(r, isa_for(r), 0, false)));
      ASSERT_TRUE(o.wave.failed);
      EXPECT_EQ(o.wave.fault.kind, Fault::Kind::kUnmapped);
      EXPECT_EQ(o.wave.fault.address, apart.first + 2 * ApartPages::kPage);
      ++tried;
    }
  }
  EXPECT_GE(tried, 12u);
}

/// s_load of eight dwords to s[16:23] from s[8:9], as LLVM 19 assembles it.
TEST(MemoryOps, ScalarLoadsGoOverTheEndsOfPages) {
  const std::pair<Isa, std::array<uint32_t, 2>> kLoads[] = {
      {Isa::kGfx9, {0xc00e0404, 0}},
      {Isa::kGfx10, {0xf40c0404, 0xfa000000}},
      {Isa::kGfx11, {0xf40c0404, 0xf8000000}},
      {Isa::kGfx12, {0xf4006404, 0xf8000000}}};
  for (const auto& [isa, words] : kLoads) {
    Rig o(isa);
    ApartPages apart(o.memory);
    const uint64_t address = apart.first + ApartPages::kPage - 12;
    for (uint32_t i = 0; i < 32; ++i) *apart.host(address + i) = static_cast<std::byte>(i + 1);
    o.group.memory = &apart;
    o.wave.write64(8, address);
    ASSERT_TRUE(o.step(words));
    ASSERT_FALSE(o.wave.failed) << fault_name(o.wave.fault.kind);
    for (uint32_t i = 0; i < 32; ++i)
      EXPECT_EQ(o.wave.s[16 + i / 4] >> (8 * (i % 4)) & 0xff, i + 1) << static_cast<int>(isa);
  }
}

TEST(MemoryOps, TwoAddressesOfLds) {
  for (const OpcodeRow& r : opcode_rows()) {
    if (r.meaning().find("2addr") == std::string_view::npos) continue;
    SCOPED_TRACE(r.name);
    Rig o(isa_for(r));
    o.group.lds.resize(8192);
    const bool wide = r.meaning().find("b64") != std::string_view::npos,
               far = r.meaning().find("stride64") != std::string_view::npos;
    const uint32_t bytes = wide ? 8 : 4, stride = bytes * (far ? 64 : 1);
    const uint32_t at[2] = {1 * stride, 3 * stride};
    std::vector<std::byte> before = o.group.lds;
    for (uint32_t l = 0; l < kLanes; ++l) o.put(kAddress, l, l * 64);
    ASSERT_TRUE(o.step(encode(r, isa_for(r), 1 | 3 << 8, true)));
    ASSERT_FALSE(o.wave.failed);
    for (uint32_t l = 0; l < kLanes; ++l)
      for (uint32_t i = 0; i < 2; ++i)
        for (uint32_t j = 0; j < bytes / 4; ++j) {
          uint32_t was = 0, is = 0;
          std::memcpy(&was, before.data() + l * 64 + at[i] + 4 * j, 4);
          std::memcpy(&is, o.group.lds.data() + l * 64 + at[i] + 4 * j, 4);
          if (r.operands[0] != '-' && !(far && r.operands[4] != '-')) {
            EXPECT_EQ(o.v(kResult + i * (bytes / 4) + j, l), was);
          }
          if (r.operands[4] != '-' && !far) {
            EXPECT_EQ(is, o.v((i ? 12 : kData) + j, l));
          }
        }
    covers(r.name);
  }
}

TEST(MemoryOps, ScalarLoads) {
  struct Load {
    Isa isa;
    const char* text;
    uint32_t bytes;
    int sign;
  };
  const Load kLoads[] = {{Isa::kGfx11, "s_load_b32 s20, s[2:3], 0x8", 4, 0},
                         {Isa::kGfx11, "s_load_b64 s[20:21], s[2:3], 0x8", 8, 0},
                         {Isa::kGfx11, "s_load_b128 s[20:23], s[2:3], 0x8", 16, 0},
                         {Isa::kGfx11, "s_load_b256 s[20:27], s[2:3], 0x8", 32, 0},
                         {Isa::kGfx11, "s_load_b512 s[20:35], s[2:3], 0x8", 64, 0},
                         {Isa::kGfx12, "s_load_b96 s[20:22], s[2:3], 0x8", 12, 0},
                         {Isa::kGfx12, "s_load_u8 s20, s[2:3], 0x8", 1, 0},
                         {Isa::kGfx12, "s_load_i8 s20, s[2:3], 0x8", 1, 1},
                         {Isa::kGfx12, "s_load_u16 s20, s[2:3], 0x8", 2, 0},
                         {Isa::kGfx12, "s_load_i16 s20, s[2:3], 0x8", 2, 1},
                         {Isa::kGfx11, "s_buffer_load_b32 s20, s[8:11], 0x8", 4, 0},
                         {Isa::kGfx11, "s_buffer_load_b64 s[20:21], s[8:11], 0x8", 8, 0},
                         {Isa::kGfx11, "s_buffer_load_b128 s[20:23], s[8:11], 0x8", 16, 0},
                         {Isa::kGfx11, "s_buffer_load_b256 s[20:27], s[8:11], 0x8", 32, 0},
                         {Isa::kGfx11, "s_buffer_load_b512 s[20:35], s[8:11], 0x8", 64, 0},
                         {Isa::kGfx12, "s_buffer_load_b96 s[20:22], s[8:11], 0x8", 12, 0},
                         {Isa::kGfx12, "s_buffer_load_u8 s20, s[8:11], 0x8", 1, 0},
                         {Isa::kGfx12, "s_buffer_load_i8 s20, s[8:11], 0x8", 1, 1},
                         {Isa::kGfx12, "s_buffer_load_u16 s20, s[8:11], 0x8", 2, 0},
                         {Isa::kGfx12, "s_buffer_load_i16 s20, s[8:11], 0x8", 2, 1}};
  for (const Load& load : kLoads) {
    SCOPED_TRACE(load.text);
    Rig o(load.isa);
    o.wave.write64(2, o.base);
    o.memory.host(o.base)[8] = o.memory.host(o.base)[9] = std::byte{0x9c};
    ASSERT_TRUE(o.step(words_of(load.isa, load.text)));
    ASSERT_FALSE(o.wave.failed);
    uint32_t expected[16] = {};
    std::memcpy(expected, o.memory.host(o.base) + 8, load.bytes);
    if (load.sign && load.bytes == 1) expected[0] = 0xffffff9c;
    if (load.sign && load.bytes == 2) expected[0] = 0xffff9c9c;
    for (uint32_t i = 0; i < std::max(load.bytes / 4, 1u); ++i)
      EXPECT_EQ(o.wave.s[20 + i], expected[i]);
    const std::string_view all = load.text;
    covers(all.substr(0, all.find(' ')));
  }
}

}  // namespace
}  // namespace bm::sim::amd::test
