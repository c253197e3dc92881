#include "tests/unit/nv_rm_gsp/fake_gsp.h"

#include <algorithm>
#include <cstring>

namespace bm::nv::gsp::test {
namespace {

constexpr uint32_t kOk = 0, kGeneric = 0xffff, kInvalidClass = 0x22, kInvalidParent = 0x36,
                   kNotFound = 0x57, kInvalidArgument = 0x1f, kInserted = 0x19;
constexpr uint32_t kInternalClient = 0xc1e0'0001, kInternalSubdevice = 0xabcd'2080;
constexpr uint32_t kMethodBuffer = 0x5000;
constexpr uint64_t kFirstUsable = 1 << 20, kEndUsable = 36 << 20;

template <class T>
T load(const std::byte* at, size_t offset) {
  T value;
  std::memcpy(&value, at + offset, sizeof(T));
  return value;
}
template <class T>
void store(std::byte* at, size_t offset, T value) {
  std::memcpy(at + offset, &value, sizeof(T));
}

}  // namespace

const std::vector<FakeChip>& fake_chips() {
  static const std::vector<FakeChip> chips = {
      {"TU102", 0x16, 2, false, 0xc46f, 0xc5c0, 0xc5b5, 0},
      {"GA100", 0x17, 0, false, 0xc56f, 0xc6c0, 0xc6b5, 0},
      {"GA102", 0x17, 2, false, 0xc56f, 0xc7c0, 0xc7b5, 0},
      {"AD102", 0x19, 2, false, 0xc56f, 0xc9c0, 0xc7b5, 0},
      {"GH100", 0x18, 0, true, 0xc86f, 0xcbc0, 0xc8b5, 0},
      {"GB100", 0x1a, 0, true, 0xc96f, 0xcdc0, 0xc9b5, 0},
      {"GB202", 0x1b, 2, true, 0xca6f, 0xcec0, 0xcab5, 1u << 30},
  };
  return chips;
}

// --- The card

class FakeRegisters final : public RemoteWindow {
 public:
  explicit FakeRegisters(FakeMachine& machine) : machine_(machine) {}
  uint64_t size() const override { return 16 << 20; }
  uint64_t read(uint64_t offset, uint32_t) override { return machine_.read_register(offset); }
  void write(uint64_t offset, uint32_t, uint64_t value) override {
    machine_.write_register(offset, static_cast<uint32_t>(value));
  }
  void read_block(uint64_t offset, std::span<std::byte> to) override {
    for (size_t i = 0; i < to.size(); i += 4)
      store(to.data(), i, machine_.read_register(offset + i));
  }
  void write_block(uint64_t offset, std::span<const std::byte> from) override {
    for (size_t i = 0; i < from.size(); i += 4)
      machine_.write_register(offset + i, load<uint32_t>(from.data(), i));
  }
  void flush() override {}
  Status status() const override { return {}; }

 private:
  FakeMachine& machine_;
};

class FakeFunction final : public PciFunction {
 public:
  explicit FakeFunction(FakeMachine& machine) : machine_(machine), registers_(machine) {
    limits_.takes_iova = true;
    identity_.vendor = 0x10de;
    identity_.device = 0x2684;
    identity_.address = {0, 1, 0, 0};
    bars_[0].size = 16 << 20;
    bars_[1].size = FakeMachine::kBar1Bytes;
  }
  const PciIdentity& identity() const override { return identity_; }
  const std::array<PciBar, kPciBars>& bars() const override { return bars_; }
  Result<Mmio> map_bar(uint32_t) override { return Mmio::remote(registers_); }
  Result<HostView> map_bar_memory(uint32_t index, bool) override {
    if (index == 0) return HostView::remote(registers_);
    return HostView::mapped(machine_.video.data(), FakeMachine::kBar1Bytes);
  }
  Status resize_bar(uint32_t, uint64_t) override { return fail(Code::kUnsupported, "no"); }
  const DmaLimits& dma_limits() const override { return limits_; }
  Result<std::vector<BusRange>> dma_map(const DmaRequest& request) override {
    machine_.dma_[*request.iova] = {static_cast<std::byte*>(request.host), request.bytes};
    mapped_[request.host] = *request.iova;
    return std::vector<BusRange>{{*request.iova, request.bytes}};
  }
  Status dma_unmap(void* host) override {
    machine_.dma_.erase(mapped_[host]);
    mapped_.erase(host);
    return {};
  }
  class Pinned final : public DmaMemory {
   public:
    Pinned(FakeMachine& machine, uint64_t bytes, uint64_t iova)
        : machine_(machine), iova_(iova), memory_(bytes / 8) {
      view_ = *HostView::mapped(memory_.data(), bytes);
      ranges_ = {{iova, bytes}};
      machine_.dma_[iova] = {reinterpret_cast<std::byte*>(memory_.data()), bytes};
    }
    ~Pinned() override { machine_.dma_.erase(iova_); }

