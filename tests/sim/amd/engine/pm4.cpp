// PM4 as the compute micro engine runs it. Source: Linux, amdgpu/soc15d.h and nvd.h, PACKET3_*;
// register offsets: asic_reg/gc/gc_11_0_0_offset.h (and gc_9_4_3, gc_10_3_0, gc_12_0_0: the same
// addresses once the segment base is added).

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "tests/sim/amd/engine/engine.h"

namespace bm::sim::amd {
namespace {

// Dword offsets from 0x2c00 of the COMPUTE_* registers.
constexpr uint32_t kNumThreadX = 0x207, kPgmLo = 0x20c, kScratchLo = 0x210, kRsrc1 = 0x212,
                   kRsrc2 = 0x213, kTmpring = 0x218, kRsrc3Gfx9 = 0x22d, kRsrc3 = 0x228,
                   kUserData = 0x240;
constexpr uint32_t kShortNop = 0xffff1000;  // one dword: gfx_v11_0.c, ring funcs' nop

}  // namespace

/// Each chiplet fetches for itself, whenever it comes to it: what the first one signals the host
/// may act on before the last one has begun. They go on one after the other, each until it waits.
void Queue::run_on_all(uint64_t address, uint32_t dwords) {
  check(address % 4 == 0 && dwords != 0, "bad indirect buffer");
  std::vector<uint32_t> order(setup_.xccs), at(setup_.xccs);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, random_);
  is_shared_ = setup_.xccs > 1;
  writers_.clear();
  wait_until([&] {
    bool is_done = true;
    for (const uint32_t xcc : order) {
      xcc_ = xcc;
      if (state_.knobs.held_chiplet == static_cast<int>(xcc) && at[xcc] < dwords) {
        ++state_.knobs.held_turns;
        is_done = false;
        continue;
      }
      while (at[xcc] < dwords && step(address, dwords, at[xcc])) {}
      is_done = is_done && at[xcc] == dwords;
    }
    return is_done;
  });
  xcc_ = 0;
  is_shared_ = false;
}

/// The chiplet's next packet. False: it waits.
bool Queue::step(uint64_t address, uint32_t dwords, uint32_t& at) {
  const auto fetch = [&](uint32_t count) {
    check(count <= dwords - at, "a packet passes the end of its buffer");
    packet_.resize(count);
    read(address + uint64_t{at} * 4, std::as_writable_bytes(std::span(packet_)));
  };
  fetch(1);
  if (packet_[0] != kShortNop) fetch((packet_[0] >> 16 & 0x3fff) + 2);
  const bool is_wait = (packet_[0] >> 8 & 0xff) == 0x3c && packet_[0] != kShortNop;
  const uint64_t here = address + uint64_t{at} * 4;
  if (is_wait && std::exchange(counted_wait_, here) != here && damages_wait()) {
    store32(here + 4 * 4, UINT32_MAX);
    packet_[4] = UINT32_MAX;
  }
  if (is_wait && !is_met(std::span<const uint32_t>(packet_).subspan(1))) {
    memory_.release();
    return false;
  }
  is_stepping_ = true;
  const uint32_t used = run_pm4(packet_, true);
  is_stepping_ = false;
  memory_.release();
  check(used <= dwords - at, "a packet passes the end of its buffer");
  at += used;
  return true;
}

void Queue::raise(uint32_t context) {
  note_writer(0);
  if (setup_.generation == 9 && context == 0) return;
  if (setup_.generation >= 11 && (context & 0x1000000) != 0) return;
  setup_.interrupt(context);
}

void Queue::run_pm4_buffer(uint64_t address, uint32_t dwords) {
  check(address % 4 == 0 && dwords != 0, "bad indirect buffer");
  std::vector<uint32_t> words(dwords);
  read(address, std::as_writable_bytes(std::span(words)));
  std::span<const uint32_t> left(words);
  buffer_dwords_ = dwords;
  buffer_position_ = 0;
  buffer_ = address;
  while (!left.empty()) {
    buffer_position_ = dwords - static_cast<uint32_t>(left.size());
    const uint32_t used = run_pm4(left, true);
    memory_.release();
    check(used <= left.size(), "a packet passes the end of its buffer");
    left = left.subspan(used);
  }
  buffer_ = 0;
}

