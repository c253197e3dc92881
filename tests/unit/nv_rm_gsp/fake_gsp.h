#pragma once
// A card whose GSP runs, for the driver's upper half: registers that count, video memory, DMA, and
// a resource manager that keeps a tree of objects and objects to what a real one would not take. It
// shares no constant with the product: offsets are those a C compiler gives for NVIDIA's headers at
// tag 570.144.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "drivers/nv/gsp/rpc.h"
#include "drivers/nv/rm_gsp/running_card.h"
#include "drivers/transport/pci.h"
#include "tests/unit/driver_memory/mmu_walker.h"

namespace bm::nv::gsp::test {

struct FakeChip {
  const char* name;
  uint32_t architecture, implementation;
  bool is_v3;
  uint32_t channel_class, compute_class, copy_class;
  uint32_t token_bits;  ///< beside runlist and channel
};
const std::vector<FakeChip>& fake_chips();

/// What a driver does wrong is a line in faults.
class FakeMachine {
 public:
  static constexpr uint64_t kVideoBytes = 40 << 20, kBar1Bytes = 24 << 20;
  explicit FakeMachine(const FakeChip& chip);

  /// To be given to the driver. The machine outlives it.
  std::unique_ptr<RunningCard> card();

  /// Where the driver says that its page tables lie: address and bytes. What it names no table is
  /// none to walk().
  std::function<std::map<uint64_t, uint64_t>()> tables;
  /// What the MMU finds at `va` in the space that the program's channels use.
  memory::test::Walk walk(uint64_t va) const;
  memory::test::Walk walk_from(uint64_t root, uint64_t va) const;
  /// Bytes of video memory, seen by nobody's window.
  std::vector<std::byte> video;

  /// An event, to be served by the next poll.
  void tell(RpcEvent event, std::vector<std::byte> payload);
  void tell_channel_fault(uint32_t number, uint32_t code, uint64_t address);
  void tell_error_log(uint32_t xid, uint32_t number, const std::string& text);

  struct Channel {
    uint32_t number = 0, runlist = 0, engine = 0, client = 0;
    uint64_t userd = 0, notifier = 0, ring = 0, instance = 0;
    uint32_t flags = 0, internal_flags = 0;
    bool has_context = false;
    std::map<uint32_t, uint64_t> promoted;  ///< address on the GPU by buffer
  };
  std::vector<Channel> channels;  ///< of the program, in order
  struct Invalidation {
    uint64_t root = 0;
    uint32_t command = 0;
  };
  std::vector<Invalidation> invalidations;
  std::vector<std::string> calls;   ///< names, in order
  std::vector<std::string> faults;  ///< what no card would take

  int fail_at = -1;     ///< this call, counted from 0, is refused with NV_ERR_GENERIC
  bool breaks = false;  ///< that call is never answered instead
  bool is_golden_made = false;
  bool is_down = false;
  uint64_t program_root = 0;
  size_t live_objects() const { return objects_.size(); }
  size_t live_dma() const { return dma_.size(); }
  bool reaches(uint64_t bus_address, uint64_t bytes) const;
  uint32_t window_moves = 0;  ///< of PRAMIN

 private:
  friend class FakeFunction;
  friend class FakeRpc;
  friend class FakeRunning;
  friend class FakeRegisters;
  struct Object {
    uint32_t client = 0, parent = 0, object_class = 0, engine = 0;
    uint64_t root = 0;
    std::optional<Channel> channel;
    bool is_listed = false;
  };
  using Key = std::pair<uint32_t, uint32_t>;  ///< client, handle

  void fault(std::string text) { faults.push_back(std::move(text)); }
  RpcReply serve(const RpcRequest& request);
  uint32_t alloc(const std::byte* at, uint32_t bytes, std::vector<std::byte>& reply);
  uint32_t control(uint32_t client, uint32_t object, uint32_t command, std::span<std::byte> params);
  uint32_t make_channel(Object& object, std::span<std::byte> params);
  uint32_t promote(uint32_t client, std::span<std::byte> params);
  void free(uint32_t client, uint32_t handle);
  std::vector<std::byte> static_info() const;
  uint32_t runlist_of(uint32_t engine) const;
  uint32_t read_register(uint64_t offset);
  void write_register(uint64_t offset, uint32_t value);

  const FakeChip chip_;
  std::map<Key, Object> objects_;
  std::map<uint64_t, std::pair<std::byte*, uint64_t>> dma_;  ///< host and bytes by bus address
  std::vector<std::pair<RpcEvent, std::vector<std::byte>>> events_;
  std::set<uint32_t> numbers_;
  std::map<uint64_t, uint32_t> registers_;
  RpcEventSink* sink_ = nullptr;
  int call_count_ = 0;
  Status rpc_status_;
};

}  // namespace bm::nv::gsp::test
