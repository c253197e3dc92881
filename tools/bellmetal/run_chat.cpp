#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "models/chat_prompt.h"
#include "tools/bellmetal/interrupt.h"
#include "tools/bellmetal/line_editor.h"
#include "tools/bellmetal/options.h"
#include "tools/bellmetal/output.h"
#include "tools/bellmetal/text_model.h"

namespace bm::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

/// The conversation: messages, and what of them the model's sequence holds.
class Conversation {
 public:
  Conversation(const ChatOptions& options, TextModel& model) : options_(options), model_(model) {}

  /// Errors have been reported; the exit code.
  int open(const SamplingPlan& plan) {
    auto chat_template = load_template();
    if (!chat_template)
      return report_file(chat_template.error(),
                         options_.template_file.empty() ? model_.path() : options_.template_file,
                         options_.model.json);
    template_.emplace(std::move(*chat_template));
    if (!options_.variables.empty()) {
      variables_ = Json::parse(options_.variables, nullptr, false);
      if (!variables_.is_object())
        return report(Error{Code::kInvalidArgument,
                            fmt::format("--chat-template-kwargs \"{}\" is no JSON object",
                                        options_.variables)},
                      kUsage, options_.model.json);
    }
    if (model_.session().has_encoder())
      return report(Error{Code::kUnsupported,
                          "this model reads a text and writes another; it holds no conversation "
                          "(`bellmetal generate` runs it)"},
                    options_.model.json);
    answerer_.emplace(model_, options_.sampling, plan);
    clear();
    return kOk;
  }

  void clear() {
    messages_ = Json::array();
    if (!options_.system.empty())
      messages_.push_back({{"role", "system"}, {"content", options_.system}});
    context_.reset();
    turn_ = 0;
  }

  struct Turn {
    Answer answer;
    size_t cached = 0;  ///< tokens of the prompt that were computed before
    uint32_t number = 0;
  };
  /// One message and its answer. After an error the message is forgotten, and what the sequence
  /// holds is computed anew.
  Result<Turn> say(const std::string& message,
                   const std::function<Status(const std::string&)>& show) {
    const auto start = std::chrono::steady_clock::now();
    messages_.push_back({{"role", "user"}, {"content", message}});
    auto turn = take_turn(start, show);
    if (!turn) {
      messages_.erase(messages_.size() - 1);
    } else if (!turn->answer.is_prompt_done) {
      messages_.erase(messages_.size() - 1);
      context_.reset();
    } else {
      messages_.push_back({{"role", "assistant"}, {"content", turn->answer.text}});
    }
    return turn;
  }

  Json json_of(const Turn& turn) const {
    const Answer& a = turn.answer;
    Json json = {{"turn", turn.number},
                 {"text", a.text},
                 {"tokens", a.tokens},
                 {"prompt_tokens", turn.cached + a.prefilled},
                 {"cached_tokens", turn.cached},
                 {"prefilled_tokens", a.prefilled},
                 {"prefill_tokens_per_s", a.prefill_rate()},
                 {"decode_tokens_per_s", a.decode_rate()},
                 {"time_to_first_token_ms", a.first_token_s * 1e3},
                 {"device", model_.device()},
                 {"finish_reason", a.finish_reason}};
    if (options_.sampling.logprobs) json["logprobs"] = cli::json_of(a.logprobs, model_.tokenizer());
    return json;
  }

  std::string statistics(const Turn& turn) const {
    const Answer& a = turn.answer;
    return fmt::format(
        "{}prefill {} new of {} tokens at {:.1f} tokens/s, decode {} tokens at {:.1f} tokens/s, "
        "first token after {:.0f} ms, context {} of {}, {}\n",
        a.finish_reason == "context_full" ? "context full; " : "", a.prefilled,
        turn.cached + a.prefilled, a.prefill_rate(), a.tokens.size(), a.decode_rate(),
        a.first_token_s * 1e3, model_.session().position(), context_size(), model_.device());
  }

 private:
  uint32_t context_size() const { return model_.session().position() + model_.session().room(); }

