#pragma once
// A channel: ring of push-buffer entries, the engine state behind it, and where faults go.

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/nv/address_space.h"

namespace bm::sim::nv {

struct MmuFault {
  uint64_t address = 0;
  uint32_t type = 0, access = 0;  ///< as READ_MMU_FAULT_INFO numbers them
};

struct SmError {
  uint32_t sm = 0;                ///< which one, of all of the chip
  uint32_t global = 0, warp = 0;  ///< exception registers
  uint64_t pc = 0, address = 0;
};

/// Channels that share a time slice and a fate.
struct ChannelGroup {
  uint32_t engine = 1;  ///< NV2080_ENGINE_TYPE
  std::atomic<bool> is_scheduled{false};
  std::atomic<bool> is_dead{false};
  std::mutex mutex;
  std::vector<MmuFault> mmu_faults;
  std::vector<SmError> sm_errors;  ///< by SM, up to the last that has one
};

/// Why a channel dies.
struct EngineFault {
  uint32_t code = 0;
  std::string what;
  std::optional<MmuFault> mmu = std::nullopt;
  std::optional<SmError> sm = std::nullopt;
};

/// Registers of one subchannel: methods as last written, by method number / 4.
struct Subchannel {
  uint32_t object_class = 0;
  std::array<uint32_t, 0x1000> methods{};
};

struct Channel {
  // Set when the channel is created.
  uint32_t id = 0, token = 0, channel_class = 0, handle = 0;
  bool has_id = false;  ///< `id` is the driver's choice
  std::shared_ptr<ChannelGroup> group;
  std::shared_ptr<AddressSpace> space;
  uint64_t ring = 0;  ///< GPU address of the entries
  uint32_t entries = 0;
  std::shared_ptr<Backing> userd;
  uint64_t userd_offset = 0;
  std::shared_ptr<Backing> notifier;  ///< may be null
  std::vector<uint32_t> objects;      ///< engine classes allocated under it; guarded by Gpu

  std::atomic<bool> is_bound{false};  ///< registered with the unified memory module
  std::atomic<bool> is_rung{false};   ///< the doorbell has been written since the last look
  std::atomic<bool> is_stopping{false};

  // Engine thread only.
  uint32_t get = 0;
  std::vector<uint32_t> push;  ///< words of the entry being executed
  size_t push_at = 0;
  struct Burst {  ///< method header being consumed
    uint32_t count = 0, method = 0, subchannel = 0, opcode = 0, done = 0;
  } burst;
  std::array<uint32_t, 0x40> host{};  ///< host methods, by number / 4
  std::array<Subchannel, 8> subchannels{};
  /// Launch descriptors as the scheduler has them, by address: what was read once is not read again
  /// until it is invalidated.
  std::map<uint64_t, std::array<uint32_t, 96>> descriptors;
  std::vector<std::byte> inline_data;
  uint64_t inline_left = 0;  ///< bytes of inline data still to come
  /// What the engines were given and have not done: it happens when something waits for it, or when
  /// the host has nothing else to do, so that a missing wait shows.
  std::deque<std::function<std::optional<EngineFault>()>> pending;
  bool needs_idle = false;
  bool has_complained = false;  ///< of acquires that hold the runlist
};

}  // namespace bm::sim::nv
