#include "drivers/hcq/host_shadow.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

namespace bm::hcq {
namespace {

using namespace std::chrono_literals;

// A transfer through a bridge takes as long as some hundred bytes in one that is sent anyway.
constexpr uint64_t kJoinHalves = 64;
constexpr uint32_t kEagerLooks = 64;  ///< without a pause, after something was submitted or came
constexpr std::chrono::microseconds kShortPause = 100us, kLongPause = 2ms;

uint64_t load(const uint64_t& word) {
  return std::atomic_ref<uint64_t>(const_cast<uint64_t&>(word)).load(std::memory_order_acquire);
}

size_t index_of(hal::QueueKind kind) { return kind == hal::QueueKind::kCompute ? 0 : 1; }

}  // namespace

Shadow::Shadow(std::unique_ptr<hal::Buffer> the_memory, std::byte* theirs)
    : va(hal::raw(the_memory->va())),
      bytes(the_memory->size()),
      memory(std::move(the_memory)),
      own(theirs == nullptr ? (bytes + 7) / 8 : 0),
      host(theirs == nullptr ? own.data() : reinterpret_cast<uint64_t*>(theirs)),
      last((bytes + 7) / 8) {}

HostShadows::HostShadows(HostPath& path) : path_(path), thread_([this] { run(); }) {}

HostShadows::~HostShadows() {
  stop();
  // The parent's, which nobody can join here.
  if (thread_.joinable()) static_cast<void>(new std::thread(std::move(thread_)));
  // Its thread waits there, in this copy for ever, and so would the end of what it waits for.
  if (fork_.is_parents()) static_cast<void>(calls_.release());
}

void HostShadows::stop() {
  if (fork_.is_parents()) return;  // the mutex may be held by a thread of the parent's
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    for (auto& queue : pending_) queue.clear();
  }
  calls_->wake.notify_all();
  calls_->progress.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<Shadow> HostShadows::add(std::unique_ptr<hal::Buffer> memory, std::byte* theirs) {
  auto shadow = std::make_shared<Shadow>(std::move(memory), theirs);
  const std::lock_guard lock(mutex_);
  shadows_[shadow->va] = shadow;
  return shadow;
}

void HostShadows::remove(const Shadow& shadow) {
  if (fork_.is_parents()) return;
  const std::lock_guard lock(mutex_);
  shadows_.erase(shadow.va);
}

std::shared_ptr<Shadow> HostShadows::find(uint64_t va) const {
  const std::lock_guard lock(mutex_);
  auto after = shadows_.upper_bound(va);
  if (after == shadows_.begin()) return nullptr;
  const auto& [start, shadow] = *std::prev(after);
  return va - start < shadow->bytes ? shadow : nullptr;
}

Status HostShadows::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

/// By commands that are not known to be done, or by another queue as a signal.
bool HostShadows::is_being_written(const Range& range) const {
  const uint64_t first = range.offset / 8 * 8, end = (range.offset + range.bytes + 7) / 8 * 8;
  const auto overlaps = [&](const Range& other) {
    return other.shadow == range.shadow && other.offset < end && other.offset + other.bytes > first;
  };
  const std::lock_guard lock(mutex_);
  for (const auto& queue : pending_)
    for (const Pending& pending : queue)
      if (overlaps(pending.step.signal) || std::ranges::any_of(pending.step.written, overlaps))
        return true;
  return false;
}

/// Looked at under the shadow's mutex: see expect().
Status HostShadows::push(const Range& range) {
  const std::lock_guard lock(range.shadow->mutex);
  return is_being_written(range) ? push_bytes(range) : push_runs(range);
}

Status HostShadows::push_bytes(const Range& range) {
  Shadow& shadow = *range.shadow;
  const uint64_t end = range.offset + range.bytes;
  for (uint64_t i = range.offset / 8; i * 8 < end; ++i) {
    const uint64_t mine = load(shadow.host[i]), known = shadow.last[i];
    if (mine == known) continue;
    for (uint64_t at = std::max(i * 8, range.offset); at < std::min(end, i * 8 + 8); ++at) {
      const uint64_t shift = at % 8 * 8, mask = uint64_t{0xff} << shift;
      if ((mine & mask) == (known & mask)) continue;
      const auto byte = static_cast<std::byte>(mine >> shift);
      BM_TRY(path_.write(shadow.va + at, {&byte, 1}));
      shadow.last[i] = (shadow.last[i] & ~mask) | (mine & mask);
    }
  }
  return {};
}

Status HostShadows::push_runs(const Range& range) {
  Shadow& shadow = *range.shadow;
  const auto half = [](const uint64_t* words, uint64_t at) {
    return static_cast<uint32_t>(load(words[at / 2]) >> (at % 2 * 32));
  };
  const uint64_t end = (range.offset + range.bytes + 7) / 8 * 2;
  std::vector<uint32_t> run;
  for (uint64_t at = range.offset / 8 * 2; at < end;) {
    if (half(shadow.host, at) == half(shadow.last.data(), at)) {
      ++at;
      continue;
    }
    run.clear();
    uint64_t changed = at;  // past the last one that did
    for (uint64_t next = at; next < end && next - changed <= kJoinHalves; ++next) {
      run.push_back(half(shadow.host, next));
      if (run.back() != half(shadow.last.data(), next)) changed = next + 1;
    }
    run.resize(changed - at);
    BM_TRY(path_.write(shadow.va + at * 4, std::as_bytes(std::span(run))));
    std::memcpy(reinterpret_cast<std::byte*>(shadow.last.data()) + at * 4, run.data(),
                run.size() * 4);
    at = changed;
  }
  return {};
}

/// Where commands may have written, what the host has changed meanwhile stays the host's. Nothing
/// is sent between the read and the merge: what was read would take it back.
Status HostShadows::pull(const Range& range) {
  Shadow& shadow = *range.shadow;
  const uint64_t first = range.offset / 8, end = (range.offset + range.bytes + 7) / 8;
  std::vector<uint64_t> there(end - first);
  const std::lock_guard lock(shadow.mutex);
  BM_TRY(path_.read(shadow.va + first * 8, std::as_writable_bytes(std::span(there))));
  for (uint64_t i = first; i < end; ++i) {
    const uint64_t now = there[i - first], known = shadow.last[i];
    uint64_t mine = load(shadow.host[i]);
    if (now == mine && now == known) continue;
    if (!range.is_all && now == known) continue;
    // Bytes next to the range are somebody else's: of a thread that writes them now, or of commands
    // whose results come with their own signal.
    const auto bytes_where = [&](const auto& is_so) {
      uint64_t mask = 0;
      for (uint64_t at = std::max(i * 8, range.offset);
           at < std::min(i * 8 + 8, range.offset + range.bytes); ++at)
        if (const uint64_t byte = uint64_t{0xff} << (at % 8 * 8); is_so(byte)) mask |= byte;
      return mask;
    };
    const auto merged = [&] {
      const uint64_t theirs = bytes_where(
          [&](uint64_t byte) { return range.is_all || (mine & byte) == (known & byte); });
      return (mine & ~theirs) | (now & theirs);
    };
    while (!std::atomic_ref<uint64_t>(shadow.host[i])
                .compare_exchange_weak(mine, merged(), std::memory_order_release))
      continue;
    const uint64_t seen = bytes_where([](uint64_t) { return true; });
    shadow.last[i] = (known & ~seen) | (now & seen);
  }
  return {};
}

/// A push that does not know of these commands yet may send unchanged bytes between changed ones:
/// it ends before they are submitted.
uint64_t HostShadows::expect(hal::QueueKind kind, std::vector<Step> steps) {
  std::vector<std::shared_ptr<Shadow>> written;
  uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    id = next_id_;
    if (is_stopping_) return id;
    for (Step& step : steps) {
      for (const Range& range : step.written) written.push_back(range.shadow);
      if (step.signal.shadow != nullptr) written.push_back(step.signal.shadow);
      pending_[index_of(kind)].push_back({next_id_++, std::move(step)});
    }
    calls_->wake.notify_all();
  }
  for (const auto& shadow : written) const std::lock_guard pushed(shadow->mutex);
  return id;
}

