#include "tensor/jit_inputs.h"

#include <algorithm>

#include "tensor/primitives.h"

namespace bm {
namespace {

/// Kernels for GPUs may read several elements at once from where a tensor begins.
constexpr uint64_t kRangeAlign = 256;

uint64_t bytes_of(const Shape& shape, DType dtype) {
  return static_cast<uint64_t>(max_elements(shape) * item_size(dtype));
}

/// Elements from the start of n.src[0] to the start of `n`, if `n` is one contiguous part of it.
std::optional<int64_t> range_begin(const Node& n) {
  const Node& from = *n.src[0];
  if (!is_static(n.shape) || !is_static(from.shape)) return std::nullopt;
  if (n.kind == NodeKind::kReshape) return 0;
  if (n.kind != NodeKind::kShrink) return std::nullopt;
  int64_t begin = 0, stride = 1;
  bool is_whole = true;  // axes so far
  for (size_t i = n.shape.size(); i-- > 0;) {
    const int64_t size = n.shape[i].constant(), full = from.shape[i].constant();
    if (!n.syms[2 * i].is_const()) return std::nullopt;
    if (!is_whole && size != 1) return std::nullopt;
    begin += n.syms[2 * i].constant() * stride;
    stride *= full;
    is_whole = is_whole && size == full;
  }
  return begin;
}

bool needs_aligned_ranges(runtime::Device& device) {
  switch (device.hal().arch().vendor) {
    case hal::Vendor::kCpu:
    case hal::Vendor::kRef: return false;
    case hal::Vendor::kNull:
    case hal::Vendor::kAmd:
    case hal::Vendor::kNv:
    case hal::Vendor::kOpenCl: return true;
  }
  return true;
}

bool is_same_view(const Node& a, const Node& b) {
  return a.kind == b.kind && a.shape == b.shape && a.ints == b.ints && a.syms == b.syms &&
         a.scalar.i == b.scalar.i && a.scalar.f == b.scalar.f;
}

/// Without a share of `from`: that would be two atomic operations an input and replay.
void bind_slot(const runtime::Buffer& from, uint64_t offset, runtime::Buffer* slot) {
  slot->storage = runtime::StoragePtr(runtime::StoragePtr(), from.storage.get());
  slot->offset = offset;
}

inline bool is_same_shape(const Shape& a, const Shape& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].constant() != b[i].constant()) return false;
    if (!(a[i].is_const() && b[i].is_const()) && !(a[i] == b[i])) return false;
  }
  return true;
}

/// Memory of an argument under another identity.
class StandInStorage final : public runtime::Storage {
 public:
  explicit StandInStorage(runtime::StoragePtr real) : real_(std::move(real)) {
    if (real_->is_imported()) set_imported();
  }
  runtime::Device& device() const override { return real_->device(); }
  hal::GpuVa va() const override { return real_->va(); }
  uint64_t size() const override { return real_->size(); }
  std::byte* host() const override { return real_->host(); }
  Result<hal::GpuVa> va_on(runtime::Device& other) override { return real_->va_on(other); }
  void used_until(runtime::Point point) override { real_->used_until(point); }
  runtime::Point last_use() const override { return real_->last_use(); }
  std::vector<runtime::Point> uses() const override { return real_->uses(); }
  Status wait_idle() override { return real_->wait_idle(); }

 private:
  runtime::StoragePtr real_;
};

}  // namespace

bool overlaps(const runtime::Buffer& a, const runtime::Buffer& b) {
  return a.storage == b.storage && a.offset < b.offset + b.size && b.offset < a.offset + a.size;
}

bool JitInputs::overlaps(const Input& a, const Input& b) {
  return a.base && b.base && a.base->buffer.storage == b.base->buffer.storage &&
         a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

bool JitInputs::is_same(const Input& a, const Input& b) {
  return a.base && b.base && a.base->buffer.storage == b.base->buffer.storage &&
         a.offset == b.offset && a.bytes == b.bytes;
}

void JitInputs::describe(std::span<Tensor* const> tensors) {
  inputs_.resize(tensors.size());
  bool has_views = false;
  for (size_t i = 0; i < tensors.size(); ++i) {
    Input& in = inputs_[i];
    in = {.tensor = tensors[i], .slot = static_cast<uint32_t>(i)};
    Node* const top = tensors[i]->node().get();
    Node* n = top;
    int64_t begin = 0;
    bool is_range = true;
    while (is_movement(n->kind)) {
      const std::optional<int64_t> step = is_range ? range_begin(*n) : std::nullopt;
      is_range = step.has_value();
      begin += step.value_or(0);
      n = n->src[0].get();
    }
    if (!n->is_realized()) continue;  // to be computed into storage of its own
    check_readable(*n);               // before the function has done half of its work
    in.base = n;
    in.offset = n->buffer.offset;
    if (n == top) continue;
    has_views = true;
    in.form = Form::kView;
    const uint64_t skipped = static_cast<uint64_t>(begin * item_size(n->dtype));
    if (!is_range || (skipped % kRangeAlign != 0 && needs_aligned_ranges(*n->device))) continue;
    in.form = Form::kRange;
    in.offset += skipped;
  }
  num_slots_ = static_cast<uint32_t>(inputs_.size());
  if (has_views) widen();
}

void JitInputs::measure(Input& in) {
  if (!in.base) return;
  const Node& n = in.form == Form::kView ? *in.base : *in.tensor->node();
  in.bytes = bytes_of(n.shape, n.dtype);
}

/// Ranges that meet other arguments are bound as views, so that both see the same memory; views of
/// one tensor share a slot.
void JitInputs::widen() {
  for (Input& in : inputs_) measure(in);
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    for (Input& a : inputs_) {
      if (a.form != Form::kRange) continue;
      const bool meets = std::any_of(inputs_.begin(), inputs_.end(),
                                     [&](const Input& b) { return &a != &b && overlaps(a, b); });
      if (!meets) continue;
      a.form = Form::kView;
      a.offset = a.base->buffer.offset;
      a.bytes = bytes_of(a.base->shape, a.base->dtype);
      has_changed = true;
    }
  }
  num_slots_ = 0;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    Input& in = inputs_[i];
    const auto end = inputs_.begin() + static_cast<ptrdiff_t>(i);
    const auto twin = std::find_if(inputs_.begin(), end, [&](const Input& b) {
      return is_same(in, b) && (in.form == Form::kView || b.form == Form::kView) &&
             in.base->shape == b.base->shape && in.base->dtype == b.base->dtype;
    });
    in.slot = twin != end ? twin->slot : num_slots_++;
  }
}

