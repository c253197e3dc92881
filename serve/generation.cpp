#include "serve/generation.h"

#include <algorithm>

namespace bm::serve {

std::string StopFilter::push(std::string_view text) {
  if (is_stopped()) return {};
  held_ += text;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_)
    if (const size_t at = held_.find(stop); at < first) {
      first = at;
      stopped_by_ = stop;
    }
  if (first != std::string::npos) {
    held_.resize(first);
    return std::exchange(held_, {});
  }
  size_t keep = 0;
  for (const std::string& stop : stops_)
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n)
      if (held_.ends_with(std::string_view(stop).substr(0, n))) keep = n;
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopFilter::finish() { return std::exchange(held_, {}); }

std::string LineFilter::push(std::string text, Clock::time_point now) {
  if (is_stopped_) return {};
  if (!begin_) begin_ = now;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_indent_ && (c == ' ' || c == '\t')) {
      ++indent_;
      continue;
    }
    if (is_indent_ && indent_ < limits_.indent) {
      is_stopped_ = true;
      text.resize(i);
      return text;
    }
    is_indent_ = c == '\n';
    indent_ = 0;
    has_new_line_ = has_new_line_ || is_indent_;
    is_stopped_ =
        is_stopped_ || (is_indent_ && limits_.time.count() > 0 && now - *begin_ > limits_.time);
  }
  return text;
}

Generation::Generation(const models::Tokenizer& tokenizer, std::vector<std::string> stops,
                       bool has_control, uint32_t min_tokens, LineLimits lines, bool has_progress)
    : decoder_(tokenizer, has_control),
      filter_(std::move(stops)),
      lines_(lines),
      min_tokens_(min_tokens),
      has_progress_(has_progress) {}

bool Generation::on_token(const ChosenToken& token) {
  std::string text = decoder_.push(token.id);
  // The scheduler's thread alone counts.
  if (count_ >= min_tokens_) text = filter_.push(text);
  const Clock::time_point now = Clock::now();
  text = lines_.push(std::move(text), now);
  const std::lock_guard lock(mutex_);
  if (count_ == 0) first_token_ = now;
  last_token_ = now;
  ++count_;
  piece_.text += text;
  piece_.tokens.push_back(token);
  news_.notify_one();
  return !filter_.is_stopped() && !lines_.is_stopped();
}

void Generation::on_prompt_token(const ChosenToken& token) {
  const std::lock_guard lock(mutex_);
  piece_.prompt.push_back(token);
}

void Generation::on_progress(const PromptProgress& progress) {
  const std::lock_guard lock(mutex_);
  progress_ = progress;
  if (!has_progress_) return;
  piece_.progress.push_back(progress);
  news_.notify_one();
}

Timings Generation::timings_so_far() const {
  const std::lock_guard lock(mutex_);
  return {.queue = 0,
          .prompt = progress_.seconds,
          .decode = std::chrono::duration<double>(last_token_ - first_token_).count(),
          .cached_tokens = progress_.cached};
}

void Generation::on_finish(Finish finish, const Timings& timings, const Error* error) {
  const std::string rest =
      lines_.push(filter_.push(decoder_.finish()) + filter_.finish(), Clock::now());
  const std::lock_guard lock(mutex_);
  piece_.text += rest;
  piece_.is_finished = true;
  finish_ = finish;
  timings_ = timings;
  if (error) error_ = *error;
  news_.notify_one();
}

uint32_t Generation::tokens_so_far() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

bool Generation::wait(std::unique_lock<std::mutex>& lock, Clock::time_point deadline) {
  const auto has_news = [&] {
    return piece_.is_finished || !piece_.text.empty() || !piece_.tokens.empty() ||
           !piece_.progress.empty();
  };
  return has_news() || news_.wait_until(lock, deadline, has_news);
}

bool Generation::wait(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return wait(lock, deadline);
}

std::optional<Piece> Generation::next(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  if (!wait(lock, deadline)) return std::nullopt;
  const bool is_finished = piece_.is_finished;
  Piece out = std::exchange(piece_, {});
  piece_.is_finished = is_finished;
  return out;
}

}  // namespace bm::serve