void HostShadows::drop(hal::QueueKind kind, uint64_t id) {
  const std::lock_guard lock(mutex_);
  std::erase_if(pending_[index_of(kind)], [&](const Pending& pending) { return pending.id >= id; });
}

bool HostShadows::wait_progress(uint64_t longest_ns) {
  std::unique_lock lock(mutex_);
  if (pending_[0].empty() && pending_[1].empty()) return false;
  const uint64_t before = turns_;
  calls_->progress.wait_for(lock, std::chrono::nanoseconds(longest_ns),
                            [&] { return turns_ != before || is_stopping_; });
  return true;
}

void HostShadows::run() {
  uint32_t idle = 0;
  for (uint64_t seen = 0;;) {
    {
      std::unique_lock lock(mutex_);
      const auto has_work = [this] {
        return is_stopping_ || (status_ && (!pending_[0].empty() || !pending_[1].empty()));
      };
      if (has_work() && idle > kEagerLooks)
        calls_->wake.wait_for(lock, idle > 4 * kEagerLooks ? kLongPause : kShortPause,
                              [&] { return is_stopping_ || next_id_ != seen; });
      calls_->wake.wait(lock, has_work);
      if (is_stopping_) return;
      if (std::exchange(seen, next_id_) != next_id_) idle = 0;
    }
    idle = look() ? 0 : idle + 1;
  }
}

