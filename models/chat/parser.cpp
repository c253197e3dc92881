#include "models/chat/parser.h"

#include <algorithm>

#include "models/chat/parser_core.h"

namespace bm::models::jinja {
namespace {

/// Tags, on top of the expressions.
class TemplateParser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Result<Template> run() {
    Template out;
    BM_TRY(body(out.body, {}));
    std::ranges::sort(names_);
    names_.erase(std::ranges::unique(names_).begin(), names_.end());
    out.names = std::move(names_);
    return out;
  }

 private:
  using Ends = std::vector<std::string_view>;

  /// Statements up to a tag of `ends`, whose name is then the current token; without `ends`, up to
  /// the end of the template.
  Status body(Body& out, const Ends& ends) {
    const BodyDepth depth(*this);
    if (depth.is_too_deep()) return error("blocks are nested too deeply");
    for (;;) {
      switch (current().type) {
        case TokenType::kEnd:
          if (ends.empty()) return {};
          return error("the template ends here, but {} is missing", fmt::join(ends, " or "));
        case TokenType::kText: {
          auto text = make(StatementType::kText);
          text->text = current().text;
          out.push_back(std::move(text));
          advance();
          break;
        }
        case TokenType::kVariableBegin: {
          auto output = make(StatementType::kOutput);
          advance();
          output->expression = BM_TRY(tuple(true));
          if (current().type != TokenType::kVariableEnd) return unexpected("}}");
          advance();
          out.push_back(std::move(output));
          break;
        }
        case TokenType::kBlockBegin: {
          advance();
          if (current().type == TokenType::kName && std::ranges::count(ends, current().text) > 0)
            return {};
          out.push_back(BM_TRY(statement()));
          break;
        }
        default: return unexpected("text or a tag");
      }
    }
  }
  Status block_end() {
    if (current().type != TokenType::kBlockEnd) return unexpected("%}");
    advance();
    return {};
  }
  /// A body, its closing tag `end`, and the end of that.
  Status body_to(Body& out, std::string_view end) {
    BM_TRY(block_end());
    BM_TRY(body(out, {end}));
    advance();
    return block_end();
  }

  std::unique_ptr<Statement> make(StatementType type) const {
    auto statement = std::make_unique<Statement>();
    statement->type = type;
    statement->at = current().at;
    return statement;
  }

  Result<std::unique_ptr<Statement>> statement() {
    if (current().type != TokenType::kName) return unexpected("the name of a tag");
    const std::string name = current().text;
    using Handler = Result<std::unique_ptr<Statement>> (TemplateParser::*)();
    static constexpr std::pair<std::string_view, Handler> kTags[] = {
        {"if", &TemplateParser::if_tag},      {"for", &TemplateParser::for_tag},
        {"set", &TemplateParser::set_tag},    {"macro", &TemplateParser::macro_tag},
        {"call", &TemplateParser::call_tag},  {"filter", &TemplateParser::filter_tag},
        {"with", &TemplateParser::with_tag},  {"generation", &TemplateParser::generation_tag},
        {"break", &TemplateParser::jump_tag}, {"continue", &TemplateParser::jump_tag},
    };
    for (const auto& [tag, handler] : kTags)
      if (tag == name) return (this->*handler)();
    static constexpr std::string_view kRefused[] = {"include", "import",    "from",  "extends",
                                                    "block",   "do",        "trans", "debug",
                                                    "print",   "autoescape"};
    if (std::ranges::count(kRefused, name) > 0)
      return fail(Code::kUnsupported, "{}: the tag {} is not supported in chat templates",
                  place(current().at), name);
    return error("unknown tag {}", quote_name(name));
  }

  Result<std::unique_ptr<Statement>> if_tag() {
    auto out = make(StatementType::kIf);
    advance();
    for (;;) {
      out->conditions.push_back(BM_TRY(tuple(false)));
      BM_TRY(block_end());
      out->bodies.emplace_back();
      BM_TRY(body(out->bodies.back(), {"elif", "else", "endif"}));
      if (!take_name("elif")) break;
    }
    if (take_name("else")) {
      out->bodies.emplace_back();
      BM_TRY(body_to(out->bodies.back(), "endif"));
      return out;
    }
    advance();
    BM_TRY(block_end());
    return out;
  }

  Result<std::unique_ptr<Statement>> for_tag() {
    auto out = make(StatementType::kFor);
    advance();
    out->target = BM_TRY(target(false));
    if (!take_name("in")) return unexpected("in");
    out->expression = BM_TRY(tuple(false));
    if (take_name("if")) out->filter = BM_TRY(expression());
    if (is_name("recursive"))
      return fail(Code::kUnsupported, "{}: recursive loops are not supported", place(current().at));
    BM_TRY(block_end());
    out->bodies.resize(1);
    ++loops_;
    BM_TRY(body(out->bodies[0], {"else", "endfor"}));
    --loops_;
    if (take_name("else")) {
      out->bodies.emplace_back();
      BM_TRY(body_to(out->bodies.back(), "endfor"));
      return out;
    }
    advance();
    BM_TRY(block_end());
    return out;
  }

  Result<std::unique_ptr<Statement>> jump_tag() {
    if (loops_ == 0) return error("{} stands outside of a loop", current().text);
    auto out = make(is_name("break") ? StatementType::kBreak : StatementType::kContinue);
    advance();
    BM_TRY(block_end());
    return out;
  }

