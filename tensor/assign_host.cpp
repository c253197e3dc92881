#include "tensor/assign_host.h"

namespace bm {
namespace {

using Position = std::vector<int64_t>;

Position step_down(const Node& n, const Position& at) {
  const Shape& from = n.src[0]->shape;
  Position out(from.size(), 0);
  switch (n.kind) {
    case NodeKind::kPermute:
      for (size_t i = 0; i < at.size(); ++i) out[static_cast<size_t>(n.ints[i])] = at[i];
      return out;
    case NodeKind::kShrink:
      for (size_t i = 0; i < at.size(); ++i) out[i] = at[i] + n.syms[2 * i].value();
      return out;
    case NodeKind::kFlip:
      out = at;
      for (int64_t a : n.ints)
        out[static_cast<size_t>(a)] =
            from[static_cast<size_t>(a)].value() - 1 - at[static_cast<size_t>(a)];
      return out;
    case NodeKind::kReshape: {
      int64_t flat = 0;
      for (size_t i = 0; i < at.size(); ++i) flat = flat * n.shape[i].value() + at[i];
      for (size_t i = from.size(); i-- > 0;) {
        const int64_t d = from[i].value();
        out[i] = flat % d;
        flat /= d;
      }
      return out;
    }
    default: return at;
  }
}

}  // namespace

Status interpret_assign(std::span<const std::shared_ptr<Node>> chain, const Shape& shape,
                        std::span<const int64_t> base_strides, int64_t item, const std::byte* value,
                        std::byte* out) {
  const std::vector<int64_t> strides = strides_of(shape);
  Position at(shape.size(), 0);
  const int64_t count = elements_now(shape);
  for (int64_t i = 0; i < count; ++i) {
    int64_t from = 0, to = 0;
    for (size_t k = 0; k < at.size(); ++k) from += at[k] * strides[k];
    Position position = at;
    for (const auto& n : chain) position = step_down(*n, position);
    for (size_t k = 0; k < position.size(); ++k) to += position[k] * base_strides[k];
    std::memcpy(out + to * item, value + from * item, static_cast<size_t>(item));
    for (size_t k = at.size(); k-- > 0 && ++at[k] == shape[k].value();) at[k] = 0;
  }
  return {};
}

}  // namespace bm
