#pragma once
// KernelIr: what the tensor layer hands to the compiler. A perfect loop nest over `ranges` that
// evaluates expressions and stores them. Order of iterations is free; how loops are vectorised,
// unrolled, split over threads is decided in compiler/opt, not here.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compiler/ir/node.h"
#include "runtime/base/result.h"

namespace bm::ir {

struct Param {
  DType dtype = DType::kF32;
  int64_t elements = 0;  ///< largest number of elements that may be addressed
  bool is_written = false;
  bool is_read = false;
};

struct VarDecl {
  std::string name;
  int64_t min = 0, max = 0;
};

/// `params[param][index] = value` for every iteration of KernelIr::ranges (where gate, if any, is
/// true). Two iterations never store to the same element. Params never alias each other, except
/// that a param both written and read is read and written at the same element in the same iteration
/// only.
struct Store {
  int param = 0;
  const Node* index = nullptr;
  const Node* value = nullptr;
  const Node* gate = nullptr;
};

struct KernelIr {
  std::string name;              ///< C identifier, e.g. "r_64_128_f32"
  std::unique_ptr<Graph> graph;  ///< owns every node
  std::vector<Param> params;     ///< kernel arguments in order: buffers first, then vars (int64)
  std::vector<VarDecl> vars;
  std::vector<const Node*> ranges;  ///< output loops, outer to inner (kRange nodes)
  std::vector<Store> stores;
};

/// Work of one launch for statistics; `vars` are the values of KernelIr::vars.
struct Cost {
  double flops = 0;  ///< arithmetic on floats (and on integers of stored values), indices excluded
  double bytes = 0;  ///< distinct elements read plus written, as if each were touched once
};
Cost estimate_cost(const KernelIr& kernel, std::span<const int64_t> vars);

/// Checks the promises above: dtypes, arities, ids, bounds of every index against Param::elements,
/// every range reachable from stores declared in `ranges` or bound by a kReduce around it.
Status verify(const KernelIr& kernel);

/// Readable text, one node per line.
std::string to_string(const KernelIr& kernel);

/// Canonical bytes: equal iff the kernels compute the same thing with the same structure (names of
/// kernel and vars excluded). Used as cache key.
std::string serialize(const KernelIr& kernel);
/// Inverse of serialize (checked: a damaged blob is kCorrupt).
Result<KernelIr> deserialize(std::string_view bytes);

}  // namespace bm::ir
