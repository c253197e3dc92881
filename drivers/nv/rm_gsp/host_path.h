#pragma once
// How bytes go between the host and a card that reaches no memory of the host (a server behind
// TCP): through BAR1. What would be memory of the host for both is video memory then.

#include <cstdint>
#include <map>
#include <mutex>
#include <span>

#include "drivers/hcq/host_shadow.h"
#include "drivers/transport/mmio.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

/// Thread: any, beside whatever else touches the card; the transport must take calls of any thread.
class BarPath final : public hcq::HostPath {
 public:
  /// `bar1`: shows video memory by physical address.
  explicit BarPath(const HostView& bar1) : bar1_(bar1) {}
  Status write(uint64_t va, std::span<const std::byte> from) override;
  Status read(uint64_t va, std::span<std::byte> to) override;
  void publish() override { bar1_.publish(); }
  /// Addresses that write() and read() serve.
  void add(uint64_t va, uint64_t physical, uint64_t bytes);
  void remove(uint64_t va);

 private:
  struct Place {
    uint64_t physical = 0, bytes = 0;
  };
  Result<uint64_t> find(uint64_t va, uint64_t bytes);

  const HostView bar1_;
  std::mutex mutex_;
  std::map<uint64_t, Place> places_;  ///< by address on the GPU
};

}  // namespace bm::nv::gsp
