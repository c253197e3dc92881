#include <gtest/gtest.h>

#include "serve/generation.h"
#include "serve/request.h"

namespace bm::serve {
namespace {

ApiError error_of_chat(std::string_view body) {
  const auto r = parse_chat(body);
  if (r) throw std::runtime_error("accepted: " + std::string(body));
  return r.error();
}

TEST(Request, AChatHasOpenAisFieldsAndDefaults) {
  const auto r = parse_chat(
      R"({"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],
          "max_completion_tokens":7,"stop":["x","y"],"seed":-1,"logprobs":true,"top_logprobs":3,"n":2,
          "stream":true,"stream_options":{"include_usage":true},"user":"somebody","presence_penalty":0.0})");
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(r->messages[0]["content"], "ab");
  EXPECT_EQ(r->max_tokens, 7u);
  EXPECT_EQ(r->stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_FALSE(r->seed) << "-1 is drawn";
  EXPECT_EQ(r->top_logprobs, 3u);
  EXPECT_EQ(r->n, 2u);
  EXPECT_TRUE(r->is_stream && r->has_stream_usage);
  EXPECT_FALSE(r->temperature || r->top_p || r->top_k);  // the model's file has a say
  const auto plain = parse_completion(R"({"prompt":"a"})");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->max_tokens, 16u);
  EXPECT_FALSE(plain->top_logprobs || plain->seed || plain->is_stream);
}

TEST(Request, FieldsThatCannotBeHadMayBeNull) {
  const auto r = parse_chat(
      R"({"messages":[{"role":"user","content":"a"}],"functions":null,"function_call":null,
          "audio":null,"prediction":null,"reasoning_effort":null,"verbosity":null,
          "web_search_options":null,"prompt_cache_retention":"24h","stream":true,
          "stream_options":{"include_obfuscation":false}})");
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_FALSE(r->has_stream_usage);
}

TEST(Request, ARefusalIsWhatAnAssistantSaid) {
  const auto r = parse_chat(
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[
          {"type":"refusal","refusal":"No."}]}],"verbosity":"medium","min_tokens":3})");
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(r->messages[1]["content"], "No.");
  EXPECT_EQ(r->min_tokens, 3u);
}

TEST(Request, AnAnswerWithoutContentHasNull) {
  const auto r = parse_chat(
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[]}]})");
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_TRUE(r->messages[1].at("content").is_null());
}

TEST(Request, WhatIsWrongIsNamed) {
  const struct {
    const char *body, *param, *code;
  } rows[] = {
      {R"({"messages":[{"role":"user","content":null}]})", "messages[0].content", "invalid_value"},
      {R"({"messages":[{"role":"tool","tool_call_id":"a"}]})", "messages[0].content",
       "invalid_value"},
      {R"({"messages":[{"role":"user","content":"a"}],"functions":[{"name":"f"}]})", "functions",
       "unsupported_parameter"},
      {R"({"messages":[{"role":"user","content":"a"}],"reasoning_effort":"much"})",
       "reasoning_effort", "invalid_value"},
      {R"({"messages":[{"role":"user","content":"a"}],"max_tokens":0})", "max_tokens",
       "invalid_value"},
      {R"({"messages":[{"role":"user","content":"a"}],"stream":true,
           "stream_options":{"include_obfuscation":true}})",
       "stream_options", "invalid_value"},
      {R"({"messages":[]})", "messages", "invalid_value"},
      {R"({})", "messages", "invalid_value"},
      {R"({"messages":[{"content":"a"}]})", "messages[0]", "invalid_value"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})", "messages[0].content",
       "invalid_value"},
      {R"({"messages":[{"role":"user","content":"a"}],"temperature":2.5})", "temperature",
       "invalid_value"},
      {R"({"messages":[{"role":"user","content":"a"}],"temperature":"1"})", "temperature",
       "invalid_value"},
      {R"({"messages":[{"role":"user","content":"a"}],"n":0})", "n", "invalid_value"},
      {R"({"messages":[{"role":"user","content":"a"}],"n":1.5})", "n", "invalid_value"},
      {R"({"messages":[{"role":"user","content":"a"}],"max_tokens":18446744073709551615})",
       "max_tokens", "invalid_value"},
      {R"({"messages":[{"role":"user","content":"a"}],"max_tokens":-3})", "max_tokens",
       "invalid_value"},
      {R"({"messages":[{"role":"user","content":"a"}],"stop":[""]})", "stop", "invalid_value"},
      {R"({"messages":[{"role":"user","content":"a"}],"top_logprobs":1})", "top_logprobs",
       "invalid_value"},
      {R"({"messages":[{"role":"user","content":"a"}],"stream_options":{}})", "stream_options",
       "invalid_value"},
      {R"({"messages":[{"role":"user","content":"a"}],"frequency_penalty":3})", "frequency_penalty",
       "invalid_value"},
      {R"({"messages":[{"role":"user","content":"a"}],"logit_bias":{"":1}})", "logit_bias",
       "invalid_value"},
      {R"({"messages":[{"role":"user","content":"a"}],"verbosity":"low"})", "verbosity",
       "unsupported_parameter"},
      {R"({"messages":[{"role":"user","content":"a"}],"min_tokens":3,"max_tokens":2})",
       "min_tokens", "invalid_value"},
      {R"({"messages":[{"role":"user","content":"a"}],"modalities":["audio"]})", "modalities",
       "unsupported_parameter"},
      {R"({"messages":[{"role":"user","content":"a"}],"response_format":{"type":"xml"}})",
       "response_format", "invalid_value"},
      {R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function"}]})", "tools[0]",
       "invalid_value"},
      {R"({"messages":[{"role":"user","content":"a"}],"tool_choice":"required"})", "tool_choice",
       "invalid_value"},
      {R"({"messages":[{"role":"user","content":"a"}],"tempreature":1})", "tempreature",
       "unknown_parameter"},
  };
  for (const auto& row : rows) {
    const ApiError e = error_of_chat(row.body);
    EXPECT_EQ(e.status, 400) << row.body;
    EXPECT_EQ(e.param, row.param) << row.body;
    EXPECT_EQ(e.code, row.code) << row.body;
    EXPECT_FALSE(e.message.empty());
  }
}

