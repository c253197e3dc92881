#include "tensor/reshape.h"

#include "tensor/exception.h"

namespace bm {
namespace {

/// Product of dimensions of which at most one is symbolic; false when two are.
bool multiply(SymInt& product, const SymInt& d) {
  if (d.is_const()) {
    product = product * d.constant();
    return true;
  }
  if (!product.is_const()) return false;
  product = d * product.constant();
  return true;
}

tl::unexpected<Error> mismatch(const Shape& src, const Shape& dst) {
  return fail(Code::kInvalidArgument, "reshape: {} does not have as many elements as {}",
              to_string(src), to_string(dst));
}

bool has_inner_symbol(const Shape& shape, size_t begin, size_t end) {
  bool is_outermost = true;
  for (size_t i = begin; i < end; ++i) {
    if (!shape[i].is_const() && !is_outermost) return true;
    if (!shape[i].is(1)) is_outermost = false;
  }
  return false;
}

}  // namespace

Result<std::vector<ReshapeGroup>> reshape_groups(const Shape& src, const Shape& dst) {
  std::vector<ReshapeGroup> groups;
  const bool is_empty =
      std::any_of(src.begin(), src.end(), [](const SymInt& d) { return d.max() == 0; });
  if (is_empty) {
    if (max_elements(dst) != 0) return mismatch(src, dst);
    groups.push_back({0, src.size(), 0, dst.size()});
    return groups;
  }
  size_t i = 0, j = 0;
  while (i < src.size() || j < dst.size()) {
    ReshapeGroup g{i, i, j, j};
    SymInt left = 1, right = 1;
    do {
      // Grow the side that is behind; a symbolic product counts by its largest value.
      const bool grow_left =
          i < src.size() && (left.max() < right.max() ||
                             (left.max() == right.max() && (j == dst.size() || g.src_begin == i)));
      if (grow_left) {
        if (!multiply(left, src[i++])) return mismatch(src, dst);
      } else if (j < dst.size()) {
        if (!multiply(right, dst[j++])) return mismatch(src, dst);
      } else {
        return mismatch(src, dst);
      }
      g.src_end = i;
      g.dst_end = j;
    } while (!(left == right));
    // Trailing ones belong to the last group.
    while (i < src.size() && src[i].is(1) && j == dst.size()) g.src_end = ++i;
    while (j < dst.size() && dst[j].is(1) && i == src.size()) g.dst_end = ++j;
    const bool is_one_to_one = g.src_end - g.src_begin == 1 && g.dst_end - g.dst_begin == 1;
    if (!is_one_to_one && (has_inner_symbol(src, g.src_begin, g.src_end) ||
                           has_inner_symbol(dst, g.dst_begin, g.dst_end)))
      return fail(Code::kUnsupported,
                  "reshape from {} to {} would merge or split a symbolic axis behind another",
                  to_string(src), to_string(dst));
    groups.push_back(g);
  }
  return groups;
}

SymInt infer_dimension(const Shape& src, const Shape& wanted, size_t at) {
  SymInt have = 1, known = 1;
  bool is_simple = true;
  for (const SymInt& d : src) is_simple &= multiply(have, d);
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (i == at) continue;
    if (wanted[i].is(-1))
      raise(Code::kInvalidArgument, "reshape of {} to {}: only one dimension may be -1",
            to_string(src), to_string(wanted));
    is_simple &= multiply(known, wanted[i]);
  }
  const auto give_up = [&] {
    raise(Code::kInvalidArgument, "reshape of {} to {}: cannot infer the -1", to_string(src),
          to_string(wanted));
  };
  if (!is_simple) give_up();
  if (known.is_const()) {
    const int64_t k = known.constant();
    if (k == 0 || have.constant() % k != 0) give_up();
    SymInt out = have.constant() / k;
    for (const SymInt::Term& t : have.terms()) {
      if (t.coefficient % k != 0) give_up();
      out = out + SymInt(t.var) * (t.coefficient / k);
    }
    return out;
  }
  for (int64_t q = 1; q <= have.max(); ++q) {
    if (known * q == have) return q;
    if (known.max() * q > have.max()) break;
  }
  give_up();
  return 0;
}

}  // namespace bm
