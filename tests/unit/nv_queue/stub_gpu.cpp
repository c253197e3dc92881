#include "tests/unit/nv_queue/stub_gpu.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "drivers/nv/chips.h"

namespace bm::nv::test {
namespace {

// Below 2^40, where push buffers must lie. Of that, ASan leaves only what is below 2 GiB free.
constexpr uint64_t kWindow = 0x1000'0000;
constexpr uint64_t kPage = 65536;

uint32_t bits(const uint32_t* words, uint32_t hi, uint32_t lo) {
  uint64_t both = words[lo / 32];
  if (hi / 32 != lo / 32) both |= uint64_t{words[lo / 32 + 1]} << 32;
  return static_cast<uint32_t>(both >> (lo % 32) & ((uint64_t{1} << (hi - lo + 1)) - 1));
}

}  // namespace

class StubMemory final : public Memory {
 public:
  explicit StubMemory(StubGpu& gpu) : gpu_(gpu) { ++gpu_.live_; }
  ~StubMemory() override {
    const std::lock_guard lock(gpu_.mutex_);
    gpu_.mapped_.erase(va);
    if (!is_registered && va != 0) munmap(reinterpret_cast<void*>(va), size);
    --gpu_.live_;
  }
  bool is_registered = false;

 private:
  StubGpu& gpu_;
};

class StubChannel final : public Channel {
 public:
  StubChannel(StubGpu& gpu, const ChannelRequest& request, uint32_t number) : gpu_(gpu) {
    token = number;
    engine = request.engine;
    engine_class = engine == Engine::kCompute ? gpu.facts_.compute_class : gpu.facts_.copy_class;
    notifier = HostView::mapped(const_cast<ErrorNotifier*>(&record), sizeof record).value();
    ring = reinterpret_cast<volatile uint64_t*>(request.ring->va + request.ring_offset);
    userd = reinterpret_cast<std::byte*>(request.ring->va + request.userd_offset);
    entries = request.entries;
  }
  ~StubChannel() override {
    const std::lock_guard lock(gpu_.mutex_);
    std::erase(gpu_.channels_, this);
  }
  uint32_t put() { return *reinterpret_cast<volatile uint32_t*>(userd + 0x8c); }

  Engine engine;
  volatile ErrorNotifier record{};
  volatile uint64_t* ring;
  std::byte* userd;
  uint32_t entries, get = 0;  ///< of the ring; nothing tells the driver how far the GPU is
  bool is_kicked = false;

  // The push buffer being executed.
  const uint32_t* words = nullptr;
  uint32_t count = 0, at = 0;
  uint32_t header = 0, done = 0, left = 0;
  std::map<uint32_t, uint32_t> state;  ///< method (with subchannel above) → last word
  std::byte* inline_to = nullptr;
  uint32_t inline_left = 0;