bool JitInputs::matches(std::span<const InputKey> keys) const {
  if (keys.size() != inputs_.size()) return false;
  for (size_t i = 0; i < keys.size(); ++i) {
    const InputKey& key = keys[i];
    const Input& in = inputs_[i];
    const Tensor& t = *in.tensor;
    if (t.dtype() != key.dtype || &t.device() != key.device ||
        !is_same_shape(t.shape(), key.shape) || in.slot != key.slot ||
        (in.form == Form::kView) == key.views.empty())
      return false;
    const Node* n = t.node().get();
    for (const auto& view : key.views) {
      if (!is_movement(n->kind) || !is_same_view(*n, *view)) return false;
      n = n->src[0].get();
    }
    if (!key.views.empty() && (n != in.base || !(n->shape == key.base_shape))) return false;
  }
  return true;
}

std::vector<InputKey> JitInputs::keys() const {
  std::vector<InputKey> keys;
  for (const Input& in : inputs_) {
    InputKey key{.shape = in.tensor->shape(),
                 .dtype = in.tensor->dtype(),
                 .device = &in.tensor->device(),
                 .slot = in.slot,
                 .base_shape = in.tensor->shape(),
                 .views = {}};
    if (in.form == Form::kView) {
      key.base_shape = in.base->shape;
      for (const Node* n = in.tensor->node().get(); n != in.base; n = n->src[0].get()) {
        auto view = std::make_shared<Node>();
        view->kind = n->kind;
        view->dtype = n->dtype;
        view->device = n->device;
        view->shape = n->shape;
        view->ints = n->ints;
        view->syms = n->syms;
        view->scalar = n->scalar;
        key.views.push_back(std::move(view));
      }
    }
    keys.push_back(std::move(key));
  }
  return keys;
}

void JitInputs::bind(std::vector<runtime::Buffer>* slots) {
  for (Input& in : inputs_) {
    if (!in.base) {
      in.base = in.tensor->realize().node().get();
      in.offset = in.base->buffer.offset;
    }
    bind_slot(in.base->buffer, in.offset, &(*slots)[in.slot]);
  }
}

void JitInputs::bind_first(std::vector<runtime::Buffer>* slots) {
  bind(slots);
  for (Input& in : inputs_) {
    measure(in);
    runtime::Buffer& slot = (*slots)[in.slot];
    slot.storage = in.base->buffer.storage;
    // Storage has room for one byte even when there are no elements.
    slot.size = std::max<uint64_t>(in.bytes, 1);
  }
}

bool bind_whole(std::span<Tensor* const> tensors, std::span<const InputKey> keys,
                std::span<runtime::Buffer> slots) {
  if (tensors.size() != keys.size()) return false;
  for (size_t i = 0; i < keys.size(); ++i) {
    const InputKey& key = keys[i];
    const Node& n = *tensors[i]->node();
    if (key.slot != i || !n.is_realized() || n.gone != Gone::kNo || n.dtype != key.dtype ||
        n.device != key.device || !key.views.empty() || !is_same_shape(n.shape, key.shape))
      return false;
    bind_slot(n.buffer, n.buffer.offset, &slots[i]);
  }
  return true;
}

int32_t StandIns::slot_of(const runtime::Buffer& buffer) const {
  for (size_t i = 0; i < slots.size(); ++i)
    if (slots[i].storage == buffer.storage) return static_cast<int32_t>(i);
  return -1;
}

StandIns make_stand_ins(std::span<const InputKey> keys, std::span<const runtime::Buffer> slots) {
  StandIns out;
  for (const runtime::Buffer& slot : slots)
    out.slots.push_back({std::make_shared<StandInStorage>(slot.storage), slot.offset, slot.size});
  std::vector<NodePtr> bases(slots.size());
  for (const InputKey& key : keys) {
    NodePtr& base = bases[key.slot];
    if (!base) {
      base = std::make_shared<Node>();
      base->kind = NodeKind::kBuffer;
      base->dtype = key.dtype;
      base->device = key.device;
      base->shape = key.base_shape;
      base->buffer = out.slots[key.slot];
    }
    NodePtr node = base;
    for (size_t i = key.views.size(); i-- > 0;) {
      auto view = std::make_shared<Node>(*key.views[i]);
      view->capture = current_capture_id();
      view->src = {std::move(node)};
      register_reader(view);
      node = std::move(view);
    }
    out.tensors.emplace_back(std::move(node));
  }
  return out;
}

}  // namespace bm