bool HostShadows::look() {
  // What was expected before memory is read: what comes later may be signalled by an old value.
  Queues steps;
  std::array<std::vector<uint64_t>, 2> ids;
  {
    const std::lock_guard lock(mutex_);
    for (size_t queue = 0; queue < steps.size(); ++queue)
      for (const Pending& pending : pending_[queue]) {
        steps[queue].push_back(pending.step);
        ids[queue].push_back(pending.id);
      }
  }
  const auto forwarded = forward(steps);
  Status done = forwarded ? Status{} : tl::unexpected(forwarded.error());
  const bool is_late_write = forwarded && *forwarded;
  std::array<size_t, 2> count{};
  if (done) {
    const auto counted = count_finished(steps);
    if (counted)
      count = *counted;
    else
      done = tl::unexpected(counted.error());
  }
  if (is_late_write) path_.publish();
  std::vector<Step> finished;
  for (size_t queue = 0; queue < steps.size(); ++queue)
    finished.insert(finished.end(), steps[queue].begin(),
                    steps[queue].begin() + static_cast<ptrdiff_t>(count[queue]));
  for (const Step& step : finished)
    for (const Range& range : step.written)
      if (done) done = pull(range);
  if (done) finish(finished);
  const std::lock_guard lock(mutex_);
  // They were being written until the host had what they wrote: a push sent no old bytes over it.
  for (size_t queue = 0; queue < steps.size(); ++queue)
    if (done && count[queue] != 0)
      std::erase_if(pending_[queue], [&, last = ids[queue][count[queue] - 1]](
                                         const Pending& pending) { return pending.id <= last; });
  if (!done && status_) status_ = done;
  ++turns_;
  if (!finished.empty()) calls_->progress.notify_all();
  return !finished.empty() || is_late_write;
}

/// Steps of each queue, from its first on, whose signals have come. A signal that was read before
/// another came may have come before that one, and its commands may be what the other's waited for:
/// the words are read again until they tell nothing new.
Result<std::array<size_t, 2>> HostShadows::count_finished(const Queues& queues) {
  std::array<size_t, 2> count{}, before{};
  do {
    before = count;
    std::map<std::pair<Shadow*, uint64_t>, uint64_t> words;
    for (size_t queue = 0; queue < queues.size(); ++queue)
      for (size_t i = count[queue]; i < queues[queue].size(); ++i) {
        const Step& step = queues[queue][i];
        Shadow* const shadow = step.signal.shadow.get();
        if (shadow == nullptr) continue;
        const auto [word, is_new] = words.try_emplace({shadow, step.signal.offset}, 0);
        if (is_new)
          BM_TRY(path_.read(shadow->va + step.signal.offset,
                            std::as_writable_bytes(std::span(&word->second, 1))));
        if (word->second >= step.value) count[queue] = i + 1;
      }
  } while (count != before && !queues[0].empty() && !queues[1].empty());
  return count;
}

/// Words that queues wait for, where the host has written them. What any queue reads may have been
/// written before: the one that waits may start another.
Result<bool> HostShadows::forward(const Queues& queues) {
  struct Late {
    const Range* word;
    uint64_t known, value;
  };
  std::vector<Late> late;
  for (const auto& steps : queues)
    for (const Step& step : steps)
      for (const Range& word : step.awaited) {
        const std::lock_guard lock(word.shadow->mutex);
        const uint64_t index = word.offset / 8, value = load(word.shadow->host[index]);
        const uint64_t known = word.shadow->last[index];
        if (value != known) late.push_back({&word, known, value});
      }
  if (late.empty()) return false;
  for (const auto& steps : queues)
    for (const Step& step : steps)
      for (const Range& range : step.read) BM_TRY(push(range));
  // The values from before the data was looked at: newer ones are sent the next time, or were sent
  // with a submission.
  for (const auto& [word, known, value] : late) {
    const std::lock_guard lock(word->shadow->mutex);
    if (word->shadow->last[word->offset / 8] != known) continue;
    BM_TRY(path_.write(word->shadow->va + word->offset, std::as_bytes(std::span(&value, 1))));
    word->shadow->last[word->offset / 8] = value;
  }
  return true;
}

/// Signals last, each with the newest value whose data has come.
void HostShadows::finish(const std::vector<Step>& done) {
  for (const Step& step : done) {
    if (step.signal.shadow == nullptr) continue;
    Shadow& shadow = *step.signal.shadow;
    const uint64_t at = step.signal.offset / 8;
    const std::lock_guard lock(shadow.mutex);
    if (load(shadow.host[at]) != shadow.last[at] || shadow.last[at] >= step.value) continue;
    shadow.last[at] = step.value;
    std::atomic_ref<uint64_t>(shadow.host[at]).store(step.value, std::memory_order_release);
  }
}

}  // namespace bm::hcq
