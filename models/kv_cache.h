#pragma once
// KV cache: keys and values as they are kept, vectors of one position after the other.

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace bm::models {

/// Bytes of a device's memory that nobody uses, within what this process may have of it.
uint64_t free_memory(runtime::Device& device);

/// Vectors of positions, [capacity, heads, length]. Of kI8, each block of 32 numbers is int8 codes
/// with a float16 scale, as in Q8_0; where 32 does not divide the length, the blocks are the
/// largest power of two that does.
class KvRows {
 public:
  KvRows() = default;
  /// `type`: kF32, kF16 or kI8. Memory is not filled: a position is written before it is read.
  /// Throws: Exception (kOutOfMemory, device errors).
  KvRows(int64_t capacity, int64_t heads, int64_t length, DType type, const std::string& device);

  bool is_valid() const { return numbers_.is_valid(); }
  DType type() const { return numbers_.dtype(); }
  runtime::Device& device() const { return numbers_.device(); }
  static uint64_t bytes_per_position(int64_t heads, int64_t length, DType type);
  /// Positions `first` … of x [count, heads, length].
  void store(const SymInt& first, const SymInt& count, const Tensor& x);
  /// Positions 0 … end − 1: [end, heads, length] float32.
  Tensor load(const SymInt& end) const;
  /// Positions by number: index [n] → [n, heads, length] float32. `is_copied`: into memory of their
  /// own first, as they are stored.
  Tensor take(const Tensor& index, bool is_copied = false) const;
  /// Room for `capacity` positions, the first `used` with what they have. Throws as above, and is
  /// as before then. Programs that captured this one write to the old memory.
  void grow(int64_t capacity, int64_t used);

 private:
  Tensor restored(const Tensor& numbers, const Tensor& scales) const;
  int64_t block() const;
  Tensor numbers_, scales_;
};

/// Rotary tables of positions 0 … on one device, [length, 1, rotated length]; sines carry the
/// pair's sign. Invalid where nothing is rotated.
struct RopeTable {
  Tensor cosines, sines;
};
struct RopeTables {
  RopeTable all, local;  ///< of blocks that see everything, and of those with a window
};

/// Keys and values of every position so far, one pair per block, of [kv heads, head length].
/// With latent attention, of both together: keys [1, components + rotated length], and no values.
struct KvCache {
  static constexpr int64_t kFirstCapacity = 1024;  ///< of caches that grow

  DType type = DType::kF16;
  int64_t capacity = 0;  ///< positions
  std::vector<KvRows> keys, values;
  /// Of recurrent blocks: the convolution's inputs [channels, kernel − 1], and the state of a delta
  /// network [heads, length, length].
  std::vector<Tensor> inputs, states;
  /// Of blocks that read an encoded text: its keys and values, of `encoded` tokens.
  std::vector<KvRows> cross_keys, cross_values;
  std::vector<KvRows> index_keys;  ///< of blocks with an indexer, [1, its length]
  Tensor chosen;                   ///< while a step is described: what the last one chose
  SymInt encoded;
  std::vector<RopeTables> rope;  ///< one per device, of `capacity` positions
};

}  // namespace bm::models
