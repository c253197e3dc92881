// Video memory that outlives the process: records in boot memory, ranges that nobody else gets.

#include <algorithm>
#include <array>
#include <utility>

#include "drivers/amd/am/gpu.h"
#include "drivers/amd/am/memory.h"
#include "runtime/base/bits.h"
#include "runtime/base/log.h"

namespace bm::amd::am {
namespace {

constexpr uint64_t kPage = 4096;

uint64_t pages_of(const KeptRecord& record) { return align_up(record.bytes, kPage); }

}  // namespace

/// Before anything else takes video memory. After a cold boot the memory is another's, whatever the
/// table says: a reset keeps contents by luck alone.
Status AmGpu::restore_kept() {
  if (!was_warm_) return write_kept();
  std::vector<std::byte> bytes(KeptTable::kHeaderBytes);
  bus_.read_memory(kept_place_, bytes);
  if (const uint64_t whole = KeptTable::size_of(bytes); whole > bytes.size()) {
    bytes.resize(whole);
    bus_.read_memory(kept_place_, bytes);
  }
  BM_TRY(bus_.status());
  auto table = KeptTable::decode(bytes);
  if (!table) {
    log("amd", LogLevel::kWarning, "{}: {}; nothing of the last process is kept",
        to_string(function_->identity().address), table.error().message);
    return write_kept();
  }
  kept_.generation = table->generation;
  for (const KeptRecord& record : table->records) {
    const bool is_range =
        record.bytes != 0 && record.bytes <= memory_->bytes() && is_aligned(record.offset, kPage);
    const Status taken = is_range ? memory_->reserve(record.offset, pages_of(record))
                                  : fail(Code::kCorrupt, "no range of video memory");
    if (taken) {
      kept_.records.push_back(record);
      continue;
    }
    log("amd", LogLevel::kWarning, "{}: {} bytes kept at {:#x} are dropped: {}",
        to_string(function_->identity().address), record.bytes, record.offset,
        taken.error().message);
  }
  if (!kept_.records.empty())
    bus_.stages.note(fmt::format("{} ranges with {} MiB are kept from an earlier process",
                                 kept_.records.size(), kept_bytes(false) >> 20));
  return kept_.records.size() == table->records.size() ? Status{} : write_kept();
}

Status AmGpu::write_kept() {
  if (has_left_) return fail(Code::kDeviceLost, "the card was left: what is kept stays as it is");
  ++kept_.generation;
  bus_.write_memory(kept_place_, kept_.encode());
  gmc_->flush_hdp();
  return bus_.status();
}

const KeptRecord* AmGpu::find_kept(uint64_t physical) const {
  const auto at = std::ranges::find(kept_.records, physical, &KeptRecord::offset);
  return at == kept_.records.end() ? nullptr : &*at;
}

uint64_t AmGpu::kept_bytes(bool only_unattached) const {
  uint64_t sum = 0;
  for (const KeptRecord& record : kept_.records)
    if (!only_unattached || !attached_.contains(record.offset)) sum += pages_of(record);
  return sum;
}

void AmGpu::release_video(uint64_t physical) {
  attached_.erase(physical);
  if (find_kept(physical) == nullptr) memory_->free(physical);
}

/// The table is written first: what it names is never somebody else's.
Result<uint64_t> AmGpu::drop_records(const std::function<bool(const KeptRecord&)>& is_dropped) {
  const auto gone = std::stable_partition(kept_.records.begin(), kept_.records.end(),
                                          [&](const auto& one) { return !is_dropped(one); });
  const std::vector<KeptRecord> dropped(gone, kept_.records.end());
  if (dropped.empty()) return 0;
  kept_.records.erase(gone, kept_.records.end());
  BM_TRY(write_kept());
  uint64_t bytes = 0;
  for (const KeptRecord& record : dropped) {
    bytes += pages_of(record);
    if (!attached_.contains(record.offset)) memory_->free(record.offset);
  }
  return bytes;
}

bool AmGpu::drop_oldest_kept() {
  const auto oldest = std::ranges::find_if(kept_.records, [this](const KeptRecord& record) {
    return !attached_.contains(record.offset);
  });
  if (oldest == kept_.records.end()) return false;
  const KeptRecord record = *oldest;
  log("amd", LogLevel::kInfo,
      "{}: {} bytes kept for a later process are dropped: no memory is left",
      to_string(function_->identity().address), record.bytes);
  return drop_records([&](const KeptRecord& one) { return one.offset == record.offset; })
      .has_value();
}

Result<KeptVideoMemory::Found> AmGpu::attach(const hal::KeptKey& key, uint64_t bytes) {
  std::unique_ptr<AmMemory> memory(new AmMemory(*this));
  const std::lock_guard lock(mutex_);
  const auto record = std::ranges::find(kept_.records, key, &KeptRecord::key);
  if (record == kept_.records.end() || record->bytes != bytes || attached_.contains(record->offset))
    return Found{};
  const uint64_t checksum = record->checksum;
  Status made = memory->attach(*record);
  while (!made && made.error().code == Code::kOutOfMemory && drop_oldest_kept()) {
    // The list has changed: the record is looked up by what stays.
    const KeptRecord again = *find_kept(memory->physical_);
    memory->release();
    made = memory->attach(again);
  }
  if (!made) {
    memory->release();
    return tl::unexpected(std::move(made.error()));
  }
  return Found{std::move(memory), checksum};
}

Status AmGpu::keep(Memory& memory, uint64_t bytes, const hal::KeptKey& key, uint64_t checksum) {
  auto* const mine = dynamic_cast<AmMemory*>(&memory);
  if (mine == nullptr || &mine->gpu_ != this || !mine->has_physical_ ||
      mine->domain != MemoryDomain::kVideo || bytes == 0 || bytes > mine->size)
    return fail(Code::kInvalidArgument, "{} bytes at {:#x} are no video memory of this card", bytes,
                memory.va);
  const std::lock_guard lock(mutex_);
  if (is_reset_ || has_left_)
    return fail(Code::kDeviceLost, "the card was reset or left: nothing can be kept");
  const KeptRecord record{
      .key = key, .offset = mine->physical_, .bytes = bytes, .checksum = checksum};
  BM_TRY(drop_records(
      [&](const KeptRecord& one) { return one.key == key && one.offset != record.offset; }));
  if (kept_.records.size() >= KeptTable::kMostRecords && find_kept(record.offset) == nullptr)
    return fail(Code::kOutOfMemory, "{} ranges of video memory are kept, more cannot be recorded",
                kept_.records.size());
  std::erase_if(kept_.records, [&](const KeptRecord& one) { return one.offset == record.offset; });
  kept_.records.push_back(record);
  attached_.insert(record.offset);
  return write_kept();
}

Result<uint64_t> AmGpu::forget_all_but(std::span<const hal::KeptKey> keys) {
  const std::lock_guard lock(mutex_);
  return drop_records(
      [&](const KeptRecord& one) { return std::ranges::find(keys, one.key) == keys.end(); });
}

std::vector<KeptRecord> AmGpu::kept_records() {
  const std::lock_guard lock(mutex_);
  return kept_.records;
}

}  // namespace bm::amd::am
