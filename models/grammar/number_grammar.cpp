#include "models/grammar/number_grammar.h"

#include <algorithm>
#include <map>
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

/// Natural numbers that `step` divides, by their remainder digit by digit.
class Multiples {
 public:
  Multiples(uint64_t step, const std::function<std::string(const std::string&)>& add_rule)
      : step_(step), add_rule_(add_rule) {}

  /// Those in [low, high] of one number of digits; empty: none.
  std::string of_one_length(uint64_t low, uint64_t high) {
    low_ = std::to_string(low);
    high_ = std::to_string(high);
    return from(0, 0, true, true);
  }

 private:
  /// From digit `at` on, behind digits with the remainder `rest`, which are those of an end where
  /// it is tight; empty: none.
  std::string from(size_t at, uint64_t rest, bool is_low, bool is_high) {
    const size_t left = low_.size() - at;
    if (left == 0) return rest == 0 ? "\"\"" : "";
    const bool is_free = !is_low && !is_high;
    const auto key = std::pair(left, rest);
    if (is_free)
      if (const auto known = free_.find(key); known != free_.end()) return known->second;
    std::vector<std::pair<std::string, std::string>> choices;  // what follows, digits
    const char first = is_low ? low_[at] : '0', last = is_high ? high_[at] : '9';
    for (char digit = first; digit <= last; ++digit) {
      const std::string more =
          from(at + 1, (rest * 10 + static_cast<uint64_t>(digit - '0')) % step_,
               is_low && digit == first, is_high && digit == last);
      if (more.empty()) continue;
      const auto same =
          std::ranges::find(choices, more, &std::pair<std::string, std::string>::first);
      if (same == choices.end())
        choices.emplace_back(more, std::string(1, digit));
      else
        same->second += digit;
    }
    std::string out;
    for (const auto& [more, digits] : choices)
      out += fmt::format("{}[{}] {}", out.empty() ? "" : " | ", digits, more);
    if (!out.empty()) out = is_free ? add_rule_(out) : "(" + out + ")";
    if (is_free) free_[key] = out;
    return out;
  }

  uint64_t step_;
  const std::function<std::string(const std::string&)>& add_rule_;
  std::string low_, high_;
  std::map<std::pair<size_t, uint64_t>, std::string> free_;  // by digits left and remainder
};

}  // namespace

std::optional<std::string> gbnf_multiples(
    int64_t step, std::optional<int64_t> least, std::optional<int64_t> most,
    const std::function<std::string(const std::string&)>& add_rule) {
  constexpr uint64_t kMostStates = 4000, kMostListed = 1000, kFew = 20, kMostDigits = 15;
  // What ends in zeros is a multiple of the rest with these zeros behind.
  auto core = static_cast<uint64_t>(step);
  uint64_t power = 1;
  std::string zeros;
  for (; core % 10 == 0; core /= 10) {
    power *= 10;
    zeros += '0';
  }
  const uint64_t digits = std::clamp<uint64_t>(kMostStates / core, 1, kMostDigits);
  uint64_t far = 1;
  for (uint64_t i = 0; i < digits; ++i) far *= 10;
  Multiples multiples(core, add_rule);
  std::string out;
  const auto add = [&](std::string_view sign, const std::string& numbers) {
    if (!numbers.empty()) out += fmt::format("{}{}({})", out.empty() ? "" : " | ", sign, numbers);
  };
  /// Those above 0; false where there are too many.
  const auto add_positive = [&](std::string_view sign, int64_t low, std::optional<int64_t> high) {
    const uint64_t from = (static_cast<uint64_t>(std::max<int64_t>(low, 1)) + power - 1) / power;
    const uint64_t to =
        high ? static_cast<uint64_t>(*high) / power : std::max(far - 1, from + 10 * core);
    if (from > to) return true;
    std::string numbers;
    const auto choose = [&](const std::string& one) {
      numbers += fmt::format("{}{}{}", numbers.empty() ? "" : " | ", one,
                             zeros.empty() ? "" : " \"" + zeros + "\"");
    };
    const uint64_t count = to / core - (from - 1) / core;
    const bool is_automaton = core * std::to_string(to).size() <= kMostStates;
    if (count <= kFew || (!is_automaton && count <= kMostListed)) {
      for (uint64_t n = (from + core - 1) / core * core; n <= to; n += core)
        choose(fmt::format("\"{}\"", n));
    } else if (is_automaton) {
      uint64_t begin = from;
      while (begin <= to) {
        const uint64_t end =
            std::min<uint64_t>(to, std::stoull(std::string(std::to_string(begin).size(), '9')));
        if (const std::string some = multiples.of_one_length(begin, end); !some.empty())
          choose(some);
        begin = end + 1;
      }
    } else {
      return false;
    }
    add(sign, numbers);
    return true;
  };
  if ((!least || *least <= 0) && (!most || *most >= 0)) add("", "\"0\"");
  if (!most || *most > 0)
    if (!add_positive("", least.value_or(1), most)) return std::nullopt;
  if (!least || *least < 0)
    if (!add_positive("\"-\" ", most && *most < 0 ? -*most : 1,
                      least ? std::optional(-*least) : std::nullopt))
      return std::nullopt;
  return out;
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
