#pragma once
// Writing through a view on the host, for the interpreting device.

#include <memory>
#include <span>
#include <vector>

#include "tensor/node.h"

namespace bm {

/// Stores `value` (row-major over the largest sizes of `shape`) into storage `out` with
/// `base_strides` through `chain`: movement nodes from the target down to the storage. `item`:
/// bytes per element.
Status interpret_assign(std::span<const std::shared_ptr<Node>> chain, const Shape& shape,
                        std::span<const int64_t> base_strides, int64_t item, const std::byte* value,
                        std::byte* out);

}  // namespace bm
