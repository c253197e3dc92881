// Compiled with -ffp-contract=off: see the promise of Sampler.

#include "models/sampler_infill.h"

#include <algorithm>

namespace bm::models {
namespace {

constexpr size_t kMost = 1000;  // texts are compared two by two
constexpr double kLikely = 0.2;

struct Share {
  Candidate candidate;
  double p;
  bool is_end, is_merged;
  std::string text;
};

void merge_prefixes(std::vector<Share>& shares) {
  for (size_t i = 0; i < shares.size(); ++i)
    for (size_t k = 0; k < shares.size() && !shares[i].is_merged; ++k) {
      if (i == k || shares[k].is_merged || shares[i].text.empty() ||
          !shares[k].text.starts_with(shares[i].text))
        continue;
      const bool is_other_likelier = shares[k].p > shares[i].p;
      Share &kept = shares[is_other_likelier ? k : i], &gone = shares[is_other_likelier ? i : k];
      kept.p += gone.p;
      gone.p = 0;
      gone.is_merged = true;
    }
}

void keep_from(std::vector<Share>& shares, double least) {
  std::erase_if(shares, [&](const Share& s) { return s.p < least && !s.is_end; });
}

}  // namespace

void keep_infill(std::vector<Candidate>& candidates, const InfillVocabulary& vocabulary) {
  sort_candidates(candidates);
  candidates.resize(std::min(candidates.size(), kMost));
  weigh(candidates, 1.0);
  double total = 0, ends = 0;
  for (const Candidate& c : candidates) total += c.weight;
  std::vector<Share> shares;
  for (const Candidate& c : candidates) {
    const bool is_end = vocabulary.is_end(c.id);
    shares.push_back({c, c.weight / total, is_end, false, vocabulary.piece(c.id)});
    if (is_end) ends += shares.back().p;
  }
  if (3 * ends * static_cast<double>(shares.size()) > 1 - ends) {
    std::erase_if(shares, [](const Share& s) { return !s.is_end; });
  } else {
    merge_prefixes(shares);
    keep_from(shares, kLikely);
    const auto others = std::ranges::count_if(shares, [](const Share& s) { return !s.is_end; });
    if (others == 0) {
      candidates = {{1.0F, vocabulary.end, 1.0}};
      return;
    }
    double left = 0;
    for (const Share& s : shares) left += s.p;
    for (Share& s : shares) s.p /= left;
    keep_from(shares, 1.0 / static_cast<double>(others + 1));
    // An end that another's text began has no probability of its own left.
    if (std::ranges::any_of(shares, [](const Share& s) { return !s.is_merged; }))
      std::erase_if(shares, [](const Share& s) { return s.is_merged; });
  }
  candidates.clear();
  for (const Share& s : shares) candidates.push_back(s.candidate);
  weigh(candidates, 1.0);
}

}  // namespace bm::models
