// A device behind a USB bridge at work: what goes wrong on the cable, and what work costs there.

#include <atomic>
#include <chrono>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "drivers/amd/device.h"
#include "drivers/hcq/shadow_device.h"
#include "tests/unit/amd_am/usb_rig.h"

namespace bm::amd {
namespace {

using namespace std::chrono_literals;
using Failure = sim::Asm24Model::Failure;
using test::UsbCardRig;

struct DeviceRig : UsbCardRig {
  explicit DeviceRig(const sim::amd::ChipOptions& options = {.chip = "gfx1100"})
      : UsbCardRig(options) {}
  Status start() {
    auto gpu = BM_TRY(open());
    am::HostPath& path = *gpu->host_path();
    device = hcq::make_shadowed(BM_TRY(make_device(std::move(gpu))), path);
    words = BM_TRY(device->allocate({.size = 4096, .host_visible = true, .uncached = true}));
    return {};
  }
  std::atomic_ref<uint64_t> word(uint64_t index) {
    return std::atomic_ref<uint64_t>(reinterpret_cast<uint64_t*>(words->host())[index]);
  }
  hal::GpuVa va(uint64_t index) const { return hal::offset(words->va(), index * 8); }
  /// Waits for word 0, bounded; what ended the wait.
  Status wait_for(uint64_t value) {
    const auto end = std::chrono::steady_clock::now() + 30s;
    while (word(0) < value) {
      BM_TRY(device->status());
      if (std::chrono::steady_clock::now() > end) return fail(Code::kTimeout, "nothing came");
      std::this_thread::sleep_for(20us);
    }
    return {};
  }
  std::unique_ptr<hal::Device> device;
  std::unique_ptr<hal::Buffer> words;
};

TEST(AmUsbDevice, LateWritesOfTheHostReachQueuesThatWait) {
  DeviceRig rig;
  ASSERT_TRUE(rig.start());
  auto from = *rig.device->allocate({.size = 4096, .host_visible = true});
  auto to = *rig.device->allocate({.size = 4096, .host_visible = true});
  const hal::Command commands[] = {hal::Wait{rig.va(1), 5},
                                   hal::Copy{hal::offset(to->va(), 3), from->va(), 1001},
                                   hal::Signal{rig.va(0), 1}};
  ASSERT_TRUE(rig.device->queue(hal::QueueKind::kCopy).submit(commands));
  std::memset(to->host(), 0x11, 4096);
  for (size_t i = 0; i < 1001; ++i) from->host()[i] = static_cast<std::byte>(i * 7);
  rig.word(1) = 5;
  const Status done = rig.wait_for(1);
  ASSERT_TRUE(done) << done.error().message;
  for (size_t i = 0; i < 1001; ++i) ASSERT_EQ(to->host()[i + 3], static_cast<std::byte>(i * 7));
  EXPECT_EQ(to->host()[2], std::byte{0x11}) << "what the copy does not touch is the host's";
  EXPECT_EQ(to->host()[1004], std::byte{0x11});
  EXPECT_EQ(rig.complaints(), "");
}

TEST(AmUsbDevice, MemoryOfTheProcessIsStoodForInWords) {
  DeviceRig rig;
  ASSERT_TRUE(rig.start());
  alignas(8) static std::byte mine[64];
  const auto odd = rig.device->allocate({.size = 60, .external = mine});
  ASSERT_FALSE(odd);
  EXPECT_EQ(odd.error().code, Code::kUnsupported);
  EXPECT_NE(odd.error().message.find("reaches no memory of this process"), std::string::npos);
}

TEST(AmUsbDevice, UnpluggedInTheMiddleIsLostWithTheFirstCause) {
  for (const uint64_t after : {0u, 3u, 17u, 60u}) {
    DeviceRig rig;
    ASSERT_TRUE(rig.start());
    auto from = *rig.device->allocate({.size = 1 << 20, .host_visible = true});
    auto to = *rig.device->allocate({.size = 1 << 20});
    std::memset(from->host(), 0x5a, from->size());
    rig.bridge.plant(rig.bridge.transfers() + after, Failure::kUnplug);
    const auto begun = std::chrono::steady_clock::now();
    const hal::Command commands[] = {hal::Copy{to->va(), from->va(), from->size()},
                                     hal::Copy{from->va(), to->va(), from->size()},
                                     hal::Signal{rig.va(0), 1}};
    Status done = rig.device->queue(hal::QueueKind::kCopy).submit(commands);
    if (done) done = rig.wait_for(1);
    for (int turn = 0; turn < 2000 && done; ++turn) {
      done = rig.device->status();
      std::this_thread::sleep_for(1ms);
    }
    ASSERT_FALSE(done) << "after " << after;
    EXPECT_NE(done.error().message.find("the device is gone"), std::string::npos)
        << done.error().message;
    const Status again = rig.device->status();
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().code, Code::kDeviceLost) << again.error().message;
    EXPECT_LT(std::chrono::steady_clock::now() - begun, 20s);
  }
}

/// Whatever a single transfer does, a boot ends and says where, or works.
void sweep(Failure failure, const char* chip) {
  uint64_t transfers = 0;
  {
    UsbCardRig rig({.chip = chip});
    const auto gpu = rig.open();
    ASSERT_TRUE(gpu) << gpu.error().message;
    transfers = rig.bridge.transfers();
  }
  constexpr uint64_t kCases = 60;
  for (uint64_t n = 0; n < transfers; n += transfers / kCases + 1) {
    UsbCardRig rig({.chip = chip});
    rig.bridge.plant(n, failure);
    const auto gpu = rig.open();
    if (gpu) continue;
    const std::string& message = gpu.error().message;
    EXPECT_TRUE(message.find("control ") != std::string::npos ||
                message.find("bulk ") != std::string::npos ||
                message.find("usb ") != std::string::npos)
        << "transfer " << n << ": " << message;
  }
}
TEST(AmUsbFaults, ATransferThatTimesOut) { sweep(Failure::kTimeout, "gfx1100"); }
TEST(AmUsbFaults, AStall) { sweep(Failure::kStall, "gfx1201"); }
TEST(AmUsbFaults, AShortTransfer) { sweep(Failure::kShort, "gfx1100"); }
TEST(AmUsbFaults, Unplugged) { sweep(Failure::kUnplug, "gfx1201"); }

/// Sizes around windows and sectors, places of any alignment; what lies next to them stays.
TEST(AmUsbCopies, LongOnesGoThroughTheMemoryOfTheBridge) {
  UsbCardRig rig({.chip = "gfx1201"});
  const auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  am::HostPath& path = *(*gpu)->host_path();
  constexpr uint64_t kBytes = 12 << 20;
  const auto memory = (*gpu)->allocate({.size = kBytes, .domain = MemoryDomain::kSystemUncached});
  ASSERT_TRUE(memory) << memory.error().message;
  std::mt19937_64 random(std::random_device{}());
  std::vector<std::byte> mirror(kBytes), seen(kBytes);
  for (std::byte& b : mirror) b = static_cast<std::byte>(random());
  ASSERT_TRUE(path.write((*memory)->va, mirror));
  constexpr uint64_t kWindow = 256 << 10;
  const uint64_t sizes[] = {16 << 10,    (16 << 10) + 1, kWindow - 5,     kWindow - 4,
                            kWindow - 3, kWindow,        2 * kWindow + 7, 33 * kWindow + 12345};
  for (const uint64_t size : sizes) {
    const uint64_t at = random() % (kBytes - size);
    for (uint64_t i = 0; i < size; ++i) mirror[at + i] = static_cast<std::byte>(random());
    const auto before = rig.bridge.counts();
    const Status sent = path.write((*memory)->va + at, std::span(mirror).subspan(at, size));
    ASSERT_TRUE(sent) << sent.error().message;
    EXPECT_GE(rig.bridge.counts().sram_bytes - before.sram_bytes, size);
    const uint64_t first = random() % (kBytes - size);
    const auto part = std::span(seen).subspan(first, size);
    const Status fetched = path.read((*memory)->va + first, part);
    ASSERT_TRUE(fetched) << fetched.error().message;
    ASSERT_TRUE(std::ranges::equal(part, std::span(mirror).subspan(first, size))) << size;
    EXPECT_GE(rig.bridge.counts().sram_bytes - before.sram_bytes, size * 2);
  }
  ASSERT_TRUE(path.read((*memory)->va, seen));
  EXPECT_TRUE(seen == mirror);
  EXPECT_EQ(rig.complaints(), "");
}

/// Small writes before and after, some of them not sent yet: in the order of the calls.
TEST(AmUsbCopies, KeepTheOrderOfSmallWrites) {
  UsbCardRig rig({.chip = "gfx1100"});
  const auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  am::HostPath& path = *(*gpu)->host_path();
  const auto memory = (*gpu)->allocate({.size = 1 << 20, .domain = MemoryDomain::kSystemUncached});
  ASSERT_TRUE(memory) << memory.error().message;
  const uint64_t va = (*memory)->va;
  const std::vector<std::byte> small(100, std::byte{1}), large(100'000, std::byte{2});
  ASSERT_TRUE(path.write(va + 500, small));
  ASSERT_TRUE(path.write(va, large));
  ASSERT_TRUE(path.write(va + 900, small));
  std::vector<std::byte> seen(large.size());
  ASSERT_TRUE(path.read(va, seen));
  EXPECT_EQ(seen[500], std::byte{2});
  EXPECT_EQ(seen[950], std::byte{1});
  EXPECT_EQ(std::ranges::count(seen, std::byte{1}), 100);
}

TEST(AmUsbCopies, GoByTheBarWhereTheEngineDoesNotAnswer) {
  UsbCardRig rig({.chip = "gfx1100", .hangs_sdma = true});
  const auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  am::HostPath& path = *(*gpu)->host_path();
  const auto memory = (*gpu)->allocate({.size = 1 << 20, .domain = MemoryDomain::kSystemUncached});
  ASSERT_TRUE(memory) << memory.error().message;
  const uint64_t before = rig.bridge.counts().sram_bytes;
  std::vector<std::byte> data(300'001, std::byte{7}), seen(data.size());
  ASSERT_TRUE(path.write((*memory)->va + 3, data));
  ASSERT_TRUE(path.read((*memory)->va + 3, seen));
  EXPECT_TRUE(seen == data);
  EXPECT_EQ(rig.bridge.counts().sram_bytes, before);
}

TEST(AmUsbCopies, WorkAfterTheirEngineWasReset) {
  UsbCardRig rig({.chip = "gfx1201"});
  const auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  am::HostPath& path = *(*gpu)->host_path();
  const auto memory = (*gpu)->allocate({.size = 1 << 20, .domain = MemoryDomain::kSystemUncached});
  ASSERT_TRUE(memory) << memory.error().message;
  std::byte value{1};
  for (const RecoveryStage stage : {RecoveryStage::kQueues, RecoveryStage::kCopyEngines}) {
    const Status recovered = (*gpu)->recover(stage);
    ASSERT_TRUE(recovered) << recovered.error().message;
    value = static_cast<std::byte>(std::to_integer<int>(value) + 1);
    const std::vector<std::byte> data(70'000, value);
    std::vector<std::byte> seen(data.size());
    const auto before = rig.bridge.counts();
    ASSERT_TRUE(path.write((*memory)->va, data));
    ASSERT_TRUE(path.read((*memory)->va, seen));
    EXPECT_TRUE(seen == data);
    EXPECT_GE(rig.bridge.counts().sram_bytes - before.sram_bytes, data.size() * 2);
  }
  EXPECT_EQ(rig.complaints(), "");
}

/// What docs/hw/usb.md tells. Polls come on top: how many depends on who is faster.
TEST(AmUsbCost, OfAReplayAndOfACopy) {
  DeviceRig rig;
  ASSERT_TRUE(rig.start());
  hal::CodeObject code;
  code.entry = "scale";
  code.arch = "gfx1100";
  code.num_buffers = code.num_vars = 1;
  code.block = {64, 1, 1};
  std::ifstream file("tests/unit/amd/data/gfx1100.o", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto bytes = std::as_bytes(std::span(text));
  code.image.assign(bytes.begin(), bytes.end());
  const auto program = rig.device->load(code);
  ASSERT_TRUE(program) << program.error().message;
  auto out = *rig.device->allocate({.size = 4096});
  rig.word(8) = hal::raw(out->va());
  rig.word(9) = 7;
  hal::Queue& queue = rig.device->queue(hal::QueueKind::kCompute);
  const hal::Command commands[] = {hal::Dispatch{program->get(), rig.va(8), {1, 1, 1}},
                                   hal::Signal{rig.va(0), 1}};
  const hal::Patch patches[] = {{.command = 0, .word = 1, .slot = 0},
                                {.command = 1, .field = hal::PatchField::kSignalValue, .slot = 1}};
  auto recording = queue.record(commands, patches);
  ASSERT_TRUE(recording) << recording.error().message;
  const auto run = [&](const char* what, uint64_t value, const auto& start) {
    const auto before = rig.bridge.counts();
    const Status started = start(value);
    ASSERT_TRUE(started) << started.error().message;
    const auto sent = rig.bridge.counts();
    const Status done = rig.wait_for(value);
    ASSERT_TRUE(done) << done.error().message;
    const auto after = rig.bridge.counts();
    // A read is one transfer out and one in; polls are reads.
    const auto writes = [](const sim::Asm24Model::Counts& c) {
      return c.control_out + c.bulk_out - c.control_in - c.bulk_in;
    };
    fmt::print("{}: {} transfers of writes; {} of all kinds until it was known to be done\n", what,
               writes(sent) - writes(before), after.all() - before.all());
    EXPECT_LE(writes(sent) - writes(before), 28u) << what;
  };
  const auto replay = [&](uint64_t value) {
    return queue.replay(**recording, std::array<uint64_t, 2>{value * 3, value});
  };
  for (uint64_t value = 1; value <= 3; ++value) run("replay of one kernel", value, replay);
  auto from = *rig.device->allocate({.size = 1 << 20, .host_visible = true});
  auto to = *rig.device->allocate({.size = 1 << 20});
  std::memset(from->host(), 0x5a, from->size());
  const auto copy = [&](hal::GpuVa dst, hal::GpuVa src) {
    return [&, dst, src](uint64_t value) {
      const hal::Command list[] = {hal::Copy{dst, src, 1 << 20}, hal::Signal{rig.va(0), value}};
      return rig.device->queue(hal::QueueKind::kCopy).submit(list);
    };
  };
  run("1 MiB to the device", 4, copy(to->va(), from->va()));
  run("1 MiB from the device", 5, copy(from->va(), to->va()));
  EXPECT_EQ(rig.complaints(), "");
}

}  // namespace
}  // namespace bm::amd
