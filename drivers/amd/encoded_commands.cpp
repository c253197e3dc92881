#include "drivers/amd/encoded_commands.h"

#include <algorithm>
#include <utility>

#include "drivers/amd/pm4/compute.h"
#include "drivers/amd/pm4/packets.h"
#include "drivers/amd/sdma/packets.h"
#include "runtime/base/bits.h"

namespace bm::amd {
namespace {

using hal::raw;
using hcq::check_word;
using enum hcq::PatchedBits;

constexpr uint32_t kLongSegment = 128 << 10;  // dwords; buffers hold up to 2^20
constexpr uint64_t kEndOfAddresses = uint64_t{1} << 48;

class Encoder : hcq::EncoderBase<EncodedCommands, EncodingContext> {
 public:
  Encoder(std::span<const uint8_t> patched, const EncodingContext& context,
          EncodedCommands& encoded)
      : EncoderBase(patched, context, encoded),
        chip_(context.gpu->chip()),
        pm4_(encoded.words[kComputeRing], chip_.caches),
        sdma_(encoded.words[kCopyRing], chip_.sdma) {}

  Status run(std::span<const hal::Command> commands) {
    if (context_.waits_for_copies) wait_for_copies(0);
    for (const hal::Command& command : commands) {
      encoded_.command_sites.emplace_back();
      BM_TRY(std::visit([this](const auto& c) { return encode(c); }, command));
      if (words().size() - segment_[ring_] > kLongSegment) close(ring_);
    }
    if (context_.has_compute && ring_ == kCopyRing) {
      release_to_compute();
      encoded_.ends_on_copies = true;
    }
    for (size_t ring = 0; ring < kRings; ++ring) end(ring);
    encoded_.cross_releases = ordinal_;
    return {};
  }

 private:
  std::vector<uint32_t>& words() { return encoded_.words[ring_]; }

  Status encode(const hal::Wait& c);
  Status encode(const hal::Signal& c) { return store(raw(c.signal), c.value, "Signal"); }
  Status encode(const hal::Write& c) { return store(raw(c.dst), c.value, "Write"); }
  Status encode(const hal::Barrier&) {
    if (ring_ == kComputeRing) acquire_all();
    return {};
  }
  Status encode(const hal::Timestamp& c);
  Status encode(const hal::Copy& c);
  Status encode(const hal::Dispatch& c);

  Status store(uint64_t address, uint64_t value, const char* what);
  uint32_t put_fences(uint64_t address, uint64_t value);
  uint32_t release(const pm4::ReleaseMem& packet, uint32_t reader = 0) {
    return pm4::release_once(pm4_, packet, context_.readers, reader);
  }
  uint32_t tell(const pm4::ReleaseMem& packet);
  void acquire_all();
  Status make_blocks(const hal::Dispatch& c, const AmdProgram& program, LaunchPart& part);
  void launch_pm4(const hal::Dispatch& c, const AmdProgram& program, LaunchPart& part);
  void launch_aql(const hal::Dispatch& c, const AmdProgram& program, LaunchPart& part);
  aql::Words dispatch_packet(const hal::Dispatch& c, const AmdProgram& program,
                             const LaunchPart& part) const;
  uint64_t kernarg_of(const hal::Dispatch& c, const LaunchPart& part) const {
    return part.block == LaunchPart::kNoBlock ? raw(c.kernarg) : data_va(part.block);
  }

  void flush_peers();
  void to_ring(size_t ring);
  void release_to_compute();
  void wait_for_copies(uint64_t ordinal);
  void close(size_t ring);
  void end(size_t ring);

