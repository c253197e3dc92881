#pragma once
// What the GPUs of one process share: client, page tables' owner and address plan.

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "drivers/nv/rm/client.h"
#include "drivers/nv/rm_ioctl/addresses.h"
#include "drivers/nv/rm_ioctl/ioctl_transport.h"
#include "drivers/nv/rm_ioctl/uvm.h"

namespace bm::nv {

class RmSession {
 public:
  /// The session of `system` that is open in this process, or a new one: GPUs reach each other's
  /// memory only within one session. `window` and `version` count for a new one only.
  static Result<std::shared_ptr<RmSession>> share(System& system, uint64_t window,
                                                  const std::string& version);
  /// Always a new one.
  static Result<std::shared_ptr<RmSession>> open(System& system, uint64_t window,
                                                 const std::string& version);

  System& system() { return transport_->system(); }
  IoctlTransport& transport() { return *transport_; }
  RmClient& client() { return *client_; }
  UvmSpace& uvm() { return *uvm_; }
  Addresses& addresses() { return *addresses_; }

  /// Lets two GPUs of this session reach each other's memory; asked of the driver once per pair.
  /// Errors: kUnsupported where the pair cannot.
  Status enable_peers(const GpuUuid& a, const GpuUuid& b);
  /// GPUs that are registered now.
  void add(const GpuUuid& gpu);
  void remove(const GpuUuid& gpu);
  bool has(const GpuUuid& gpu);

 private:
  RmSession() = default;

  // In order of making; each needs those before it.
  std::unique_ptr<IoctlTransport> transport_;
  std::unique_ptr<RmClient> client_;
  std::unique_ptr<UvmSpace> uvm_;
  std::unique_ptr<Addresses> addresses_;

  std::mutex mutex_;
  std::set<GpuUuid> gpus_;
  std::set<std::pair<GpuUuid, GpuUuid>> peers_, strangers_;
};

}  // namespace bm::nv
