// Random programs: shapes that repeat sizes, operands that are shared, steps that can be judged.
#include "tests/unit/tensor/program_draw.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <sstream>

namespace bm::test {
namespace {

constexpr int64_t kSmallSizes[] = {1, 2, 2, 3, 4, 5, 7, 8, 16, 16, 32, 64, 64};
constexpr int64_t kLargeSizes[] = {1,   2,   3,   7,   16,  17,  32,  64,   64,   65,
                                   100, 127, 128, 129, 256, 256, 384, 1000, 1024, 4099};
constexpr int64_t kLengthSizes[] = {1, 2, 2, 3, 4, 5, 8, 16, 16, 32};
constexpr int64_t kLongSizes[] = {1, 2, 2, 3, 4, 5, 8, 16};
constexpr int64_t kProductSizes[] = {16, 16, 24, 32, 32, 40, 64, 64, 128};

int64_t rank(const std::vector<int64_t>& shape) { return static_cast<int64_t>(shape.size()); }

/// How two shapes broadcast; nothing where they do not or the result is too large.
bool is_broadcastable(const std::vector<int64_t>& a, const std::vector<int64_t>& b,
                      int64_t most_elements) {
  int64_t elements = 1;
  for (size_t i = 1; i <= std::max(a.size(), b.size()); ++i) {
    const int64_t m = i <= a.size() ? a[a.size() - i] : 1, n = i <= b.size() ? b[b.size() - i] : 1;
    if (m != n && m != 1 && n != 1) return false;
    elements *= m == 1 ? n : m;
  }
  return elements <= most_elements;
}

/// Small numbers that every dtype has; sums and products of a few stay exact in most.
double small_value(std::mt19937_64& random, DType t) {
  const auto r = static_cast<int64_t>(random() >> 33);
  if (is_bool(t)) return static_cast<double>(r % 2);
  if (is_float(t)) return static_cast<double>(r % 81 - 40) / 16;
  return static_cast<double>(is_signed(t) ? r % 41 - 20 : r % 41);
}

}  // namespace

bool is_long(uint64_t seed, Size size) { return size == Size::kLengths && seed % 3 == 0; }

const Scale& scale_of(uint64_t seed, Size size) {
  static constexpr Scale kSmall{kSmallSizes, 2048, 1 << 17, 40'000, 10, 11};
  static constexpr Scale kLarge{kLargeSizes, 65'536, 1 << 22, 1 << 21, 6, 7};
  static constexpr Scale kProducts{kProductSizes, 8192, 1 << 19, 1 << 18, 6, 5};
  static constexpr Scale kLengths{kLengthSizes, 1024, 1 << 15, 20'000, 7, 8};
  static constexpr Scale kLong{kLongSizes, 4096, 1 << 18, 100'000, 6, 6};
  if (is_long(seed, size)) return kLong;
  switch (size) {
    case Size::kSmall: return kSmall;
    case Size::kLarge: return kLarge;
    case Size::kProducts: return kProducts;
    case Size::kLengths: return kLengths;
  }
  __builtin_unreachable();
}

Drawer::Drawer(uint64_t seed, Size size)
    : scale(scale_of(seed, size)), random(seed * 0x9e3779b97f4a7c15ULL + 1) {
  constexpr DType kReals[] = {DType::kF32, DType::kF32, DType::kF32,  DType::kF32,
                              DType::kF32, DType::kF16, DType::kBF16, DType::kF64};
  constexpr DType kWholes[] = {DType::kI32, DType::kI64, DType::kI32, DType::kI8,  DType::kU8,
                               DType::kI16, DType::kU16, DType::kU32, DType::kU64, DType::kI64};
  program.seed = seed;
  for (int k = 0; k < 10; ++k) random();
  real = size == Size::kProducts ? kReals[3 + pick(4)] : kReals[pick(std::size(kReals))];
  whole = kWholes[pick(std::size(kWholes))];
  const int64_t kinds = 1 + pick(3);
  for (int64_t k = 0; k < kinds; ++k)
    sizes.push_back(scale.sizes[static_cast<size_t>(pick(std::ssize(scale.sizes)))]);
  if (chance(30)) sizes.push_back(1);
  if (chance(2)) sizes.push_back(0);
  has_products = size == Size::kProducts;
  // Few results of long sums.
  if (has_products && chance(15)) {
    real = DType::kF32;
    sizes = {4, 6, 512};
  } else if (has_products && chance(12)) {
    has_attention = true;
    real = chance(50) ? DType::kF16 : DType::kBF16;
    sizes = {16, 32, 64};
  }
  if (size != Size::kLengths) return;
  // Values that no constant has: an extent of a new input tells by its value what it is.
  constexpr int64_t kLengths[] = {6, 9, 11, 13};
  constexpr int64_t kMost[] = {14, 17, 24, 33};
  // A prime, a vector's multiple and one more or less, blocks' remainders.
  constexpr int64_t kLongLengths[] = {66, 97, 129, 160};
  constexpr int64_t kLongMost[] = {256, 257, 511, 640, 1031};
  const auto one_of = [&](std::span<const int64_t> all) {
    return all[static_cast<size_t>(pick(std::ssize(all)))];
  };
  const bool has_long = is_long(seed, size);
  length = one_of(has_long ? std::span<const int64_t>(kLongLengths) : kLengths);
  program.most = one_of(has_long ? std::span<const int64_t>(kLongMost) : kMost);
  variable.emplace("n", 1, program.most);
  std::erase(sizes, 0);
  sizes.insert(sizes.end(), {length, length});
  if (chance(50)) sizes.push_back(program.most);
  program.lengths = {length, 1, 2 + pick(2), program.most, 4 + pick(program.most - 4)};
  std::sort(program.lengths.begin(), program.lengths.end());
  program.lengths.erase(std::unique(program.lengths.begin(), program.lengths.end()),
                        program.lengths.end());
  std::shuffle(program.lengths.begin(), program.lengths.end(), random);
  for (const int64_t n : program.lengths)
    if (n != length) others.push_back({n, {}, {}});
}

/// An extent that a value over the variable has is that of the variable here, too.
void Drawer::cut(Input* made) const {
  std::vector<SymInt> known{SymInt(*variable)};
  for (const std::vector<Tensor>* all : {&given_shapes, &result_shapes})
    for (const Tensor& t : *all)
      for (const SymInt& n : t.shape())
        if (!n.is_const() && std::find(known.begin(), known.end(), n) == known.end())
          known.push_back(n);
  made->times.assign(made->shape.size(), 0);
  variable->set(length);
  for (size_t a = 0; a < made->shape.size(); ++a)
    for (const SymInt& n : known)
      if (n.value() == made->shape[a]) {
        made->shape[a] = n.max();
        made->times[a] = n.terms()[0].coefficient;
        break;
      }
  if (std::all_of(made->times.begin(), made->times.end(), [](int64_t t) { return t == 0; }))
    made->times.clear();
}

void Drawer::judge_newest_input() {
  const Input& in = program.inputs.back();
  given.resize(program.inputs.size());
  if (!has_length()) {
    given.back() = judge_input(in);
    return;
  }
  given.back() = judge_input(at_length(program, in, length));
  for (AtLength& other : others) {
    other.given.resize(program.inputs.size());
    other.given.back() = judge_input(at_length(program, in, other.length));
  }
  given_shapes.resize(program.inputs.size());
  std::vector<std::pair<SymInt, SymInt>> ends;
  for (const SymInt& n : extents_of(program, in, *variable)) ends.emplace_back(0, n);
  const Tensor storage = Tensor::empty(Shape{in.shape.begin(), in.shape.end()}, in.dtype, "REF");
  given_shapes.back() = in.times.empty() ? storage : storage.shrink(ends);
}

void Drawer::forget_inputs(size_t from) {
  program.inputs.resize(from);
  given.resize(from);
  is_input_dead.resize(from);
  if (!has_length()) return;
  given_shapes.resize(from);
  for (AtLength& other : others) other.given.resize(from);
}

bool Drawer::judge_at_others(const Step& step) {
  const Row& row = rows()[step.row];
  Step s = step;
  s.n.length = *variable;
  Operands o;
  o.n = s.n;
  Tensor* const places[] = {&o.x, &o.y, &o.z};
  for (size_t a = 0; a < s.args.size(); ++a) *places[a] = shape_of_variable(s.args[a]);
  Tensor shape;
  if (row.is_assign) {
    Shape wanted = o.x.shape();
    if (row.part != nullptr) {
      const auto [begin, end] = row.part(s.n);
      wanted[static_cast<size_t>(s.n.i)] = end - begin;
    }
    if (o.y.shape() != wanted) return false;
    shape = Tensor::empty(o.x.shape(), o.x.dtype(), "REF");
  } else {
    // What the API gives no meaning over a variable, it refuses.
    try {
      shape = row.run(o);
    } catch (const Exception&) {
      return false;
    }
  }
  std::vector<Judged> made;
  for (const AtLength& other : others) {
    std::vector<const Judged*> args;
    for (const int a : s.args)
      args.push_back(a >= 0 ? &other.results[static_cast<size_t>(a)]
                            : &other.given[static_cast<size_t>(-1 - a)]);
    s.n.length = other.length;
    std::vector<bool> hidden;
    std::string reason;
    std::optional<Judged> one = judge_step(s, args, &hidden, &reason);
    if (!one || std::count(hidden.begin(), hidden.end(), true) != 0 ||
        count_of(one->shape) > 8 * scale.most_elements)
      return false;
    // squeeze() keeps an axis as long as a variable, also where that is 1.
    if (std::ssize(one->shape) != shape.rank()) return false;
    made.push_back(std::move(*one));
  }
  result_shapes.push_back(std::move(shape));
  for (size_t k = 0; k < made.size(); ++k) others[k].results.push_back(std::move(made[k]));
  return true;
}

int Drawer::input(std::vector<int64_t> shape, DType t) {
  Input made{t, std::move(shape), {}};
  if (has_length()) cut(&made);
  for (int64_t n = count_of(made.shape); n > 0; --n) made.values.push_back(small_value(random, t));
  is_input_dead.push_back(false);
  program.inputs.push_back(std::move(made));
  judge_newest_input();
  return -static_cast<int>(program.inputs.size());
}

int Drawer::indices(std::vector<int64_t> shape, int64_t low, int64_t high) {
  return whole_numbers(std::move(shape), chance(50) ? DType::kI64 : DType::kI32, low, high);
}

int Drawer::whole_numbers(std::vector<int64_t> shape, DType t, int64_t low, int64_t high) {
  const int made = input(std::move(shape), t);
  Input& in = program.inputs.back();
  for (double& v : in.values) v = static_cast<double>(low + pick(std::max<int64_t>(high - low, 1)));
  judge_newest_input();
  return made;
}

int Drawer::mask(std::vector<int64_t> shape, const std::vector<bool>& hidden) {
  const int made = input(std::move(shape), DType::kBool);
  Input& in = program.inputs.back();
  in.is_mask = true;
  for (size_t i = 0; i < hidden.size(); ++i) in.values[i] = hidden[i] ? 0 : 1;
  judge_newest_input();
  return made;
}

int Drawer::newest_where(const std::function<bool(const Judged&)>& fits) {
  std::vector<int> found;
  for (int k = static_cast<int>(results.size()); k-- > 0;)
    if (is_alive(k) && fits(of(k))) found.push_back(k);
  for (int k = -1; k >= -static_cast<int>(given.size()); --k)
    if (is_alive(k) && !program.inputs[static_cast<size_t>(-1 - k)].is_mask && fits(of(k)))
      found.push_back(k);
  if (found.empty()) return INT32_MIN;
  // The newest value as often as all others: chains grow long enough to be fused.
  return chance(prefers_newest ? 80 : 50)
             ? found[0]
             : found[static_cast<size_t>(pick(static_cast<int64_t>(found.size())))];
}

int Drawer::any(const std::vector<int64_t>& shape, DType t) {
  const int found = newest_where([&](const Judged& v) { return v.shape == shape && v.dtype == t; });
  return found == INT32_MIN || chance(40) ? input(shape, t) : found;
}

namespace draw {
namespace {

using Dims = std::vector<int64_t>;
const Dims& shape_of_x(Drawer& d, const Step& s) { return d.shape(s.args[0]); }
DType dtype_of_x(Drawer& d, const Step& s) { return d.of(s.args[0]).dtype; }

}  // namespace

bool nothing(Drawer&, Step&) { return true; }
bool ranked(Drawer& d, Step& s) {
  const Dims& x = shape_of_x(d, s);
  return !x.empty() && x.back() > 0;
}
bool cast(Drawer& d, Step& s) {
  constexpr DType kAll[] = {DType::kBool, DType::kI8,   DType::kI16, DType::kI32, DType::kI64,
                            DType::kU8,   DType::kU16,  DType::kU32, DType::kU64, DType::kF16,
                            DType::kF32,  DType::kBF16, DType::kF64, DType::kF32, DType::kI32};
  s.n.t = d.chance(50) ? d.real : kAll[d.pick(std::size(kAll))];
  return s.n.t != dtype_of_x(d, s);
}
bool partner(Drawer& d, Step& s) {
  const Judged& x = d.of(s.args[0]);
  const bool is_mixed = d.chance(10);
  const int found = d.newest_where([&](const Judged& v) {
    return is_broadcastable(x.shape, v.shape, d.scale.most_elements) &&
           (v.dtype == x.dtype || (is_mixed && is_float(v.dtype) == is_float(x.dtype) &&
                                   is_bool(v.dtype) == is_bool(x.dtype)));
  });
  if (found != INT32_MIN && !d.chance(35)) return s.args.push_back(found), true;
  Dims shape = x.shape;
  if (d.chance(30) && !shape.empty())
    shape.erase(shape.begin(), shape.begin() + d.pick(rank(shape)));
  for (int64_t& n : shape)
    if (d.chance(15)) n = 1;
  s.args.push_back(d.input(shape, x.dtype));
  return true;
}
bool choice(Drawer& d, Step& s) {
  if (!partner(d, s)) return false;
  const Dims shape = d.shape(s.args[0]);
  const int found = d.newest_where([&](const Judged& v) {
    return is_bool(v.dtype) && is_broadcastable(v.shape, shape, d.scale.most_elements);
  });
  s.args.push_back(found == INT32_MIN ? d.input(shape, DType::kBool) : found);
  return true;
}
bool axis(Drawer& d, Step& s) {
  const Dims& x = shape_of_x(d, s);
  if (x.empty()) return false;
  s.n.i = d.pick(rank(x));
  s.n.j = 1 + d.pick(3);
  s.n.keep = d.chance(50);
  return x[static_cast<size_t>(s.n.i)] > 0;
}
bool axes(Drawer& d, Step& s) {
  const Dims& x = shape_of_x(d, s);
  if (x.empty()) return false;
  s.n.keep = d.chance(50);
  // Several axes more often than one: all of them, the last few, or any.
  const int64_t kind = d.pick(4);
  for (int64_t a = 0; a < rank(x); ++a)
    if (kind == 0 || (kind == 1 && a > 0) || (kind > 1 && d.chance(60))) s.n.axes.push_back(a);
  if (s.n.axes.empty()) s.n.axes.push_back(d.pick(rank(x)));
  return true;
}
bool some(Drawer& d, Step& s) {
  if (!axis(d, s)) return false;
  s.n.j = 1 + d.pick(std::min<int64_t>(shape_of_x(d, s)[static_cast<size_t>(s.n.i)], 5));
  return true;
}
bool affine(Drawer& d, Step& s) {
  if (!ranked(d, s)) return false;
  const Dims last{shape_of_x(d, s).back()};
  const DType t = dtype_of_x(d, s);
  s.args.push_back(d.any(last, t));
  s.args.push_back(d.any(last, t));
  return true;
}
bool image(Drawer& d, Step& s) {
  const Dims& x = shape_of_x(d, s);
  return rank(x) >= 3 && count_of(x) > 0;
}
bool channels(Drawer& d, Step& s) {
  if (!image(d, s)) return false;
  const int64_t c = shape_of_x(d, s)[1];
  const DType t = dtype_of_x(d, s);
  s.n.j = c % 2 == 0 && d.chance(50) ? 2 : c % 4 == 0 && d.chance(50) ? 4 : 1;
  s.args.push_back(d.any({c}, t));
  s.args.push_back(d.any({c}, t));
  return true;
}
bool right(Drawer& d, Step& s) {
  const Dims x = shape_of_x(d, s);
  if (rank(x) < 2 || d.chance(5)) return false;
  const DType t = dtype_of_x(d, s);
  const int found = d.newest_where([&](const Judged& v) {
    return v.shape.size() == 2 && v.dtype == t && v.shape[0] == x.back() &&
           count_of(x) / std::max<int64_t>(x.back(), 1) * v.shape[1] <= d.scale.most_elements &&
           count_of(x) * v.shape[1] <= d.scale.most_products;
  });
  if (found != INT32_MIN && d.chance(50)) return s.args.push_back(found), true;
  const int64_t n = d.size();
  if (count_of(x) / std::max<int64_t>(x.back(), 1) * n > d.scale.most_elements ||
      count_of(x) * n > d.scale.most_products)
    return false;
  Dims shape{x.back(), n};
  if (rank(x) == 3 && d.chance(40)) shape.insert(shape.begin(), x[0]);
  s.args.push_back(d.input(shape, t));
  return true;
}
bool linear(Drawer& d, Step& s) {
  if (!transposed(d, s)) return false;
  s.args.push_back(d.any({d.shape(s.args[1])[0]}, dtype_of_x(d, s)));
  return true;
}
bool transposed(Drawer& d, Step& s) {
  const Dims x = shape_of_x(d, s);
  const int64_t n = d.size();
  if (rank(x) < 2 || count_of(x) / std::max<int64_t>(x.back(), 1) * n > d.scale.most_elements ||
      count_of(x) * n > d.scale.most_products)
    return false;
  s.args.push_back(d.any({n, x.back()}, dtype_of_x(d, s)));
  return true;
}
bool weighted(Drawer& d, Step& s) {
  if (!ranked(d, s)) return false;
  s.args.push_back(d.any({shape_of_x(d, s).back()}, dtype_of_x(d, s)));
  return true;
}
bool kernel(Drawer& d, Step& s) {
  const Dims x = shape_of_x(d, s);
  if (rank(x) < 3 || count_of(x) == 0) return false;
  const int64_t channels = d.has_products ? d.size() : 1 + d.pick(4);
  Dims shape{channels, x[1]};
  int64_t products = channels * count_of(x);
  for (int64_t a = 2; a < rank(x); ++a) {
    shape.push_back(std::min<int64_t>(x[static_cast<size_t>(a)], 1 + d.pick(3)));
    products *= shape.back();
  }
  if (products > d.scale.most_convolved || channels * count_of(x) / x[1] > d.scale.most_elements)
    return false;
  s.n.j = 1 + d.pick(2);
  s.n.k = d.pick(2);
  const DType t = dtype_of_x(d, s);
  s.args.push_back(d.input(shape, t));
  s.args.push_back(d.any({channels}, t));
  return true;
}
bool depthwise(Drawer& d, Step& s) {
  const Dims x = shape_of_x(d, s);
  if (rank(x) < 3 || count_of(x) == 0) return false;
  Dims shape{x[1], 1};
  for (int64_t a = 2; a < rank(x); ++a)
    shape.push_back(std::min<int64_t>(x[static_cast<size_t>(a)], 2));
  s.n.j = 1;
  s.n.k = d.pick(2);
  const DType t = dtype_of_x(d, s);
  s.args.push_back(d.input(shape, t));
  s.args.push_back(d.any({x[1]}, t));
  return true;
}
bool turned(Drawer& d, Step& s) {
  const Dims x = shape_of_x(d, s);
  if (rank(x) < 3 || count_of(x) == 0 || count_of(x) > 300) return false;
  Dims shape{x[1], 1 + d.pick(3)};
  for (int64_t a = 2; a < rank(x); ++a) shape.push_back(1 + d.pick(2));
  s.n.j = 1 + d.pick(2);
  const DType t = dtype_of_x(d, s);
  s.args.push_back(d.input(shape, t));
  s.args.push_back(d.any({shape[1]}, t));
  return true;
}
bool window(Drawer& d, Step& s) {
  const Dims& x = shape_of_x(d, s);
  s.n.j = 1 + d.pick(2);
  return rank(x) == 4 && x[2] >= 2 && x[3] >= 2 && count_of(x) > 0;
}
bool keys(Drawer& d, Step& s) {
  const Dims x = shape_of_x(d, s);
  if (rank(x) < 3 || count_of(x) == 0) return false;
  Dims shape = x;
  s.n.keep = d.chance(40);
  if (!s.n.keep) shape[shape.size() - 2] = std::max<int64_t>(d.size(), 1);
  if (count_of(shape) > d.scale.most_elements ||
      count_of(x) / x.back() * shape[shape.size() - 2] > 4 * d.scale.most_elements ||
      count_of(x) * shape[shape.size() - 2] > d.scale.most_products)
    return false;
  const DType t = dtype_of_x(d, s);
  s.args.push_back(d.any(shape, t));
  s.args.push_back(d.any(shape, t));
  return true;
}
bool divided(Drawer& d, Step& s) {
  const Dims& x = shape_of_x(d, s);
  for (int64_t a = 0; a < rank(x); ++a)
    for (const int64_t n : {int64_t{4}, int64_t{2}, int64_t{16}}) {
      const int64_t extent = x[static_cast<size_t>(a)];
      if (rank(x) >= 4 || extent == 0 || extent % n != 0 || !d.chance(50)) continue;
      s.n.i = a;
      s.n.j = n;
      return true;
    }
  return false;
}
bool two_axes(Drawer& d, Step& s) {
  const int64_t n = rank(shape_of_x(d, s));
  if (n < 2) return false;
  s.n.i = d.pick(n);
  s.n.j = (s.n.i + 1 + d.pick(n - 1)) % n;
  return true;
}
bool order(Drawer& d, Step& s) {
  const int64_t n = rank(shape_of_x(d, s));
  if (n < 2) return false;
  s.n.axes.resize(static_cast<size_t>(n));
  std::iota(s.n.axes.begin(), s.n.axes.end(), 0);
  std::shuffle(s.n.axes.begin(), s.n.axes.end(), d.random);
  return true;
}
bool grown(Drawer& d, Step& s) {
  const Dims& x = shape_of_x(d, s);
  s.n.dims = x;
  const bool has_ones = std::count(x.begin(), x.end(), 1) != 0;
  for (int64_t& n : s.n.dims)
    if (n == 1) n = d.size();
  if (rank(x) < 4 && (!has_ones || d.chance(30))) s.n.dims.insert(s.n.dims.begin(), d.size());
  return count_of(s.n.dims) <= d.scale.most_elements && s.n.dims != x;
}
bool range(Drawer& d, Step& s) {
  const Dims& x = shape_of_x(d, s);
  if (x.empty()) return false;
  s.n.i = d.pick(rank(x));
  const int64_t n = x[static_cast<size_t>(s.n.i)];
  if (n < 2) return false;
  s.n.j = d.pick(n);
  s.n.k = s.n.j + 1 + d.pick(n - s.n.j);
  return true;
}
bool padded(Drawer& d, Step& s) {
  const Dims& x = shape_of_x(d, s);
  int64_t elements = 1;
  for (const int64_t n : x) {
    s.n.pads.emplace_back(d.pick(2), d.pick(2));
    elements *= n + s.n.pads.back().first + s.n.pads.back().second;
  }
  return !x.empty() && elements <= d.scale.most_elements;
}
bool growing(Drawer& d, Step& s) {
  return count_of(shape_of_x(d, s)) * 2 <= d.scale.most_elements && axis(d, s);
}
bool twin(Drawer& d, Step& s) {
  if (!growing(d, s) || rank(shape_of_x(d, s)) >= 4) return false;
  s.args.push_back(d.any(d.shape(s.args[0]), dtype_of_x(d, s)));
  return true;
}
bool matrix(Drawer& d, Step& s) {
  const Dims& x = shape_of_x(d, s);
  s.n.j = d.pick(5);
  return rank(x) >= 2 && count_of(x) > 0;
}
bool lookup(Drawer& d, Step& s) {
  if (!axis(d, s)) return false;
  const Dims x = shape_of_x(d, s);
  const int64_t n = x[static_cast<size_t>(s.n.i)];
  Dims shape = x;
  shape[static_cast<size_t>(s.n.i)] = std::max<int64_t>(d.size(), 1);
  if (count_of(shape) > d.scale.most_elements) return false;
  s.args.push_back(d.indices(shape, -n, n));
  return true;
}
bool rows_of(Drawer& d, Step& s) {
  if (!axis(d, s)) return false;
  const Dims x = shape_of_x(d, s);
  const int64_t n = x[static_cast<size_t>(s.n.i)];
  Dims shape{std::max<int64_t>(d.size(), 1)};
  if (d.chance(30) && rank(x) < 4) shape.push_back(2);
  if (count_of(x) / n * count_of(shape) > d.scale.most_elements) return false;
  s.args.push_back(d.indices(shape, 0, n));
  return true;
}
bool scattered(Drawer& d, Step& s) {
  if (!axis(d, s)) return false;
  const Dims x = shape_of_x(d, s);
  if (count_of(x) == 0 || count_of(x) > 400) return false;
  Dims shape = x;
  shape[static_cast<size_t>(s.n.i)] = 1 + d.pick(5);
  const int64_t n = x[static_cast<size_t>(s.n.i)];
  const DType t = dtype_of_x(d, s);
  s.args.push_back(d.indices(shape, 0, n));
  s.args.push_back(d.any(shape, t));
  return true;
}
namespace {
/// x becomes an input, or what an assignment made of one: only those have storage of their own.
bool choose_target(Drawer& d, Step& s) {
  std::vector<int> found;
  for (int k = -static_cast<int>(d.given.size()); k < static_cast<int>(d.results.size()); ++k) {
    const bool has_storage = k < 0 ? !d.program.inputs[static_cast<size_t>(-1 - k)].is_mask &&
                                         d.program.inputs[static_cast<size_t>(-1 - k)].times.empty()
                                   : rows()[d.program.steps[static_cast<size_t>(k)].row].is_assign;
    if (has_storage && d.is_alive(k) && !is_bool(d.of(k).dtype) && count_of(d.shape(k)) > 0)
      found.push_back(k);
  }
  if (found.empty()) return false;
  s.args[0] = found[static_cast<size_t>(d.pick(static_cast<int64_t>(found.size())))];
  return true;
}
}  // namespace
bool assigned(Drawer& d, Step& s) {
  if (!choose_target(d, s)) return false;
  const Judged& x = d.of(s.args[0]);
  s.args.push_back(d.any(x.shape, x.dtype));
  return true;
}
bool assigned_part(Drawer& d, Step& s) {
  if (!choose_target(d, s) || !range(d, s)) return false;
  Dims shape = d.shape(s.args[0]);
  shape[static_cast<size_t>(s.n.i)] = s.n.k - s.n.j;
  s.args.push_back(d.any(shape, dtype_of_x(d, s)));
  return true;
}
namespace {
/// An axis with room for the length at its most.
bool roomy_axis(Drawer& d, Step& s) {
  if (!d.has_length()) return false;
  const Dims& x = shape_of_x(d, s);
  std::vector<int64_t> found;
  for (int64_t a = 0; a < rank(x); ++a)
    if (x[static_cast<size_t>(a)] >= d.program.most && d.is_fixed(s.args[0], a)) found.push_back(a);
  if (found.empty()) return false;
  s.n.i = found[static_cast<size_t>(d.pick(std::ssize(found)))];
  return true;
}
bool roomy_target(Drawer& d, Step& s) {
  if (!d.has_length()) return false;
  for (int tries = 0; tries < 4; ++tries)
    if (choose_target(d, s) && roomy_axis(d, s)) return true;
  // A cache of a few rows, as wide as something there is.
  const int like = d.newest_where([&](const Judged& v) {
    return !v.shape.empty() && !is_bool(v.dtype) && count_of(v.shape) <= 128;
  });
  if (like == INT32_MIN) return false;
  Dims shape = d.shape(like);
  s.n.i = d.pick(rank(shape));
  shape[static_cast<size_t>(s.n.i)] = d.program.most;
  s.args[0] = d.input(shape, d.of(like).dtype);
  return d.is_fixed(s.args[0], 0) && d.program.inputs.back().times.empty();
}
bool assigned_rows(Drawer& d, Step& s, int64_t count) {
  if (!roomy_target(d, s)) return false;
  Dims shape = d.shape(s.args[0]);
  shape[static_cast<size_t>(s.n.i)] = count;
  s.args.push_back(d.any(shape, dtype_of_x(d, s)));
  return true;
}
}  // namespace
bool first_rows(Drawer& d, Step& s) { return roomy_axis(d, s); }
bool last_row(Drawer& d, Step& s) {
  const Dims& x = shape_of_x(d, s);
  if (!d.has_length() || x.empty()) return false;
  s.n.i = d.pick(rank(x));
  return x[static_cast<size_t>(s.n.i)] >= d.program.most ||
         d.shape_of_variable(s.args[0]).size(s.n.i) == SymInt(*d.variable);
}
bool assigned_first(Drawer& d, Step& s) { return assigned_rows(d, s, d.length); }
bool assigned_last(Drawer& d, Step& s) { return assigned_rows(d, s, 1); }

}  // namespace draw

namespace {

/// Adds the step if it can be judged, hiding what cannot where that is little.
bool try_step(Drawer& d, size_t row) {
  const Row& r = rows()[row];
  const std::string_view takes = r.takes;
  const auto fits = [&](const Judged& v) {
    return takes.find(is_float(v.dtype)  ? 'f'
                      : is_bool(v.dtype) ? 'b'
                                         : 'i') != std::string_view::npos;
  };
  Step s{row, {}, {}};
  const size_t inputs_before = d.program.inputs.size();
  const auto undo = [&] {
    d.forget_inputs(inputs_before);
    return false;
  };
  const int x = d.newest_where(fits);
  if (x == INT32_MIN) return false;
  s.args.push_back(x);
  if (!r.draw(d, s)) return undo();
  if (d.has_length()) {
    s.n.length = d.length;
    // Where the API wants a number there is no variable.
    if (std::string_view(r.text).find("constant()") != std::string_view::npos) {
      const Tensor& shape = d.shape_of_variable(s.args[0]);
      if (shape.rank() < 2 || !shape.size(1).is_const()) return undo();
    }
  }
  std::vector<const Judged*> args;
  for (const int a : s.args) args.push_back(&d.of(a));
  std::vector<bool> hidden;
  std::string reason;
  std::optional<Judged> made = judge_step(s, args, &hidden, &reason);
  if (!made || count_of(made->shape) > d.scale.most_elements || made->shape.size() > 5)
    return undo();
  const auto num_hidden = std::count(hidden.begin(), hidden.end(), true);
  if (num_hidden * 20 > static_cast<int64_t>(hidden.size())) return undo();
  if (d.has_length() && num_hidden != 0) return undo();
  if (is_float(made->dtype) && made->values.size() > 4 && d.chance(90) &&
      std::all_of(made->values.begin(), made->values.end(),
                  [&](double v) { return v == made->values[0]; }))
    return undo();
  if (d.has_length() && !d.judge_at_others(s)) return undo();
  if (r.is_assign) {
    if (num_hidden != 0) return undo();
    // Whatever shares storage with the target has the new contents now.
    const Node* target = d.of(s.args[0]).nominal.node().get();
    for (size_t k = 0; k < d.results.size(); ++k)
      if (d.results[k].nominal.node().get() == target) d.is_dead[k] = true;
    for (size_t k = 0; k < d.given.size(); ++k)
      if (d.given[k].nominal.node().get() == target) d.is_input_dead[k] = true;
  }
  d.program.steps.push_back(s);
  d.results.push_back(std::move(*made));
  d.is_dead.push_back(false);
  if (num_hidden == 0) return true;
  const Judged& shown = d.results.back();
  Step hide{kHideRow + (is_bool(shown.dtype) ? 1 : 0),
            {static_cast<int>(d.results.size()) - 1, d.mask(shown.shape, hidden)},
            {}};
  const std::vector<const Judged*> both{&d.of(hide.args[0]), &d.of(hide.args[1])};
  std::optional<Judged> rest = judge_step(hide, both, &hidden, &reason);
  // What is hidden is used nowhere else.
  d.is_dead.back() = true;
  d.program.steps.push_back(hide);
  d.results.push_back(std::move(*rest));
  d.is_dead.push_back(false);
  return true;
}

/// What models do: a product of an activation, then a norm of it, over rows that are read twice.
/// Chosen one by one such chains would be rare.
bool is_activation(const Row& r) { return r.noise == Noise::kMath && r.draw == draw::nothing; }
bool is_product(const Row& r) { return std::string_view(r.text).find("x * y") == 0; }
bool is_norm(const Row& r) {
  const std::string_view text = r.text;
  return text.find("norm(") != std::string_view::npos ||
         text.find("softmax") != std::string_view::npos ||
         text.find("- x.mean") != std::string_view::npos ||
         text.find("var(") != std::string_view::npos;
}
/// Whether a row fits what the last step was; everything does without one.
bool follows(const Row& row, const Row& last) {
  if (is_activation(last)) return is_product(row) || is_norm(row);
  return is_norm(row) || is_activation(row);
}

bool is_left_out(const Row& row) {
  const char* words = std::getenv("BM_RANDOM_WITHOUT");
  std::stringstream parts(words == nullptr ? "" : words);
  for (std::string word; std::getline(parts, word, ',');)
    if (!word.empty() && std::string_view(row.text).find(word) != std::string_view::npos)
      return true;
  return false;
}

}  // namespace

Case draw_case(uint64_t seed, Size size) {
  Drawer d(seed, size);
  const auto fresh_shape = [&] {
    std::vector<int64_t> shape;
    for (int64_t n = d.has_products ? 2 + d.pick(3) : 1 + d.pick(4); n > 0; --n)
      shape.push_back(d.size());
    const int64_t room = d.scale.most_elements / (is_long(seed, size) ? d.length : 1);
    while (count_of(shape) > room) shape.pop_back();
    if (shape.empty()) shape.push_back(1);
    if (d.has_length()) shape[static_cast<size_t>(d.pick(std::ssize(shape)))] = d.length;
    return shape;
  };
  d.input(fresh_shape(), d.real);
  d.input(fresh_shape(), d.real);
  if (d.chance(40)) d.input(fresh_shape(), d.whole);
  // BM_RANDOM_WITHOUT: operations left out, to look behind a failure that is known.
  std::vector<int> weights;
  constexpr int kMoreProducts = 12, kMoreAttention = 30;
  for (const Row& r : rows()) {
    const bool is_wanted = r.draw == draw::right || r.draw == draw::linear ||
                           r.draw == draw::transposed || r.draw == draw::kernel ||
                           r.draw == draw::keys;
    const bool is_attention = r.draw == draw::keys || r.draw == draw::grouped ||
                              r.draw == draw::masked || r.draw == draw::decoded;
    const int more = d.has_attention               ? (is_attention ? kMoreAttention : 1)
                     : d.has_products && is_wanted ? kMoreProducts
                                                   : 1;
    weights.push_back(is_left_out(r) ? 0 : more * r.weight);
  }
  const int total = std::accumulate(weights.begin(), weights.end(), 0);
  const auto wanted = static_cast<size_t>(d.scale.fewest_steps + d.pick(d.scale.more_steps));
  for (int tries = 0; tries < 1000 && d.program.steps.size() < wanted; ++tries) {
    int64_t at = d.pick(total);
    size_t row = 0;
    while (at >= weights[row]) at -= weights[row++];
    const Row* last = d.program.steps.empty() ? nullptr : &rows()[d.program.steps.back().row];
    const bool is_chain = last != nullptr && (is_activation(*last) || is_product(*last));
    if (is_chain && d.chance(60) && !follows(rows()[row], *last)) continue;
    d.prefers_newest = is_chain;
    try_step(d, row);
  }
  // Outputs: what nobody uses, at most four, and one that somebody does.
  std::vector<bool> is_used(d.results.size());
  for (const Step& s : d.program.steps)
    for (const int a : s.args)
      if (a >= 0) is_used[static_cast<size_t>(a)] = true;
  for (int k = static_cast<int>(d.results.size()); k-- > 0;)
    if (!is_used[static_cast<size_t>(k)] && !d.is_dead[static_cast<size_t>(k)] &&
        d.program.outputs.size() < 4)
      d.program.outputs.push_back(k);
  if (!d.results.empty()) {
    const int k = static_cast<int>(d.pick(static_cast<int64_t>(d.results.size())));
    if (is_used[static_cast<size_t>(k)] && !d.is_dead[static_cast<size_t>(k)])
      d.program.outputs.push_back(k);
  }
  for (Step& s : d.program.steps) s.n.length = 0;
  std::vector<Case> fixed;
  for (const int64_t n : d.program.lengths) {
    if (n == d.length) {
      fixed.push_back({at_length(d.program, n), d.results});
      continue;
    }
    const auto other = std::ranges::find(d.others, n, &Drawer::AtLength::length);
    fixed.push_back({at_length(d.program, n), std::move(other->results)});
  }
  if (!fixed.empty()) d.results = fixed[0].results;
  return {std::move(d.program), std::move(d.results), std::move(fixed)};
}

}  // namespace bm::test