 private:
  StubGpu& gpu_;
};

StubGpu::StubGpu(const StubOptions& options) : options_(options) {
  facts_.chip = find_chip(options.compute_class);
  facts_.name = "Stub";
  facts_.driver_version = "580.0.0";
  facts_.sm_version = options.sm;
  facts_.compute_class = options.compute_class;
  facts_.channel_class = options.channel_class;
  facts_.copy_class = options.copy_class;
  facts_.gpcs = 1;
  facts_.tpcs_per_gpc = 2;
  facts_.sms_per_tpc = 2;
  facts_.warps_per_sm = 48;
  facts_.enabled_sms = 4;
  facts_.copy_engines = 2;
  facts_.video_memory = options.video_memory;
  if (options.is_threaded) thread_ = std::thread([this] { loop(); });
}

StubGpu::~StubGpu() {
  is_stopped_ = true;
  if (thread_.joinable()) thread_.join();
}

void StubGpu::complain(std::string text) {
  if (problem_.empty()) problem_ = std::move(text);
}

std::string StubGpu::problem() const {
  const std::lock_guard lock(mutex_);
  return problem_;
}

Result<std::unique_ptr<Memory>> StubGpu::allocate(const MemoryRequest& request) {
  auto memory = std::make_unique<StubMemory>(*this);  // freed without the lock
  const std::lock_guard lock(mutex_);
  memory->domain = request.domain;
  memory->size = (request.size + kPage - 1) & ~(kPage - 1);
  if (request.host != nullptr) {
    memory->is_registered = true;
    ++num_registrations_;
    memory->size = request.size;
    // Elsewhere than in the process, as the driver may do.
    memory->view = HostView::mapped(request.host, request.size).value();
    memory->va = kWindow + next_va_;
    next_va_ += (memory->size + 2 * kPage) & ~(kPage - 1);
    mapped_[memory->va] = {memory->size, memory->host()};
  } else {
    if (memory->size > facts_.video_memory)
      return fail(Code::kOutOfMemory, "the stub has {} bytes", facts_.video_memory);
    void* where = MAP_FAILED;
    for (; where == MAP_FAILED; next_va_ += memory->size + kPage)
      where =
          mmap(reinterpret_cast<void*>(kWindow + next_va_), memory->size, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    memory->va = reinterpret_cast<uintptr_t>(where);
    if (request.domain != MemoryDomain::kVideo)
      memory->view = HostView::mapped(where, memory->size).value();
  }
  if (!memory->is_registered)
    mapped_[memory->va] = {memory->size, reinterpret_cast<std::byte*>(memory->va)};
  return std::unique_ptr<Memory>(std::move(memory));
}

Result<std::shared_ptr<Memory>> StubGpu::map_peer(Memory& memory, hcq::DriverInterface&) {
  if (!options_.has_peers) return fail(Code::kUnsupported, "no peer access");
  const std::lock_guard lock(mutex_);
  mapped_[memory.va] = {memory.size, reinterpret_cast<std::byte*>(memory.va)};
  return nullptr;
}

Result<std::unique_ptr<Channel>> StubGpu::create_channel(const ChannelRequest& request) {
  const std::lock_guard lock(mutex_);
  auto channel =
      std::make_unique<StubChannel>(*this, request, static_cast<uint32_t>(channels_.size()));
  channels_.push_back(channel.get());
  return std::unique_ptr<Channel>(std::move(channel));
}

Result<int> StubGpu::event_fd(Channel&) {
  if (!options_.has_events) return fail(Code::kUnsupported, "no events");
  return 0;
}

Result<bool> StubGpu::wait_event(Channel&, int timeout_ms) {
  const uint64_t before = interrupts_;
  for (int i = 0; i < timeout_ms * 10 && interrupts_ == before; ++i)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  return interrupts_ != before;
}

void StubGpu::fail_channels(Engine engine, uint32_t code) {
  const std::lock_guard lock(mutex_);
  for (StubChannel* channel : channels_) {
    if (channel->engine != engine) continue;
    channel->record.code = code;
    channel->record.time_ns = ++clock_;
    channel->record.status = 0xffff;
  }
}

std::byte* StubGpu::at(uint64_t va, uint64_t bytes) {
  auto found = mapped_.upper_bound(va);
  if (found != mapped_.begin()) {
    --found;
    const uint64_t offset = va - found->first;
    if (offset <= found->second.bytes && bytes <= found->second.bytes - offset)
      return found->second.host + offset;
  }
  complain(fmt::format("{} bytes at {:#x} are not mapped", bytes, va));
  return nullptr;
}

void StubGpu::loop() {
  uint32_t idle = 0;
  while (!is_stopped_) {
    bool moved = false;
    if (!is_paused_) {
      const std::lock_guard lock(mutex_);
      moved = step_all();
    }
    idle = moved ? 0 : idle + 1;
    if (idle > 200) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void StubGpu::run_until_idle() {
  const std::lock_guard lock(mutex_);
  while (step_all()) {}
}

void StubGpu::run_until_idle_in_background() {
  if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
}

bool StubGpu::step_all() {
  if (doorbell_ != UINT32_MAX) {
    // Two channels may have rung between two looks: all are worth a look.
    doorbell_ = UINT32_MAX;
    ++num_doorbells_;
    for (StubChannel* channel : channels_) channel->is_kicked = true;
  }
  bool moved = false;
  for (StubChannel* channel : channels_) {
    if (options_.stall_one_in != 0 && random_() % options_.stall_one_in == 0) continue;
    if (channel->is_kicked && channel->record.status != 0xffff) moved = step(*channel) || moved;
  }
  return moved;
}

/// Runs a channel until it blocks or its ring is empty. True if anything was executed.
bool StubGpu::step(StubChannel& channel) {
  bool moved = false;
  for (;;) {
    if (channel.words == nullptr) {
      if (channel.get == channel.put()) return moved;
      const uint64_t entry = channel.ring[channel.get];
      const uint64_t va = entry & 0xff'ffff'fffc;
      channel.count = static_cast<uint32_t>(entry >> 42 & 0x1fffff);
      channel.words = reinterpret_cast<const uint32_t*>(at(va, uint64_t{channel.count} * 4));
      channel.at = channel.left = 0;
      ++num_entries_;
      if (channel.words == nullptr || channel.count == 0) {
        complain("a ring entry of nothing");
        channel.count = 0;
      }
    }
    while (channel.at < channel.count || channel.left > 0) {
      if (channel.left == 0) {
        channel.header = channel.words[channel.at++];
        channel.left = channel.header >> 16 & 0x1fff;
        channel.done = 0;
        const uint32_t op = channel.header >> 29;
        if (op != 1 && op != 3) complain(fmt::format("header {:#x}", channel.header));
        continue;
      }
      const bool increments = channel.header >> 29 == 1;
      const uint32_t method = ((channel.header & 0xfff) << 2) + (increments ? channel.done * 4 : 0);
      if (!execute(channel, method, channel.header >> 13 & 7, channel.words[channel.at]))
        return moved;
      moved = true;
      ++channel.at;
      ++channel.done;
      --channel.left;
    }
    channel.words = nullptr;
    channel.get = (channel.get + 1) % channel.entries;
  }
}

/// False: the channel waits, and this word is looked at again.
bool StubGpu::execute(StubChannel& channel, uint32_t method, uint32_t subchannel, uint32_t word) {
  if (method == 0x6c) return semaphore(channel, word);
  if (method == 0x20) ++interrupts_;
  if (method < 0x100) {
    channel.state[method] = word;
    return true;
  }
  const bool is_compute = channel.engine == Engine::kCompute;
  if (subchannel != (is_compute ? 1u : 4u))
    complain(fmt::format("method {:#x} on subchannel {}", method, subchannel));
  channel.state[method] = word;
  if (is_compute) {
    if (method == 0x1b0) start_inline(channel);
    if (method == 0x1b4 && channel.inline_left > 0) {
      std::memcpy(channel.inline_to, &word, 4);
      channel.inline_to += 4;
      --channel.inline_left;
    }
    if (method == 0x2c0 && word == 3) launch(channel);
    if (method == 0x2bc && word == 3) launch(channel);
  } else if (method == 0x300) {
    copy(channel, word);
  }
  return true;
}

bool StubGpu::semaphore(StubChannel& channel, uint32_t word) {
  const auto both = [&](uint32_t lo) {
    return uint64_t{channel.state[lo]} | uint64_t{channel.state[lo + 4]} << 32;
  };
  const uint64_t address = both(0x5c), payload = both(0x64);
  const bool has_stamp = (word >> 25 & 1) != 0;
  auto* memory = reinterpret_cast<uint64_t*>(at(address, has_stamp ? 16 : 8));
  if (memory == nullptr) return true;
  if (address % (has_stamp ? 16 : 8) != 0) complain("a semaphore that is not aligned");
  if ((word >> 24 & 1) == 0) complain("a 32-bit semaphore");
  const std::atomic_ref<uint64_t> value(memory[0]);
  switch (word & 7) {
    case 1:
      if (has_stamp) memory[1] = ++clock_;
      value.store(payload, std::memory_order_release);
      return true;
    case 3:
      if ((word >> 12 & 1) == 0) complain("an acquire that keeps its time slice");
      return static_cast<int64_t>(value.load(std::memory_order_acquire) - payload) >= 0;
    default: complain(fmt::format("semaphore operation {:#x}", word)); return true;
  }
}

void StubGpu::copy(StubChannel& channel, uint32_t flags) {
  const auto pair = [&](uint32_t hi) {
    return uint64_t{channel.state[hi]} << 32 | channel.state[hi + 4];
  };
  const uint32_t length = channel.state[0x418];
  if ((flags & 3) != 0) {
    const bool is_fill = (flags >> 10 & 1) != 0;
    // SET_REMAP_COMPONENTS: one component of four bytes, or constants A and B.
    const bool is_pair = is_fill && channel.state[0x708] == 0x01030054;
    const uint64_t bytes = is_fill ? uint64_t{length} * (is_pair ? 8 : 4) : length;
    if (bytes == 0) complain("a copy of nothing");
    std::byte* to = at(pair(0x408), bytes);
    const std::byte* from = is_fill ? to : at(pair(0x400), bytes);
    if (to == nullptr || from == nullptr) return;
    if (is_fill) {
      const uint32_t word = channel.state[0x700];
      for (uint64_t i = 0; i < bytes / 4; ++i)
        std::memcpy(to + i * 4, is_pair && i % 2 ? &channel.state[0x704] : &word, 4);
    } else {
      std::memmove(to, from, bytes);
    }
  }
  if ((flags >> 3 & 3) == 2) {
    auto* record = reinterpret_cast<uint64_t*>(at(pair(0x240), 16));
    if (record == nullptr) return;
    record[1] = ++clock_;
    std::atomic_ref<uint64_t>(record[0]).store(channel.state[0x248], std::memory_order_release);
  }
}

void StubGpu::start_inline(StubChannel& channel) {
  const uint64_t va = uint64_t{channel.state[0x188]} << 32 | channel.state[0x18c];
  channel.inline_to = at(va, channel.state[0x180]);
  channel.inline_left = channel.inline_to == nullptr ? 0 : channel.state[0x180] / 4;
}

void StubGpu::launch(StubChannel& channel) {
  uint64_t next = uint64_t{channel.state[0x2b4]} << 8;
  for (uint32_t length = 0; next != 0; ++length) {
    if (length > 100'000) return complain("a ring of descriptors");
    next = run_descriptor(next);
  }
}

/// Descriptor 3.0, as in clc9c0qmd.h. Returns the address of the one that depends on it.
uint64_t StubGpu::run_descriptor(uint64_t address) {
  const auto* qmd = reinterpret_cast<const uint32_t*>(at(address, 256));
  if (qmd == nullptr) return 0;
  if (bits(qmd, 583, 580) != 3) complain("a descriptor that is not 3.0");
  StubLaunch launch;
  launch.grid = {bits(qmd, 415, 384), bits(qmd, 431, 416), bits(qmd, 463, 448)};
  launch.block = {bits(qmd, 607, 592), bits(qmd, 623, 608), bits(qmd, 639, 624)};
  launch.registers = bits(qmd, 656, 648);
  launch.shared_bytes = bits(qmd, 561, 544);
  launch.local_bytes = bits(qmd, 1623, 1600);
  const uint64_t program = bits(qmd, 1567, 1536) | uint64_t{bits(qmd, 1584, 1568)} << 32;
  const uint64_t bank = bits(qmd, 1055, 1024) | uint64_t{bits(qmd, 1072, 1056)} << 32;
  const uint64_t bank_bytes = uint64_t{bits(qmd, 1087, 1075)} * 16;
  if (bits(qmd, 640, 640) == 0 || bank % 256 != 0) complain("no constant bank 0");
  if (launch.grid.x == 0 || launch.grid.y == 0 || launch.grid.z == 0) complain("an empty grid");
  const auto* words = reinterpret_cast<const uint32_t*>(at(bank, bank_bytes));
  const auto* text = reinterpret_cast<const char*>(at(program, 1));
  if (words != nullptr && text != nullptr) {
    const uint32_t count = words[80] + words[81];
    if (0x160 + count * 8 > bank_bytes) complain("a constant bank that is too small");
    launch.arguments.resize(count);
    std::memcpy(launch.arguments.data(), words + 0x160 / 4, count * 8);
    const std::string_view all(text);
    const size_t name = all.find(".entry ") + 7;
    launch.kernel = all.substr(name, all.find('(') - name);
    ++num_launches_;
    if (const auto kernel = kernels_.find(launch.kernel); kernel != kernels_.end())
      kernel->second(launch);
    else if (launch.kernel != "nothing")
      complain("unknown kernel " + launch.kernel);
  }
  for (const uint32_t base : {0u, 128u}) {
    if (bits(qmd, 823 + base, 823 + base) == 0) continue;
    const uint64_t where =
        bits(qmd, 799 + base, 768 + base) | uint64_t{bits(qmd, 807 + base, 800 + base)} << 32;
    const uint64_t payload =
        bits(qmd, 863 + base, 832 + base) | uint64_t{bits(qmd, 895 + base, 864 + base)} << 32;
    if (bits(qmd, 829 + base, 829 + base) == 0 || bits(qmd, 831 + base, 830 + base) != 2)
      complain("a release that is not one 64-bit word");
    if (auto* word = reinterpret_cast<uint64_t*>(at(where, 8)))
      std::atomic_ref<uint64_t>(*word).store(payload, std::memory_order_release);
  }
  if (bits(qmd, 512, 512) == 0) return 0;
  if (bits(qmd, 515, 513) != 1) complain("a dependent action that is not schedule");
  return uint64_t{bits(qmd, 511, 480)} << 8;
}

}  // namespace bm::nv::test
