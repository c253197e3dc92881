#include "models/stop_strings.h"

#include <algorithm>

namespace bm::models {

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase(stops_, std::string());
  std::stable_sort(stops_.begin(), stops_.end(),
                   [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
}

std::string StopStrings::push(std::string_view text) {
  if (stopped_at_) return {};
  for (const char c : text) {
    pending_ += c;
    for (const std::string& stop : stops_) {
      if (!pending_.ends_with(stop)) continue;
      stopped_at_ = stop;
      std::string out = pending_.substr(0, pending_.size() - stop.size());
      pending_.clear();
      return out;
    }
  }
  // The longest tail that begins a stop string stays.
  size_t held = 0;
  for (const std::string& stop : stops_)
    for (size_t n = std::min(stop.size() - 1, pending_.size()); n > held; --n)
      if (std::string_view(pending_).ends_with(std::string_view(stop).substr(0, n))) held = n;
  std::string out = pending_.substr(0, pending_.size() - held);
  pending_.erase(0, pending_.size() - held);
  return out;
}

std::string StopStrings::finish() {
  std::string out;
  out.swap(pending_);
  return out;
}

}  // namespace bm::models
