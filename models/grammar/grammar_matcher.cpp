#include "models/grammar/grammar_matcher.h"

#include <algorithm>

namespace bm::models {
namespace {

using State = Grammar::State;

constexpr size_t kMaxNodes = 1'000'000;
constexpr size_t kMaxMasks = 128;  // 19 KB each for 150,000 tokens
constexpr size_t kMaxClosureSteps = 100'000;

tl::unexpected<Error> too_ambiguous() {
  return fail(Code::kInvalidArgument,
              "grammar: too ambiguous: more than {} ways to read the text so far",
              GrammarMatcher::kMaxReadings);
}

uint64_t hash_of(const std::vector<uint32_t>& ids) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, by words
  for (const uint32_t id : ids) hash = (hash ^ id) * 0x100000001b3;
  return hash;
}

}  // namespace

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar,
                               std::shared_ptr<const GrammarVocabulary> vocabulary)
    : grammar_(std::move(grammar)), vocabulary_(std::move(vocabulary)) {
  clear_tables();
  reset();
}

void GrammarMatcher::clear_tables() {
  nodes_.assign(1, {0, 0, 0});
  node_ids_.clear();
  configurations_.assign(1, {});
  configuration_ids_.clear();
  successors_.assign(1, {});
  masks_.clear();
  start_ = kDead;
}

void GrammarMatcher::reset() {
  if (start_ == kDead) {
    std::vector<NodeId> readings;
    seen_.clear();
    is_start_ambiguous_ = !close(grammar_->root_entry(), 0, readings);
    start_ = intern(std::move(readings));
  }
  present_ = start_;
}

GrammarMatcher::NodeId GrammarMatcher::intern_node(uint32_t state, NodeId below) {
  const uint64_t key = (uint64_t{state} << 32) | below;
  const auto [entry, is_new] = node_ids_.try_emplace(key, static_cast<NodeId>(nodes_.size()));
  if (is_new) nodes_.push_back({state, below, nodes_[below].depth + 1});
  return entry->second;
}

GrammarMatcher::ConfigurationId GrammarMatcher::intern(std::vector<NodeId> readings) {
  if (readings.empty()) return kDead;
  std::sort(readings.begin(), readings.end());
  readings.erase(std::unique(readings.begin(), readings.end()), readings.end());
  const uint64_t hash = hash_of(readings);
  const auto [begin, end] = configuration_ids_.equal_range(hash);
  for (auto i = begin; i != end; ++i)
    if (configurations_[i->second] == readings) return i->second;
  const auto id = static_cast<ConfigurationId>(configurations_.size());
  configurations_.push_back(std::move(readings));
  successors_.emplace_back();
  configuration_ids_.emplace(hash, id);
  return id;
}

bool GrammarMatcher::close(uint32_t state, NodeId below, std::vector<NodeId>& readings) {
  todo_.assign(1, {state, below});
  while (!todo_.empty()) {
    const auto [at, stack] = todo_.back();
    todo_.pop_back();
    const State& s = grammar_->state(at);
    if (!seen_.insert((uint64_t{at} << 32) | stack).second) continue;
    if (seen_.size() > kMaxClosureSteps) return false;
    switch (s.kind) {
      case State::Kind::kByte:
        readings.push_back(intern_node(at, stack));
        if (readings.size() > kMaxReadings) return false;
        break;
      case State::Kind::kSplit:
        todo_.emplace_back(s.other, stack);
        todo_.emplace_back(s.next, stack);
        break;
      case State::Kind::kCall:
        // A call at the end of a rule needs no place to return to: lists that call themselves at
        // their end stay flat.
        if (grammar_->state(s.next).kind == State::Kind::kReturn)
          todo_.emplace_back(grammar_->entry(s.other), stack);
        else if (nodes_[stack].depth < kMaxDepth)
          todo_.emplace_back(grammar_->entry(s.other), intern_node(s.next, stack));
        break;
      case State::Kind::kReturn:
        if (stack == 0)
          readings.push_back(kAccepted);
        else
          todo_.emplace_back(nodes_[stack].state, nodes_[stack].below);
        break;
    }
  }
  return true;
}

Result<GrammarMatcher::ConfigurationId> GrammarMatcher::compute_step(ConfigurationId from,
                                                                     uint8_t byte) {
  std::vector<NodeId> readings;
  const std::vector<NodeId> before = configurations_[from];
  seen_.clear();
  for (const NodeId reading : before) {
    if (reading == kAccepted) continue;
    const Node node = nodes_[reading];
    const State& s = grammar_->state(node.state);
    if (byte < s.first || byte > s.last) continue;
    if (!close(s.next, node.below, readings)) return too_ambiguous();
  }
  if (configurations_.size() >= 2 * kMaxConfigurations) return too_ambiguous();
  return intern(std::move(readings));
}

