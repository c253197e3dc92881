#pragma once
// From tokens to what a client reads: text in whole characters, cut at stop texts, handed from the
// scheduler's thread to the connection's.

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "models/tokenizer.h"
#include "serve/scheduler.h"

namespace bm::serve {

/// Withholds text that could be the beginning of a stop text, and ends at the first one.
class StopFilter {
 public:
  explicit StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  /// Text that is certain now.
  std::string push(std::string_view text);
  /// What was withheld, at the end without a stop text.
  std::string finish();
  bool is_stopped() const { return !stopped_by_.empty(); }
  const std::string& stopped_by() const { return stopped_by_; }  ///< empty: none came

 private:
  std::vector<std::string> stops_;
  std::string held_, stopped_by_;
};

/// What ends a text at its lines, as editors want it.
struct LineLimits {
  uint32_t indent = 0;  ///< spaces and tabs that every new line begins with
  /// A text that takes longer, from its first token, ends at the next new line; 0: none does.
  std::chrono::milliseconds time{0};
};

class LineFilter {
 public:
  explicit LineFilter(LineLimits limits) : limits_(limits) {}
  /// What of `text` belongs to the answer.
  std::string push(std::string text, Clock::time_point now);
  bool is_stopped() const { return is_stopped_; }
  bool has_new_line() const { return has_new_line_; }

 private:
  LineLimits limits_;
  std::optional<Clock::time_point> begin_;
  uint32_t indent_ = 0;  ///< of the last line so far
  bool is_indent_ = false, has_new_line_ = false, is_stopped_ = false;
};

/// What became of a choice since it was last asked.
struct Piece {
  std::string text;
  std::vector<ChosenToken> prompt, tokens;
  std::vector<PromptProgress> progress;  ///< where asked for
  bool is_finished = false;
};

/// One choice of a request. Thread: one reader beside the scheduler.
class Generation : public Listener {
 public:
  /// `tokenizer` outlives it. `has_control`: control tokens appear as their text. `min_tokens`: no
  /// stop text is looked for in that many first ones. `has_progress`: that of the prompt is news.
  Generation(const models::Tokenizer& tokenizer, std::vector<std::string> stops,
             bool has_control = false, uint32_t min_tokens = 0, LineLimits lines = {},
             bool has_progress = false);

  bool on_token(const ChosenToken& token) override;
  void on_prompt_token(const ChosenToken& token) override;
  void on_progress(const PromptProgress& progress) override;
  void on_finish(Finish finish, const Timings& timings, const Error* error) override;

  /// Waits until there is news, at most until `deadline`; false then.
  bool wait(Clock::time_point deadline);
  /// The news, for which it waits likewise; nothing at the deadline.
  std::optional<Piece> next(Clock::time_point deadline);

  /// Tokens so far. Thread: any.
  uint32_t tokens_so_far() const;
  /// As if it ended with the last token so far. Thread: any.
  Timings timings_so_far() const;
  // After the finished piece.
  Finish finish() const { return finish_; }
  const Timings& timings() const { return timings_; }
  const std::optional<Error>& error() const { return error_; }
  uint32_t token_count() const { return count_; }
  const std::string& stopped_by() const { return filter_.stopped_by(); }
  const LineFilter& lines() const { return lines_; }

 private:
  bool wait(std::unique_lock<std::mutex>& lock, Clock::time_point deadline);
  models::StreamDecoder decoder_;
  StopFilter filter_;
  LineFilter lines_;
  mutable std::mutex mutex_;
  std::condition_variable news_;
  Piece piece_;
  Finish finish_ = Finish::kError;
  Timings timings_;
  std::optional<Error> error_;
  uint32_t count_ = 0, min_tokens_ = 0;
  bool has_progress_ = false;
  PromptProgress progress_;
  Clock::time_point first_token_, last_token_;
};

}  // namespace bm::serve
