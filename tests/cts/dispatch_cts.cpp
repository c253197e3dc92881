#include <algorithm>
#include <bit>
#include <cmath>

#include "tests/cts/cts.h"
#include "tests/cts/kernels.h"

namespace bm::cts {
namespace {

hal::Dim3 grid_for(uint64_t items) {
  return {.x = static_cast<uint32_t>((items + kBlock - 1) / kBlock)};
}

Status saxpy(Rig& rig) {
  const auto program = BM_TRY(rig.load("saxpy"));
  for (uint64_t n : Sizes{1, 63, 64, 65, 1000, 100'000}) {
    auto x = BM_TRY(rig.visible(n * 4)), y = BM_TRY(rig.visible(n * 4)),
         out = BM_TRY(rig.visible(n * 4 + 4));
    for (uint64_t i = 0; i < n; ++i) {
      view<float>(*x)[i] = static_cast<float>(i);
      view<float>(*y)[i] = 0.5f;
    }
    std::ranges::fill(view<float>(*out), -1.0f);
    auto args = BM_TRY(rig.pack({va(out), va(x), va(y), n, std::bit_cast<uint32_t>(2.0f)}));
    BM_TRY(rig.run({hal::Barrier{}, hal::Dispatch{program.get(), args->va(), grid_for(n)}}));
    const auto result = view<float>(*out);
    for (uint64_t i = 0; i < n; ++i) CTS_CHECK(result[i] == 2.0f * static_cast<float>(i) + 0.5f);
    CTS_CHECK(result[n] == -1.0f);
  }
  return {};
}

Status variables(Rig& rig) {
  const auto program = BM_TRY(rig.load("iota"));
  auto out = BM_TRY(rig.visible(100 * 8));
  auto args = BM_TRY(rig.pack({va(out), 100, static_cast<uint64_t>(-50)}));
  BM_TRY(rig.run({hal::Barrier{}, hal::Dispatch{program.get(), args->va(), grid_for(100)}}));
  for (int64_t i = 0; i < 100; ++i)
    CTS_CHECK(view<int64_t>(*out)[static_cast<size_t>(i)] == i - 50);
  return {};
}

Status constant_tables(Rig& rig) {
  const auto program = BM_TRY(rig.load("look_up"));
  auto in = BM_TRY(rig.visible(128 * 4)), out = BM_TRY(rig.visible(128 * 4));
  for (int32_t i = 0; i < 128; ++i) view<int32_t>(*in)[static_cast<size_t>(i)] = i;
  auto args = BM_TRY(rig.pack({va(out), va(in), 128}));
  BM_TRY(rig.run({hal::Barrier{}, hal::Dispatch{program.get(), args->va(), grid_for(128)}}));
  constexpr int32_t kPrimes[] = {2, 3, 5, 7, 11, 13, 17, 19};
  for (int32_t i = 0; i < 128; ++i) {
    const int32_t row = i % 8, wanted = 1000 + (i % 2 == 0 ? kPrimes[row] : row * row);
    CTS_CHECK(view<int32_t>(*out)[static_cast<size_t>(i)] == wanted);
  }
  return {};
}

Status library_calls(Rig& rig) {
  const auto sines = BM_TRY(rig.load("sines")), move = BM_TRY(rig.load("move"));
  auto in = BM_TRY(rig.visible(400)), out = BM_TRY(rig.visible(400)),
       moved = BM_TRY(rig.visible(400));
  for (size_t i = 0; i < 100; ++i) view<float>(*in)[i] = static_cast<float>(i) / 10;
  auto sines_args = BM_TRY(rig.pack({va(out), va(in), 100})),
       move_args = BM_TRY(rig.pack({va(moved), va(out), 400}));
  BM_TRY(rig.run({hal::Barrier{}, hal::Dispatch{sines.get(), sines_args->va(), grid_for(100)},
                  hal::Barrier{}, hal::Dispatch{move.get(), move_args->va(), {}}}));
  for (size_t i = 0; i < 100; ++i)
    CTS_CHECK(std::abs(view<float>(*moved)[i] - std::sin(static_cast<float>(i) / 10)) < 1e-6f);
  return {};
}

Status undefined_symbol(Rig& rig) {
  const auto program = rig.load("undefined");
  CTS_REFUSED(Code::kUnsupported, rig.load("undefined"));
  CTS_CHECK(program.error().message.find("system") != std::string::npos);
  return {};
}

Status grids(Rig& rig) {
  const auto program = BM_TRY(rig.load("mark"));
  for (const hal::Dim3 grid :
       {hal::Dim3{1, 1, 1}, {7, 3, 2}, {0, 5, 5}, {1, 1, 50}, {100'000, 1, 1}}) {
    const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
    auto counts = BM_TRY(
        rig.device().allocate({.size = (blocks + 1) * 4, .host_visible = true, .zero = true}));
    auto args = BM_TRY(rig.pack({va(counts)}));
    BM_TRY(rig.run({hal::Barrier{}, hal::Dispatch{program.get(), args->va(), grid}}));
    const auto seen = view<uint32_t>(*counts);
    CTS_CHECK(std::all_of(seen.begin(), seen.end() - 1, [](uint32_t count) { return count == 1; }));
    CTS_CHECK(seen.back() == 0);
  }
  return {};
}

Status dependent_kernels(Rig& rig) {
  const auto program = BM_TRY(rig.load("increment"));
  auto x = BM_TRY(rig.device().allocate({.size = 64, .host_visible = true, .zero = true}));
  auto args = BM_TRY(rig.pack({va(x), 16}));
  std::vector<hal::Command> commands(100, hal::Dispatch{program.get(), args->va(), {}});
  BM_TRY(rig.run(commands));
  for (float value : view<float>(*x)) CTS_CHECK(value == 100.0f);
  return {};
}

Status replayed_kernels(Rig& rig) {
  // Slots: output, first value, blocks, timeline.
  using hal::PatchField;
  const auto program = BM_TRY(rig.load("iota"));
  auto a = BM_TRY(rig.visible(1024 * 8)), b = BM_TRY(rig.visible(1024 * 8));
  auto args = BM_TRY(rig.pack({0, 1024, 0}));
  const hal::Command commands[] = {hal::Barrier{}, hal::Dispatch{program.get(), args->va(), {}},
                                   rig.end_signal(0)};
  const hal::Patch patches[] = {
      {.command = 1, .field = PatchField::kKernarg, .word = 0, .slot = 0},
      {.command = 1, .field = PatchField::kKernarg, .word = 2, .slot = 1, .addend = 10},
      {.command = 1, .field = PatchField::kGridX, .slot = 2},
      {.command = 2, .field = PatchField::kSignalValue, .slot = 3}};
  auto recording = BM_TRY(rig.queue().record(commands, patches));
  for (uint64_t round = 0; round < 12; ++round) {
    auto& out = round % 3 == 0 ? a : b;
    const auto values = view<int64_t>(*out);
    std::ranges::fill(values, int64_t{-1});
    const uint64_t blocks = round / 2, first = 1000 * (round / 4), end = rig.next_value();
    const uint64_t slots[] = {va(out), first, blocks, end};
    BM_TRY(rig.queue().replay(*recording, slots));
    BM_TRY(rig.finish(end));
    for (uint64_t i = 0; i < 1024; ++i)
      CTS_CHECK(values[i] == (i < blocks * kBlock ? static_cast<int64_t>(first + 10 + i) : -1));
  }
  return {};
}

constexpr Case kDispatchCases[] = {
    {"dispatch.saxpy", saxpy, Needs::kKernels},
    {"dispatch.variables", variables, Needs::kKernels},
    {"dispatch.constant_tables", constant_tables, Needs::kKernels},
    {"dispatch.library_calls", library_calls, Needs::kKernels},
    {"dispatch.undefined_symbol", undefined_symbol, Needs::kKernels},
    {"dispatch.grids", grids, Needs::kKernels},
    {"dispatch.dependent_kernels", dependent_kernels, Needs::kKernels},
    {"dispatch.replayed_kernels", replayed_kernels, Needs::kKernels}};

}  // namespace

std::span<const Case> dispatch_cases() { return kDispatchCases; }

}  // namespace bm::cts
