#include "drivers/nv/encoded_commands.h"

#include <algorithm>

#include "drivers/nv/gpu.h"
#include "drivers/nv/methods/bank0.h"
#include "drivers/nv/methods/compute.h"
#include "drivers/nv/methods/copy.h"
#include "runtime/base/bits.h"

namespace bm::nv {
namespace {

using hal::raw;
using hcq::check_word;
using enum hcq::PatchedBits;

constexpr uint64_t kTimestampBytes = 16;
constexpr uint32_t kNoLaunch = UINT32_MAX;
/// Of one inline write; more go into the next.
constexpr uint32_t kMostInlineWords = 4096;

Result<const NvProgram*> own_program(const hal::Dispatch& dispatch,
                                     const EncodingContext& context) {
  return hcq::own_program<NvProgram>(dispatch, context.gpu);
}

uint64_t launch_bytes(const LaunchPlan& plan) {
  return align_up(uint64_t{plan.bank0_bytes}, kQmdAlignment) +
         align_up(uint64_t{qmd_format(plan.version).dwords} * 4, kQmdAlignment);
}

class Encoder : hcq::EncoderBase<EncodedCommands, EncodingContext> {
 public:
  Encoder(std::span<const uint8_t> patched, const EncodingContext& context,
          EncodedCommands& encoded)
      : EncoderBase(patched, context, encoded),
        pushes_{Push(encoded.words[0], context.classes[0]),
                Push(encoded.words[1], context.classes[1])} {}

  Status run(std::span<const hal::Command> commands) {
    if (context_.waits_for_copies)
      note_cross_engine(kComputeRing, acquire(pushes_[kComputeRing], context_.to_compute,
                                              context_.cross_releases));
    for (const hal::Command& command : commands) {
      encoded_.command_sites.emplace_back();
      BM_TRY(std::visit([this](const auto& c) { return encode(c); }, command));
    }
    if (!pending_timestamps_.empty()) BM_TRY(write_timestamps());
    if (context_.has_compute && ring_ == kCopyRing) {
      release_to_compute();
      encoded_.ends_on_copies = true;
    }
    flush();
    encoded_.cross_releases = ordinal_;
    return {};
  }

 private:
  Push& push() { return pushes_[ring_]; }

  Status encode(const hal::Wait& c) {
    if (!is_patched(kPatchedAddress)) BM_TRY(check_signal(raw(c.signal), "Wait"));
    command_site() = {.kind = CommandSite::Kind::kSemaphore,
                      .ring = ring_,
                      .at = acquire(push(), raw(c.signal), c.value)};
    end_chain();
    return {};
  }
  Status encode(const hal::Signal& c) {
    if (!is_patched(kPatchedAddress)) BM_TRY(check_signal(raw(c.signal), "Signal"));
    if (signal_in_launch(c)) return {};
    return release_at(raw(c.signal), c.value);
  }
  Status encode(const hal::Write& c);
  /// Nothing: a launch that starts a chain waits and invalidates, links of a chain do so by
  /// themselves, and the copy engine has no caches.
  Status encode(const hal::Barrier&) { return {}; }
  Status encode(const hal::Timestamp& c);
  Status encode(const hal::Copy& c);
  Status encode(const hal::Dispatch& c);

  Status check_signal(uint64_t address, const char* command) const;
  /// OFFSET_IN_UPPER and OFFSET_OUT_UPPER: 17 bits in clc7b5.h, 25 in clc8b5.h; likewise those of
  /// inline data in clc7c0.h and clcbc0.h.
  uint64_t address_end() const {
    return uint64_t{1} << (context_.classes[kCopyRing].copy >= 0xc8b5 ? 57 : 49);
  }
  void write_inline(const hal::Write& c);
  bool extend_inline(const hal::Write& c);
  bool signal_in_launch(const hal::Signal& c);
  Status release_at(uint64_t address, uint64_t value);
  Status write_timestamps();
  void copy_timestamp(uint64_t dst, uint64_t timestamp);
  Status fill_launch(const hal::Dispatch& c, const NvProgram& program, LaunchPart& part);
  Status copy_arguments(const hal::Dispatch& c, const NvProgram& program, std::byte* bank);
  void start(LaunchPart& part);

  void to_ring(size_t ring);
  void release_to_compute();
  void flush();
  void note_cross_engine(size_t ring, uint32_t semaphore) {
    encoded_.cross_engine_sites.push_back({ring, semaphore + 2, ordinal_});
  }

