// The simulated engines do what the hardware does, and die as it dies.
#include <sys/mman.h>

#include <bit>

#include <gtest/gtest.h>

#include "tests/unit/sim_nv/client.h"

namespace bm::sim::nv::test {
namespace {

class SimNvEngine : public testing::Test {
 protected:
  void start(const char* chip, const char* release = "580", uint32_t channel_class = 0xc46f) {
    system = FakeNvSystem::create({.chip = chip, .release = release});
    client = std::make_unique<Client>(*system, system->kernel().release());
    client->open();
    row = find_chip(chip);
    compute = client->channel(1, channel_class, row->compute_class);
    copy = client->channel(9 + row->graphics_copies, channel_class, row->copy_class);
    signal = client->host(0x1000);
    keep = {compute.ring,  compute.push, compute.notifier, copy.ring, copy.push,
            copy.notifier, signal};
    Client::method(compute, 1, 0, {row->compute_class});
    Client::method(copy, 4, 0, {row->copy_class});
  }
  void TearDown() override {
    client.reset();
    system.reset();
    for (const auto& memory : keep) munmap(memory.host, memory.size);
  }
  Client::Memory video(uint64_t size) {
    keep.push_back(client->video(size, true));
    return keep.back();
  }
  void go(Client::Channel& channel) {
    client->submit(channel);
    client->ring(channel);
  }
  static void semaphore(Client::Channel& channel, uint64_t address, uint64_t payload,
                        uint32_t execute) {
    Client::method(channel, 0, 0x5c,
                   {static_cast<uint32_t>(address), static_cast<uint32_t>(address >> 32),
                    static_cast<uint32_t>(payload), static_cast<uint32_t>(payload >> 32), execute});
  }
  static constexpr uint32_t kRelease = 1 | 1 << 20 | 1 << 24;
  /// A descriptor of version 3 with every field the engine checks.
  std::vector<uint32_t> launch3(uint64_t program, uint64_t bank, uint32_t grid, uint32_t block,
                                uint32_t shared = 0) {
    std::vector<uint32_t> words(64);
    const auto set = [&](unsigned low, unsigned width, uint64_t value) {
      for (unsigned i = 0; i < width; ++i)
        if (value >> i & 1) words[(low + i) / 32] |= 1u << (low + i) % 32;
    };
    set(580, 4, 3), set(128, 6, 0x3f), set(384, 32, grid), set(416, 16, 1), set(448, 16, 1);
    set(592, 16, block), set(608, 16, 1), set(624, 16, 1), set(648, 9, 32), set(763, 5, 1);
    set(544, 18, shared), set(562, 6, 9), set(569, 6, 26), set(657, 6, 26);
    set(1536, 49, program), set(640, 1, 1), set(1024, 49, bank), set(1075, 13, 0x400 / 16);
    return words;
  }
  void launch(const std::vector<uint32_t>& words, const Client::Memory& at, uint64_t offset) {
    std::memcpy(at.host + offset, words.data(), words.size() * 4);
    Client::method(compute, 1, 0x2b4, {static_cast<uint32_t>((at.va + offset) >> 8)});
    Client::method(compute, 1, 0x2c0, {9});
  }
  uint64_t word(const Client::Memory& memory, uint64_t offset) {
    return get<uint64_t>(std::span<const std::byte>(memory.host, memory.size), offset);
  }

