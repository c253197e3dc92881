#include "tests/unit/sim_amd/snippets.h"

#include <gtest/gtest.h>

namespace bm::sim::amd::test {
namespace {
constexpr Snippet kSnippets[] = {
#include "tests/unit/sim_amd/snippets.inc"
};
}  // namespace

std::span<const Snippet> snippets() { return kSnippets; }

std::span<const uint32_t> words_of(Isa isa, std::string_view text) {
  for (const Snippet& s : kSnippets)
    if (s.isa == isa && s.text == text) return s.words;
  ADD_FAILURE() << "no words for '" << text << "': run make_snippets.py";
  return {};
}

}  // namespace bm::sim::amd::test