TEST(Request, SamplersAreNamedAsLlamaServerDoes) {
  const auto r = parse_completion(
      R"({"prompt":"a","xtc_probability":0.5,"xtc_threshold":0.2,"dry_multiplier":0.8,"dry_base":2,
          "dry_allowed_length":3,"dry_penalty_last_n":64,"dry_sequence_breakers":["\n","END"],
          "dynatemp_range":0.5,"dynatemp_exponent":1.5,"top_n_sigma":1,"typical_p":0.9})");
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(r->xtc_probability, 0.5F);
  EXPECT_EQ(r->xtc_threshold, 0.2F);
  EXPECT_EQ(r->dry.multiplier, 0.8F);
  EXPECT_EQ(r->dry.base, 2.0F);
  EXPECT_EQ(r->dry.allowed_length, 3u);
  EXPECT_EQ(r->dry.last_n, 64u);
  EXPECT_EQ(r->dry_breakers, (std::vector<std::string>{"\n", "END"}));
  EXPECT_EQ(r->dynatemp_range, 0.5F);
  EXPECT_EQ(r->dynatemp_exponent, 1.5F);
  EXPECT_EQ(r->top_n_sigma, 1.0F);
  EXPECT_EQ(r->typical_p, 0.9F);
  const auto plain = parse_completion(R"({"prompt":"a","top_n_sigma":-1,"dry_penalty_last_n":-1})");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->top_n_sigma, 0.0F);
  EXPECT_EQ(plain->dry.last_n, UINT32_MAX);
  EXPECT_EQ(plain->dry_breakers.size(), 4u);
  EXPECT_FALSE(plain->xtc_probability || plain->xtc_threshold);
  const std::pair<const char*, const char*> wrong[] = {{"xtc_probability", "1.5"},
                                                       {"xtc_threshold", "-0.1"},
                                                       {"dry_multiplier", "-1"},
                                                       {"dry_base", "0.5"},
                                                       {"dry_allowed_length", "-1"},
                                                       {"dry_penalty_last_n", "-2"},
                                                       {"dry_sequence_breakers", "\"a\""},
                                                       {"dry_sequence_breakers", "[\"\"]"},
                                                       {"dynatemp_range", "3"},
                                                       {"top_n_sigma", "-2"}};
  for (const auto& [name, value] : wrong) {
    const auto bad =
        parse_completion(std::string(R"({"prompt":"a",")") + name + "\":" + value + "}");
    ASSERT_FALSE(bad) << name;
    EXPECT_EQ(bad.error().param, name);
  }
}

TEST(Request, ACompletionMayHaveASuffix) {
  EXPECT_EQ(parse_completion(R"({"prompt":"a","suffix":"b"})")->suffix, "b");
  EXPECT_EQ(parse_completion(R"({"prompt":"a","suffix":null})")->suffix, "");
  EXPECT_EQ(parse_completion(R"({"prompt":"a","suffix":1})").error().param, "suffix");
  EXPECT_EQ(parse_completion(R"({"prompt":"a","suffix":"b","echo":true})").error().param, "echo");
}

TEST(Request, AnEffortIsAVariableOfTheTemplate) {
  const auto variables = [](std::string_view more) {
    const auto r =
        parse_chat(R"({"messages":[{"role":"user","content":"a"}],)" + std::string(more) + "}");
    return r ? r->template_variables.dump() : r.error().message;
  };
  EXPECT_EQ(variables(R"("reasoning_effort":"low")"), R"({"reasoning_effort":"low"})");
  EXPECT_EQ(variables(R"("reasoning_effort":"none","chat_template_kwargs":{"x":1})"),
            R"({"reasoning_effort":"none","enable_thinking":false,"x":1})");
  EXPECT_EQ(
      variables(R"("reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":true})"),
      R"({"reasoning_effort":"none","enable_thinking":true})");
}

