#pragma once
// The GSP's side of the queues, on a fake PCI function: finds them by the page list, reads commands
// and writes messages. Offsets read again in msgq_priv.h and message_queue_priv.h of
// open-gpu-kernel-modules 570.144: nothing here comes from the product but what it calls.

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "drivers/nv/gsp/boot_memory.h"
#include "drivers/nv/gsp/bus.h"
#include "drivers/nv/gsp/message_queue.h"
#include "drivers/transport/pci_config.h"
#include "tests/unit/transport/fake_pci.h"

namespace bm::nv::gsp::test {

/// Moves when somebody sleeps or looks.
class FastClock final : public Clock {
 public:
  uint64_t now_us() override { return now_ += 5; }
  void sleep_us(uint64_t us) override { now_ += us; }

 private:
  uint64_t now_ = 1000;
};

using Blob = std::vector<std::byte>;

struct Rig {
  explicit Rig(bm::test::FakePciOptions options = make_options())
      : pci(options), bus(pci, clock, &stop) {
    const auto opened = bus.open();
    (void)opened;
    (void)set_bus_master(pci, true);
    memory = *BootMemory::create(pci, 47);
  }
  static bm::test::FakePciOptions make_options() {
    return {.vendor = 0x10de, .device = 0x2204, .class_code = 0x030000, .bar0 = 16 << 20};
  }

  bm::test::FakePci pci;
  FastClock clock;
  std::atomic<bool> stop{false};
  Bus bus;
  std::unique_ptr<BootMemory> memory;
};

struct Command {
  uint32_t sequence = 0, pages = 0, function = 0;
  Blob payload;
};

/// The other end of a MessageQueue.
class FakeGsp {
 public:
  static constexpr uint32_t kPage = 0x1000, kQueue = 0x40000, kCount = 63;

  FakeGsp(Rig& rig, uint64_t table) : rig_(rig), table_(table) {}

  template <class T>
  T load(uint64_t address) {
    T value{};
    rig_.pci.device_read(address, std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }
  template <class T>
  void store(uint64_t address, T value) {
    rig_.pci.device_write(address, std::as_bytes(std::span(&value, 1)));
  }
  /// Address of byte `offset` behind the page list, by the list.
  uint64_t at(uint64_t offset) {
    return load<uint64_t>(table_ + 8 * (1 + offset / kPage)) + offset % kPage;
  }

  void make_queue() {
    const uint32_t header[8] = {0, kQueue, kPage, kCount, 0, 1, 32, kPage};
    for (uint32_t i = 0; i < 8; ++i) store(at(kQueue + 4 * i), header[i]);
  }
  uint32_t commands_written() { return load<uint32_t>(at(16)); }
  std::optional<Command> take() {
    if (read_ == commands_written()) return std::nullopt;
    Command command;
    const uint64_t first = entry(0, read_);
    command.sequence = load<uint32_t>(first + 36);
    command.pages = load<uint32_t>(first + 40);
    command.function = load<uint32_t>(first + 60);
    const uint32_t length = load<uint32_t>(first + 56);
    Blob all(uint64_t{command.pages} * kPage);
    for (uint32_t i = 0; i < command.pages; ++i)
      rig_.pci.device_read(entry(0, (read_ + i) % kCount),
                           std::span(all).subspan(i * kPage, kPage));
    uint64_t sum = 0;
    for (size_t i = 0; i < all.size(); i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, all.data() + i, 8);
      sum ^= word;
    }
    is_checksum_right =
        is_checksum_right && static_cast<uint32_t>(sum >> 32) == static_cast<uint32_t>(sum);
    command.payload.assign(all.begin() + 80, all.begin() + 48 + length);
    read_ = (read_ + command.pages) % kCount;
    store(at(kQueue + 32), read_);
    return command;
  }

  /// One message; `damage` is XORed into the checksum.
  void put(uint32_t function, const Blob& payload, uint32_t result = 0, uint32_t damage = 0) {
    Blob all((48 + 32 + payload.size() + kPage - 1) / kPage * kPage);
    const auto word = [&](size_t at, uint32_t value) { std::memcpy(all.data() + at, &value, 4); };
    word(36, sequence);
    word(40, static_cast<uint32_t>(all.size() / kPage));
    word(48, 0x03000000);
    std::memcpy(all.data() + 52, "VRPC", 4);
    word(56, static_cast<uint32_t>(32 + payload.size()));
    word(60, function);
    word(64, result);
    std::copy(payload.begin(), payload.end(), all.begin() + 80);
    uint64_t sum = 0;
    for (size_t i = 0; i < all.size(); i += 8) {
      uint64_t part = 0;
      std::memcpy(&part, all.data() + i, 8);
      sum ^= part;
    }
    word(32, (static_cast<uint32_t>(sum >> 32) ^ static_cast<uint32_t>(sum)) ^ damage);
    for (size_t i = 0; i < all.size() / kPage; ++i)
      rig_.pci.device_write(entry(kQueue, (write_ + static_cast<uint32_t>(i)) % kCount),
                            std::span<const std::byte>(all).subspan(i * kPage, kPage));
    write_ = (write_ + static_cast<uint32_t>(all.size() / kPage)) % kCount;
    store(at(kQueue + 16), write_);
    ++sequence;
  }
  /// How far the host has read.
  uint32_t messages_read() { return load<uint32_t>(at(32)); }

  uint32_t sequence = 0;  ///< of the next message
  bool is_checksum_right = true;

 private:
  uint64_t entry(uint64_t queue, uint32_t index) {
    return at(queue + kPage * (1 + uint64_t{index}));
  }
  Rig& rig_;
  uint64_t table_;
  uint32_t read_ = 0, write_ = 0;
};

inline Blob noise(size_t bytes, uint32_t seed = 1) {
  Blob made(bytes);
  uint32_t state = seed;
  for (std::byte& one : made)
    one = std::byte{static_cast<uint8_t>((state = state * 1664525 + 1013904223) >> 24)};
  return made;
}

}  // namespace bm::nv::gsp::test
