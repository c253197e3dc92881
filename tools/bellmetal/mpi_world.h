#pragma once
// Open MPI, loaded at run time: one process (rank) of a program that mpirun started on several.

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace bm::cli {

/// Messages between the ranks of MPI_COMM_WORLD. Every wait has a limit. Thread: one.
class MpiWorld {
 public:
  /// Whether mpirun started this process.
  static bool is_launched();
  /// `limit`: of every wait for another rank.
  /// Errors: kNotFound (the library is not there), kUnsupported (another MPI than Open MPI 4 or 5),
  /// kIo (MPI_Init failed).
  static Result<std::unique_ptr<MpiWorld>> join(std::chrono::milliseconds limit);
  /// Leaves with all others, or ends them where that is not possible.
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  uint32_t rank() const { return rank_; }
  uint32_t size() const { return size_; }

  struct Message {
    uint32_t source = 0;
    std::vector<std::byte> bytes;
  };
  /// Errors: kTimeout naming the rank, kCancelled (Ctrl-C), kIo.
  Status send(uint32_t to, std::span<const std::byte> bytes);
  /// From any rank. `who` is waited for, in the words of the error. Errors: as send().
  Result<Message> receive(const std::string& who);
  /// After this the destructor ends all ranks with `code` instead of waiting for them to leave.
  void give_up(int code) { exit_code_ = code; }

 private:
  struct Library;
  MpiWorld() = default;
  template <class F>
  Status wait(const std::string& who, F is_done);

  std::shared_ptr<const Library> library_;
  std::chrono::milliseconds limit_{};
  uint32_t rank_ = 0, size_ = 1;
  int exit_code_ = 0;
};

}  // namespace bm::cli
