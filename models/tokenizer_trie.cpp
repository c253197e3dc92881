#include "models/tokenizer_trie.h"

namespace bm::models {

void ByteTrie::insert(std::string_view text, int32_t value) {
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    uint32_t& next = i == 0 ? first_[static_cast<uint8_t>(text[0])] : edges_[edge(node, text[i])];
    if (next == 0) {
      next = static_cast<uint32_t>(values_.size());
      values_.push_back(-1);
    }
    node = next;
  }
  values_[node] = value;
}

}  // namespace bm::models
