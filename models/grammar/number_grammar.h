#pragma once
// Ranges of integers and of decimal fractions as GBNF.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace bm::models {

/// GBNF of the decimal integers in [least, most], without leading zeros; an end that is open is 16
/// digits away, or one digit more than the other end. least ≤ most.
std::string gbnf_integers(std::optional<int64_t> least, std::optional<int64_t> most);

/// GBNF of the multiples of `step` ≥ 1 in [least, most], without leading zeros: an automaton of the
/// remainders, digit by digit. An open end is as many digits away as that automaton may have, up to
/// 15. `add_rule` takes the body of a rule and gives its name.
/// Empty where there is none; nullopt where it gets too large.
std::optional<std::string> gbnf_multiples(
    int64_t step, std::optional<int64_t> least, std::optional<int64_t> most,
    const std::function<std::string(const std::string& body)>& add_rule);

/// An end of a range. `digits`: those behind the point, at most kMostDigits.
struct DecimalBound {
  static constexpr size_t kMostDigits = 6;
  int64_t whole = 0;
  std::string digits;
  bool is_exclusive = false;
};
/// GBNF of the decimal numbers from `least` to `most`, neither below 0, with at most 9 digits
/// behind the point: what is next to an exclusive end is another double, below 10⁶. Empty where
/// there is no such number.
std::string gbnf_decimals(const DecimalBound& least, const std::optional<DecimalBound>& most);

}  // namespace bm::models
