#include <algorithm>

#include "tests/cts/cts.h"

namespace bm::cts {
namespace {

using hal::Patch;
using hal::PatchField;

Status replay_and_finish(Rig& rig, hal::Recording& recording, std::vector<uint64_t> values) {
  BM_TRY(rig.queue().replay(recording, values));
  return rig.finish(values.back());
}

Status patched_copy(Rig& rig) {
  // Slots: destination, source, bytes, timeline.
  auto memory = BM_TRY(rig.visible(4096));
  const auto bytes = view<uint8_t>(*memory);
  const hal::Command commands[] = {hal::Copy{memory->va(), memory->va(), 0}, rig.end_signal(0)};
  const Patch patches[] = {{.command = 0, .field = PatchField::kCopyDst, .slot = 0, .addend = 16},
                           {.command = 0, .field = PatchField::kCopySrc, .slot = 1},
                           {.command = 0, .field = PatchField::kCopyBytes, .slot = 2},
                           {.command = 1, .field = PatchField::kSignalValue, .slot = 3}};
  auto recording = BM_TRY(rig.queue().record(commands, patches));
  for (uint64_t round = 0; round < 8; ++round) {
    std::ranges::fill(bytes, uint8_t{0});
    std::fill_n(bytes.begin() + 2048, 64, static_cast<uint8_t>(round + 1));
    const uint64_t at = 100 * round, size = 8 * (round / 2);
    BM_TRY(replay_and_finish(
        rig, *recording,
        {hal::raw(memory->va()) + at, hal::raw(memory->va()) + 2048, size, rig.next_value()}));
    for (uint64_t i = 0; i < 2048; ++i)
      CTS_CHECK(bytes[i] == (i >= at + 16 && i < at + 16 + size ? round + 1 : 0));
  }
  return {};
}

Status patched_signal_address(Rig& rig) {
  auto memory = BM_TRY(rig.words());
  const hal::Command commands[] = {hal::Signal{memory->va(), 0}, hal::Timestamp{memory->va()},
                                   rig.end_signal(0)};
  const Patch patches[] = {
      {.command = 0, .field = PatchField::kSignalAddress, .slot = 0},
      {.command = 0, .field = PatchField::kSignalValue, .slot = 1, .addend = 5},
      {.command = 1, .field = PatchField::kSignalAddress, .slot = 0, .addend = 8},
      {.command = 2, .field = PatchField::kSignalValue, .slot = 1}};
  auto recording = BM_TRY(rig.queue().record(commands, patches));
  for (uint64_t at : Sizes{0, 16, 64}) {
    const uint64_t value = rig.next_value();
    BM_TRY(replay_and_finish(rig, *recording, {hal::raw(memory->va()) + at, value}));
    const auto words = view<uint64_t>(*memory);
    CTS_CHECK(words[at / 8] == value + 5);
    CTS_CHECK(words[at / 8 + 1] != 0);
  }
  return {};
}

Status repeated_replay(Rig& rig) {
  // Every replay extends a chain: 1 is copied one place further, also when nothing is patched.
  auto memory = BM_TRY(rig.visible(64 * 8));
  const auto words = view<uint64_t>(*memory);
  std::ranges::fill(words, uint64_t{0});
  words[0] = 1;
  auto scratch = BM_TRY(rig.visible(64 * 8));
  const hal::Command commands[] = {hal::Copy{scratch->va(), memory->va(), 62 * 8},
                                   hal::Copy{hal::offset(memory->va(), 8), scratch->va(), 62 * 8},
                                   rig.end_signal(0)};
  const Patch patches[] = {{.command = 2, .field = PatchField::kSignalValue, .slot = 0}};
  auto recording = BM_TRY(rig.queue().record(commands, patches));
  for (int i = 0; i < 50; ++i) BM_TRY(replay_and_finish(rig, *recording, {rig.next_value()}));
  for (size_t i = 0; i < 64; ++i) CTS_CHECK(words[i] == (i <= 50 ? 1u : 0u));
  return {};
}

Status bad_patches(Rig& rig) {
  auto memory = BM_TRY(rig.visible(64));
  const hal::Command commands[] = {hal::Copy{memory->va(), memory->va(), 8}, hal::Barrier{}};
  const auto record = [&](Patch patch) {
    return rig.queue().record(commands, std::span(&patch, 1));
  };
  CTS_REFUSED(Code::kInvalidArgument, record({.command = 2, .field = PatchField::kCopyDst}));
  CTS_REFUSED(Code::kInvalidArgument, record({.command = 1, .field = PatchField::kCopyDst}));
  CTS_REFUSED(Code::kInvalidArgument, record({.command = 0, .field = PatchField::kKernarg}));
  const Patch good[] = {{.command = 0, .field = PatchField::kCopyBytes, .slot = 3}};
  auto recording = BM_TRY(rig.queue().record(commands, good));
  const uint64_t too_few[] = {0, 0, 0};
  CTS_REFUSED(Code::kInvalidArgument, rig.queue().replay(*recording, too_few));
  return {};
}

constexpr Case kQueueCases[] = {{"queue.patched_copy", patched_copy, Needs::kCopies},
                                {"queue.patched_signal_address", patched_signal_address},
                                {"queue.repeated_replay", repeated_replay, Needs::kCopies},
                                {"queue.bad_patches", bad_patches}};

}  // namespace

std::span<const Case> queue_cases() { return kQueueCases; }

}  // namespace bm::cts
