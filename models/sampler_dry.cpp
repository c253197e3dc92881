// Compiled with -ffp-contract=off: see the promise of Sampler.

#include "models/sampler_dry.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace bm::models {

DryBreakers::DryBreakers(std::vector<std::string> texts, std::function<std::string(int32_t)> piece)
    : texts_(std::move(texts)), piece_(std::move(piece)) {
  std::erase(texts_, "");
  for (const std::string& text : texts_) longest_ = std::max(longest_, text.size());
}

bool DryBreakers::end_in(std::span<const int32_t> tokens) const {
  if (tokens.empty() || texts_.empty()) return false;
  const std::string last = piece_(tokens.back());
  std::string before;
  for (size_t i = tokens.size() - 1; i > 0 && before.size() + 1 < longest_; --i)
    before.insert(0, piece_(tokens[i - 1]));
  const std::string all = before + last;
  return std::ranges::any_of(texts_, [&](const std::string& text) {
    // The first occurrence that ends behind what was there before.
    const size_t from = before.size() + 1 < text.size() ? 0 : before.size() + 1 - text.size();
    return all.find(text, from) != std::string::npos;
  });
}

bool DryBreakers::are_in(int32_t token) const {
  const std::string own = piece_(token);
  return std::ranges::any_of(
      texts_, [&](const std::string& text) { return own.find(text) != std::string::npos; });
}

std::vector<std::string> default_dry_breakers() { return {"\n", ":", "\"", "*"}; }

void apply_dry(std::span<float> logits, std::span<const int32_t> tokens, size_t limit,
               const DryOptions& options) {
  constexpr float kLargest = 3.4e38f;
  if (options.multiplier == 0 || tokens.size() < 2) return;
  // Z function from the end: how many tokens before distance i agree with the last ones.
  const size_t size = tokens.size();
  const auto at = [&](size_t back) { return tokens[size - 1 - back]; };
  std::vector<size_t> same(size, 0);
  std::map<int32_t, size_t> longest;
  for (size_t i = 1, begin = 0, end = 0; i < size; ++i) {
    if (i < end) same[i] = std::min(end - i, same[i - begin]);
    while (i + same[i] < size && at(same[i]) == at(i + same[i])) ++same[i];
    if (i + same[i] > end) {
      begin = i;
      end = i + same[i];
    }
    const size_t n = std::min(same[i], limit);
    if (n < options.allowed_length) continue;
    size_t& known = longest[at(i - 1)];
    known = std::max(known, n);
  }
  for (const auto& [token, n] : longest) {
    if (token < 0 || static_cast<size_t>(token) >= logits.size()) continue;
    float& logit = logits[static_cast<size_t>(token)];
    if (std::isinf(logit) || (options.breakers && options.breakers->are_in(token))) continue;
    double penalty = options.multiplier;
    for (size_t i = options.allowed_length; i < n && penalty < double{kLargest}; ++i)
      penalty *= double{options.base};
    logit = static_cast<float>(
        std::clamp(double{logit} - penalty, -double{kLargest}, double{kLargest}));
  }
}

}  // namespace bm::models
