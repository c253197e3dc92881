// The device over the modelled kernel driver: packets are executed by a reader that was not written
// with their encoder, kernels by functions of the test. PM4 and AQL alike.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>
#include <thread>

#include "drivers/amd/chips.h"
#include "drivers/amd/device.h"
#include "drivers/amd/kfd/gpu.h"
#include "drivers/amd/scratch.h"
#include "runtime/base/env.h"
#include "runtime/hal/device.h"
#include "runtime/hal/waiting.h"
#include "tests/sim/amd/kfd/fake_kfd.h"

namespace bm::amd {
namespace {

using namespace std::chrono_literals;
using hal::GpuVa;
using hal::raw;
using sim::amd::FakeKfd;
using sim::amd::Launch;

template <class T>
T* gpu_pointer(sim::amd::GpuMemory& memory, const Launch& launch, uint64_t va, uint64_t count = 1) {
  return reinterpret_cast<T*>(memory.at(0x4a10 + launch.gpu * 7, va, count * sizeof(T), true));
}

/// "lookup": out[group] = n + group. "stack", told by its more start-up registers: out[0] = blocks
/// in x as the dispatch packet says.
bool compute_kernel(sim::amd::GpuMemory& memory, const Launch& launch) {
  const auto word = [&](size_t i) {
    return uint64_t{launch.user_data[i + 1]} << 32 | launch.user_data[i];
  };
  const bool is_stack = (launch.rsrc2 & 1) != 0;
  const uint64_t kernarg = word(is_stack ? 2 : 0);
  const auto* arguments = gpu_pointer<uint64_t>(memory, launch, kernarg, 2);
  if (arguments == nullptr) return false;
  const uint64_t groups = uint64_t{launch.groups[0]} * launch.groups[1] * launch.groups[2];
  if (is_stack) {
    auto* out = gpu_pointer<uint32_t>(memory, launch, arguments[0]);
    const auto* packet = gpu_pointer<uint32_t>(memory, launch, word(0), 16);
    if (out == nullptr || packet == nullptr || launch.scratch == 0) return false;
    *out = packet[3] / launch.threads[0];
    return true;
  }
  auto* out = gpu_pointer<uint32_t>(memory, launch, arguments[0], groups);
  if (out == nullptr) return false;
  for (uint64_t i = 0; i < groups; ++i) out[i] = static_cast<uint32_t>(arguments[1] + i);
  return true;
}

std::optional<sim::amd::Death> run_kernel(sim::amd::GpuMemory& memory, const Launch& launch) {
  if (compute_kernel(memory, launch)) return std::nullopt;
  return sim::amd::Death{sim::amd::Death::Kind::kException, launch.entry, false, "bad launch"};
}

std::vector<std::byte> read_object(const std::string& name) {
  std::ifstream file("tests/unit/amd/data/" + name, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

hal::CodeObject code_for(const char* chip, const char* kernel) {
  hal::CodeObject code;
  code.entry = kernel;
  code.arch = chip;
  code.image = read_object(std::string(chip) + ".o");
  code.num_buffers = 1;
  code.num_vars = 1;
  code.block = {64, 1, 1};
  return code;
}

struct Mode {
  const char* chip;
  PacketMode packets;
  uint32_t xccs;
};

class AmdDeviceTest : public testing::TestWithParam<Mode> {
 protected:
  void SetUp() override { open({}); }
  void TearDown() override {
    programs_.clear();
    buffers_.clear();
    device_.reset();
    if (system_) {
      EXPECT_EQ(system_->queues(), 0u);
      EXPECT_EQ(system_->memory().objects(), 0u);
    }
  }
  void open(sim::amd::Options options, DeviceOptions device = {}) {
    TearDown();
    options.chip = GetParam().chip;
    options.xccs = GetParam().xccs;
    if (!options.execute) options.execute = run_kernel;
    device.packets = GetParam().packets;
    device.slab_bytes = 8 << 20;
    system_ = std::make_unique<FakeKfd>(options);
    auto kernel = kfd::open_gpu(*system_, {});
    ASSERT_TRUE(kernel) << kernel.error().message;
    auto made = make_device(std::move(*kernel), device);
    ASSERT_TRUE(made) << made.error().message;
    device_ = std::move(*made);
    signal_ = allocate({.size = 64, .host_visible = true, .uncached = true, .zero = true});
  }
  hal::Buffer* allocate(hal::BufferDesc desc) {
    auto buffer = device_->allocate(desc);
    EXPECT_TRUE(buffer) << buffer.error().message;
    buffers_.push_back(std::move(*buffer));
    return buffers_.back().get();
  }
  hal::Buffer* shared(uint64_t bytes) {
    return allocate({.size = bytes, .host_visible = true, .zero = true});
  }
  const hal::Program* load(const char* kernel) {
    auto program = device_->load(code_for(GetParam().chip, kernel));
    EXPECT_TRUE(program) << program.error().message;
    programs_.push_back(std::move(*program));
    return programs_.back().get();
  }
  hal::Queue& compute() { return device_->queue(hal::QueueKind::kCompute); }
  hal::Queue& copies() { return device_->queue(hal::QueueKind::kCopy); }
  uint64_t word(size_t index = 0) {
    return std::atomic_ref<uint64_t>(reinterpret_cast<uint64_t*>(signal_->host())[index]).load();
  }
  GpuVa word_va(size_t index = 0) { return hal::offset(signal_->va(), index * 8); }
  ::testing::AssertionResult reaches(uint64_t value, size_t index = 0) {
    const auto until = std::chrono::steady_clock::now() + 30s;
    while (word(index) < value) {
      if (std::chrono::steady_clock::now() > until)
        return ::testing::AssertionFailure()
               << "word " << index << " is " << word(index) << ", not " << value << "; "
               << system_->last_death() << "; " << dynamic_cast<hal::Waiting&>(*device_).activity();
      std::this_thread::yield();
    }
    return ::testing::AssertionSuccess();
  }
  hal::Buffer* arguments(const hal::Buffer& out, uint64_t n) {
    hal::Buffer* block = shared(16);
    auto* words = reinterpret_cast<uint64_t*>(block->host());
    words[0] = raw(out.va());
    words[1] = n;
    return block;
  }

  std::unique_ptr<FakeKfd> system_;
  std::unique_ptr<hal::Device> device_;
  std::vector<std::unique_ptr<hal::Buffer>> buffers_;
  std::vector<std::unique_ptr<hal::Program>> programs_;
  hal::Buffer* signal_ = nullptr;
};

std::string mode_name(const testing::TestParamInfo<Mode>& mode) {
  constexpr const char* kNames[] = {"auto", "pm4", "aql"};
  return fmt::format("{}_{}", mode.param.chip, kNames[static_cast<size_t>(mode.param.packets)]);
}

INSTANTIATE_TEST_SUITE_P(
    Modes, AmdDeviceTest,
    testing::Values(Mode{"gfx1100", PacketMode::kPm4, 1}, Mode{"gfx1100", PacketMode::kAql, 1},
                    Mode{"gfx1201", PacketMode::kPm4, 1}, Mode{"gfx1201", PacketMode::kAql, 1},
                    Mode{"gfx942", PacketMode::kPm4, 1}, Mode{"gfx942", PacketMode::kAutomatic, 8}),
    mode_name);

TEST_P(AmdDeviceTest, SaysWhatItIs) {
  const hal::Arch& arch = device_->arch();
  EXPECT_EQ(arch.vendor, hal::Vendor::kAmd);
  EXPECT_EQ(arch.name, GetParam().chip);
  EXPECT_EQ(arch.max_block, 1024u);
  EXPECT_EQ(arch.shared_memory_bytes, 65536u);
  EXPECT_EQ(arch.clock_hz, 100'000'000u);
  EXPECT_GT(device_->memory().total, device_->memory().used);
  EXPECT_NE(device_->description().find(GetParam().chip), std::string::npos);
}

TEST_P(AmdDeviceTest, TheComputeQueueHasThePriorityAskedFor) {
  EXPECT_EQ(system_->priorities(), (std::vector<uint32_t>{7, 7, 7}));
  open({}, {.priority = 15});
  EXPECT_EQ(system_->priorities(), (std::vector<uint32_t>{15, 7, 7}));
}

TEST_P(AmdDeviceTest, KernelsRunInOrderWithCopiesSignalsAndTime) {
  const hal::Program* lookup = load("lookup");
  hal::Buffer* out = allocate({.size = 4096});
  hal::Buffer* back = shared(4096);
  hal::Buffer* args = arguments(*out, 100);
  const hal::Command list[] = {hal::Timestamp{word_va(2)},
                               hal::Barrier{},
                               hal::Dispatch{lookup, args->va(), {8, 2, 1}},
                               hal::Copy{back->va(), out->va(), 64},
                               hal::Timestamp{word_va(3)},
                               hal::Write{word_va(4), 0x1'2345'6789},
                               hal::Signal{word_va(), 1}};
  ASSERT_TRUE(compute().submit(list));
  ASSERT_TRUE(reaches(1));
  const auto* values = reinterpret_cast<const uint32_t*>(back->host());
  for (uint32_t i = 0; i < 16; ++i) EXPECT_EQ(values[i], 100 + i);
  EXPECT_GT(word(2), 0u);
  EXPECT_GE(word(3), word(2));
  EXPECT_EQ(word(4), 0x1'2345'6789u);
  EXPECT_TRUE(device_->status());
}

TEST_P(AmdDeviceTest, QueuesWaitForEachOther) {
  hal::Buffer* data = shared(8192);
  auto* words = reinterpret_cast<uint64_t*>(data->host());
  words[0] = 77;
  const hal::Command second[] = {
      hal::Wait{word_va(0), 5},
      hal::Copy{hal::offset(data->va(), 16), hal::offset(data->va(), 8), 8},
      hal::Signal{word_va(1), 6}};
  ASSERT_TRUE(copies().submit(second));
  const hal::Command first[] = {hal::Wait{word_va(2), 1},
                                hal::Copy{hal::offset(data->va(), 8), data->va(), 8},
                                hal::Signal{word_va(0), 5}};
  ASSERT_TRUE(compute().submit(first));
  std::this_thread::sleep_for(5ms);
  EXPECT_EQ(word(1), 0u);
  const hal::Command start[] = {hal::Signal{word_va(2), 1}};
  ASSERT_TRUE(copies().submit({}));
  std::atomic_ref<uint64_t>(reinterpret_cast<uint64_t*>(signal_->host())[2]).store(1);
  ASSERT_TRUE(reaches(6, 1));
  EXPECT_EQ(words[2], 77u);
  (void)start;
}

TEST_P(AmdDeviceTest, WaitsOfLargeValuesHold) {
  const hal::Command list[] = {hal::Signal{word_va(0), uint64_t{3} << 32 | 5},
                               hal::Wait{word_va(0), uint64_t{3} << 32 | 4},
                               hal::Signal{word_va(1), 1}};
  ASSERT_TRUE(compute().submit(list));
  ASSERT_TRUE(reaches(1, 1));
  // Done before the word is written from here: its own signal would come after that and undo it.
  const hal::Command again[] = {list[0], list[1], hal::Signal{word_va(1), 2}};
  ASSERT_TRUE(copies().submit(again));
  ASSERT_TRUE(reaches(2, 1));
  // Nor may a chiplet be waiting yet: the next packet starts when all have passed the one before.
  const hal::Command next[] = {hal::Signal{word_va(3), 1}};
  ASSERT_TRUE(compute().submit(next));
  ASSERT_TRUE(reaches(1, 3));
  const hal::Command blocked[] = {hal::Wait{word_va(0), uint64_t{4} << 32},
                                  hal::Signal{word_va(2), 1}};
  ASSERT_TRUE(copies().submit(blocked));
  std::this_thread::sleep_for(3ms);
  EXPECT_EQ(word(2), 0u);
  std::atomic_ref<uint64_t>(reinterpret_cast<uint64_t*>(signal_->host())[0])
      .store(uint64_t{5} << 32);
  ASSERT_TRUE(reaches(1, 2));
}

TEST_P(AmdDeviceTest, ScratchAndTheDispatchPacketReachTheKernel) {
  const hal::Program* stack = load("stack");
  hal::Buffer* out = shared(64);
  hal::Buffer* args = arguments(*out, 3);
  const hal::Command list[] = {hal::Dispatch{stack, args->va(), {9, 1, 1}},
                               hal::Signal{word_va(), 1}};
  ASSERT_TRUE(compute().submit(list));
  ASSERT_TRUE(reaches(1));
  EXPECT_EQ(*reinterpret_cast<const uint32_t*>(out->host()), 9u);
}

TEST_P(AmdDeviceTest, RingsAreNeverOverrun) {
  // Many more submissions than entries, and command space that wraps; the model checks each packet.
  open({.delay_us = 1}, {.ring_entries = 256, .copy_ring_bytes = 4096, .command_bytes = 64 << 10});
  hal::Buffer* data = shared(64);
  const hal::Program* lookup = load("lookup");
  hal::Buffer* args = arguments(*data, 0);
  for (uint64_t i = 1; i <= 600; ++i) {
    const hal::Command list[] = {hal::Dispatch{lookup, args->va(), {1, 1, 1}},
                                 hal::Copy{hal::offset(data->va(), 8), data->va(), 8},
                                 hal::Signal{word_va(), i}};
    ASSERT_TRUE(compute().submit(list));
  }
  ASSERT_TRUE(reaches(600));
  // One list with more entries than the ring has.
  std::vector<hal::Command> many;
  for (uint64_t i = 0; i < 700; ++i) {
    many.push_back(hal::Copy{hal::offset(data->va(), 8), data->va(), 8});
    many.push_back(hal::Dispatch{lookup, args->va(), {1, 1, 1}});
  }
  many.push_back(hal::Signal{word_va(), 601});
  ASSERT_TRUE(compute().submit(many));
  ASSERT_TRUE(reaches(601));
  // Copies alone, in one list and in a recording: both longer than their ring.
  std::vector<hal::Command> copies_only;
  for (uint64_t i = 0; i < 500; ++i)
    copies_only.push_back(hal::Copy{hal::offset(data->va(), 8 + i % 3), data->va(), 8});
  copies_only.push_back(hal::Signal{word_va(), 602});
  ASSERT_TRUE(copies().submit(copies_only));
  ASSERT_TRUE(reaches(602));
  const hal::Patch patches[] = {
      {.command = 500, .field = hal::PatchField::kSignalValue, .slot = 0}};
  auto recording = copies().record(copies_only, patches);
  ASSERT_TRUE(recording) << recording.error().message;
  for (uint64_t i = 603; i < 610; ++i) {
    ASSERT_TRUE(copies().replay(**recording, std::array{i}));
    ASSERT_TRUE(reaches(i));
  }
  EXPECT_EQ(system_->last_death(), "");
}

TEST_P(AmdDeviceTest, NoCopyPacketPassesTheEndOfItsRing) {
  // Whole packets from the ring's start to its end, whatever lengths came before.
  open({}, {.copy_ring_bytes = 4096});
  hal::Buffer* data = shared(4096);
  uint64_t value = 0;
  for (uint64_t round = 0; round < 300; ++round) {
    std::vector<hal::Command> list;
    for (uint64_t i = 0; i <= round % 7; ++i)
      list.push_back(hal::Copy{hal::offset(data->va(), 8 + i), data->va(), 8});
    if (round % 3 == 0) list.push_back(hal::Timestamp{word_va(1)});
    list.push_back(hal::Signal{word_va(), ++value});
    ASSERT_TRUE(copies().submit(list));
    ASSERT_TRUE(reaches(value));
  }
  EXPECT_GT(system_->machine().wraps, 10u);
  EXPECT_EQ(system_->machine().packets_over_the_end, 0u);
}

TEST_P(AmdDeviceTest, CopiesRunWithoutIndirectBuffers) {
  hal::Buffer* data = shared(64);
  const hal::Command list[] = {hal::Copy{hal::offset(data->va(), 8), data->va(), 8},
                               hal::Signal{word_va(), 1}};
  ASSERT_TRUE(copies().submit(list));
  ASSERT_TRUE(reaches(1));
  EXPECT_TRUE(system_->machine().all_findings().empty());
}

TEST(AmdScratch, WavesOfAChipletAreAMultipleOfItsShaderEngines) {
  // Engine counts that divide nothing, and every step of the fallback where memory is short.
  for (const char* name : {"gfx942", "gfx1100", "gfx1201"}) {
    for (uint32_t engines = 1; engines <= 7; ++engines) {
      for (const uint32_t cus : {1u, 20u, 37u, 38u, 96u, 304u}) {
        for (uint32_t share = 1; share <= 32; share *= 2) {
          GpuFacts facts;
          facts.chip = find_chip(name);
          facts.engines_per_xcc = engines;
          facts.cus_per_xcc = cus;
          const ScratchSize size = scratch_size(facts, 5000, share);
          const uint64_t waves = size.tmpring & 0xfff;
          const uint64_t all = facts.chip->is_scratch_per_engine ? waves * engines : waves;
          ASSERT_GT(waves, 0u);
          EXPECT_EQ(all % engines, 0u) << name << " " << engines << " " << cus << " " << share;
          EXPECT_GE(size.xcc_bytes, all * size.wave_bytes);
        }
      }
    }
  }
}

TEST(AmdDevice, Pm4QueuesOfSeveralChipletsAreRefused) {
  FakeKfd system({.chip = "gfx942", .xccs = 4});
  auto kernel = kfd::open_gpu(system, {});
  ASSERT_TRUE(kernel) << kernel.error().message;
  const auto device = make_device(std::move(*kernel), {.packets = PacketMode::kPm4});
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, Code::kUnsupported);
  EXPECT_NE(device.error().message.find("PM4 queues on a GPU of 4 chiplets"), std::string::npos);
  EXPECT_NE(device.error().message.find("BM_AMD_QUEUE"), std::string::npos);
}

TEST_P(AmdDeviceTest, WordsMayBeFreedOnceASignalBehindTheirWaitIsSeen) {
  // One chiplet signals, another has not looked at the word yet: freed, it would be a memory fault.
  alignas(4096) static std::array<uint64_t, 512> page{};
  page.fill(1);
  auto wrapped = device_->allocate({.size = sizeof page, .external = page.data()});
  ASSERT_TRUE(wrapped) << wrapped.error().message;
  sim::amd::Knobs& knobs = system_->knobs();
  if (GetParam().xccs > 1) knobs.held_chiplet = static_cast<int>(GetParam().xccs) - 1;
  const hal::Command list[] = {hal::Wait{(*wrapped)->va(), 1}, hal::Signal{word_va(), 1}};
  ASSERT_TRUE(compute().submit(list));
  constexpr uint64_t kTurns = 50;
  while (GetParam().xccs > 1 && word() == 0 && knobs.held_turns < kTurns) std::this_thread::yield();
  if (word() != 0) wrapped->reset();
  knobs.held_chiplet = -1;
  ASSERT_TRUE(reaches(1));
  wrapped->reset();
  const hal::Command next[] = {hal::Signal{word_va(), 2}};
  ASSERT_TRUE(compute().submit(next));
  EXPECT_TRUE(reaches(2));
  EXPECT_EQ(system_->last_death(), "");
}

TEST_P(AmdDeviceTest, ReplaysWaitForEveryChiplet) {
  // A chiplet may come to a buffer long after the first one has signalled from it.
  const hal::Command list[] = {hal::Wait{word_va(1), 0}, hal::Timestamp{word_va(2)},
                               hal::Write{word_va(3), 1}, hal::Signal{word_va(), 1}};
  const hal::Patch patches[] = {{.command = 0, .field = hal::PatchField::kSignalValue, .slot = 1},
                                {.command = 2, .field = hal::PatchField::kSignalValue, .slot = 0},
                                {.command = 3, .field = hal::PatchField::kSignalValue, .slot = 0}};
  auto recording = compute().record(list, patches);
  ASSERT_TRUE(recording) << recording.error().message;
  for (uint64_t i = 1; i <= 200; ++i) {
    std::atomic_ref<uint64_t>(reinterpret_cast<uint64_t*>(signal_->host())[1]).store(i);
    ASSERT_TRUE(compute().replay(**recording, std::array{i, i}));
    ASSERT_TRUE(reaches(i));
    EXPECT_EQ(word(3), i);
    EXPECT_EQ(word(), i) << "nobody writes an older value later";
  }
  EXPECT_EQ(system_->last_death(), "");
}

TEST_P(AmdDeviceTest, RecordingsAreReplayedWithNewValues) {
  const hal::Program* lookup = load("lookup");
  hal::Buffer* out = shared(4096);
  hal::Buffer* other = shared(4096);
  hal::Buffer* copy = shared(4096);
  hal::Buffer* args = arguments(*out, 1);
  const hal::Command list[] = {hal::Wait{word_va(1), 0},
                               hal::Dispatch{lookup, args->va(), {4, 1, 1}},
                               hal::Copy{copy->va(), out->va(), 16}, hal::Signal{word_va(), 1}};
  using hal::PatchField;
  const hal::Patch patches[] = {
      {1, PatchField::kKernarg, 0, 0, 0},    {1, PatchField::kKernarg, 1, 1, 5},
      {1, PatchField::kGridX, 0, 2, 0},      {2, PatchField::kCopySrc, 0, 0, 0},
      {2, PatchField::kCopyBytes, 0, 3, 0},  {3, PatchField::kSignalValue, 0, 4, 0},
      {0, PatchField::kSignalValue, 0, 5, 0}};
  auto recording = compute().record(list, patches);
  ASSERT_TRUE(recording) << recording.error().message;
  std::memset(args->host(), 0, 16);  // the recording has a copy
  for (uint64_t i = 1; i <= 40; ++i) {
    hal::Buffer* to = i % 2 != 0 ? other : out;
    const uint64_t groups = i % 5, bytes = i % 3 == 0 ? 0 : 8;
    std::memset(to->host(), 0, 64);
    std::memset(copy->host(), 0, 64);
    const uint64_t values[] = {raw(to->va()), i * 10, groups, bytes, i, 0};
    ASSERT_TRUE(compute().replay(**recording, values));
    ASSERT_TRUE(reaches(i));
    const auto* got = reinterpret_cast<const uint32_t*>(to->host());
    for (uint64_t g = 0; g < 5; ++g)
      EXPECT_EQ(got[g], g < groups ? i * 10 + 5 + g : 0) << i << " " << g;
    EXPECT_EQ(std::memcmp(copy->host(), to->host(), bytes), 0);
    EXPECT_EQ(reinterpret_cast<const uint64_t*>(copy->host())[1], 0u);
  }
  // What cannot be is refused, and the recording stays as good.
  const uint64_t bad_grid[] = {raw(out->va()), 0, uint64_t{1} << 32, 8, 41, 0};
  EXPECT_FALSE(compute().replay(**recording, bad_grid));
  const uint64_t bad_copy[] = {0, 0, 1, 8, 41, 0};
  EXPECT_FALSE(compute().replay(**recording, bad_copy));
  EXPECT_FALSE(compute().replay(**recording, std::span(bad_copy).first(3)));
  const uint64_t good[] = {raw(out->va()), 0, 1, 8, 41, 0};
  ASSERT_TRUE(compute().replay(**recording, good));
  ASSERT_TRUE(reaches(41));
}

TEST_P(AmdDeviceTest, PatchesOfNothingAreRefused) {
  const hal::Program* lookup = load("lookup");
  hal::Buffer* out = shared(64);
  hal::Buffer* args = arguments(*out, 1);
  const hal::Command list[] = {hal::Dispatch{lookup, args->va(), {4, 1, 1}},
                               hal::Signal{word_va(), 1}};
  using hal::PatchField;
  for (const hal::Patch& patch :
       {hal::Patch{2, PatchField::kKernarg, 0, 0, 0}, hal::Patch{0, PatchField::kKernarg, 2, 0, 0},
        hal::Patch{0, PatchField::kCopyDst, 0, 0, 0}, hal::Patch{1, PatchField::kGridX, 0, 0, 0},
        hal::Patch{0, PatchField::kSignalValue, 0, 0, 0}}) {
    const hal::Patch patches[] = {patch};
    EXPECT_FALSE(compute().record(list, patches));
  }
  const hal::Patch twice[] = {{0, PatchField::kGridX, 0, 0, 0}, {0, PatchField::kGridX, 0, 1, 0}};
  EXPECT_FALSE(compute().record(list, twice));
}

TEST_P(AmdDeviceTest, MalformedCommandsRunNothing) {
  const hal::Program* lookup = load("lookup");
  hal::Buffer* out = shared(64);
  hal::Buffer* args = arguments(*out, 1);
  const hal::Command bad[] = {hal::Wait{GpuVa{0}, 1},
                              hal::Signal{GpuVa{4}, 1},
                              hal::Copy{GpuVa{0}, out->va(), 8},
                              hal::Dispatch{nullptr, args->va(), {1, 1, 1}},
                              hal::Dispatch{lookup, GpuVa{0}, {1, 1, 1}},
                              hal::Dispatch{lookup, GpuVa{raw(args->va()) + 4}, {1, 1, 1}},
                              hal::Dispatch{lookup, args->va(), {UINT32_MAX, 1, 1}}};
  for (const hal::Command& command : bad) {
    const hal::Command list[] = {hal::Signal{word_va(), 9}, command};
    const Status submitted = compute().submit(list);
    ASSERT_FALSE(submitted);
    EXPECT_EQ(submitted.error().code, Code::kInvalidArgument) << submitted.error().message;
  }
  const hal::Command on_copies[] = {hal::Dispatch{lookup, args->va(), {1, 1, 1}}};
  EXPECT_EQ(copies().submit(on_copies).error().code, Code::kUnsupported);
  const hal::Command good[] = {hal::Signal{word_va(1), 1}};
  ASSERT_TRUE(compute().submit(good));
  ASSERT_TRUE(reaches(1, 1));
  EXPECT_EQ(word(), 0u);
  EXPECT_TRUE(device_->status());
}

TEST_P(AmdDeviceTest, AMemoryFaultNamesKernelAddressAndNeighbour) {
  open({.execute = [](sim::amd::GpuMemory&, const Launch&) -> std::optional<sim::amd::Death> {
    return std::nullopt;
  }});
  const hal::Program* lookup = load("lookup");
  hal::Buffer* out = shared(4096);
  hal::Buffer* args = arguments(*out, 1);
  const hal::Command list[] = {hal::Dispatch{lookup, args->va(), {1, 1, 1}},
                               hal::Signal{word_va(), 1}};
  ASSERT_TRUE(compute().submit(list));
  ASSERT_TRUE(reaches(1));
  system_->raise_memory_fault(0, raw(out->va()) + (64 << 20), true);
  std::this_thread::sleep_for(20ms);
  const Status status = device_->status();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kDeviceFault);
  for (const char* text : {"memory fault at", "read-only", "lookup", "allocation of", "dispatch 1"})
    EXPECT_NE(status.error().message.find(text), std::string::npos) << status.error().message;
  // Sticky, everywhere.
  EXPECT_EQ(compute().submit(list).error().message, status.error().message);
  EXPECT_EQ(device_->allocate({.size = 8}).error().message, status.error().message);
}

TEST_P(AmdDeviceTest, ACopyToNowhereIsFoundByTheEngine) {
  hal::Buffer* data = shared(64);
  const hal::Command list[] = {hal::Copy{GpuVa{0x10000}, data->va(), 64},
                               hal::Signal{word_va(), 1}};
  ASSERT_TRUE(copies().submit(list));
  const auto until = std::chrono::steady_clock::now() + 5s;
  Status status;
  while ((status = device_->status()) && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(1ms);
  ASSERT_FALSE(status);
  for (const char* text : {"memory fault at 0x10000", "copy of 64 bytes", "touches 0x10000"})
    EXPECT_NE(status.error().message.find(text), std::string::npos) << status.error().message;
}

TEST_P(AmdDeviceTest, AResetLosesTheDevice) {
  system_->raise_reset(0, true);
  std::this_thread::sleep_for(10ms);
  const Status status = device_->status();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kDeviceLost);
  EXPECT_NE(status.error().message.find("reset the whole GPU"), std::string::npos);
}

TEST_P(AmdDeviceTest, AStalledQueueTimesOutAndClosesInTime) {
  const ScopedSetting bound("BM_WAIT_TIMEOUT_MS", "50");
  const ScopedSetting quiet("BM_LOG", "amd=0");
  open({.is_stalled = true}, {.ring_entries = 256});
  const hal::Command list[] = {hal::Signal{word_va(), 1}};
  Status status;
  for (int i = 0; i < 100'000 && status; ++i) status = compute().submit(list);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kTimeout);
  EXPECT_NE(status.error().message.find("the ring is full"), std::string::npos);
  const auto start = std::chrono::steady_clock::now();
  buffers_.clear();
  device_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
}

TEST_P(AmdDeviceTest, SleepersAreWokenByTheQueue) {
  auto& waiting = dynamic_cast<hal::Waiting&>(*device_);
  EXPECT_FALSE(waiting.sleep_until_event(1'000'000'000)) << "nothing to wait for";
  const hal::Command list[] = {hal::Wait{word_va(1), 1}, hal::Signal{word_va(), 1}};
  ASSERT_TRUE(compute().submit(list));
  std::thread later([&] {
    std::this_thread::sleep_for(20ms);
    std::atomic_ref<uint64_t>(reinterpret_cast<uint64_t*>(signal_->host())[1]).store(1);
  });
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(waiting.sleep_until_event(5'000'000'000));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 4900ms);
  later.join();
  ASSERT_TRUE(reaches(1));
}

TEST_P(AmdDeviceTest, MemoryOfOthersIsReached) {
  std::vector<std::byte> mine(10000, std::byte{3});
  auto wrapped = device_->allocate({.size = mine.size() - 7, .external = mine.data() + 7});
  ASSERT_TRUE(wrapped) << wrapped.error().message;
  hal::Buffer* data = shared(10000);
  const hal::Command list[] = {hal::Copy{data->va(), (*wrapped)->va(), 9993},
                               hal::Signal{word_va(), 1}};
  ASSERT_TRUE(compute().submit(list));
  ASSERT_TRUE(reaches(1));
  EXPECT_EQ(std::memcmp(data->host(), mine.data() + 7, 9993), 0);
}

TEST_P(AmdDeviceTest, VideoMemoryIsZeroedAndExhaustedGracefully) {
  hal::Buffer* zeroed = allocate({.size = 5 << 20, .zero = true});
  hal::Buffer* back = shared(4096);
  std::memset(back->host(), 1, 4096);
  const hal::Command list[] = {
      hal::Copy{back->va(), hal::offset(zeroed->va(), (5 << 20) - 4096), 4096},
      hal::Signal{word_va(), 1}};
  ASSERT_TRUE(copies().submit(list));
  ASSERT_TRUE(reaches(1));
  EXPECT_EQ(back->host()[4095], std::byte{0});
  const auto failed = device_->allocate({.size = uint64_t{2} << 30});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, Code::kOutOfMemory);
  EXPECT_TRUE(device_->status());
}

}  // namespace
}  // namespace bm::amd
