#include "drivers/amd/packet_listing.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <type_traits>

#include <fmt/format.h>

#include "drivers/amd/aql/packets.h"
#include "drivers/amd/sdma/packets.h"

namespace bm::amd {
namespace {

// Packets of compute queues that our own driver never sends, but others do. Source: Linux, nvd.h
// and soc15d.h, PACKET3_*.
struct OpName {
  uint32_t op;
  std::string_view name;
};
constexpr OpName kOthers[] = {
    {0x11, "SET_BASE"},          {0x12, "CLEAR_STATE"},
    {0x16, "DISPATCH_INDIRECT"}, {0x1e, "ATOMIC_MEM"},
    {0x1f, "OCCLUSION_QUERY"},   {0x20, "SET_PREDICATION"},
    {0x22, "COND_EXEC"},         {0x28, "CONTEXT_CONTROL"},
    {0x39, "MEM_SEMAPHORE"},     {0x33, "INDIRECT_BUFFER_CNST"},
    {0x42, "PFP_SYNC_ME"},       {0x45, "COND_WRITE"},
    {0x47, "EVENT_WRITE_EOP"},   {0x50, "DMA_DATA"},
    {0x5e, "LOAD_UCONFIG_REG"},  {0x68, "SET_CONFIG_REG"},
    {0x69, "SET_CONTEXT_REG"},   {0x77, "SET_SH_REG_OFFSET"},
    {0x78, "SET_QUEUE_REG"},     {0x59, "REWIND"},
    {0x90, "FRAME_CONTROL"},     {0x93, "WAIT_REG_MEM64"},
    {0x98, "INVALIDATE_TLBS"},   {0xa0, "SET_RESOURCES"},
    {0xa1, "MAP_PROCESS"},       {0xa2, "MAP_QUEUES"},
    {0xa3, "UNMAP_QUEUES"},      {0xa4, "QUERY_STATUS"},
    {0xa5, "RUN_LIST"},
};

std::string_view own_name(pm4::Op op) {
  using enum pm4::Op;
  switch (op) {
    case kNop: return "NOP";
    case kDispatchDirect: return "DISPATCH_DIRECT";
    case kPredExec: return "PRED_EXEC";
    case kWriteData: return "WRITE_DATA";
    case kWaitRegMem: return "WAIT_REG_MEM";
    case kIndirectBuffer: return "INDIRECT_BUFFER";
    case kCopyData: return "COPY_DATA";
    case kEventWrite: return "EVENT_WRITE";
    case kReleaseMem: return "RELEASE_MEM";
    case kAcquireMem: return "ACQUIRE_MEM";
    case kSetShReg: return "SET_SH_REG";
    case kSetUconfigReg: return "SET_UCONFIG_REG";
  }
  return {};
}

std::string_view name_of(uint32_t op) {
  if (const auto own = own_name(static_cast<pm4::Op>(op)); !own.empty()) return own;
  const auto* const row = std::ranges::find(kOthers, op, &OpName::op);
  return row == std::end(kOthers) ? std::string_view() : row->name;
}

/// What decode() refuses: another driver's packet of a known name, or none.
ListedPacket list_foreign(std::span<const uint32_t> words, const Error& why) {
  ListedPacket listed;
  const uint32_t header = words[0], op = header >> 8 & 0xff;
  const std::string_view name = header >> 30 == 3 ? name_of(op) : std::string_view();
  listed.dwords = (header >> 16 & 0x3fff) + 2;
  if (name.empty()) {
    listed.is_bad = true;
    listed.dwords = 1;
    listed.text = fmt::format("{:#010x} is no packet ({})", header, why.message);
  } else {
    listed.text =
        fmt::format("{} of {} dwords, not as we write it ({})", name, listed.dwords, why.message);
  }
  return listed;
}

}  // namespace

bool ListedWait::is_met(uint32_t word) const {
  const uint32_t seen = word & mask;
  using enum pm4::Compare;
  switch (compare) {
    case kAlways: return true;
    case kLess: return seen < value;
    case kLessEqual: return seen <= value;
    case kEqual: return seen == value;
    case kNotEqual: return seen != value;
    case kGreaterEqual: return seen >= value;
    case kGreater: return seen > value;
  }
  return true;
}

std::vector<ListedPacket> list_pm4(std::span<const uint32_t> words, CacheForm form, size_t most) {
  std::vector<ListedPacket> list;
  for (uint32_t at = 0; at < words.size() && list.size() < most;) {
    const auto left = words.subspan(at);
    const bool is_short = left[0] != pm4::kNopWord && left[0] >> 30 == 3 &&
                          !name_of(left[0] >> 8 & 0xff).empty() &&
                          (left[0] >> 16 & 0x3fff) + 2 > left.size();
    if (is_short) break;
    ListedPacket listed;
    if (const auto decoded = pm4::decode(left, form)) {
      listed.dwords = decoded->dwords;
      listed.text = pm4::describe(decoded->packet);
      listed.is_filler = std::holds_alternative<pm4::Nop>(decoded->packet);
      if (const auto* wait = std::get_if<pm4::WaitMemory>(&decoded->packet))
        listed.wait = {wait->address, wait->value, wait->mask, wait->compare};
      if (const auto* buffer = std::get_if<pm4::IndirectBuffer>(&decoded->packet))
        listed.buffer = {buffer->address, buffer->dwords};
    } else {
      listed = list_foreign(left, decoded.error());
    }
    listed.at = at;
    at += listed.dwords;
    list.push_back(std::move(listed));
    if (list.back().is_bad) break;
  }
  return list;
}

std::vector<ListedPacket> list_sdma(std::span<const uint32_t> words, SdmaForm form, size_t most) {
  std::vector<ListedPacket> list;
  for (uint32_t at = 0; at < words.size() && list.size() < most;) {
    const auto left = words.subspan(at);
    ListedPacket listed;
    listed.at = at;
    const auto decoded = sdma::decode(left, form);
    if (!decoded && left.size() < sdma::kLongestDwords) break;  // may be cut off
    if (decoded) {
      listed.dwords = decoded->dwords;
      listed.text = sdma::describe(decoded->packet);
      listed.is_filler = std::holds_alternative<sdma::Nop>(decoded->packet);
      if (const auto* wait = std::get_if<sdma::WaitMemory>(&decoded->packet))
        listed.wait = {wait->address, wait->value, wait->mask, pm4::Compare::kGreaterEqual};
      if (const auto* buffer = std::get_if<sdma::Indirect>(&decoded->packet))
        listed.buffer = {buffer->address, buffer->dwords};
    } else {
      listed.dwords = 1;
      listed.is_bad = true;
      listed.text = fmt::format("{:#010x} is no packet ({})", left[0], decoded.error().message);
    }
    at += listed.dwords;
    list.push_back(std::move(listed));
    if (list.back().is_bad) break;
  }
  return list;
}

std::vector<ListedPacket> list_aql(std::span<const uint32_t> words, size_t most) {
  constexpr uint32_t kDwords = aql::kPacketBytes / 4;
  // HSA 1.2, 2.8: the value of a signal, behind its kind; a dependency is met at zero.
  constexpr uint64_t kSignalValue = 8;
  std::vector<ListedPacket> list;
  for (uint32_t at = 0; at + kDwords <= words.size() && list.size() < most; at += kDwords) {
    ListedPacket packet;
    packet.at = at;
    packet.dwords = kDwords;
    const auto slot = words.subspan(at, kDwords);
    const auto decoded = aql::decode(slot);
    if ((slot[0] & 0xff) == aql::kInvalidWord) {
      packet.text = "INVALID: announced, and not written yet";
    } else if (!decoded) {
      packet.text = fmt::format("{:#x}: no packet ({})", slot[0], decoded.error().message);
      packet.is_bad = true;
    } else {
      packet.text = aql::describe(*decoded);
      if (const auto* pm4 = std::get_if<aql::Pm4Indirect>(&*decoded))
        packet.buffer = {pm4->address, pm4->dwords};
      if (const auto* barrier = std::get_if<aql::BarrierAnd>(&*decoded))
        for (const uint64_t signal : barrier->dependencies)
          if (signal != 0 && !packet.wait)
            packet.wait = {signal + kSignalValue, 0, UINT32_MAX, pm4::Compare::kEqual};
    }
    list.push_back(std::move(packet));
    if (list.back().is_bad) break;
  }
  return list;
}

}  // namespace bm::amd
