#include "drivers/amd/am/mqd.h"

#include <bit>

#include "runtime/base/bits.h"

namespace bm::amd::am {

MqdWords encode_mqd(Bus& bus, const Generation& generation, const MqdRequest& request) {
  using enum Field;
  // As init_mqd() writes it on every generation.
  constexpr uint32_t kHeaderWord = 0xc0310800;
  constexpr uint32_t kQuantumWord = 0x111;         // on, scale and duration 1
  constexpr uint32_t kDispatchPointer = 1u << 14;  // CP_HQD_HQ_STATUS0, for debuggers
  MqdWords words{};
  const auto pair = [&](size_t at, uint64_t value) {
    words[at] = lo32(value);
    words[at + 1] = hi32(value);
  };
  words[mqd::kHeader] = kHeaderWord;
  words[mqd::kPipelineStat] = 1;
  for (const size_t at :
       {mqd::kThreadMask0, mqd::kThreadMask1, mqd::kThreadMask2, mqd::kThreadMask3})
    words[at] = UINT32_MAX;
  if (generation.processor == ProcessorKind::kRs64)
    for (size_t at = mqd::kThreadMask4; at <= mqd::kThreadMask7; ++at) words[at] = UINT32_MAX;
  words[mqd::kMiscReserved] = generation.misc_reserved;
  pair(mqd::kBaseLow, request.address);
  words[mqd::kPersistentState] =
      bus.encode(Block::kGc, {{CP_HQD_PERSISTENT_STATE_preload_req, 1},
                              {CP_HQD_PERSISTENT_STATE_preload_size, generation.preload_bytes}});
  // CP_HQD_PIPE_PRIORITY has three levels: pipe_priority_map of kfd_mqd_manager.c.
  words[mqd::kPipePriority] = request.priority < 7 ? 0 : request.priority < 11 ? 1 : 2;
  words[mqd::kQueuePriority] = request.priority;
  words[mqd::kQuantum] = kQuantumWord;
  pair(mqd::kRingLow, request.ring >> 8);
  pair(mqd::kReportLow, request.read_pointer);
  pair(mqd::kPollLow, request.write_pointer);
  words[mqd::kDoorbell] =
      bus.encode(Block::kGc, {{CP_HQD_PQ_DOORBELL_CONTROL_doorbell_offset, request.doorbell_dword},
                              {CP_HQD_PQ_DOORBELL_CONTROL_doorbell_en, 1}});
  // Sizes: log2 of dwords, minus one.
  const auto log = [](uint64_t bytes) {
    return static_cast<uint32_t>(std::bit_width(bytes / 4)) - 2;
  };
  uint32_t control =
      bus.encode(Block::kGc, {{CP_HQD_PQ_CONTROL_queue_size, log(request.ring_bytes)},
                              {CP_HQD_PQ_CONTROL_rptr_block_size, 5},
                              {CP_HQD_PQ_CONTROL_unord_dispatch, 1}});
  // Of several chiplets one tells how far the ring is read.
  const bool is_master = request.xccs > 1 && request.xcc == 0;
  if (request.is_aql) {
    control = bus.encode(Block::kGc,
                         {{CP_HQD_PQ_CONTROL_no_update_rptr, is_master ? 0u : 1u},
                          {CP_HQD_PQ_CONTROL_slot_based_wptr, 2},
                          {CP_HQD_PQ_CONTROL_queue_full_en, 1}},
                         control);
    words[mqd::kDoorbell] = bus.encode(
        Block::kGc, {{CP_HQD_PQ_DOORBELL_CONTROL_doorbell_bif_drop, 1}}, words[mqd::kDoorbell]);
  }
  words[mqd::kQueueControl] = control;
  words[mqd::kIbControl] = bus.encode(Block::kGc, {{CP_HQD_IB_CONTROL_min_ib_avail_size, 3}});
  words[mqd::kStatus0] = kDispatchPointer;
  words[mqd::kMqdControl] = bus.encode(Block::kGc, {{CP_MQD_CONTROL_priv_state, 1}});
  pair(mqd::kEopLow, request.eop >> 8);
  words[mqd::kEopControl] =
      bus.encode(Block::kGc, {{CP_HQD_EOP_CONTROL_eop_size, log(request.eop_bytes)}});
  words[mqd::kAql] = request.is_aql ? 1 : 0;
  if (request.xccs > 1) words[mqd::kStride] = request.stride;
  if (request.xccs > 1 && request.is_aql) {
    words[mqd::kLogicalXcc] = request.xcc;
    words[mqd::kChunkSize] = 1;
  }
  return words;
}

}  // namespace bm::amd::am
