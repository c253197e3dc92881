#pragma once
// Ranges of integers as GBNF.

#include <cstdint>
#include <optional>
#include <string>

namespace bm::models {

/// GBNF of the decimal integers in [least, most], without leading zeros; an end that is open is 16
/// digits away, or one digit more than the other end. least ≤ most.
std::string gbnf_integers(std::optional<int64_t> least, std::optional<int64_t> most);

}  // namespace bm::models
