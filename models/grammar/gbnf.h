#pragma once
// GBNF, the grammar notation of llama.cpp (its grammars/README.md), to a syntax tree.
//
//   root   ::= "say " (word | number)+ "."   # a comment
//   word   ::= [a-zA-Z] [^0-9 .]{0,20}
//   number ::= "0x" [0-9a-f]{8} | [1-9] [0-9]*
//
// Literals and classes know \n \r \t \\ \" \[ \] \- \^ \xHH \uHHHH \UHHHHHHHH (code points); a dot
// is any character. A rule ends with its line, except within parentheses and after "|". Token
// references (<think>, <[42]>) are refused.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace bm::models {

struct CodeRange {
  char32_t first = 0, last = 0;  ///< inclusive
};

struct GbnfNode {
  enum class Kind : uint8_t { kClass, kSequence, kAlternatives, kRepeat, kRule };
  static constexpr uint32_t kUnbounded = UINT32_MAX;

  Kind kind = Kind::kSequence;
  uint32_t rule = 0;              ///< kRule: index of the rule
  uint32_t least = 0, most = 0;   ///< kRepeat, of its one child
  std::vector<CodeRange> ranges;  ///< kClass: sorted, without overlaps, not empty
  std::vector<uint32_t> children;
};

struct GbnfRule {
  std::string name;
  uint32_t body = 0;  ///< index of a node
};

struct Gbnf {
  std::vector<GbnfRule> rules;
  std::vector<GbnfNode> nodes;
  uint32_t root = 0;  ///< index of the rule `root`
};

/// Errors: kInvalidArgument naming row and column: what is not GBNF, a rule that is missing or
/// there twice, no rule `root`; more than 1 MiB of text, 100 levels of parentheses or a million
/// repetitions. kUnsupported: token references.
Result<Gbnf> parse_gbnf(std::string_view text, std::string_view root = "root");

/// Sorted, overlaps merged, surrogates taken out.
std::vector<CodeRange> normalized(std::vector<CodeRange> ranges);
/// All other characters; of normalized ranges.
std::vector<CodeRange> complement(const std::vector<CodeRange>& ranges);

}  // namespace bm::models
