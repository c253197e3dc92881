#pragma once
// Arguments of a captured function: how each is bound to memory, and what of it is part of the key.
//
// A realised tensor, and a view that is one contiguous range of its storage, are bound by address:
// the range may be another one in every call. Any other view is bound by the storage it looks at,
// and its way there (offsets, sizes, order of axes) is part of the key. Lazy tensors are realised.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tensor/tensor.h"

namespace bm {

/// What one argument list looks like to the cache: tensors by value of their description, scalars
/// by value.
struct JitArguments {
  std::vector<Tensor*> tensors;
  std::vector<int64_t> scalars;
  const void* signature = nullptr;  ///< stands for the C++ types of the arguments
  void clear() {
    tensors.clear();
    scalars.clear();
  }
};

/// Description of one argument that calls of one capture have in common.
struct InputKey {
  Shape shape;
  DType dtype = DType::kF32;
  runtime::Device* device = nullptr;
  uint32_t slot = 0;
  Shape base_shape;                                ///< of the bound memory
  std::vector<std::shared_ptr<const Node>> views;  ///< from the argument down; empty: bound itself
};

/// The present call's arguments. Kept from call to call: no allocation once it has grown.
class JitInputs {
 public:
  /// Decides how each tensor is bound; nothing is realised yet. Throws bm::Exception when contents
  /// are gone.
  void describe(std::span<Tensor* const> tensors);
  bool matches(std::span<const InputKey> keys) const;
  std::vector<InputKey> keys() const;
  /// Storage and offset per slot; realises lazy arguments. The slots do not own the storage: it is
  /// the arguments', for as long as they live and keep it. Throws bm::Exception.
  void bind(std::vector<runtime::Buffer>* slots);
  /// Owning slots, and their sizes, which all calls of one key have in common: exactly the bytes in
  /// use. Throws bm::Exception.
  void bind_first(std::vector<runtime::Buffer>* slots);
  uint32_t num_slots() const { return num_slots_; }

 private:
  enum class Form : uint8_t {
    kWhole,  ///< realised, or will be
    kRange,  ///< contiguous part of a realised tensor
    kView,   ///< any other view of a realised tensor
  };
  struct Input {
    Tensor* tensor = nullptr;
    Form form = Form::kWhole;
    Node* base = nullptr;  ///< node with the memory; nullptr: not realised yet
    uint64_t offset = 0, bytes = 0;
    uint32_t slot = 0;
  };
  static bool overlaps(const Input& a, const Input& b);
  static bool is_same(const Input& a, const Input& b);
  static void measure(Input& in);
  void widen();

  std::vector<Input> inputs_;
  uint32_t num_slots_ = 0;
};

/// As JitInputs::bind in the ordinary call, which needs no JitInputs: every tensor is a realised
/// one that fits its key, and no key is of a view. False says nothing, and of the slots may be
/// bound some.
bool bind_whole(std::span<Tensor* const> tensors, std::span<const InputKey> keys,
                std::span<runtime::Buffer> slots);

/// Tensors that stand for the arguments while the function is captured: same memory, but nodes and
/// storages of their own, so that what the function reaches by other ways is not taken for them.
struct StandIns {
  std::vector<Tensor> tensors;         ///< one per argument
  std::vector<runtime::Buffer> slots;  ///< one per slot
  /// Slot of a stand-in's storage, or -1.
  int32_t slot_of(const runtime::Buffer& buffer) const;
};
StandIns make_stand_ins(std::span<const InputKey> keys, std::span<const runtime::Buffer> slots);

/// Whether two ranges share a byte of one storage.
bool overlaps(const runtime::Buffer& a, const runtime::Buffer& b);

}  // namespace bm