uint32_t Queue::run_pm4(std::span<const uint32_t> words, bool is_indirect) {
  const uint32_t header = words[0];
  if (header == kShortNop) return 1;
  check(header >> 30 == 3, "no type-3 packet");
  const uint32_t op = header >> 8 & 0xff, payload = (header >> 16 & 0x3fff) + 1;
  check(payload < words.size(), "a packet is longer than what is there");
  const auto body = words.subspan(1, payload);
  const auto pair = [&](size_t i) { return uint64_t{body[i + 1]} << 32 | body[i]; };
  switch (op) {
    case 0x10: break;
    case 0x15: dispatch(body); break;
    case 0x23: {  // PRED_EXEC: dwords for the chiplets in bits 31:24
      check(is_indirect, "PRED_EXEC in a ring");
      check(payload == 1, "PRED_EXEC's length");
      const uint32_t count = body[0] & 0x3fff;
      if ((body[0] >> 24 & 1u << xcc_) == 0) return payload + 1 + count;
      break;
    }
    case 0x37:
      check((body[0] & 0xf00) == 0x500, "WRITE_DATA to what is no memory");
      for (size_t i = 3; i < body.size(); ++i) {
        note_writer(pair(1) + (i - 3) * 4);
        store32(pair(1) + (i - 3) * 4, body[i]);
      }
      break;
    case 0x3c: {
      std::array<uint32_t, 6> wait{};
      std::copy_n(body.begin(), std::min(body.size(), wait.size()), wait.begin());
      // In a buffer that every chiplet runs it was counted, and met, before.
      if (!is_stepping_ && damages_wait()) wait[3] = UINT32_MAX;
      wait_until([&] {
        return is_met(std::span<const uint32_t>(wait).first(std::min(body.size(), wait.size())));
      });
      break;
    }
    case 0x3f:
      check(payload == 3 && (body[2] & 1u << 23) != 0, "INDIRECT_BUFFER is not valid");
      check(!is_indirect, "an indirect buffer in an indirect buffer");
      run_pm4_buffer(pair(0), body[2] & 0xfffff);
      break;
    case 0x46: check(payload == 1, "EVENT_WRITE's length"); break;
    case 0x49: release_mem(body); break;
    case 0x58: check(payload == (setup_.is_gfx9() ? 6u : 7u), "ACQUIRE_MEM's length"); break;
    case 0x76:
      check(body[0] + payload - 1 <= sh_[xcc_].size(), "SET_SH_REG leaves its window");
      for (size_t i = 1; i < body.size(); ++i) sh_[xcc_][body[0] + i - 1] = body[i];
      break;
    default: check(false, "unknown PM4 packet");
  }
  return payload + 1;
}

bool Queue::is_met(std::span<const uint32_t> body) {
  check(body.size() == 6, "WAIT_REG_MEM's length");
  const uint32_t function = body[0] & 7;
  if ((body[0] >> 6 & 3) == 1) {  // a write and its answer: done at once
    // gfx_v11_0_ring_emit_hdp_flush() waits for ==; >= is as good for who writes all ones.
    check((body[0] >> 4 & 3) == 0 && (function == 3 || function == 5),
          "WAIT_REG_MEM of another kind");
    check(!setup_.write_and_wait || setup_.write_and_wait(body[1], body[2], body[3] & body[4]),
          "WAIT_REG_MEM writes a register that answers nowhere");
    return true;
  }
  check((body[0] >> 4 & 3) == 1 && body[0] >> 6 == 0, "WAIT_REG_MEM of another kind");
  const uint32_t value = load32(uint64_t{body[2]} << 32 | body[1]) & body[4];
  switch (function) {
    case 0: return true;
    case 3: return value == body[3];
    case 4: return value != body[3];
    case 5: return value >= body[3];
    default: check(false, "WAIT_REG_MEM function"); return true;
  }
}

void Queue::release_mem(std::span<const uint32_t> body) {
  check(body.size() == 7 && (body[0] & 0x3f) == 0x14 && (body[0] >> 8 & 0xf) == 5,
        "RELEASE_MEM of another event");
  const bool writes_metadata = (body[0] >> 12 & 1) != 0, drops_metadata = (body[0] >> 13 & 1) != 0;
  if (setup_.generation == 10 || setup_.generation == 11)
    check(writes_metadata == drops_metadata, "RELEASE_MEM with one of GLM_WB and GLM_INV");
  const uint64_t address = uint64_t{body[3]} << 32 | body[2];
  if (body[1] >> 29 != 0) note_writer(address);
  switch (body[1] >> 29) {
    case 0: break;
    case 1:
      if (may_signal()) store32(address, body[4]);
      break;
    case 2:
      if (may_signal()) store64(address, uint64_t{body[5]} << 32 | body[4]);
      break;
    case 3: store64(address, clock()); break;
    default: check(false, "RELEASE_MEM data");
  }
  const uint32_t interrupt = body[1] >> 24 & 7;
  check(interrupt == 0 || interrupt == 2, "RELEASE_MEM interrupt");
  if (interrupt == 2) raise(body[6]);
}