Result<GrammarMatcher::ConfigurationId> GrammarMatcher::step(ConfigurationId from, uint8_t byte) {
  if (from == kDead) return kDead;
  if (successors_[from].empty()) successors_[from].assign(256, kUnknown);
  if (const ConfigurationId known = successors_[from][byte]; known != kUnknown) return known;
  const ConfigurationId to = BM_TRY(compute_step(from, byte));
  return successors_[from][byte] = to;
}

Status GrammarMatcher::walk(std::vector<uint64_t>& mask) {
  const auto& nodes = vocabulary_->nodes();
  const auto& tokens = vocabulary_->tokens();
  std::vector<ConfigurationId> path(vocabulary_->longest() + 1);
  path[0] = present_;
  for (size_t i = 0; i < nodes.size();) {
    const GrammarVocabulary::Node& node = nodes[i];
    const ConfigurationId from = path[node.depth - 1u];
    const auto& row = successors_[from];
    ConfigurationId to = row.empty() ? kUnknown : row[node.byte];
    if (to == kUnknown) to = BM_TRY(step(from, node.byte));
    if (to == kDead) {
      i = node.end;
      continue;
    }
    path[node.depth] = to;
    for (uint32_t t = node.first_token; t < node.first_token + node.num_tokens; ++t) {
      const auto id = static_cast<size_t>(tokens[t]);
      mask[id / 64] |= uint64_t{1} << (id % 64);
    }
    ++i;
  }
  return {};
}

Result<std::span<const uint64_t>> GrammarMatcher::allowed() {
  if (is_start_ambiguous_) return too_ambiguous();
  compact();
  const auto found = masks_.find(present_);
  if (found != masks_.end()) return std::span<const uint64_t>(found->second);
  std::vector<uint64_t> mask((vocabulary_->size() + 63) / 64);
  BM_TRY(walk(mask));
  if (can_end())
    for (const int32_t id : vocabulary_->ends())
      mask[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
  if (std::ranges::all_of(mask, [](uint64_t word) { return word == 0; }))
    return fail(Code::kInvalidArgument, "grammar: no token may follow: {}",
                can_end() ? "the text is complete and the vocabulary has no token that ends it"
                          : "the vocabulary has none that the grammar takes here, or rules lie "
                            "too deep in one another");
  if (masks_.size() >= kMaxMasks) masks_.clear();
  return std::span<const uint64_t>(masks_[present_] = std::move(mask));
}

Status GrammarMatcher::accept_bytes(std::string_view bytes) {
  compact();
  ConfigurationId to = present_;
  for (const char c : bytes) to = BM_TRY(step(to, static_cast<uint8_t>(c)));
  if (to == kDead)
    return fail(Code::kInvalidArgument, "grammar: the text does not go on like this");
  present_ = to;
  return {};
}

Status GrammarMatcher::accept(int32_t token) {
  const bool is_end = std::ranges::find(vocabulary_->ends(), token) != vocabulary_->ends().end();
  if (is_end && can_end()) return {};
  if (token < 0 || static_cast<size_t>(token) >= vocabulary_->size() || is_end ||
      vocabulary_->piece(token).empty())
    return fail(Code::kInvalidArgument, "grammar: token {} is not allowed here", token);
  return accept_bytes(vocabulary_->piece(token));
}

bool GrammarMatcher::can_end() const {
  const auto& readings = configurations_[present_];
  return !readings.empty() && readings[0] == kAccepted;  // sorted, and 0 is the least
}

bool GrammarMatcher::is_finished() const {
  return can_end() && configurations_[present_].size() == 1;
}

void GrammarMatcher::compact() {
  if (nodes_.size() < kMaxNodes && configurations_.size() < kMaxConfigurations) return;
  const std::vector<Node> old_nodes = std::move(nodes_);
  const std::vector<NodeId> old_readings = configurations_[present_];
  clear_tables();
  std::unordered_map<NodeId, NodeId> moved = {{0, 0}};
  std::vector<NodeId> readings;
  for (const NodeId reading : old_readings) {
    std::vector<NodeId> chain;  // from the reading down to what has been moved
    NodeId at = reading;
    for (; !moved.contains(at); at = old_nodes[at].below) chain.push_back(at);
    NodeId below = moved[at];
    for (; !chain.empty(); chain.pop_back())
      moved[chain.back()] = below = intern_node(old_nodes[chain.back()].state, below);
    readings.push_back(moved[reading]);
  }
  const ConfigurationId present = intern(std::move(readings));
  reset();  // makes start_ anew
  present_ = present;
}

}  // namespace bm::models
