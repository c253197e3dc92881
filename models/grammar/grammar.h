#pragma once
// A grammar as a pushdown automaton over the bytes of UTF-8: a nondeterministic automaton per rule,
// in which a state may call another rule.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/grammar/gbnf.h"
#include "runtime/base/result.h"

namespace bm::models {

class Grammar {
 public:
  /// Errors: those of parse_gbnf(); kInvalidArgument for left recursion, naming the rules, and for
  /// more than kMaxStates states (repetitions are written out).
  static Result<Grammar> parse(std::string_view gbnf, std::string_view root = "root");

  static constexpr size_t kMaxStates = 1'000'000;

  struct State {
    enum class Kind : uint8_t {
      kByte,    ///< a byte in [first, last] leads to `next`
      kSplit,   ///< goes on at `next` and at `other`
      kCall,    ///< rule `other`, then `next`
      kReturn,  ///< the end of a rule
    };
    Kind kind = Kind::kReturn;
    uint8_t first = 0, last = 0;
    uint32_t next = 0, other = 0;
  };

  const State& state(uint32_t id) const { return states_[id]; }
  uint32_t entry(uint32_t rule) const { return entries_[rule]; }
  uint32_t root_entry() const { return entries_[root_]; }
  size_t size() const { return states_.size(); }

 private:
  friend class GrammarBuilder;
  std::vector<State> states_;
  std::vector<uint32_t> entries_;  // by rule
  uint32_t root_ = 0;
};

}  // namespace bm::models
