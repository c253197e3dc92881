// Bad input and faults at the level of the contract (runtime/hal): what must be refused is refused
// before anything happens, a fault is told once and for ever, and the device goes on where it can.

#include <algorithm>
#include <chrono>

#include "tests/cts/cts.h"

namespace bm::cts {
namespace {

using Clock = std::chrono::steady_clock;

/// The device still does what it is for: memory, and a kernel or else a copy.
Status still_works(Rig& rig) {
  auto in = BM_TRY(rig.visible(640)), out = BM_TRY(rig.visible(640));
  std::ranges::fill(view<uint64_t>(*in), uint64_t{41});
  std::ranges::fill(view<uint64_t>(*out), uint64_t{0});
  BM_TRY(rig.run({hal::Barrier{}, hal::Copy{out->va(), in->va(), 640}}));
  CTS_CHECK(view<uint64_t>(*out)[79] == 41);
  if (rig.subject().kernel == nullptr) return {};
  const auto program = BM_TRY(rig.load("iota"));
  const auto args = BM_TRY(rig.pack({va(out), 80, 5}));
  BM_TRY(rig.run({hal::Barrier{}, hal::Dispatch{program.get(), args->va(), {.x = 2}}}));
  CTS_CHECK(view<uint64_t>(*out)[79] == 84);
  return {};
}

// ---- Code

Status foreign_code(Rig& rig) {
  hal::CodeObject code = BM_TRY(rig.subject().kernel("iota", rig.device()));
  code.arch = "no_such_architecture";
  CTS_REFUSED(Code::kInvalidArgument, rig.device().load(code));
  const Status refused = [&]() -> Status {
    BM_TRY(rig.device().load(code));
    return {};
  }();
  CTS_CHECK(refused.error().message.find("no_such_architecture") != std::string::npos);
  CTS_CHECK(refused.error().message.find(rig.device().arch().name) != std::string::npos);
  return still_works(rig);
}

bool is_about_code(Code code) {
  return code == Code::kInvalidArgument || code == Code::kCorrupt || code == Code::kCompile ||
         code == Code::kUnsupported;
}

Status damaged_code(Rig& rig) {
  const hal::CodeObject good = BM_TRY(rig.subject().kernel("iota", rig.device()));
  const auto refuse = [&](const hal::CodeObject& code) -> Status {
    const auto loaded = rig.device().load(code);
    CTS_CHECK(!loaded && is_about_code(loaded.error().code) && !loaded.error().message.empty());
    return {};
  };
  for (const size_t left : {size_t{0}, size_t{1}, good.image.size() / 3, good.image.size() / 2}) {
    hal::CodeObject code = good;
    code.image.resize(left);
    BM_TRY(refuse(code));
  }
  hal::CodeObject code = good;
  for (size_t i = 0; i < code.image.size(); ++i) code.image[i] = static_cast<std::byte>(i * 37);
  BM_TRY(refuse(code));
  code = good;
  code.entry = "no_such_entry";
  BM_TRY(refuse(code));
  code.entry.clear();
  BM_TRY(refuse(code));
  // One wrong byte may go unnoticed, but must not bring anything down. It is never launched.
  for (size_t i = 0; i < 4; ++i) {
    code = good;
    code.image[i * 2654435761u % code.image.size()] ^= std::byte{0x55};
    static_cast<void>(rig.device().load(code));
  }
  BM_TRY(rig.device().status());
  return still_works(rig);
}

Status load_limits(Rig& rig) {
  const hal::Arch& arch = rig.device().arch();
  const hal::CodeObject good = BM_TRY(rig.subject().kernel("iota", rig.device()));
  const auto refuse_block = [&](hal::Dim3 block) -> Status {
    hal::CodeObject code = good;
    code.block = block;
    CTS_REFUSED(Code::kInvalidArgument, rig.device().load(code));
    return {};
  };
  BM_TRY(refuse_block({.x = arch.max_block + 1}));
  BM_TRY(refuse_block({.x = arch.max_block, .y = 2}));
  BM_TRY(refuse_block({.x = 0}));
  BM_TRY(refuse_block({.x = 1, .y = 1, .z = 0}));
  BM_TRY(refuse_block({.x = 1u << 31, .y = 1u << 31, .z = 4}));  // 2^64 threads
  hal::CodeObject code = good;
  code.shared_memory_bytes = arch.shared_memory_bytes + 1;
  CTS_REFUSED(Code::kUnsupported, rig.device().load(code));
  return still_works(rig);
}

// ---- Commands

/// Both submit and record refuse `bad`, and what stands before it in the list has not run.
Status refuse(Rig& rig, const hal::Command& bad) {
  const auto ran = BM_TRY(rig.words());
  const hal::Command commands[] = {hal::Write{ran->va(), 1}, hal::Signal{word_va(*ran, 1), 1}, bad,
                                   hal::Signal{word_va(*ran, 2), 1}};
  CTS_REFUSED(Code::kInvalidArgument, rig.queue().submit(commands));
  CTS_REFUSED(Code::kInvalidArgument, rig.queue().record(commands, {}));
  BM_TRY(rig.run({}));  // everything accepted before this is done now
  for (uint64_t i = 0; i < 3; ++i) CTS_CHECK(word(*ran, i) == 0);
  return rig.device().status();
}

Status malformed_commands(Rig& rig) {
  const auto memory = BM_TRY(rig.words());
  for (const hal::GpuVa bad :
       {hal::GpuVa{}, hal::offset(memory->va(), 4), hal::offset(memory->va(), 1)}) {
    BM_TRY(refuse(rig, hal::Wait{bad, 0}));
    BM_TRY(refuse(rig, hal::Signal{bad, 1}));
    BM_TRY(refuse(rig, hal::Timestamp{bad}));
    BM_TRY(refuse(rig, hal::Write{bad, 1}));
  }
  BM_TRY(refuse(rig, hal::Copy{memory->va(), {}, 8}));
  BM_TRY(refuse(rig, hal::Copy{{}, memory->va(), 8}));
  return refuse(rig, hal::Dispatch{nullptr, memory->va(), {}});
}

class ForeignProgram final : public hal::Program {
 public:
  explicit ForeignProgram(hal::CodeObject code) : Program(std::move(code)) {}
};

Status malformed_launches(Rig& rig) {
  const auto program = BM_TRY(rig.load("iota"));
  const auto out = BM_TRY(rig.visible(640));
  const auto args = BM_TRY(rig.pack({va(out), 80, 5, 0}));
  const ForeignProgram foreign(program->code());
  BM_TRY(refuse(rig, hal::Dispatch{&foreign, args->va(), {}}));
  BM_TRY(refuse(rig, hal::Dispatch{program.get(), {}, {}}));
  BM_TRY(refuse(rig, hal::Dispatch{program.get(), hal::offset(args->va(), 4), {}}));
  constexpr uint32_t kMost = UINT32_MAX;
  BM_TRY(refuse(rig, hal::Dispatch{program.get(), args->va(), {kMost, kMost, kMost}}));
  return still_works(rig);
}

/// A replay that is refused leaves the recording as good as it was.
Status refused_replay(Rig& rig) {
  using hal::PatchField;
  const auto program = BM_TRY(rig.load("iota"));
  const auto out = BM_TRY(rig.visible(640)), ran = BM_TRY(rig.words());
  const auto args = BM_TRY(rig.pack({va(out), 80, 5}));
  const hal::Command commands[] = {hal::Write{ran->va(), 1},
                                   hal::Dispatch{program.get(), args->va(), {}},
                                   hal::Signal{word_va(*ran, 1), 1}, rig.end_signal(0)};
  const hal::Patch patches[] = {{.command = 1, .field = PatchField::kGridX, .slot = 0},
                                {.command = 1, .field = PatchField::kGridY, .slot = 1},
                                {.command = 1, .field = PatchField::kGridZ, .slot = 1},
                                {.command = 2, .field = PatchField::kSignalAddress, .slot = 2},
                                {.command = 3, .field = PatchField::kSignalValue, .slot = 3}};
  const auto recording = BM_TRY(rig.queue().record(commands, patches));
  const uint64_t good = hal::raw(word_va(*ran, 1));
  const auto refuse_values = [&](std::vector<uint64_t> values) -> Status {
    CTS_REFUSED(Code::kInvalidArgument, rig.queue().replay(*recording, values));
    BM_TRY(rig.run({}));
    CTS_CHECK(word(*ran, 0) == 0);
    return rig.device().status();
  };
  BM_TRY(refuse_values({uint64_t{1} << 32, 1, good, 0}));
  BM_TRY(refuse_values({UINT32_MAX, UINT32_MAX, good, 0}));
  BM_TRY(refuse_values({1, 1, good + 4, 0}));
  BM_TRY(refuse_values({1, 1, 0, 0}));
  const uint64_t end = rig.next_value(), values[] = {2, 1, good, end};
  std::ranges::fill(view<uint64_t>(*out), uint64_t{0});
  BM_TRY(rig.queue().replay(*recording, values));
  BM_TRY(rig.finish(end));
  CTS_CHECK(view<uint64_t>(*out)[79] == 84 && word(*ran, 0) == 1 && word(*ran, 1) == 1);
  return {};
}

// ---- Memory

Status out_of_memory(Rig& rig) {
  const uint64_t total = rig.device().memory().total, used = rig.device().memory().used;
  CTS_CHECK(total > 0);
  for (const uint64_t bytes : {total + 1, total * 2}) {
    const auto refused = rig.device().allocate({.size = bytes});
    CTS_CHECK(!refused && refused.error().code == Code::kOutOfMemory);
    CTS_CHECK(refused.error().message.find(std::to_string(bytes)) != std::string::npos);
  }
  BM_TRY(rig.device().status());
  // What was refused is not counted. Other processes use host memory too, but not half of it.
  CTS_CHECK(rig.device().memory().used < used + total / 2);
  return still_works(rig);
}

Status bad_imports(Rig& rig) {
  std::vector<std::byte> mine(256);
  const auto wrap = [&](void* pointer, uint64_t bytes,
                        hal::ExternalKind kind = hal::ExternalKind::kHostPointer) {
    return rig.device().allocate({.size = bytes, .external = pointer, .external_kind = kind});
  };
  CTS_REFUSED(Code::kInvalidArgument, wrap(mine.data(), 0));
  // Beyond the end of the address space.
  CTS_REFUSED(Code::kInvalidArgument, wrap(mine.data(), ~uint64_t{0} - 16));
  CTS_REFUSED(Code::kInvalidArgument, wrap(reinterpret_cast<void*>(~uintptr_t{0} - 63), 4096));
  if (rig.device().arch().vendor != hal::Vendor::kOpenCl) {
    CTS_REFUSED(Code::kUnsupported, wrap(mine.data(), 256, hal::ExternalKind::kClMem));
    CTS_REFUSED(Code::kUnsupported, wrap(mine.data(), 256, hal::ExternalKind::kSvmPointer));
  }
  CTS_CHECK(wrap(mine.data(), 256).has_value());
  return rig.device().status();
}

// ---- Waits that never end

/// A wait for 7 that nobody answers, a write behind it, and a signal behind that. Where there is
/// another queue, it waits for something else as vainly.
Status submit_stuck(Rig& rig, hal::Buffer& words) {
  const hal::Command commands[] = {hal::Wait{word_va(words, 0), 7},
                                   hal::Write{word_va(words, 1), 1},
                                   hal::Signal{word_va(words, 2), 1}};
  const hal::Command other[] = {hal::Wait{word_va(words, 3), 1}};
  BM_TRY(rig.queue().submit(commands));
  if (rig.device().is_inline()) return {};
  BM_TRY(rig.queue(hal::QueueKind::kCopy).submit(other));
  // Long for a device that gives up in short_wait_ms(); one that does not stands for ever.
  return rig.wait_for(word(words, 2), 1, bm::test::patience(std::chrono::seconds(2)));
}

/// Every call of a device that is lost names the same cause.
Status refuses_everything(Rig& rig, const hal::CodeObject* code, const std::string& cause) {
  const auto same = [&](const auto& result) { return !result && result.error().message == cause; };
  const auto kind = hal::QueueKind::kCopy;
  CTS_CHECK(same(rig.device().status()));
  CTS_CHECK(same(rig.queue().submit({})) && same(rig.queue(kind).submit({})));
  CTS_CHECK(same(rig.device().allocate({.size = 64})));
  CTS_CHECK(same(rig.queue().record({}, {})));
  if (code != nullptr) CTS_CHECK(same(rig.device().load(*code)));
  return {};
}

Status wait_never_comes(Rig& rig) {
  hal::CodeObject code;
  const bool has_programs = rig.subject().kernel != nullptr;
  if (has_programs) code = BM_TRY(rig.subject().kernel("iota", rig.device()));
  const auto memory = BM_TRY(rig.words());
  const hal::Command nothing[] = {rig.end_signal(0)};
  const auto recording = BM_TRY(rig.queue().record(nothing, {}));
  word(*memory, 0).store(3);
  const auto begin = Clock::now();
  const Status stuck = submit_stuck(rig, *memory);
  CTS_CHECK(!stuck && stuck.error().code == Code::kTimeout);
  CTS_CHECK(Clock::now() - begin < kDeadline);
  CTS_CHECK(word(*memory, 1) == 0 && word(*memory, 2) == 0);
  if (rig.device().is_inline()) {
    CTS_CHECK(stuck.error().message.find("value 7, it is 3") != std::string::npos);
    BM_TRY(rig.device().status());
    return still_works(rig);
  }
  if (const Status health = rig.device().status(); !health) {
    CTS_CHECK(health.error().message.find("value 7, it is 3") != std::string::npos);
    word(*memory, 0).store(7);  // too late
    // Long enough for the other queue's wait to give up: the first cause stays.
    const auto until = Clock::now() + std::chrono::milliseconds(4 * short_wait_ms());
    do BM_TRY(refuses_everything(rig, has_programs ? &code : nullptr, health.error().message));
    while (Clock::now() < until);
    const auto replayed = rig.queue().replay(*recording, {});
    CTS_CHECK(!replayed && replayed.error().message == health.error().message);
    CTS_CHECK(word(*memory, 1) == 0 && word(*memory, 2) == 0);
    return {};
  }
  // The queue merely stands at the wait: a late signal lets it go on.
  word(*memory, 0).store(7);
  word(*memory, 3).store(1);
  BM_TRY(rig.wait_for(word(*memory, 2), 1));
  CTS_CHECK(word(*memory, 1) == 1);
  return still_works(rig);
}

/// Submissions behind a wait that never ends are held up, bounded, or refused in time.
Status full_queue(Rig& rig) {
  const auto memory = BM_TRY(rig.words());
  const hal::Command wait[] = {hal::Wait{word_va(*memory, 0), 1}};
  const std::vector<hal::Command> signals(500, hal::Signal{word_va(*memory, 1), 1});
  Status status = rig.queue().submit(wait);
  if (rig.device().is_inline()) {
    CTS_CHECK(!status && status.error().code == Code::kTimeout);
    return still_works(rig);
  }
  BM_TRY(status);
  const auto begin = Clock::now();
  for (int i = 0; i < 40 && status; ++i) status = rig.queue().submit(signals);
  CTS_CHECK(Clock::now() - begin < kDeadline);
  CTS_CHECK(status || status.error().code == Code::kTimeout);
  CTS_CHECK(word(*memory, 1) == 0);
  word(*memory, 0).store(1);
  // Whatever was accepted may now run, unless the device is lost; then nothing does.
  const Status drained = rig.run({});
  CTS_CHECK(drained || !rig.device().status());
  return {};
}

const Case kFaultCases[] = {
    {"fault.foreign_code", foreign_code, Needs::kKernels},
    {"fault.damaged_code", damaged_code, Needs::kKernels},
    {"fault.load_limits", load_limits, Needs::kKernels},
    {"fault.malformed_commands", malformed_commands},
    {"fault.malformed_launches", malformed_launches, Needs::kKernels},
    {"fault.refused_replay", refused_replay, Needs::kKernels},
    {"fault.out_of_memory", out_of_memory, Needs::kCopies},
    {"fault.bad_imports", bad_imports},
    {"fault.wait_never_comes", wait_never_comes, Needs::kCopies, short_wait_ms()},
    {"fault.full_queue", full_queue, Needs::kCopies, short_wait_ms()}};

}  // namespace

std::span<const Case> fault_cases() { return kFaultCases; }

}  // namespace bm::cts
