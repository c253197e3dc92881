#pragma once
// Ends an answer at given texts, while it streams.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bm::models {

/// Text goes in as it is made and comes out as soon as it cannot be part of a stop string any
/// more. Time: O(bytes × stop strings × their length) at worst.
class StopStrings {
 public:
  /// Empty strings are ignored.
  explicit StopStrings(std::vector<std::string> stops);

  /// What may be shown now. Once a stop string is complete, the text before it, and stopped_at()
  /// is set; later calls give nothing. Of strings that end at the same byte the longest counts.
  std::string push(std::string_view text);
  /// What was held back, at the end of an answer that no stop string ended.
  std::string finish();
  const std::optional<std::string>& stopped_at() const { return stopped_at_; }

 private:
  std::vector<std::string> stops_;  // longest first
  std::string pending_;
  std::optional<std::string> stopped_at_;
};

}  // namespace bm::models
