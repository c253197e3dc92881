#pragma once
// What servers of these tests send, with faults planted in it.

#include <atomic>
#include <cstdint>
#include <string>

namespace bm::test {

/// Of all that a server sends in its life.
struct PlantedFaults {
  uint64_t cut_after = ~uint64_t{0};    ///< bytes sent before the connection is closed
  uint64_t stall_after = ~uint64_t{0};  ///< bytes sent before nothing is any more
  uint64_t flip_at = ~uint64_t{0};      ///< a byte sent that is inverted
};

class PlantedSender {
 public:
  explicit PlantedSender(const PlantedFaults& faults) : faults_(faults) {}
  /// Sends all of `bytes` to `fd`, the descriptor `passed` with the first of them. False when the
  /// client has gone; `cut`, the connection that cut_after closes, is shut down then.
  bool put(int fd, int cut, const std::string& bytes, int passed = -1);
  uint64_t sent() const { return sent_; }

 private:
  const PlantedFaults faults_;
  std::atomic<uint64_t> sent_{0};
};

/// A socket that listens at `folder`/socket, an address of the Unix domain; `folder` is made from a
/// pattern as mkdtemp() takes it. Aborts where that fails.
int listen_in_folder(std::string* folder);

}  // namespace bm::test
