#pragma once
// A vfio-user server for tests of the client, with constants of its own: a device with registers
// (BAR 0, by message), memory (BAR 2, mapped in part) and MSI-X, which copies words to and from the
// client's memory when a register says so. Able to misbehave.
//
// Registers, 32 bits: 0x00 is 0x55aa0001; 0x10 address (low, high), 0x18 value (low, high); writing
// 1 to 0x20 stores the value at the address, 2 loads it from there, 3 raises the interrupt of the
// number at 0x18; 0x24 is the result (1: done).

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/transport/planted_sender.h"

namespace bm::test {

class VfioUserServer {
 public:
  struct Options {
    bool has_twin_socket = true;
    std::string capabilities = {};  ///< instead of ours
    uint16_t major = 0, minor = 0;
    PlantedFaults faults = {};
    bool is_bar_file_short = false;
  };
  explicit VfioUserServer(Options options);
  ~VfioUserServer();
  const std::string& address() const { return address_; }
  uint64_t sent() const { return sender_.sent(); }
  uint32_t resets() const { return resets_; }
  /// "region_write 0 0x10 4", one line per access to BARs.
  std::vector<std::string> log() const;
  uint8_t* memory() const { return memory_; }

 private:
  struct Message {
    uint16_t id = 0, command = 0;
    uint32_t flags = 0;
    std::string payload = {};
    std::vector<int> fds = {};
  };
  struct Area {
    uint64_t size;
    uint8_t* mapped;  ///< nullptr: by message
  };
  void run();
  void serve();
  bool handle(Message& message);
  bool take(int fd, void* to, size_t bytes, std::vector<int>* fds);
  bool take_message(int fd, Message& message);
  void put(int fd, const std::string& bytes, int passed = -1);
  void reply(const Message& to, const std::string& payload, int passed = -1, int error = 0);
  void write_register(uint64_t offset, uint32_t value);
  bool move(uint64_t address, uint64_t* value, bool is_write);
  std::string region_info(uint32_t index) const;

  const Options options_;
  std::string folder_, address_;
  int listener_ = -1, stop_[2] = {-1, -1}, client_ = -1, twin_ = -1, file_ = -1;
  PlantedSender sender_;
  std::atomic<uint32_t> resets_{0};
  std::map<uint64_t, Area> areas_;
  std::deque<Message> pending_;  ///< that came while an answer was awaited
  std::vector<int> events_;
  std::map<uint64_t, uint32_t> registers_;
  std::string config_;
  uint8_t* memory_ = nullptr;
  mutable std::mutex mutex_;
  std::vector<std::string> log_;
  std::thread thread_;
};

}  // namespace bm::test
