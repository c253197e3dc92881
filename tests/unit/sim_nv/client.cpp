#include "tests/unit/sim_nv/client.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "tests/patience.h"

namespace bm::sim::nv::test {
namespace {

unsigned long escape(uint32_t number, uint32_t size) {
  return 3ul << 30 | static_cast<unsigned long>(size) << 16 | 'F' << 8 | number;
}

}  // namespace

uint32_t Client::alloc(uint32_t parent, uint32_t object_class, std::vector<std::byte>* params,
                       uint32_t* status, uint32_t handle) {
  std::array<std::byte, 48> call{};
  put<uint32_t>(call, 0, root);
  put<uint32_t>(call, 4, parent);
  put<uint32_t>(call, 8, handle);
  put<uint32_t>(call, 12, object_class);
  put<uint64_t>(
      call, 16,
      params == nullptr || params->empty() ? 0 : reinterpret_cast<uint64_t>(params->data()));
  EXPECT_EQ(system_.ioctl(ctl, escape(0x2b, 48), call.data()), 0);
  *status = get(call, 40);
  return get(call, 8);
}

uint32_t Client::alloc_ok(uint32_t parent, uint32_t object_class, std::vector<std::byte> params) {
  uint32_t status = ~0u;
  const uint32_t handle = alloc(parent, object_class, &params, &status);
  EXPECT_EQ(status, 0u) << "class " << std::hex << object_class;
  return handle;
}

uint32_t Client::control(uint32_t object, uint32_t command, void* params, uint32_t size) {
  std::array<std::byte, 32> call{};
  put<uint32_t>(call, 0, root);
  put<uint32_t>(call, 4, object);
  put<uint32_t>(call, 8, command);
  put<uint64_t>(call, 16, reinterpret_cast<uint64_t>(params));
  put<uint32_t>(call, 24, size);
  EXPECT_EQ(system_.ioctl(ctl, escape(0x2a, 32), call.data()), 0);
  return get(call, 28);
}

uint32_t Client::free(uint32_t handle) {
  std::array<std::byte, 16> call{};
  put<uint32_t>(call, 0, root);
  put<uint32_t>(call, 8, handle);
  EXPECT_EQ(system_.ioctl(ctl, escape(0x29, 16), call.data()), 0);
  return get(call, 12);
}

uint32_t Client::uvm(uint32_t number, std::vector<std::byte>& params, size_t status_offset) {
  EXPECT_EQ(system_.ioctl(uvm_fd, number, params.data()), 0) << number;
  return get(params, status_offset);
}

void Client::open(uint32_t gpu) {
  ctl = system_.open("/dev/nvidiactl", O_RDWR);
  uvm_fd = system_.open("/dev/nvidia-uvm", O_RDWR);
  dev = system_.open("/dev/nvidia" + std::to_string(gpu), O_RDWR);
  ASSERT_GE(ctl, 0);
  ASSERT_GE(uvm_fd, 0);
  ASSERT_GE(dev, 0);
  uint32_t status = 0;
  root = alloc(0, 0x41, nullptr, &status);
  ASSERT_EQ(status, 0u);
  std::vector<std::byte> init(16);
  init[0] = std::byte{1};
  ASSERT_EQ(uvm(0x30000001, init, 8), 0u);
  int control_fd = ctl;
  ASSERT_EQ(system_.ioctl(dev, escape(201, 4), &control_fd), 0);
  std::vector<std::byte> params(56);
  store(params, 0, gpu);
  store(params, 4, root);
  device = alloc_ok(root, 0x80, params);
  subdevice = alloc_ok(device, 0x2080, std::vector<std::byte>(4));
  params.assign(release_.va_space_params, {});
  store(params, 4, 0x48);
  store64(params, 8, 0x1fffffb000000);
  store64(params, 40, 0x1000);
  space = alloc_ok(device, 0x90f1, params);
  std::vector<std::byte> gid(268);
  store(gid, 4, 2);
  ASSERT_EQ(control(subdevice, 0x2080014a, gid.data(), 268), 0u);
  std::memcpy(uuid.data(), gid.data() + 12, 16);
  std::vector<std::byte> call(40);
  std::memcpy(call.data(), uuid.data(), 16);
  store(call, 24, ~0u);
  ASSERT_EQ(uvm(37, call, 36), 0u);
  call.assign(32, {});
  std::memcpy(call.data(), uuid.data(), 16);
  store(call, 16, static_cast<uint32_t>(ctl));
  store(call, 20, root);
  store(call, 24, space);
  ASSERT_EQ(uvm(25, call, 28), 0u);
}

void* Client::map_cpu(uint32_t handle, uint64_t va, uint64_t size, const char* node) {
  const int fd = system_.open(node, O_RDWR);
  EXPECT_GE(fd, 0);
  int control_fd = ctl;
  if (std::string(node) != "/dev/nvidiactl") {
    EXPECT_EQ(system_.ioctl(fd, escape(201, 4), &control_fd), 0);
  }
  std::array<std::byte, 56> call{};
  put<uint32_t>(call, 0, root);
  put<uint32_t>(call, 4, device);
  put<uint32_t>(call, 8, handle);
  put<uint64_t>(call, 24, size);
  put<uint32_t>(call, 48, static_cast<uint32_t>(fd));
  EXPECT_EQ(system_.ioctl(ctl, escape(0x4e, 56), call.data()), 0);
  EXPECT_EQ(get(call, 40), 0u);
  void* out = nullptr;
  const int flags = MAP_SHARED | (va != 0 ? MAP_FIXED_NOREPLACE : 0);
  EXPECT_EQ(
      system_.mmap(reinterpret_cast<void*>(va), size, PROT_READ | PROT_WRITE, flags, fd, 0, &out),
      0);
  system_.close(fd);
  return out;
}

uint32_t Client::map_gpu(uint32_t handle, uint64_t va, uint64_t size, uint32_t type) {
  std::vector<std::byte> call(release_.map_external);
  store64(call, 0, va);
  store64(call, 8, size);
  std::memcpy(call.data() + 24, uuid.data(), 16);
  store(call, 24 + 16, type);
  const size_t tail = release_.map_external - 24;
  store64(call, tail, 1);
  store(call, tail + 8, static_cast<uint32_t>(ctl));
  store(call, tail + 12, root);
  store(call, tail + 16, handle);
  return uvm(33, call, release_.map_external - 4);
}

Client::Memory Client::video(uint64_t size, bool is_mapped) {
  std::vector<std::byte> params(release_.memory_params);
  store(params, 0, root);
  store(params, 24, 1u << 23);  // 4 KiB pages
  store64(params, 64, size);
  Memory memory;
  memory.size = size;
  memory.handle = alloc_ok(device, 0x40, params);
  memory.va = next_va;
  next_va += (size + 0xfffff) / 0x100000 * 0x100000;
  std::vector<std::byte> range(24);
  store64(range, 0, memory.va);
  store64(range, 8, size);
  EXPECT_EQ(uvm(73, range, 16), 0u);
  EXPECT_EQ(map_gpu(memory.handle, memory.va, size), 0u);
  if (is_mapped)
    memory.host = static_cast<std::byte*>(map_cpu(memory.handle, memory.va, size, "/dev/nvidia0"));
  return memory;
}

Client::Memory Client::host(uint64_t size) {
  Memory memory;
  memory.size = size;
  memory.va = next_va;
  next_va += (size + 0xfffff) / 0x100000 * 0x100000;
  void* const pages = ::mmap(reinterpret_cast<void*>(memory.va), size, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  EXPECT_NE(pages, MAP_FAILED);
  memory.host = static_cast<std::byte*>(pages);
  std::array<std::byte, 56> call{};
  put<uint32_t>(call, 0, root);
  put<uint32_t>(call, 4, device);
  put<uint32_t>(call, 12, 0x71);
  put<uint32_t>(call, 16, 1u << 4 | 1u << 12 | 1u << 30);
  put<uint64_t>(call, 24, memory.va);
  put<uint64_t>(call, 32, size - 1);
  put<uint32_t>(call, 48, ~0u);
  EXPECT_EQ(system_.ioctl(dev, escape(0x27, 56), call.data()), 0);
  EXPECT_EQ(get(call, 40), 0u);
  memory.handle = get(call, 8);
  std::vector<std::byte> range(24);
  store64(range, 0, memory.va);
  store64(range, 8, size);
  EXPECT_EQ(uvm(73, range, 16), 0u);
  EXPECT_EQ(map_gpu(memory.handle, memory.va, size), 0u);
  return memory;
}

Client::Channel Client::channel(uint32_t engine, uint32_t channel_class, uint32_t object_class,
                                uint32_t entries) {
  Channel made;
  made.entries = entries;
  made.ring = video(0x10000, true);
  made.push = video(0x100000, true);
  made.notifier = host(0x1000);
  std::vector<std::byte> params(20);
  store(params, 12, engine);
  if (engine != 1) store(params, 8, space);
  made.group = alloc_ok(device, 0xa06c, params);
  if (engine == 1) {
    params.assign(12, {});
    store(params, 0, space);
    store(params, 4, 1);
    made.share = alloc_ok(made.group, 0x9067, params);
  }
  params.assign(release_.channel_params, {});
  store(params, 0, made.notifier.handle);
  store64(params, 8, made.ring.va);
  store(params, 16, entries);
  store(params, 24, made.share);
  store(params, release_.channel_userd_handles, made.ring.handle);
  store64(params, release_.channel_userd_offsets, 0x8000);
  made.handle = alloc_ok(made.group, channel_class, params);
  params.assign(engine == 1 ? 0 : 8, {});
  if (engine != 1) {
    store(params, 0, 1);
    store(params, 4, engine);
  }
  made.object = alloc_ok(made.handle, object_class, params);
  EXPECT_EQ(control(made.handle, 0xc36f0108, &made.token, 4), 0u);
  std::vector<std::byte> call(56);
  std::memcpy(call.data(), uuid.data(), 16);
  store(call, 16, static_cast<uint32_t>(ctl));
  store(call, 20, root);
  store(call, 24, made.handle);
  store64(call, 32, next_va);
  store64(call, 40, 0x4000000);
  next_va += 0x4000000;
  EXPECT_EQ(uvm(27, call, 48), 0u);
  std::array<uint8_t, 3> schedule{1, 0, 0};
  EXPECT_EQ(control(made.group, 0xa06c0101, schedule.data(), release_.group_schedule), 0u);
  if (doorbell == nullptr) {
    usermode = alloc_ok(subdevice, 0xc461);
    doorbell = static_cast<std::byte*>(map_cpu(usermode, 0, 0x10000, "/dev/nvidia0"));
  }
  return made;
}

void Client::method(Channel& channel, uint32_t subchannel, uint32_t address,
                    std::initializer_list<uint32_t> data) {
  channel.words.push_back(1u << 29 | static_cast<uint32_t>(data.size()) << 16 | subchannel << 13 |
                          address >> 2);
  channel.words.insert(channel.words.end(), data);
}

void Client::submit(Channel& channel) {
  const uint64_t at = channel.push_at;
  std::memcpy(channel.push.host + at, channel.words.data(), channel.words.size() * 4);
  const uint64_t entry =
      (channel.push.va + at) | uint64_t{1} << 41 | uint64_t{channel.words.size()} << 42;
  std::memcpy(channel.ring.host + 8ull * channel.put, &entry, 8);
  channel.put = (channel.put + 1) % channel.entries;
  channel.push_at += channel.words.size() * 4;
  channel.words.clear();
  std::atomic_ref(*reinterpret_cast<uint32_t*>(channel.ring.host + 0x8000 + 0x8c))
      .store(channel.put, std::memory_order_release);
}

void Client::ring(const Channel& channel) {
  std::atomic_ref(*reinterpret_cast<uint32_t*>(doorbell + 0x90))
      .store(channel.token, std::memory_order_release);
}

namespace {

template <class Word>
bool wait_for_value(const std::byte* word, Word value) {
  auto* const at = reinterpret_cast<Word*>(const_cast<std::byte*>(word));
  const auto end = std::chrono::steady_clock::now() + bm::test::patience(std::chrono::seconds(10));
  while (std::atomic_ref(*at).load(std::memory_order_acquire) != value) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace

bool wait_for(const std::byte* word, uint64_t value) { return wait_for_value(word, value); }

bool wait_for_word(const std::byte* word, uint32_t value) { return wait_for_value(word, value); }

uint32_t wait_for_error(const Client::Channel& channel) {
  auto* const last = reinterpret_cast<uint32_t*>(channel.notifier.host + 12);
  const auto end = std::chrono::steady_clock::now() + bm::test::patience(std::chrono::seconds(10));
  while (std::atomic_ref(*last).load(std::memory_order_acquire) >> 16 != 0xffff) {
    if (std::chrono::steady_clock::now() > end) return 0;
    std::this_thread::yield();
  }
  return std::atomic_ref(*reinterpret_cast<uint32_t*>(channel.notifier.host + 8)).load();
}

}  // namespace bm::sim::nv::test
