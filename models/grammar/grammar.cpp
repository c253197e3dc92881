#include "models/grammar/grammar.h"

#include <algorithm>

#include "models/grammar/utf8_ranges.h"

namespace bm::models {

using State = Grammar::State;

/// Thompson's construction, from the end of each rule backwards.
class GrammarBuilder {
 public:
  explicit GrammarBuilder(const Gbnf& gbnf) : gbnf_(gbnf) {}

  Result<Grammar> build() {
    for (uint32_t rule = 0; rule < gbnf_.rules.size(); ++rule) {
      rule_ = rule;
      const uint32_t end = add({.kind = State::Kind::kReturn});
      grammar_.entries_.push_back(emit(gbnf_.rules[rule].body, end));
      if (is_full_)
        return fail(Code::kInvalidArgument,
                    "grammar: rule \"{}\" makes more than {} states: repetitions are too many",
                    gbnf_.rules[rule].name, Grammar::kMaxStates);
    }
    grammar_.root_ = gbnf_.root;
    BM_TRY(refuse_left_recursion());
    return std::move(grammar_);
  }

 private:
  uint32_t add(State state) {
    if (grammar_.states_.size() >= Grammar::kMaxStates) {
      is_full_ = true;
      return 0;
    }
    grammar_.states_.push_back(state);
    rules_.push_back(rule_);
    return static_cast<uint32_t>(grammar_.states_.size() - 1);
  }
  uint32_t add_split(uint32_t a, uint32_t b) {
    return add({.kind = State::Kind::kSplit, .next = a, .other = b});
  }

  // Recursion: as deep as the parser allows parentheses, a few levels for each.
  uint32_t emit(uint32_t index, uint32_t next) {
    if (is_full_) return next;
    const GbnfNode& node = gbnf_.nodes[index];
    switch (node.kind) {
      case GbnfNode::Kind::kClass: return emit_class(node, next);
      case GbnfNode::Kind::kRule:
        return add({.kind = State::Kind::kCall, .next = next, .other = node.rule});
      case GbnfNode::Kind::kSequence:
        for (auto child = node.children.rbegin(); child != node.children.rend(); ++child)
          next = emit(*child, next);
        return next;
      case GbnfNode::Kind::kAlternatives: {
        uint32_t first = emit(node.children.back(), next);
        for (size_t i = node.children.size() - 1; i-- > 0;)
          first = add_split(emit(node.children[i], next), first);
        return first;
      }
      case GbnfNode::Kind::kRepeat: return emit_repeat(node, next);
    }
    __builtin_unreachable();
  }

  uint32_t emit_repeat(const GbnfNode& node, uint32_t next) {
    const uint32_t child = node.children[0];
    uint32_t first = next;
    if (node.most == GbnfNode::kUnbounded) {
      first = add_split(next, next);
      if (is_full_) return next;
      const uint32_t body = emit(child, first);
      grammar_.states_[first].next = body;
    } else {
      for (uint32_t i = node.least; i < node.most && !is_full_; ++i)
        first = add_split(emit(child, first), next);
    }
    for (uint32_t i = 0; i < node.least && !is_full_; ++i) first = emit(child, first);
    return first;
  }

  uint32_t emit_class(const GbnfNode& node, uint32_t next) {
    const std::vector<Utf8Range> ranges = utf8_ranges(node.ranges);
    uint32_t first = 0;
    for (size_t i = 0; i < ranges.size(); ++i) {
      uint32_t at = next;
      for (uint32_t k = ranges[i].length; k-- > 0;)
        at = add({.kind = State::Kind::kByte,
                  .first = ranges[i].bytes[k].first,
                  .last = ranges[i].bytes[k].last,
                  .next = at});
      first = i == 0 ? at : add_split(at, first);
    }
    return first;
  }

  /// Walks what each rule reaches without a byte; every state once. A rule that may be empty lets
  /// those who called it go on.
  Status refuse_left_recursion() {
    const size_t num_rules = gbnf_.rules.size();
    std::vector<std::vector<uint32_t>> calls(num_rules), waiting(num_rules);
    std::vector<bool> can_be_empty(num_rules), is_seen(grammar_.states_.size());
    std::vector<uint32_t> todo = grammar_.entries_;
    while (!todo.empty()) {
      const uint32_t at = todo.back();
      todo.pop_back();
      if (is_seen[at]) continue;
      is_seen[at] = true;
      const State& s = grammar_.states_[at];
      const uint32_t rule = rules_[at];
      switch (s.kind) {
        case State::Kind::kByte: break;
        case State::Kind::kSplit:
          todo.push_back(s.next);
          todo.push_back(s.other);
          break;
        case State::Kind::kCall:
          calls[rule].push_back(s.other);
          if (can_be_empty[s.other])
            todo.push_back(s.next);
          else
            waiting[s.other].push_back(s.next);
          break;
        case State::Kind::kReturn:
          can_be_empty[rule] = true;
          todo.insert(todo.end(), waiting[rule].begin(), waiting[rule].end());
          waiting[rule].clear();
          break;
      }
    }
    return refuse_cycles(calls);
  }

  Status refuse_cycles(const std::vector<std::vector<uint32_t>>& calls) const {
    enum class Mark : uint8_t { kNew, kOpen, kDone };
    std::vector<Mark> marks(calls.size(), Mark::kNew);
    struct Frame {
      uint32_t rule;
      size_t child;
    };
    for (uint32_t start = 0; start < calls.size(); ++start) {
      if (marks[start] != Mark::kNew) continue;
      std::vector<Frame> path = {{start, 0}};
      marks[start] = Mark::kOpen;
      while (!path.empty()) {
        Frame& top = path.back();
        if (top.child == calls[top.rule].size()) {
          marks[top.rule] = Mark::kDone;
          path.pop_back();
          continue;
        }
        const uint32_t called = calls[top.rule][top.child++];
        if (marks[called] == Mark::kOpen) {
          std::string names;
          size_t i = path.size();
          while (path[i - 1].rule != called) --i;
          for (size_t k = i - 1; k < path.size() && names.size() < 400; ++k)
            names += gbnf_.rules[path[k].rule].name + " → ";
          return fail(Code::kInvalidArgument, "grammar: left recursion: {}{}", names,
                      gbnf_.rules[called].name);
        }
        if (marks[called] != Mark::kNew) continue;
        marks[called] = Mark::kOpen;
        path.push_back({called, 0});
      }
    }
    return {};
  }

  const Gbnf& gbnf_;
  Grammar grammar_;
  std::vector<uint32_t> rules_;  // of each state
  uint32_t rule_ = 0;
  bool is_full_ = false;
};

Result<Grammar> Grammar::parse(std::string_view gbnf, std::string_view root) {
  const Gbnf tree = BM_TRY(parse_gbnf(gbnf, root));
  return GrammarBuilder(tree).build();
}

}  // namespace bm::models
