#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "tests/sim/amd/engine/engine.h"

namespace bm::sim::amd {
namespace {

constexpr uint32_t kCompute = 0, kSdma = 1, kAql = 2;

uint64_t load_shared(const std::byte* at) {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(const_cast<std::byte*>(at)))
      .load(std::memory_order_acquire);
}
void store_shared(std::byte* at, uint64_t value) {
  std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(at))
      .store(value, std::memory_order_release);
}

}  // namespace

Queue::Queue(GpuMemory& memory, EngineState& state, QueueSetup setup)
    : memory_(memory),
      state_(state),
      setup_(std::move(setup)),
      sh_(setup_.xccs),
      xcc_(setup_.target_xcc) {
  thread_ = std::thread([this] { run(); });
}

Queue::~Queue() {
  stops_ = true;
  thread_.join();
}

void Queue::pause() {
  memory_.release();
  if (stops_.load(std::memory_order_relaxed)) throw Stop{};
  std::this_thread::sleep_for(std::chrono::microseconds(20));
}

/// Looks often at first; who has waited long can wait a little more.
void Queue::wait_until(const std::function<bool()>& is_done) {
  constexpr uint32_t kEager = 500;
  for (uint32_t polls = 0; !is_done(); ++polls) {
    pause();
    if (polls > kEager) std::this_thread::sleep_for(std::chrono::microseconds(180));
  }
}

void Queue::check(bool is_right, const char* what) {
  if (is_right) return;
  setup_.die({Death::Kind::kBadPacket, 0, false, what});
  throw Stop{};
}

void Queue::stand_still(const char* why) {
  state_.note(why);
  for (;;) pause();
}

void Queue::note_writer(uint64_t va) {
  if (!is_shared_) return;
  const auto [at, is_new] = writers_.try_emplace(va, xcc_);
  check(is_new || at->second == xcc_,
        va == 0 ? "every chiplet raises an interrupt of one buffer: no PRED_EXEC around it"
                : "several chiplets write one word of a buffer: no PRED_EXEC around it");
}

std::byte* Queue::memory_at(uint64_t va, uint64_t bytes, bool is_write) {
  std::byte* const at = memory_.at(setup_.gpu_id, va, bytes, is_write);
  if (at != nullptr) return at;
  // What is there of a range is read or written; the first page that is not there faults.
  const auto range = memory_.local_range(setup_.gpu_id, va);
  setup_.die({Death::Kind::kMemory, range ? range->va + range->bytes : va, is_write, "no mapping"});
  throw Stop{};
}
uint32_t Queue::load32(uint64_t va) {
  check(va % 4 == 0, "misaligned 32-bit load");
  return std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(memory_at(va, 4, false)))
      .load(std::memory_order_acquire);
}
uint64_t Queue::load64(uint64_t va) {
  check(va % 8 == 0, "misaligned 64-bit load");
  return load_shared(memory_at(va, 8, false));
}
void Queue::store32(uint64_t va, uint32_t value) {
  check(va % 4 == 0, "misaligned 32-bit store");
  std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(memory_at(va, 4, true)))
      .store(value, std::memory_order_release);
}
void Queue::store64(uint64_t va, uint64_t value) {
  check(va % 8 == 0, "misaligned 64-bit store");
  store_shared(memory_at(va, 8, true), value);
}

void Queue::read(uint64_t va, std::span<std::byte> to) {
  for (uint64_t done = 0; done < to.size();) {
    const uint64_t part = memory_.contiguous(setup_.gpu_id, va + done, to.size() - done);
    std::memcpy(&to[done], memory_at(va + done, part, false), part);
    done += part;
  }
}

void Queue::write(uint64_t va, const std::byte* data, uint64_t bytes) {
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t part = memory_.contiguous(setup_.gpu_id, va + done, bytes - done);
    std::byte* const to = memory_at(va + done, part, true);
    if (!memory_.hold_write(setup_.gpu_id, va + done, data + done, part))
      std::memmove(to, data + done, part);
    done += part;
  }
}

uint64_t Queue::clock() {
  // 100 MHz.
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()) / 10;
}

bool Queue::may_signal() {
  Knobs& knobs = state_.knobs;
  if (const uint32_t delay = knobs.signal_delay_us; delay != 0)
    std::this_thread::sleep_for(std::chrono::microseconds(delay));
  if (knobs.plant.is_due(PlantEvent::kFence) ||
      (knobs.plant.effect() == Effect::kWithhold && knobs.plant.is_planted()))
    return false;
  int64_t left = knobs.withheld_signal.load();
  while (left >= 0 && !knobs.withheld_signal.compare_exchange_weak(left, left - 1)) {}
  return left != 0;
}

