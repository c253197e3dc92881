#pragma once
// A minimal client of the simulated driver: every call by hand, so that the simulator's checks are
// tested without the product's code.

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "drivers/transport/system.h"
#include "tests/sim/nv/bytes.h"
#include "tests/sim/nv/chip.h"
#include "tests/sim/nv/fake_system.h"
#include "tests/sim/nv/release.h"

namespace bm::sim::nv::test {

/// Where the GPU's and the process's addresses are the same. AddressSanitizer owns everything from
/// 2 GiB to far beyond the 2^40 that push buffers must stay below.
#if defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kWindow = 0x20000000;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr uint64_t kWindow = 0x20000000;
#else
constexpr uint64_t kWindow = 0x4000000000;
#endif
#else
constexpr uint64_t kWindow = 0x4000000000;
#endif

class Client {
 public:
  Client(System& system, const Release& release) : system_(system), release_(release) {}

  uint32_t alloc(uint32_t parent, uint32_t object_class, std::vector<std::byte>* params,
                 uint32_t* status, uint32_t handle = 0);
  uint32_t alloc_ok(uint32_t parent, uint32_t object_class, std::vector<std::byte> params = {});
  uint32_t control(uint32_t object, uint32_t command, void* params, uint32_t size);
  uint32_t free(uint32_t handle);
  /// Status word of a call of the unified memory module.
  uint32_t uvm(uint32_t number, std::vector<std::byte>& params, size_t status_offset);

  /// Open, register, device, subdevice, address space, unified memory.
  void open(uint32_t gpu = 0);
  struct Memory {
    uint32_t handle = 0;
    uint64_t va = 0, size = 0;
    std::byte* host = nullptr;
  };
  Memory video(uint64_t size, bool is_mapped);
  Memory host(uint64_t size);
  uint32_t map_gpu(uint32_t handle, uint64_t va, uint64_t size, uint32_t type = 1);
  void* map_cpu(uint32_t handle, uint64_t va, uint64_t size, const char* node);

  struct Channel {
    Memory ring, notifier;
    uint32_t group = 0, share = 0, handle = 0, object = 0, token = 0, entries = 0, put = 0;
    std::vector<uint32_t> words;
    uint64_t push_at = 0;
    Memory push;
  };
  Channel channel(uint32_t engine, uint32_t channel_class, uint32_t object_class,
                  uint32_t entries = 64);
  /// Header and data of methods, incrementing.
  static void method(Channel& channel, uint32_t subchannel, uint32_t address,
                     std::initializer_list<uint32_t> data);
  /// Puts what method() collected into the ring, without the doorbell.
  void submit(Channel& channel);
  void ring(const Channel& channel);

  uint64_t next_va = kWindow;
  int ctl = -1, dev = -1, uvm_fd = -1;
  uint32_t root = 0, device = 0, subdevice = 0, space = 0, usermode = 0;
  std::byte* doorbell = nullptr;
  std::array<uint8_t, 16> uuid{};
  System& system_;
  const Release& release_;
};

inline void store(std::vector<std::byte>& bytes, size_t offset, uint32_t value) {
  std::memcpy(bytes.data() + offset, &value, 4);
}
inline void store64(std::vector<std::byte>& bytes, size_t offset, uint64_t value) {
  std::memcpy(bytes.data() + offset, &value, 8);
}

/// Waits until the 64-bit word holds `value`, ten seconds at most.
bool wait_for(const std::byte* word, uint64_t value);
/// The same of a 32-bit word.
bool wait_for_word(const std::byte* word, uint32_t value);
/// Waits for the error notifier and gives its code, 0 after ten seconds.
uint32_t wait_for_error(const Client::Channel& channel);

}  // namespace bm::sim::nv::test
