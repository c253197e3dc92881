#pragma once
// Which tokens may follow what was written so far.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "models/grammar/grammar.h"
#include "models/grammar/vocabulary.h"
#include "runtime/base/result.h"

namespace bm::models {

/// Follows all readings of the text at once: a configuration is the set of stacks they stand at.
/// Configurations, their successors by byte and their masks are kept, so that a mask costs a walk
/// of the vocabulary's tree over table entries the first time and a look-up after that.
/// Thread: belongs to one sequence.
class GrammarMatcher {
 public:
  GrammarMatcher(std::shared_ptr<const Grammar> grammar,
                 std::shared_ptr<const GrammarVocabulary> vocabulary);

  static constexpr size_t kMaxDepth = 1'000;            ///< calls within calls; deeper: not allowed
  static constexpr size_t kMaxReadings = 4'096;         ///< stacks of a configuration
  static constexpr size_t kMaxConfigurations = 32'768;  ///< kept at a time

  /// One bit per token (see TokenMask), valid until the next call.
  /// Errors: kInvalidArgument when no token is allowed; when the grammar is too ambiguous here.
  Result<std::span<const uint64_t>> allowed();
  /// The text goes on with this token. Errors: kInvalidArgument when it is not allowed.
  Status accept(int32_t token);
  /// The same for bytes.
  Status accept_bytes(std::string_view bytes);

  bool can_end() const;      ///< the text may end here
  bool is_finished() const;  ///< and cannot go on
  void reset();              ///< back to the empty text

 private:
  // Ids. A node of a stack: the state to go on at, and the node below (0: none). A reading is a
  // node whose state takes a byte, or kAccepted.
  using NodeId = uint32_t;
  using ConfigurationId = uint32_t;
  static constexpr NodeId kAccepted = 0;
  static constexpr ConfigurationId kDead = 0, kUnknown = UINT32_MAX;
  struct Node {
    uint32_t state;
    NodeId below;
    uint32_t depth;
  };

  NodeId intern_node(uint32_t state, NodeId below);
  ConfigurationId intern(std::vector<NodeId> readings);
  /// Adds what (state, below) reaches without a byte and seen_ does not hold yet. False: too
  /// ambiguous.
  bool close(uint32_t state, NodeId below, std::vector<NodeId>& readings);
  Result<ConfigurationId> step(ConfigurationId from, uint8_t byte);
  Result<ConfigurationId> compute_step(ConfigurationId from, uint8_t byte);
  Status walk(std::vector<uint64_t>& mask);
  /// Forgets everything but the present configuration once it has grown large.
  void compact();
  void clear_tables();

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  std::vector<Node> nodes_;
  std::unordered_map<uint64_t, NodeId> node_ids_;
  std::vector<std::vector<NodeId>> configurations_;
  std::unordered_multimap<uint64_t, ConfigurationId> configuration_ids_;  // by hash
  std::vector<std::vector<ConfigurationId>> successors_;  // by configuration; empty or 256
  std::unordered_map<ConfigurationId, std::vector<uint64_t>> masks_;
  std::vector<std::pair<uint32_t, NodeId>> todo_;
  std::unordered_set<uint64_t> seen_;  // (state, below) of one step
  ConfigurationId start_ = kDead, present_ = kDead;
  bool is_start_ambiguous_ = false;
};

}  // namespace bm::models
