// A program of its own that uses /dev/nvidia* through the real system: run by sim-nv, which serves
// the nodes from another process. Without sim-nv there are no nodes, and the tests are skipped.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>

#include "tests/unit/sim_nv/client.h"

namespace bm::sim::nv::test {
namespace {

class SimNvRemote : public testing::Test {
 protected:
  void SetUp() override {
    if (::access("/dev/nvidiactl", F_OK) == 0) GTEST_SKIP() << "a real NVIDIA driver is here";
    const char* const release = std::getenv("SIM_NV_RELEASE");
    const char* const chip = std::getenv("SIM_NV_CHIP");
    if (release == nullptr || chip == nullptr) GTEST_SKIP() << "not run by sim-nv";
    row = find_chip(chip);
    client = std::make_unique<Client>(real_system(), *find_release(release));
    // What earlier tests mapped stays mapped: every test has a window of its own.
    static uint64_t test = 0;
    client->next_va += test++ << 28;
    client->open();
    compute = client->channel(1, 0xc46f, row->compute_class);
    signal = client->host(0x1000);
    Client::method(compute, 1, 0, {row->compute_class});
  }
  void go() {
    client->submit(compute);
    client->ring(compute);
  }
  void release(uint64_t address, uint32_t value) {
    Client::method(compute, 0, 0x5c,
                   {static_cast<uint32_t>(address), static_cast<uint32_t>(address >> 32), value, 0,
                    1 | 1 << 20 | 1 << 24});
  }
  const Chip* row = nullptr;
  std::unique_ptr<Client> client;
  Client::Channel compute;
  Client::Memory signal;
};

TEST_F(SimNvRemote, MemoryRegisteredHereIsReleasedFromThere) {
  release(signal.va, 41);
  go();
  EXPECT_TRUE(wait_for(signal.host, 41));
  // A duplicate of the control descriptor is the same file to the driver.
  const int own = client->ctl;
  client->ctl = dup(own);
  std::vector<std::byte> params(20);
  store(params, 12, 1);
  client->alloc_ok(client->device, 0xa06c, params);
  close(client->ctl);
  client->ctl = own;
}

TEST_F(SimNvRemote, KernelsReadAndWriteMemoryOfThisProcess) {
  if (row->qmd_major != 3 && !row->takes_qmd3) GTEST_SKIP() << "descriptor of version 3 only";
  const char* const text = R"(.version 7.5
.target sm_80
.address_size 64
.visible .entry twice(.param .u64 data)
{
  .reg .b64 %rd<4>;
  .reg .b32 %r<4>;
  ld.param.u64 %rd0, [data];
  mov.u32 %r0, %tid.x;
  mul.wide.s32 %rd1, %r0, 4;
  add.s64 %rd2, %rd0, %rd1;
  ld.global.u32 %r1, [%rd2];
  add.s32 %r2, %r1, %r1;
  st.global.u32 [%rd2], %r2;
  ret;
}
)";
  const auto code = client->video(0x10000, true);
  const auto data = client->host(0x4000);
  auto* const numbers = reinterpret_cast<uint32_t*>(data.host + 0x2f80);  // across pages
  for (uint32_t i = 0; i < 64; ++i) numbers[i] = i;
  std::memcpy(code.host, text, std::strlen(text) + 1);
  const std::span<std::byte> bank(code.host + 0x8000, 0x400);
  put<uint32_t>(bank, 320, 1);
  put<uint64_t>(bank, 0x160, data.va + 0x2f80);
  std::vector<std::byte> words(256);
  const auto set = [&](unsigned low, uint64_t value) {
    uint64_t now = 0;
    std::memcpy(&now, words.data() + low / 64 * 8, 8);
    now |= value << low % 64;
    std::memcpy(words.data() + low / 64 * 8, &now, 8);
  };
  set(580, 3), set(128, 0x3f), set(384, 1), set(416, 1), set(448, 1), set(592, 64), set(608, 1);
  set(624, 1), set(648, 32), set(562, 9), set(569, 26), set(657, 26), set(1536, code.va);
  set(640, 1), set(1024, code.va + 0x8000), set(1075, 0x40);
  std::memcpy(code.host + 0x9000, words.data(), 256);
  Client::method(compute, 1, 0x2b4, {static_cast<uint32_t>((code.va + 0x9000) >> 8)});
  Client::method(compute, 1, 0x2c0, {9});
  release(signal.va, 7);
  go();
  ASSERT_TRUE(wait_for(signal.host, 7));
  for (uint32_t i = 0; i < 64; ++i) ASSERT_EQ(numbers[i], 2 * i);
}

TEST_F(SimNvRemote, PollWaitsForInterrupts) {
  const int fd = ::open("/dev/nvidia0", O_RDWR | O_CLOEXEC);
  int control = client->ctl;
  System& system = real_system();
  ASSERT_EQ(system.ioctl(fd, 3ul << 30 | 4ul << 16 | 'F' << 8 | 201, &control), 0);
  std::array<uint32_t, 4> event{client->root, 0, static_cast<uint32_t>(fd), 99};
  ASSERT_EQ(system.ioctl(fd, 3ul << 30 | 16ul << 16 | 'F' << 8 | 206, event.data()), 0);
  std::vector<std::byte> params(24);
  store(params, 0, client->root);
  store(params, 4, client->subdevice);
  store(params, 8, 0x79);
  store(params, 12, 35 | 0x08000000);
  store64(params, 16, static_cast<uint64_t>(fd));
  client->alloc_ok(client->subdevice, 0x79, params);
  pollfd wanted{fd, POLLIN, 0};
  EXPECT_EQ(::poll(&wanted, 1, 0), 0);
  Client::method(compute, 0, 0x20, {0});
  go();
  EXPECT_EQ(::poll(&wanted, 1, 5000), 1);
  std::array<uint32_t, 4> got{};
  std::array<uint64_t, 2> data{reinterpret_cast<uint64_t>(got.data()), 0};
  ASSERT_EQ(system.ioctl(fd, 3ul << 30 | 16ul << 16 | 'F' << 8 | 0x52, data.data()), 0);
  EXPECT_EQ(got[1], 35u);
  ::close(fd);
}

}  // namespace
}  // namespace bm::sim::nv::test
