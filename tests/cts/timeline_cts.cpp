#include <atomic>
#include <thread>

#include "tests/cts/cts.h"

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

constexpr Case kCases[] = {{"timeline.signal_and_write", signal_and_write},
                           {"timeline.wait_for_earlier_signal", wait_for_earlier_signal},
                           {"timeline.wait_for_host", wait_for_host},
                           {"timeline.timestamps_grow", timestamps_grow},
                           {"timeline.many_submissions", many_submissions},
                           {"timeline.empty_submission", empty_submission}};

}  // namespace

std::span<const Case> timeline_cases() { return kCases; }

}  // namespace bm::cts
