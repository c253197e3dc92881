#include "drivers/cpu/recording.h"

#include <gtest/gtest.h>

#include <random>
#include <variant>
#include <vector>

#include "drivers/cpu/device.h"
#include "drivers/cpu/host_queue.h"
#include "drivers/cpu/program.h"
#include "tests/unit/drivers/kernels.h"

namespace bm::cpu {
namespace {

using hal::Command;
using hal::GpuVa;
using hal::Patch;
using hal::PatchField;
using test::address;

GpuVa va(const void* pointer) { return GpuVa{reinterpret_cast<uint64_t>(pointer)}; }

struct Programs {
  Programs() {
    iota = CpuProgram::load(test::kernel("iota", 1, 2), test::kernel("iota", 1, 2).arch).value();
    auto code = test::kernel("mark", 1, 0);
    code.work_per_block = kPoolWork / 8;
    mark = CpuProgram::load(code, code.arch).value();
  }
  std::unique_ptr<CpuProgram> iota, mark;
};

TEST(Recording, PatchesAreTheSameAsSubmittingThePatchedCommands) {
  // Two worlds of equal memory: one replays, the other submits what the patches make of the
  // commands.
  struct World {
    std::vector<int64_t> memory = std::vector<int64_t>(1024, 0);
    std::vector<std::vector<uint64_t>> args;
    std::vector<uint64_t> words = std::vector<uint64_t>(16, 0);
  };
  const Programs programs;
  HostQueue queue({});
  for (uint32_t seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](uint64_t limit) {
      return std::uniform_int_distribution<uint64_t>(0, limit - 1)(random);
    };
    World replayed, submitted;
    // A value is a place in the world's memory for addresses, else a number.
    struct Planned {
      int kind;
      uint64_t a, b, n;
    };
    std::vector<Planned> plan;
    for (int i = 0; i < 12; ++i)
      plan.push_back({static_cast<int>(pick(4)), pick(512), pick(512), 1 + pick(64)});
    struct PlannedPatch {
      Patch patch;
      bool is_address;
    };
    std::vector<PlannedPatch> patches;
    constexpr uint32_t kAddressSlots = 4, kSlots = 8;
    for (uint32_t c = 0; c < plan.size(); ++c) {
      const auto address_slot = static_cast<uint32_t>(pick(kAddressSlots));
      const auto number_slot = kAddressSlots + static_cast<uint32_t>(pick(kSlots - kAddressSlots));
      const uint64_t addend = 8 * pick(8);
      switch (plan[c].kind) {
        case 0:
          if (pick(2) != 0)
            patches.push_back({{c, PatchField::kKernarg, 0, address_slot, addend}, true});
          if (pick(2) != 0)
            patches.push_back({{c, PatchField::kKernarg, 2, number_slot, addend}, false});
          if (pick(2) != 0) patches.push_back({{c, PatchField::kGridX, 0, number_slot, 0}, false});
          break;
        case 1:
          if (pick(2) != 0)
            patches.push_back({{c, PatchField::kCopyDst, 0, address_slot, addend}, true});
          if (pick(2) != 0)
            patches.push_back({{c, PatchField::kCopySrc, 0, address_slot, addend}, true});
          if (pick(2) != 0)
            patches.push_back({{c, PatchField::kCopyBytes, 0, number_slot, addend}, false});
          break;
        case 2:
          if (pick(2) != 0)
            patches.push_back({{c, PatchField::kSignalValue, 0, number_slot, addend}, false});
          break;
        case 3:
          if (pick(2) != 0)
            patches.push_back({{c, PatchField::kSignalAddress, 0, address_slot, addend}, true});
          break;
      }
    }
    const auto commands_of = [&](World& world) {
      std::vector<Command> commands;
      world.args.resize(plan.size());
      for (size_t c = 0; c < plan.size(); ++c) {
        const Planned& p = plan[c];
        switch (p.kind) {
          case 0:
            world.args[c] = {address(&world.memory[p.a]), 128, p.b};
            commands.push_back(
                hal::Dispatch{programs.iota.get(), va(world.args[c].data()), {2, 1, 1}});
            break;
          case 1:
            commands.push_back(hal::Copy{va(&world.memory[p.a]), va(&world.memory[p.b]), p.n * 8});
            break;
          case 2: commands.push_back(hal::Signal{va(&world.words[p.a % 16]), p.b}); break;
          default: commands.push_back(hal::Write{va(&world.memory[p.a]), p.b}); break;
        }
      }
      return commands;
    };
    std::vector<Command> replay_commands = commands_of(replayed);
    std::vector<Patch> replay_patches;
    for (const PlannedPatch& patch : patches) replay_patches.push_back(patch.patch);
    auto recording = queue.record(replay_commands, replay_patches);
    ASSERT_TRUE(recording) << recording.error().message;

    std::vector<uint64_t> values(kSlots);
    for (int round = 0; round < 20; ++round) {
      for (uint64_t& value : values)  // some stay as they were
        if (round == 0 || pick(3) == 0) value = pick(64);
      const auto value_in = [&](World& world, uint32_t slot) {
        return slot < kAddressSlots ? address(&world.memory[values[slot]]) : values[slot];
      };
      std::vector<uint64_t> replay_values(kSlots);
      for (uint32_t slot = 0; slot < kSlots; ++slot) replay_values[slot] = value_in(replayed, slot);
      ASSERT_TRUE(queue.replay(**recording, replay_values));

      std::vector<Command> expected = commands_of(submitted);
      for (const PlannedPatch& p : patches) {
        const uint64_t value = value_in(submitted, p.patch.slot) + p.patch.addend;
        Command& command = expected[p.patch.command];
        switch (p.patch.field) {
          case PatchField::kKernarg: submitted.args[p.patch.command][p.patch.word] = value; break;
          case PatchField::kGridX:
            std::get<hal::Dispatch>(command).grid.x = static_cast<uint32_t>(value);
            break;
          case PatchField::kGridY:
          case PatchField::kGridZ: break;
          case PatchField::kCopyDst: std::get<hal::Copy>(command).dst = GpuVa{value}; break;
          case PatchField::kCopySrc: std::get<hal::Copy>(command).src = GpuVa{value}; break;
          case PatchField::kCopyBytes: std::get<hal::Copy>(command).bytes = value; break;
          case PatchField::kSignalAddress: std::get<hal::Write>(command).dst = GpuVa{value}; break;
          case PatchField::kSignalValue: std::get<hal::Signal>(command).value = value; break;
        }
      }
      ASSERT_TRUE(queue.submit(expected));
      ASSERT_EQ(replayed.memory, submitted.memory) << "seed " << seed << " round " << round;
      ASSERT_EQ(replayed.words, submitted.words);
    }
  }
}

TEST(Recording, UnchangedSlotsAreNotRewritten) {
  const Programs programs;
  HostQueue queue({});
  std::vector<int64_t> out(64), other(64);
  std::vector<uint64_t> args{0, 64, 5};
  const Command commands[] = {hal::Dispatch{programs.iota.get(), va(args.data()), {}}};
  const Patch patches[] = {{.command = 0, .word = 0, .slot = 0}};
  auto recording = queue.record(commands, patches);
  ASSERT_TRUE(recording);
  const uint64_t values[] = {address(out.data())};
  ASSERT_TRUE(queue.replay(**recording, values));
  EXPECT_EQ(out[3], 8);
  args[0] = address(other.data());  // seen only if replay leaves the word alone
  ASSERT_TRUE(queue.replay(**recording, values));
  EXPECT_EQ(other[3], 8);
}

TEST(Recording, GridPatchMovesAKernelBetweenCallerAndPool) {
  const Programs programs;
  Pool pool({.threads = 3});
  HostQueue queue({.pool = &pool});
  std::vector<uint32_t> counts(4000);
  const uint64_t args[] = {address(counts.data())};
  const Command commands[] = {hal::Dispatch{programs.mark.get(), va(args), {1, 2, 1}}};
  const Patch patches[] = {{.command = 0, .field = PatchField::kGridX, .slot = 0},
                           {.command = 0, .field = PatchField::kGridZ, .slot = 1, .addend = 1}};
  auto recording = queue.record(commands, patches);
  ASSERT_TRUE(recording);
  const auto replay = [&](uint64_t x, uint64_t z) {
    const uint64_t values[] = {x, z - 1};
    return queue.replay(**recording, values);
  };
  ASSERT_TRUE(replay(2, 1));
  EXPECT_EQ(pool.workers_started(), 0u);
  ASSERT_TRUE(replay(100, 10));
  EXPECT_EQ(pool.workers_started(), 2u);
  ASSERT_TRUE(replay(0, 10)) << "no blocks";
  EXPECT_FALSE(replay(uint64_t{1} << 32, 1)) << "more than 32 bits";
  EXPECT_FALSE(replay(0xffffffff, 0xffffffff)) << "more than 2^63 blocks";
  ASSERT_TRUE(replay(2, 1)) << "a refused replay leaves the recording usable";
  EXPECT_EQ(counts[0], 3u);
  EXPECT_EQ(counts[3], 3u);
  EXPECT_EQ(counts[4], 1u);
  EXPECT_EQ(counts[1999], 1u);
  EXPECT_EQ(counts[2000], 0u);
}

TEST(Recording, WrongPatchesAreRefused) {
  const Programs programs;
  HostQueue queue({});
  std::vector<int64_t> out(64);
  std::vector<uint64_t> args{address(out.data()), 64, 0};
  uint64_t word = 0;
  const Command commands[] = {hal::Dispatch{programs.iota.get(), va(args.data()), {}},
                              hal::Barrier{}, hal::Timestamp{va(&word)}};
  const auto refused = [&](std::vector<Patch> patches) {
    const auto recording = queue.record(commands, patches);
    return !recording && recording.error().code == Code::kInvalidArgument;
  };
  EXPECT_TRUE(refused({{.command = 3}}));
  EXPECT_TRUE(refused({{.command = 1}})) << "a barrier has no arguments";
  EXPECT_TRUE(refused({{.command = 0, .word = 3}}));
  EXPECT_TRUE(refused({{.command = 0, .field = PatchField::kCopyDst}}));
  EXPECT_TRUE(refused({{.command = 2, .field = PatchField::kSignalValue}}))
      << "a timestamp has no value";
  EXPECT_TRUE(
      refused({{.command = 0, .word = 0, .slot = 0}, {.command = 0, .word = 0, .slot = 1}}));
  EXPECT_TRUE(refused({{.command = 0, .slot = 0xffffffff}}));
  EXPECT_FALSE(refused({{.command = 2, .field = PatchField::kSignalAddress}}));
}

}  // namespace
}  // namespace bm::cpu
