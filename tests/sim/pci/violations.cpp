#include "tests/sim/pci/violations.h"

#include <utility>

#include <fmt/format.h>

namespace bm::sim {

void Violations::add(std::string text) {
  const std::lock_guard lock(mutex_);
  for (const std::string& prefix : prefixes_)
    if (text.starts_with(prefix)) {
      ++tolerated_[text];
      return;
    }
  // A loop that does wrong does it a million times.
  constexpr size_t kMost = 1000;
  if (texts_.size() < kMost) texts_.push_back(std::move(text));
}

std::vector<std::string> Violations::all() const {
  const std::lock_guard lock(mutex_);
  return texts_;
}

void Violations::tolerate(std::string prefix) {
  const std::lock_guard lock(mutex_);
  prefixes_.push_back(std::move(prefix));
}

std::vector<std::string> Violations::tolerated() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> out;
  for (const auto& [text, times] : tolerated_) out.push_back(fmt::format("{} ({}x)", text, times));
  return out;
}

}  // namespace bm::sim
