// The simulated engines refuse what their headers say they refuse: the lists of
// tests/sim/amd/engine/engine.h and process.h, an item a test. Words are written by hand here:
// neither the driver's encoders nor the engines' readers decide what they mean.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

#include "drivers/amd/kfd/abi.h"
#include "drivers/amd/kfd/gpu.h"
#include "runtime/base/bits.h"
#include "tests/sim/amd/kfd/fake_kfd.h"
#include "tests/sim/amd/kfd/sysfs.h"

namespace bm::amd::kfd {
namespace {

using namespace std::chrono_literals;
using sim::amd::FakeKfd;
using Words = std::vector<uint32_t>;

/// PACKET3 of nvd.h: opcode and dwords after the header.
constexpr uint32_t pm4(uint32_t op, uint32_t payload) {
  return 3u << 30 | (payload - 1) << 16 | op << 8;
}
constexpr uint32_t kShortNop = 0xffff1000;
/// RELEASE_MEM after CACHE_FLUSH_AND_INV_TS_EVENT (0x14, index 5).
Words release(uint64_t va, uint32_t caches, uint32_t selectors, uint32_t context = 0) {
  return {pm4(0x49, 7), 0x514 | caches, selectors, lo32(va), hi32(va), 7, 0, context};
}
constexpr uint32_t kWrite64 = 2u << 29, kInterrupt = 2u << 24;

/// One queue whose ring this test fills itself.
struct Rig {
  Rig(sim::amd::Options options, QueueType the_type) : system(std::move(options)), type(the_type) {
    gpu = open_gpu(system, {}).value();
    ring = gpu->allocate({.size = 4096, .domain = MemoryDomain::kSystemUncached}).value();
    memory = gpu->allocate({.size = 8192, .domain = MemoryDomain::kSystemUncached}).value();
    std::memset(memory->host(), 0, memory->size);
    if (type == QueueType::kAql)
      for (uint64_t at = 0; at < 4096; at += 64) word(*ring, at) = 1;  // INVALID
    queue = gpu->create_queue({.type = type, .ring = ring.get()}).value();
  }
  static uint32_t& word(const Memory& of, uint64_t byte) {
    return *reinterpret_cast<uint32_t*>(of.host() + byte);
  }
  uint64_t va() const { return memory->va; }
  /// Units as the engine counts them: bytes, dwords or packets.
  uint64_t units(size_t dwords) const {
    return type == QueueType::kSdma ? dwords * 4 : type == QueueType::kPm4 ? dwords : dwords / 16;
  }
  void ring_doorbell(uint64_t pointer, uint64_t rung) {
    queue->write_pointer.store_release(0, pointer);
    queue->doorbell.ring(type == QueueType::kAql ? rung - 1 : rung);
  }
  void put(const Words& words) {
    std::memcpy(ring->host(), words.data(), words.size() * 4);
    ring_doorbell(units(words.size()), units(words.size()));
  }
  /// A vendor packet over words that lie in the second page (AMD_AQL_FORMAT_PM4_IB).
  void put_buffer(const Words& words) {
    std::memcpy(memory->host() + 4096, words.data(), words.size() * 4);
    const uint64_t at = va() + 4096;
    put({1u << 16, pm4(0x3f, 3), lo32(at), hi32(at), static_cast<uint32_t>(words.size()) | 1u << 23,
         10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  }
  uint64_t read_pointer() const { return queue->read_pointer.load_acquire<uint64_t>(0); }
  bool reads(uint64_t pointer) const {
    for (int i = 0; i < 20'000 && read_pointer() != pointer; ++i) std::this_thread::sleep_for(1ms);
    return read_pointer() == pointer;
  }
  /// What the engine said when it died or stopped.
  std::string finding() {
    for (int i = 0; i < 20'000 && system.machine().all_findings().empty(); ++i)
      std::this_thread::sleep_for(1ms);
    const auto all = system.machine().all_findings();
    return all.empty() ? "" : all.front();
  }
  FakeKfd system;
  QueueType type;
  std::unique_ptr<DriverInterface> gpu;
  std::unique_ptr<Memory> ring, memory;
  std::unique_ptr<HardwareQueue> queue;
};

struct Refusal {
  const char* item;
  const char* chip;
  uint32_t xccs;
  QueueType type;
  bool in_buffer;
  std::function<Words(uint64_t va)> words;
  const char* finding;
};

const Refusal kRefusals[] = {
    {"R3", "gfx1100", 1, QueueType::kSdma, false,
     [](uint64_t va) { return Words{1, 3, 0, 0x1000, 0, lo32(va), hi32(va)}; }, "no mapping"},
    {"S1", "gfx1100", 1, QueueType::kSdma, false,
     [](uint64_t va) { return Words{0, 0, 4, lo32(va), hi32(va), 8, 0, 0}; }, "IB_ENABLE is clear"},
    {"S1_gfx9", "gfx942", 1, QueueType::kSdma, false,
     [](uint64_t va) { return Words{0, 0, 4, lo32(va), hi32(va), 8, 0, 0}; }, "IB_ENABLE is clear"},
    {"S1_gfx12", "gfx1201", 1, QueueType::kSdma, false,
     [](uint64_t va) { return Words{0, 0, 4, lo32(va), hi32(va), 8, 0, 0}; }, "IB_ENABLE is clear"},
    {"S2_copy", "gfx942", 1, QueueType::kSdma, false,
     [](uint64_t va) { return Words{1, 0x400000, 0, lo32(va), hi32(va), lo32(va), hi32(va)}; },
     "count has too many bits"},
    {"S2_fill", "gfx942", 1, QueueType::kSdma, false,
     [](uint64_t va) { return Words{11, lo32(va), hi32(va), 0, 0x400003}; },
     "count has too many bits"},
    {"S3", "gfx1100", 1, QueueType::kSdma, false,
     [](uint64_t va) { return Words{5, lo32(va), hi32(va), 1}; }, "FENCE's memory type"},
    {"S3_gfx9", "gfx942", 1, QueueType::kSdma, false,
     [](uint64_t va) { return Words{5 | 3 << 16, lo32(va), hi32(va), 1}; }, "FENCE's memory type"},
    {"S4", "gfx1100", 1, QueueType::kSdma, false,
     [](uint64_t va) {
       return Words{8 | 1u << 31 | 3u << 28, lo32(va), hi32(va), 0, UINT32_MAX, 0xfff << 16 | 4};
     },
     "POLL_REGMEM of another kind"},
    {"S5_opcode", "gfx1100", 1, QueueType::kSdma, false, [](uint64_t) { return Words{0x7f}; },
     "unknown SDMA packet"},
    {"S5_cut", "gfx1100", 1, QueueType::kSdma, false, [](uint64_t) { return Words{1, 3, 0}; },
     "longer than what is there"},
    {"S5_trap", "gfx1100", 1, QueueType::kSdma, false, [](uint64_t) { return Words{6, 1u << 28}; },
     "more than 28 bits"},
    {"P1_write", "gfx1100", 1, QueueType::kPm4, false,
     [](uint64_t va) { return release(va, 1 << 12, kWrite64); }, "one of GLM_WB and GLM_INV"},
    {"P1_drop", "gfx1102", 1, QueueType::kAql, true,
     [](uint64_t va) { return release(va, 1 << 13, kWrite64); }, "one of GLM_WB and GLM_INV"},
    {"P2_word", "gfx942", 4, QueueType::kAql, true,
     [](uint64_t va) { return release(va, 1 << 15, kWrite64); }, "several chiplets write one word"},
    {"P2_data", "gfx942", 2, QueueType::kAql, true,
     [](uint64_t va) { return Words{pm4(0x37, 4), 5 << 8, lo32(va), hi32(va), 1}; },
     "several chiplets write one word"},
    {"P2_interrupt", "gfx942", 4, QueueType::kAql, true,
     [](uint64_t va) { return release(va, 0, kInterrupt, 5); },
     "every chiplet raises an interrupt"},
    {"P3", "gfx1100", 1, QueueType::kPm4, false,
     [](uint64_t) { return Words{pm4(0x23, 1), 1 << 24 | 1, kShortNop}; }, "PRED_EXEC in a ring"},
    {"P4", "gfx942", 2, QueueType::kAql, true,
     [](uint64_t) { return Words{pm4(0x15, 4), 1, 1, 1, 5}; }, "several chiplets run"},
    {"P5", "gfx1100", 1, QueueType::kPm4, false,
     [](uint64_t) { return Words{pm4(0x58, 6), 0, 0, 0, 0, 0, 0}; }, "ACQUIRE_MEM's length"},
    {"P5_gfx9", "gfx942", 1, QueueType::kPm4, false,
     [](uint64_t) { return Words{pm4(0x58, 7), 0, 0, 0, 0, 0, 0, 0}; }, "ACQUIRE_MEM's length"},
    {"P6_valid", "gfx1100", 1, QueueType::kPm4, false,
     [](uint64_t va) { return Words{pm4(0x3f, 3), lo32(va), hi32(va), 8}; },
     "INDIRECT_BUFFER is not valid"},
    {"P6_nested", "gfx1100", 1, QueueType::kAql, true,
     [](uint64_t va) { return Words{pm4(0x3f, 3), lo32(va), hi32(va), 8 | 1u << 23}; },
     "an indirect buffer in an indirect buffer"},
    {"P8_event", "gfx1100", 1, QueueType::kPm4, false,
     [](uint64_t va) {
       Words words = release(va, 0, kWrite64);
       words[1] = 0x504;
       return words;
     },
     "RELEASE_MEM of another event"},
    {"P8_interrupt", "gfx1100", 1, QueueType::kPm4, false,
     [](uint64_t va) { return release(va, 0, 3u << 24); }, "RELEASE_MEM interrupt"},
    {"P8_window", "gfx1100", 1, QueueType::kPm4, false,
     [](uint64_t) { return Words{pm4(0x76, 2), 0x400, 0}; }, "leaves its window"},
    {"P8_opcode", "gfx1100", 1, QueueType::kPm4, false,
     [](uint64_t) { return Words{pm4(0x7e, 1), 0}; }, "unknown PM4 packet"},
    {"P8_header", "gfx1100", 1, QueueType::kPm4, false, [](uint64_t) { return Words{5}; },
     "no type-3 packet"},
    {"A1", "gfx1100", 1, QueueType::kAql, false,
     [](uint64_t) {
       Words words(16);
       words[0] = 2 << 16;
       return words;
     },
     "vendor packet is no PM4 buffer"},
    {"A2_group", "gfx1100", 1, QueueType::kAql, false,
     [](uint64_t va) {
       return Words{2 | 3 << 16, 64 | 1 << 16, 1, 65, 1, 1, 0, 0,
                    lo32(va),    hi32(va),     0, 0,  0, 0, 0, 0};
     },
     "a partial work-group"},
    {"A2_descriptor", "gfx1100", 1, QueueType::kAql, false,
     [](uint64_t va) {
       return Words{2 | 3 << 16,  64 | 1 << 16, 1, 64, 1, 1, 0, 0,
                    lo32(va) + 8, hi32(va),     0, 0,  0, 0, 0, 0};
     },
     "misaligned kernel descriptor"},
    {"A3", "gfx1100", 1, QueueType::kAql, false,
     [](uint64_t va) {
       return Words{2 | 3 << 16, 64 | 1 << 16, 1, 64, 1, 1, 4096, 0,
                    lo32(va),    hi32(va),     0, 0,  0, 0, 0,    0};
     },
     "more scratch than the queue has"},
};

class AmdEngine : public testing::TestWithParam<Refusal> {};
INSTANTIATE_TEST_SUITE_P(Items, AmdEngine, testing::ValuesIn(kRefusals),
                         [](const auto& item) { return std::string(item.param.item); });

TEST_P(AmdEngine, Refuses) {
  const Refusal& refusal = GetParam();
  Rig rig({.chip = refusal.chip, .xccs = refusal.xccs}, refusal.type);
  const Words words = refusal.words(rig.va());
  if (refusal.in_buffer)
    rig.put_buffer(words);
  else
    rig.put(words);
  EXPECT_NE(rig.finding().find(refusal.finding), std::string::npos) << rig.finding();
  if (std::string_view(refusal.item).starts_with("S1")) {
    EXPECT_EQ(rig.read_pointer(), 8u) << "the two NOPs before it, and never more";
  }
}

TEST(AmdEngineRing, R1ADoorbellAheadOfTheWritePointer) {
  Rig rig({}, QueueType::kSdma);
  rig.ring_doorbell(4, 8);
  EXPECT_NE(rig.finding().find("ahead of the write pointer"), std::string::npos);
}

TEST(AmdEngineRing, R2ADoorbellFurtherThanTheRingIsLong) {
  Rig rig({}, QueueType::kPm4);
  rig.ring_doorbell(1025, 1025);
  EXPECT_NE(rig.finding().find("further than the ring is long"), std::string::npos);
}

TEST(AmdEngineSdma, ThePointerCountsBytesForEverAndPacketsMayPassTheEnd) {
  Rig rig({}, QueueType::kSdma);
  rig.ring_doorbell(4092, 4092);  // NOPs
  ASSERT_TRUE(rig.reads(4092));
  const uint64_t va = rig.va();
  const Words fence = {5 | 3 << 16, lo32(va), hi32(va), 77};
  for (size_t i = 0; i < 4; ++i) Rig::word(*rig.ring, (4092 + i * 4) % 4096) = fence[i];
  rig.ring_doorbell(4108, 4108);
  ASSERT_TRUE(rig.reads(4108));
  EXPECT_EQ(Rig::word(*rig.memory, 0), 77u);
  EXPECT_EQ(rig.system.machine().packets_over_the_end, 1u);
}

TEST(AmdEnginePm4, BothMetadataActionsTogetherRun) {
  Rig rig({}, QueueType::kPm4);
  const Words words = release(rig.va(), 3 << 12, kWrite64);
  rig.put(words);
  ASSERT_TRUE(rig.reads(words.size()));
  EXPECT_EQ(Rig::word(*rig.memory, 0), 7u);
}

TEST(AmdEnginePm4, PredicatedWordsAreForTheChipletsInTheMask) {
  Rig rig({.chip = "gfx942", .xccs = 4}, QueueType::kAql);
  Words words;
  for (const uint32_t xcc : {0u, 1u, 2u, 3u}) {
    words.insert(words.end(), {pm4(0x23, 1), 1u << (24 + xcc) | 8});
    const Words one = release(rig.va() + xcc * 8, 1 << 15, kWrite64);
    words.insert(words.end(), one.begin(), one.end());
  }
  rig.put_buffer(words);
  ASSERT_TRUE(rig.reads(1)) << rig.system.last_death();
  for (const uint64_t xcc : {0u, 1u, 2u, 3u}) EXPECT_EQ(Rig::word(*rig.memory, xcc * 8), 7u);
}

TEST(AmdEnginePm4, ChipletsWaitForEachOther) {
  // What one writes the others wait for, in the same buffer, whichever comes first.
  Rig rig({.chip = "gfx942", .xccs = 4}, QueueType::kAql);
  const uint64_t va = rig.va();
  Words words = {pm4(0x23, 1), 1u << 26 | 8};
  const Words one = release(va, 1 << 15, kWrite64);
  words.insert(words.end(), one.begin(), one.end());
  words.insert(words.end(),
               {pm4(0x3c, 6), 5 | 1 << 4, lo32(va), hi32(va), 7, UINT32_MAX, 4, kShortNop});
  rig.put_buffer(words);
  EXPECT_TRUE(rig.reads(1)) << rig.system.last_death();
}

TEST(AmdEnginePm4, AQueueOfSeveralChipletsRunsOnOne) {
  Rig rig({.chip = "gfx942", .xccs = 4}, QueueType::kPm4);
  const Words words = release(rig.va(), 1 << 15, kWrite64);
  rig.put(words);
  ASSERT_TRUE(rig.reads(words.size())) << rig.system.last_death();
  EXPECT_EQ(Rig::word(*rig.memory, 0), 7u);
}

TEST(AmdEnginePm4, P7InterruptsThatTheKernelDrops) {
  const struct {
    const char* chip;
    uint32_t context;
    uint64_t arrives;
  } kCases[] = {{"gfx942", 0, 0},
                {"gfx942", 5, 1},
                {"gfx1100", 0x1000005, 0},
                {"gfx1100", 5, 1},
                {"gfx1201", 0x1000005, 0}};
  for (const auto& each : kCases) {
    Rig rig({.chip = each.chip}, QueueType::kPm4);
    const Words words = release(rig.va(), 0, kInterrupt, each.context);
    rig.put(words);
    ASSERT_TRUE(rig.reads(words.size())) << each.chip;
    EXPECT_EQ(rig.system.machine().interrupts, each.arrives) << each.chip << each.context;
  }
}

/// The kernel's calls, made by hand on memory of a device that is open.
class AmdKernel : public testing::Test {
 protected:
  void open(sim::amd::Options options) {
    for (auto* memory : {&ring_, &pointers_, &eop_, &save_}) memory->reset();
    gpu_.reset();
    system_ = std::make_unique<FakeKfd>(std::move(options));
    gpu_ = open_gpu(*system_, {}).value();
    ring_ = gpu_->allocate({.size = 4096, .domain = MemoryDomain::kSystemUncached}).value();
    pointers_ = gpu_->allocate({.size = 4096, .domain = MemoryDomain::kSystemUncached}).value();
    eop_ = gpu_->allocate({.size = 8192, .domain = MemoryDomain::kVideo}).value();
    sizes_ = sim::amd::sizes_of(sim::amd::card_of(system_->options().chip), 1);
    save_ = gpu_->allocate({.size = align_up(uint64_t{sizes_.save} + sizes_.debug, 4096),
                            .domain = MemoryDomain::kSystem})
                .value();
  }
  void SetUp() override { open({}); }
  template <class T>
  int call(T& arguments, unsigned long request = T::kRequest) {
    return system_->ioctl(kfd(), request, &arguments);
  }
  int kfd() { return dynamic_cast<KfdGpu&>(*gpu_).session().kfd(); }
  CreateQueue good() {
    CreateQueue create{};
    create.ring_base = ring_->va;
    create.write_pointer = pointers_->va + 56;
    create.read_pointer = pointers_->va + 128;
    create.ring_bytes = 4096;
    create.gpu_id = gpu_->facts().gpu_id;
    create.percentage = 100;
    create.priority = 7;
    create.eop_address = eop_->va;
    create.eop_bytes = 8192;
    create.save_address = save_->va;
    create.save_bytes = sizes_.save;
    create.control_stack_bytes = sizes_.control_stack;
    return create;
  }
  /// -errno of a CREATE_QUEUE changed in one way; a queue that was made is destroyed.
  int create(const std::function<void(CreateQueue&)>& change) {
    CreateQueue arguments = good();
    change(arguments);
    const int result = call(arguments);
    if (result != 0) return result;
    DestroyQueue destroy{arguments.queue_id, 0};
    EXPECT_EQ(call(destroy), 0);
    return 0;
  }
  std::unique_ptr<FakeKfd> system_;
  std::unique_ptr<DriverInterface> gpu_;
  std::unique_ptr<Memory> ring_, pointers_, eop_, save_;
  sim::amd::Sizes sizes_{};
};

TEST_F(AmdKernel, K1QueueProperties) {
  EXPECT_EQ(create([](CreateQueue&) {}), 0);
  EXPECT_EQ(create([](CreateQueue& a) { a.percentage = 101; }), -EINVAL);
  EXPECT_EQ(create([](CreateQueue& a) { a.percentage = 100 | 1 << 8; }), 0) << "pm4_target_xcc";
  EXPECT_EQ(create([](CreateQueue& a) { a.priority = 16; }), -EINVAL);
  EXPECT_EQ(create([](CreateQueue& a) { a.ring_bytes = 3 << 10; }), -EINVAL);
  EXPECT_EQ(create([](CreateQueue& a) { a.ring_bytes = 512; }), 0) << "counts as 1 KiB";
  EXPECT_EQ(create([](CreateQueue& a) { a.type = 5; }), -524) << "ENOTSUPP";
  EXPECT_EQ(create([](CreateQueue& a) { a.gpu_id = 1; }), -EINVAL);
}

TEST_F(AmdKernel, K2QueueBuffersAreMappingsOfTheirOwn) {
  EXPECT_EQ(create([](CreateQueue& a) { a.ring_bytes = 8192; }), -EINVAL) << "longer than mapped";
  EXPECT_EQ(create([&](CreateQueue& a) { a.ring_base = eop_->va + 4096; }), -EINVAL) << "no start";
  EXPECT_EQ(create([&](CreateQueue& a) { a.write_pointer = eop_->va + 56; }), -EINVAL)
      << "more than a page";
  EXPECT_EQ(create([&](CreateQueue& a) { a.eop_bytes = 4096; }), -EINVAL) << "of two pages";
}

TEST_F(AmdKernel, K3SaveAreaSizes) {
  EXPECT_EQ(create([](CreateQueue& a) { a.eop_bytes = 4095; }), -EINVAL);
  EXPECT_EQ(create([](CreateQueue& a) { a.control_stack_bytes += 4096; }), -EINVAL);
  EXPECT_EQ(create([](CreateQueue& a) { a.save_bytes -= 4096; }), -EINVAL);
  EXPECT_EQ(create([](CreateQueue& a) { a.save_bytes += 4096; }), -EINVAL) << "mapping too short";
  EXPECT_EQ(create([](CreateQueue& a) {
              a.type = 1;  // copy queues have neither
              a.eop_bytes = a.control_stack_bytes = 0;
            }),
            0);
}

TEST_F(AmdKernel, K4NothingWithoutAVm) {
  open({.gpus = 2});  // the second one is not opened
  const uint32_t other = sim::amd::gpu_id_of(1);
  EXPECT_EQ(create([&](CreateQueue& a) { a.gpu_id = other; }), -ESRCH);
  AllocMemory memory{};
  memory.va = 0x7000'0000'0000;
  memory.bytes = 4096;
  memory.gpu_id = other;
  memory.flags = kAllocGtt | kAllocWritable;
  EXPECT_EQ(call(memory), -ENODEV);
}

TEST_F(AmdKernel, K5AcquireVm) {
  const uint32_t id = gpu_->facts().gpu_id;
  AcquireVm no_render{static_cast<uint32_t>(kfd()), id};
  EXPECT_EQ(call(no_render), -EINVAL);
  const int second = system_->open("/dev/dri/renderD128", 2);
  ASSERT_GE(second, 0);
  AcquireVm again{static_cast<uint32_t>(second), id};
  EXPECT_EQ(call(again), -EBUSY);
  EXPECT_EQ(system_->close(second), 0);
}

TEST_F(AmdKernel, K6Memory) {
  const auto allocate = [&](uint64_t va, uint64_t bytes, uint32_t flags) {
    AllocMemory memory{};
    memory.va = va;
    memory.bytes = bytes;
    memory.gpu_id = gpu_->facts().gpu_id;
    memory.flags = flags;
    const int result = call(memory);
    FreeMemory free{memory.handle};
    if (result == 0) {
      EXPECT_EQ(call(free), 0);
    }
    return result;
  };
  constexpr uint64_t kFree = 0x7000'0000'0000;
  EXPECT_EQ(allocate(kFree, 4096, kAllocGtt), 0);
  EXPECT_EQ(allocate(kFree, 0, kAllocGtt), -EINVAL);
  EXPECT_EQ(allocate(ring_->va, 4096, kAllocGtt), -EINVAL) << "overlaps";
  EXPECT_EQ(allocate(kFree, 8192, kAllocMmioRemap), -EINVAL);
  EXPECT_EQ(allocate(kFree, 4096, kAllocVram | kAllocPublic), 0);
  open({.has_large_bar = false, .has_flush_page = false});
  EXPECT_EQ(allocate(kFree, 4096, kAllocVram | kAllocPublic), -EINVAL);
  EXPECT_EQ(allocate(kFree, 4096, kAllocMmioRemap), -ENOMEM);
}

TEST_F(AmdKernel, K7K8K9MappingsHoldMemory) {
  const uint32_t id = gpu_->facts().gpu_id;
  AllocMemory memory{};
  memory.va = 0x7000'0000'0000;
  memory.bytes = 4096;
  memory.gpu_id = id;
  memory.flags = kAllocGtt | kAllocWritable;
  ASSERT_EQ(call(memory), 0);
  MapMemory map{memory.handle, reinterpret_cast<uint64_t>(&id), 0, 0};
  EXPECT_EQ(call(map), -EINVAL) << "no GPUs";
  map = {memory.handle, reinterpret_cast<uint64_t>(&id), 1, 2};
  EXPECT_EQ(call(map), -EINVAL) << "more done than asked for";
  map = {memory.handle + 1000, reinterpret_cast<uint64_t>(&id), 1, 0};
  EXPECT_EQ(call(map), -ENOMEM) << "no such handle";
  map = {memory.handle, reinterpret_cast<uint64_t>(&id), 1, 0};
  ASSERT_EQ(call(map), 0);
  FreeMemory free{memory.handle};
  EXPECT_EQ(call(free), -EBUSY);
  CreateQueue queue = good();
  queue.ring_base = memory.va;
  ASSERT_EQ(call(queue), 0);
  MapMemory unmap{memory.handle, reinterpret_cast<uint64_t>(&id), 1, 0};
  EXPECT_EQ(call(unmap, MapMemory::kUnmapRequest), -EBUSY);
  DestroyQueue destroy{queue.queue_id, 0};
  ASSERT_EQ(call(destroy), 0);
  unmap.succeeded = 0;
  EXPECT_EQ(call(unmap, MapMemory::kUnmapRequest), 0);
  EXPECT_EQ(call(free), 0);
}

TEST_F(AmdKernel, K10RuntimeEnable) {
  EXPECT_TRUE(system_->is_runtime_enabled()) << "opening a device does it";
  RuntimeEnable enable{0, 1, 0};
  EXPECT_EQ(call(enable), -EBUSY);
  RuntimeEnable disable{0, 0, 0};
  EXPECT_EQ(call(disable), 0);
  EXPECT_FALSE(system_->is_runtime_enabled()) << "a mode without bit 0 disables";
  CreateQueue queue = good();
  ASSERT_EQ(call(queue), 0);
  EXPECT_EQ(call(enable), -EEXIST);
  DestroyQueue destroy{queue.queue_id, 0};
  ASSERT_EQ(call(destroy), 0);
  EXPECT_EQ(call(enable), 0);
  open({.minor = 13});
  EXPECT_EQ(call(enable), -ENOTTY);
}

TEST_F(AmdKernel, K11Events) {
  CreateEvent again{};
  again.page_offset = 1;
  EXPECT_EQ(call(again), -EINVAL) << "the page is set once";
  CreateEvent event{};
  ASSERT_EQ(call(event), 0);
  EXPECT_NE(event.event_id, 0u);
  // Kernels that gave number 0 away: nobody of ours has it, or its interrupts would be lost.
  open({.chip = "gfx942", .gives_event_zero = true});
  const auto queue = gpu_->create_queue({.type = QueueType::kSdma, .ring = ring_.get()});
  ASSERT_TRUE(queue) << queue.error().message;
  EXPECT_NE((*queue)->event_id, 0u);
}

TEST_F(AmdKernel, K12K13DoorbellsAndUnknownCalls) {
  CreateQueue queue = good();
  ASSERT_EQ(call(queue), 0);
  void* at = nullptr;
  EXPECT_EQ(system_->mmap(nullptr, 4096, 3, 1, kfd(),
                          static_cast<off_t>(queue.doorbell_offset & ~uint64_t{0x1fff}), &at),
            -EINVAL);
  DestroyQueue destroy{queue.queue_id, 0};
  ASSERT_EQ(call(destroy), 0);
  uint64_t nothing[4] = {};
  EXPECT_EQ(system_->ioctl(kfd(), 3ul << 30 | 32ul << 16 | 'K' << 8 | 0x7f, nothing), -ENOTTY);
  // Old programs have a shorter CREATE_QUEUE: what is missing is zero.
  CreateQueue old = good();
  old.sdma_engine = 77;
  EXPECT_EQ(system_->ioctl(kfd(), (CreateQueue::kRequest & ~(0x3ffful << 16)) | 88ul << 16, &old),
            0);
  destroy.queue_id = old.queue_id;
  EXPECT_EQ(call(destroy), 0);
}

}  // namespace
}  // namespace bm::amd::kfd