  Result<std::unique_ptr<Statement>> set_tag() {
    auto out = make(StatementType::kSet);
    advance();
    out->target = BM_TRY(target(true));
    if (take("=")) {
      out->expression = BM_TRY(tuple(true));
      BM_TRY(block_end());
      return out;
    }
    out->type = StatementType::kSetBlock;
    if (current().type == TokenType::kOperator && current().text == "|") {
      out->expression = BM_TRY(filter_chain(nullptr));
    }
    out->bodies.resize(1);
    BM_TRY(body_to(out->bodies[0], "endset"));
    return out;
  }

  /// name, name.attribute (where a namespace is allowed) or several of them.
  Result<ExpressionPtr> target(bool is_namespace_allowed) {
    const Position at = current().at;
    std::vector<ExpressionPtr> parts;
    bool is_tuple = false;
    for (;;) {
      if (take("(")) {
        // Parentheses around targets group them.
        ExpressionPtr inner = BM_TRY(nested_target());
        parts.push_back(std::move(inner));
      } else {
        parts.push_back(BM_TRY(single_target(is_namespace_allowed && parts.empty())));
      }
      if (!take(",")) break;
      is_tuple = true;
      if (current().type != TokenType::kName && !is_operator("(")) break;
      if (is_name("in")) break;
    }
    if (!is_tuple) return std::move(parts[0]);
    ExpressionPtr out = node(ExpressionType::kTuple, at);
    for (ExpressionPtr& part : parts) adopt(*out, std::move(part));
    return out;
  }
  Result<ExpressionPtr> nested_target() {
    const Depth depth(*this);
    if (depth.is_too_deep()) return error("nested too deeply");
    ExpressionPtr inner = BM_TRY(target(false));
    if (!take(")")) return unexpected(")");
    return inner;
  }
  Result<ExpressionPtr> single_target(bool is_namespace_allowed) {
    static constexpr std::string_view kConstants[] = {"true", "false", "none",
                                                      "True", "False", "None"};
    if (current().type != TokenType::kName) return unexpected("a name");
    if (std::ranges::count(kConstants, current().text) > 0)
      return error("cannot assign to {}", current().text);
    ExpressionPtr out = node(ExpressionType::kName, current().at);
    out->name = current().text;
    advance();
    if (!is_namespace_allowed || !take(".")) return out;
    if (current().type != TokenType::kName) return unexpected("a name");
    names_.push_back(out->name);
    ExpressionPtr attribute = node(ExpressionType::kAttribute, current().at);
    attribute->name = current().text;
    advance();
    adopt(*attribute, std::move(out));
    return attribute;
  }

  /// (a, b=1): parameters of a macro or a caller.
  Status parameters(MacroDefinition& out) {
    if (!take("(")) return unexpected("(");
    while (!take(")")) {
      if (!out.parameters.empty() && !take(",")) return unexpected(", or )");
      if (current().type != TokenType::kName) return unexpected("the name of a parameter");
      out.parameters.push_back(current().text);
      advance();
      if (take("="))
        out.defaults.push_back(BM_TRY(expression()));
      else if (!out.defaults.empty())
        return error("a parameter without a default follows one that has it");
    }
    return {};
  }
  Status macro_body(MacroDefinition& out, std::string_view end) {
    macros_.push_back(&out);
    const int loops = std::exchange(loops_, 0);
    Status status = body_to(out.body, end);
    loops_ = loops;
    macros_.pop_back();
    return status;
  }
  Result<std::unique_ptr<Statement>> macro_tag() {
    auto out = make(StatementType::kMacro);
    advance();
    if (current().type != TokenType::kName) return unexpected("the name of a macro");
    out->macro = std::make_unique<MacroDefinition>();
    out->macro->name = current().text;
    advance();
    BM_TRY(parameters(*out->macro));
    BM_TRY(macro_body(*out->macro, "endmacro"));
    return out;
  }
  Result<std::unique_ptr<Statement>> call_tag() {
    auto out = make(StatementType::kCallBlock);
    advance();
    out->macro = std::make_unique<MacroDefinition>();
    out->macro->name = "caller";
    if (is_operator("(")) BM_TRY(parameters(*out->macro));
    out->expression = BM_TRY(expression());
    if (out->expression->type != ExpressionType::kCall) return error("a call block needs a call");
    BM_TRY(macro_body(*out->macro, "endcall"));
    return out;
  }
  Result<std::unique_ptr<Statement>> filter_tag() {
    auto out = make(StatementType::kFilterBlock);
    advance();
    out->expression = BM_TRY(filter_chain(nullptr, true));
    out->bodies.resize(1);
    BM_TRY(body_to(out->bodies[0], "endfilter"));
    return out;
  }
  Result<std::unique_ptr<Statement>> with_tag() {
    auto out = make(StatementType::kWith);
    advance();
    while (current().type != TokenType::kBlockEnd) {
      if (!out->targets.empty() && !take(",")) return unexpected(", or %}");
      out->targets.push_back(BM_TRY(single_target(false)));
      if (!take("=")) return unexpected("=");
      out->conditions.push_back(BM_TRY(expression()));
    }
    out->bodies.resize(1);
    BM_TRY(body_to(out->bodies[0], "endwith"));
    return out;
  }
  Result<std::unique_ptr<Statement>> generation_tag() {
    auto out = make(StatementType::kScope);
    advance();
    out->bodies.resize(1);
    // What a model has said lies in a function of its own for Hugging Face: no break leads out of
    // it.
    const int loops = std::exchange(loops_, 0);
    BM_TRY(body_to(out->bodies[0], "endgeneration"));
    loops_ = loops;
    return out;
  }

  int loops_ = 0;
};

}  // namespace

Result<Template> parse_template(std::string_view source) {
  std::vector<Token> tokens = BM_TRY(tokenize_template(source));
  return TemplateParser(std::move(tokens)).run();
}

}  // namespace bm::models::jinja
