#pragma once
// The kernel driver: nvidia.ko and nvidia-uvm.ko as a strict model. Knows open files and calling
// processes, not how calls arrive: fake_system.h brings them from the same process,
// tools/sim-nv from another one.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "tests/sim/nv/gpu.h"
#include "tests/sim/nv/objects.h"
#include "tests/sim/nv/options.h"
#include "tests/sim/nv/process.h"
#include "tests/sim/nv/release.h"

namespace bm::sim::nv {

enum class FileKind : uint8_t { kControl, kDevice, kUvm };

struct UvmSpace;

/// An open file. Closing it does what closing the last descriptor does.
class File {
 public:
  FileKind kind = FileKind::kControl;
  uint32_t gpu = 0;               ///< of a device file
  const File* control = nullptr;  ///< REGISTER_FD
  std::vector<uint32_t> attached;

  /// What the next mmap of this file maps; one at a time, as in the kernel.
  struct PendingMap {
    std::shared_ptr<Backing> backing;
    uint64_t offset = 0, size = 0;
    bool is_writable = true;
    bool must_be_whole = false;  ///< BAR mappings: the mapping has exactly this size
  };
  std::optional<PendingMap> pending;

  std::shared_ptr<EventQueue> events;     ///< ALLOC_OS_EVENT
  std::map<int, uint32_t> event_clients;  ///< descriptor named there -> client handle
  std::shared_ptr<UvmSpace> uvm;          ///< UVM_INITIALIZE
};

/// Who calls, and how the descriptors in arguments become files.
struct Caller {
  std::shared_ptr<Process> process;
  std::function<File*(int)> file_of;
};

/// What must be done to the caller's descriptors after a call succeeded.
struct Effect {
  int fd = -1;                          ///< descriptor of the caller; -1: none
  std::optional<File::PendingMap> map;  ///< its mapping has been prepared
  std::shared_ptr<EventQueue> events;   ///< it must become pollable with this queue
};

/// Objects and memory that were still there when their file was closed, and contract breaks that
/// hardware would forgive today.
struct Report {
  std::vector<std::string> leaks, complaints;
};

class Kernel {
 public:
  static Result<std::unique_ptr<Kernel>> create(const Options& options);
  ~Kernel();

  const Options& options() const { return options_; }
  Knobs& knobs() { return knobs_; }
  Gpu& gpu(uint32_t index) { return *gpus_[index]; }
  const Release& release() const { return *release_; }
  std::string version() const;
  /// Text of /proc/driver/nvidia/version.
  std::string proc_version() const;

  /// Whether the path is one of ours: /dev/nvidia* or below /proc/driver/nvidia.
  static bool owns(std::string_view path);
  /// A file for the path, or -errno.
  int open(std::string_view path, std::shared_ptr<File>* out);
  void close(const std::shared_ptr<File>& file);
  /// 0 or -errno; `effect` says what else happened.
  int ioctl(File& file, unsigned long request, uint64_t argument, const Caller& caller,
            Effect* effect);
  /// Checks an mmap of `file` and says what it maps; 0 or -errno.
  int map(File& file, uint64_t bytes, uint64_t offset, bool wants_write, File::PendingMap* out);

  void plan(const Failure& failure);
  void clear_plans();
  /// Calls so far whose name starts with `prefix`.
  uint64_t calls(std::string_view prefix) const;
  /// Names and counts of everything called.
  std::map<std::string, uint64_t> all_calls() const;
  Report report() const;
  /// Live objects of all clients, without the clients; registered client memory in bytes.
  uint64_t live_objects() const;
  uint64_t pinned_bytes() const;
  uint64_t video_memory_used(uint32_t gpu) const;

 private:
  friend class RmCalls;
  friend class UvmCalls;
  explicit Kernel(const Options& options) : options_(options) {}

  /// Counts the call and answers a planned failure for it.
  std::optional<Failure> count(const std::string& name);
  void complain(std::string what);
  void free_tree(Client& client, uint32_t handle, bool is_leak);
  bool is_open(uint32_t gpu) const;
  std::array<uint8_t, 16> uuid(uint32_t gpu) const;
  Client* find_client(uint32_t handle);

  Options options_;
  const Chip* chip_ = nullptr;
  const Release* release_ = nullptr;
  Knobs knobs_;
  std::vector<std::unique_ptr<Gpu>> gpus_;

  mutable std::mutex mutex_;  ///< everything below
  std::vector<std::shared_ptr<File>> files_;
  std::map<uint32_t, Client> clients_;
  uint32_t next_client_ = 0xc1d00000;
  std::vector<uint64_t> video_used_;
  std::vector<std::string> leaks_;

  mutable std::mutex count_mutex_;
  std::map<std::string, uint64_t> calls_;
  std::vector<std::pair<Failure, uint64_t>> plans_;  ///< and how often each has matched
  std::vector<std::string> complaints_;
};

}  // namespace bm::sim::nv
