// What submitting and replaying may not do: allocate, call the system, take long.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "drivers/amd/aql/packets.h"
#include "drivers/amd/chips.h"
#include "drivers/amd/device.h"
#include "drivers/amd/sdma/packets.h"
#include "runtime/base/bits.h"
#include "runtime/base/env.h"
#include "runtime/hal/device.h"
#include "tests/unit/drivers/allocation_counter.h"
#include "tests/unit/drivers/replay_cost.h"

namespace bm::amd {
namespace {

/// Plain memory of the process.
class HeapMemory final : public Memory {
 public:
  explicit HeapMemory(const MemoryRequest& request) {
    size = align_up(request.size, 4096);
    view = HostView::mapped(std::aligned_alloc(2 << 20, align_up(size, 2 << 20)), size).value();
    va = reinterpret_cast<uint64_t>(host());
    domain = request.domain;
    view.fill(0, size, std::byte{0});
  }
  ~HeapMemory() override { std::free(host()); }
};

/// Its ring is read the moment it is written, and nothing is executed: the host's part alone.
class HeapQueue final : public HardwareQueue {
 public:
  HeapQueue() {
    object = page_.view;
    object_va = page_.va;
    write_pointer = object.slice(aql::kWriteIndexOffset, sizeof(uint64_t));
    read_pointer = write_pointer;
    doorbell = Doorbell<uint64_t>::at(Mmio::mapped(&bell_, sizeof bell_).value(), 0).value();
    mailbox = page_.va + 1024;
    event_id = 1;
  }

 private:
  HeapMemory page_{{.size = 4096}};
  uint64_t bell_ = 0;
};

class HeapGpu final : public DriverInterface {
 public:
  explicit HeapGpu(const ChipRow& chip) {
    facts_.chip = &chip;
    facts_.cus_per_xcc = 96;
    facts_.engines_per_xcc = 6;
    facts_.video_memory = uint64_t{1} << 30;
    const uint32_t bases[] = {0x1260};
    EXPECT_TRUE(facts_.registers.add(gc_registers(chip.registers), bases));
  }
  const GpuFacts& facts() const override { return facts_; }
  Result<std::unique_ptr<Memory>> allocate(const MemoryRequest& request) override {
    return std::unique_ptr<Memory>(std::make_unique<HeapMemory>(request));
  }
  Result<std::shared_ptr<Memory>> map_peer(Memory&, hcq::DriverInterface&) override {
    return nullptr;
  }
  Result<std::unique_ptr<HardwareQueue>> create_queue(const QueueRequest& request) override {
    auto queue = std::make_unique<HeapQueue>();
    if (request.type == QueueType::kSdma) copies_.push_back({request.ring, queue.get(), 0});
    return std::unique_ptr<HardwareQueue>(std::move(queue));
  }
  Result<bool> wait_event(uint32_t) override { return false; }
  /// Whoever waits asks for faults: then what copy queues were given is passed, fences alone.
  std::optional<GpuFault> take_fault() override {
    for (Copies& copies : copies_) {
      const auto* words = reinterpret_cast<const uint32_t*>(copies.ring->host());
      const uint64_t all = copies.ring->size / 4;
      const uint64_t written = copies.queue->write_pointer.load<uint64_t>(0) / 4;
      while (copies.read < written) {
        const uint64_t at = copies.read % all;
        const uint32_t passed = pass({words + at, std::min(all - at, written - copies.read)});
        if (passed == 0) break;
        copies.read += passed;
      }
    }
    return std::nullopt;
  }
  uint64_t available_memory() override { return facts_.video_memory; }

