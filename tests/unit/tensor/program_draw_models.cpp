// Operands of what models are made of: attention of grouped heads, convolutions with all their
// options, rotations, packed weights.
#include <algorithm>

#include "tests/unit/tensor/program_draw.h"

namespace bm::test::draw {
namespace {

using Extents = std::vector<int64_t>;
const Extents& extents_of_x(Drawer& d, const Step& s) { return d.shape(s.args[0]); }
DType type_of_x(Drawer& d, const Step& s) { return d.of(s.args[0]).dtype; }
int64_t rank_of(const Extents& shape) { return static_cast<int64_t>(shape.size()); }
int64_t some_size(Drawer& d) { return std::max<int64_t>(d.size(), 1); }

/// One of the numbers that divide n.
int64_t divisor(Drawer& d, int64_t n) {
  Extents found;
  for (int64_t k = 1; k <= n; ++k)
    if (n % k == 0) found.push_back(k);
  return found[static_cast<size_t>(d.pick(std::ssize(found)))];
}

/// Sums of an operation that says with them: neither float16 nor what has less room.
DType wider(Drawer& d, DType t) {
  if (!is_float(t)) return d.chance(50) ? DType::kI64 : DType::kI32;
  return t == DType::kF32 || d.chance(30) ? DType::kF64 : DType::kF32;
}

/// Keys and values [2, …, kv heads, n, d] for queries of x [heads, m, d] or [m, heads, d].
bool keys_for(Drawer& d, Step& s, size_t heads_axis, size_t rows_axis) {
  const DType t = type_of_x(d, s);
  const Extents x = extents_of_x(d, s);
  const int64_t heads = x[heads_axis], m = x[rows_axis], width = x.back();
  const int64_t shared = divisor(d, heads);
  const int64_t others = count_of(x) / (heads * m * width);
  const int64_t room = 2 * d.scale.most_elements / (2 * others * shared * width);
  const int64_t n = std::min(some_size(d), room);
  if (n < 1 || 2 * count_of(x) * n > d.scale.most_products ||
      count_of(x) / width * n > 4 * d.scale.most_elements)
    return false;
  Extents shape{2};
  for (size_t a = 0; a + 3 < x.size(); ++a) shape.push_back(x[a]);
  shape.insert(shape.end(), {shared, n, width});
  s.args.push_back(d.input(shape, t));
  s.n.t = t == DType::kF64 ? t : DType::kF32;
  s.n.keep = d.chance(40);
  s.n.j = d.pick(n + 2) - 1;
  s.n.k = 1 + d.pick(n);
  return true;
}

/// x becomes a fresh input where it is none of so many axes.
void of_rank(Drawer& d, Step& s, int64_t low, int64_t high, const Extents& fresh, int percent) {
  const Extents& x = extents_of_x(d, s);
  const bool fits = rank_of(x) >= low && rank_of(x) <= high && count_of(x) > 0;
  if (fits && !d.chance(percent)) return;
  if (count_of(fresh) <= d.scale.most_elements) s.args[0] = d.input(fresh, type_of_x(d, s));
}

/// Image of one to three axes.
Extents fresh_image(Drawer& d) {
  Extents out{1 + d.pick(2), std::min<int64_t>(some_size(d), d.has_products ? 64 : 8)};
  const int64_t spatial = 1 + d.pick(3);
  for (int64_t a = 0; a < spatial; ++a)
    out.push_back(std::min<int64_t>(some_size(d), spatial == 3 ? 6 : 24));
  return out;
}

/// Number of groups of c channels.
int64_t groups_of(Drawer& d, int64_t c) { return d.chance(40) ? 1 : divisor(d, c); }

}  // namespace

bool grouped(Drawer& d, Step& s) {
  const Extents fresh{int64_t{1} << d.pick(4), d.chance(40) ? 1 : some_size(d), some_size(d)};
  of_rank(d, s, 3, 4, fresh, 50);
  const Extents& x = extents_of_x(d, s);
  if (rank_of(x) < 3 || rank_of(x) > 4 || count_of(x) == 0) return false;
  return keys_for(d, s, x.size() - 3, x.size() - 2);
}
bool masked(Drawer& d, Step& s) {
  if (!grouped(d, s)) return false;
  const Extents x = extents_of_x(d, s);
  const int64_t n = d.shape(s.args[1])[x.size() - 1], m = x[x.size() - 2];
  Extents mask{n};
  if (d.chance(70)) mask.insert(mask.begin(), d.chance(80) ? m : 1);
  if (mask.size() == 2 && d.chance(40)) mask.insert(mask.begin(), x[x.size() - 3]);
  s.args.push_back(d.input(mask, d.chance(60) ? DType::kBool : type_of_x(d, s)));
  return true;
}
bool decoded(Drawer& d, Step& s) {
  const Extents fresh{d.chance(60) ? 1 : some_size(d), int64_t{1} << d.pick(4), some_size(d)};
  of_rank(d, s, 3, 3, fresh, 70);
  const Extents& x = extents_of_x(d, s);
  return rank_of(x) == 3 && count_of(x) > 0 && keys_for(d, s, 1, 0);
}
bool angles(Drawer& d, Step& s) {
  const Extents x = extents_of_x(d, s);
  if (rank_of(x) < 2 || rank_of(x) > 4 || x.back() < 2 || x.back() % 2 != 0) return false;
  s.args.push_back(d.any({x[x.size() - 2], x.back() / 2}, type_of_x(d, s)));
  return true;
}
bool gated(Drawer& d, Step& s) {
  const Extents x = extents_of_x(d, s);
  const int64_t inner = some_size(d), out = some_size(d);
  if (rank_of(x) < 2 || x.back() < 1) return false;
  const int64_t lines = count_of(x) / x.back();
  if (lines * std::max(inner, out) > d.scale.most_elements ||
      lines * inner * (2 * x.back() + out) > d.scale.most_products)
    return false;
  s.args.push_back(d.input({2, inner, x.back()}, type_of_x(d, s)));
  s.args.push_back(d.any({out, inner}, type_of_x(d, s)));
  return true;
}

namespace {
/// Weights [n, blocks, codes of a block / per] of t and scales [n, blocks, 1] for x [..., k].
bool packed_weights(Drawer& d, Step& s, int64_t per, DType t, int64_t low, int64_t high) {
  const Extents x = extents_of_x(d, s);
  const int64_t n = some_size(d);
  if (rank_of(x) < 2 || x.back() < per || x.back() % per != 0) return false;
  const int64_t block = per * divisor(d, x.back() / per), blocks = x.back() / block;
  if (count_of(x) / x.back() * n > d.scale.most_elements || n * x.back() > d.scale.most_elements ||
      count_of(x) * n > d.scale.most_products)
    return false;
  s.args.push_back(d.whole_numbers({n, blocks, block / per}, t, low, high));
  s.args.push_back(d.input({n, blocks, 1}, type_of_x(d, s)));
  return true;
}
}  // namespace
bool nibbles(Drawer& d, Step& s) { return packed_weights(d, s, 2, DType::kU8, 0, 256); }
bool words(Drawer& d, Step& s) { return packed_weights(d, s, 8, DType::kU32, 0, int64_t{1} << 32); }
bool bytes(Drawer& d, Step& s) { return packed_weights(d, s, 1, DType::kI8, -127, 128); }
bool blocks(Drawer& d, Step& s) {
  const int64_t blocks = 1 + d.pick(4), block = d.has_products ? 32 : 1 + d.pick(16);
  const int64_t m = some_size(d), n = some_size(d), k = blocks * block;
  if (std::max({m * k, n * k, m * n}) > d.scale.most_elements || m * n * k > d.scale.most_products)
    return false;
  s.args[0] = d.whole_numbers({m, k}, DType::kI8, -127, 128);
  s.args.push_back(d.whole_numbers({n, blocks, block}, DType::kI8, -127, 128));
  s.args.push_back(d.input({n, blocks}, d.chance(50) ? d.real : DType::kF32));
  return true;
}

namespace {
/// Weights and bias of a layer that keeps them in 16 bits, for vectors of float32.
bool narrow_layer(Drawer& d, Step& s, DType t) {
  const Extents x = extents_of_x(d, s);
  const int64_t n = some_size(d);
  if (type_of_x(d, s) != DType::kF32 || rank_of(x) < 2 || x.back() < 1 ||
      count_of(x) / x.back() * n > d.scale.most_elements || n * x.back() > d.scale.most_elements ||
      count_of(x) * n > d.scale.most_products)
    return false;
  s.args.push_back(d.input({n, x.back()}, t));
  s.args.push_back(d.any({n}, DType::kF32));
  return true;
}
}  // namespace
bool half_layer(Drawer& d, Step& s) { return narrow_layer(d, s, DType::kF16); }
bool bfloat_layer(Drawer& d, Step& s) { return narrow_layer(d, s, DType::kBF16); }
bool experts(Drawer& d, Step& s) {
  const Extents x = extents_of_x(d, s);
  if (rank_of(x) != 2 || count_of(x) == 0) return false;
  const int64_t n = some_size(d), count = 1 + d.pick(4);
  if (std::max(count * n * x[1], x[0] * n) > d.scale.most_elements ||
      count_of(x) * n > d.scale.most_products)
    return false;
  s.args.push_back(d.input({count, n, x[1]}, type_of_x(d, s)));
  s.args.push_back(d.indices({x[0]}, 0, count));
  return true;
}

bool dilated(Drawer& d, Step& s) {
  of_rank(d, s, 3, 5, fresh_image(d), 40);
  const Extents x = extents_of_x(d, s);
  if (rank_of(x) < 3 || rank_of(x) > 5 || count_of(x) == 0) return false;
  s.n.k = groups_of(d, x[1]);
  s.n.j = 1 + d.pick(2);
  const int64_t out = s.n.k * (1 + d.pick(3));
  Extents shape{out, x[1] / s.n.k};
  int64_t elements = x[0] * out, taps = shape[1];
  for (size_t a = 2; a < x.size(); ++a) {
    const int64_t padding = d.pick(3), stride = 1 + d.pick(3), kernel = 1 + d.pick(3);
    const int64_t last = x[a] + 2 * padding - s.n.j * (kernel - 1) - 1;
    if (last < 0) return false;
    shape.push_back(kernel);
    s.n.axes.push_back(stride);
    s.n.dims.push_back(padding);
    elements *= last / stride + 1;
    taps *= kernel;
  }
  if (elements > d.scale.most_elements || elements * taps > d.scale.most_convolved) return false;
  s.args.push_back(d.input(shape, type_of_x(d, s)));
  s.args.push_back(d.any({out}, type_of_x(d, s)));
  return true;
}
bool turned_back(Drawer& d, Step& s) {
  of_rank(d, s, 3, 5, fresh_image(d), 40);
  const Extents x = extents_of_x(d, s);
  if (rank_of(x) < 3 || rank_of(x) > 5 || count_of(x) == 0) return false;
  s.n.k = groups_of(d, x[1]);
  s.n.j = 1 + d.pick(2);
  s.n.i = d.pick(2);
  const int64_t out = 1 + d.pick(3);
  Extents shape{x[1], out};
  int64_t elements = x[0] * out * s.n.k, taps = x[1] / s.n.k;
  for (size_t a = 2; a < x.size(); ++a) {
    const int64_t padding = d.pick(3), stride = s.n.i + 1 + d.pick(2), kernel = 1 + d.pick(3);
    const int64_t extent = (x[a] - 1) * stride - 2 * padding + s.n.j * (kernel - 1) + s.n.i + 1;
    if (extent < 1) return false;
    shape.push_back(kernel);
    s.n.axes.push_back(stride);
    s.n.dims.push_back(padding);
    elements *= extent;
    taps *= kernel;
  }
  if (elements > d.scale.most_elements || elements * taps > d.scale.most_convolved) return false;
  s.args.push_back(d.input(shape, type_of_x(d, s)));
  s.args.push_back(d.any({out * s.n.k}, type_of_x(d, s)));
  return true;
}
bool pooled(Drawer& d, Step& s) {
  const Extents x = extents_of_x(d, s);
  if (x.empty() || count_of(x) == 0) return false;
  const int64_t spatial = 1 + d.pick(std::min<int64_t>(rank_of(x), 3));
  s.n.j = d.pick(2);
  s.n.k = 1 + d.pick(2);
  s.n.keep = d.chance(50);
  for (size_t a = x.size() - static_cast<size_t>(spatial); a < x.size(); ++a) {
    const int64_t kernel = s.n.j + 1 + d.pick(3);
    if (x[a] + 2 * s.n.j < s.n.k * (kernel - 1) + 1) return false;
    s.n.axes.push_back(kernel);
    s.n.dims.push_back(1 + d.pick(3));
  }
  return true;
}

bool batched(Drawer& d, Step& s) {
  const Extents x = extents_of_x(d, s);
  const int64_t n = some_size(d);
  if (rank_of(x) != 3 || x[0] * x[1] * n > d.scale.most_elements ||
      x[0] * n * x[2] > d.scale.most_elements || count_of(x) * n > d.scale.most_products)
    return false;
  s.args.push_back(d.any({x[0], n, x[2]}, type_of_x(d, s)));
  return true;
}
bool column(Drawer& d, Step& s) {
  const int64_t n = some_size(d);
  if (rank_of(extents_of_x(d, s)) > 4 || count_of(extents_of_x(d, s)) * n > d.scale.most_elements)
    return false;
  s.args.push_back(d.any({n}, type_of_x(d, s)));
  return true;
}
bool chained(Drawer& d, Step& s) {
  const Extents x = extents_of_x(d, s);
  if (rank_of(x) < 1 || x.back() < 1) return false;
  const int64_t n = some_size(d), l = some_size(d), lines = count_of(x) / x.back();
  if (lines * std::max(n, l) > d.scale.most_elements ||
      lines * n * l * x.back() > d.scale.most_products)
    return false;
  s.args.push_back(d.any({x.back(), n}, type_of_x(d, s)));
  s.args.push_back(d.any({n, l}, type_of_x(d, s)));
  return true;
}
bool square(Drawer& d, Step& s) {
  const Extents x = extents_of_x(d, s);
  if (rank_of(x) >= 2 && x[x.size() - 1] == x[x.size() - 2] && x.back() > 0) return true;
  const int64_t n = some_size(d);
  if (n * n > d.scale.most_elements) return false;
  s.args[0] = d.input({n, n}, type_of_x(d, s));
  return true;
}
bool same(Drawer& d, Step& s) {
  const Extents& x = extents_of_x(d, s);
  if (rank_of(x) < 2 || count_of(x) * x[x.size() - 2] > d.scale.most_products) return false;
  s.args.push_back(d.any(Extents(extents_of_x(d, s)), type_of_x(d, s)));
  return true;
}
bool accumulated(Drawer& d, Step& s) {
  if (type_of_x(d, s) == DType::kF64 || !right(d, s)) return false;
  s.n.t = wider(d, type_of_x(d, s));
  return true;
}
bool summed(Drawer& d, Step& s) {
  if (type_of_x(d, s) == DType::kF64 || !axes(d, s)) return false;
  s.n.t = wider(d, type_of_x(d, s));
  return true;
}
bool same_bits(Drawer& d, Step& s) {
  constexpr DType kAll[] = {DType::kI8,  DType::kU8,  DType::kI16, DType::kU16,
                            DType::kI32, DType::kU32, DType::kI64, DType::kU64};
  s.n.t = kAll[d.pick(std::size(kAll))];
  return s.n.t != type_of_x(d, s) && item_size(s.n.t) == item_size(type_of_x(d, s));
}
bool repeated(Drawer& d, Step& s) {
  const Extents& x = extents_of_x(d, s);
  int64_t elements = count_of(x);
  for (size_t a = 0; a < x.size(); ++a) {
    s.n.dims.push_back(1 + d.pick(3));
    elements *= s.n.dims.back();
  }
  return !x.empty() && elements <= d.scale.most_elements;
}
bool cropped(Drawer& d, Step& s) {
  const Extents& x = extents_of_x(d, s);
  int64_t elements = 1;
  for (const int64_t n : x) {
    s.n.pads.emplace_back(d.pick(4) - 1, d.pick(4) - 1);
    const auto& [before, after] = s.n.pads.back();
    if (n < 2) s.n.pads.back() = {0, 1};
    elements *= n + before + after;
  }
  return !x.empty() && elements > 0 && elements <= d.scale.most_elements;
}
bool indexed(Drawer& d, Step& s) {
  const Extents& x = extents_of_x(d, s);
  if (rank_of(x) < 2 || x[0] < 1 || x[1] < 1) return false;
  s.n.j = d.pick(2 * x[0]) - x[0];
  s.n.k = d.pick(x[1]);
  return true;
}

}  // namespace bm::test::draw
