#include "drivers/hcq/work_log.h"

#include <algorithm>
#include <cstring>
#include <variant>

#include "runtime/base/result.h"

namespace bm::hcq {

void WorkLog::note_kernel(std::string_view name) {
  std::array<char, kBytes>& entry = names_[dispatches_++ % kNames];
  const size_t length = std::min(name.size(), kBytes - 1);
  std::memcpy(entry.data(), name.data(), length);
  entry[length] = '\0';
  is_replay_last_ = false;
}

void WorkLog::note_replay(std::shared_ptr<const std::string> names) {
  replayed_ = std::move(names);
  is_replay_last_ = true;
}

void WorkLog::note(std::span<const hal::Command> commands) {
  for (const hal::Command& command : commands) {
    if (const auto* copy = std::get_if<hal::Copy>(&command))
      copies_[next_copy_++ % copies_.size()] = *copy;
    if (const auto* wait = std::get_if<hal::Wait>(&command))
      waits_[next_wait_++ % waits_.size()] = *wait;
  }
}

std::string WorkLog::kernels(bool has_count) const {
  std::string text;
  for (size_t i = 0; i < kNames; ++i) {
    const char* name = names_[(dispatches_ + i) % kNames].data();
    if (*name != '\0') text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
  }
  if (has_count && !text.empty()) text += fmt::format(" (dispatch {})", dispatches_);
  if (replayed_ && is_replay_last_)
    text = text.empty() ? *replayed_ : fmt::format("{}, then {}", text, *replayed_);
  return text.empty() ? "none yet" : text;
}

std::string WorkLog::suspects(const MemoryPool& pool) const {
  std::string text;
  for (size_t i = 0; i < copies_.size(); ++i) {
    const hal::Copy& copy = copies_[(next_copy_ + i) % copies_.size()];
    const uint64_t from = hal::raw(copy.src), to = hal::raw(copy.dst);
    for (const uint64_t side : {from, to}) {
      const uint64_t gap = pool.first_gap(side, copy.bytes);
      if (gap == side + copy.bytes) continue;
      text += fmt::format("; copy of {} bytes from {:#x} to {:#x} touches {:#x} ({})", copy.bytes,
                          from, to, gap, pool.describe(gap));
    }
  }
  return text;
}

std::string WorkLog::unmet(const MemoryPool& pool) const {
  std::string text;
  for (size_t i = 0; i < waits_.size(); ++i) {
    const hal::Wait& wait = waits_[(next_wait_ + i) % waits_.size()];
    const HostView word = pool.readable(hal::raw(wait.signal), sizeof(uint64_t));
    if (!word) continue;
    const uint64_t now = word.load_acquire<uint64_t>(0);
    if (now >= wait.value) continue;
    text += fmt::format("; a queue may wait at {:#x} for value {}, it is {}", hal::raw(wait.signal),
                        wait.value, now);
  }
  return text;
}

}  // namespace bm::hcq