 private:
  struct Copies {
    const Memory* ring;
    HeapQueue* queue;
    uint64_t read;  ///< dwords
  };
  /// Dwords of the first packet, 0: it is none.
  static uint32_t pass(std::span<const uint32_t> words) {
    const auto decoded = sdma::decode(words, SdmaForm::kV6);
    if (!decoded) return 0;
    if (const auto* fence = std::get_if<sdma::Fence>(&decoded->packet))
      *reinterpret_cast<volatile uint32_t*>(fence->address) = fence->value;
    return decoded->dwords;
  }
  GpuFacts facts_;
  std::vector<Copies> copies_;
};

/// A hundred kernels of two arguments, one of them and the signal patched.
struct CostRig {
  explicit CostRig(PacketMode packets) {
    device = make_device(std::make_unique<HeapGpu>(*find_chip("gfx1100")),
                         {.packets = packets, .slab_bytes = 8 << 20})
                 .value();
    buffer = device->allocate({.size = 1 << 16, .host_visible = true}).value();
    hal::CodeObject code;
    code.entry = "lookup";
    code.arch = "gfx1100";
    code.num_buffers = code.num_vars = 1;
    code.block = {64, 1, 1};
    std::ifstream file("tests/unit/amd/data/gfx1100.o", std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const auto bytes = std::as_bytes(std::span(text));
    code.image.assign(bytes.begin(), bytes.end());
    auto loaded = device->load(code);
    EXPECT_TRUE(loaded) << loaded.error().message;
    program = std::move(loaded.value());
    record();
  }
  ~CostRig() {
    // Waits for work that never runs end soon.
    const ScopedSetting bound("BM_WAIT_TIMEOUT_MS", "1");
    const ScopedSetting quiet("BM_LOG", "amd=0");
    recording.reset();
    program.reset();
    buffer.reset();
    device.reset();
  }
  hal::Queue& queue() { return device->queue(hal::QueueKind::kCompute); }
  void record() {
    std::vector<hal::Command> commands = {hal::Wait{buffer->va(), 0}, hal::Barrier{}};
    std::vector<hal::Patch> patches = {
        {.command = 0, .field = hal::PatchField::kSignalValue, .slot = 0}};
    for (uint32_t i = 0; i < 100; ++i) {
      patches.push_back({.command = static_cast<uint32_t>(commands.size()),
                         .field = hal::PatchField::kKernarg,
                         .slot = 2,
                         .addend = i * 8});
      commands.emplace_back(hal::Dispatch{program.get(), hal::offset(buffer->va(), 64), {}});
    }
    patches.push_back({.command = static_cast<uint32_t>(commands.size()),
                       .field = hal::PatchField::kSignalValue,
                       .slot = 1});
    commands.emplace_back(hal::Signal{buffer->va(), 0});
    auto made = queue().record(commands, patches);
    ASSERT_TRUE(made) << made.error().message;
    recording = std::move(*made);
  }
  bool submit() {
    const hal::Command commands[] = {
        hal::Wait{buffer->va(), 1}, hal::Dispatch{program.get(), hal::offset(buffer->va(), 64), {}},
        hal::Copy{hal::offset(buffer->va(), 256), buffer->va(), 64}, hal::Signal{buffer->va(), 1}};
    return queue().submit(commands).has_value();
  }
  bool replay() {
    ++value;
    const uint64_t values[] = {value, value + 1, 0x1000'0000 + value * 4096};
    return queue().replay(*recording, values).has_value();
  }
  std::unique_ptr<hal::Device> device;
  std::unique_ptr<hal::Buffer> buffer;
  std::unique_ptr<hal::Program> program;
  std::unique_ptr<hal::Recording> recording;
  uint64_t value = 0;
};

class AmdCost : public testing::TestWithParam<PacketMode> {};
INSTANTIATE_TEST_SUITE_P(Modes, AmdCost, testing::Values(PacketMode::kPm4, PacketMode::kAql));

TEST_P(AmdCost, NoAllocationOnReplayAndSubmit) {
  CostRig rig(GetParam());
  ASSERT_TRUE(rig.replay());
  ASSERT_TRUE(rig.submit());  // the first submissions grow the encoder's lists
  ASSERT_TRUE(rig.submit());
  const uint64_t before = bm::test::allocations_of_this_thread();
  bool good = true;
  for (int i = 0; i < 50; ++i) good = good && rig.replay() && rig.submit();
  EXPECT_EQ(bm::test::allocations_of_this_thread() - before, 0u);
  EXPECT_TRUE(good);
}

TEST_P(AmdCost, NoSystemCallOnReplayAndSubmit) {
  bm::test::expect_no_system_call([] {
    auto rig = std::make_unique<CostRig>(GetParam());
    rig->submit();
    rig->submit();
    return rig;
  });
}

TEST_P(AmdCost, AHundredKernelsTakeFewInstructions) {
  // 4,249 and 12,531 by clang 19, 6,400 of which are the bytes of the block; compilers differ.
  bm::test::expect_few_instructions([] { return std::make_unique<CostRig>(GetParam()); },
                                    GetParam() == PacketMode::kPm4 ? 5'500u : 15'000u);
}

}  // namespace
}  // namespace bm::amd