TEST(Request, ItemsOfAResponseAreMessagesOfAChat) {
  const auto r = parse_response(R"({"model":"m","instructions":"be brief","max_output_tokens":9,
      "input":[{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
               {"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
               {"type":"message","role":"assistant","content":[{"type":"output_text","text":"yes"}]},
               {"type":"function_call","id":"fc_1","call_id":"c1","name":"f","arguments":"{}","status":"completed"},
               {"type":"function_call","call_id":"c2","name":"g","arguments":"{\"x\":1}"},
               {"type":"function_call_output","call_id":"c1","output":"one"},
               {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"two"}]},
               {"type":"message","role":"assistant","content":"so"},
               {"type":"reasoning","summary":[{"type":"summary_text","text":"next"}]},
               {"type":"function_call","call_id":"c3","name":"f","arguments":"{}"}],
      "tools":[{"type":"function","name":"f","parameters":{"type":"object"},"strict":null},
               {"type":"function","name":"g","description":"d"}],
      "tool_choice":{"type":"function","name":"g"},"reasoning":{"effort":"none","summary":"auto"},
      "text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"},"strict":true}},
      "metadata":{"k":"v"},"temperature":0.5,"store":false,"previous_response_id":null,
      "background":false,"truncation":"disabled","include":["reasoning.encrypted_content"]})");
  ASSERT_TRUE(r) << r.error().message;
  const auto messages = nlohmann::ordered_json::parse(R"([
      {"role":"system","content":"be brief"},
      {"role":"user","content":"ab"},
      {"role":"assistant","content":"yes","reasoning_content":"hm","tool_calls":[
        {"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}},
        {"id":"c2","type":"function","function":{"name":"g","arguments":"{\"x\":1}"}}]},
      {"role":"tool","tool_call_id":"c1","content":"one"},
      {"role":"tool","tool_call_id":"c2","content":"two"},
      {"role":"assistant","content":"so"},
      {"role":"assistant","content":null,"reasoning_content":"next","tool_calls":[
        {"id":"c3","type":"function","function":{"name":"f","arguments":"{}"}}]}])");
  EXPECT_TRUE(nlohmann::json(r->messages) == nlohmann::json(messages)) << r->messages.dump(1);
  EXPECT_EQ(r->tools.dump(),
            R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}},)"
            R"({"type":"function","function":{"name":"g","description":"d"}}])");
  EXPECT_TRUE(r->is_chat && r->is_response);
  EXPECT_EQ(r->tool_choice, ToolChoice::kNamed);
  EXPECT_EQ(r->tool_name, "g");
  EXPECT_EQ(r->max_tokens, 9u);
  EXPECT_EQ(r->schema.dump(), R"({"type":"object"})");
  EXPECT_EQ(r->template_variables.dump(), R"({"reasoning_effort":"none","enable_thinking":false})");
  EXPECT_EQ(r->response_fields["metadata"].dump(), R"({"k":"v"})");
  EXPECT_EQ(r->response_fields["reasoning"].dump(), R"({"effort":"none","summary":null})");
  const auto text = parse_response(R"({"input":"a"})");
  ASSERT_TRUE(text);
  EXPECT_EQ(text->messages.dump(), R"([{"role":"user","content":"a"}])");
  EXPECT_FALSE(text->max_tokens || text->top_logprobs);
}

