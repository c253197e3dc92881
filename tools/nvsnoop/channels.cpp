#include "tools/nvsnoop/channels.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "tools/nvsnoop/record.h"

namespace nvsnoop {
namespace {

// Source: open-gpu-kernel-modules 595.45.04: class headers clc361.h … clc761.h (usermode), clc46f.h
// … clca6f.h (channels; USERD words GP_PUT), alloc_channel.h (NV_CHANNEL_ALLOC_PARAMS).
constexpr uint32_t kUsermode[] = {0xc361, 0xc461, 0xc561, 0xc661, 0xc761};
constexpr uint32_t kChannel[] = {0xc36f, 0xc46f, 0xc56f, 0xc86f, 0xc96f, 0xca6f};
constexpr size_t kPutOffset = 0x8c;
constexpr size_t kMaxMappings = 8192, kMaxChannels = 256, kMaxFds = 4096;
constexpr size_t kMaxPushBytes = 64 * 1024;

struct Mapping {
  uint32_t memory = 0;
  uintptr_t begin = 0, end = 0;
};
struct ChannelState {
  uint32_t handle = 0, object_class = 0;
  uint64_t ring = 0;
  uint32_t entries = 0;
  uint32_t userd_memory = 0;
  uint64_t userd_offset = 0;
  uint32_t last_put = 0;
};

// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
Mapping mappings[kMaxMappings];
ChannelState channels[kMaxChannels];
uint32_t usermode_objects[64];
std::atomic<size_t> mapping_count{0}, channel_count{0}, usermode_count{0};
uint32_t pending[kMaxFds];  // memory + 1
std::atomic_flag is_busy = ATOMIC_FLAG_INIT;
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

template <class T>
T load(const unsigned char* from, size_t offset, size_t bytes) {
  T value{};
  if (offset + sizeof value <= bytes) std::memcpy(&value, from + offset, sizeof value);
  return value;
}

template <size_t n>
bool holds(const uint32_t (&list)[n], uint32_t value) {
  return std::find(std::begin(list), std::end(list), value) != std::end(list);
}

bool is_mapped(uintptr_t begin, size_t bytes) {
  for (size_t i = 0; i < mapping_count.load(); ++i)
    if (mappings[i].begin <= begin && begin < mappings[i].end && bytes <= mappings[i].end - begin)
      return true;
  return false;
}

const Mapping* mapping_of(uint32_t memory) {
  for (size_t i = mapping_count.load(); i > 0; --i)
    if (mappings[i - 1].memory == memory && mappings[i - 1].begin != 0) return &mappings[i - 1];
  return nullptr;
}

// Source: class headers clc5c0.h … clcec0.h: SEND_PCAS_A holds the address of a launch descriptor
// >> 8.
constexpr uint32_t kSendPcas = 0x2b4, kComputeSubchannel = 1;
constexpr size_t kDescriptorBytes = 384;

/// A line for each launch descriptor that a push buffer points to.
void record_descriptors(const uint32_t* words, size_t count) {
  for (size_t i = 0; i < count;) {
    const uint32_t header = words[i++], kind = header >> 29, length = (header >> 16) & 0x1fff;
    if (kind == 4) continue;  // the value is in the header
    const uint32_t first = (header & 0xfff) * 4;
    const bool is_compute = ((header >> 13) & 7) == kComputeSubchannel;
    for (uint32_t k = 0; k < length && i < count; ++k, ++i) {
      if (!is_compute || first + (kind == 1 ? 4 * k : 0) != kSendPcas) continue;
      const uint64_t address = uint64_t{words[i]} << 8;
      Line line("descriptor");
      line.hex("address", address);
      if (is_mapped(address, kDescriptorBytes))
        line.bytes("words", reinterpret_cast<const void*>(address), kDescriptorBytes);
      else
        line.text("opaque", "not mapped by the CPU at its GPU address");
    }
  }
}

void record_ring(ChannelState& channel) {
  const Mapping* userd = mapping_of(channel.userd_memory);
  if (userd == nullptr || userd->begin + channel.userd_offset + kPutOffset + 4 > userd->end) return;
  const uint32_t put =
      *reinterpret_cast<const volatile uint32_t*>(userd->begin + channel.userd_offset + kPutOffset);
  if (put == channel.last_put || put >= channel.entries) return;
  if (!is_mapped(channel.ring, channel.entries * sizeof(uint64_t))) {
    Line("ring").hex("channel", channel.handle).number("put", put).text("opaque", "ring");
    channel.last_put = put;
    return;
  }
  const auto* ring = reinterpret_cast<const volatile uint64_t*>(channel.ring);
  for (uint32_t i = channel.last_put; i != put; i = (i + 1) % channel.entries) {
    const uint64_t entry = ring[i];
    const uint64_t address = entry & 0xff'ffff'fffcULL;
    const uint64_t bytes = ((entry >> 42) & 0x1f'ffff) * 4;
    Line line("push");
    line.hex("channel", channel.handle).hex("class", channel.object_class);
    line.number("index", i).hex("entry", entry).hex("address", address).number("bytes", bytes);
    const uint64_t shown = std::min<uint64_t>(bytes, kMaxPushBytes);
    // GPU and CPU addresses agree wherever both sides map a push buffer.
    if (is_mapped(address, shown)) {
      line.bytes("words", reinterpret_cast<const void*>(address), shown);
      record_descriptors(reinterpret_cast<const uint32_t*>(address), shown / 4);
    } else {
      line.text("opaque", "not mapped by the CPU at its GPU address");
    }
  }
  channel.last_put = put;
}

}  // namespace

void object_allocated(uint32_t handle, uint32_t object_class, const unsigned char* parameters,
                      size_t bytes) {
  if (holds(kUsermode, object_class) && usermode_count < std::size(usermode_objects))
    usermode_objects[usermode_count++] = handle;
  if (!holds(kChannel, object_class) || channel_count >= kMaxChannels) return;
  // From 610 on a handle more lies in front of hUserdMemory; its first element is never 0.
  const bool is_shifted = load<uint32_t>(parameters, 32, bytes) == 0;
  ChannelState& channel = channels[channel_count];
  channel = {.handle = handle,
             .object_class = object_class,
             .ring = load<uint64_t>(parameters, 8, bytes),
             .entries = load<uint32_t>(parameters, 16, bytes),
             .userd_memory = load<uint32_t>(parameters, is_shifted ? 36 : 32, bytes),
             .userd_offset = load<uint64_t>(parameters, is_shifted ? 72 : 64, bytes)};
  if (channel.entries != 0) ++channel_count;
}

void mapping_prepared(int fd, uint32_t memory) {
  if (fd >= 0 && static_cast<size_t>(fd) < kMaxFds) pending[fd] = memory + 1;
}

bool mapping_made(int fd, void* address, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  uint32_t memory = 0;
  if (fd >= 0 && static_cast<size_t>(fd) < kMaxFds && pending[fd] != 0) {
    memory = pending[fd] - 1;
    pending[fd] = 0;
  }
  if (mapping_count < kMaxMappings) mappings[mapping_count++] = {memory, begin, begin + bytes};
  if (memory == 0) return false;
  const auto* end = usermode_objects + usermode_count.load();
  return std::find(static_cast<const uint32_t*>(usermode_objects), end, memory) != end;
}

void mapping_gone(void* address, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  for (size_t i = 0; i < mapping_count.load(); ++i)
    if (mappings[i].begin >= begin && mappings[i].end <= begin + bytes) mappings[i] = {};
}

void record_rings() {
  if (is_busy.test_and_set()) return;
  for (size_t i = 0; i < channel_count.load(); ++i) record_ring(channels[i]);
  is_busy.clear();
}

}  // namespace nvsnoop