  Result<models::ChatTemplate> load_template() const {
    if (!options_.template_file.empty())
      return models::ChatTemplate::parse(BM_TRY(read_text(options_.template_file)));
    const auto text = model_.file().get_string("tokenizer.chat_template");
    if (text) return models::ChatTemplate::parse(*text);
    return fail(Code::kInvalidArgument,
                "the model has no chat template (tokenizer.chat_template): it may not have been "
                "trained to talk; --chat-template FILE gives one, `bellmetal generate` continues "
                "a text without");
  }

  Result<Turn> take_turn(std::chrono::steady_clock::time_point start,
                         const std::function<Status(const std::string&)>& show) {
    models::ChatInput input;
    input.messages = &messages_;
    if (variables_.is_object()) input.variables = &variables_;
    const std::time_t now = std::time(nullptr);
    ::localtime_r(&now, &input.now);
    const models::ChatPrompt prompt =
        BM_TRY(models::render_chat(*template_, input, model_.tokenizer()));
    const models::ChatFeed feed = BM_TRY(context_.plan(prompt, model_.tokenizer()));
    if (feed.tokens.empty())
      return fail(Code::kInvalidArgument, "the chat template gives an empty prompt");
    models::LlamaSession& session = model_.session();
    const uint32_t size = context_size();
    const size_t held = feed.is_fresh ? 0 : session.position();
    // One place is left for an answer.
    if (held + feed.tokens.size() >= size)
      return fail(Code::kInvalidArgument,
                  "the conversation with this message has {} tokens, {} of them new; the context "
                  "has {}: at most {} new ones fit and leave room for an answer. Shorten the "
                  "message, start anew (/clear), or ask for a longer context (--ctx-size)",
                  held + feed.tokens.size(), feed.tokens.size(), size,
                  size - 1 - std::min<size_t>(held, size - 1));
    if (feed.is_fresh) session.reset();
    context_.prompt_done(prompt);
    auto answer = answerer_->answer(feed.tokens, start, show);
    if (!answer) {
      context_.reset();
      return tl::unexpected(std::move(answer.error()));
    }
    context_.answer_done(answer->text, answer->not_fed, answer->finish_reason != "stop_string");
    return Turn{.answer = std::move(*answer), .cached = held, .number = ++turn_};
  }

  const ChatOptions& options_;
  TextModel& model_;
  std::optional<models::ChatTemplate> template_;
  std::optional<Answerer> answerer_;
  Json messages_, variables_;
  models::ChatContext context_;
  uint32_t turn_ = 0;
};

/// Answers on stdout as text or as JSON lines, the rest on stderr.
class ChatLoop {
 public:
  ChatLoop(const ChatOptions& options, Conversation& conversation)
      : options_(options), conversation_(conversation), as_json_(options.model.json) {}

  /// A message per line, or all of stdin as one.
  int run_pipe() {
    if (options_.is_whole_input) {
      auto text = read_text("-");
      if (is_interrupted()) return kInterrupted;
      if (!text) return report(text.error());
      if (trimmed(*text).empty()) return kOk;
      if (text->ends_with('\n')) text->pop_back();
      return answer(*text);
    }
    char* line = nullptr;
    size_t capacity = 0;
    int code = kOk;
    for (ssize_t length = 0; code == kOk && (length = ::getline(&line, &capacity, stdin)) >= 0;) {
      const std::string message(trimmed({line, static_cast<size_t>(length)}));
      if (!message.empty()) code = answer(message);
    }
    std::free(line);
    return is_interrupted() ? kInterrupted : code;
  }

  int run_terminal() {
    LineEditor editor;
    print_error(dimmed("/help tells what else there is; Ctrl-D leaves\n"));
    bool is_leaving = false;  // after one Ctrl-C, until there is a message
    while (true) {
      std::string message;
      const LineEditor::Event event = read_message(editor, message);
      if (event == LineEditor::Event::kEnd) {
        print_error("\n");
        return kOk;
      }
      if (event == LineEditor::Event::kInterrupted) {
        clear_interrupt();
        print_error("\n");
        if (is_leaving) return kInterrupted;
        is_leaving = true;
        print_error(dimmed("Ctrl-C again leaves, as Ctrl-D does\n"));
        continue;
      }
      if (trimmed(message).empty()) continue;
      is_leaving = false;
      editor.remember(message);
      if (message == "/exit" || message == "/quit") return kOk;
      if (is_command(message)) continue;
      const int code = answer(message);
      if (is_interrupted()) {
        clear_interrupt();
        is_leaving = true;
        print_error(dimmed("stopped; Ctrl-C again leaves\n"));
      } else if (code != kOk && code != kFailure && code != kUsage) {
        return code;  // the device is gone, or stdout is
      }
    }
  }