void Queue::run() {
  if (setup_.is_evicted) return;
  try {
    while (state_.is_stalled()) pause();
    run_ring();
  } catch (const Stop&) {}
  memory_.release();
}

/// Counters: PM4 rings in dwords, SDMA rings in bytes, AQL rings in packets; the doorbell must
/// agree with the write pointer in memory (AQL: one less).
void Queue::run_ring() {
  const bool is_aql = setup_.type == kAql;
  const uint64_t unit = is_aql ? 64 : setup_.type == kSdma ? 1 : 4;
  const uint64_t size = setup_.ring_bytes / unit;
  std::vector<uint32_t> words;
  uint64_t done = setup_.first;
  position_ = done;
  for (;;) {
    uint64_t rung = 0;
    wait_until([&] {
      rung = std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(setup_.doorbell))
                 .load(std::memory_order_acquire);
      if (is_aql) ++rung;  // never rung: the model's doorbells start at -1 for AQL
      const Knobs& knobs = state_.knobs;
      const bool is_stalled = setup_.type == kSdma ? knobs.is_copy_stalled : knobs.is_stalled;
      return rung != done && !is_stalled && !(setup_.is_halted && setup_.is_halted()) &&
             !knobs.is_lost;
    });
    check(rung - done <= size, "the doorbell is further than the ring is long");
    // A bare chip's queue may have none, where polling it is off.
    check(setup_.write_pointer == 0 || rung <= load64(setup_.write_pointer),
          "the doorbell is ahead of the write pointer");
    std::span<const uint32_t> left;
    if (!is_aql) {
      // A view that may pass the ring's end, as hardware's does.
      check((rung - done) * unit % 4 == 0, "the doorbell is inside a dword");
      const uint64_t first = done % size * unit / 4, all = setup_.ring_bytes / 4;
      words.resize((rung - done) * unit / 4);
      const std::span<uint32_t> there(words);
      const uint64_t straight = std::min(words.size(), all - first);
      read(setup_.ring + first * 4, std::as_writable_bytes(there.first(straight)));
      if (straight < words.size())
        read(setup_.ring, std::as_writable_bytes(there.subspan(straight)));
      left = words;
    }
    while (done != rung) {
      if (state_.delay_us() != 0)
        std::this_thread::sleep_for(std::chrono::microseconds(state_.delay_us()));
      if (is_aql) {
        run_aql(done);
        ++done;
      } else {
        const uint32_t dwords = setup_.type == kCompute ? run_pm4(left, false) : run_sdma(left);
        check(dwords <= left.size(), "a packet passes the write pointer");
        left = left.subspan(dwords);
        const uint64_t before = done % size;
        done += dwords * 4 / unit;
        if (setup_.type == kSdma && done % size <= before) {
          ++state_.wraps;
          if (done % size != 0) ++state_.packets_over_the_end;
        }
      }
      position_ = done;
      ++state_.packets;
      memory_.release();
      store_shared(memory_at(setup_.read_pointer, 8, true),
                   setup_.type == kCompute ? done % size : done);
    }
  }
}

