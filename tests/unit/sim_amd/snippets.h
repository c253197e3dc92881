#pragma once
// Words of the assembly in the tests here.

#include <cstdint>
#include <span>
#include <string_view>

#include "tests/sim/amd/isa/opcodes.h"

namespace bm::sim::amd::test {

struct Snippet {
  Isa isa;
  std::string_view text;
  uint32_t words[4];
};
std::span<const Snippet> snippets();
/// Empty (and a test failure) where make_snippets.py has not been run.
std::span<const uint32_t> words_of(Isa isa, std::string_view text);

}  // namespace bm::sim::amd::test
