// wgmma: four warps multiply tiles that lie in shared memory, beside their threads. The left one
// may be in registers: warp w has rows 16w … 16w+15, of them lane 4g+t words t of rows g and g+8,
// then words t+4 of both. These registers are read when the product is waited for: whoever wrote
// them without a wgmma.fence behind, or writes them before, is refused.
//
// Accumulators: warp w of the warpgroup has rows 16w … 16w+15; of them lane 4g+t holds, for every
// eight columns, columns 2t and 2t+1 of row g, then of row g+8.
//
// Descriptors: bits 0-13 start address, 16-29 leading and 32-45 stride dimension byte offset, all
// without their lowest four bits; 49-51 base offset; 62-63 swizzle (1: 128 bytes, 2: 64, 3: 32). An
// atom is eight lines of that many bytes. Along the depth: lines are rows, the stride leads to the
// next eight. Else lines are steps of depth, the stride leads to the next eight of them and the
// leading offset to the rows that follow those of a line. In the address of every 16 bytes, the
// bits from 7 on (as many as the swizzle is wide) are added without carry to those from 4 on.
#include <algorithm>
#include <bit>
#include <cmath>

#include "tests/sim/ptx/beside.h"
#include "tests/sim/ptx/dispatch.h"
#include "tests/sim/ptx/formats.h"
#include "tests/sim/ptx/memory_access.h"
#include "tests/sim/ptx/tile.h"
#include "tests/sim/ptx/warps.h"

namespace bm::sim::ptx {
namespace {

constexpr uint32_t kRows = 64;
/// What accumulators hold while a product has them: large numbers, which comparisons do not
/// overlook.
constexpr uint32_t kPoison = 0x7e95dead;
/// Registers of the left operand.
constexpr uint32_t kLeftWords = 4;

/// Inst::imm.
struct Form {
  uint32_t columns = 8;
  Type operand = Type::kF16, sum = Type::kF32;
  bool turned[2] = {};
  bool negated[2] = {};
  bool has_left_registers = false;