  const ChipRow& chip_;
  pm4::Writer pm4_;
  sdma::Writer sdma_;
  std::array<uint32_t, kRings> segment_{};  ///< first word of the segment being written
  bool writes_peers_ = false;
  bool has_wait_ = false;  ///< in the compute ring's segment
};

/// What the host or a copy ring acts on. One chiplet writes it, and a word that the others still
/// wait for may be freed then: they must have passed their waits, so it gets a packet of its own,
/// which no chiplet begins before all have run the one before.
uint32_t Encoder::tell(const pm4::ReleaseMem& packet) {
  if (context_.readers > 1 && has_wait_) close(kComputeRing);
  return release(packet);
}

void Encoder::acquire_all() {
  pm4_.put(pm4::AcquireMem{pm4::cache_actions(chip_.caches).acquire_all});
}

/// The hardware compares 32 bits: the upper half first where there is one. Signals only grow, so
/// that is exact until the upper half moves past the one waited for.
Status Encoder::encode(const hal::Wait& c) {
  if (!is_patched(kPatchedAddress)) BM_TRY(check_word(raw(c.signal), "Wait"));
  const bool is_patch = is_patched(kPatchedAddress | kPatchedValue);
  const bool has_high = hi32(c.value) != 0 && !is_patch;
  const uint64_t address = raw(c.signal);
  if (ring_ == kComputeRing) {
    if (has_high) pm4_.put(pm4::WaitMemory{.address = address + 4, .value = hi32(c.value)});
    command_site() = {
        .kind = CommandSite::Kind::kWait,
        .ring = ring_,
        .at = pm4_.put(pm4::WaitMemory{.address = address & ~uint64_t{3}, .value = lo32(c.value)})};
    acquire_all();
    has_wait_ = true;
  } else {
    if (has_high) sdma_.put(sdma::WaitMemory{.address = address + 4, .value = hi32(c.value)});
    command_site() = {.kind = CommandSite::Kind::kWait,
                      .ring = ring_,
                      .at = sdma_.put(sdma::WaitMemory{.address = address & ~uint64_t{3},
                                                       .value = lo32(c.value)})};
  }
  return {};
}

/// Low half first: a reader then never sees more than was signalled.
uint32_t Encoder::put_fences(uint64_t address, uint64_t value) {
  const uint32_t at = sdma_.put(sdma::Fence{address, lo32(value)});
  sdma_.put(sdma::Fence{address + 4, hi32(value)});
  return at;
}

Status Encoder::store(uint64_t address, uint64_t value, const char* what) {
  if (!is_patched(kPatchedAddress)) BM_TRY(check_word(address, what));
  address &= ~uint64_t{7};
  if (ring_ == kComputeRing) {
    command_site() = {.kind = CommandSite::Kind::kSignal,
                      .ring = ring_,
                      .at = tell({.caches = pm4::cache_actions(chip_.caches).release,
                                  .address = address,
                                  .value = value})};
  } else {
    flush_peers();
    command_site() = {
        .kind = CommandSite::Kind::kFences, .ring = ring_, .at = put_fences(address, value)};
  }
  return {};
}

Status Encoder::encode(const hal::Timestamp& c) {
  if (!is_patched(kPatchedAddress)) BM_TRY(check_word(raw(c.dst), "Timestamp"));
  const uint64_t address = raw(c.dst) & ~uint64_t{7};
  if (ring_ == kComputeRing) {
    command_site() = {.kind = CommandSite::Kind::kSignal,
                      .ring = ring_,
                      .at = tell({.data = pm4::ReleaseData::kClock, .address = address})};
  } else {
    command_site() = {.kind = CommandSite::Kind::kTimestamp,
                      .ring = ring_,
                      .at = sdma_.put(sdma::Timestamp{address})};
  }
  return {};
}

Status Encoder::encode(const hal::Copy& c) {
  const auto first = static_cast<uint32_t>(encoded_.copies.size());
  const bool is_patch = is_patched(kPatchedCopy);
  // A patched size may become anything up to one piece.
  if (c.bytes == 0 && !is_patch) return {};
  const uint64_t from = raw(c.src), to = raw(c.dst);
  for (const uint64_t address : {from, to})
    if (!is_patch &&
        (address == 0 || address >= kEndOfAddresses || c.bytes > kEndOfAddresses - address))
      return fail(Code::kInvalidArgument, "Copy of {} bytes from {:#x} to {:#x}", c.bytes, from,
                  to);
  to_ring(kCopyRing);
  const Gpu& gpu = *context_.gpu;
  writes_peers_ =
      writes_peers_ || (!gpu.peer_flushes.empty() && (is_patch || gpu.pool.first_gap(to, 1) == to));
  uint64_t at = 0;
  do {
    const uint64_t bytes = std::min(c.bytes - at, sdma::max_piece(chip_.sdma));
    const uint32_t word = sdma_.put(sdma::Copy{from + at, to + at, std::max<uint64_t>(bytes, 1)});
    if (bytes == 0) words()[word] = sdma::kSkippedCopyHeader;
    encoded_.copies.push_back({word, at});
    at += bytes;
  } while (at < c.bytes);
  note_copy(first);
  return {};
}

Status Encoder::encode(const hal::Dispatch& c) {
  const AmdProgram* program = BM_TRY(hcq::own_program<AmdProgram>(c, context_.gpu));
  if (!context_.has_compute)
    return fail(Code::kUnsupported, "kernel '{}' on a copy queue", program->code().entry);
  BM_TRY(check_grid(program->plan(), c.grid));
  LaunchPart part;
  part.program = program;
  part.grid = c.grid;
  BM_TRY(make_blocks(c, *program, part));
  if (hcq::is_empty(c.grid) && !is_patched(kPatchedGrid)) return {};
  to_ring(kComputeRing);
  if (context_.is_aql) {
    launch_aql(c, *program, part);
  } else {
    launch_pm4(c, *program, part);
  }
  command_site() = {.kind = CommandSite::Kind::kLaunch,
                    .ring = kComputeRing,
                    .first = static_cast<uint32_t>(encoded_.launches.size())};
  encoded_.launches.push_back(part);
  return {};
}

/// An argument block of ours where the caller's is too short or may change, and a dispatch packet
/// for kernels that read it (on PM4 rings nobody else makes one).
Status Encoder::make_blocks(const hal::Dispatch& c, const AmdProgram& program, LaunchPart& part) {
  const LaunchPlan& plan = program.plan();
  HostView arguments;
  if (plan.explicit_bytes != 0)
    arguments = BM_TRY(hcq::argument_block(c, plan.explicit_bytes, context_));
  if (plan.has_hidden_arguments() || (context_.keeps_arguments && plan.kernarg_bytes != 0)) {
    part.block = take_data(plan.kernarg_bytes);
    const auto block = std::as_writable_bytes(std::span(encoded_.data).subspan(part.block))
                           .first(plan.kernarg_bytes);
    if (arguments) arguments.copy_out(0, block.first(plan.explicit_bytes));
    fill_hidden_arguments(plan, c.grid, block);
  }
  if (plan.kernel.takes_dispatch_packet && !context_.is_aql) {
    part.dispatch = take_data(aql::kPacketBytes);
    std::ranges::copy(dispatch_packet(c, program, part), encoded_.data.begin() + part.dispatch);
  }
  return {};
}

aql::Words Encoder::dispatch_packet(const hal::Dispatch& c, const AmdProgram& program,
                                    const LaunchPart& part) const {
  const LaunchPlan& plan = program.plan();
  const auto narrow = [](uint32_t value) { return static_cast<uint16_t>(value); };
  return aql::encode(aql::Dispatch{
      .dimensions = narrow(plan.dimensions),
      .threads = {narrow(plan.block.x), narrow(plan.block.y), narrow(plan.block.z)},
      .grid = {c.grid.x * plan.block.x, c.grid.y * plan.block.y, c.grid.z * plan.block.z},
      .private_bytes = plan.private_bytes,
      .group_bytes = plan.group_bytes,
      .descriptor = program.descriptor(),
      .kernarg = kernarg_of(c, part)});
}

void Encoder::launch_aql(const hal::Dispatch& c, const AmdProgram& program, LaunchPart& part) {
  close(kComputeRing);
  part.packet = static_cast<uint32_t>(encoded_.packets.size());
  encoded_.packets.push_back(dispatch_packet(c, program, part));
  encoded_.entries.push_back({.ring = kComputeRing, .is_packet = true, .first = part.packet});
  encoded_.ring_used[kComputeRing] = true;
}

void Encoder::launch_pm4(const hal::Dispatch& c, const AmdProgram& program, LaunchPart& part) {
  const LaunchPlan& plan = program.plan();
  const KernelFacts& kernel = plan.kernel;
  pm4::Launch launch{.entry = program.entry(),
                     .rsrc1 = plan.rsrc1,
                     .rsrc2 = plan.rsrc2,
                     .rsrc3 = plan.rsrc3,
                     .threads = {plan.block.x, plan.block.y, plan.block.z},
                     .groups = {c.grid.x, c.grid.y, c.grid.z},
                     .is_wave32 = kernel.is_wave32};
  if (plan.private_bytes != 0 && context_.scratch != nullptr) {
    launch.tmpring = context_.scratch->size.tmpring;
    launch.scratch = context_.scratch->bases;
  }
  const auto user64 = [&](uint64_t value) {
    launch.user_data[launch.num_user_data++] = lo32(value);
    launch.user_data[launch.num_user_data++] = hi32(value);
  };
  // The order the ABI gives them. Source: AMDGPUUsage.rst, "SGPR Register Set Up Order". What
  // describes a stack is zero: kernels that have one are refused where they ask for it.
  if (kernel.takes_private_buffer) user64(0), user64(0);
  if (kernel.takes_dispatch_packet) user64(data_va(part.dispatch));
  if (kernel.takes_queue) user64(context_.queue_object);
  if (kernel.takes_kernarg) user64(kernarg_of(c, part));
  if (kernel.takes_dispatch_id) user64(encoded_.launches.size());
  if (kernel.takes_flat_scratch) user64(0);
  if (kernel.takes_private_size) launch.user_data[launch.num_user_data++] = plan.private_bytes;
  const pm4::LaunchWords at =
      pm4::launch(pm4_, context_.gpu->driver->facts().registers, chip_.registers, launch);
  part.groups = at.groups;
  if (hcq::is_empty(c.grid)) words()[part.groups - 1] = pm4::header(pm4::Op::kNop, 4);
}

void Encoder::wait_for_copies(uint64_t ordinal) {
  const uint32_t at = pm4_.put(pm4::WaitMemory{.address = context_.to_compute,
                                               .value = lo32(context_.cross_releases + ordinal)});
  acquire_all();
  encoded_.cross_engine_sites.push_back({.ring = kComputeRing, .low = at + 3, .ordinal = ordinal});
}

/// What copies wrote into peers must have arrived there before anybody is told that it has: fences
/// wait for the writes before them, and are written themselves in the order of the bus.
void Encoder::flush_peers() {
  if (!std::exchange(writes_peers_, false)) return;
  for (const auto& page : context_.gpu->peer_flushes) sdma_.put(sdma::Fence{page->va, 1});
}

void Encoder::to_ring(size_t ring) {
  if (ring == ring_) return;
  if (ring == kComputeRing) {
    release_to_compute();
    ring_ = ring;
    wait_for_copies(ordinal_);
    return;
  }
  const uint64_t value = context_.cross_releases + ++ordinal_;
  const uint32_t at = tell({.caches = pm4::cache_actions(chip_.caches).release,
                            .address = context_.to_copies,
                            .value = value});
  encoded_.cross_engine_sites.push_back(
      {.ring = kComputeRing, .low = at + 4, .high = at + 5, .ordinal = ordinal_});
  // What was written so far must be in its ring before the copies that wait for it.
  close(kComputeRing);
  const uint32_t wait =
      sdma_.put(sdma::WaitMemory{.address = context_.to_copies, .value = lo32(value)});
  encoded_.cross_engine_sites.push_back(
      {.ring = kCopyRing, .low = wait + sdma::kWaitValue, .ordinal = ordinal_});
  ring_ = ring;
}

/// The copy ring's end of a stretch; who waits for it is the caller's matter.
void Encoder::release_to_compute() {
  flush_peers();
  const uint32_t at = put_fences(context_.to_compute, context_.cross_releases + ordinal_);
  encoded_.cross_engine_sites.push_back({.ring = kCopyRing,
                                         .low = at + sdma::kFenceValue,
                                         .high = at + sdma::kFenceDwords + sdma::kFenceValue,
                                         .ordinal = ordinal_});
  close(kCopyRing);
}

/// Ends a segment, so that what follows gets an entry of its own.
void Encoder::close(size_t ring) {
  if (encoded_.words[ring].size() == segment_[ring]) return;
  const auto end = static_cast<uint32_t>(encoded_.words[ring].size());
  encoded_.entries.push_back(
      {.ring = ring, .is_packet = false, .first = segment_[ring], .dwords = end - segment_[ring]});
  encoded_.ring_used[ring] = true;
  segment_[ring] = end;
  if (ring == kComputeRing) has_wait_ = false;
}

void Encoder::end(size_t ring) {
  if (!encoded_.ring_used[ring] && encoded_.words[ring].size() == segment_[ring]) return;
  if (ring == kComputeRing) {
    for (uint32_t reader = 0; reader < context_.readers; ++reader) {
      const uint32_t at =
          release({.caches = pm4::cache_actions(chip_.caches).release,
                   .address = context_.fence_va[ring] + reader * HardwareRing::kFenceBytes,
                   .value = context_.fence[ring]},
                  reader);
      if (reader == 0) encoded_.fence_at[ring] = at + 4;
    }
  } else {
    flush_peers();
    encoded_.fence_at[ring] =
        put_fences(context_.fence_va[ring], context_.fence[ring]) + sdma::kFenceValue;
  }
  close(ring);
}

}  // namespace

void EncodedCommands::clear() {
  hcq::EncodedCommands<LaunchPart, CommandSite, CopyPart, CrossEngineSite>::clear();
  packets.clear();
  entries.clear();
  ring_used = {};
}

Status encode(std::span<const hal::Command> commands, std::span<const uint8_t> patched,
              const EncodingContext& context, EncodedCommands& encoded) {
  encoded.clear();
  return Encoder(patched, context, encoded).run(commands);
}

}  // namespace bm::amd
