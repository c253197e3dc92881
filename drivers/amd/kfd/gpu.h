#pragma once
// A GPU owned by the amdgpu kernel driver: the waist of drivers/amd over its ioctls.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "drivers/amd/driver_interface.h"
#include "drivers/amd/kfd/session.h"
#include "drivers/amd/kfd/topology.h"
#include "drivers/transport/system.h"
#include "runtime/base/result.h"

namespace bm::amd::kfd {

struct Options {
  uint32_t index = 0;   ///< among the GPUs this process may use
  uint64_t window = 0;  ///< first GPU address of memory; 0: wherever the process has room
};

/// Opens a GPU. `system` must outlive it. GPUs opened on the same System share a session, so that
/// map_peer() works between them.
/// Errors: kNotFound (no driver, no nodes, no such GPU), kPermission (which group or rule is
/// missing), kUnsupported (kernel too old, unknown chip); each with the remedy where one is known.
Result<std::unique_ptr<DriverInterface>> open_gpu(System& system, const Options& options);

/// GPUs this process may use; 0 where there is no driver. Disturbs nothing.
Result<uint32_t> count_gpus(System& system);

class KfdMemory;

class KfdGpu final : public DriverInterface {
 public:
  static Result<std::unique_ptr<KfdGpu>> open(std::shared_ptr<Session> session, Node node,
                                              std::vector<uint32_t> near_gpu_ids);
  ~KfdGpu() override;

  const GpuFacts& facts() const override { return facts_; }
  Result<std::unique_ptr<Memory>> allocate(const MemoryRequest& request) override;
  Result<std::shared_ptr<Memory>> map_peer(Memory& memory, hcq::DriverInterface& owner) override;
  Result<std::unique_ptr<HardwareQueue>> create_queue(const QueueRequest& request) override;
  Result<bool> wait_event(uint32_t timeout_ms) override;
  std::optional<GpuFault> take_fault() override;
  std::string recent_errors() override;
  uint64_t available_memory() override;

  Session& session() { return *session_; }
  const std::shared_ptr<Session>& shared_session() const { return session_; }
  int render() const { return render_; }
  SaveSizes save() const { return save_; }
  /// One as long as anybody uses it. Caller: as map_peer().
  Result<std::shared_ptr<KfdMemory>> flush_page();
  /// 64-bit doorbells of this process on this GPU; mapped on the first queue.
  Result<Doorbell<uint64_t>> doorbell(uint64_t offset);
  void add_event(uint32_t id);
  void remove_event(uint32_t id);

 private:
  KfdGpu(std::shared_ptr<Session> session, Node node)
      : session_(std::move(session)), node_(std::move(node)) {}
  Status start();
  Status read_facts(std::vector<uint32_t> near_gpu_ids);
  void watch_log();
  std::string read_log();
  /// Remembers the first fault among the records of a wait. `is_certain`: one of the two fault
  /// events ended the wait, whatever the records say.
  void note_faults(const EventData* records, bool is_certain);
  void keep_fault(GpuFault fault);
  void renew(Event& event, uint32_t type);

  std::shared_ptr<Session> session_;
  Node node_;
  GpuFacts facts_;
  SaveSizes save_;
  int render_ = -1;
  Descriptor log_;
  bool shares_page_ = false;
  int64_t opened_ns_ = 0;
  Event memory_event_, hardware_event_;
  Mmio doorbells_;
  std::mutex mutex_;  ///< events_, fault_, ids of the fault events
  std::vector<uint32_t> events_;
  std::weak_ptr<KfdMemory> flush_page_;
  std::optional<GpuFault> fault_;
};

}  // namespace bm::amd::kfd
