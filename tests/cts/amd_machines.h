#pragma once
// Simulated AMD machines as subjects of the conformance suite.

#include <utility>
#include <vector>

#include "drivers/amd/device.h"
#include "tests/cts/amd_kernels.h"
#include "tests/cts/cts.h"

namespace bm::cts {

struct AmdMachine {
  const char* name;
  const char* chip;
  amd::PacketMode packets;
};

/// Subjects of `count` machines; `make.template operator()<index>()` is that of one. A subject
/// opens its device by a plain function, so its index is part of the function's type.
template <size_t count, class Make>
std::vector<Subject> subjects_of(const Make& make) {
  return [&]<size_t... index>(std::index_sequence<index...>) {
    return std::vector<Subject> { make.template operator()<index>()... };
  }(std::make_index_sequence<count>());
}

}  // namespace bm::cts