/// HSA 1.2, 2.9: type, barrier and scopes in the first half-word.
void Queue::run_aql(uint64_t index) {
  const uint64_t slot = setup_.ring + index % (setup_.ring_bytes / 64) * 64;
  wait_until([&] { return (load32(slot) & 0xff) != 1; });  // INVALID: not filled yet
  std::array<uint32_t, 16> w{};
  std::memcpy(w.data(), memory_at(slot, 64, false), 64);
  const auto pair = [&](size_t i) { return uint64_t{w[i + 1]} << 32 | w[i]; };
  const uint32_t type = w[0] & 0xff;
  if (type == 0) {
    check(w[0] >> 16 == 1 && w[5] == 10, "vendor packet is no PM4 buffer");
    check((w[1] >> 8 & 0xff) == 0x3f, "vendor packet without INDIRECT_BUFFER");
    check((w[4] & 1u << 23) != 0, "INDIRECT_BUFFER is not valid");
    run_on_all(pair(2), w[4] & 0xfffff);
  } else if (type == 2) {
    if (state_.knobs.plant.awaits(PlantEvent::kLaunch)) damage_packet(w);
    const uint64_t descriptor = pair(8);
    check(descriptor % 64 == 0, "misaligned kernel descriptor");
    std::array<uint32_t, 16> d{};
    std::memcpy(d.data(), memory_at(descriptor, 64, false), 64);
    Launch l;
    l.gpu = setup_.gpu;
    l.gpu_id = setup_.gpu_id;
    l.lds_bytes = w[7];
    l.entry = descriptor + (uint64_t{d[5]} << 32 | d[4]);
    l.threads = {w[1] & 0xffff, w[1] >> 16, w[2] & 0xffff};
    for (size_t i = 0; i < 3; ++i) {
      check(l.threads[i] != 0 && w[3 + i] % l.threads[i] == 0, "a partial work-group");
      l.groups[i] = w[3 + i] / l.threads[i];
    }
    l.rsrc3 = d[11];
    l.rsrc1 = d[12];
    l.rsrc2 = d[13];
    const uint32_t properties = d[14] & 0xffff;
    // The queue object's descriptor of the scratch memory.
    for (uint32_t i = 0; i < 4 && (properties & 1) != 0; ++i)
      l.user_data.push_back(load32(setup_.write_pointer - 56 + 144 + i * 4));
    if ((properties & 2) != 0)
      l.user_data.insert(l.user_data.end(),
                         {static_cast<uint32_t>(slot), static_cast<uint32_t>(slot >> 32)});
    if ((properties & 4) != 0) {
      const uint64_t object = setup_.write_pointer - 56;
      l.user_data.insert(l.user_data.end(),
                         {static_cast<uint32_t>(object), static_cast<uint32_t>(object >> 32)});
    }
    if ((properties & 8) != 0) l.user_data.insert(l.user_data.end(), {w[10], w[11]});
    if ((properties & 16) != 0)
      l.user_data.insert(l.user_data.end(),
                         {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32)});
    if ((properties & 32) != 0) l.user_data.insert(l.user_data.end(), {0, 0});  // flat scratch
    if ((properties & 64) != 0) l.user_data.push_back(w[6]);
    l.is_wave32 = (properties & 1 << 10) != 0;
    // Scratch comes from the queue object, whose start is 56 bytes before the write index.
    const uint64_t object = setup_.write_pointer - 56;
    l.scratch = load64(object + 160);
    l.scratch_wave_bytes = load32(object + 176) * 64;
    check(w[6] == 0 || uint64_t{w[6]} * (l.is_wave32 ? 32 : 64) <= l.scratch_wave_bytes,
          "a kernel needs more scratch than the queue has");
    launch(l);
    if (pair(14) != 0) store64(pair(14) + 8, load64(pair(14) + 8) - 1);
  } else {
    check(type == 3, "unknown AQL packet");
    for (size_t i = 2; i < 12; i += 2)
      if (pair(i) != 0) wait_until([&] { return load64(pair(i) + 8) == 0; });
  }
  // A consumed slot becomes invalid, so that a stale one is never run again.
  store32(slot, 1);
}

void Queue::launch(const Launch& l) {
  check(l.entry % 256 == 0, "misaligned kernel entry");
  memory_at(l.entry, 4, false);
  const uint64_t threads = uint64_t{l.threads[0]} * l.threads[1] * l.threads[2];
  check(threads >= 1 && threads <= 1024, "a work-group of a size there is not");
  if (l.groups[0] == 0 || l.groups[1] == 0 || l.groups[2] == 0) return;
  ++state_.launches;
  while (state_.knobs.is_hung) pause();
  if (!state_.execute()) return;
  Launch launch = l;
  launch.cancel = &stops_;
  launch.lost_page = lost_page_;
  launch.board = &board_;
  auto death = state_.execute()(memory_, launch);
  memory_.release();
  if (!death) {
    board_.show({});
    return;
  }
  death->is_of_wave = true;
  const auto& plant = state_.knobs.plant;
  if (plant.effect() == Effect::kTwoFaults && plant.is_planted()) {
    // Waves that run on after the first one.
    setup_.die(*death);
    damage_code(launch.entry);
    launch.cancel = nullptr;
    if (const auto second = state_.execute()(memory_, launch)) setup_.die(*second);
    throw Stop{};
  }
  if (death->kind != Death::Kind::kCancelled) setup_.die(*death);
  throw Stop{};
}

}  // namespace bm::sim::amd