  void end_chain() { last_ = kNoLaunch; }
  void mark_idle() {
    end_chain();
    needs_idle_ = has_inline_ = false;
  }
  struct PendingTimestamp {
    uint64_t dst, source;
    uint32_t command;
  };
  std::array<Push, kRings> pushes_;
  bool needs_idle_ = true;   ///< grids may run that no method has waited for
  bool has_inline_ = false;  ///< the same of inline data
  struct OpenInline {        ///< the inline write that ends the compute ring's words
    InlineWords words{};
    uint32_t end = 0;
    uint64_t next = 0;
  } inline_;
  bool is_dirty_ = false;      ///< copies that no flush has made visible
  uint32_t last_ = kNoLaunch;  ///< launch the next one may be linked to
  std::vector<PendingTimestamp>
      pending_timestamps_;  ///< taken on the compute ring, still to be written
};

/// Host semaphores reach less than the address space on older channels.
Status Encoder::check_signal(uint64_t address, const char* command) const {
  BM_TRY(check_word(address, command));
  const ChipRow& chip = context_.gpu->chip();
  if (address >> chip.sem_va_bits == 0) return {};
  return fail(Code::kInvalidArgument,
              "{} at {:#x}: semaphores of {} lie below 2^{}; allocate them visible to the host",
              command, address, chip.name, chip.sem_va_bits);
}

/// Data that comes with the commands: no semaphore, so any memory will do, and adjacent writes go
/// together. On the copy ring the engine's constants are that data.
Status Encoder::encode(const hal::Write& c) {
  if (!is_patched(kPatchedAddress)) {
    BM_TRY(check_word(raw(c.dst), "Write"));
    if (raw(c.dst) >= address_end())
      return fail(Code::kInvalidArgument, "Write at {:#x}: addresses end at {:#x}", raw(c.dst),
                  address_end());
  }
  if (!pending_timestamps_.empty()) BM_TRY(write_timestamps());
  if (ring_ == kCopyRing) {
    const ConstantWords words = write_constant(push(), raw(c.dst), c.value);
    is_dirty_ = true;
    command_site() = {.kind = CommandSite::Kind::kWrite,
                      .ring = ring_,
                      .at = words.addresses,
                      .first = words.value};
    return {};
  }
  if (!extend_inline(c)) write_inline(c);
  inline_.end = push().position();
  inline_.next = is_patched(kPatchedAddress) ? 0 : raw(c.dst) + sizeof c.value;
  command_site() = {.kind = CommandSite::Kind::kWrite,
                    .ring = ring_,
                    .at = inline_.words.addresses,
                    .first = inline_.end - 2};
  end_chain();
  has_inline_ = true;
  return {};
}

void Encoder::write_inline(const hal::Write& c) {
  if (needs_idle_) wait_for_idle(push());
  needs_idle_ = false;
  const uint32_t value[] = {lo32(c.value), hi32(c.value)};
  inline_.words = nv::write_inline(push(), raw(c.dst), value);
}

/// As more data of the write directly before, when `c` is adjacent to it.
bool Encoder::extend_inline(const hal::Write& c) {
  const uint32_t words = inline_.end - inline_.words.header - 1;
  if (inline_.next == 0 || inline_.end != push().position() || inline_.next != raw(c.dst) ||
      is_patched(kPatchedAddress) || words + 2 > kMostInlineWords)
    return false;
  std::vector<uint32_t>& stream = encoded_.words[kComputeRing];
  stream.insert(stream.end(), {lo32(c.value), hi32(c.value)});
  stream[inline_.words.header] = inline_header(words + 2);
  stream[inline_.words.bytes] = (words + 2) * sizeof(uint32_t);
  return true;
}

/// As part of the grid's end, when the signal comes directly after it.
bool Encoder::signal_in_launch(const hal::Signal& c) {
  if (ring_ != kComputeRing || last_ == kNoLaunch || !pending_timestamps_.empty()) return false;
  if (is_patched(kPatchedAddress)) return false;
  LaunchPart& part = encoded_.launches[last_];
  const QmdVersion version = part.program->plan().version;
  if (part.releases == kQmdReleases || !has_exact_release(version)) return false;
  const QmdFormat& format = qmd_format(version);
  if (!format[QmdKey::kReleaseAddress].fits(raw(c.signal))) return false;
  add_release(version, std::span(encoded_.data).subspan(part.qmd, format.dwords), part.releases,
              raw(c.signal), c.value);
  command_site() = {
      .kind = CommandSite::Kind::kRelease, .ring = ring_, .first = last_, .count = part.releases};
  ++part.releases;
  return true;
}

Status Encoder::release_at(uint64_t address, uint64_t value) {
  if (!pending_timestamps_.empty()) BM_TRY(write_timestamps());
  if (ring_ == kCopyRing) flush();
  command_site() = {
      .kind = CommandSite::Kind::kSemaphore, .ring = ring_, .at = release(push(), address, value)};
  if (ring_ == kComputeRing) mark_idle();
  return {};
}

/// A release with timestamp writes 16 bytes, so it goes to a place of ours and the 8 bytes wanted
/// are copied from there: at once on the copy ring, before the next signal on the compute ring.
Status Encoder::encode(const hal::Timestamp& c) {
  if (!is_patched(kPatchedAddress)) BM_TRY(check_word(raw(c.dst), "Timestamp"));
  const uint32_t at = take_data(kTimestampBytes);
  if (ring_ == kComputeRing) {
    release(push(), data_va(at), 0, true);
    mark_idle();
    pending_timestamps_.push_back({raw(c.dst), data_va(at), command()});
    return {};
  }
  flush_and_release(push(), data_va(at), 0);
  copy_timestamp(raw(c.dst), data_va(at));
  command_site() = {.kind = CommandSite::Kind::kTimestamp,
                    .ring = kCopyRing,
                    .at = encoded_.copies.back().addresses + 2};
  return {};
}

void Encoder::copy_timestamp(uint64_t dst, uint64_t timestamp) {
  const CopyWords words = copy_piece(pushes_[kCopyRing], dst, timestamp + 8, 8);
  encoded_.copies.push_back({words.addresses, words.bytes, words.launch_header, 0});
  is_dirty_ = true;
}

Status Encoder::write_timestamps() {
  to_ring(kCopyRing);
  for (const PendingTimestamp& timestamp : pending_timestamps_) {
    copy_timestamp(timestamp.dst, timestamp.source);
    encoded_.command_sites[timestamp.command] = {.kind = CommandSite::Kind::kTimestamp,
                                                 .ring = kCopyRing,
                                                 .at = encoded_.copies.back().addresses + 2};
  }
  pending_timestamps_.clear();
  return {};
}

Status Encoder::encode(const hal::Copy& c) {
  const auto first = static_cast<uint32_t>(encoded_.copies.size());
  // A patched size may become anything up to one piece.
  if (c.bytes == 0 && !is_patched(kPatchedCopy)) return {};
  if (!is_patched(kPatchedCopy) && (raw(c.dst) == 0 || raw(c.src) == 0))
    return fail(Code::kInvalidArgument, "Copy of {} bytes from {:#x} to {:#x}", c.bytes, raw(c.src),
                raw(c.dst));
  const uint64_t end = address_end();
  for (const uint64_t address : {raw(c.src), raw(c.dst)})
    if (!is_patched(kPatchedCopy) && (address >= end || c.bytes > end - address))
      return fail(Code::kInvalidArgument,
                  "Copy of {} bytes from {:#x} to {:#x}: addresses end at {:#x}", c.bytes,
                  raw(c.src), raw(c.dst), end);
  to_ring(kCopyRing);
  uint64_t at = 0;
  do {
    const uint64_t bytes = std::min(c.bytes - at, kLargestCopy);
    const CopyWords words = copy_piece(push(), raw(c.dst) + at, raw(c.src) + at, bytes);
    if (bytes == 0) encoded_.words[ring_][words.launch_header] = kCopyNopHeader;
    encoded_.copies.push_back({words.addresses, words.bytes, words.launch_header, at});
    at += bytes;
  } while (at < c.bytes);
  is_dirty_ = true;
  note_copy(first);
  return {};
}

Status Encoder::encode(const hal::Dispatch& c) {
  const NvProgram* program = BM_TRY(own_program(c, context_));
  if (!context_.has_compute)
    return fail(Code::kUnsupported, "kernel '{}' on a copy queue", program->code().entry);
  if (hcq::is_empty(c.grid) && !is_patched(kPatchedGrid)) return {};
  BM_TRY(check_grid(program->code(), c.grid));
  to_ring(kComputeRing);
  LaunchPart part;
  part.program = program;
  part.command = command();
  part.grid = c.grid;
  BM_TRY(fill_launch(c, *program, part));
  start(part);
  command_site() = {.kind = CommandSite::Kind::kLaunch,
                    .ring = ring_,
                    .first = static_cast<uint32_t>(encoded_.launches.size())};
  encoded_.launches.push_back(part);
  // A launch that may be empty starts nothing then, so nothing can hang on its end.
  last_ = is_patched(kPatchedGrid) ? kNoLaunch : command_site().first;
  needs_idle_ = true;
  return {};
}

Status Encoder::fill_launch(const hal::Dispatch& c, const NvProgram& program, LaunchPart& part) {
  const LaunchPlan& plan = program.plan();
  part.bank = take_data(plan.bank0_bytes);
  part.qmd = take_data(uint64_t{qmd_format(plan.version).dwords} * 4);
  const auto bank =
      std::as_writable_bytes(std::span(encoded_.data).subspan(part.bank, plan.bank0_bytes / 4));
  encode_bank0(plan.bank0,
               {.block = plan.shape.block,
                .grid = c.grid,
                .cluster = plan.shape.has_cluster ? plan.shape.cluster : hal::Dim3{},
                .has_cluster = plan.shape.has_cluster,
                .shared_window = context_.shared_window,
                .local_window = context_.local_window,
                // Of all grids in flight this one's only.
                .grid_id = data_va(part.bank),
                .sm_count = context_.sm_count,
                .dynamic_shared = plan.dynamic_shared,
                .reserved_shared = plan.reserved_shared},
               bank);
  if (plan.is_ptx) encode_ptx_counts(program.code().num_buffers, program.code().num_vars, bank);
  BM_TRY(copy_arguments(c, program, bank.data() + plan.bank0.params));
  LaunchShape shape = plan.shape;
  shape.grid = c.grid;
  shape.banks[0] = {data_va(part.bank), plan.bank0_bytes};
  encode_qmd(plan.version, shape,
             std::span(encoded_.data).subspan(part.qmd, qmd_format(plan.version).dwords));
  return {};
}

Status Encoder::copy_arguments(const hal::Dispatch& c, const NvProgram& program, std::byte* to) {
  const uint64_t bytes = uint64_t{program.code().num_buffers + program.code().num_vars} * 8;
  if (bytes == 0) return {};
  const HostView words = BM_TRY(hcq::argument_block(c, bytes, context_));
  words.copy_out(0, {to, bytes});
  return {};
}

/// Linked to the launch before it where one directly precedes, else by method.
void Encoder::start(LaunchPart& part) {
  const LaunchPlan& plan = part.program->plan();
  if (last_ != kNoLaunch && !is_patched(kPatchedGrid)) {
    const LaunchPart& before = encoded_.launches[last_];
    const QmdVersion version = before.program->plan().version;
    if (version == plan.version) {
      link_qmd(version, std::span(encoded_.data).subspan(before.qmd, qmd_format(version).dwords),
               data_va(part.qmd));
      part.is_linked = true;
      return;
    }
  }
  if (needs_idle_ || has_inline_) wait_for_idle(push());
  invalidate_caches(push());
  part.header = launch(push(), plan.method, plan.action, data_va(part.qmd));
  if (hcq::is_empty(part.grid))
    encoded_.words[kComputeRing][part.header] = kComputeNoOperationHeader;
}

void Encoder::to_ring(size_t ring) {
  if (ring == ring_) return;
  if (ring == kComputeRing) {
    release_to_compute();
    const uint64_t value = context_.cross_releases + ordinal_;
    note_cross_engine(kComputeRing, acquire(pushes_[kComputeRing], context_.to_compute, value));
  } else {
    const uint64_t value = context_.cross_releases + ++ordinal_;
    note_cross_engine(kComputeRing, release(pushes_[kComputeRing], context_.to_copies, value));
    note_cross_engine(kCopyRing, acquire(pushes_[kCopyRing], context_.to_copies, value));
    mark_idle();
  }
  ring_ = ring;
}

/// The copy ring's end of a stretch; who waits for it is the caller's matter.
void Encoder::release_to_compute() {
  flush();
  const uint64_t value = context_.cross_releases + ordinal_;
  note_cross_engine(kCopyRing, release(pushes_[kCopyRing], context_.to_compute, value));
}

void Encoder::flush() {
  if (!is_dirty_) return;
  flush_and_release(pushes_[kCopyRing], context_.flushed, 0);
  is_dirty_ = false;
}

}  // namespace

Result<uint64_t> data_bytes(std::span<const hal::Command> commands,
                            const EncodingContext& context) {
  uint64_t bytes = 0;
  for (const hal::Command& command : commands) {
    if (std::holds_alternative<hal::Timestamp>(command)) bytes += kQmdAlignment;
    if (const auto* dispatch = std::get_if<hal::Dispatch>(&command))
      bytes += launch_bytes(BM_TRY(own_program(*dispatch, context))->plan());
  }
  return bytes;
}

Status encode(std::span<const hal::Command> commands, std::span<const uint8_t> patched,
              const EncodingContext& context, EncodedCommands& encoded) {
  encoded.clear();
  return Encoder(patched, context, encoded).run(commands);
}

}  // namespace bm::nv
