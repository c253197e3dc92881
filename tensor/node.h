#pragma once
// Nodes of the lazy tensor graph. Immutable once made, except that realising one gives it a buffer.

#include <cstdint>
#include <memory>
#include <vector>

#include "compiler/ir/dtype.h"
#include "compiler/ir/node.h"
#include "runtime/buffer.h"
#include "runtime/device.h"
#include "tensor/symint.h"

namespace bm {

enum class NodeKind : uint8_t {
  kBuffer,    ///< has storage; row-major over the shape's largest values
  kConst,     ///< shape []: `scalar`
  kIota,      ///< shape [n], int64: 0, 1, …
  kVarValue,  ///< shape [], int64: value of syms[0] when realised
  kAlu,       ///< elementwise `op` on sources of equal shape
  kCast,      ///< to `dtype`
  kBitcast,   ///< to `dtype` of equal size
  kReduce,    ///< `reduce_op` over axes `ints` (sorted); reduced axes stay with size 1
  kScan,      ///< `reduce_op` of the elements so far along axis ints[0]
  kTopK,      ///< int64: the shape[ints[0]] smallest elements along axis ints[0], in order
  kReshape,
  kPermute,     ///< ints[i] = source axis of axis i
  kExpand,      ///< axes of size 1 grow
  kPad,         ///< syms[2i], syms[2i+1] = elements before and after axis i; value `scalar`
  kShrink,      ///< syms[2i], syms[2i+1] = begin and size of axis i
  kFlip,        ///< ints = axes
  kGather,      ///< src[0][…, src[1][…] on axis ints[0], …]; shape of src[1]; out of range → 0
  kContiguous,  ///< same value, forced into its own storage
  kCopy,        ///< same value on another device
};

struct Node;
using NodePtr = std::shared_ptr<Node>;

/// Constant as both kinds of number; dtype decides which one counts.
struct Scalar {
  int64_t i = 0;
  double f = 0;
};

/// Why the contents of storage may no longer be read.
enum class Gone : uint8_t {
  kNo,
  kOverwritten,  ///< output of a captured program that has run again since
  kDonated,      ///< argument whose memory a captured program took over
};

/// Of the capture that records on this thread; 0: none. Unique in the process.
uint64_t current_capture_id();

struct Node {
  NodeKind kind = NodeKind::kConst;
  ir::Op op = ir::Op::kConst;
  ir::ReduceOp reduce_op = ir::ReduceOp::kSum;
  DType dtype = DType::kF32;
  runtime::Device* device = nullptr;
  Shape shape;
  std::vector<NodePtr> src;
  std::vector<int64_t> ints;
  std::vector<SymInt> syms;
  Scalar scalar;

  bool is_weak = false;  ///< kConst made from a C++ number: adapts to the other operand's dtype

  /// Set once realised; then src is empty and kind is kBuffer.
  runtime::Buffer buffer;
  /// Of storage and of views of it: unrealised nodes that read the present contents. An assign
  /// realises those first, so they keep the old contents. Guarded by a striped lock
  /// (primitives.cpp).
  std::vector<std::weak_ptr<Node>> readers;

  uint64_t capture = current_capture_id();  ///< in which it was made
  bool is_watched = false;  ///< lazy, and computed within kernels of a captured program
  Gone gone = Gone::kNo;

  bool is_realized() const { return kind == NodeKind::kBuffer; }
  Node() = default;
  Node(const Node&) = default;
  Node(Node&&) = default;  // the destructor would take it away: every new node would be copied
  ~Node();                 // iterative: long chains must not recurse
};

bool is_movement(NodeKind kind);

/// Throws Exception(kInvalidArgument): what is wrong with reading `n`.
[[noreturn]] void raise_gone(const Node& n);
inline void check_readable(const Node& n) {
  if (n.gone != Gone::kNo) [[unlikely]]
    raise_gone(n);
}

}  // namespace bm
