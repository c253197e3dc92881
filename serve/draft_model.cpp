#include "serve/draft_model.h"

#include <algorithm>
#include <map>

#include "models/tokenizer.h"

namespace bm::serve {
namespace {

using models::BatchItem;
using models::LlamaBatch;

constexpr uint32_t kPage = LlamaBatch::kPageLength;

class DraftModel final : public Drafter {
 public:
  DraftModel(std::shared_ptr<const models::GgufFile> file, DraftModelOptions options)
      : file_(std::move(file)), options_(std::move(options)) {}

  Status load() override {
    const DraftModelOptions& o = options_;
    auto model = BM_TRY(
        models::Llama::load(file_, {.device = o.device, .context = o.context, .progress = {}}));
    if (model->context() < o.context)
      return fail(Code::kInvalidArgument, "{}: a context of {} positions; {} are wanted", o.path,
                  model->context(), o.context);
    batch_ = BM_TRY(LlamaBatch::create(
        std::move(model), {.sequences = o.sequences, .cache_bytes = 0, .cache_type = DType::kF16}));
    if (batch_->has_states())
      return fail(Code::kUnsupported,
                  "{}: recurrent models do not guess: what they have read stays read", o.path);
    has_failed_ = false;
    sequences_.clear();
    free_.clear();
    const uint32_t pages = batch_->page_count() / o.sequences;
    for (uint32_t s = 0; s < o.sequences; ++s) {
      free_.emplace_back();
      for (uint32_t i = 0; i < pages; ++i) free_.back().push_back(1 + s * pages + i);
    }
    return {};
  }

  void unload() override { batch_.reset(); }

  std::vector<int32_t> draft(uint64_t id, std::span<const int32_t> tokens, size_t most) override {
    if (!batch_ || has_failed_ || most == 0) return {};
    const auto found = sequences_.find(id);
    if (found == sequences_.end() && free_.empty()) return {};
    Sequence& s = sequences_[id];
    if (found == sequences_.end()) {
      s.pages = std::move(free_.back());
      free_.pop_back();
    }
    std::vector<int32_t> out;
    if (!catch_up(s, tokens)) return {};
    while (out.size() < most && s.computed.size() < s.pages.size() * kPage) {
      const std::span<const float> logits = batch_->logits(0).first(options_.vocabulary);
      out.push_back(static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin()));
      // What follows the last guess is nobody's question.
      if (out.size() < most && !compute(s, {&out.back(), 1}, false)) break;
    }
    return out;
  }

  void forget(uint64_t id) override {
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) return;
    free_.push_back(std::move(found->second.pages));
    sequences_.erase(found);
  }

 private:
  struct Sequence {
    std::vector<uint32_t> pages;
    std::vector<int32_t> computed;  ///< tokens whose keys and values are there
  };

  /// Computes what `tokens` has behind what was computed and still holds.
  bool catch_up(Sequence& s, std::span<const int32_t> tokens) {
    if (tokens.empty() || tokens.size() > s.pages.size() * kPage) return false;
    const auto same = std::ranges::mismatch(s.computed, tokens).in1 - s.computed.begin();
    // The last token is computed again: its logits are wanted.
    s.computed.resize(std::min<size_t>(static_cast<size_t>(same), tokens.size() - 1));
    while (s.computed.size() < tokens.size()) {
      const size_t at = s.computed.size(), left = tokens.size() - at;
      const bool is_piece = at % kPage == 0 && left > 1;
      const size_t count = is_piece ? std::min<size_t>(kPage, left) : 1;
      if (!compute(s, tokens.subspan(at, count), is_piece)) return false;
    }
    return true;
  }

  bool compute(Sequence& s, std::span<const int32_t> tokens, bool is_piece) {
    const BatchItem item{tokens, static_cast<uint32_t>(s.computed.size()), s.pages, is_piece};
    if (!batch_->run({&item, 1})) {
      has_failed_ = true;  // requests fail with the device's own words, in the next step
      return false;
    }
    s.computed.insert(s.computed.end(), tokens.begin(), tokens.end());
    return true;
  }

  std::shared_ptr<const models::GgufFile> file_;
  DraftModelOptions options_;
  std::unique_ptr<LlamaBatch> batch_;  ///< nullptr: nothing is guessed
  bool has_failed_ = false;
  std::vector<std::vector<uint32_t>> free_;
  std::map<uint64_t, Sequence> sequences_;
};

}  // namespace

Result<std::shared_ptr<Drafter>> make_draft_model(const DraftModelOptions& o) {
  auto opened = BM_TRY(models::GgufFile::open(o.path));
  auto file = std::make_shared<const models::GgufFile>(std::move(opened));
  const auto tokenizer = BM_TRY(models::Tokenizer::from_gguf(*file));
  if (tokenizer->size() != o.vocabulary)
    return fail(Code::kInvalidArgument,
                "{}: a vocabulary of {} tokens; the model it guesses for has {}", o.path,
                tokenizer->size(), o.vocabulary);
  auto out = std::make_shared<DraftModel>(std::move(file), o);
  BM_TRY(out->load());
  return std::shared_ptr<Drafter>(std::move(out));
}

}  // namespace bm::serve
