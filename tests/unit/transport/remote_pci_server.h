#pragma once
// A server of the remote PCI protocol over a fake function, for tests of the client: written from
// the same server the client follows, with its own constants, and able to misbehave.

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/transport/fake_pci.h"
#include "tests/unit/transport/planted_sender.h"

namespace bm::test {

class RemotePciServer {
 public:
  struct Options {
    bool is_tcp = false;
    bool has_shared_memory = false;
    PlantedFaults faults = {};
  };
  RemotePciServer(FakePci& pci, Options options);
  ~RemotePciServer();
  const std::string& address() const { return address_; }
  uint64_t sent() const { return sender_.sent(); }
  /// What was asked for, one line each: "mmio_write 5 0x10 4". Configuration space left out.
  std::vector<std::string> log() const;

 private:
  struct Request;
  void run();
  void serve(int fd);
  void answer(int fd, const Request& request, const std::string& payload);
  void reply(int fd, uint64_t first, uint64_t second, const std::string& data = {},
             int passed = -1);
  void refuse(int fd, const std::string& why);

  FakePci& pci_;
  const Options options_;
  std::string address_, folder_;
  int listener_ = -1, stop_[2] = {-1, -1};
  PlantedSender sender_;
  std::vector<std::unique_ptr<DmaMemory>> memory_;
  std::vector<std::pair<void*, uint64_t>> shared_;
  mutable std::mutex mutex_;
  std::vector<std::string> log_;
  std::thread thread_;
};

}  // namespace bm::test