  uint32_t registers() const { return columns / 2; }
  uint64_t pack() const {
    return columns | (static_cast<uint64_t>(operand) << 16) | (static_cast<uint64_t>(sum) << 24) |
           (uint64_t{turned[0]} << 32) | (uint64_t{turned[1]} << 33) |
           (uint64_t{negated[0]} << 34) | (uint64_t{negated[1]} << 35) |
           (uint64_t{has_left_registers} << 36);
  }
  static Form unpack(uint64_t v) {
    const auto bit = [v](int n) { return ((v >> n) & 1) != 0; };
    return {static_cast<uint32_t>(v & 0xffff),
            static_cast<Type>((v >> 16) & 255),
            static_cast<Type>((v >> 24) & 255),
            {bit(32), bit(33)},
            {bit(34), bit(35)},
            bit(36)};
  }
};

uint32_t warpgroup_of(const Exec& x, uint32_t k) { return x.active[k] / kWarpgroup; }

/// f(number, first lane) for every warpgroup. False after raising that one is not complete.
template <class F>
bool each_warpgroup(Exec& x, const Inst& in, F&& f) {
  for (uint32_t k = 0; k < x.count;) {
    const uint32_t number = warpgroup_of(x, k), begin = k;
    while (k < x.count && warpgroup_of(x, k) == number) ++k;
    if (k - begin != kWarpgroup) {
      x.raise(in, x.active[begin], Fault::Kind::kIllegal, k - begin, Access::kRead,
              "the instruction needs all 128 threads of the warpgroup");
      return false;
    }
    if (!f(number, number * kWarpgroup)) return false;
  }
  return true;
}

bool take_tile(Exec& x, const Inst& in, uint32_t lane, uint64_t bits, bool is_transposed,
               Tile& out) {
  const auto refuse = [&](std::string_view why) {
    x.raise(in, lane, Fault::Kind::kIllegal, bits, Access::kRead, why);
    return false;
  };
  constexpr uint64_t kOffset = 0x3fff;
  const uint64_t swizzle = bits >> 62;
  if (swizzle == 0) return refuse("descriptors without a swizzle are not known here");
  if ((bits >> 49) & 7) return refuse("descriptors with a base offset are not known here");
  out = {.start = (bits & kOffset) << 4,
         .leading = ((bits >> 16) & kOffset) << 4,
         .stride = ((bits >> 32) & kOffset) << 4,
         .width = 256u >> swizzle,
         .is_transposed = is_transposed};
  return true;
}

/// The left operand that registers have: row by row.
std::vector<double> register_numbers(const std::vector<uint32_t>& words, const Form& form) {
  const uint32_t size = type_bytes(form.operand), depth = kStepBytes / size;
  std::vector<double> out(size_t{kRows} * depth);
  for (uint32_t i = 0; i < kWarpgroup; ++i)
    for (uint32_t w = 0; w < kLeftWords; ++w) {
      const uint32_t row = i / kWarp * 16 + i % kWarp / 4 + w % 2 * 8;
      const uint32_t at = (i % 4 + w / 2 * 4) * (4 / size), bits = words[i * kLeftWords + w];
      for (uint32_t e = 0; e < 4 / size; ++e) {
        const uint32_t own = bits >> (8 * size * e);
        double v = 0;
        switch (form.operand) {
          case Type::kTF32: v = std::bit_cast<float>(own & kTf32Digits); break;
          case Type::kF16: v = f16_to_f32(static_cast<uint16_t>(own)); break;
          case Type::kBF16: v = bf16_to_f32(static_cast<uint16_t>(own)); break;
          case Type::kS8: v = static_cast<int8_t>(own); break;
          default: v = static_cast<uint8_t>(own); break;
        }
        out[row * depth + at + e] = form.negated[0] ? -v : v;
      }
    }
  return out;
}

/// What the lanes of a warpgroup have in a list of registers: lane by lane.
std::vector<uint32_t> words_of(const Exec& x, const std::vector<uint32_t>& places, uint32_t first) {
  std::vector<uint32_t> out;
  for (uint32_t i = first; i < first + kWarpgroup; ++i)
    for (const uint32_t place : places) out.push_back(x.reg<uint32_t>(place)[i]);
  return out;
}

/// The product itself, into the accumulators that it has.
void multiply(Exec& x, const Beside::Product& p, uint32_t lane, Beside::Sums& sums) {
  const Form form = Form::unpack(p.in->imm);
  Tile left, right;
  const bool is_tile = !form.has_left_registers;
  if ((is_tile && !take_tile(x, *p.in, lane, p.left, form.turned[0], left)) ||
      !take_tile(x, *p.in, lane, p.right, form.turned[1], right))
    return;
  const auto a = is_tile ? numbers(x, left, kRows, form.operand, form.negated[0])
                         : register_numbers(p.left_words, form);
  const auto b = numbers(x, right, form.columns, form.operand, form.negated[1]);
  const size_t depth = a.size() / kRows;
  for (uint32_t i = 0; i < kWarpgroup; ++i)
    for (uint32_t r = 0; r < form.registers(); ++r) {
      const uint32_t row = i / kWarp * 16 + i % kWarp / 4 + r / 2 % 2 * 8;
      const uint32_t column = r / 4 * 8 + i % 4 * 2 + r % 2;
      uint32_t& bits = sums.values[i * form.registers() + r];
      if (form.sum == Type::kF32) {
        float sum = p.is_added ? std::bit_cast<float>(bits) : 0;
        for (size_t k = 0; k < depth; ++k)
          sum += static_cast<float>(a[row * depth + k]) * static_cast<float>(b[column * depth + k]);
        bits = std::bit_cast<uint32_t>(sum);
      } else {
        int64_t sum = p.is_added ? static_cast<int32_t>(bits) : 0;
        for (size_t k = 0; k < depth; ++k)
          sum += static_cast<int64_t>(a[row * depth + k] * b[column * depth + k]);
        bits = static_cast<uint32_t>(sum);
      }
    }
  x.traffic.group_products += uint64_t{kRows} * form.columns * depth;
  if (!x.cells) return;
  const auto end = [&](uint64_t at) {
    x.cells->end_read(at, 16);
    return true;
  };
  if (is_tile) each_piece(left, kRows, end);
  each_piece(right, form.columns, end);
}

/// Registers for a product in flight: what they hold goes with it.
bool take_sums(Exec& x, const Inst& in, Beside::Products& group, uint32_t first,
               uint32_t registers) {
  Beside::Sums& sums = group.sums[in.target];
  const std::vector<uint32_t>& places = x.kernel->lists[in.target];
  if (sums.products++ != 0) return true;
  if (!group.is_open) {
    x.raise(in, first, Fault::Kind::kIllegal, 0, Access::kRead,
            "no wgmma.fence since the accumulators were a thread's own");
    return false;
  }
  for (const auto& [list, other] : group.sums)
    if (list != in.target && other.products != 0)
      for (const uint32_t place : places) {
        const auto& taken = x.kernel->lists[list];
        if (std::find(taken.begin(), taken.end(), place) == taken.end()) continue;
        x.raise(in, first, Fault::Kind::kIllegal, 0, Access::kRead,
                "accumulators of a product of another shape are still in flight");
        return false;
      }
  sums.values.clear();
  for (uint32_t i = first; i < first + kWarpgroup; ++i)
    for (uint32_t r = 0; r < registers; ++r) {
      uint32_t& value = x.reg<uint32_t>(places[r])[i];
      sums.values.push_back(value);
      value = kPoison;
    }
  return true;
}

bool give_back(Exec& x, const Inst& in, Beside::Sums& sums, uint32_t first) {
  const std::vector<uint32_t>& places = x.kernel->lists[in.target];
  const size_t registers = sums.values.size() / kWarpgroup;
  for (uint32_t i = 0; i < kWarpgroup; ++i)
    for (size_t r = 0; r < registers; ++r) {
      uint32_t& value = x.reg<uint32_t>(places[r])[first + i];
      if (value != kPoison) {
        x.raise(in, first + i, Fault::Kind::kIllegal, r, Access::kWrite,
                "an accumulator was written before its products were waited for");
        return false;
      }
      value = sums.values[i * registers + r];
    }
  return true;
}

/// Registers of the left operand as they are, which the last wgmma.fence must have seen.
bool take_left(Exec& x, const Inst& in, const Beside::Products& group, uint32_t first,
               std::vector<uint32_t>& words) {
  const auto seen = group.fenced.find(in.op[0]);
  words = words_of(x, x.kernel->lists[in.op[0]], first);
  if (seen != group.fenced.end() && seen->second == words) return true;
  x.raise(in, first, Fault::Kind::kIllegal, 0, Access::kRead,
          "no wgmma.fence since the left operand's registers were written");
  return false;
}

/// op[0], op[1] descriptors, op[2] scale-d; target: list of accumulators. Where the left operand is
/// in registers, op[0] is the number of their list.
void issue(Exec& x, const Inst& in) {
  const Form form = Form::unpack(in.imm);
  const bool is_tile = !form.has_left_registers;
  each_warpgroup(x, in, [&](uint32_t number, uint32_t first) {
    const uint64_t* a = x.reg<uint64_t>(in.op[is_tile ? 0 : 1]);
    const uint64_t* b = x.reg<uint64_t>(in.op[1]);
    const uint8_t* scale = x.reg<uint8_t>(in.op[2]);
    for (uint32_t i = first; i < first + kWarpgroup; ++i)
      if (a[i] != a[first] || b[i] != b[first] || scale[i] != scale[first]) {
        x.raise(in, i, Fault::Kind::kIllegal, a[i], Access::kRead,
                "threads of the warpgroup disagree about the operands");
        return false;
      }
    Tile left, right;
    if ((is_tile && !take_tile(x, in, first, a[first], form.turned[0], left)) ||
        !take_tile(x, in, first, b[first], form.turned[1], right))
      return false;
    const auto check = [&](uint64_t at) {
      if (at + 16 > x.shared_bytes) {
        x.raise(in, first, Fault::Kind::kSharedOutOfRange, at, Access::kRead);
        return false;
      }
      return !x.cells || x.cells->read_beside(x, in, first, at, 16);
    };
    if ((is_tile && !each_piece(left, kRows, check)) || !each_piece(right, form.columns, check))
      return false;
    Beside::Products& group = x.beside->products[number];
    Beside::Product product{&in, a[first], b[first], scale[first] != 0, {}};
    if (!is_tile && !take_left(x, in, group, first, product.left_words)) return false;
    if (!take_sums(x, in, group, first, form.registers())) return false;
    group.groups.back().push_back(std::move(product));
    return true;
  });
}

void open(Exec& x, const Inst& in) {
  each_warpgroup(x, in, [&](uint32_t number, uint32_t first) {
    Beside::Products& group = x.beside->products[number];
    group.is_open = true;
    for (const uint32_t list : x.kernel->left_lists)
      group.fenced[list] = words_of(x, x.kernel->lists[list], first);
    return true;
  });
}

void commit(Exec& x, const Inst& in) {
  each_warpgroup(x, in, [&](uint32_t number, uint32_t) {
    x.beside->products[number].groups.emplace_back();
    return true;
  });
}

void wait(Exec& x, const Inst& in) {
  each_warpgroup(x, in, [&](uint32_t number, uint32_t first) {
    Beside::Products& group = x.beside->products[number];
    while (group.groups.size() > in.imm + 1) {
      for (const Beside::Product& p : group.groups.front()) {
        Beside::Sums& sums = group.sums[p.in->target];
        if (!p.left_words.empty() &&
            p.left_words != words_of(x, x.kernel->lists[p.in->op[0]], first)) {
          x.raise(*p.in, first, Fault::Kind::kIllegal, 0, Access::kWrite,
                  "a register of the left operand was written before the product was waited for");
          return false;
        }
        multiply(x, p, first, sums);
        if (--sums.products != 0) continue;
        group.is_open = false;
        if (!give_back(x, *p.in, sums, first)) return false;
      }
      group.groups.pop_front();
    }
    return true;
  });
}

bool is_known(Type sum, Type a, Type b) {
  const bool is_byte = a == Type::kS8 || a == Type::kU8;
  if (is_byte) return sum == Type::kS32 && (b == Type::kS8 || b == Type::kU8) && a == b;
  return sum == Type::kF32 && a == b && (a == Type::kF16 || a == Type::kBF16 || a == Type::kTF32);
}

/// m64nNkK; 0: malformed.
uint32_t columns_of(std::string_view shape, uint32_t depth) {
  const std::string tail = fmt::format("k{}", depth);
  if (!shape.starts_with(".m64n") || !shape.ends_with(tail)) return 0;
  uint32_t n = 0;
  for (const char c : shape.substr(5, shape.size() - 5 - tail.size())) {
    if (c < '0' || c > '9' || n > 999) return 0;
    n = 10 * n + static_cast<uint32_t>(c - '0');
  }
  return n;
}

Status lower_mma(Builder& b) {
  std::string_view shape = b.peek_suffix();
  b.next_suffix();
  Form form;
  form.sum = b.next_type();
  form.operand = b.next_type();
  if (!is_known(form.sum, form.operand, b.next_type())) return b.unknown_form();
  form.columns = columns_of(shape, kStepBytes / type_bytes(form.operand));
  const bool is_float = form.sum == Type::kF32, is_half = type_bytes(form.operand) == 2;
  // Of 8-bit integers only every other multiple of eight beyond 32.
  if (form.columns == 0 || form.columns % 8 || form.columns > 256 ||
      (!is_float && form.columns > 32 && form.columns % 16))
    return b.error("no such shape");
  form.has_left_registers = b.operand_count() > 1 && b.operand(1).kind == Operand::Kind::kVector;
  // Signs of both; lines along rows or columns only of 16-bit numbers in shared memory.
  const size_t flags = is_half ? (form.has_left_registers ? 3 : 4) : is_float ? 2 : 0;
  BM_TRY(b.expect_operands(4 + flags, 4 + flags));
  for (size_t i = 4; i < b.operand_count(); ++i) {
    const uint64_t v = b.operand(i).bits;
    const bool is_sign = i < 6;
    if (b.operand(i).kind != Operand::Kind::kInteger || (is_sign ? v + 1 > 2 || v == 0 : v > 1))
      return b.error("malformed scale or transposition");
    if (is_sign)
      form.negated[i - 4] = v != 1;
    else
      form.turned[i - (form.has_left_registers ? 5 : 6)] = v == 1;
  }
  const Operand& list = b.operand(0);
  if (list.kind != Operand::Kind::kVector || list.elements.size() != form.registers())
    return b.error(fmt::format("{} accumulators belong here", form.registers()));
  std::vector<uint32_t> places;
  for (const Operand& r : list.elements) places.push_back(BM_TRY(b.out(r, form.sum)));
  uint32_t left = 0;
  if (form.has_left_registers) {
    const std::vector<Operand>& words = b.operand(1).elements;
    if (words.size() != kLeftWords) return b.error("4 registers of the left operand belong here");
    std::vector<uint32_t> registers;
    for (const Operand& r : words) registers.push_back(BM_TRY(b.in(r, Type::kB32)));
    left = b.add_left_list(registers);
  } else {
    left = BM_TRY(b.in(1, Type::kB64));
  }
  const uint32_t right = BM_TRY(b.in(2, Type::kB64));
  const uint32_t scale = BM_TRY(b.in(3, Type::kPred));
  const uint32_t number = b.add_list(places);
  Inst& in = b.emit(&issue, {left, right, scale});
  in.target = number;
  in.imm = form.pack();
  return {};
}

Status lower_wgmma(Builder& b) {
  const bool is_mma = b.has(".mma_async"), is_fence = b.has(".fence"),
             is_commit = b.has(".commit_group"), is_wait = b.has(".wait_group");
  if (!b.has(".sync") || !b.has(".aligned")) return b.unknown_form();
  if (is_mma) return lower_mma(b);
  BM_TRY(b.expect_operands(is_wait ? 1 : 0, is_wait ? 1 : 0));
  if (is_fence) b.emit(&open);
  if (is_commit) b.emit(&commit);
  if (is_wait) b.emit(&wait).imm = b.operand(0).bits;
  return is_fence || is_commit || is_wait ? Status{} : b.unknown_form();
}

constexpr Operation kGroupMatrixOperations[] = {{"wgmma", &lower_wgmma}};

}  // namespace

std::span<const Operation> group_matrix_operations() { return kGroupMatrixOperations; }

}  // namespace bm::sim::ptx
