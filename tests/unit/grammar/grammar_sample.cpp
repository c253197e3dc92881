// grammar_sample COUNT SEED < REQUESTS: for each line of stdin, a JSON schema, one line of JSON:
// {"error"} or {"samples": [texts that the grammar takes, chosen at random]}.
#include <cstdio>
#include <iostream>
#include <random>

#include <nlohmann/json.hpp>

#include "models/grammar/grammar_matcher.h"
#include "models/grammar/json_schema.h"

namespace {

using namespace bm::models;
using Json = nlohmann::ordered_json;

/// Bytes, and longer pieces that cross the borders of JSON's tokens.
std::shared_ptr<const GrammarVocabulary> vocabulary() {
  std::vector<std::string> pieces;
  for (int b = 0; b < 256; ++b) pieces.emplace_back(1, static_cast<char>(b));
  for (const char* more :
       {"\",", "\":", "{\"", "\"}", "[[",   "]]", "],",    "},",   "12", "00",   "19",
        "20",  "-0",  "tru", "e,",  "null", "水", "\\u00", "\\\"", "ab", "-01-", ": \""})
    pieces.emplace_back(more);
  return std::make_shared<const GrammarVocabulary>(pieces, std::vector<int32_t>{});
}

std::string sample(GrammarMatcher& matcher, std::mt19937_64& random,
                   const GrammarVocabulary& words) {
  constexpr size_t kMaxBytes = 1500;
  matcher.reset();
  std::string text;
  while (text.size() < kMaxBytes && !matcher.is_finished()) {
    if (matcher.can_end() && random() % 4 == 0) return text;
    const auto mask = matcher.allowed();
    if (!mask) return matcher.can_end() ? text : "";
    std::vector<int32_t> choices, closing;
    for (size_t t = 0; t < words.size(); ++t) {
      if (((*mask)[t / 64] >> (t % 64) & 1) == 0) continue;
      choices.push_back(static_cast<int32_t>(t));
      if (t == '"' || t == '}' || t == ']') closing.push_back(static_cast<int32_t>(t));
    }
    // Long texts come to their end.
    const bool wants_end = !closing.empty() && random() % 1500 < 300 + 2 * text.size();
    const auto& from = wants_end ? closing : choices;
    const int32_t token = from[random() % from.size()];
    if (!matcher.accept(token)) return "";
    text += words.piece(token);
  }
  return matcher.can_end() ? text : "";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int count = std::atoi(argv[1]);
  std::mt19937_64 random(std::strtoull(argv[2], nullptr, 10));
  const auto words = vocabulary();
  for (std::string line; std::getline(std::cin, line);) {
    Json out = Json::object();
    const auto gbnf = grammar_of_json_schema(line);
    auto grammar = gbnf ? Grammar::parse(*gbnf) : tl::unexpected(gbnf.error());
    if (!grammar) {
      out["error"] = grammar.error().message;
    } else {
      GrammarMatcher matcher(std::make_shared<const Grammar>(std::move(*grammar)), words);
      out["samples"] = Json::array();
      for (int i = 0; i < count; ++i)
        if (const std::string text = sample(matcher, random, *words); !text.empty())
          out["samples"].push_back(text);
    }
    std::cout << out.dump(-1, ' ', true, Json::error_handler_t::replace) << std::endl;
  }
  return 0;
}
