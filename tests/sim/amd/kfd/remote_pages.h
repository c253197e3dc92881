#pragma once
// Memory of another process as if it were here: pages are copied when they are first reached, and
// the bytes that changed go back.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "tests/sim/notify/process.h"

namespace bm::sim::amd {

/// Thread: callers serialise.
class RemotePages {
 public:
  RemotePages(std::shared_ptr<notify::Process> process, uint64_t address, uint64_t bytes);
  ~RemotePages();
  /// Contiguous view, or nullptr when the process has nothing there (any more).
  std::byte* at(uint64_t offset, uint64_t bytes);
  /// Writes changed bytes back and forgets the copies: what the owner writes beside them survives.
  void flush();

 private:
  std::shared_ptr<notify::Process> process_;
  const uint64_t address_, bytes_;
  std::byte* now_ = nullptr;
  std::map<uint64_t, std::vector<std::byte>> was_;  ///< by offset of a run of pages
  std::vector<bool> is_loaded_;
};

}  // namespace bm::sim::amd
