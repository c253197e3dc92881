#pragma once
// Fields of a request, each taken once and checked; and those that several requests share. For
// request.cpp and response_request.cpp.

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "serve/request.h"

namespace bm::serve {

inline tl::unexpected<ApiError> refuse(std::string_view param, std::string message,
                                       std::string code = "") {
  return tl::unexpected<ApiError>(ApiError{
      .message = std::move(message), .param = std::string(param), .code = std::move(code)});
}

/// Fields of an object, each taken once; what nobody took is unknown. The first error is kept.
class Fields {
  using Json = nlohmann::ordered_json;

 public:
  explicit Fields(const Json& object) : object_(object) {}

  /// nullptr when it is absent or null.
  const Json* find(const char* name) {
    taken_.push_back(name);
    const auto at = object_.find(name);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }

  void text(const char* name, std::string* out) {
    if (const Json* j = find(name)) {
      if (!j->is_string()) return wrong(name, "a string");
      *out = j->get<std::string>();
    }
  }

  void flag(const char* name, bool* out) {
    if (const Json* j = find(name)) {
      if (!j->is_boolean()) return wrong(name, "true or false");
      *out = j->get<bool>();
    }
  }

  template <class T>
  void number(const char* name, double low, double high, T* out) {
    if (const Json* j = find(name)) {
      const double value = j->is_number() ? j->get<double>() : std::nan("");
      if (!(value >= low && value <= high))
        return wrong(name, fmt::format("a number from {} to {}", low, high));
      *out = static_cast<float>(value);
    }
  }

  template <class T>
  void integer(const char* name, int64_t low, int64_t high, T* out) {
    if (const Json* j = find(name)) {
      const bool fits =
          j->is_number_integer() &&
          (!j->is_number_unsigned() ||
           j->get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) &&
          j->get<int64_t>() >= low && j->get<int64_t>() <= high;
      if (!fits) return wrong(name, fmt::format("a whole number from {} to {}", low, high));
      if constexpr (requires { typename T::value_type; })
        *out = static_cast<typename T::value_type>(j->get<int64_t>());
      else
        *out = static_cast<T>(j->get<int64_t>());
    }
  }

  void wrong(std::string_view name, const std::string& wanted) {
    if (!error_)
      error_ = refuse(name, fmt::format("'{}' must be {}", name, wanted), "invalid_value").value();
  }

  /// An error found by others.
  void fail(ApiError error) {
    if (!error_) error_ = std::move(error);
  }

  /// Fields that change nothing at `neutral` and cannot be had otherwise.
  void neutral(const char* name, const Json& neutral) {
    const Json* j = find(name);
    if (!j || *j == neutral || error_) return;
    if (j->is_number() && neutral.is_number() && j->get<double>() == neutral.get<double>()) return;
    if ((j->is_object() || j->is_array()) && j->empty()) return;
    error_ =
        refuse(name, fmt::format("'{}' is not supported", name), "unsupported_parameter").value();
  }

  /// Fields that are known and cannot be had: absent or null alone.
  void unsupported(std::initializer_list<const char*> names) {
    for (const char* name : names) neutral(name, Json());
  }

  void ignore(std::initializer_list<const char*> names) {
    taken_.insert(taken_.end(), names.begin(), names.end());
  }

  std::optional<ApiError> finish() {
    if (error_) return error_;
    for (const auto& [name, value] : object_.items())
      if (std::ranges::find(taken_, name) == taken_.end())
        return refuse(name, fmt::format("unrecognized request argument: '{}'", name),
                      "unknown_parameter")
            .value();
    return std::nullopt;
  }

 private:
  const Json& object_;
  std::vector<std::string_view> taken_;
  std::optional<ApiError> error_;
};

/// How tokens are chosen, when the text ends, and when the request goes; llama-server's fields for
/// it among them.
void take_sampling(Fields& f, const RequestLimits& limits, GenerationRequest* r);
/// `format`, which stands in `name`: {"type": …} with a schema where it has one.
void take_format(Fields& f, const std::string& name, const nlohmann::ordered_json& format,
                 GenerationRequest* r);
/// Texts or lists of tokens, one or several: those of `name`.
void take_texts(Fields& f, const char* name, uint32_t limit, std::vector<std::string>* texts,
                std::vector<std::vector<int32_t>>* token_lists);
/// tools, tool_choice and parallel_tool_calls.
void take_tools(Fields& f, const RequestLimits& limits, GenerationRequest* r);
/// `effort`, which stands in `name`, as a variable of the template, as vLLM has it; "none" also
/// says so to templates that know whether, not how much. What chat_template_kwargs say goes first.
void take_effort(Fields& f, const std::string& name, const nlohmann::ordered_json& effort,
                 GenerationRequest* r);
/// Texts that end the answer, in `stop`.
void take_stop(Fields& f, const RequestLimits& limits, GenerationRequest* r);
void take_limit(Fields& f, const char* name, uint32_t least, std::optional<uint32_t>* out);
/// How many tokens at most, of the last of `names` that is there; −1: as many as there is room
/// for. n_predict, which llama-server knows everywhere, goes before all.
void take_predict(Fields& f, std::initializer_list<const char*> names, uint32_t least,
                  GenerationRequest* r);
/// What llama-server knows beyond OpenAI's and vLLM's fields, wherever text is generated.
void take_llama_fields(Fields& f, const RequestLimits& limits, GenerationRequest* r);
/// Its order of samplers where a request has none, and their names.
std::vector<models::SamplerStep> llama_steps();
std::string_view step_name(models::SamplerStep step);
/// Names that llama-server does not know either and its clients send for other servers.
void ignore_strangers(Fields& f);
/// min_tokens against max_tokens.
void check_least(Fields& f, const GenerationRequest& r);

}  // namespace bm::serve
