// Prints what replaying 100 small dependent kernels costs; not a test: times depend on the machine.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "drivers/cpu/program.h"
#include "tests/unit/drivers/replay_rig.h"

namespace {

template <class Work>
double best_ns(const Work& work) {
  using Clock = std::chrono::steady_clock;
  constexpr int kRounds = 300, kRepeats = 100;
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = Clock::now();
    for (int i = 0; i < kRepeats; ++i) work();
    const std::chrono::duration<double, std::nano> spent = Clock::now() - begin;
    times.push_back(spent.count() / kRepeats);
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2];
}

}  // namespace

int main() {
  using bm::test::address;
  constexpr size_t kKernels = 100;
  bm::test::ReplayRig rig(kKernels, /*with_timeline=*/false);
  const auto entry = static_cast<bm::cpu::CpuProgram&>(*rig.program).entry();
  std::vector<float> other(16);
  uint64_t step = 0;
  BM_CHECK(rig.replay(0).has_value());
  const double direct = best_ns([&] {
    for (size_t i = 0; i < kKernels; ++i) entry(&rig.args[i * 2], 0, 1, nullptr);
  });
  const double replay = best_ns([&] { BM_CHECK(rig.replay(++step).has_value()); });
  const double patched = best_ns([&] {
    const uint64_t values[] = {address(++step % 2 == 0 ? rig.floats.data() : other.data()), step};
    BM_CHECK(rig.queue().replay(*rig.recording, values).has_value());
  });
  const double submit = best_ns([&] { BM_CHECK(rig.queue().submit(rig.commands).has_value()); });
  std::printf(
      "%zu kernels of 16 floats: called directly %.0f ns, replay %.0f ns, replay with a new "
      "address "
      "for all %.0f ns, submit %.0f ns\n",
      kKernels, direct, replay, patched, submit);
  return 0;
}
