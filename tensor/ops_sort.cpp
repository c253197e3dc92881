// sort and topk. Keys become integers whose order is the wanted one, packed above the position of
// the element: all are different, so every network is stable, and one minimum moves both.
#include "tensor/ops_internal.h"

namespace bm {

using enum ir::Op;

namespace {

constexpr int64_t kPositionBits = 32;
/// Up to this length counting smaller elements (n² steps, two kernels) beats the network.
constexpr int64_t kRankLimit = 64;
/// Up to this length devices without work-groups sort a row by digits: 16 bytes of scratch each.
constexpr int64_t kDigitLimit = int64_t{1} << 24;
/// Up to this many results topk does not sort the row: kept in registers, or a tournament where
/// there are work-groups.
constexpr int64_t kTopInRegisters = 64, kTopByTournament = 256;

/// Float → signed integer of the same size with the same order: -0 = +0, NaNs at one end.
Tensor float_key(const Tensor& x, bool is_nan_largest) {
  const DType bits = item_size(x.dtype()) == 2   ? DType::kI16
                     : item_size(x.dtype()) == 4 ? DType::kI32
                                                 : DType::kI64;
  const Tensor plain = select(x == 0, scalar_like(x, 0), x);
  const Tensor raw = plain.bitcast(bits);
  const Tensor ordered = select(raw < 0, raw ^ constant_int(int_max(bits), bits, x.device()), raw);
  const int64_t nan = is_nan_largest ? int_max(bits) : int_min(bits);
  return select(x.isnan(), constant_int(nan, bits, x.device()), ordered);
}

/// Signed integer key: ascending order of x, or descending with equal elements still equal.
Tensor key_of(const Tensor& x, bool is_descending, bool is_nan_largest = true) {
  Tensor key = is_float(x.dtype()) ? float_key(x, is_nan_largest) : x;
  if (x.dtype() == DType::kU64) {
    const Tensor bits = x.bitcast(DType::kI64);
    key = bits ^ constant_int(INT64_MIN, DType::kI64, x.device());
  }
  key = key.cast(DType::kI64);
  if (x.dtype() == DType::kU32)
    key = key - (int64_t{1} << 31);  // narrow keys must fit 32 signed bits
  return is_descending ? ~key : key;
}

bool is_wide(DType t) { return item_size(t) == 8; }

/// One step of a network: which elements are compared, and in blocks of which size they ascend.
struct Step {
  Tensor distance, block;  ///< powers of two; a distance of 0 changes nothing
};

/// Each element i of the last axis against element i ^ distance.
Tensor compare(const Tensor& x, const Tensor& i, const Step& step) {
  const int64_t n = x.size(-1).constant();
  // The mask tells the compiler that no index lies outside: the kernels need no gates.
  const Tensor at = (i ^ step.distance) & (n - 1);
  const Tensor other = gather_raw(x, -1, at.expand(x.shape()));
  const Tensor is_low = (i & step.distance) == 0, is_up = (i & step.block) == 0;
  return select(is_low == is_up, alu(kMin, x, other), alu(kMax, x, other));
}

/// Batcher's bitonic network over the last axis, whose size is a power of two. Distances and blocks
/// are read from memory: the steps differ in no constant, and one kernel serves them all.
Tensor bitonic(Tensor x) {
  const int64_t n = x.size(-1).constant();
  const Tensor i = iota(n, x.device());
  std::vector<int64_t> words;  // distance and block of steps that wait for their kernel
  const auto flush = [&] {
    // Every kernel has two steps; a distance of 0 changes nothing.
    words.resize(4);
    const Tensor table = Tensor::from(words, {4}, x.device().name());
    const auto word = [&](int64_t at) { return table.slice(0, {at, at + 1, 1}); };
    x = compare(x, i, {word(0), word(1)});
    x = compare(x, i, {word(2), word(3)}).contiguous();
    words.clear();
  };
  for (int64_t block = 2; block <= n; block *= 2) {
    for (int64_t distance = block / 2; distance >= 1; distance /= 2) {
      words.insert(words.end(), {distance, block});
      // Two steps in one kernel read four elements each; more would repeat too much work.
      if (words.size() == 4) flush();
    }
  }
  if (!words.empty()) flush();
  return x;
}

/// The first `count` of the last axis in ascending order, by counting the smaller elements of each:
/// n² steps, two kernels, every row and every element on its own. Elements are different, or the
/// largest integer, which only fills up.
Tensor ranked(const Tensor& packed, int64_t count) {
  const int64_t rank = packed.rank();
  const Tensor p = packed.contiguous();
  const Tensor is_smaller = p.unsqueeze(-2) < p.unsqueeze(-1);
  const Tensor position =
      reduce(ir::ReduceOp::kSum, is_smaller.cast(DType::kI64), {-1}).squeeze(-1).contiguous();
  const Tensor is_here =
      position.unsqueeze(-2) == ops::iota_along(count, rank - 1, rank + 1, p.device());
  const Tensor none = constant_int(INT64_MAX, DType::kI64, p.device());
  return reduce(ir::ReduceOp::kMin, select(is_here, p.unsqueeze(-2), none), {-1})
      .squeeze(-1)
      .contiguous();
}

/// The last axis at `size` elements, filled up with the largest integer.
Tensor filled(const Tensor& packed, int64_t size) {
  std::vector<SymInt> room(static_cast<size_t>(2 * packed.rank()), SymInt(0));
  room.back() = size - packed.size(-1).constant();
  return pad_raw(packed, room, {INT64_MAX, 0});
}

/// Different int64 values in ascending order along the last axis.
Tensor sorted_packed(const Tensor& packed) {
  const int64_t n = packed.size(-1).constant();
  if (n <= 1) return packed;
  if (n <= kRankLimit) return ranked(packed, n);
  if (n <= kDigitLimit && !ops::has_groups(packed)) return top_k_raw(packed, -1, n).contiguous();
  int64_t size = 1;
  while (size < n) size *= 2;
  return bitonic(filled(packed, size).contiguous()).slice(-1, {0, n, 1}).contiguous();
}

Tensor pack(const Tensor& key32, const Tensor& position) {
  return (key32 << constant_int(kPositionBits, DType::kI64, key32.device())) | position;
}
Tensor position_of(const Tensor& packed) {
  return packed & constant_int((int64_t{1} << kPositionBits) - 1, DType::kI64, packed.device());
}

/// Positions that bring the keys (last axis) into ascending order.
Tensor order_of(const Tensor& key, bool has_64_bits) {
  const Tensor position = iota(key.size(-1), key.device());
  if (!has_64_bits) return position_of(sorted_packed(pack(key, position)));
  // Low halves first, then high halves: the second sort keeps the order of the first.
  const Tensor half = constant_int(32, DType::kI64, key.device());
  const Tensor low =
      (key & constant_int(0xffffffff, DType::kI64, key.device())) - (int64_t{1} << 31);
  const Tensor by_low = position_of(sorted_packed(pack(low, position)));
  const Tensor high = gather_raw(key >> half, key.rank() - 1, by_low);
  const Tensor by_high = position_of(sorted_packed(pack(high, position)));
  return gather_raw(by_low.contiguous(), key.rank() - 1, by_high).contiguous();
}

void check_length(const Tensor& x, int64_t axis, std::string_view what) {
  if (!x.size(axis).is_const())
    raise(Code::kUnsupported, "{} of {}: axis {} is symbolic", what, ops::describe(x), axis);
  if (x.size(axis).constant() >= int64_t{1} << 31)
    raise(Code::kUnsupported, "{} of {}: axis {} has 2^31 elements or more", what, ops::describe(x),
          axis);
}

/// Comparisons of a round of a tournament, in a row: launches cost more than counting up to there.
constexpr int64_t kComparisons = int64_t{1} << 23;

/// The k smallest of different values, in order: a tournament on devices with work-groups. Each
/// round keeps the k smallest of every chunk of a row, and all units share one row.
Tensor tournament(const Tensor& packed, int64_t k) {
  Tensor left = packed;
  for (;;) {
    const int64_t n = left.size(-1).constant();
    const int64_t longer = kComparisons / std::max<int64_t>(n, 1) & ~31;
    const int64_t chunk = std::max({4 * k, kRankLimit, longer});
    if (n <= chunk) return ranked(left, k);
    const int64_t chunks = (n + chunk - 1) / chunk;
    Shape shape = left.shape(), flat = shape;
    shape.back() = chunks;
    shape.push_back(chunk);
    flat.back() = chunks * k;
    left = ranked(filled(left, chunks * chunk).reshape(shape), k).reshape(flat);
  }
}

/// The same of keys packed above their positions. The k smallest lie in the k sections of a row
/// whose smallest are smallest: a row is read once, and what is counted has about sqrt(n k)
/// elements, first the sections' smallest, then the elements of k sections.
Tensor smallest_packed(const Tensor& packed, int64_t k) {
  if (!ops::has_groups(packed)) return top_k_raw(packed, -1, k);
  const int64_t n = packed.size(-1).constant();
  int64_t section = 1;
  while (4 * section * section * k <= 2 * n) section *= 2;  // the power of two next to sqrt(n / k)
  const int64_t sections = (n + section - 1) / section;
  if (n * n <= kComparisons || sections < 2 * k || section < 4) return tournament(packed, k);
  Shape shape = packed.shape(), flat = shape;
  shape.back() = sections;
  shape.push_back(section);
  const Tensor all = filled(packed, sections * section);
  const Tensor least = reduce(ir::ReduceOp::kMin, all.reshape(shape), {-1}).squeeze(-1);
  const Tensor first = position_of(tournament(least, k));
  const auto count = [&](int64_t value) {
    return constant_int(value, DType::kI64, packed.device());
  };
  const Tensor at = (first & count(-section)).unsqueeze(-1) + iota(section, packed.device());
  flat.back() = k * section;
  return tournament(gather_raw(all, packed.rank() - 1, at.reshape(flat)), k);
}

}  // namespace

std::optional<Tensor> ops::first_extreme(const Tensor& x, int64_t axis, bool is_largest) {
  const SymInt& n = x.size(axis);
  if (is_wide(x.dtype()) || !n.is_const() || n.constant() >= int64_t{1} << 31) return std::nullopt;
  const Tensor position = ops::iota_along(n, axis, x.rank(), x.device());
  return position_of(
      reduce(ir::ReduceOp::kMin, pack(key_of(x, is_largest, is_largest), position), {axis}));
}

std::pair<Tensor, Tensor> Tensor::sort(int64_t axis_, bool descending) const {
  if (rank() == 0) {
    const auto [values, order] = unsqueeze(0).sort(axis_, descending);
    return {values.squeeze(0), order.squeeze(0)};
  }
  const int64_t a = axis(axis_);
  check_length(*this, a, "sort");
  const Tensor lines = transpose(a, -1);
  if (elements() == 0) return {*this, full_int(shape(), 0, DType::kI64, device().name())};
  const Tensor order = order_of(key_of(lines, descending), is_wide(dtype()));
  return {gather_raw(lines, rank() - 1, order).transpose(a, -1), order.transpose(a, -1)};
}

std::pair<Tensor, Tensor> Tensor::topk(int64_t k, int64_t axis_, bool largest) const {
  if (rank() == 0 && k == 1) return sort(axis_, largest);
  const int64_t a = axis(axis_);
  check_length(*this, a, "topk");
  const int64_t n = size(a).constant();
  if (k < 0 || k > n)
    raise(Code::kInvalidArgument, "topk of {}: k = {} is outside [0, {}]", ops::describe(*this), k,
          n);
  const bool has_groups = ops::has_groups(*this), is_short = n <= kRankLimit && has_groups;
  const int64_t limit = has_groups ? kTopByTournament : kTopInRegisters;
  if (k == 0 || k > limit || is_short || is_wide(dtype()) || elements() == 0) {
    const auto [values, order] = sort(a, largest);
    return {values.slice(a, {0, k, 1}), order.slice(a, {0, k, 1})};
  }
  const Tensor lines = transpose(a, -1);
  const Tensor packed = pack(key_of(lines, largest), iota(n, device()));
  const Tensor order = position_of(smallest_packed(packed, k));
  return {gather_raw(lines, rank() - 1, order).transpose(a, -1), order.transpose(a, -1)};
}

}  // namespace bm
