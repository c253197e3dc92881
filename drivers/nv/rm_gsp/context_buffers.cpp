#include "drivers/nv/rm_gsp/context_buffers.h"

#include <bit>
#include <utility>

#include "runtime/base/bits.h"
#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace bm::nv::gsp {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint16_t kMain = 0, kAttribute = 5, kPrivAccessMap = 10, kUnrestrictedAccessMap = 11;
// Behind the main buffer, a header for each of 64 subcontexts.
constexpr uint64_t kSubcontextHeaders = 64 * kPage;
// NV2080_ENGINE_TYPE_GR0; NV2080_CTRL_GPU_INITIALIZE_CTX_*: video memory (0 in 1:0), not kept in
// the L2 (bit 2).
constexpr uint64_t kGraphics = 1, kUncachedVideo = 4;

struct Row {
  uint32_t index;  ///< NV0080_CTRL_FIFO_GET_ENGINE_CONTEXT_PROPERTIES_ENGINE_ID_*
  uint16_t id;
  bool is_global, is_initialized, is_read_only;
};
constexpr Row kRows[] = {
    {0, kMain, false, true, false},          // GRAPHICS
    {16, 2, false, true, false},             // PATCH
    {17, 3, true, false, false},             // BUNDLE_CB
    {18, 4, true, false, false},             // PAGEPOOL_GLOBAL
    {19, kAttribute, true, false, false},    // ATTRIBUTE_CB
    {20, 6, true, false, false},             // RTV_CB_GLOBAL
    {23, 9, true, true, false},              // FECS_EVENT
    {24, kPrivAccessMap, true, true, true},  // PRIV_ACCESS_MAP
};

uint64_t page_for(uint64_t bytes) {
  if (bytes >= 2_MiB) return 2_MiB;
  return bytes >= 64_KiB ? 64_KiB : kPage;
}

}  // namespace

Result<std::vector<ContextBuffer>> list_context_buffers(
    const abi::Params<abi::ContextBuffers>& info) {
  std::vector<ContextBuffer> list;
  for (const Row& row : kRows) {
    uint64_t bytes = info.get(abi::ContextBuffers::engine_size, row.index);
    constexpr uint64_t kMost = 1_GiB;
    if (bytes > kMost) return fail(Code::kCorrupt, "context buffer {} of {} bytes", row.id, bytes);
    if (bytes == 0 || bytes == UINT32_MAX) continue;  // this card has none
    bytes = align_up(bytes, kPage);
    if (row.id == kMain) bytes += kSubcontextHeaders;
    ContextBuffer buffer{.id = row.id,
                         .bytes = bytes,
                         .alignment = page_for(bytes),
                         .is_global = row.is_global,
                         .is_initialized = row.is_initialized,
                         .is_read_only = row.is_read_only,
                         .is_unmapped = row.id == kPrivAccessMap};
    if (row.id == kAttribute) buffer.alignment = std::bit_ceil(bytes);
    list.push_back(buffer);
    if (row.id == kPrivAccessMap) {
      buffer.id = kUnrestrictedAccessMap;
      buffer.is_unmapped = false;
      list.push_back(buffer);
    }
  }
  if (list.empty() || list.front().id != kMain)
    return fail(Code::kUnsupported, "the GSP names no main buffer of a graphics context");
  return list;
}

ContextMemory& ContextMemory::operator=(ContextMemory&& other) noexcept {
  if (this == &other) return *this;
  release();
  space_ = std::exchange(other.space_, nullptr);
  window_ = other.window_;
  parts_ = std::move(other.parts_);
  other.parts_.clear();
  return *this;
}

Status ContextMemory::map(Part& part) {
  part.va = BM_TRY(space_->allocate(window_, part.buffer.bytes, part.buffer.alignment));
  const memory::PhysicalRange range{part.physical, part.buffer.bytes};
  memory::PageAttributes how;
  how.is_privileged = true;
  how.is_read_only = part.buffer.is_read_only;
  Status mapped = space_->map(part.va, {&range, 1}, how);
  if (!mapped) {
    space_->free(part.va);
    part.va = 0;
  }
  return mapped;
}

Result<ContextMemory> ContextMemory::make(CardMemory& memory, AddressSpace& space, size_t window,
                                          const std::vector<ContextBuffer>& list,
                                          const ContextMemory* shared) {
  ContextMemory context;
  context.space_ = &space;
  context.window_ = window;
  for (const ContextBuffer& buffer : list) {
    const bool is_own = shared == nullptr || !buffer.is_global;
    if (!is_own && buffer.id == kUnrestrictedAccessMap) continue;
    Part part{.buffer = buffer, .block = {}, .physical = 0, .va = 0};
    if (is_own) {
      Block block = buffer.is_initialized
                        ? BM_TRY(memory.take_zeroed(buffer.bytes, page_for(buffer.bytes)))
                        : BM_TRY(memory.take_video(buffer.bytes, page_for(buffer.bytes), false));
      part.physical = block.address();
      part.block = std::move(block);
    } else {
      for (const Part& other : shared->parts_)
        if (other.buffer.id == buffer.id) part.physical = other.physical;
      BM_CHECK(part.physical != 0);
      // What the golden context has initialized is mapped only.
      part.buffer.is_initialized = false;
      part.buffer.is_unmapped = false;
    }
    context.parts_.push_back(std::move(part));
    if (!context.parts_.back().buffer.is_unmapped) BM_TRY(context.map(context.parts_.back()));
  }
  return context;
}

void ContextMemory::describe(abi::Params<abi::PromoteCtx>& params, uint32_t client,
                             uint32_t channel) const {
  using S = abi::PromoteCtx;
  params.set(S::engineType, kGraphics);
  params.set(S::hChanClient, client);
  params.set(S::hObject, channel);
  params.set(S::entryCount, parts_.size());
  for (uint32_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    params.set(S::promoteEntry_bufferId, part.buffer.id, i);
    params.set(S::promoteEntry_bInitialize, part.buffer.is_initialized ? 1 : 0, i);
    params.set(S::promoteEntry_bNonmapped, part.va == 0 ? 1 : 0, i);
    params.set(S::promoteEntry_gpuVirtAddr, part.va, i);
    if (!part.buffer.is_initialized) continue;
    params.set(S::promoteEntry_gpuPhysAddr, part.physical, i);
    params.set(S::promoteEntry_size, part.buffer.bytes, i);
    params.set(S::promoteEntry_physAttr, kUncachedVideo, i);
  }
}

void ContextMemory::keep_global() {
  for (Part& part : parts_) {
    if (part.va != 0) {
      static_cast<void>(space_->unmap(part.va, part.buffer.bytes));
      space_->free(part.va);
      part.va = 0;
    }
  }
  std::erase_if(parts_, [](const Part& part) { return !part.buffer.is_global; });
}

void ContextMemory::release() {
  for (Part& part : parts_) {
    if (part.va == 0) continue;
    if (const Status gone = space_->unmap(part.va, part.buffer.bytes); !gone)
      log("nv", LogLevel::kInfo, "unmapping a context buffer: {}", gone.error().message);
    space_->free(part.va);
  }
  parts_.clear();
}

}  // namespace bm::nv::gsp
