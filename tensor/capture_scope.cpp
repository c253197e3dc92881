#include "tensor/capture_scope.h"

#include <atomic>
#include <new>

#include "runtime/base/check.h"
#include "runtime/base/out_of_memory.h"
#include "tensor/exception.h"
#include "tensor/primitives.h"

namespace bm {
namespace {

thread_local CaptureScope* current_scope = nullptr;
thread_local uint64_t current_id = 0;
thread_local CaptureFaults* current_faults = nullptr;

uint64_t next_id() {
  static std::atomic<uint64_t> last{0};  // unique in the process: nodes travel among threads
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

std::atomic<uint64_t>& detached_counter() {
  static std::atomic<uint64_t> counter{0};  // nodes and captures of all threads share it
  return counter;
}

}  // namespace

uint64_t current_capture_id() { return current_id; }
uint64_t num_detached() { return detached_counter().load(std::memory_order_acquire); }
void note_detached() { detached_counter().fetch_add(1, std::memory_order_release); }

void HolderCounts::count(const NodePtr& n, const Node* holder) {
  Entry& entry = entries_[n.get()];
  if (entry.uses++ == 0) {
    entry.node = n;
    stack_.push_back(n);
  }
  if (holder != nullptr) entry.holders.push_back(holder);
}

void HolderCounts::add(const NodePtr& root, const HolderCounts* known) {
  count(root, nullptr);
  while (!stack_.empty()) {
    const NodePtr n = std::move(stack_.back());
    stack_.pop_back();
    if (n->is_realized() || (known != nullptr && known->find(n.get()) != nullptr)) continue;
    entries_.at(n.get()).is_open = true;
    for (const NodePtr& s : n->src) count(s, n.get());
  }
}

void HolderCounts::replace(const Node& node, std::span<const NodePtr> sources) {
  if (const Entry* entry = find(&node); entry != nullptr && entry->is_open) return;
  for (const NodePtr& s : sources) add(s);
}

const HolderCounts::Entry* HolderCounts::find(const Node* n) const {
  const auto at = entries_.find(n);
  return at == entries_.end() ? nullptr : &at->second;
}

CaptureScope::CaptureScope() : id_(next_id()), detached_(num_detached()) {
  BM_CHECK(current_scope == nullptr && current_id == 0);
  current_scope = this;
  current_id = id_;
}

CaptureScope::~CaptureScope() {
  stop();
  if (is_kept_) return;
  try {
    roll_back();
  } catch (const std::bad_alloc&) {
    // A lazy tensor missing from the readers of its storage would give new contents for old ones.
    end_out_of_memory("undoing a capture that failed");
  }
}

CaptureScope* CaptureScope::current() { return current_scope; }

void CaptureScope::stop() {
  if (current_scope != this) return;
  current_scope = nullptr;
  current_id = 0;
}

Schedule CaptureScope::take() {
  check_step(CaptureStep::kPrograms);
  schedule_.make_programs();
  return std::move(schedule_);
}

void CaptureScope::keep() {
  is_kept_ = true;
  undo_.clear();
  held_.clear();
}

void CaptureScope::remember(const NodePtr& node) {
  undo_.push_back({node, node->kind, node->src, node->ints, node->syms});
  held_.replace(*node, undo_.back().src);
}

const HolderCounts& CaptureScope::held() {
  if (is_held_outdated_ || detached_ != num_detached()) {
    detached_ = num_detached();
    is_held_outdated_ = false;
    held_.clear();
    for (const NodePtr& source : held_sources()) held_.add(source);
  }
  return held_;
}

void CaptureScope::roll_back() {
  for (auto it = undo_.rbegin(); it != undo_.rend(); ++it) {
    const NodePtr node = it->node.lock();
    if (!node) continue;
    node->buffer = {};
    node->kind = it->kind;
    node->src = std::move(it->src);
    node->ints = std::move(it->ints);
    node->syms = std::move(it->syms);
  }
  // Assigns of the capture may have struck lazy nodes below these off the lists of their storages.
  std::unordered_set<const Node*> seen;
  std::vector<NodePtr> stack;
  for (const Undo& undo : undo_)
    if (NodePtr node = undo.node.lock()) stack.push_back(std::move(node));
  while (!stack.empty()) {
    const NodePtr n = std::move(stack.back());
    stack.pop_back();
    if (n->is_realized() || !seen.insert(n.get()).second) continue;
    register_reader(n);
    stack.insert(stack.end(), n->src.begin(), n->src.end());
  }
  undo_.clear();
}

void CaptureScope::watch(const NodePtr& node) {
  if (node->kind == NodeKind::kConst || node->kind == NodeKind::kIota) return;
  for (const auto& known : watched_)
    if (known.lock() == node) return;
  node->is_watched = true;
  watched_.push_back(node);
}

void CaptureScope::add_target(const NodePtr& base, const NodePtr& target) {
  if (has_made(*base)) return;
  Target* known = nullptr;
  for (Target& t : targets_)
    if (t.base == base) known = &t;
  if (!known) known = &targets_.emplace_back(Target{base, {}});
  for (const NodePtr* n = &target; is_movement((*n)->kind); n = &(*n)->src[0])
    if (!has_made(**n)) known->views.push_back(*n);
}

std::vector<NodePtr> CaptureScope::held_sources() const {
  std::vector<NodePtr> sources;
  for (const Undo& undo : undo_) sources.insert(sources.end(), undo.src.begin(), undo.src.end());
  return sources;
}

std::unordered_map<const runtime::Storage*, long> CaptureScope::undo_holders() const {
  std::unordered_map<const Node*, long> uses;
  {
    const std::vector<NodePtr> sources = held_sources();
    uses = holders_within(sources);
  }
  std::unordered_map<const runtime::Storage*, long> holders;
  for (const Undo& undo : undo_) {
    const NodePtr node = undo.node.lock();
    if (!node || !node->is_realized()) continue;
    const auto it = uses.find(node.get());
    // `node` itself is one more holder.
    if (it != uses.end() && node.use_count() - 1 <= it->second)
      ++holders[node->buffer.storage.get()];
  }
  return holders;
}

CaptureScope::Suspension::Suspension(CaptureScope& scope) : scope_(scope) {
  current_scope = nullptr;
  current_id = 0;
}
CaptureScope::Suspension::~Suspension() {
  scope_.is_held_outdated_ = true;
  current_scope = &scope_;
  current_id = scope_.id_;
}

std::unordered_map<const Node*, long> holders_within(const std::vector<NodePtr>& roots) {
  std::unordered_map<const Node*, long> uses;
  std::vector<const Node*> stack;
  const auto use = [&](const Node* n) {
    if (uses[n]++ == 0 && !n->is_realized()) stack.push_back(n);
  };
  for (const NodePtr& root : roots) use(root.get());
  while (!stack.empty()) {
    const Node* n = stack.back();
    stack.pop_back();
    for (const NodePtr& s : n->src) use(s.get());
  }
  return uses;
}

CaptureFaults::CaptureFaults(Check check) : check_(std::move(check)), outer_(current_faults) {
  current_faults = this;
}
CaptureFaults::~CaptureFaults() { current_faults = outer_; }

void check_step(CaptureStep step, size_t index) {
  if (current_faults) unwrap(current_faults->check_(step, index));
}

}  // namespace bm
