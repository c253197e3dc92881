#pragma once
// Prefix tree over bytes: all vocabulary entries that start at a position of a text.

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace bm::models {

class ByteTrie {
 public:
  ByteTrie() : values_(1, -1) { first_.fill(0); }

  /// A later value for the same text replaces the earlier one. `text` is not empty.
  void insert(std::string_view text, int32_t value);
  bool has_first(char c) const { return first_[static_cast<uint8_t>(c)] != 0; }

  /// Calls visit(length, value) for every entry that is a prefix of text.substr(pos), shortest
  /// first.
  template <class Visit>
  void prefixes(std::string_view text, size_t pos, Visit&& visit) const {
    uint32_t node = pos < text.size() ? first_[static_cast<uint8_t>(text[pos])] : 0;
    for (size_t length = 1; node != 0; ++length) {
      if (values_[node] >= 0) visit(length, values_[node]);
      if (pos + length == text.size()) return;
      const auto next = edges_.find(edge(node, text[pos + length]));
      node = next == edges_.end() ? 0 : next->second;
    }
  }

 private:
  static uint64_t edge(uint32_t node, char c) {
    return (uint64_t{node} << 8) | static_cast<uint8_t>(c);
  }

  std::array<uint32_t, 256> first_;  // node after the first byte; 0: none
  std::unordered_map<uint64_t, uint32_t> edges_;
  std::vector<int32_t> values_;  // by node; −1: no entry ends here
};

}  // namespace bm::models
