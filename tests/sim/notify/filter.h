#pragma once
// The seccomp filter of the program under test.

#include <cstdint>
#include <vector>

namespace bm::sim::notify {

/// Installs it on the calling thread for good and returns the descriptor notifications come from,
/// or -errno. `types` and `has_bare_requests` as in Options.
int install_filter(const std::vector<uint8_t>& types, bool has_bare_requests);

}  // namespace bm::sim::notify
