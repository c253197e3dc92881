#pragma once
// A GPU of plain memory behind DriverInterface: one thread executes rings, semaphores, copies and
// launches. Kernels are C++ functions named by the PTX text that a launch's program address points
// to. Its constants are its own reading of the class headers.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "drivers/nv/driver_interface.h"
#include "runtime/hal/device.h"

namespace bm::nv::test {

struct StubOptions {
  uint32_t compute_class = 0xc9c0, channel_class = 0xc56f, copy_class = 0xc7b5;
  uint32_t sm = 89;
  uint64_t video_memory = uint64_t{1} << 30;
  uint32_t stall_one_in = 0;  ///< steps; 0: never stalls
  bool is_threaded = true;    ///< false: nothing runs until run_until_idle()
  bool has_events = false;
  bool has_peers = true;
};

/// A launch as the descriptor describes it.
struct StubLaunch {
  std::string kernel;
  hal::Dim3 grid, block;
  std::vector<uint64_t> arguments;
  uint32_t registers = 0, shared_bytes = 0, local_bytes = 0;
};

class StubGpu final : public DriverInterface {
 public:
  using Kernel = std::function<void(const StubLaunch&)>;
  explicit StubGpu(const StubOptions& options = {});
  ~StubGpu() override;

  void define(std::string name, Kernel kernel) { kernels_[std::move(name)] = std::move(kernel); }
  /// Executes what is published until nothing moves. Only without a thread.
  void run_until_idle();
  /// Starts the thread after all, so that the device can be closed.
  void run_until_idle_in_background();
  /// Holds the GPU back while true.
  void set_paused(bool paused) { is_paused_ = paused; }
  /// Kills the channels of an engine the way the driver does.
  void fail_channels(Engine engine, uint32_t code);

  uint64_t launches() const { return num_launches_; }
  uint64_t entries() const { return num_entries_; }
  uint64_t doorbells() const { return num_doorbells_; }
  uint64_t live_allocations() const { return live_; }
  uint64_t registrations() const { return num_registrations_; }
  /// The first thing a real GPU would have refused; empty if none.
  std::string problem() const;
  FaultDetails details;

  const GpuFacts& facts() const override { return facts_; }
  Result<std::unique_ptr<Memory>> allocate(const MemoryRequest& request) override;
  Result<std::shared_ptr<Memory>> map_peer(Memory& memory, hcq::DriverInterface& owner) override;
  Result<std::unique_ptr<Channel>> create_channel(const ChannelRequest& request) override;
  Doorbell<uint32_t> doorbell() override {
    const auto page = Mmio::mapped(const_cast<uint32_t*>(&doorbell_), sizeof doorbell_);
    return Doorbell<uint32_t>::at(page.value(), 0).value();
  }
  uint64_t clock_ns() override { return ++clock_; }
  FaultDetails fault_details(Channel&) override { return details; }
  Result<int> event_fd(Channel&) override;
  Result<bool> wait_event(Channel& channel, int timeout_ms) override;
  uint64_t shared_window() const override { return 0x7294'0000'0000; }
  uint64_t local_window() const override { return 0x7293'0000'0000; }

 private:
  friend class StubMemory;
  friend class StubChannel;
  void loop();
  bool step_all();
  bool step(class StubChannel& channel);
  bool execute(StubChannel& channel, uint32_t method, uint32_t subchannel, uint32_t word);
  bool semaphore(StubChannel& channel, uint32_t word);
  void copy(StubChannel& channel, uint32_t flags);
  void start_inline(StubChannel& channel);
  void launch(StubChannel& channel);
  uint64_t run_descriptor(uint64_t address);
  void complain(std::string text);
  std::byte* at(uint64_t va, uint64_t bytes);

  const StubOptions options_;
  GpuFacts facts_;
  std::map<std::string, Kernel> kernels_;
  std::mt19937 random_{1};

  mutable std::mutex mutex_;
  std::vector<class StubChannel*> channels_;
  struct Range {
    uint64_t bytes;
    std::byte* host;
  };
  std::map<uint64_t, Range> mapped_;  ///< by address
  uint64_t next_va_ = 0;
  std::string problem_;

  alignas(8) volatile uint32_t doorbell_ = UINT32_MAX;
  std::atomic<uint64_t> clock_{1000}, num_launches_{0}, num_entries_{0}, num_doorbells_{0},
      live_{0};
  std::atomic<uint64_t> interrupts_{0}, num_registrations_{0};
  std::atomic<bool> is_stopped_{false}, is_paused_{false};
  std::thread thread_;
};

}  // namespace bm::nv::test
