#pragma once
// The tokenizer of a GGUF file that a test has built.

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "models/tokenizer.h"
#include "tests/unit/formats/gguf_builder.h"

namespace bm::models::test {

/// Fails the test and returns nullptr where there is none.
inline std::unique_ptr<Tokenizer> open(const GgufBuilder& builder) {
  const auto bytes = builder.build();
  const GgufFile file = GgufFile::from_bytes(bytes).value();
  auto tokenizer = Tokenizer::from_gguf(file);
  if (!tokenizer) {
    ADD_FAILURE() << tokenizer.error().message;
    return nullptr;
  }
  return std::move(*tokenizer);
}

}  // namespace bm::models::test
