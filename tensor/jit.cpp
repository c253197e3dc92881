#include "tensor/jit.h"

#include <algorithm>

#include "runtime/base/env.h"
#include "runtime/base/log.h"

namespace bm::detail {
namespace {

/// Keys remembered besides the captured ones: of calls seen once, and of captures given up.
constexpr size_t kMostWaiting = 64;
constexpr uint32_t kRecapturesToWarnAt = 3;

}  // namespace

struct JitCore::Entry {
  std::vector<InputKey> inputs;
  std::vector<int64_t> scalars;
  const void* signature = nullptr;
  std::unique_ptr<CapturedProgram> program;
  uint64_t last_use = 0;
  bool is_seen = false;     ///< since it was last given up
  uint32_t recaptures = 0;  ///< after it was given up
  bool was_evicted = false;

  /// Whether only the tensors could be others than at capture.
  bool is_ready_for(const JitArguments& a) const {
    return program && signature == a.signature && scalars == a.scalars && !program->is_outdated();
  }
};

JitCore::JitCore(JitOptions options) : options_(std::move(options)) {
  options_.capacity = std::max<size_t>(options_.capacity, 1);
  if (!options_.arenas) options_.arenas = std::make_shared<ArenaPool>(false);
}
JitCore::~JitCore() = default;

void JitCore::reset() {
  entry_ = nullptr;
  entries_.clear();
}

CapturedProgram* JitCore::program() const { return entry_ ? entry_->program.get() : nullptr; }
size_t JitCore::num_captures() const {
  return static_cast<size_t>(std::count_if(entries_.begin(), entries_.end(),
                                           [](const auto& e) { return e->program != nullptr; }));
}
size_t JitCore::num_calls() const { return program() ? program()->num_calls() : 0; }
uint64_t JitCore::packed_bytes() const { return program() ? program()->packed_bytes() : 0; }
bool JitCore::is_graph() const { return program() && program()->is_graph(); }
uint64_t JitCore::generation() const { return program() ? program()->generation() : 0; }

JitCore::Entry* JitCore::find(const JitArguments& a) {
  const auto matches = [&](const Entry& e) {
    return e.signature == a.signature && e.scalars == a.scalars && inputs_.matches(e.inputs);
  };
  if (entry_ && matches(*entry_)) [[likely]]
    return entry_;
  for (const auto& e : entries_)
    if (matches(*e)) return e.get();
  return nullptr;
}

JitCore::Entry& JitCore::add(const JitArguments& a) {
  if (entries_.size() >= options_.capacity + kMostWaiting) {
    auto oldest = entries_.end();
    for (auto it = entries_.begin(); it != entries_.end(); ++it)
      if (!(*it)->program && (oldest == entries_.end() || (*it)->last_use < (*oldest)->last_use))
        oldest = it;
    if (entry_ == oldest->get()) entry_ = nullptr;
    entries_.erase(oldest);
  }
  auto e = std::make_unique<Entry>();
  e->inputs = inputs_.keys();
  e->scalars = a.scalars;
  e->signature = a.signature;
  entries_.push_back(std::move(e));
  return *entries_.back();
}

JitCore::Action JitCore::begin(const JitArguments& a, bool is_capture_forced) {
  if (CaptureScope::current()) {  // a nested Jit is inlined into the outer capture
    ++counters_.plain;
    return Action::kPlain;
  }
  if (entry_ && entry_->is_ready_for(a) && settings().jit != 0 &&
      entry_->program->try_replay(a.tensors)) [[likely]] {
    entry_->last_use = ++now_;
    ++counters_.hits;
    return Action::kReplay;
  }
  inputs_.describe(a.tensors);
  Entry* e = find(a);
  if (!e) {
    if (options_.is_strict && !entries_.empty())
      raise(Code::kInvalidArgument,
            "Jit: the arguments differ from the captured ones in shape, dtype, device or scalar "
            "value (strict mode)");
    e = &add(a);
  }
  entry_ = e;
  e->last_use = ++now_;
  const bool is_first = !std::exchange(e->is_seen, true);
  if (settings().jit == 0) {
    ++counters_.plain;
    return Action::kPlain;
  }
  if (e->program && !e->program->is_outdated()) {
    ++counters_.hits;
    e->program->replay(a.tensors, inputs_);
    return Action::kReplay;
  }
  if (e->program || is_capture_forced || !is_first) return Action::kCapture;
  ++counters_.plain;
  return Action::kPlain;
}

/// Gives up the captures used longest ago.
void JitCore::make_room(const Entry& for_entry) {
  while (num_captures() >= options_.capacity) {
    Entry* oldest = nullptr;
    for (const auto& e : entries_)
      if (e->program && e.get() != &for_entry && (!oldest || e->last_use < oldest->last_use))
        oldest = e.get();
    if (!oldest) return;
    oldest->program.reset();
    oldest->was_evicted = true;
    // To be captured again it must be asked for twice: nine keys that take turns in a cache of
    // eight mostly replay.
    oldest->is_seen = false;
    ++counters_.evictions;
  }
}

void JitCore::capture(const JitArguments& a, const CapturedProgram::Body& body) {
  Entry& e = *entry_;
  auto program = CapturedProgram::capture(
      a.tensors, inputs_, body,
      {.outputs = options_.outputs, .is_checked = options_.is_checked, .arenas = options_.arenas});
  e.program.reset();
  make_room(e);
  e.program = std::move(program);
  entry_ = &e;
  ++counters_.captures;
  if (!std::exchange(e.was_evicted, false) || ++e.recaptures != kRecapturesToWarnAt) return;
  log("jit", LogLevel::kWarning,
      "one key was captured again {} times because more than {} take turns: raise "
      "JitOptions::capacity",
      e.recaptures, options_.capacity);
}

void JitCore::settle(std::span<Tensor* const> results, const JitArguments& a) {
  settle_results(results, a.tensors);
}

}  // namespace bm::detail