TEST(Request, WhatIsWrongInAResponseIsNamed) {
  const struct {
    const char *fields, *param, *code;
  } rows[] = {
      {R"("model":"m")", "input", "invalid_value"},
      {R"("input":[])", "input", "invalid_value"},
      {R"("input":"a","messages":[])", "messages", "unknown_parameter"},
      {R"("input":"a","store":true)", "store", "invalid_value"},
      {R"("input":"a","previous_response_id":"resp_1")", "previous_response_id", "invalid_value"},
      {R"("input":"a","background":true)", "background", "unsupported_parameter"},
      {R"("input":"a","conversation":"c")", "conversation", "unsupported_parameter"},
      {R"("input":"a","prompt":{"id":"p"})", "prompt", "unsupported_parameter"},
      {R"("input":"a","truncation":"auto")", "truncation", "unsupported_parameter"},
      {R"("input":"a","tools":[{"type":"web_search"}])", "tools[0].type", "invalid_value"},
      {R"("input":"a","tools":[{"type":"function"}])", "tools[0]", "invalid_value"},
      {R"("input":"a","tool_choice":{"type":"file_search"})", "tool_choice", "invalid_value"},
      {R"("input":"a","tool_choice":"required")", "tool_choice", "invalid_value"},
      {R"("input":"a","text":{"format":{"type":"xml"}})", "text.format", "invalid_value"},
      {R"("input":"a","text":{"format":{"type":"json_schema","name":"n"}})", "text.format.schema",
       "invalid_value"},
      {R"("input":"a","text":{"verbosity":"low"})", "text.verbosity", "unsupported_parameter"},
      {R"("input":"a","reasoning":{"effort":"much"})", "reasoning.effort", "invalid_value"},
      {R"("input":"a","reasoning":{"summary":"detailed"})", "reasoning.summary",
       "unsupported_parameter"},
      {R"("input":"a","include":["file_search_call.results"])", "include", "invalid_value"},
      {R"("input":"a","top_logprobs":2)", "top_logprobs", "invalid_value"},
      {R"("input":"a","metadata":{"k":1})", "metadata", "invalid_value"},
      {R"("input":"a","max_output_tokens":0)", "max_output_tokens", "invalid_value"},
      {R"("input":[{"role":"user","content":[{"type":"input_image","image_url":"u"}]}])",
       "input[0].content", "invalid_value"},
      {R"("input":[{"role":"tool","content":"a"}])", "input[0].role", "invalid_value"},
      {R"("input":[{"type":"item_reference","id":"i"}])", "input[0]", "invalid_value"},
      {R"("input":[{"type":"web_search_call"}])", "input[0].type", "invalid_value"},
      {R"("input":[{"type":"function_call","call_id":"c","name":"f"}])", "input[0].arguments",
       "invalid_value"},
      {R"("input":[{"type":"reasoning","encrypted_content":"x"}])", "input[0].encrypted_content",
       "invalid_value"},
  };
  for (const auto& row : rows) {
    const auto r = parse_response("{" + std::string(row.fields) + "}");
    ASSERT_FALSE(r) << row.fields;
    EXPECT_EQ(r.error().status, 400) << row.fields;
    EXPECT_EQ(r.error().param, row.param) << row.fields;
    EXPECT_EQ(r.error().code, row.code) << row.fields;
    EXPECT_FALSE(r.error().message.empty());
  }
}

TEST(Request, ToolsThatAreNotAllowedAreNotThere) {
  const auto chat = [](std::string_view choice) {
    return parse_chat(R"({"messages":[{"role":"user","content":"a"}],"tools":[
        {"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}},
        {"type":"function","function":{"name":"h"}}],"tool_choice":)" +
                      std::string(choice) + "}");
  };
  const auto required = chat(R"({"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[
      {"type":"function","function":{"name":"h"}},{"type":"function","function":{"name":"f"}}]}})");
  ASSERT_TRUE(required) << required.error().message;
  EXPECT_EQ(required->tool_choice, ToolChoice::kRequired);
  ASSERT_EQ(required->tools.size(), 2u);
  EXPECT_EQ(required->tools[0]["function"]["name"], "f");
  EXPECT_EQ(required->tools[1]["function"]["name"], "h");
  const auto free =
      chat(R"({"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"g"}]})");
  ASSERT_TRUE(free) << free.error().message;
  EXPECT_EQ(free->tool_choice, ToolChoice::kAuto);
  ASSERT_EQ(free->tools.size(), 1u);
  EXPECT_EQ(free->tools[0]["function"]["name"], "g");
  for (const char* bad :
       {R"({"type":"allowed_tools"})", R"({"type":"allowed_tools","allowed_tools":7})",
        R"({"type":"allowed_tools","mode":"none","tools":[{"name":"g"}]})",
        R"({"type":"allowed_tools","mode":"auto","tools":[]})",
        R"({"type":"allowed_tools","mode":"auto","tools":["g"]})",
        R"({"type":"allowed_tools","mode":"auto","tools":[{"name":"unknown"}]})"}) {
    const auto r = chat(bad);
    ASSERT_FALSE(r) << bad;
    EXPECT_EQ(r.error().param, "tool_choice.allowed_tools");
  }
  EXPECT_FALSE(parse_chat(R"({"messages":[{"role":"user","content":"a"}],
      "tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"name":"g"}]}})"));
}

TEST(Request, CompletionsCanScoreAndChoose) {
  const auto r = parse_completion(R"({"prompt":"a","max_tokens":0,"echo":true,"logprobs":2})");
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_TRUE(r->max_tokens == 0u && r->has_echo && r->top_logprobs == 2u && r->best_of == 1);
  const auto best = parse_completion(R"({"prompt":["a","b"],"n":2,"best_of":5})");
  ASSERT_TRUE(best) << best.error().message;
  EXPECT_TRUE(best->n == 2 && best->best_of == 5);
  for (const char* bad :
       {R"({"prompt":"a","n":3,"best_of":2})", R"({"prompt":"a","best_of":2,"stream":true})",
        R"({"prompt":["a","b"],"best_of":65})", R"({"prompt":"a","min_tokens":17})",
        R"({"prompt":"a","echo":1})"})
    EXPECT_FALSE(parse_completion(bad)) << bad;
  EXPECT_TRUE(parse_completion(R"({"prompt":"a","n":2,"best_of":2,"stream":true})"));
}