 private:
  std::string dimmed(std::string_view text) const {
    return styled(text, Style::kDim, has_color(stderr));
  }

  int report(const Error& error) const {
    if (!as_json_) return cli::report(error, false);
    print_line({{"error", cli::json_of(error)}});
    return exit_code(error.code);
  }

  static void print_line(const Json& json) {
    const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  int answer(const std::string& message) {
    bool ends_line = true;
    const auto turn = conversation_.say(message, [&](const std::string& piece) {
      if (as_json_) return Status();
      ends_line = piece.ends_with('\n');
      return write_text(piece);
    });
    if (!as_json_ && (!ends_line || (turn && turn->answer.text.empty())))
      if (const Status written = write_text("\n"); !written) return report(written.error());
    if (!turn) return report(turn.error());
    if (as_json_) print_line(conversation_.json_of(*turn));
    print_error(dimmed(conversation_.statistics(*turn)));
    if (std::ferror(stdout) != 0) return kBadFile;
    return turn->answer.finish_reason == "interrupted" ? kInterrupted : kOk;
  }

  bool is_command(const std::string& message) {
    if (message == "/clear") {
      conversation_.clear();
      print_error(dimmed("the conversation starts anew\n"));
      return true;
    }
    if (message != "/help") return false;
    print_error(
        "/clear    forget the conversation\n"
        "/exit     leave, as Ctrl-D does\n"
        "\"\"\"       begins a message of several lines, and ends it\n"
        "\\         at the end of a line: the message goes on\n"
        "Ctrl-C    stops an answer; a second one leaves\n");
    return true;
  }

  /// One line, or several: between """ and """, or while lines end with a backslash.
  static LineEditor::Event read_message(LineEditor& editor, std::string& message) {
    constexpr std::string_view kQuotes = "\"\"\"";
    std::string line;
    LineEditor::Event event = editor.read("> ", line);
    if (event != LineEditor::Event::kLine) return event;
    bool is_quoted = line.starts_with(kQuotes);
    if (is_quoted) line.erase(0, kQuotes.size());
    while (true) {
      if (is_quoted && line.ends_with(kQuotes)) {
        message += line.substr(0, line.size() - kQuotes.size());
        return event;
      }
      const bool goes_on = !is_quoted && line.ends_with('\\');
      message += goes_on ? line.substr(0, line.size() - 1) : line;
      if (!goes_on && !is_quoted) return event;
      message += '\n';
      event = editor.read(". ", line);
      if (event != LineEditor::Event::kLine) return event;
    }
  }

  const ChatOptions& options_;
  Conversation& conversation_;
  bool as_json_;
};

}  // namespace

int run_chat(const ChatOptions& options) {
  const auto model_settings = ModelSettings::apply(options.model);
  if (!model_settings)
    return report_file(model_settings.error(), options.model.bundle, options.model.json);
  auto plan = plan_sampling(options.sampling);
  if (!plan) return report(plan.error(), options.model.json);
  const bool is_terminal = ::isatty(STDIN_FILENO) != 0 && ::isatty(STDERR_FILENO) != 0;
  TextModel model;
  Conversation conversation(options, model);
  {
    // Until there is somebody to talk to, Ctrl-C ends the program as it ends others.
    InterruptScope interrupt;
    if (const int code = model.open(options.model); code != kOk) return code;
    if (const Status known = finish_plan(options.sampling, model, &*plan); !known)
      return report(known.error(), options.model.json);
    if (const int code = conversation.open(*plan); code != kOk) return code;
    ChatLoop loop(options, conversation);
    if (is_interrupted()) return kInterrupted;
    if (!is_terminal || options.is_whole_input) return loop.run_pipe();
  }
  InterruptScope interrupt(OnInterrupt::kAskOnly);
  return ChatLoop(options, conversation).run_terminal();
}

}  // namespace bm::cli
