// Where compiled code finds special registers in constant bank 0, and that every launch puts the
// right value there, on every generation and on every simulated chip.
//
// The figures come from one judge, none of them from this project: for each register a kernel that
// stores it, compiled by ptxas 13.0.88 for each architecture, and the LDC, ULDC, LDCU or c[0][…]
// operand that only this kernel has. Registers that ptxas takes from elsewhere (S2R, S2UR, CS2R,
// an immediate) have no row: tid, ctaid, laneid, warpid, nwarpid, smid, the lane masks, clocks and
// timers, cluster_ctarank, reserved_smem_offset_begin and _cap. Of envreg, current_graph_exec and
// reserved_smem_offset_end nobody but the vendor's driver knows the values; they stay zero.

#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "drivers/nv/chips.h"
#include "drivers/nv/loaded_program.h"
#include "drivers/nv/methods/bank0.h"
#include "tests/unit/nv/cubin_builder.h"
#include "tests/unit/nv_faults/bench.h"

namespace bm::nv::faults {
namespace {

enum class Register : uint8_t {
  kNtid,
  kNctaid,
  kGridId,
  kNsmid,
  kDynamicShared,
  kReservedShared,  ///< subtracted from a special register for %total_smem_size
  kSharedWindow,    ///< cvta.shared
  kLocalWindow,     ///< cvta.local
  kStack,           ///< R1 of every kernel
  kIsClustered,
  kClusterNctaid,
  kClusterFactor,  ///< float32 that %clusterid and %cluster_ctaid multiply %ctaid with
  kNclusterid,
  kClusterNctarank,
};
constexpr uint16_t kNone = 0xffff;
struct Row {
  Register what;
  uint8_t words;
  std::array<uint16_t, 4> at;  ///< sm_75; sm_80, 86 … 89; sm_90; sm_100, 103, 110, 120, 121
};
constexpr std::array kRows = {
    Row{Register::kNtid, 3, {0x0, 0x0, 0x0, 0x360}},
    Row{Register::kNctaid, 3, {0xc, 0xc, 0xc, 0x370}},
    Row{Register::kGridId, 2, {0x30, 0x30, 0x30, 0x140}},
    Row{Register::kNsmid, 1, {0x10c, 0x10c, 0x10c, 0x2d0}},
    Row{Register::kDynamicShared, 1, {0x2c, 0x2c, 0x2c, 0x2ac}},
    Row{Register::kReservedShared, 1, {kNone, 0x114, 0x114, 0x16c}},
    Row{Register::kSharedWindow, 2, {0x18, 0x18, kNone, kNone}},
    Row{Register::kLocalWindow, 2, {0x20, 0x20, 0x20, 0x2f8}},
    Row{Register::kStack, 1, {0x28, 0x28, 0x28, 0x37c}},
    Row{Register::kIsClustered, 1, {kNone, kNone, 0x140, 0x36c}},
    Row{Register::kClusterNctaid, 3, {kNone, kNone, 0x144, 0x2a0}},
    Row{Register::kClusterFactor, 3, {kNone, kNone, 0x150, 0x2b0}},
    Row{Register::kNclusterid, 3, {kNone, kNone, 0x15c, 0x2c0}},
    Row{Register::kClusterNctarank, 1, {kNone, kNone, 0x188, 0x2cc}},
};
/// Of sm_100 and later, code reads these also 0xa0 lower: a factor taken from special register
/// 0x8a.
constexpr uint16_t kSecond = 0xa0;
constexpr bool has_second(Register what) {
  return what == Register::kDynamicShared || what == Register::kClusterNctaid ||
         what == Register::kClusterFactor || what == Register::kNclusterid ||
         what == Register::kClusterNctarank;
}
constexpr std::array<uint16_t, 4> kFirstParameter = {0x160, 0x160, 0x210, 0x380};
constexpr size_t generation_of(uint32_t sm) { return sm < 80 ? 0 : sm < 90 ? 1 : sm < 100 ? 2 : 3; }

/// What a launch is, and so what its registers hold.
struct Truth {
  std::array<uint32_t, 3> block, grid, cluster;
  bool is_clustered = false;
  uint32_t sms = 0, dynamic_shared = 0, reserved_shared = 0;
  uint64_t shared_window = 0, local_window = 0;
};

uint32_t word_at(std::span<const std::byte> bank, size_t at) {
  uint32_t word = 0;
  if (at + 4 <= bank.size()) std::memcpy(&word, bank.data() + at, 4);
  return word;
}

/// Empty, or what is wrong about one register found at `at`.
std::string problem_of(const Row& row, size_t at, std::span<const std::byte> bank,
                       const Truth& truth) {
  std::array<uint32_t, 3> has{};
  for (size_t i = 0; i < row.words; ++i) has[i] = word_at(bank, at + 4 * i);
  const auto wide = [&](uint64_t want) {
    return std::array<uint32_t, 3>{static_cast<uint32_t>(want), static_cast<uint32_t>(want >> 32)};
  };
  std::array<uint32_t, 3> want{};
  const auto& [x, y, z] = truth.cluster;
  switch (row.what) {
    case Register::kNtid: want = truth.block; break;
    case Register::kNctaid: want = truth.grid; break;
    case Register::kGridId: return (has[0] | has[1]) != 0 ? "" : "grid id is zero";
    case Register::kNsmid: want = {truth.sms}; break;
    case Register::kDynamicShared: want = {truth.dynamic_shared}; break;
    case Register::kReservedShared: want = {truth.reserved_shared}; break;
    case Register::kSharedWindow: want = wide(truth.shared_window); break;
    case Register::kLocalWindow: want = wide(truth.local_window); break;
    case Register::kStack: want = {0xfffdc0}; break;
    case Register::kIsClustered: want = {truth.is_clustered}; break;
    case Register::kClusterNctaid: want = truth.cluster; break;
    case Register::kNclusterid:
      for (size_t i = 0; i < 3; ++i) want[i] = truth.grid[i] / truth.cluster[i];
      break;
    case Register::kClusterNctarank: want = {x * y * z}; break;
    case Register::kClusterFactor:
      // What it is for: the cluster of each block, without its fraction.
      for (size_t i = 0; i < 3; ++i)
        for (uint32_t block = 0; block < 70'000; ++block) {
          const auto cluster =
              static_cast<uint32_t>(static_cast<float>(block) * std::bit_cast<float>(has[i]));
          if (cluster != block / truth.cluster[i])
            return fmt::format("block {} along {} is of cluster {}", block, i, cluster);
        }
      return {};
  }
  if (has == want) return {};
  return fmt::format("register {} at {:#x}: {:x} {:x} {:x} instead of {:x} {:x} {:x}",
                     static_cast<int>(row.what), at, has[0], has[1], has[2], want[0], want[1],
                     want[2]);
}

void expect_bank(size_t generation, std::span<const std::byte> bank, const Truth& truth,
                 const std::string& whose) {
  for (const Row& row : kRows) {
    const uint16_t at = row.at[generation];
    if (at == kNone) continue;
    EXPECT_EQ(problem_of(row, at, bank, truth), "") << whose;
    if (generation == 3 && has_second(row.what)) {
      EXPECT_EQ(problem_of(row, at - kSecond, bank, truth), "") << whose;
    }
  }
}

TEST(NvSpecialRegisters, LieWhereTheCompilersCodeLooks) {
  for (const uint32_t sm : {75u, 80u, 86u, 87u, 88u, 89u, 90u, 100u, 103u, 110u, 120u, 121u}) {
    const ChipRow* const chip = find_chip_by_sm(sm);
    ASSERT_NE(chip, nullptr) << sm;
    const size_t generation = generation_of(sm);
    EXPECT_EQ(chip->bank0.params, kFirstParameter[generation]) << sm;
    for (const std::array<uint32_t, 3> cluster :
         {std::array{1u, 1u, 1u}, {2u, 1u, 1u}, {3u, 5u, 1u}, {7u, 2u, 1u}, {1u, 6u, 11u}}) {
      const bool is_clustered = cluster != std::array{1u, 1u, 1u};
      if (is_clustered && generation < 2) continue;
      const Truth truth{.block = {32, 4, 2},
                        .grid = {42 * cluster[0], 10 * cluster[1], 3 * cluster[2]},
                        .cluster = cluster,
                        .is_clustered = is_clustered,
                        .sms = 132,
                        .dynamic_shared = 0x4400,
                        .reserved_shared = generation == 0 ? 0 : 0x400u,
                        .shared_window = 0x7294'0000'0000,
                        .local_window = 0x7293'0000'0000};
      const auto dims = [](const std::array<uint32_t, 3>& of) {
        return hal::Dim3{of[0], of[1], of[2]};
      };
      std::vector<std::byte> bank(chip->bank0.params, std::byte{0x5a});
      encode_bank0(chip->bank0,
                   {.block = dims(truth.block),
                    .grid = dims(truth.grid),
                    .cluster = dims(truth.cluster),
                    .has_cluster = is_clustered,
                    .shared_window = truth.shared_window,
                    .local_window = truth.local_window,
                    .grid_id = 7,
                    .sm_count = truth.sms,
                    .dynamic_shared = truth.dynamic_shared,
                    .reserved_shared = chip->shared_reserved},
                   bank);
      expect_bank(generation, bank, truth, fmt::format("sm_{}", sm));
    }
  }
}

class NvSpecialRegistersOf : public ::testing::TestWithParam<const char*> {};

/// A cubin, launched and replayed; a function of the test stands for its machine code and looks at
/// bank 0 as the descriptor gives it.
TEST_P(NvSpecialRegistersOf, AreThereAtEveryLaunchAndReplay) {
  Bench bench({.chip = GetParam(), .release = "595"});
  const Status opened = bench.open();
  ASSERT_TRUE(opened) << opened.error().message;
  const sim::nv::Chip& chip = *sim::nv::find_chip(GetParam());
  const uint32_t sm = static_cast<uint32_t>(std::stoul(bench.hal().arch().name.substr(3)));
  const size_t generation = generation_of(sm);
  nv::testing::CubinBuilder builder = nv::testing::sample_cubin(sm, false);
  builder.add({.name = ".nv.info.first",
               .type = 0x70000000,
               .flags = 0x40,
               .bytes = nv::testing::info_sized(
                   0x0a, nv::testing::pack(0u, kFirstParameter[generation], uint16_t{0}))});
  hal::CodeObject code;
  code.entry = "first";
  code.arch = bench.hal().arch().name;
  code.image = builder.build();
  code.block = {.x = 32, .y = 4, .z = 2};
  code.launch_memory_bytes = 0x4400;
  auto program = bench.hal().load(code);
  ASSERT_TRUE(program) << program.error().message;
  const auto& loaded = dynamic_cast<const NvProgram&>(**program);

  std::mutex mutex;
  std::vector<std::pair<std::array<uint32_t, 3>, std::vector<std::byte>>> seen;
  bench.system().kernel().gpu(0).set_host_kernel(
      loaded.plan().shape.program,
      [&](std::array<uint32_t, 3> grid, std::array<uint32_t, 3>, std::span<const std::byte> bank) {
        const std::lock_guard lock(mutex);
        seen.emplace_back(grid, std::vector(bank.begin(), bank.end()));
      });
  const hal::Dispatch dispatch{program->get(), {}, {5, 3, 2}};
  const Status launched = bench.run(hal::QueueKind::kCompute, {dispatch, dispatch});
  ASSERT_TRUE(launched) << launched.error().message;
  hal::Buffer* const signal = *bench.allocate(8, true);
  std::memset(signal->host(), 0, 8);
  const std::vector<hal::Command> commands = {dispatch, hal::Signal{signal->va(), 1}};
  const hal::Patch patches[] = {{.command = 0, .field = hal::PatchField::kGridX, .slot = 0},
                                {.command = 0, .field = hal::PatchField::kGridZ, .slot = 1}};
  auto recording = bench.hal().queue(hal::QueueKind::kCompute).record(commands, patches);
  ASSERT_TRUE(recording) << recording.error().message;
  const uint64_t values[] = {9, 4};
  const Status replayed = bench.hal().queue(hal::QueueKind::kCompute).replay(**recording, values);
  ASSERT_TRUE(replayed) << replayed.error().message;
  const std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(signal->host()));
  while (word.load() < 1) ASSERT_TRUE(bench.hal().status());

  const std::lock_guard lock(mutex);
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[2].first, (std::array<uint32_t, 3>{9, 3, 4}));
  for (const auto& [grid, bank] : seen)
    expect_bank(generation, bank,
                {.block = {32, 4, 2},
                 .grid = grid,
                 .cluster = {1, 1, 1},
                 .sms = chip.gpcs * chip.tpcs_per_gpc * chip.sms_per_tpc,
                 .dynamic_shared = 0x4400,
                 .reserved_shared = chip.shared_reserve,
                 .shared_window = 0x7294'0000'0000,
                 .local_window = 0x7293'0000'0000},
                GetParam());
  const size_t id = kRows[2].at[generation];
  EXPECT_NE(word_at(seen[0].second, id), word_at(seen[1].second, id)) << "two grids, one number";
}

INSTANTIATE_TEST_SUITE_P(Chips, NvSpecialRegistersOf,
                         ::testing::Values("tu102", "ga100", "ga102", "ad102", "gh100", "gb100",
                                           "gb202"),
                         [](const auto& chip) { return std::string(chip.param); });

}  // namespace
}  // namespace bm::nv::faults
