#pragma once
// One capture in progress: what it recorded, and how to undo what it did to tensors.
//
// A capture is a transaction. Nothing runs while it records, so a node that it gave storage holds
// no value yet; unless keep() is called, the destructor makes such nodes lazy again. Lazy tensors
// that were there before are never given storage by it: what it needs stored of them runs at once,
// outside.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tensor/schedule.h"

namespace bm {

/// How often nodes of a growing graph are held by other nodes of it, and by which. Goes through
/// lazy nodes only.
class HolderCounts {
 public:
  struct Entry {
    std::weak_ptr<Node> node;
    long uses = 0;
    std::vector<const Node*> holders;  ///< nodes of the graph
    bool is_open = false;              ///< its sources are counted
  };
  /// One more holder of `root`, from outside the graph; what lies below it belongs to the graph,
  /// but for what `known` has.
  void add(const NodePtr& root, const HolderCounts* known = nullptr);
  /// The holder of `node`'s sources is another now: what was counted as held by it stays counted.
  void replace(const Node& node, std::span<const NodePtr> sources);
  const Entry* find(const Node* n) const;
  void clear() { entries_.clear(); }

 private:
  void count(const NodePtr& n, const Node* holder);
  std::unordered_map<const Node*, Entry> entries_;
  std::vector<NodePtr> stack_;
};

class CaptureScope {
 public:
  /// Records the work of this thread until stop(). Captures do not nest.
  CaptureScope();
  ~CaptureScope();
  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;
  /// The one recording on this thread, or nullptr.
  static CaptureScope* current();

  Schedule& schedule() { return schedule_; }
  /// What was recorded, ready to run. Throws bm::Exception when a kernel cannot be compiled.
  Schedule take();
  void stop();
  /// The capture is complete: what it did to nodes stays.
  void keep();

  /// Whether the node was made while this capture recorded.
  bool has_made(const Node& n) const { return n.capture == id_; }
  /// Call before `node` is given storage.
  void remember(const NodePtr& node);
  /// Storage that only this capture's calls write.
  void add_storage(const runtime::StoragePtr& storage) { storages_.insert(storage.get()); }
  bool has_made(const runtime::Storage* storage) const { return storages_.count(storage) != 0; }
  /// A lazy node of the outside that recorded kernels compute within themselves. Once it gets
  /// storage, it no longer follows what it reads, and the capture is outdated.
  void watch(const NodePtr& node);
  const std::vector<std::weak_ptr<Node>>& watched() const { return watched_; }

  /// Storage of the outside that the capture writes, and the views it is written through.
  struct Target {
    NodePtr base;
    std::vector<NodePtr> views;
  };
  void add_target(const NodePtr& base, const NodePtr& target);
  const std::vector<Target>& targets() const { return targets_; }

  /// The graph below the sources of nodes that have storage now: held by nobody but this until the
  /// capture ends.
  const HolderCounts& held();
  /// Per storage: how many nodes own it that nothing but this capture's undo list holds.
  std::unordered_map<const runtime::Storage*, long> undo_holders() const;

  /// While it lives, the thread's work runs instead of being recorded.
  class Suspension {
   public:
    explicit Suspension(CaptureScope& scope);
    ~Suspension();
    Suspension(const Suspension&) = delete;
    Suspension& operator=(const Suspension&) = delete;

   private:
    CaptureScope& scope_;
  };

 private:
  struct Undo {
    std::weak_ptr<Node> node;
    NodeKind kind;
    std::vector<NodePtr> src;
    std::vector<int64_t> ints;
    std::vector<SymInt> syms;
  };
  void roll_back();
  std::vector<NodePtr> held_sources() const;

  const uint64_t id_;
  Schedule schedule_;
  std::vector<Undo> undo_;
  HolderCounts held_;              ///< of undo_, kept up with it: every assign may ask
  bool is_held_outdated_ = false;  ///< a node got storage outside, and is not in undo_
  uint64_t detached_ = 0;          ///< num_detached() of held_
  std::unordered_set<const runtime::Storage*> storages_;
  std::vector<std::weak_ptr<Node>> watched_;
  std::vector<Target> targets_;
  bool is_kept_ = false;
};

/// Number of times a watched node got storage, in this process.
uint64_t num_detached();
/// Call when a node with `is_watched` gets storage.
void note_detached();

/// How often each node under `roots` is held by other nodes of that graph and by `roots`. Goes
/// through lazy nodes only.
std::unordered_map<const Node*, long> holders_within(const std::vector<NodePtr>& roots);

/// What can fail in a capture, in this order.
enum class CaptureStep : uint8_t {
  kCall,      ///< recording a call; index: which
  kPacking,   ///< packing constant operands
  kPrograms,  ///< compiling and loading
  kPlan,      ///< placing intermediates
  kGraph,     ///< building the graph
  kFirstRun,
};

/// For tests: while it lives, captures of this thread ask `check` before every step and fail with
/// its error.
class CaptureFaults {
 public:
  using Check = std::function<Status(CaptureStep step, size_t index)>;
  explicit CaptureFaults(Check check);
  ~CaptureFaults();
  CaptureFaults(const CaptureFaults&) = delete;
  CaptureFaults& operator=(const CaptureFaults&) = delete;

 private:
  friend void check_step(CaptureStep step, size_t index);
  Check check_;
  CaptureFaults* outer_;
};
/// Throws bm::Exception with the error of the innermost CaptureFaults, if it gives one.
void check_step(CaptureStep step, size_t index = 0);

}  // namespace bm