TEST(Request, PromptsAreTextsOrTokens) {
  EXPECT_EQ(parse_completion(R"({"prompt":["a","b"]})")->texts.size(), 2u);
  EXPECT_EQ(parse_completion(R"({"prompt":[1,2]})")->token_lists[0], (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(parse_completion(R"({"prompt":[[1,2],[3]]})")->token_lists.size(), 2u);
  for (const char* bad : {R"({"prompt":[]})", R"({"prompt":[1,"a"]})", R"({"prompt":["a",[1]]})",
                          R"({"prompt":[-1]})", R"({"prompt":[3000000000]})", R"({"prompt":7})",
                          R"({"prompt":[[]]})", R"({"prompt":["a","b"],"n":65})"})
    EXPECT_FALSE(parse_completion(bad)) << bad;
}

TEST(Request, NestingIsBounded) {
  const std::string deep(100'000, '[');
  EXPECT_FALSE(parse_body(deep));
  const auto nested = [](size_t n) {
    return "{\"a\":" + std::string(n, '[') + std::string(n, ']') + "}";
  };
  EXPECT_TRUE(parse_body(nested(63)));
  EXPECT_FALSE(parse_body(nested(64)));
  EXPECT_TRUE(parse_body(R"({"a":"[[[[\"[["})"));
  EXPECT_FALSE(parse_body("{\"a\":\"\xff\"}"));
  EXPECT_FALSE(parse_body(""));
  EXPECT_FALSE(parse_body("[]"));
}

TEST(Request, ErrorsAreInOpenAisForm) {
  const auto j = nlohmann::json::parse(error_body({.message = "bad \"x\"\xff", .param = "n"}));
  EXPECT_EQ(j["error"]["type"], "invalid_request_error");
  EXPECT_EQ(j["error"]["param"], "n");
  EXPECT_TRUE(j["error"]["code"].is_null());
}

TEST(StopFilter, CutsAtTheFirstStopTextHoweverItArrives) {
  const std::string text = "one two END three";
  for (size_t step = 1; step <= text.size(); ++step) {
    StopFilter filter({"END", "three"});
    std::string out;
    for (size_t i = 0; i < text.size(); i += step) out += filter.push(text.substr(i, step));
    EXPECT_TRUE(filter.is_stopped());
    EXPECT_EQ(out, "one two ") << step;
  }
}

TEST(StopFilter, WithholdsOnlyWhatCouldBecomeAStopText) {
  StopFilter filter({"abab!"});
  EXPECT_EQ(filter.push("xaba"), "x");
  EXPECT_EQ(filter.push("b"), "");
  EXPECT_EQ(filter.push("ab"), "ab");
  EXPECT_EQ(filter.push("?"), "abab?");
  EXPECT_EQ(filter.push("ab"), "");
  EXPECT_EQ(filter.finish(), "ab");
  EXPECT_FALSE(filter.is_stopped());
}

TEST(LineFilter, ALineThatIsIndentedLessEndsTheText) {
  const std::string text = "x = [\n    1,\n\t   2,\n  ]\nrest";
  for (size_t step = 1; step < 8; ++step) {
    LineFilter filter({.indent = 4, .time = {}});
    std::string out;
    for (size_t i = 0; i < text.size(); i += step) out += filter.push(text.substr(i, step), {});
    EXPECT_TRUE(filter.is_stopped() && filter.has_new_line());
    EXPECT_EQ(out, "x = [\n    1,\n\t   2,\n  ") << step;
  }
}

TEST(LineFilter, ATextThatTookTooLongEndsAtItsNextLine) {
  using std::chrono::milliseconds;
  LineFilter filter({.indent = 0, .time = milliseconds(100)});
  const Clock::time_point begin{};
  EXPECT_EQ(filter.push("a\nb", begin), "a\nb");
  EXPECT_EQ(filter.push("\n", begin + milliseconds(100)), "\n");
  EXPECT_EQ(filter.push("c", begin + milliseconds(500)), "c");
  EXPECT_FALSE(filter.is_stopped());
  EXPECT_EQ(filter.push("\n", begin + milliseconds(501)), "\n");
  EXPECT_TRUE(filter.is_stopped());
  EXPECT_EQ(filter.push("d", begin + milliseconds(502)), "");
}

TEST(Request, AnInfillIsWhatEditorsSend) {
  // Of llama.vim: a suggestion, and a request that fills the cache alone.
  const auto r = parse_infill(
      R"({"input_prefix":"a\n","input_suffix":"b\n","input_extra":[{"text":"t","time":[1,2],
          "filename":"f.c"},{"text":"u"}],"prompt":"  x","n_predict":128,"stop":[],"n_indent":2,
          "top_k":40,"top_p":0.99,"stream":false,"samplers":["top_k","top_p","infill"],
          "cache_prompt":true,"t_max_prompt_ms":500,"t_max_predict_ms":1000,
          "response_fields":["content","timings/prompt_n"]})");
  ASSERT_TRUE(r) << r.error().message;
  ASSERT_TRUE(r->native && r->native->infill);
  EXPECT_EQ(r->native->infill->prefix, "a\n");
  EXPECT_EQ(r->native->infill->suffix, "b\n");
  EXPECT_EQ(r->native->infill->begun, "  x");
  ASSERT_EQ(r->native->infill->extra.size(), 2u);
  EXPECT_EQ(r->native->infill->extra[0].name, "f.c");
  EXPECT_EQ(r->native->infill->extra[1].name, "tmp");
  EXPECT_EQ(r->max_tokens, 128u);
  EXPECT_EQ(r->indent, 2u);
  EXPECT_EQ(r->predict_ms, 1000);
  using models::SamplerStep;
  EXPECT_EQ(r->steps, (std::vector{SamplerStep::kTopK, SamplerStep::kTopP, SamplerStep::kInfill}));
  EXPECT_EQ(r->native->response_fields.size(), 2u);
  const auto warm = parse_infill(
      R"({"input_prefix":"","input_suffix":"","input_extra":[],"prompt":"","n_predict":0,
          "temperature":0.0,"stream":false,"samplers":[],"cache_prompt":true,"t_max_prompt_ms":1,
          "t_max_predict_ms":1,"response_fields":[""]})");
  ASSERT_TRUE(warm) << warm.error().message;
  EXPECT_EQ(warm->max_tokens, 0u);
  EXPECT_TRUE(warm->steps && warm->steps->empty());
  const auto all = parse_native_completion(
      R"({"prompt":["a","b"],"n_predict":-1,"seed":-1,"samplers":"edkypmxt","repeat_last_n":-1})");
  ASSERT_TRUE(all) << all.error().message;
  EXPECT_FALSE(all->max_tokens || all->seed);
  EXPECT_EQ(all->steps->size(), 8u);
  EXPECT_EQ(all->repeat_window, UINT32_MAX);
}

TEST(Request, AnInfillThatIsNoneIsRefusedByName) {
  const auto param = [](const std::string& more) {
    const auto r = parse_infill(R"({"input_prefix":"a","input_suffix":"b")" + more + "}");
    return r ? std::string("accepted") : r.error().param;
  };
  EXPECT_EQ(param(""), "accepted");
  EXPECT_EQ(parse_infill(R"({"input_suffix":"b"})").error().param, "input_prefix");
  EXPECT_EQ(parse_infill(R"({"input_prefix":"b"})").error().param, "input_suffix");
  EXPECT_EQ(param(R"(,"input_extra":[{"filename":"x"}])"), "input_extra");
  EXPECT_EQ(param(R"(,"samplers":["beam"])"), "samplers");
  EXPECT_EQ(param(R"(,"samplers":"kz")"), "samplers");
  EXPECT_EQ(param(R"(,"samplers":["infill"],"grammar":"root ::= \"a\"")"), "samplers");
  EXPECT_EQ(param(R"(,"n_probs":-5)"), "n_probs");
  EXPECT_EQ(param(R"(,"mirostat":3)"), "mirostat");
  EXPECT_EQ(param(R"(,"adaptive_target":0.5)"), "adaptive_target");
  EXPECT_EQ(param(R"(,"reasoning_budget_tokens":100)"), "reasoning_budget_tokens");
  EXPECT_EQ(param(R"(,"lora":[{"id":0,"scale":0.5}])"), "lora");
  EXPECT_EQ(param(R"(,"response_fields":"content")"), "response_fields");
  EXPECT_EQ(param(R"(,"n_predicted":5)"), "n_predicted");
}

/// Of llama-server's clients, for chats, completions and its own form alike.
constexpr std::string_view kLlamaFields =
    R"("samplers":["top_k","temp","adaptive_p"],"cache_prompt":true,"id_slot":0,"n_probs":7,
       "post_sampling_probs":true,"min_keep":2,"t_max_predict_ms":500,"n_indent":3,
       "timings_per_token":true,"return_progress":true,"mirostat":2,"mirostat_tau":3.5,
       "mirostat_eta":0.25,"typ_p":0.5,"repeat_penalty":1.5,"repeat_last_n":-1,"n_predict":-1,
       "n_keep":4,"n_discard":0,"lora":[],"adaptive_target":-1,"adaptive_decay":0.9,
       "speculative.n_max":4,"xtc_probability":0.5,"dry_multiplier":0.5,"dynatemp_range":0.5,
       "ignore_eos":true,"json_schema":{"type":"object"},
       "logit_bias":[[5,false],["the",1.5],[7,-2]])";

void check_llama_fields(const GenerationRequest& r) {
  using models::SamplerStep;
  EXPECT_EQ(r.steps, (std::vector{SamplerStep::kTopK, SamplerStep::kTemperature}));
  EXPECT_EQ(r.top_logprobs, 7u);
  EXPECT_TRUE(r.has_native_logprobs && r.has_drawn_probabilities);
  EXPECT_EQ(r.min_keep, 2u);
  EXPECT_EQ(r.predict_ms, 500);
  EXPECT_EQ(r.indent, 3u);
  EXPECT_TRUE(r.has_timings_so_far && r.has_progress && r.ignores_end && r.penalizes_prompt);
  EXPECT_EQ(r.mirostat, 2u);
  EXPECT_EQ(r.mirostat_tau, 3.5F);
  EXPECT_EQ(r.mirostat_eta, 0.25F);
  EXPECT_EQ(r.typical_p, 0.5F);
  EXPECT_EQ(r.repetition_penalty, 1.5F);
  EXPECT_EQ(r.repeat_window, UINT32_MAX);
  EXPECT_FALSE(r.max_tokens);
  EXPECT_EQ(r.schema_param, "json_schema");
  EXPECT_EQ(r.schema.dump(), R"({"type":"object"})");
  ASSERT_EQ(r.logit_bias.size(), 2u);
  EXPECT_EQ(r.logit_bias[0].token, 5);
  EXPECT_TRUE(std::isinf(r.logit_bias[0].bias) && r.logit_bias[0].bias < 0);
  ASSERT_EQ(r.text_bias.size(), 1u);
  EXPECT_EQ(r.text_bias[0].first, "the");
}

TEST(Request, LlamaServersFieldsAreReadTheSameEverywhere) {
  const std::string more = "," + std::string(kLlamaFields) + "}";
  const auto chat =
      parse_chat(R"({"messages":[{"role":"user","content":"a"}],"max_tokens":5)" + more);
  ASSERT_TRUE(chat) << chat.error().message;
  check_llama_fields(*chat);
  const auto completion = parse_completion(R"({"prompt":"a")" + more);
  ASSERT_TRUE(completion) << completion.error().message;
  check_llama_fields(*completion);
  const auto native = parse_native_completion(R"({"prompt":"a")" + more);
  ASSERT_TRUE(native) << native.error().message;
  check_llama_fields(*native);
  // OpenAI's defaults otherwise.
  const auto plain = parse_completion(R"({"prompt":"a","repetition_penalty":1.5})");
  EXPECT_TRUE(!plain->penalizes_prompt && plain->max_tokens == 16u && !plain->steps);
}

TEST(Request, PromptsOfLlamaServerMixTextsAndTokens) {
  const auto parts = [](const std::string& prompt) {
    const auto r = parse_native_completion(R"({"prompt":)" + prompt + "}");
    if (!r) return r.error().param + "!";
    std::string out;
    for (const auto& one : r->native->prompts) {
      out += "|";
      for (const PromptPart& part : one) {
        out += part.tokens.empty() ? "'" + part.text + "'" : "";
        for (const int32_t token : part.tokens) out += fmt::format("{},", token);
      }
    }
    return out;
  };
  EXPECT_EQ(parts(R"("a")"), "|'a'");
  EXPECT_EQ(parts(R"("")"), "|''");
  EXPECT_EQ(parts("[1,2]"), "|1,2,");
  EXPECT_EQ(parts(R"([1,"a",2,3,"b"])"), "|1,'a'2,3,'b'");
  EXPECT_EQ(parts(R"(["a","b"])"), "|'a'|'b'");
  EXPECT_EQ(parts(R"([[1,"a"],"b",{"prompt_string":"c"}])"), "|1,'a'|'b'|'c'");
  for (const char* wrong : {"7", "[]", "[[]]", "[1,[2]]", "[-1]", "{}", "null", "[1.5]",
                            R"({"prompt_string":"a","multimodal_data":["x"]})"})
    EXPECT_EQ(parts(wrong), "prompt!") << wrong;
}

TEST(Request, SillyTavernsDoublesAreNoneOfOurBusiness) {
  const auto r = parse_native_completion(
      R"({"prompt":"a","max_new_tokens":9,"n_predict":8,"rep_pen":2,"repeat_penalty":1.1,"top_a":0,
          "api_type":"llamacpp","mirostat_mode":0,"smoothing_factor":0,"grammar":"","n":1,
          "adaptive_target":-0.01,"truncation_length":512,"custom_token_bans":""})");
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(r->max_tokens, 8u);
  EXPECT_EQ(r->repetition_penalty, 1.1F);
  EXPECT_EQ(parse_completion(R"({"prompt":"a","rep_pen":2})").error().param, "rep_pen");
}

TEST(Request, ChatsOfLlamaServerMayGoOn) {
  const auto ask = [](const std::string& role, const std::string& more) {
    return parse_chat(R"({"messages":[{"role":"user","content":"a"},{"role":")" + role +
                      R"(","content":"b"}])" + more + "}");
  };
  EXPECT_FALSE(ask("assistant", "")->goes_on);
  EXPECT_EQ(ask("assistant", R"(,"continue_final_message":false)")->goes_on, false);
  EXPECT_EQ(ask("assistant", R"(,"continue_final_message":true)")->goes_on, true);
  EXPECT_EQ(ask("user", R"(,"continue_final_message":true)").error().param,
            "continue_final_message");
  EXPECT_EQ(ask("assistant", R"(,"continue_final_message":true,"add_generation_prompt":true)")
                .error()
                .param,
            "add_generation_prompt");
  EXPECT_FALSE(ask("user", R"(,"add_generation_prompt":false)")->has_generation_prompt);
  EXPECT_TRUE(ask("user", R"(,"reasoning_format":"none")")->has_raw_reasoning);
  EXPECT_EQ(ask("user", R"(,"reasoning_format":"deepseek-legacy")").error().param,
            "reasoning_format");
  EXPECT_FALSE(ask("user", R"(,"parse_tool_calls":false)")->parses_calls);
  const auto with_schema =
      ask("user", R"(,"response_format":{"type":"json_object","schema":{"enum":[1]}})");
  EXPECT_EQ(with_schema->schema.dump(), R"({"enum":[1]})");
  EXPECT_EQ(
      ask("user", R"(,"json_schema":{},"response_format":{"type":"json_object"})").error().param,
      "response_format");
}

