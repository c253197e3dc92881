#pragma once
// Row kernels (softmax, norms): values per row (a maximum, a mean) that stay in the kernel of the
// elements of the row instead of being materialised.

#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "tensor/node.h"

namespace bm {

/// Whether kernels for it are groups of work-items, also where nothing runs (DEV=NULL::sm_90).
bool has_work_groups(const hal::Arch& arch);

/// What the fuser knows of a graph.
struct FusionView {
  std::function<bool(const Node*)> is_stored;
  std::function<const std::vector<const Node*>&(const Node*)> users;
};

/// Decides for nodes with one value per row, users first.
class RowRules {
 public:
  explicit RowRules(FusionView view) : view_(std::move(view)) {}

  /// The one stored node in whose kernel `n` may be computed once per row although it is used both
  /// per row and per element: every way from `n` leads there, all of them see the same rows, a row
  /// stays in a cache, and there are enough rows to share out. nullptr: `n` wants storage.
  /// `reduced`: elements that all rows of `n` are made from.
  const Node* kernel_of(const Node* n, int64_t reduced);

 private:
  /// Elements of all rows, and which axes run along a row.
  struct Rows {
    Shape shape;
    std::vector<int64_t> axes;
    bool operator==(const Rows&) const = default;
  };
  struct Walk {
    const Node* sink = nullptr;
    std::optional<Rows> rows;
    size_t steps = 0;
  };
  struct State {
    const Node* node;
    bool is_element;  ///< one value per element of the row, else one per row
  };
  std::optional<State> step(const Node* user, const State& from, Walk* walk) const;
  bool meet(const Node* sink, Walk* walk) const;

  FusionView view_;
  std::unordered_map<const Node*, Rows> rows_of_;  ///< by stored node
};

}  // namespace bm
