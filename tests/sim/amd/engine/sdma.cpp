// SDMA packets. Source: Linux, amdgpu/vega10_sdma_pkt_open.h, navi10_sdma_pkt_open.h (a copy's
// count has 22 bits), sdma_v6_0_0_pkt_open.h.

#include <algorithm>
#include <cstring>

#include "tests/sim/amd/engine/engine.h"

namespace bm::sim::amd {

/// sdma_v6_0_ring_emit_ib(): the buffer starts at a multiple of 32 bytes and has a multiple of 8
/// dwords.
void Queue::run_sdma_buffer(uint64_t address, uint32_t dwords) {
  check(!is_in_buffer_, "INDIRECT in an indirect buffer");
  check(address % 32 == 0 && dwords % 8 == 0,
        "an indirect buffer that is not in units of 8 dwords");
  std::vector<uint32_t> words(dwords);
  read(address, std::as_writable_bytes(std::span(words)));
  is_in_buffer_ = true;
  buffer_dwords_ = dwords;
  buffer_position_ = 0;
  buffer_ = address;
  for (std::span<const uint32_t> left(words); !left.empty();) {
    buffer_position_ = dwords - static_cast<uint32_t>(left.size());
    const uint32_t used = run_sdma(left);
    check(used <= left.size(), "a packet passes the end of its buffer");
    left = left.subspan(used);
  }
  buffer_ = 0;
  is_in_buffer_ = false;
}

uint32_t Queue::run_sdma(std::span<const uint32_t> words) {
  const bool is_copy = (words[0] & 0xff) == 1 && words.size() >= 7;
  std::array<uint32_t, 7> copy{};
  if (is_copy) {
    std::copy_n(words.begin(), copy.size(), copy.begin());
    damage_copy(copy);
    words = copy;
  }
  is_handed_over_ = (words[0] & 0xff) == 8;
  const auto need = [&](size_t count) {
    check(words.size() >= count, "a packet is longer than what is there");
    return static_cast<uint32_t>(count);
  };
  const auto pair = [&](size_t i) { return uint64_t{words[i + 1]} << 32 | words[i]; };
  const uint32_t op = words[0] & 0xff, sub = words[0] >> 8 & 0xff;
  switch (op) {
    case 0: return need((words[0] >> 16 & 0x3fff) + 1);
    case 1: {
      const uint32_t used = need(7);
      check(sub == 0 && words[0] >> 16 == 0, "a copy of another kind");
      const uint64_t bytes =
          uint64_t{words[1] & (setup_.is_gfx9() || setup_.is_gfx10() ? 0x3fffff : 0x3fffffff)} + 1;
      check(bytes == uint64_t{words[1]} + 1, "a copy's count has too many bits");
      memory_.read_over_bus(setup_.gpu_id, pair(3));
      for (uint64_t done = 0; done < bytes;) {
        const uint64_t part = memory_.contiguous(setup_.gpu_id, pair(3) + done, bytes - done);
        write(pair(5) + done, memory_at(pair(3) + done, part, false), part);
        done += part;
      }
      state_.copied_bytes += bytes;
      return used;
    }
    case 2: {
      need(5);
      const uint32_t count = words[3] + 1;
      const uint32_t used = need(4 + uint64_t{count});
      check(words[1] % 4 == 0, "misaligned WRITE");
      write(pair(1), std::as_bytes(words.subspan(4, count)).data(), uint64_t{count} * 4);
      return used;
    }
    case 4: {
      if (!setup_.runs_buffers || !setup_.runs_buffers())
        stand_still("INDIRECT on a copy queue whose IB_CNTL.IB_ENABLE is clear: it stands still");
      const uint32_t used = need(6);
      run_sdma_buffer(pair(1), words[3] & 0xfffff);
      return used;
    }
    case 5: {
      const uint32_t used = need(4);
      check((words[0] >> 16 & 7) == (setup_.is_gfx9() ? 0u : 3u), "FENCE's memory type");
      if (memory_.flush_at(setup_.gpu_id, pair(1))) return used;
      if (may_signal()) store32(pair(1), words[3]);
      return used;
    }
    case 6: {
      const uint32_t used = need(2);
      // event_interrupt_wq_v11(), event_interrupt_wq_v9(): 28 bits are looked at.
      check(words[1] <= 0xfffffff, "TRAP with a context of more than 28 bits");
      setup_.interrupt(words[1]);
      return used;
    }
    case 8: {
      const uint32_t used = need(6);
      check(words[0] >> 28 == 0xd, "POLL_REGMEM of another kind");  // memory, >=
      const uint32_t wanted = damages_wait() ? UINT32_MAX : words[3];
      wait_until([&] { return (load32(pair(1)) & words[4]) >= wanted; });
      return used;
    }
    case 11: {
      const uint32_t used = need(5);
      const uint64_t bytes = uint64_t{words[4] & (setup_.is_gfx9() ? 0x3fffff : 0x3fffffff)} + 1;
      check(bytes == uint64_t{words[4]} + 1, "a fill's count has too many bits");
      const std::vector<std::byte> same(bytes, static_cast<std::byte>(words[3] & 0xff));
      write(pair(1), same.data(), bytes);
      return used;
    }
    case 13: {
      const uint32_t used = need(3);
      check(sub == 2, "TIMESTAMP of another kind");
      store64(pair(1), clock());
      return used;
    }
    default: check(false, "unknown SDMA packet"); return 1;
  }
}

}  // namespace bm::sim::amd
