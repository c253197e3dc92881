#pragma once
// Stage P15: the resource manager's objects over the GSP. What the kernel's half of the resource
// manager does for its callers is done here: handles, numbers of channels, physical addresses,
// context buffers, tokens, and the questions that half answers by itself.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "drivers/nv/rm_gsp/card_row.h"
#include "drivers/nv/rm_gsp/channel_memory.h"
#include "drivers/nv/rm_gsp/context_buffers.h"
#include "drivers/nv/rm_gsp/faults.h"
#include "drivers/nv/rm_gsp/golden_context.h"
#include "drivers/nv/rm_gsp/memory.h"
#include "drivers/nv/rm_gsp/mmu.h"
#include "drivers/nv/rm_gsp/rm_calls.h"
#include "drivers/nv/rm/transport.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

/// What stages P12 to P14 leave. Everything outlives the transport.
struct TransportParts {
  RmCalls* calls = nullptr;
  CardMemory* memory = nullptr;
  ChannelNumbers* numbers = nullptr;
  AddressSpace* space = nullptr;  ///< of the program
  size_t context_window = 0;      ///< of `space`, for context buffers
  const GoldenContext* golden = nullptr;
  const StaticInfo* info = nullptr;
  const CardRow* row = nullptr;
  std::vector<RunlistEngine> engines = {};
  uint64_t method_buffer_bytes = 0;
  HostView usermode = {};  ///< the page with doorbell and clock
  std::string card = {};   ///< "0000:01:00.0"
};

/// Thread: calls any; enlist() and delist(), and calls that make or free channels, serialise with
/// whoever uses `memory` and `space`.
class GspTransport final : public RmTransport, public RpcEventSink {
 public:
  /// Listens to the GSP's events until it goes. Errors: of STATIC_KGR_GET_INFO.
  static Result<std::unique_ptr<GspTransport>> create(TransportParts parts);
  ~GspTransport() override;

  /// A handle for memory that channels may name. The block outlives it.
  uint32_t enlist(const Block& block);
  /// True: a channel that could not be freed has its USERD or notifier there (CardMemory::keep()).
  [[nodiscard]] bool delist(uint32_t handle);

  // RmTransport
  const abi::Abi& abi() const override { return parts_.calls->abi(); }
  const std::string& version() const override { return version_; }
  Result<RmAnswer> alloc(Stage stage, std::string_view what, const RmAllocCall& call) override;
  Result<uint32_t> control(Stage stage, std::string_view what, const RmControlCall& call) override;
  Result<uint32_t> free(Stage stage, std::string_view what, uint32_t client, uint32_t parent,
                        uint32_t handle) override;
  Result<std::unique_ptr<RmMapping>> map(Stage stage, const RmMapCall& call) override;
  /// kUnsupported: interrupts of a card of our own are not served.
  Result<std::unique_ptr<RmEvent>> open_event(uint32_t gpu, uint32_t client,
                                              uint32_t device) override;
  void poll_events() override;
  bool has_events() const override { return true; }
  /// Lines that the GSP has logged, newest last.
  std::string driver_log() override;

  // RpcEventSink
  void on_event(RpcEvent event, uint32_t result, std::span<const std::byte> payload) override;

  /// The last fault of a channel that the GSP told of.
  std::optional<ChannelFault> fault_of(uint32_t channel);
  uint64_t clock_ns() const;

 private:
  struct Channel {
    uint32_t number = 0;  ///< what the GSP calls it
    uint32_t taken = 0;   ///< of ChannelNumbers
    uint32_t engine = 0, runlist = 0;
    uint32_t userd = 0, error = 0;  ///< handles of memory
    ChannelMemory memory;
    ContextMemory context;
    bool has_context = false;
    HostView notifier;
    std::optional<ChannelFault> fault = {};
  };
  struct Object {
    uint32_t parent = 0, object_class = 0;
    uint32_t engine = 0;              ///< of groups
    bool is_local = false;            ///< the GSP knows nothing of it
    std::optional<Block> block = {};  ///< of notifiers
  };

  explicit GspTransport(TransportParts parts) : parts_(std::move(parts)) {}
  Status read_gr_info();
  uint32_t take_handle() { return next_handle_++; }
  bool is_named(uint32_t memory) const;

  Result<RmAnswer> alloc_client();
  Result<RmAnswer> alloc_memory();
  Result<RmAnswer> alloc_channel(std::string_view what, const RmAllocCall& call);
  Result<RmAnswer> alloc_forwarded(std::string_view what, const RmAllocCall& call);
  Result<uint32_t> promote(uint32_t client, uint32_t channel, Channel& state);
  /// Nothing: the GSP answers.
  std::optional<uint32_t> answer_locally(const RmControlCall& call);
  Result<uint32_t> complete_token(std::string_view what, const RmControlCall& call);
  Result<uint32_t> copy_caps(std::string_view what, const RmControlCall& call);
  std::optional<uint32_t> runlist_of(uint32_t engine) const;
  uint32_t gr_info(uint32_t index) const;
  void write_notifier(const HostView& notifier, uint32_t code, uint32_t engine) const;
  void lose_card(uint32_t code);

  const TransportParts parts_;
  const std::string version_ = fmt::format("GSP {}", kFirmware.text());
  std::mutex mutex_;  ///< of all below but the clock of polls
  std::map<uint32_t, Object> objects_;
  std::map<uint32_t, Channel> channels_;
  std::map<uint32_t, const Block*> memory_;
  std::map<uint32_t, uint32_t> gr_info_;
  std::vector<std::string> log_;
  uint32_t next_handle_ = 0xcaf00001;
  uint32_t next_client_ = 0xc1d00001;
  uint32_t subdevice_ = 0;
  bool is_lost_ = false;
  std::atomic<uint64_t> next_poll_us_{0};
};

}  // namespace bm::nv::gsp