TEST(Request, BlocksOfAMessageAreMessagesOfAChat) {
  const auto r =
      parse_message(R"({"model":"m","max_tokens":9,"system":[{"type":"text","text":"be "},
      {"type":"text","text":"brief","cache_control":{"type":"ephemeral"}}],
      "messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
        {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},
          {"type":"text","text":"so"},{"type":"tool_use","id":"t1","name":"f","input":{"x":1}}]},
        {"role":"user","content":[{"type":"text","text":"and"},
          {"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"one"}]}]}],
      "tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}],
      "tool_choice":{"type":"any","disable_parallel_tool_use":true},"stop_sequences":["x"],
      "thinking":{"type":"enabled","budget_tokens":1024},"metadata":{"user_id":"u"},"stream":true})");
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_TRUE(r->is_chat && r->is_message && r->is_stream);
  EXPECT_EQ(
      r->messages.dump(),
      R"([{"role":"system","content":"be brief"},{"role":"user","content":"a\nb"},)"
      R"({"role":"assistant","content":"so","reasoning_content":"hm","tool_calls":[{"id":"t1",)"
      R"("type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},)"
      R"({"role":"tool","tool_call_id":"t1","content":"one"},{"role":"user","content":"and"}])");
  EXPECT_EQ(r->tools[0]["function"]["parameters"].dump(), R"({"type":"object"})");
  EXPECT_EQ(r->tool_choice, ToolChoice::kRequired);
  EXPECT_FALSE(r->has_parallel_calls);
  EXPECT_EQ(r->stop, std::vector<std::string>{"x"});
  EXPECT_EQ(r->template_variables.dump(), R"({"enable_thinking":true})");
  const auto param = [](const std::string& body) {
    const auto refused = parse_message(body);
    return refused ? std::string("accepted") : refused.error().param;
  };
  EXPECT_EQ(param(R"({"messages":[{"role":"user","content":[{"type":"image"}]}]})"),
            "messages[0].content[0]");
  EXPECT_EQ(param(R"({"messages":[{"role":"system","content":"a"}]})"), "messages[0]");
  EXPECT_EQ(param(R"({"messages":[]})"), "messages");
  EXPECT_EQ(param(R"({"messages":[{"role":"user","content":[]}]})"), "messages");
  EXPECT_EQ(
      param(R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"web_search"}]})"),
      "tools[0].type");
  EXPECT_EQ(param(R"({"messages":[{"role":"user","content":"a"}],"top_logprobs":1})"),
            "top_logprobs");
}

TEST(Request, TokenizingHasTheDefaultsOfWhoseNameIsUsed) {
  const auto llama = parse_tokenize(R"({"content":"a","with_pieces":true})");
  EXPECT_TRUE(llama->has_pieces && llama->parses_special && !llama->add_special);
  const auto vllm = parse_tokenize(R"({"prompt":"a"})");
  EXPECT_TRUE(!vllm->has_pieces && !vllm->parses_special && vllm->add_special);
  const auto chosen = parse_tokenize(R"({"content":"a","add_special":true,"parse_special":false})");
  EXPECT_TRUE(chosen->add_special && !chosen->parses_special);
}

}  // namespace
}  // namespace bm::serve
