#include "runtime/graph_inputs.h"

#include <algorithm>
#include <functional>
#include <tuple>

#include "runtime/device.h"

namespace bm::runtime {
namespace {

// std::less: comparing unrelated pointers with < is not defined.
bool before(const Device* a, const Device* b) { return std::less<>()(a, b); }

}  // namespace

Result<InputTable> InputTable::create(uint32_t num_inputs, std::span<const Buffer> capture_inputs) {
  InputTable table;
  if (!capture_inputs.empty() && capture_inputs.size() != num_inputs) {
    return fail(Code::kInvalidArgument, "{} inputs at capture for a graph of {}",
                capture_inputs.size(), num_inputs);
  }
  table.slots_.resize(num_inputs);
  for (size_t i = 0; i < capture_inputs.size(); ++i)
    table.slots_[i].capture_offset = capture_inputs[i].offset;
  table.bound_.resize(num_inputs);
  return table;
}

Result<uint64_t> InputTable::add(const Arg& arg) {
  const Buffer& buffer = arg.buffer;
  if (arg.slot < 0) {
    const uint64_t begin = hal::raw(buffer.va());
    const Range range{&buffer.device(), begin, begin + buffer.size};
    touched_.push_back(range);
    if (arg.is_written) written_.push_back(range);
    return uint64_t{0};
  }
  if (static_cast<size_t>(arg.slot) >= slots_.size())
    return fail(Code::kInvalidArgument, "input {} of {} does not exist", arg.slot, slots_.size());
  Slot& slot = slots_[static_cast<size_t>(arg.slot)];
  if (buffer.offset < slot.capture_offset)
    return fail(Code::kInvalidArgument, "an argument begins before input {}", arg.slot);
  const uint64_t offset = buffer.offset - slot.capture_offset;
  slot.device = &buffer.device();
  slot.bytes = std::max(slot.bytes, offset + buffer.size);
  slot.capture_va = hal::raw(buffer.va()) - offset;
  slot.is_written |= arg.is_written;
  return offset;
}

void InputTable::seal() {
  merge(written_);
  merge(touched_);
  for (uint32_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].device != nullptr) order_.push_back(i);
}

void InputTable::merge(std::vector<Range>& ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return a.device != b.device ? before(a.device, b.device) : a.begin < b.begin;
  });
  size_t kept = 0;
  for (const Range& range : ranges) {
    if (kept > 0 && ranges[kept - 1].device == range.device &&
        range.begin <= ranges[kept - 1].end) {
      ranges[kept - 1].end = std::max(ranges[kept - 1].end, range.end);
    } else {
      ranges[kept++] = range;
    }
  }
  ranges.resize(kept);
}

bool InputTable::overlaps(const std::vector<Range>& sorted, const Range& range) {
  // First range that ends after ours begins; ranges are disjoint, so ends are sorted as well.
  const auto it = std::partition_point(sorted.begin(), sorted.end(), [&](const Range& r) {
    return r.device != range.device ? before(r.device, range.device) : r.end <= range.begin;
  });
  return it != sorted.end() && it->device == range.device && it->begin < range.end;
}

Status InputTable::explain_misfit(size_t slot, const Buffer& input) const {
  const Slot& expected = slots_[slot];
  if (!input.has_storage()) return fail(Code::kInvalidArgument, "input {} has no memory", slot);
  if (input.size < expected.bytes) {
    return fail(Code::kInvalidArgument, "input {} has {} bytes, the graph uses {}", slot,
                input.size, expected.bytes);
  }
  return fail(Code::kInvalidArgument, "input {} is on {}, the graph was captured on {}", slot,
              input.device().name(), expected.device->name());
}

Status InputTable::bind(std::span<const Buffer> inputs, std::span<uint64_t> addresses) {
  if (inputs.size() != slots_.size())
    return fail(Code::kInvalidArgument, "{} inputs given, the graph takes {}", inputs.size(),
                slots_.size());
  bool is_changed = !is_bound_;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Slot& slot = slots_[i];
    const Buffer& input = inputs[i];
    if (slot.device == nullptr) continue;
    const bool is_fit =
        input.has_storage() && input.size >= slot.bytes && &input.device() == slot.device;
    if (!is_fit) [[unlikely]]
      return explain_misfit(i, input);
    addresses[i] = hal::raw(input.va());
    is_changed |= addresses[i] != bound_[i];
  }
  if (!is_changed) [[likely]]
    return {};
  is_bound_ = false;
  BM_TRY(check_aliases(addresses));
  std::copy_n(addresses.begin(), bound_.size(), bound_.begin());
  is_bound_ = true;
  return {};
}

Status InputTable::check_captured(size_t slot, uint64_t address) const {
  const Slot& s = slots_[slot];
  if (address == s.capture_va) return {};  // whatever it overlaps, capture saw
  const Range range{s.device, address, address + s.bytes};
  // A written input must not touch what the graph reads either.
  if (!overlaps(s.is_written ? touched_ : written_, range)) return {};
  return fail(Code::kUnsupported,
              "input {} overlaps memory of the graph that it did not overlap at capture", slot);
}

Status InputTable::check_pair(size_t a, size_t b, std::span<const uint64_t> addresses) const {
  const Slot &sa = slots_[a], &sb = slots_[b];
  if (!sa.is_written && !sb.is_written) return {};
  // Same distance as at capture: the overlap is the one capture saw. Unsigned wrap-around is fine.
  if (addresses[a] - addresses[b] == sa.capture_va - sb.capture_va) return {};
  return fail(Code::kUnsupported,
              "inputs {} and {} overlap differently than at capture and one is written", a, b);
}

Status InputTable::check_aliases(std::span<const uint64_t> addresses) {
  for (const uint32_t slot : order_) BM_TRY(check_captured(slot, addresses[slot]));
  const auto key = [&](uint32_t slot) { return std::tuple(addresses[slot], slot); };
  std::sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) {
    if (slots_[a].device != slots_[b].device) return before(slots_[a].device, slots_[b].device);
    return key(a) < key(b);
  });
  for (size_t i = 0; i < order_.size(); ++i) {
    const uint32_t a = order_[i];
    const uint64_t end = addresses[a] + slots_[a].bytes;
    for (size_t j = i + 1; j < order_.size(); ++j) {
      const uint32_t b = order_[j];
      if (slots_[b].device != slots_[a].device || addresses[b] >= end) break;
      BM_TRY(check_pair(a, b, addresses));
    }
  }
  return {};
}

}  // namespace bm::runtime
