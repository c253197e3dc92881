#include <atomic>
#include <thread>

#include "tests/cts/cts.h"
#include "tests/cts/mischief.h"

namespace bm::cts {
namespace {

Status signal_and_write(Rig& rig) {
  auto memory = BM_TRY(rig.words());
  constexpr uint64_t kBig = 0x0123456789abcdef;
  BM_TRY(rig.run({hal::Signal{word_va(*memory, 0), 41}, hal::Write{word_va(*memory, 1), kBig},
                  hal::Barrier{}, hal::Signal{word_va(*memory, 0), 42}}));
  const auto values = view<uint64_t>(*memory);
  CTS_CHECK(values[0] == 42);
  CTS_CHECK(values[1] == kBig);
  CTS_CHECK(values[2] == 0);
  return {};
}

Status wait_for_earlier_signal(Rig& rig) {
  auto memory = BM_TRY(rig.words());
  return rig.run({hal::Signal{word_va(*memory, 0), 5}, hal::Wait{word_va(*memory, 0), 5},
                  hal::Wait{word_va(*memory, 0), 3}, hal::Wait{word_va(*memory, 1), 0}});
}

Status wait_for_host(Rig& rig) {
  auto memory = BM_TRY(rig.words());
  const auto values = view<uint64_t>(*memory);
  // The host answers the device's first word: the queue is already waiting, or soon will be.
  std::thread host([&] {
    const std::atomic_ref<uint64_t> asked(values[0]), answer(values[1]);
    while (asked.load(std::memory_order_acquire) == 0) std::this_thread::yield();
    answer.store(7, std::memory_order_release);
  });
  const Status status =
      rig.run({hal::Signal{word_va(*memory, 0), 1}, hal::Wait{word_va(*memory, 1), 7},
               hal::Signal{word_va(*memory, 2), 9}});
  if (!status) std::atomic_ref<uint64_t>(values[0]).store(1);
  host.join();
  BM_TRY(status);
  CTS_CHECK(values[2] == 9);
  return {};
}

/// A wait nobody has answered yet, a copy behind it, and a signal that tells when it is done.
struct HeldCopy {
  static Result<HeldCopy> make(Rig& rig) {
    HeldCopy held;
    held.signals = BM_TRY(rig.words());
    held.source = BM_TRY(rig.visible(64));
    held.target = BM_TRY(rig.visible(64));
    word(*held.source).store(1);
    word(*held.target).store(0);
    return held;
  }
  Status submit(hal::Queue& queue) const {
    const hal::Command commands[] = {hal::Wait{word_va(*signals, 0), 1}, hal::Barrier{},
                                     hal::Copy{target->va(), source->va(), 8},
                                     hal::Signal{word_va(*signals, 1), 1}};
    return queue.submit(commands);
  }
  std::unique_ptr<hal::Buffer> signals, source, target;
};

Status held_copy(Rig& rig) {
  const HeldCopy held = BM_TRY(HeldCopy::make(rig));
  Status submitted;
  std::thread host([&] { submitted = held.submit(rig.queue()); });
  word(*held.source).store(2);  // late, but before the signal
  word(*held.signals, 0).store(1, std::memory_order_release);
  host.join();
  BM_TRY(submitted);
  BM_TRY(rig.wait_for(word(*held.signals, 1), 1));
  CTS_CHECK(word(*held.target) == 2);
  return {};
}

/// The case above can fail: without its wait the copy is done before anybody signals.
Status removed_wait(Rig& rig) {
  const auto queue = queue_without_waits(rig.queue());
  const HeldCopy held = BM_TRY(HeldCopy::make(rig));
  BM_TRY(held.submit(*queue));
  BM_TRY(rig.wait_for(word(*held.signals, 1), 1));
  word(*held.source).store(2);
  CTS_CHECK(word(*held.target) == 1);
  return {};
}

Status timestamps_grow(Rig& rig) {
  auto memory = BM_TRY(rig.words());
  BM_TRY(rig.run(
      {hal::Timestamp{word_va(*memory, 0)}, hal::Barrier{}, hal::Timestamp{word_va(*memory, 1)}}));
  BM_TRY(rig.run({hal::Timestamp{word_va(*memory, 2)}}));
  const auto ticks = view<uint64_t>(*memory);
  CTS_CHECK(ticks[0] > 0);
  CTS_CHECK(ticks[0] <= ticks[1] && ticks[1] <= ticks[2]);
  CTS_CHECK(rig.device().arch().clock_hz > 0);
  return {};
}

Status many_submissions(Rig& rig) {
  auto memory = BM_TRY(rig.words());
  constexpr uint64_t kCount = 2000;
  for (uint64_t i = 1; i <= kCount; ++i) {
    const hal::Command commands[] = {hal::Wait{word_va(*memory, 0), i - 1},
                                     hal::Signal{word_va(*memory, 0), i}};
    BM_TRY(rig.queue().submit(commands));
  }
  BM_TRY(rig.run({hal::Wait{word_va(*memory, 0), kCount}}));
  CTS_CHECK(view<uint64_t>(*memory)[0] == kCount);
  return {};
}

Status empty_submission(Rig& rig) {
  BM_TRY(rig.queue().submit({}));
  return rig.run({});
}

/// Two queues count one word up in turn, each waiting for the other: whoever looks sees it grow. A
/// store that comes late would take later ones back, and their waiters would wait for ever.
Status queues_in_turn(Rig& rig) {
  constexpr uint64_t kLast = 400;
  auto signals = BM_TRY(rig.words());
  std::atomic<bool> is_over{false}, is_ordered{true};
  std::thread watcher([&] {
    for (uint64_t last = 0; !is_over.load(std::memory_order_relaxed);) {
      const uint64_t now = word(*signals).load(std::memory_order_acquire);
      if (now < last) is_ordered = false;
      last = now;
    }
  });
  Status submitted;
  for (uint64_t i = 1; submitted && i <= kLast; ++i) {
    const hal::Command commands[] = {hal::Wait{signals->va(), i - 1},
                                     hal::Signal{signals->va(), i}};
    submitted =
        rig.queue(i % 3 == 0 ? hal::QueueKind::kCopy : hal::QueueKind::kCompute).submit(commands);
  }
  if (submitted) submitted = rig.wait_for(word(*signals), kLast);
  is_over = true;
  watcher.join();
  BM_TRY(std::move(submitted));
  CTS_CHECK(is_ordered);
  CTS_CHECK(word(*signals) == kLast);
  return {};
}

constexpr Case kTimelineCases[] = {{"timeline.signal_and_write", signal_and_write},
                                   {"timeline.wait_for_earlier_signal", wait_for_earlier_signal},
                                   {"timeline.wait_for_host", wait_for_host},
                                   {"timeline.held_copy", held_copy, Needs::kCopies},
                                   {"timeline.removed_wait", removed_wait, Needs::kCopies},
                                   {"timeline.timestamps_grow", timestamps_grow},
                                   {"timeline.many_submissions", many_submissions},
                                   {"timeline.queues_in_turn", queues_in_turn},
                                   {"timeline.empty_submission", empty_submission}};

}  // namespace

std::span<const Case> timeline_cases() { return kTimelineCases; }

}  // namespace bm::cts
