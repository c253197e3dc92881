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

namespace {

constexpr size_t kFractionDigits = 9;

/// Digits behind the point of a number whose whole part is that of one or both ends.
class Fraction {
 public:
  /// nullptr: that end is another whole number.
  Fraction(const DecimalBound* least, const DecimalBound* most) : least_(least), most_(most) {
    size_ = std::max(least ? least->digits.size() : 0, most ? most->digits.size() : 0);
    if (least) low_ = padded(least->digits);
    if (most) high_ = padded(most->digits);
  }

  /// With the point, or nothing at all where that is allowed; empty where nothing is.
  std::string gbnf() const {
    const std::string digits = from(0, least_ != nullptr, most_ != nullptr);
    std::string out;
    if (can_end(0, least_ != nullptr, most_ != nullptr)) out = "\"\"";
    if (!digits.empty()) out += (out.empty() ? "" : " | ") + ("\".\" (" + digits + ")");
    return out;
  }

 private:
  std::string padded(const std::string& digits) const {
    return digits + std::string(size_ - digits.size(), '0');
  }
  static bool is_zero(std::string_view digits) {
    return digits.find_first_not_of('0') == digits.npos;
  }

  /// Whether the digits before `at`, equal to those of the ends that are tight, are a number.
  bool can_end(size_t at, bool is_low, bool is_high) const {
    const bool equals_low = is_low && is_zero(std::string_view(low_).substr(at));
    const bool equals_high = is_high && is_zero(std::string_view(high_).substr(at));
    if (is_low && !equals_low) return false;
    return !(equals_low && least_->is_exclusive) && !(equals_high && most_->is_exclusive);
  }

  /// Alternatives for one digit at `at` or more; empty: none.
  std::string from(size_t at, bool is_low, bool is_high) const {
    if (!is_low && !is_high) return fmt::format("[0-9]{{1,{}}}", kFractionDigits - at);
    if (at == size_) {
      // Behind the digits of an end: zeros are that end itself.
      if (is_high) return can_end(at, is_low, is_high) ? "\"0\"{1,3}" : "";
      if (!least_->is_exclusive) return fmt::format("[0-9]{{1,{}}}", kFractionDigits - at);
      std::string out;  // something but zeros
      for (size_t zeros = 0; at + zeros < kFractionDigits; ++zeros) {
        out += (zeros > 0 ? " | " : "");
        out += fmt::format("\"{}\" [1-9]", std::string(zeros, '0'));
        if (const size_t more = kFractionDigits - at - zeros - 1; more > 0)
          out += fmt::format(" [0-9]{{0,{}}}", more);
      }
      return out;
    }
    const char low = is_low ? low_[at] : '0', high = is_high ? high_[at] : '9';
    std::string out;
    const auto add = [&](char first, char last, bool stays_low, bool stays_high) {
      if (first > last) return;
      const std::string digit =
          first == last ? fmt::format("\"{}\"", first) : fmt::format("[{}-{}]", first, last);
      const std::string more = from(at + 1, stays_low, stays_high);
      const bool ends = can_end(at + 1, stays_low, stays_high);
      if (more.empty() && !ends) return;
      out += (out.empty() ? "" : " | ") + digit;
      if (!more.empty()) out += " (" + more + ")" + (ends ? "?" : "");
    };
    if (is_low && is_high && low == high) {
      add(low, high, true, true);
      return out;
    }
    if (is_low) add(low, low, true, false);
    add(static_cast<char>(low + (is_low ? 1 : 0)), static_cast<char>(high - (is_high ? 1 : 0)),
        false, false);
    if (is_high) add(high, high, false, true);
    return out;
  }

  const DecimalBound *least_, *most_;
  size_t size_ = 0;
  std::string low_, high_;
};

}  // namespace

std::string gbnf_decimals(const DecimalBound& least, const std::optional<DecimalBound>& most) {
  std::string out;
  const auto add = [&](const std::string& whole, const std::string& fraction) {
    if (!fraction.empty()) out += (out.empty() ? "" : " | ") + whole + " (" + fraction + ")";
  };
  const auto literal = [](int64_t whole) { return fmt::format("\"{}\"", whole); };
  if (most && most->whole < least.whole) return out;
  const bool is_one = most && most->whole == least.whole;
  add(literal(least.whole), Fraction(&least, is_one ? &*most : nullptr).gbnf());
  if (is_one) return out;
  const auto last = most ? std::optional(most->whole - 1) : std::nullopt;
  if (!last || *last > least.whole)
    add(gbnf_integers(least.whole + 1, last),
        fmt::format("\"\" | \".\" [0-9]{{1,{}}}", kFractionDigits));
  if (most) add(literal(most->whole), Fraction(nullptr, &*most).gbnf());
  return out;
}

}  // namespace bm::models