void Queue::damage_registers(uint32_t groups) {
  ShRegisters& sh = sh_[xcc_];
  const auto pair = [&](size_t i) { return uint64_t{sh[i + 1]} << 32 | sh[i]; };
  const auto set = [&](size_t i, uint64_t value) {
    sh[i] = static_cast<uint32_t>(value);
    sh[i + 1] = static_cast<uint32_t>(value >> 32);
  };
  // The packet does not say which registers the arguments' address is in: the first that is one.
  size_t arguments = kUserData;
  while (arguments < kUserData + 16 &&
         memory_.at(setup_.gpu_id, pair(arguments), 8, false) == nullptr)
    arguments += 2;
  const bool has_arguments = arguments < kUserData + 16;
  LaunchFields fields{.code = (pair(kPgmLo) & 0xff'ffff'ffff) << 8,
                      .kernarg = has_arguments ? pair(arguments) : 0,
                      .threads_x = sh[kNumThreadX],
                      .groups_x = groups,
                      .lds_bytes = (sh[kRsrc2] >> 15 & 0x1ff) * 512,
                      .rsrc1 = sh[kRsrc1]};
  fields.entry = fields.code;
  damage(fields);
  set(kPgmLo, fields.code >> 8);
  if (has_arguments) set(arguments, fields.kernarg);
  sh[kNumThreadX] = fields.threads_x;
  sh[kRsrc1] = fields.rsrc1;
  sh[kRsrc2] = (sh[kRsrc2] & ~(0x1ffu << 15)) | fields.lds_bytes / 512 << 15;
  if (fields.groups_x != groups) damaged_groups_ = fields.groups_x;
}

void Queue::dispatch(std::span<const uint32_t> body) {
  check(body.size() == 4, "DISPATCH_DIRECT's length");
  check((body[3] & 1) != 0, "DISPATCH_DIRECT without COMPUTE_SHADER_EN");
  check(!is_shared_, "DISPATCH_DIRECT in a buffer that several chiplets run");
  if (state_.knobs.plant.awaits(PlantEvent::kLaunch)) damage_registers(body[0]);
  const ShRegisters& sh = sh_[xcc_];
  Launch l;
  l.gpu = setup_.gpu;
  l.gpu_id = setup_.gpu_id;
  l.entry = (uint64_t{sh[kPgmLo + 1] & 0xff} << 32 | sh[kPgmLo]) << 8;
  l.groups = {damaged_groups_ != 0 ? damaged_groups_ : body[0], body[1], body[2]};
  l.threads = {sh[kNumThreadX], sh[kNumThreadX + 1], sh[kNumThreadX + 2]};
  l.rsrc1 = sh[kRsrc1];
  l.rsrc2 = sh[kRsrc2];
  l.lds_bytes = (l.rsrc2 >> 15 & 0x1ff) * 512;  // COMPUTE_PGM_RSRC2.LDS_SIZE
  l.rsrc3 = sh[setup_.is_gfx9() ? kRsrc3Gfx9 : kRsrc3];
  const uint32_t users = l.rsrc2 >> 1 & 0x1f;
  for (uint32_t i = 0; i < users && i < 16; ++i) l.user_data.push_back(sh[kUserData + i]);
  l.scratch = (uint64_t{sh[kScratchLo + 1] & 0xff} << 32 | sh[kScratchLo]) << 8;
  l.scratch_wave_bytes =
      (sh[kTmpring] >> 12) * (setup_.is_gfx9() || setup_.is_gfx10() ? 1024 : 256);
  l.is_wave32 = (body[3] & 1 << 15) != 0;
  check(!(setup_.is_gfx9() && l.is_wave32), "waves of 32 lanes on gfx9");
  launch(l);
}

}  // namespace bm::sim::amd
