#include "models/grammar/number_grammar.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

namespace bm::models {
namespace {

std::string digit_class(char first, char last) {
  if (first == last) return fmt::format("\"{}\"", first);
  return fmt::format("[{}-{}]", first, last);
}

std::string any_digits(size_t count) {
  if (count == 0) return "";
  return count == 1 ? "[0-9]" : fmt::format("[0-9]{{{}}}", count);
}

/// Numbers between two of the same length.
std::string between(std::string_view low, std::string_view high) {
  if (low.empty()) return "";
  const size_t rest = low.size() - 1;
  if (std::ranges::all_of(low.substr(1), [](char c) { return c == '0'; }) &&
      std::ranges::all_of(high.substr(1), [](char c) { return c == '9'; }))
    return digit_class(low[0], high[0]) + (rest > 0 ? " " : "") + any_digits(rest);
  if (low[0] == high[0])
    return fmt::format("\"{}\" {}", low[0], between(low.substr(1), high.substr(1)));
  const std::string zeros(rest, '0'), nines(rest, '9');
  std::vector<std::string> choices;
  choices.push_back(fmt::format("\"{}\" {}", low[0], between(low.substr(1), nines)));
  if (high[0] - low[0] > 1)
    choices.push_back(digit_class(static_cast<char>(low[0] + 1), static_cast<char>(high[0] - 1)) +
                      " " + any_digits(rest));
  choices.push_back(fmt::format("\"{}\" {}", high[0], between(zeros, high.substr(1))));
  std::string out;
  for (const std::string& c : choices) out += (out.empty() ? "" : " | ") + c;
  return "(" + out + ")";
}

/// Of [low, high], both ≥ 0: a choice per number of digits.
void add_natural(uint64_t low, uint64_t high, std::string_view sign,
                 std::vector<std::string>& choices) {
  while (low <= high) {
    const std::string first = std::to_string(low);
    const std::string nines(first.size(), '9');
    const uint64_t end = first.size() >= 19 ? high : std::min<uint64_t>(high, std::stoull(nines));
    choices.push_back(std::string(sign) + between(first, std::to_string(end)));
    if (end == high) return;
    low = end + 1;
  }
}

}  // namespace

std::string gbnf_integers(std::optional<int64_t> least, std::optional<int64_t> most) {
  constexpr int64_t kOpen = 9'999'999'999'999'999, kFar = 999'999'999'999'999'999;
  const int64_t low =
      least ? *least : (!most || *most >= -kOpen / 10 ? -kOpen : std::min(*most, -kFar));
  const int64_t high = most ? *most : (low <= kOpen / 10 ? kOpen : std::max(low, kFar));
  std::vector<std::string> choices;
  // |INT64_MIN| is one more than INT64_MAX.
  const auto magnitude = [](int64_t v) { return static_cast<uint64_t>(-(v + 1)) + 1; };
  if (low < 0) add_natural(high < 0 ? magnitude(high) : 1, magnitude(low), "\"-\" ", choices);
  if (high >= 0)
    add_natural(static_cast<uint64_t>(std::max<int64_t>(low, 0)), static_cast<uint64_t>(high), "",
                choices);
  std::string out;
  for (const std::string& c : choices) out += (out.empty() ? "" : " | ") + c;
  return "(" + out + ")";
}

}  // namespace bm::models
