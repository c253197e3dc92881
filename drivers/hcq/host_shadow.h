#pragma once
// Memory that the host sees of a device which reaches none of the host's: each buffer has a shadow
// in this process. What the host changed goes to the device before commands that may read it; what
// commands wrote comes back when their signal does, before the host sees the signal.

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "runtime/base/fork.h"
#include "runtime/base/result.h"
#include "runtime/hal/device.h"

namespace bm::hcq {

/// Moves bytes between the host and memory of a device, by the device's addresses. Thread: any.
/// Errors: kInvalidArgument (no such memory); kDeviceLost and others of the transport.
class HostPath {
 public:
  virtual ~HostPath() = default;
  /// Seen by what is submitted to the device afterwards, and by who polls there after publish().
  virtual Status write(uint64_t va, std::span<const std::byte> from) = 0;
  virtual void publish() = 0;
  virtual Status read(uint64_t va, std::span<std::byte> to) = 0;
};

/// Memory of the device and what stands for it here. Kept while commands or transfers use it.
struct Shadow {
  /// `theirs`: memory of the process that the device's stands for, of a multiple of 8 bytes;
  /// nullptr: memory of the shadow's own.
  Shadow(std::unique_ptr<hal::Buffer> the_memory, std::byte* theirs);
  uint64_t va = 0, bytes = 0;
  std::unique_ptr<hal::Buffer> memory;  ///< the device's, zeros at first
  std::vector<uint64_t> own;
  uint64_t* host = nullptr;    ///< the host's view, in words
  std::vector<uint64_t> last;  ///< what both sides agreed on last
  std::byte* view() { return reinterpret_cast<std::byte*>(host); }
  std::mutex mutex;  ///< of `last`
};

/// The shadows of one device, and a thread that looks for signals while any is awaited.
/// Thread: any.
class HostShadows {
 public:
  explicit HostShadows(HostPath& path);
  ~HostShadows();
  /// No transfer runs afterwards, and none begins.
  void stop();

  std::shared_ptr<Shadow> add(std::unique_ptr<hal::Buffer> memory, std::byte* theirs = nullptr);
  void remove(const Shadow& shadow);
  /// What lies at `va`, and how far on; nullptr: no shadow.
  std::shared_ptr<Shadow> find(uint64_t va) const;

  /// Part of a shadow.
  struct Range {
    std::shared_ptr<Shadow> shadow;
    uint64_t offset = 0, bytes = 0;
    bool is_all = false;  ///< written: every byte of it, whatever the host has there
  };
  /// What commands do to shadows, in the order of the commands.
  struct Step {
    std::vector<Range> read, written;  ///< before the signal
    std::vector<Range> awaited;        ///< words that hold the commands until the host writes them
    Range signal;                      ///< 8 bytes; without a shadow: of no interest to the host
    uint64_t value = 0;                ///< that the signal gets
  };
  /// Sends what the host changed there: those bytes alone where the device may be writing next to
  /// them, else with the short stretches in between.
  Status push(const Range& range);
  Status pull(const Range& range);
  /// Before the commands are submitted to that queue; an id for drop().
  uint64_t expect(hal::QueueKind kind, std::vector<Step> steps);
  /// The submission from `id` on failed.
  void drop(hal::QueueKind kind, uint64_t id);
  /// Waits for a signal, at most so long; false: none is awaited.
  bool wait_progress(uint64_t longest_ns);
  /// The first failure of a transfer; sticky.
  Status status() const;

 private:
  struct Pending {
    uint64_t id = 0;
    Step step;
  };
  void run();
  /// True: a signal came.
  bool look();
  void finish(const std::vector<Step>& done);
  bool is_being_written(const Range& range) const;
  Status push_bytes(const Range& range);
  Status push_runs(const Range& range);
  using Queues = std::array<std::vector<Step>, 2>;
  Result<bool> forward(const Queues& queues);
  Result<std::array<size_t, 2>> count_finished(const Queues& queues);

  const ForkGuard fork_;
  HostPath& path_;
  mutable std::mutex mutex_;
  struct Calls {
    std::condition_variable wake, progress;
  };
  std::unique_ptr<Calls> calls_ = std::make_unique<Calls>();
  std::map<uint64_t, std::shared_ptr<Shadow>> shadows_;  ///< by address
  std::array<std::deque<Pending>, 2> pending_;           ///< by queue
  uint64_t next_id_ = 1, turns_ = 0;
  bool is_stopping_ = false;
  Status status_;
  std::thread thread_;
};

}  // namespace bm::hcq