  std::unique_ptr<FakeNvSystem> system;
  std::unique_ptr<Client> client;
  const Chip* row = nullptr;
  Client::Channel compute, copy;
  Client::Memory signal;
  std::vector<Client::Memory> keep;
};

TEST_F(SimNvEngine, SemaphoresReleaseWaitAndStampTime) {
  start("gh100");
  semaphore(compute, signal.va, 5, 3 | 1 << 12 | 1 << 24);  // until 5 is reached
  semaphore(compute, signal.va + 16, uint64_t{7} << 32 | 1, kRelease | 1 << 25);
  go(compute);
  EXPECT_EQ(word(signal, 16), 0u);
  semaphore(copy, signal.va, 6, kRelease);
  go(copy);
  ASSERT_TRUE(wait_for(signal.host + 16, uint64_t{7} << 32 | 1));
  const uint64_t clock = get<uint64_t>(std::span<const std::byte>(client->doorbell, 0x100), 0x80);
  EXPECT_NE(word(signal, 24), 0u);
  EXPECT_LE(word(signal, 24), clock);
}

TEST_F(SimNvEngine, NothingMovesWithoutTheDoorbell) {
  start("ad102");
  semaphore(compute, signal.va, 1, kRelease);
  client->submit(compute);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(word(signal, 0), 0u);
  client->ring(compute);
  EXPECT_TRUE(wait_for(signal.host, 1));
}

TEST_F(SimNvEngine, CopiesFillsAndStridesArrive) {
  start("gh100");
  const auto memory = video(0x20000);
  for (int i = 0; i < 0x4000; ++i) memory.host[i] = static_cast<std::byte>(i * 7);
  const auto offsets = [&](uint64_t in, uint64_t out, uint32_t pitch_in, uint32_t pitch_out,
                           uint32_t length, uint32_t lines) {
    in += memory.va, out += memory.va;
    Client::method(copy, 4, 0x400,
                   {static_cast<uint32_t>(in >> 32), static_cast<uint32_t>(in),
                    static_cast<uint32_t>(out >> 32), static_cast<uint32_t>(out), pitch_in,
                    pitch_out, length, lines});
  };
  offsets(0, 0x8000, 0, 0, 0x4000, 1);
  Client::method(copy, 4, 0x300, {0x182});
  offsets(0, 0xc000, 64, 16, 16, 8);
  Client::method(copy, 4, 0x300, {0x182 | 1 << 9});
  Client::method(copy, 4, 0x700, {0xabad1dea, 0, 4 | 3 << 16});  // one component of four bytes
  offsets(0, 0x10000, 0, 0, 100, 1);
  Client::method(copy, 4, 0x300, {0x182 | 1 << 10});
  Client::method(copy, 4, 0x240,
                 {static_cast<uint32_t>(signal.va >> 32), static_cast<uint32_t>(signal.va), 9, 0});
  Client::method(copy, 4, 0x300, {0x14});
  go(copy);
  ASSERT_TRUE(wait_for(signal.host, 9));
  EXPECT_NE(word(signal, 8), 0u);
  EXPECT_EQ(std::memcmp(memory.host, memory.host + 0x8000, 0x4000), 0);
  for (int line = 0; line < 8; ++line)
    EXPECT_EQ(std::memcmp(memory.host + 64 * line, memory.host + 0xc000 + 16 * line, 16), 0);
  EXPECT_EQ(word(memory, 0x10000 + 392), 0xabad1deaabad1dea);
  EXPECT_EQ(word(memory, 0x10000 + 400), 0u);
}

TEST_F(SimNvEngine, InlineDataIsWritten) {
  start("tu102");
  const auto memory = video(0x1000);
  Client::method(compute, 1, 0x180,
                 {8, 1, static_cast<uint32_t>(memory.va >> 32), static_cast<uint32_t>(memory.va)});
  Client::method(compute, 1, 0x1b0, {0x41});
  compute.words.push_back(3u << 29 | 2 << 16 | 1 << 13 | 0x1b4 >> 2);
  compute.words.insert(compute.words.end(), {0x11111111, 0x22222222});
  semaphore(compute, signal.va, 1, kRelease);
  go(compute);
  ASSERT_TRUE(wait_for(signal.host, 1));
  EXPECT_EQ(word(memory, 0), 0x2222222211111111u);
}

constexpr const char* kPtx = R"(.version 7.5
.target sm_80
.address_size 64
.visible .entry add(.param .u64 out, .param .u64 in, .param .s64 k)
{
  .reg .b64 %rd<8>;
  .reg .b32 %r<4>;
  ld.param.u64 %rd0, [out];
  ld.param.u64 %rd1, [in];
  ld.param.u64 %rd2, [k];
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mad.lo.s32 %r3, %r0, %r1, %r2;
  mul.wide.s32 %rd3, %r3, 8;
  add.s64 %rd4, %rd1, %rd3;
  ld.global.u64 %rd5, [%rd4];
  add.s64 %rd6, %rd5, %rd2;
  add.s64 %rd4, %rd0, %rd3;
  st.global.u64 [%rd4], %rd6;
  ret;
}
)";

class SimNvPtx : public SimNvEngine {
 protected:
  void prepare(uint64_t out, uint64_t in, uint64_t k) {
    std::memcpy(code.host, kPtx, std::strlen(kPtx) + 1);
    const std::span<std::byte> bank(code.host + 0x8000, 0x400);
    put<uint32_t>(bank, 320, 2);
    put<uint32_t>(bank, 324, 1);
    put<uint64_t>(bank, 0x160, out);
    put<uint64_t>(bank, 0x168, in);
    put<uint64_t>(bank, 0x170, k);
  }
  Client::Memory code;
  std::string said;
};

TEST_F(SimNvPtx, RunsTextThroughAVersion3Descriptor) {
  for (const char* chip : {"ga100", "ad102", "gh100"}) {
    start(chip);
    code = video(0x10000);
    const auto data = video(0x4000);
    for (uint64_t i = 0; i < 256; ++i) std::memcpy(data.host + 8 * i, &i, 8);
    prepare(data.va + 0x2000, data.va, 1000);
    auto words = launch3(code.va, code.va + 0x8000, 4, 64);
    // Release 0: 64 bits with time, into the signal page.

    words[823 / 32] |= 1u << 823 % 32;
    words[829 / 32] |= 1u << 829 % 32;
    words[768 / 32] = static_cast<uint32_t>(signal.va + 32);
    words[800 / 32] |= static_cast<uint32_t>(signal.va >> 32);
    words[832 / 32] = 77;
    launch(words, code, 0x9000);
    semaphore(compute, signal.va, 1, kRelease);
    go(compute);
    ASSERT_TRUE(wait_for(signal.host, 1)) << chip;
    EXPECT_EQ(word(signal, 32), 77u);
    EXPECT_NE(word(signal, 40), 0u);
    for (uint64_t i = 0; i < 256; ++i) ASSERT_EQ(word(data, 0x2000 + 8 * i), i + 1000);
    EXPECT_TRUE(system->kernel().gpu(0).faults().empty());
    TearDown();
    keep.clear();
  }
}

TEST_F(SimNvPtx, ChainedDescriptorsRunInOrder) {
  start("ga102");
  code = video(0x10000);
  const auto data = video(0x4000);
  prepare(data.va, data.va, 1);
  auto first = launch3(code.va, code.va + 0x8000, 1, 32);
  const auto second = first;
  first[512 / 32] |= 1 | 1 << 1;
  first[480 / 32] = static_cast<uint32_t>((code.va + 0x9200) >> 8);
  std::memcpy(code.host + 0x9200, second.data(), 256);
  launch(first, code, 0x9000);
  semaphore(compute, signal.va, 1, kRelease);
  go(compute);
  ASSERT_TRUE(wait_for(signal.host, 1));
  EXPECT_EQ(word(data, 8 * 31), 2u);
  EXPECT_EQ(system->kernel().gpu(0).counts().chained_kernels, 1u);
}

TEST_F(SimNvPtx, ADescriptorIsReadOnceUntilItIsInvalidated) {
  start("gh100");
  code = video(0x10000);
  const auto data = video(0x4000);
  prepare(data.va, data.va, 1);  // adds one to the numbers of as many threads as there are
  uint64_t step = 0;
  const auto threads_of = [&](uint32_t written, uint32_t action, bool invalidates = false) {
    std::memset(data.host, 0, 0x4000);
    const auto words = launch3(code.va, code.va + 0x8000, 1, written);
    std::memcpy(code.host + 0x9000, words.data(), words.size() * 4);
    if (invalidates) Client::method(compute, 1, 0x298, {0});
    Client::method(compute, 1, 0x2b4, {static_cast<uint32_t>((code.va + 0x9000) >> 8)});
    Client::method(compute, 1, 0x2c0, {action});
    semaphore(compute, signal.va, ++step, kRelease);
    go(compute);
    EXPECT_TRUE(wait_for(signal.host, step));
    uint32_t threads = 0;
    while (word(data, 8 * threads) != 0) ++threads;
    return threads;
  };
  EXPECT_EQ(threads_of(32, 9), 32u);
  EXPECT_EQ(threads_of(64, 9), 32u) << "prefetch and schedule: what was read before";
  EXPECT_EQ(threads_of(64, 2), 32u) << "schedule";
  EXPECT_EQ(threads_of(64, 3), 64u) << "invalidate, copy and schedule";
  EXPECT_EQ(threads_of(96, 0xa), 96u) << "invalidate, prefetch, copy and schedule";
  EXPECT_EQ(threads_of(128, 9), 96u);
  EXPECT_EQ(threads_of(128, 9, true), 128u) << "INVALIDATE_SKED_CACHES";
  EXPECT_EQ(threads_of(160, 1), 0u) << "invalidated and not started";
  EXPECT_EQ(threads_of(160, 2), 160u);
  EXPECT_EQ(threads_of(192, 8), 0u) << "prefetched and not started";
  EXPECT_EQ(threads_of(192, 0), 0u) << "nothing";
  EXPECT_EQ(threads_of(192, 2), 160u) << "a prefetch reads what is not there";
}

TEST_F(SimNvPtx, WindowsOfSharedAndLocalMemorySwallowGlobalAddresses) {
  const auto code_of = [this](const char* chip, uint64_t shared_offset, uint64_t local_offset) {
    start(chip);
    code = video(0x10000);
    const auto data = video(0x4000);
    prepare(data.va, data.va, 1);
    constexpr uint64_t k4G = uint64_t{1} << 32;
    const uint64_t shared = data.va / k4G * k4G + shared_offset, local = shared + local_offset;
    Client::method(compute, 1, 0x2a0,
                   {static_cast<uint32_t>(shared >> 32), static_cast<uint32_t>(shared)});
    Client::method(compute, 1, 0x7b0,
                   {static_cast<uint32_t>(local >> 32), static_cast<uint32_t>(local)});
    launch(launch3(code.va, code.va + 0x8000, 1, 32), code, 0x9000);
    semaphore(compute, signal.va, 1, kRelease);
    go(compute);
    const auto has_died = [this] { return word(compute.notifier, 8) >> 48 == 0xffff; };
    while (word(signal, 0) != 1 && !has_died()) std::this_thread::yield();
    const uint32_t error = has_died() ? wait_for_error(compute) : 0;
    const auto faults = system->kernel().gpu(0).faults();
    EXPECT_EQ(error == 0, faults.empty());
    said = faults.empty() ? "" : faults.front();
    TearDown();
    keep.clear();
    return error;
  };
  constexpr uint64_t k4G = uint64_t{1} << 32, k16M = uint64_t{1} << 24;
  EXPECT_EQ(code_of("gh100", 4 * k4G, 4 * k4G), 0u);
  EXPECT_EQ(code_of("gh100", 0, 4 * k4G), 13u) << "4 GiB from Hopper on";
  EXPECT_NE(said.find("invalid address space"), std::string::npos) << said;
  EXPECT_EQ(code_of("gh100", 4 * k4G + k16M, 4 * k4G), 13u);
  EXPECT_NE(said.find("not aligned"), std::string::npos) << said;
  EXPECT_EQ(code_of("ad102", 4 * k4G + k16M, 4 * k4G), 0u) << "16 MiB before";
}

TEST_F(SimNvPtx, AReleaseWithoutWaitingIsEarly) {
  start("ga102");
  system->kernel().knobs().is_hung = true;
  code = video(0x10000);
  prepare(code.va + 0xc000, code.va + 0xc000, 1);
  launch(launch3(code.va, code.va + 0x8000, 1, 32), code, 0x9000);
  semaphore(compute, signal.va, 1, 1 | 1 << 24);
  semaphore(compute, signal.va + 8, 1, kRelease);
  go(compute);
  ASSERT_TRUE(wait_for(signal.host, 1)) << "no wait for idle was asked for";
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(word(signal, 8), 0u);
  system->kernel().knobs().is_hung = false;
  EXPECT_TRUE(wait_for(signal.host + 8, 1));
}

TEST_F(SimNvPtx, UnmappedAndReadOnlyMemoryFaultWithAddressAndAccess) {
  start("gh100");
  code = video(0x10000);
  const auto data = video(0x1000);
  prepare(data.va, kWindow + 0x7f0000000, 1);
  std::vector<std::byte> debug(12);
  store(debug, 4, client->root);
  store(debug, 8, compute.object);
  const uint32_t debugger = client->alloc_ok(client->device, 0x83de, debug);
  launch(launch3(code.va, code.va + 0x8000, 1, 32), code, 0x9000);
  semaphore(compute, signal.va, 1, kRelease);
  go(compute);
  EXPECT_EQ(wait_for_error(compute), 31u);
  EXPECT_EQ(word(signal, 0), 0u);
  std::vector<std::byte> info(72);
  ASSERT_EQ(client->control(debugger, 0x83de0328, info.data(), 72), 0u);
  EXPECT_EQ(get(info, 64), 1u);
  EXPECT_EQ(get<uint64_t>(info, 0), kWindow + 0x7f0000000);
  EXPECT_EQ(get(info, 8), 2u);   // no page
  EXPECT_EQ(get(info, 12), 0u);  // read
  // The other group lives.
  semaphore(copy, signal.va, 2, kRelease);
  go(copy);
  EXPECT_TRUE(wait_for(signal.host, 2));
}

TEST_F(SimNvPtx, BadDescriptorsAreExceptions) {
  const auto code_of = [this](auto change) {
    start("gh100");
    code = video(0x10000);
    prepare(code.va + 0xc000, code.va + 0xc000, 1);
    auto words = launch3(code.va, code.va + 0x8000, 1, 32);
    change(words);
    launch(words, code, 0x9000);
    go(compute);
    const uint32_t error = wait_for_error(compute);
    TearDown();
    keep.clear();
    return error;
  };
  EXPECT_EQ(code_of([](auto& words) { words[592 / 32] = 2048u << 16 | words[592 / 32]; }), 13u);
  EXPECT_EQ(code_of([](auto& words) { words[580 / 32] ^= 7 << 580 % 32; }), 13u);   // version 4
  EXPECT_EQ(code_of([](auto& words) { words[657 / 32] ^= 1u << 657 % 32; }), 13u);  // no such size
  EXPECT_EQ(code_of([](auto& words) { words[640 / 32] ^= 1; }), 13u);               // no bank 0
  EXPECT_EQ(code_of([](auto& words) { words[384 / 32] = 0; }), 13u);                // empty grid
  EXPECT_EQ(code_of([](auto& words) { words[1536 / 32 + 1] = 5; }), 31u);  // program unmapped
}

TEST_F(SimNvEngine, BrokenPushBuffersDieWithTheRightCode) {
  const auto code_of = [this](auto fill, bool is_copy = false) {
    start("ad102");
    Client::Channel& channel = is_copy ? copy : compute;
    fill(channel);
    go(channel);
    const uint32_t error = wait_for_error(channel);
    TearDown();
    keep.clear();
    return error;
  };
  EXPECT_EQ(code_of([](auto& c) { c.words.push_back(6u << 29); }), 32u);
  EXPECT_EQ(code_of([](auto& c) { Client::method(c, 3, 0x180, {1}); }), 32u) << "no object";
  EXPECT_EQ(code_of([](auto& c) { Client::method(c, 1, 0x1000, {1}); }), 13u) << "no such method";
  EXPECT_EQ(code_of([](auto& c) { Client::method(c, 1, 0, {0xcbc0}); }), 69u) << "foreign class";
  EXPECT_EQ(code_of([this](auto& c) { semaphore(c, signal.va + 4, 1, kRelease); }), 32u);
  EXPECT_EQ(code_of([this](auto& c) { semaphore(c, signal.va | uint64_t{1} << 41, 1, kRelease); }),
            32u)
      << "above 2^40 on Ampere's channel class";
  EXPECT_EQ(code_of([](auto& c) { semaphore(c, 0xf000000000, 1, kRelease); }), 31u);
  EXPECT_EQ(code_of([](auto& c) { Client::method(c, 0, 0x28, {0, 0, 0, 0x10u << 27}); }), 32u)
      << "privileged memory operation";
  EXPECT_EQ(code_of([this](auto& c) { semaphore(c, signal.va, 1, 7 | 1 << 24); }), 32u)
      << "operation 7";
  EXPECT_EQ(code_of([](auto& c) { Client::method(c, 0, 0x44, {1}); }), 32u) << "no host method";
  EXPECT_EQ(code_of([](auto& c) { c.words.push_back(2u << 29 | 1 << 16); }), 32u) << "opcode 2";
  EXPECT_EQ(code_of([this](auto& c) {
              client->alloc_ok(c.handle, row->copy_class, std::vector<std::byte>(8));
              Client::method(c, 2, 0, {row->copy_class});
            }),
            32u)
      << "copies of graphics' runlist on a subchannel of their own";
  EXPECT_EQ(code_of([](auto& c) { Client::method(c, 4, 0x300, {0x182 | 1 << 12}); }, true), 41u)
      << "physical copy";
  EXPECT_EQ(code_of(
                [](auto& c) {
                  Client::method(c, 4, 0x400, {0x3f, 0, 0x3f, 0, 0, 0, 16, 1});
                  Client::method(c, 4, 0x300, {0x182});
                },
                true),
            31u);
}

TEST_F(SimNvEngine, BrokenRingsDie) {
  const auto code_of = [this](auto spoil) {
    start("gh100");
    semaphore(compute, signal.va, 1, kRelease);
    client->submit(compute);
    spoil();
    client->ring(compute);
    const uint32_t error = wait_for_error(compute);
    TearDown();
    keep.clear();
    return error;
  };
  EXPECT_EQ(code_of([this] {
              const uint32_t put = compute.entries;
              std::memcpy(compute.ring.host + 0x8000 + 0x8c, &put, 4);
            }),
            32u)
      << "put outside of the ring";
  EXPECT_EQ(code_of([this] {
              const uint64_t control = 3ull << 32;
              std::memcpy(compute.ring.host, &control, 8);
            }),
            32u)
      << "a control entry with an opcode";
  EXPECT_EQ(code_of([this] {
              const uint64_t nowhere = 0xf0'0000'0000 | 4ull << 42;
              std::memcpy(compute.ring.host, &nowhere, 8);
            }),
            31u)
      << "a push buffer that is not mapped";
}

TEST_F(SimNvEngine, BadCopiesDieWithTheCodeOfTheirEngine) {
  const auto code_of = [this](const char* chip, auto fill) {
    start(chip);
    fill();
    go(copy);
    const uint32_t error = wait_for_error(copy);
    TearDown();
    keep.clear();
    return error;
  };
  const auto launched = [this](uint32_t flags) {
    return [this, flags] { Client::method(copy, 4, 0x300, {flags}); };
  };
  EXPECT_EQ(code_of("gh100", launched(0x183)), 41u) << "transfer type 3";
  EXPECT_EQ(code_of("gh100", launched(0x2)), 41u) << "block-linear";
  EXPECT_EQ(code_of("gh100", launched(0x182 | 1 << 19)), 41u) << "a reduction";
  EXPECT_EQ(code_of("ga100", launched(0x182 | 1 << 27)), 41u) << "64-bit payload of 2020's class";
  EXPECT_EQ(code_of("gb202", launched(0x182 | 1 << 13)), 71u)
      << "the fourth of graphics, then this";
  EXPECT_EQ(code_of("gh100",
                    [this] {
                      Client::method(copy, 4, 0x240, {0, static_cast<uint32_t>(signal.va) + 4, 1});
                      Client::method(copy, 4, 0x300, {0x14});
                    }),
            41u)
      << "a semaphore of four words at four";
  const auto far = [this](uint32_t upper) {
    return [this, upper] {
      Client::method(copy, 4, 0x400, {upper, 0, upper, 0, 0, 0, 16, 1});
      Client::method(copy, 4, 0x300, {0x182});
    };
  };
  EXPECT_EQ(code_of("ad102", far(0x20000)), 41u) << "2^49";
  EXPECT_EQ(code_of("gh100", far(0x20000)), 31u) << "not mapped, but an address";
  EXPECT_EQ(code_of("gh100", far(0x2000000)), 41u) << "2^57";
}

TEST_F(SimNvPtx, DescriptorsOfOtherGenerationsAreExceptions) {
  // Where the version lies: before Blackwell 583:576, there 471:464.
  const auto runs = [this](const char* chip, uint32_t major, uint32_t minor) {
    start(chip, "595");
    code = video(0x10000);
    std::vector<uint32_t> words(96);
    words[580 / 32] |= major << 580 % 32 | minor << 576 % 32;
    words[468 / 32] |= major << 468 % 32 | minor << 464 % 32;
    std::memcpy(code.host + 0x9000, words.data(), words.size() * 4);
    const bool is_turing = row->compute_class == 0xc5c0;
    Client::method(compute, 1, 0x2b4, {static_cast<uint32_t>((code.va + 0x9000) >> 8)});
    Client::method(compute, 1, is_turing ? 0x2bc : 0x2c0, {3});
    go(compute);
    EXPECT_EQ(wait_for_error(compute), 13u);
    // A version that is taken fails for what else is missing.
    const bool is_refused =
        system->kernel().gpu(0).faults().front().find("takes no descriptor") != std::string::npos;
    TearDown();
    keep.clear();
    return !is_refused;
  };
  EXPECT_FALSE(runs("tu102", 3, 0));
  EXPECT_FALSE(runs("ga100", 2, 3));
  EXPECT_FALSE(runs("ad102", 4, 0));
  EXPECT_TRUE(runs("ad102", 3, 0));
  EXPECT_TRUE(runs("gh100", 3, 0));
  EXPECT_FALSE(runs("gh100", 5, 0));
  EXPECT_FALSE(runs("gb202", 4, 0));
  EXPECT_FALSE(runs("gb202", 5, 1));
}

TEST_F(SimNvPtx, BadComputeMethodsAreExceptions) {
  const auto code_of = [this](auto fill) {
    start("gh100");
    code = video(0x10000);
    prepare(code.va + 0xc000, code.va + 0xc000, 1);
    fill();
    go(compute);
    const uint32_t error = wait_for_error(compute);
    TearDown();
    keep.clear();
    return error;
  };
  const auto method = [this](uint32_t offset, uint32_t value) {
    return [this, offset, value] { Client::method(compute, 1, offset, {value}); };
  };
  for (const uint32_t action : {6u, 7u, 11u, 15u})
    EXPECT_EQ(code_of(method(0x2c0, action)), 13u) << "PCAS action " << action;
  EXPECT_EQ(code_of(method(0x1b0, 0x40)), 13u) << "inline data, block-linear";
  EXPECT_EQ(code_of(method(0x1b0, 0x41)), 13u) << "inline data of nothing";
  EXPECT_EQ(code_of(method(0x1b4, 1)), 13u) << "inline data that nobody awaits";
  const auto with_stack = [this](uint64_t base, uint64_t per_tpc) {
    return [this, base, per_tpc] {
      auto words = launch3(code.va, code.va + 0x8000, 1, 32);
      words[1600 / 32] |= 0x400;
      Client::method(compute, 1, 0x790,
                     {static_cast<uint32_t>(base >> 32), static_cast<uint32_t>(base)});
      Client::method(compute, 1, 0x2e4,
                     {static_cast<uint32_t>(per_tpc >> 32), static_cast<uint32_t>(per_tpc), 0xff});
      launch(words, code, 0x9000);
    };
  };
  EXPECT_EQ(code_of(with_stack(code.va, 0x8000)), 13u) << "too little for the threads of a TPC";
  EXPECT_EQ(code_of(with_stack(0xf0'0000'0000, 0x400 * 32 * 64 * 2)), 13u) << "not mapped";
}

TEST_F(SimNvEngine, ALostGpuTellsEveryChannel) {
  start("gh100");
  system->kernel().knobs().is_lost = true;
  EXPECT_EQ(wait_for_error(compute), 79u);
  EXPECT_EQ(wait_for_error(copy), 79u);
  uint32_t token = 0;
  EXPECT_EQ(client->control(compute.handle, 0xc36f0108, &token, 4), 0x0fu);
}

TEST_F(SimNvEngine, ReleasesCanBeWithheldAndDelayed) {
  start("ad102");
  system->kernel().knobs().withheld_release = 1;
  semaphore(compute, signal.va, 1, kRelease);
  semaphore(compute, signal.va + 8, 1, kRelease);
  semaphore(compute, signal.va + 16, 1, kRelease);
  go(compute);
  ASSERT_TRUE(wait_for(signal.host + 16, 1));
  EXPECT_EQ(word(signal, 0), 1u);
  EXPECT_EQ(word(signal, 8), 0u);
}

TEST_F(SimNvEngine, TheRingWrapsAndGetFollowsOnceItIsIdle) {
  start("tu102");
  for (uint32_t i = 1; i <= 200; ++i) {
    semaphore(compute, signal.va, i, kRelease);
    go(compute);
    ASSERT_TRUE(wait_for(signal.host, i));
  }
  EXPECT_TRUE(wait_for_word(compute.ring.host + 0x8088, 200u % 64));
  // An acquire that waits holds the channel: what was taken from the ring before it is not told.
  semaphore(compute, signal.va, 201, kRelease);
  go(compute);
  semaphore(compute, signal.va + 8, 1, 3 | 1 << 12 | 1 << 24);
  go(compute);
  ASSERT_TRUE(wait_for(signal.host, 201));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_NE(word(compute.ring, 0x8088) & 0xffffffff, 202u % 64);
  semaphore(copy, signal.va + 8, 1, kRelease);
  go(copy);
  EXPECT_TRUE(wait_for_word(compute.ring.host + 0x8088, 202u % 64));
}

TEST_F(SimNvEngine, BlackwellsChannelsNeverTellWhereTheyAre) {
  for (const auto& [chip, channel_class] : {std::pair("gb100", 0xc96fu), {"gb202", 0xca6fu}}) {
    start(chip, "595", channel_class);
    std::memset(compute.ring.host + 0x8088, 0x5a, 4);
    for (uint32_t i = 1; i <= 70; ++i) {
      semaphore(compute, signal.va, i, kRelease);
      go(compute);
      ASSERT_TRUE(wait_for(signal.host, i));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(word(compute.ring, 0x8088) & 0xffffffff, 0x5a5a5a5au) << chip;
    TearDown();
    keep.clear();
  }
}

TEST_F(SimNvEngine, ChannelsOfAGroupDieTogetherAndAGroupCanBeMadeAgain) {
  start("gh100");
  compute.words.push_back(6u << 29);
  go(compute);
  EXPECT_EQ(wait_for_error(compute), 32u);
  EXPECT_EQ(client->free(compute.group), 0u);
  compute = client->channel(1, 0xc86f, row->compute_class);
  keep.insert(keep.end(), {compute.ring, compute.push, compute.notifier});
  Client::method(compute, 1, 0, {row->compute_class});
  semaphore(compute, signal.va, 3, kRelease);
  go(compute);
  EXPECT_TRUE(wait_for(signal.host, 3));
}

TEST_F(SimNvEngine, AnEventWakesAPoller) {
  start("gh100");
  const int fd = system->open("/dev/nvidia0", 2);
  int control_fd = client->ctl;
  ASSERT_EQ(system->ioctl(fd, 3ul << 30 | 4ul << 16 | 'F' << 8 | 201, &control_fd), 0);
  std::array<uint32_t, 4> event{client->root, 0, static_cast<uint32_t>(fd), 99};
  ASSERT_EQ(system->ioctl(fd, 3ul << 30 | 16ul << 16 | 'F' << 8 | 206, event.data()), 0);
  ASSERT_EQ(event[3], 0u);
  std::vector<std::byte> params(24);
  store(params, 0, client->root);
  store(params, 4, client->subdevice);
  store(params, 8, 0x79);
  store(params, 12, 35 | 0x08000000);
  store64(params, 16, static_cast<uint64_t>(fd));
  client->alloc_ok(client->subdevice, 0x79, params);
  pollfd wanted{fd, POLLIN, 0};
  EXPECT_EQ(system->poll(&wanted, 1, 0), 0);
  Client::method(compute, 0, 0x20, {0});
  go(compute);
  EXPECT_EQ(system->poll(&wanted, 1, 5000), 1);
  UnixEvent got;
  std::array<uint64_t, 2> data{reinterpret_cast<uint64_t>(&got), 0};
  ASSERT_EQ(system->ioctl(fd, 3ul << 30 | 16ul << 16 | 'F' << 8 | 0x52, data.data()), 0);
  EXPECT_EQ(got.index, 35u);
  EXPECT_EQ(system->poll(&wanted, 1, 0), 0);
  system->close(fd);
}

}  // namespace
}  // namespace bm::sim::nv::test
