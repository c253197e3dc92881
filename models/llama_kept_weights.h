#pragma once
// Hot restart: weights in memory of a device that outlives the process. What an earlier process
// left there is verified by a kernel and used as it is; else it is uploaded and recorded.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "models/gguf.h"
#include "runtime/buffer.h"
#include "runtime/device.h"
#include "runtime/hal/kept_memory.h"
#include "tensor/tensor.h"

namespace bm::models {

/// Whether weights can stay on a device. Errors: kUnsupported, naming the device and what it takes.
Status can_keep_weights(runtime::Device& device);

/// Checksum over the 4-byte words of `bytes` (a multiple of 4), computed on its device: every word
/// is mixed with its place, and two different mixtures are added up. Whatever changes one word
/// changes it; other changes pass with a chance of about 2^-64. No defence against who means it.
uint64_t checksum_on_device(const runtime::Buffer& bytes);

/// Weights lie in few ranges of the device, tensor behind tensor in the order of loading: one
/// record, one mapping and one checksum each.
class KeptWeights {
 public:
  /// What is loaded, in this order, and the most it takes on the device.
  struct Item {
    const GgufTensor* tensor = nullptr;
    uint64_t bytes = 0;
    bool is_packed = false;
  };
  /// Largest range with more than one tensor.
  static constexpr uint64_t kRangeBytes = 256 << 20;

  /// Attaches what is there and correct, allocates the rest, forgets the weights of other models.
  /// Errors: of can_keep_weights(), kOutOfMemory, of the device.
  static Result<std::unique_ptr<KeptWeights>> open(runtime::Device& device, const GgufFile& file,
                                                   std::vector<Item> items);

  /// Goes to the next item. Returns whether its bytes are there already.
  bool next();
  /// Memory for a part of the item. Throws: Exception (kInternal: more than the item said).
  Tensor make(const Shape& shape, DType dtype);
  /// Records what was uploaded. Errors: of the device.
  Status finish();

  uint64_t attached_bytes() const { return attached_bytes_; }
  uint64_t uploaded_bytes() const { return uploaded_bytes_; }

 private:
  struct Range {
    uint64_t bytes = 0;
    hal::KeptKey key;
    hal::Buffer* memory = nullptr;  ///< of `buffer`
    runtime::Buffer buffer;
    bool is_there = false;
  };
  struct Place {
    size_t range = 0;
    uint64_t offset = 0, end = 0;
  };
  KeptWeights(runtime::Device& device, hal::KeptMemory& memory)
      : device_(device), memory_(memory) {}
  void plan(const GgufFile& file, std::span<const Item> items);
  Status fill_in();
  Status take_over(Range& range, std::unique_ptr<hal::Buffer> memory);

  runtime::Device& device_;
  hal::KeptMemory& memory_;
  std::vector<Range> ranges_;
  std::vector<Place> places_;
  size_t next_ = 0;
  uint64_t attached_bytes_ = 0, uploaded_bytes_ = 0;
};

}  // namespace bm::models