   private:
    FakeMachine& machine_;
    uint64_t iova_;
    std::vector<uint64_t> memory_;
  };
  Result<std::unique_ptr<DmaMemory>> dma_allocate(uint64_t bytes, bool,
                                                  std::optional<uint64_t> iova) override {
    return std::make_unique<Pinned>(machine_, bytes, *iova);
  }
  Result<uint32_t> enable_interrupts(uint32_t) override { return fail(Code::kUnsupported, "no"); }
  Result<int> interrupt_fd(uint32_t) override { return fail(Code::kUnsupported, "no"); }
  Result<bool> wait_interrupt(uint32_t, int) override { return fail(Code::kUnsupported, "no"); }
  Status reset(PciReset) override { return {}; }
  Status status() const override { return {}; }

 protected:
  uint32_t config_size() const override { return 4096; }
  Result<uint32_t> do_read_config(uint32_t, uint32_t) override { return 0u; }
  Status do_write_config(uint32_t, uint32_t, uint32_t) override { return {}; }

 private:
  FakeMachine& machine_;
  FakeRegisters registers_;
  PciIdentity identity_;
  std::array<PciBar, kPciBars> bars_{};
  DmaLimits limits_;
  std::map<void*, uint64_t> mapped_;
};

class FakeRpc final : public GspRpc {
 public:
  explicit FakeRpc(FakeMachine& machine) : machine_(machine) {}
  Result<RpcReply> call(const RpcRequest& request) override {
    BM_TRY(machine_.rpc_status_);
    if (machine_.is_down) machine_.fault("a call after the GSP was shut down");
    static_cast<void>(poll());
    const int index = machine_.call_count_++;
    machine_.calls.emplace_back(request.what);
    if (index != machine_.fail_at) return machine_.serve(request);
    if (!machine_.breaks) return RpcReply{.result = kGeneric, .payload = {}};
    machine_.rpc_status_ = fail(Code::kTimeout, "{}: no answer", request.what);
    return tl::unexpected(machine_.rpc_status_.error());
  }
  Status post(const RpcRequest&) override { return {}; }
  Status poll() override {
    auto events = std::move(machine_.events_);
    machine_.events_.clear();
    for (const auto& [event, payload] : events)
      if (machine_.sink_ != nullptr) machine_.sink_->on_event(event, 0, payload);
    return machine_.rpc_status_;
  }
  void set_sink(RpcEventSink* sink) override { machine_.sink_ = sink; }
  Status status() const override { return machine_.rpc_status_; }

 private:
  FakeMachine& machine_;
};

class FakeRunning final : public RunningCard {
 public:
  explicit FakeRunning(FakeMachine& machine)
      : machine_(machine),
        function_(machine),
        rpc_(machine),
        registers_(*function_.map_bar(0)),
        iovas_(*memory::IovaAllocator::create(function_.dma_limits(), 47)) {}
  ChipId chip() const override {
    return {machine_.chip_.architecture, machine_.chip_.implementation};
  }
  PciFunction& function() override { return function_; }
  GspRpc& rpc() override { return rpc_; }
  const Mmio& registers() override { return registers_; }
  memory::IovaAllocator* iovas() override { return &iovas_; }
  Status shut_down() override {
    machine_.is_down = true;
    return {};
  }

