#pragma once
// One simulated GPU: its doorbell page, its channels, and the thread that plays its engines.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tests/sim/nv/channel.h"
#include "tests/sim/nv/chip.h"
#include "tests/sim/nv/event.h"
#include "tests/sim/nv/options.h"

namespace bm::sim::ptx {
class Module;
}

namespace bm::sim::nv {

/// What engines counted, for tests that assert it.
struct EngineCounts {
  std::atomic<uint64_t> doorbells{0}, entries{0}, methods{0}, releases{0}, acquires{0}, kernels{0},
      copies{0}, copied_bytes{0}, fills{0}, inline_writes{0}, faults{0}, interrupts{0},
      chained_kernels{0};
};

/// Host function that stands for a program the simulator cannot execute (a cubin): `grid` and
/// `block` in units of blocks and threads, `bank0` the constant bank.
using HostKernel = std::function<void(std::array<uint32_t, 3> grid, std::array<uint32_t, 3> block,
                                      std::span<const std::byte> bank0)>;

/// Who hears of non-stall interrupts, and of which: NV2080_NOTIFIERS_FIFO_EVENT_MTHD for the host
/// method, GR0 and CE0 + n for what engines raise (cl2080_notification.h).
struct Listener {
  std::shared_ptr<EventQueue> queue;
  uint32_t object = 0, index = 0;
};
constexpr uint32_t kNotifyHost = 35, kNotifyGraphics = 12, kNotifyCopy0 = 23;

class Gpu {
 public:
  Gpu(const Chip& chip, uint32_t index, Knobs& knobs, std::function<void(std::string)> complain);
  ~Gpu();

  const Chip& chip() const { return chip_; }
  /// 64 KiB that clients map to ring the doorbell and read the clock.
  const std::shared_ptr<Backing>& usermode() const { return usermode_; }
  EngineCounts& counts() { return counts_; }
  /// What killed channels, in words, oldest first.
  std::vector<std::string> faults();

  /// Hears of channels that die, on the engines' thread. Set before the first channel.
  std::function<void(const Channel&, uint32_t robust_channel_code)> on_death;

  /// Gives the channel number and token, and lets the engines see it.
  void attach(const std::shared_ptr<Channel>& channel);
  /// Returns when no engine works on it any more.
  void detach(Channel& channel);
  void add_object(Channel& channel, uint32_t object_class);
  void add_listener(const Listener& listener);
  void remove_listener(uint32_t object);

  /// Nanoseconds of the GPU's clock; the page's copy is brought up to date, so that whoever reads
  /// it after a timestamp of ours reads a later time.
  uint64_t tick();

  /// Seen by engines before they try the PTX interpreter: program bytes at this GPU address.
  void set_host_kernel(uint64_t program_address, HostKernel kernel);
  HostKernel host_kernel(uint64_t program_address);
  /// Parsed programs by their text.
  std::shared_ptr<const ptx::Module> cached_module(const std::string& text);
  void cache_module(const std::string& text, std::shared_ptr<const ptx::Module> module);

  // For the engines (engine thread only).
  Knobs& knobs() { return knobs_; }
  void complain(std::string what) { complain_(std::move(what)); }
  void report_fault(std::string what);
  void interrupt(uint32_t notify_index);
  /// Writes the error notifier of every channel of the group and stops them.
  void kill(Channel& channel, uint32_t robust_channel_code);
  /// A fault on a channel that lives, after another channel's.
  void fault_another();
  bool has_object(Channel& channel, uint32_t object_class);
  bool has_compute_object(Channel& channel);

 private:
  void run();
  bool step_all();
  bool take_doorbell();
  void lose();
  void write_notifier(const Channel& channel, uint32_t code);

  const Chip& chip_;
  uint32_t index_;
  Knobs& knobs_;
  std::function<void(std::string)> complain_;
  std::shared_ptr<Backing> usermode_;
  EngineCounts counts_;

  std::mutex mutex_;
  std::condition_variable idle_;
  std::vector<std::shared_ptr<Channel>> channels_;
  Channel* running_ = nullptr;
  uint32_t next_channel_ = 8;
  std::map<uint64_t, HostKernel> host_kernels_;
  std::vector<Listener> listeners_;
  std::vector<std::string> faults_;
  std::unordered_map<std::string, std::shared_ptr<const ptx::Module>> modules_;

  std::atomic<bool> is_stopping_{false};
  bool is_lost_ = false;  ///< engine thread only
  std::thread thread_;
};

/// Executes what the channel's ring holds until it is empty, waits, or dies; true when it advanced.
/// Defined by the engines (host_engine.cpp).
bool run_channel(Gpu& gpu, Channel& channel);
/// A copy that faults, for planted faults.
void copy_from_nowhere(Gpu& gpu, Channel& channel);

}  // namespace bm::sim::nv
