#pragma once
// GSP-RM behind its queue: clients and objects, controls, channels described by physical addresses,
// executed by the engines that the simulated kernel driver has too.
// Source: K src/common/sdk/nvidia/inc (classes, controls, their structures' sizes),
// generated/g_rpc-structures.h, g_sdk-structures.h, gpu/gsp/kernel_gsp.c,
// inc/kernel/gpu/gsp/gsp_static_config.h; alloc/alloc_channel.h.
//
// It refuses
//   R1  RPCs and parameters of another size than their function, class or control has
//   R2  classes the chip has not; parents and clients that are not there; handles in use
//   R3  channels whose instance memory, RAMFC, USERD, method buffer or notifier are no memory of
//       the card's or mapped for DMA, are misaligned, protected, or another channel's
//   R4  channels without page tables, whose ring is not mapped, of a number of entries that is no
//       power of two
//   R5  page directories that are no memory; context buffers smaller than the chip wants, outside
//       of memory or not mapped
//   R6  work-submit tokens and schedules of what is no channel; objects of a channel that it may
//       not have
//   R7  system memory unmapped for DMA while a channel has its USERD, notifier or another part
//   there

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "tests/sim/nv/chip.h"
#include "tests/sim/nv/chip/gsp.h"
#include "tests/sim/nv/chip/mmu.h"
#include "tests/sim/nv/gpu.h"

namespace bm::sim::nv::card {

/// Thread: callers serialise.
class Rm {
 public:
  Rm(const CardRow& row, RegisterFile& registers, Memory& memory, Mmu& mmu, GspQueues& queues);
  ~Rm();

  RpcReply handle(uint32_t function, std::span<const std::byte> payload);
  void set_system_info(std::span<const std::byte> info);
  /// R7, before the driver unmaps system memory.
  void before_unmap(uint64_t address, uint64_t bytes);
  /// Everything that clients had goes.
  void stop();
  Gpu& engines() { return *engines_; }
  Knobs& knobs() { return knobs_; }
  size_t objects() const;
  std::function<bool(uint64_t offset, uint64_t bytes)> is_protected;
  /// What BAR 2 (the function's BAR 3) shows; nullptr: nothing is bound to it.
  std::unique_ptr<WalkedSpace> bar2_space;

 private:
  struct Range {
    Aperture aperture = Aperture::kVideo;
    uint64_t at = 0, bytes = 0;
    std::string what;
  };
  struct Object {
    uint32_t handle = 0, parent = 0, object_class = 0;
    uint32_t va_space = 0;  ///< of groups and context shares
    std::shared_ptr<WalkedSpace> space;
    std::shared_ptr<ChannelGroup> group;
    std::shared_ptr<Channel> channel;
    std::vector<Range> ranges;
  };
  using Client = std::map<uint32_t, Object>;

  uint32_t refuse(RmStatus status, const std::string& what);
  uint32_t allocate(std::span<std::byte> message);
  uint32_t control(std::span<std::byte> message);
  uint32_t free(std::span<const std::byte> payload);
  uint32_t duplicate(std::span<const std::byte> payload);
  uint32_t set_page_directory(std::span<const std::byte> payload);
  uint32_t allocate_memory(std::span<const std::byte> payload);
  uint32_t make_channel(Client& client, Object& object, const Object& parent,
                        std::span<std::byte> params);
  uint32_t take_range(Object& object, std::span<const std::byte> description, const char* what,
                      uint64_t alignment, uint64_t least, Range* out);
  uint32_t run_control(Client& client, Object& object, uint32_t command, std::span<std::byte> p);
  uint32_t promote(std::span<const std::byte> p);
  void fill_device_table(std::span<std::byte> p) const;
  uint32_t update_bar_pde(std::span<const std::byte> payload);
  /// GSP-RM's own directories of BAR 2, and of BAR 1 before them, behind all that drivers get.
  uint64_t bar2_directory() const { return memory_.video().size() - 0x4000; }
  void fill_interrupt_table(std::span<std::byte> p) const;
  void fill_gr_info(std::span<std::byte> p) const;
  void fill_sm_errors(Client& client, std::span<std::byte> p);
  std::vector<std::byte> static_info() const;
  void erase(Client& client, uint32_t handle);
  Object* find(uint32_t client, uint32_t handle);
  void died(const Channel& channel, uint32_t code);

  const CardRow& row_;
  const Chip& chip_;
  RegisterFile& registers_;
  Memory& memory_;
  Mmu& mmu_;
  GspQueues& queues_;
  Knobs knobs_;
  std::map<uint32_t, Client> clients_;
  std::unique_ptr<Gpu> engines_;
};

}  // namespace bm::sim::nv::card
