#include "runtime/work_log.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace bm::runtime {
namespace {

// Several streams share one driver's device, which keeps the error of the first that lost it.
constexpr std::string_view kMark = ": device lost, ";

}  // namespace

void WorkLog::note(uint64_t value, const What& what, const char* queue) {
  const std::string_view name = what.kernel.empty() ? what.name : what.kernel;
  Work& work = work_[value % kKept];
  work.value.store(0, std::memory_order_relaxed);
  // Release, here and below: not before the store above. Costs a plain store on x86.
  work.queue.store(queue, std::memory_order_release);
  work.is_kernel.store(!what.kernel.empty(), std::memory_order_release);
  work.copied_bytes.store(what.copied_bytes, std::memory_order_release);
  const size_t length = std::min(name.size(), kNameBytes);
  for (size_t at = 0; at < length; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    // Two copies, so that the size of the usual one is known.
    if (length - at >= sizeof word)
      std::memcpy(&word, name.data() + at, sizeof word);
    else
      std::memcpy(&word, name.data() + at, length - at);
    work.words[at / sizeof word].store(word, std::memory_order_release);
  }
  work.length.store(length, std::memory_order_release);
  work.value.store(value, std::memory_order_release);
}

WorkLog::Kept WorkLog::read(uint64_t value) const {
  const Work& work = work_[value % kKept];
  Kept kept{"work whose name is not kept any more", "a"};
  if (work.value.load(std::memory_order_acquire) != value) return kept;
  std::array<uint64_t, kWords> words;
  for (size_t i = 0; i < kWords; ++i) words[i] = work.words[i].load(std::memory_order_acquire);
  const size_t length = std::min<size_t>(work.length.load(std::memory_order_acquire), kNameBytes);
  const uint64_t bytes = work.copied_bytes.load(std::memory_order_acquire);
  const bool is_kernel = work.is_kernel.load(std::memory_order_acquire);
  const char* const queue = work.queue.load(std::memory_order_acquire);
  if (work.value.load(std::memory_order_relaxed) != value) return kept;
  std::string name(length, 0);
  std::memcpy(name.data(), words.data(), length);
  kept.queue = queue;
  kept.name = is_kernel     ? fmt::format("kernel '{}'", name)
              : bytes != 0  ? fmt::format("a copy of {} bytes", bytes)
              : length != 0 ? std::move(name)
                            : "a write or a wait";
  return kept;
}

Error WorkLog::lost(const std::string& device, Error cause, uint64_t completed,
                    uint64_t last) const {
  if (is_loss(cause)) return cause;
  std::string text = device;
  text += kMark;
  if (completed < last) {
    const Kept work = read(completed + 1);
    text += fmt::format("{} queue at {} (submission {} of {})", work.queue, work.name,
                        completed + 1, last);
  } else {
    text += "no submission was in flight";
  }
  if (completed == 0)
    text += "; nothing completed before";
  else
    text += fmt::format("; last completed: {} (submission {})", read(completed).name, completed);
  cause.message = fmt::format("{}; cause: {}", text, cause.message);
  return cause;
}

bool is_loss(const Error& error) { return error.message.find(kMark) != std::string::npos; }

}  // namespace bm::runtime