 private:
  FakeMachine& machine_;
  FakeFunction function_;
  FakeRpc rpc_;
  Mmio registers_;
  memory::IovaAllocator iovas_;
};

FakeMachine::FakeMachine(const FakeChip& chip) : video(kVideoBytes), chip_(chip) {
  // What the walker takes for words that nobody wrote.
  for (size_t i = 0; i < video.size(); i += 8)
    store<uint64_t>(video.data(), i, 0xdead'beef'dead'beef);
}

std::unique_ptr<RunningCard> FakeMachine::card() { return std::make_unique<FakeRunning>(*this); }

bool FakeMachine::reaches(uint64_t bus_address, uint64_t bytes) const {
  auto found = dma_.upper_bound(bus_address);
  if (found == dma_.begin()) return false;
  --found;
  return bus_address + bytes <= found->first + found->second.second;
}

/// dev_vm.h, dev_bus.h, pri_nv_xal_ep.h: what there is of registers.
uint32_t FakeMachine::read_register(uint64_t offset) {
  if (offset >= 0x700000 && offset < 0x800000) {
    const uint64_t base = uint64_t{registers_[chip_.is_v3 ? 0x10fd40 : 0x1700]} << 16;
    return load<uint32_t>(video.data(), base + (offset - 0x700000));
  }
  if (offset == 0xbb0080) return ++registers_[offset];  // the clock
  return registers_[offset];
}

void FakeMachine::write_register(uint64_t offset, uint32_t value) {
  if (offset >= 0x700000 && offset < 0x800000) {
    const uint64_t base = uint64_t{registers_[chip_.is_v3 ? 0x10fd40 : 0x1700]} << 16;
    store(video.data(), base + (offset - 0x700000), value);
    return;
  }
  if (offset == 0x1700 || offset == 0x10fd40) ++window_moves;
  if (offset == 0xb830b0) {
    if ((value >> 31) == 0) return;
    const uint64_t root =
        (uint64_t{registers_[0xb830a0] >> 4} << 12) | (uint64_t{registers_[0xb830a4]} << 40);
    if ((value & 1) == 0) fault("an invalidation of a range that nobody named");
    invalidations.push_back({root, value});
    value &= 0x7fffffff;
  }
  registers_[offset] = value;
}

memory::test::Walk FakeMachine::walk_from(uint64_t root, uint64_t va) const {
  memory::test::FakeTableMemory memory;
  for (const auto& [address, bytes] : tables()) {
    std::vector<uint64_t> words(bytes / 8);
    std::memcpy(words.data(), video.data() + address, bytes);
    memory.live.emplace(address, std::move(words));
  }
  return memory::test::walk(chip_.is_v3 ? memory::test::Mmu::kNvV3 : memory::test::Mmu::kNvV2,
                            memory, root, va);
}
memory::test::Walk FakeMachine::walk(uint64_t va) const { return walk_from(program_root, va); }

// --- The GSP

std::vector<std::byte> FakeMachine::static_info() const {
  std::vector<std::byte> info(1656);
  std::byte* const at = info.data();
  for (uint8_t i = 0; i < 16; ++i) at[36 + i] = std::byte(0x10 + i);
  // Usable memory, what the firmware has, what is protected.
  store<uint32_t>(at, 344, 3);
  const auto region = [&](size_t index, uint64_t base, uint64_t end, uint64_t reserved,
                          uint8_t is_protected) {
    store<uint64_t>(at, 352 + index * 48, base);
    store<uint64_t>(at, 360 + index * 48, end - 1);
    store<uint64_t>(at, 368 + index * 48, reserved);
    store<uint8_t>(at, 382 + index * 48, is_protected);
  };
  region(0, 0, kFirstUsable, kFirstUsable, 0);
  region(1, kFirstUsable, kEndUsable, 0, 0);
  region(2, kEndUsable, kVideoBytes, 0, 1);
  store<uint64_t>(at, 1224, kVideoBytes);
  std::memcpy(at + 1260, "NVIDIA Model", 12);
  store<uint32_t>(at, 1600, kInternalClient);
  store<uint32_t>(at, 1608, kInternalSubdevice);
  return info;
}

/// Graphics and its two copy engines on runlist 0, copy engines 2 to 4 on runlists of their own,
/// copy engine 10 on runlist 9.
uint32_t FakeMachine::runlist_of(uint32_t engine) const {
  switch (engine) {
    case 1:
    case 9:
    case 10: return 0;
    case 11: return 5;
    case 12: return 6;
    case 13: return 7;
    case 0x34: return 9;
    default: return ~0u;
  }
}

RpcReply FakeMachine::serve(const RpcRequest& request) {
  const std::byte* const at = request.payload.data();
  const size_t size = request.payload.size();
  RpcReply reply{.result = kOk, .payload = {request.payload.begin(), request.payload.end()}};
  switch (request.function) {
    case RpcFunction::kGetGspStaticInfo: reply.payload = static_info(); break;
    case RpcFunction::kGspRmAlloc: {
      const auto bytes = load<uint32_t>(at, 20);
      if (size != 32 + bytes) fault("GSP_RM_ALLOC: paramsSize is not what follows");
      store<uint32_t>(reply.payload.data(), 16, alloc(at, bytes, reply.payload));
      break;
    }
    case RpcFunction::kGspRmControl: {
      const auto bytes = load<uint32_t>(at, 16);
      if (size != 24 + bytes) fault("GSP_RM_CONTROL: paramsSize is not what follows");
      const uint32_t status = control(load<uint32_t>(at, 0), load<uint32_t>(at, 4),
                                      load<uint32_t>(at, 8), std::span(reply.payload).subspan(24));
      store<uint32_t>(reply.payload.data(), 12, status);
      break;
    }
    case RpcFunction::kFree: {
      if (size != 16) fault("FREE of another size");
      const Key key{load<uint32_t>(at, 0), load<uint32_t>(at, 8)};
      if (!objects_.contains(key)) {
        fault("FREE of what is not there");
        reply.result = kNotFound;
      }
      free(key.first, key.second);
      break;
    }
    case RpcFunction::kSetPageDirectory: {
      if (size != 48) fault("SET_PAGE_DIRECTORY of another size");
      const auto found = objects_.find({load<uint32_t>(at, 0), load<uint32_t>(at, 32)});
      if (found == objects_.end() || found->second.object_class != 0x90f1)
        fault("SET_PAGE_DIRECTORY of no address space");
      else
        found->second.root = program_root = load<uint64_t>(at, 16);
      if (load<uint32_t>(at, 24) != (chip_.is_v3 ? 2u : 4u)) fault("entries of the root");
      if ((load<uint32_t>(at, 28) & 3) != 0) fault("a root that is not in video memory");
      break;
    }
    case RpcFunction::kUnsetPageDirectory: {
      const auto found = objects_.find({load<uint32_t>(at, 0), load<uint32_t>(at, 8)});
      if (found == objects_.end() || found->second.root == 0)
        fault("UNSET_PAGE_DIRECTORY: of what");
      else
        found->second.root = 0;
      break;
    }
    default: fault("a function that this GSP does not know"); reply.result = kInvalidArgument;
  }
  return reply;
}

uint32_t FakeMachine::alloc(const std::byte* at, uint32_t bytes, std::vector<std::byte>& reply) {
  const auto client = load<uint32_t>(at, 0), parent = load<uint32_t>(at, 4),
             handle = load<uint32_t>(at, 8), object_class = load<uint32_t>(at, 12);
  const Key key{client, handle};
  if (objects_.contains(key)) return kInserted;
  std::span<std::byte> params = std::span(reply).subspan(32);
  Object object{.client = client,
                .parent = parent,
                .object_class = object_class,
                .engine = 0,
                .root = 0,
                .channel = {},
                .is_listed = false};
  const auto parent_class = [&]() -> uint32_t {
    const auto found = objects_.find({client, parent});
    return found == objects_.end() ? ~0u : found->second.object_class;
  };
  const auto want = [&](uint32_t wanted_parent, uint32_t wanted_bytes) -> uint32_t {
    if (bytes != wanted_bytes) {
      fault(fmt::format("class {:x}: {} bytes of parameters", object_class, bytes));
      return kInvalidArgument;
    }
    return parent_class() == wanted_parent ? kOk : kInvalidParent;
  };
  uint32_t status = kInvalidClass;
  if (object_class == 0)
    status = handle == client && bytes == 120 && load<uint32_t>(params.data(), 0) == client
                 ? kOk
                 : kInvalidArgument;
  else if (object_class == 0x80)
    status = want(0, 56);
  else if (object_class == 0x2080)
    status = want(0x80, 4);
  else if (object_class == 0x90f1)
    status = want(0x80, 48);
  else if (object_class == 0xa06c) {
    status = want(0x80, 20);
    object.engine = load<uint32_t>(params.data(), 12);
  } else if (object_class == 0x9067)
    status = want(0xa06c, 12);
  else if (object_class == 0x83de)
    status = want(0x80, bytes);
  else if (object_class == chip_.channel_class) {
    status = bytes == 368 ? make_channel(object, params) : kInvalidArgument;
  } else if (object_class == chip_.compute_class || object_class == chip_.copy_class) {
    const auto channel = objects_.find({client, parent});
    status = channel != objects_.end() && channel->second.channel ? kOk : kInvalidParent;
    if (status == kOk && object_class == chip_.compute_class) {
      if (!channel->second.channel->has_context) {
        fault("an object of graphics on a channel without a context");
        status = kGeneric;
      } else if (!is_golden_made) {
        if (channel->second.channel->notifier != 0) fault("the golden context on a common channel");
        is_golden_made = true;
      }
    }
  }
  if (status != kOk) return status;
  objects_.emplace(key, std::move(object));
  return kOk;
}

/// NV_CHANNEL_ALLOC_PARAMS, alloc_channel.h of 570.144.
uint32_t FakeMachine::make_channel(Object& object, std::span<std::byte> params) {
  const std::byte* const at = params.data();
  const auto place = [&](size_t offset) {
    return std::tuple{load<uint64_t>(at, offset), load<uint64_t>(at, offset + 8),
                      load<uint32_t>(at, offset + 16)};
  };
  const auto in_video = [&](uint64_t base, uint64_t bytes, uint32_t space) {
    return space == 2 && base >= kFirstUsable && base + bytes <= kEndUsable;
  };
  const auto parent = objects_.find({object.client, object.parent});
  if (parent == objects_.end()) return kInvalidParent;
  Channel channel;
  channel.client = object.client;
  const bool is_grouped = parent->second.object_class == 0xa06c;
  channel.engine = load<uint32_t>(at, 128);
  if (is_grouped) {
    if (channel.engine != 0 && channel.engine != parent->second.engine) return kInvalidArgument;
    channel.engine = parent->second.engine;
    if (load<uint32_t>(at, 28) != 0) return kInvalidArgument;  // TSG channels name no space
  } else if (load<uint32_t>(at, 28) == 0) {
    return kInvalidArgument;
  }
  channel.runlist = runlist_of(channel.engine);
  if (channel.runlist == ~0u) return kInvalidArgument;
  channel.flags = load<uint32_t>(at, 20);
  channel.internal_flags = load<uint32_t>(at, 244);
  // NVOS04_FLAGS: page 20:12 fixed by bit 21, index 10:8.
  if ((channel.flags >> 21 & 1) == 0 || (channel.flags >> 11 & 1) != 0)
    fault("a channel whose number the client does not say");
  channel.number = (channel.flags >> 12 & 0x1ff) * 8 + (channel.flags >> 8 & 7);
  if (channel.number == 0 || !numbers_.insert(channel.number).second) return kInserted;
  channel.ring = load<uint64_t>(at, 8);
  if (load<uint32_t>(at, 16) == 0) return kInvalidArgument;
  const auto [instance, instance_bytes, instance_space] = place(144);
  const auto [userd, userd_bytes, userd_space] = place(168);
  const auto [ramfc, ramfc_bytes, ramfc_space] = place(192);
  const auto [methods, method_bytes, method_space] = place(216);
  if (!in_video(instance, instance_bytes, instance_space) || instance_bytes != 4096 ||
      instance % 4096 != 0)
    fault("the instance block");
  else if (std::any_of(video.begin() + static_cast<ptrdiff_t>(instance),
                       video.begin() + static_cast<ptrdiff_t>(instance + 4096),
                       [](std::byte b) { return b != std::byte{0}; }))
    fault("an instance block with somebody's words");
  if (ramfc != instance || ramfc_bytes != 0x200 || ramfc_space != 2) fault("the RAMFC");
  if (!in_video(userd, userd_bytes, userd_space) || userd % 512 != 0 || userd_bytes != 512)
    fault("USERD");
  if (!in_video(methods, method_bytes, method_space) || method_bytes < kMethodBuffer)
    fault("the method buffer");
  channel.instance = instance;
  channel.userd = userd;
  // Internal flags: privilege 1:0, notifier 3:2 (1 none, 3 memory), ECC notifier 5:4.
  const uint32_t notifier_type = channel.internal_flags >> 2 & 3;
  if ((channel.internal_flags >> 4 & 3) != 1) fault("an ECC notifier");
  if (notifier_type == 3) {
    const auto [notifier, notifier_bytes, notifier_space] = place(248);
    if (notifier_space != 1 || notifier_bytes < 16 || !reaches(notifier, notifier_bytes))
      fault("a notifier that the card does not reach");
    if (load<uint32_t>(at, 0) == 0) fault("a notifier without an error context");
    channel.notifier = notifier;
  } else if (notifier_type != 1 || load<uint32_t>(at, 0) != 0) {
    fault("a notifier of no kind");
  }
  if (is_grouped && (channel.internal_flags & 3) != 0) fault("a program's channel with privilege");
  object.channel = channel;
  object.is_listed = is_grouped;
  if (is_grouped) channels.push_back(channel);
  return kOk;
}

/// NV2080_CTRL_GPU_PROMOTE_CTX_PARAMS.
uint32_t FakeMachine::promote(uint32_t client, std::span<std::byte> params) {
  const std::byte* const at = params.data();
  const auto found = objects_.find({load<uint32_t>(at, 12), load<uint32_t>(at, 16)});
  if (load<uint32_t>(at, 12) != client || found == objects_.end() || !found->second.channel)
    return kNotFound;
  if (load<uint32_t>(at, 0) != 1) fault("promotion of another engine");
  Channel& channel = *found->second.channel;
  const auto count = load<uint32_t>(at, 40);
  for (uint32_t i = 0; i < count && i < 16; ++i) {
    const std::byte* const entry = at + 48 + i * 32;
    const auto physical = load<uint64_t>(entry, 0), va = load<uint64_t>(entry, 8),
               size = load<uint64_t>(entry, 16);
    const auto id = load<uint16_t>(entry, 28);
    const bool is_filled = load<uint8_t>(entry, 30) != 0,
               is_unmapped = load<uint8_t>(entry, 31) != 0;
    if (is_unmapped != (va == 0)) fault("a buffer that is mapped and is not");
    if (is_filled && (physical < kFirstUsable || physical + size > kEndUsable || size == 0 ||
                      load<uint32_t>(entry, 24) != 4))
      fault(fmt::format("buffer {}: where it lies", id));
    if (!is_filled && (physical != 0 || size != 0)) fault("a place of what is not filled");
    channel.promoted[id] = va;
  }
  // Main and patch buffer are every context's own; the golden one has the access maps as well.
  const bool is_golden = !is_golden_made;
  for (const uint32_t id : {0U, 2U, 3U, 4U, 5U, 6U, 9U, 10U})
    if (!channel.promoted.contains(id)) fault(fmt::format("buffer {} is missing", id));
  if (is_golden != channel.promoted.contains(11)) fault("the unrestricted access map");
  channel.has_context = true;
  for (Channel& listed : channels)
    if (listed.number == channel.number) listed = channel;
  return kOk;
}

uint32_t FakeMachine::control(uint32_t client, uint32_t object, uint32_t command,
                              std::span<std::byte> params) {
  std::byte* const at = params.data();
  const bool is_internal = client == kInternalClient && object == kInternalSubdevice;
  const auto found = objects_.find({client, object});
  if (!is_internal && found == objects_.end()) return kNotFound;
  const auto sized = [&](size_t bytes) {
    if (params.size() != bytes)
      fault(fmt::format("control {:#x} with {} bytes", command, params.size()));
    return params.size() == bytes;
  };
  switch (command) {
    case 0x20801112: {  // FIFO_GET_DEVICE_INFO_TABLE: in two parts
      if (!is_internal || !sized(3212)) return kInvalidArgument;
      constexpr uint32_t kTable[][2] = {{1, 0},  {9, 0},  {10, 0},   {11, 5},
                                        {12, 6}, {13, 7}, {0x13, 9}, {0x1d, 3}};
      const bool is_first = load<uint32_t>(at, 0) == 0;
      const uint32_t first = is_first ? 0 : 5, end = is_first ? 5 : 8;
      store<uint32_t>(at, 4, end - first);
      store<uint8_t>(at, 8, is_first ? 1 : 0);
      for (uint32_t i = first; i < end; ++i) {
        store<uint32_t>(at, 12 + (i - first) * 100 + 8, kTable[i][0]);
        store<uint32_t>(at, 12 + (i - first) * 100 + 12, kTable[i][1]);
      }
      return kOk;
    }
    case 0x20802a08:  // CE_GET_FAULT_METHOD_BUFFER_SIZE
      if (!is_internal || !sized(4)) return kInvalidArgument;
      store<uint32_t>(at, 0, kMethodBuffer);
      return kOk;
    case 0x20800a2a: {  // STATIC_KGR_GET_INFO
      if (!is_internal || !sized(3712)) return kInvalidArgument;
      for (uint32_t i = 0; i < 58; ++i) store<uint32_t>(at, i * 8, i);
      const auto set = [&](uint32_t index, uint32_t data) {
        store<uint32_t>(at, index * 8 + 4, data);
      };
      set(0x14, 7), set(0x17, 6), set(0x20, 2), set(0xd, 48), set(0x9, 40);
      set(0xc, chip_.architecture == 0x16 ? 0x705 : 0x806);
      return kOk;
    }
    case 0x20800a32: {  // STATIC_KGR_GET_CONTEXT_BUFFERS_INFO
      if (!is_internal || !sized(1664)) return kInvalidArgument;
      const auto set = [&](uint32_t index, uint32_t bytes) {
        store<uint32_t>(at, index * 8, bytes);
        store<uint32_t>(at, index * 8 + 4, 4096);
      };
      set(0, 0x123456), set(16, 0x2000), set(17, 0x3000), set(18, 0x20000), set(19, 0x280000);
      set(20, 0x11000), set(21, 0), set(22, 0x1000), set(23, 0x4000), set(24, 0x80000);
      return kOk;
    }
    case 0x20802a07:  // CE_GET_PHYSICAL_CAPS
      if (!is_internal || !sized(8)) return kInvalidArgument;
      at[4] =
          std::byte(load<uint32_t>(at, 0) == 13 ? 1 : 0);  // a graphics engine on its own runlist
      return kOk;
    case 0x2080012b:  // GPU_PROMOTE_CTX
      if (!sized(560) || found->second.object_class != 0x2080) return kInvalidArgument;
      return promote(client, params);
    case 0x90f10106: {  // VASPACE_COPY_SERVER_RESERVED_PDES
      if (!sized(184) || found->second.object_class != 0x90f1) return kInvalidArgument;
      const uint32_t levels = chip_.is_v3 ? 4 : 3;
      if (load<uint64_t>(at, 8) != 512 << 20 || load<uint64_t>(at, 16) != uint64_t{1} << 32 ||
          load<uint64_t>(at, 24) != (uint64_t{1} << 32) + (512 << 20) - 1 ||
          load<uint32_t>(at, 32) != levels)
        fault("the resource manager's own part of a space");
      // From each directory the entry of 4 GiB leads to the next.
      for (uint32_t i = 0; i < levels; ++i) {
        const auto address = load<uint64_t>(at, 40 + i * 24);
        const auto shift = load<uint8_t>(at, 40 + i * 24 + 20);
        constexpr uint8_t kShifts[] = {56, 47, 38, 29};
        if (shift != kShifts[i + (chip_.is_v3 ? 0 : 1)] ||
            load<uint32_t>(at, 40 + i * 24 + 16) != 1)
          fault(fmt::format("level {} of the directories", i));
        if (address < kFirstUsable || address >= kEndUsable) {
          fault("a directory that is nowhere");
          break;
        }
        if (i + 1 == levels) break;
        const uint64_t index = (uint64_t{1} << 32 >> shift) & 511;
        const auto word = load<uint64_t>(video.data(), address + index * 8);
        const uint64_t next =
            chip_.is_v3 ? word & 0xf'ffff'ffff'f000 : (word >> 8 & 0x1ff'ffff) << 12;
        if (next != load<uint64_t>(at, 40 + (i + 1) * 24))
          fault("directories that are not one tree");
      }
      return kOk;
    }
    case 0xc36f0108:  // GPFIFO_GET_WORK_SUBMIT_TOKEN: the GSP knows the number alone
      if (!sized(4) || !found->second.channel) return kInvalidArgument;
      store<uint32_t>(at, 0, found->second.channel->number);
      return kOk;
    case 0xa06c0101:  // GPFIFO_SCHEDULE
      return sized(2) && found->second.object_class == 0xa06c ? kOk : kInvalidArgument;
    case 0x83de030c:
    case 0x83de0328: return 0x56;
    default: fault(fmt::format("control {:#x}", command)); return 0x56;
  }
}

void FakeMachine::free(uint32_t client, uint32_t handle) {
  const auto found = objects_.find({client, handle});
  if (found == objects_.end()) return;
  if (found->second.channel) numbers_.erase(found->second.channel->number);
  objects_.erase(found);
  if (client == handle) {
    std::erase_if(objects_, [&](const auto& entry) { return entry.first.first == client; });
    return;
  }
  // Children go with their parent.
  std::vector<uint32_t> children;
  for (const auto& [key, object] : objects_)
    if (key.first == client && object.parent == handle) children.push_back(key.second);
  for (const uint32_t child : children) free(client, child);
}

// --- Events

void FakeMachine::tell(RpcEvent event, std::vector<std::byte> payload) {
  events_.emplace_back(event, std::move(payload));
}

void FakeMachine::tell_channel_fault(uint32_t number, uint32_t code, uint64_t address) {
  std::vector<std::byte> payload(48);
  store<uint32_t>(payload.data(), 0, 1);
  store<uint32_t>(payload.data(), 4, number);
  store<uint32_t>(payload.data(), 16, code);
  store<uint32_t>(payload.data(), 28, static_cast<uint32_t>(address));
  store<uint32_t>(payload.data(), 32, static_cast<uint32_t>(address >> 32));
  store<uint32_t>(payload.data(), 36, 2);  // NV_PFAULT_FAULT_TYPE_PTE
  tell(RpcEvent::kRcTriggered, std::move(payload));
}

void FakeMachine::tell_error_log(uint32_t xid, uint32_t number, const std::string& text) {
  std::vector<std::byte> payload(272);
  store<uint32_t>(payload.data(), 0, xid);
  store<uint32_t>(payload.data(), 8, number);
  std::memcpy(payload.data() + 12, text.data(), std::min<size_t>(text.size(), 255));
  tell(RpcEvent::kOsErrorLog, std::move(payload));
}

}  // namespace bm::nv::gsp::test
