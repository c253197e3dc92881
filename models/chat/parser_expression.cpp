#include <algorithm>

#include "models/chat/functions.h"
#include "models/chat/parser_core.h"

namespace bm::models::jinja {

tl::unexpected<Error> ExpressionParser::unexpected(std::string_view wanted) const {
  static constexpr std::string_view kTypes[] = {
      "text", "{{", "}}", "{%", "%}", "", "a string", "", "", "", "the end of the template"};
  const Token& token = current();
  const bool shows_text = token.type == TokenType::kName || token.type == TokenType::kInteger ||
                          token.type == TokenType::kFloat || token.type == TokenType::kOperator;
  return error(
      "{} expected, not {}", wanted,
      shows_text ? quote_name(token.text) : std::string(kTypes[static_cast<size_t>(token.type)]));
}

ExpressionPtr ExpressionParser::node(ExpressionType type, Position at) {
  auto out = std::make_unique<Expression>();
  out->type = type;
  out->at = at;
  return out;
}

void ExpressionParser::adopt(Expression& parent, ExpressionPtr child) {
  if (child) parent.depth = std::max(parent.depth, child->depth + 1);
  parent.children.push_back(std::move(child));
}

Status ExpressionParser::check_depth(const Expression& made) const {
  if (made.depth > kMaxSyntaxDepth)
    return fail(Code::kInvalidArgument, "{}: this expression is nested too deeply", place(made.at));
  return {};
}

Result<ExpressionPtr> ExpressionParser::joined(ExpressionType type, ExpressionPtr left,
                                               ExpressionPtr right, Position at) {
  ExpressionPtr out = node(type, at);
  adopt(*out, std::move(left));
  if (right) adopt(*out, std::move(right));
  BM_TRY(check_depth(*out));
  return out;
}

Result<ExpressionPtr> ExpressionParser::tuple(bool has_conditional, bool is_in_parentheses) {
  const Position at = current().at;
  std::vector<ExpressionPtr> parts;
  bool is_tuple = false;
  for (;;) {
    const bool ends = current().type == TokenType::kVariableEnd ||
                      current().type == TokenType::kBlockEnd || is_operator(")");
    if (ends) break;
    parts.push_back(BM_TRY(conditional(has_conditional)));
    if (!take(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!parts.empty()) return std::move(parts[0]);
    if (!is_in_parentheses) return unexpected("an expression");
  }
  ExpressionPtr out = node(ExpressionType::kTuple, at);
  for (ExpressionPtr& part : parts) adopt(*out, std::move(part));
  BM_TRY(check_depth(*out));
  return out;
}

Result<ExpressionPtr> ExpressionParser::conditional(bool has_conditional) {
  const Depth depth(*this);
  if (depth.is_too_deep()) return error("nested too deeply");
  ExpressionPtr value = BM_TRY(disjunction());
  while (has_conditional && is_name("if")) {
    ExpressionPtr out = node(ExpressionType::kConditional, current().at);
    advance();
    adopt(*out, std::move(value));
    adopt(*out, BM_TRY(disjunction()));
    adopt(*out, take_name("else") ? BM_TRY(conditional(true)) : nullptr);
    BM_TRY(check_depth(*out));
    value = std::move(out);
  }
  return value;
}

Result<ExpressionPtr> ExpressionParser::disjunction() {
  ExpressionPtr left = BM_TRY(conjunction());
  while (is_name("or")) {
    const Position at = current().at;
    advance();
    ExpressionPtr right = BM_TRY(conjunction());
    left = BM_TRY(joined(ExpressionType::kOr, std::move(left), std::move(right), at));
  }
  return left;
}

Result<ExpressionPtr> ExpressionParser::conjunction() {
  ExpressionPtr left = BM_TRY(negation());
  while (is_name("and")) {
    const Position at = current().at;
    advance();
    ExpressionPtr right = BM_TRY(negation());
    left = BM_TRY(joined(ExpressionType::kAnd, std::move(left), std::move(right), at));
  }
  return left;
}

Result<ExpressionPtr> ExpressionParser::negation() {
  if (!is_name("not")) return comparison();
  const Depth depth(*this);
  if (depth.is_too_deep()) return error("nested too deeply");
  const Position at = current().at;
  advance();
  return joined(ExpressionType::kNot, BM_TRY(negation()), nullptr, at);
}

Result<ExpressionPtr> ExpressionParser::comparison() {
  static constexpr std::pair<std::string_view, Comparison> kOperators[] = {
      {"==", Comparison::kEqual},  {"!=", Comparison::kNotEqual},
      {"<", Comparison::kLess},    {"<=", Comparison::kLessEqual},
      {">", Comparison::kGreater}, {">=", Comparison::kGreaterEqual},
  };
  ExpressionPtr first = BM_TRY(sum());
  ExpressionPtr out;
  for (;;) {
    std::optional<Comparison> comparison;
    const Position at = current().at;
    for (const auto& [text, value] : kOperators)
      if (is_operator(text)) comparison = value;
    if (is_name("in")) comparison = Comparison::kIn;
    if (is_name("not") && ahead().type == TokenType::kName && ahead().text == "in") {
      comparison = Comparison::kNotIn;
      advance();
    }
    if (!comparison) break;
    advance();
    if (!out) {
      out = node(ExpressionType::kCompare, at);
      adopt(*out, std::move(first));
    }
    out->comparisons.push_back(*comparison);
    adopt(*out, BM_TRY(sum()));
    BM_TRY(check_depth(*out));
  }
  return out ? std::move(out) : std::move(first);
}

Result<ExpressionPtr> ExpressionParser::sum() {
  ExpressionPtr left = BM_TRY(concatenation());
  while (is_operator("+") || is_operator("-")) {
    const Position at = current().at;
    const ExpressionType type = is_operator("+") ? ExpressionType::kAdd : ExpressionType::kSubtract;
    advance();
    ExpressionPtr right = BM_TRY(concatenation());
    left = BM_TRY(joined(type, std::move(left), std::move(right), at));
  }
  return left;
}

Result<ExpressionPtr> ExpressionParser::concatenation() {
  ExpressionPtr first = BM_TRY(product());
  if (!is_operator("~")) return first;
  ExpressionPtr out = node(ExpressionType::kConcat, current().at);
  adopt(*out, std::move(first));
  while (take("~")) adopt(*out, BM_TRY(product()));
  BM_TRY(check_depth(*out));
  return out;
}

Result<ExpressionPtr> ExpressionParser::product() {
  static constexpr std::pair<std::string_view, ExpressionType> kOperators[] = {
      {"*", ExpressionType::kMultiply},
      {"/", ExpressionType::kDivide},
      {"//", ExpressionType::kFloorDivide},
      {"%", ExpressionType::kModulo},
  };
  ExpressionPtr left = BM_TRY(power());
  for (;;) {
    std::optional<ExpressionType> type;
    for (const auto& [text, value] : kOperators)
      if (is_operator(text)) type = value;
    if (!type) return left;
    const Position at = current().at;
    advance();
    ExpressionPtr right = BM_TRY(power());
    left = BM_TRY(joined(*type, std::move(left), std::move(right), at));
  }
}

Result<ExpressionPtr> ExpressionParser::power() {
  ExpressionPtr left = BM_TRY(unary(true));
  while (is_operator("**")) {
    const Position at = current().at;
    advance();
    ExpressionPtr right = BM_TRY(unary(true));
    left = BM_TRY(joined(ExpressionType::kPower, std::move(left), std::move(right), at));
  }
  return left;
}

Result<ExpressionPtr> ExpressionParser::unary(bool has_filters) {
  const Depth depth(*this);
  if (depth.is_too_deep()) return error("nested too deeply");
  const Position at = current().at;
  ExpressionPtr value;
  if (is_operator("-") || is_operator("+")) {
    const ExpressionType type = is_operator("-") ? ExpressionType::kNegate : ExpressionType::kPlus;
    advance();
    ExpressionPtr operand = BM_TRY(unary(false));
    value = BM_TRY(joined(type, std::move(operand), nullptr, at));
  } else {
    value = BM_TRY(primary());
  }
  value = BM_TRY(postfix(std::move(value)));
  return has_filters ? filters_and_tests(std::move(value))
                     : Result<ExpressionPtr>(std::move(value));
}

Result<ExpressionPtr> ExpressionParser::primary() {
  const Token& token = current();
  const Position at = token.at;
  switch (token.type) {
    case TokenType::kName: return name();
    case TokenType::kString: return string();
    case TokenType::kInteger:
    case TokenType::kFloat: {
      ExpressionPtr out = node(ExpressionType::kConstant, at);
      out->constant =
          token.type == TokenType::kInteger ? Value::of(token.integer) : Value::of(token.number);
      advance();
      return out;
    }
    default: break;
  }
  if (take("(")) {
    ExpressionPtr out = BM_TRY(tuple(true, true));
    if (!take(")")) return unexpected(")");
    return out;
  }
  if (is_operator("[")) return list();
  if (is_operator("{")) return dict();
  return unexpected("an expression");
}

Result<ExpressionPtr> ExpressionParser::name() {
  const std::string text = current().text;
  ExpressionPtr out = node(ExpressionType::kConstant, current().at);
  advance();
  if (text == "true" || text == "True") {
    out->constant = Value::of(true);
  } else if (text == "false" || text == "False") {
    out->constant = Value::of(false);
  } else if (text == "none" || text == "None") {
    out->constant = Value::none();
  } else {
    out->type = ExpressionType::kName;
    out->name = text;
    names_.push_back(text);
    for (MacroDefinition* const macro : macros_) {
      macro->uses_varargs |= text == "varargs";
      macro->uses_kwargs |= text == "kwargs";
      macro->uses_caller |= text == "caller";
    }
  }
  return out;
}

Result<ExpressionPtr> ExpressionParser::string() {
  ExpressionPtr out = node(ExpressionType::kConstant, current().at);
  std::string text;
  for (; current().type == TokenType::kString; advance()) text += current().text;
  out->literal = std::make_unique<String>(std::move(text));
  out->constant = Value::of(out->literal.get());
  return out;
}

Result<ExpressionPtr> ExpressionParser::list() {
  ExpressionPtr out = node(ExpressionType::kList, current().at);
  advance();
  while (!take("]")) {
    if (!out->children.empty() && !take(",")) return unexpected(", or ]");
    if (take("]")) break;
    adopt(*out, BM_TRY(expression()));
  }
  BM_TRY(check_depth(*out));
  return out;
}

Result<ExpressionPtr> ExpressionParser::dict() {
  ExpressionPtr out = node(ExpressionType::kDict, current().at);
  advance();
  while (!take("}")) {
    if (!out->children.empty() && !take(",")) return unexpected(", or }");
    if (take("}")) break;
    adopt(*out, BM_TRY(expression()));
    if (!take(":")) return unexpected(":");
    adopt(*out, BM_TRY(expression()));
  }
  BM_TRY(check_depth(*out));
  return out;
}

Result<ExpressionPtr> ExpressionParser::postfix(ExpressionPtr value) {
  for (;;) {
    if (is_operator("."))
      value = BM_TRY(attribute(std::move(value)));
    else if (is_operator("["))
      value = BM_TRY(subscript(std::move(value)));
    else if (is_operator("("))
      value = BM_TRY(call(std::move(value)));
    else
      return value;
    BM_TRY(check_depth(*value));
  }
}

Result<ExpressionPtr> ExpressionParser::filters_and_tests(ExpressionPtr value) {
  for (;;) {
    if (is_operator("|"))
      value = BM_TRY(filter_chain(std::move(value)));
    else if (is_name("is"))
      value = BM_TRY(test(std::move(value)));
    else if (is_operator("("))
      value = BM_TRY(call(std::move(value)));
    else
      return value;
    BM_TRY(check_depth(*value));
  }
}

Result<ExpressionPtr> ExpressionParser::attribute(ExpressionPtr value) {
  advance();
  const Token& token = current();
  ExpressionPtr out = node(ExpressionType::kAttribute, token.at);
  adopt(*out, std::move(value));
  if (token.type == TokenType::kName) {
    out->name = token.text;
  } else if (token.type == TokenType::kInteger) {
    out->type = ExpressionType::kItem;
    ExpressionPtr index = node(ExpressionType::kConstant, token.at);
    index->constant = Value::of(token.integer);
    adopt(*out, std::move(index));
  } else {
    return unexpected("a name or a number");
  }
  advance();
  return out;
}

Result<ExpressionPtr> ExpressionParser::subscript_part() {
  const bool is_empty = is_operator(":") || is_operator("]") || is_operator(",");
  if (is_empty) return ExpressionPtr();
  return expression();
}

Result<ExpressionPtr> ExpressionParser::subscript(ExpressionPtr value) {
  ExpressionPtr out = node(ExpressionType::kItem, current().at);
  advance();
  adopt(*out, std::move(value));
  ExpressionPtr first = BM_TRY(subscript_part());
  if (is_operator(":")) {
    out->type = ExpressionType::kSlice;
    adopt(*out, std::move(first));
    for (int part = 0; part < 2; ++part)
      adopt(*out, take(":") ? BM_TRY(subscript_part()) : nullptr);
  } else {
    if (!first) return unexpected("an expression");
    if (is_operator(",")) {
      ExpressionPtr key = node(ExpressionType::kTuple, first->at);
      adopt(*key, std::move(first));
      while (take(",")) {
        if (is_operator("]")) break;
        adopt(*key, BM_TRY(expression()));
      }
      first = std::move(key);
    }
    adopt(*out, std::move(first));
  }
  if (!take("]")) return unexpected("]");
  return out;
}

Status ExpressionParser::arguments(Expression& call) {
  if (!take("(")) return unexpected("(");
  bool is_first = true;
  bool has_named = false;
  while (!take(")")) {
    if (!is_first && !take(",")) return unexpected(", or )");
    if (!is_first && take(")")) break;
    is_first = false;
    Argument argument;
    if (take("**")) {
      argument.type = Argument::Type::kSpreadNamed;
    } else if (take("*")) {
      argument.type = Argument::Type::kSpread;
    } else if (current().type == TokenType::kName && ahead().type == TokenType::kOperator &&
               ahead().text == "=") {
      argument.type = Argument::Type::kNamed;
      argument.name = current().text;
      advance();
      advance();
    }
    if (argument.type == Argument::Type::kPositional && has_named)
      return error("an argument without a name follows one that has it");
    has_named |=
        argument.type == Argument::Type::kNamed || argument.type == Argument::Type::kSpreadNamed;
    argument.value = BM_TRY(expression());
    call.depth = std::max(call.depth, argument.value->depth + 1);
    call.arguments.push_back(std::move(argument));
  }
  return {};
}

Result<ExpressionPtr> ExpressionParser::call(ExpressionPtr value) {
  ExpressionPtr out = node(ExpressionType::kCall, value->at);
  adopt(*out, std::move(value));
  BM_TRY(arguments(*out));
  return out;
}

std::string ExpressionParser::dotted_name() {
  std::string out = current().text;
  advance();
  while (is_operator(".") && ahead().type == TokenType::kName) {
    advance();
    out += "." + current().text;
    advance();
  }
  return out;
}

Result<ExpressionPtr> ExpressionParser::filter_chain(ExpressionPtr value, bool is_head) {
  while (is_head || is_operator("|")) {
    if (!is_head) advance();
    is_head = false;
    if (current().type != TokenType::kName) return unexpected("the name of a filter");
    ExpressionPtr out = node(ExpressionType::kFilter, current().at);
    out->name = dotted_name();
    out->function = find_filter(out->name);
    if (out->function == nullptr)
      return fail(Code::kUnsupported, "{}: the filter {} is not supported", place(out->at),
                  quote_name(out->name));
    adopt(*out, std::move(value));
    if (is_operator("(")) BM_TRY(arguments(*out));
    BM_TRY(check_depth(*out));
    value = std::move(out);
  }
  return value;
}

Result<ExpressionPtr> ExpressionParser::test(ExpressionPtr value) {
  advance();
  const bool is_negated = take_name("not");
  if (current().type != TokenType::kName) return unexpected("the name of a test");
  const Position at = current().at;
  ExpressionPtr out = node(ExpressionType::kTest, at);
  out->name = dotted_name();
  out->function = find_test(out->name);
  if (out->function == nullptr)
    return fail(Code::kUnsupported, "{}: the test {} is not supported", place(at),
                quote_name(out->name));
  adopt(*out, std::move(value));
  const TokenType type = current().type;
  const bool is_argument =
      type == TokenType::kString || type == TokenType::kInteger || type == TokenType::kFloat ||
      is_operator("[") || is_operator("{") ||
      (type == TokenType::kName && !is_name("else") && !is_name("or") && !is_name("and"));
  if (is_operator("(")) {
    BM_TRY(arguments(*out));
  } else if (is_argument) {
    if (is_name("is")) return error("tests cannot be chained with is");
    Argument argument;
    ExpressionPtr head = BM_TRY(primary());
    argument.value = BM_TRY(postfix(std::move(head)));
    out->depth = std::max(out->depth, argument.value->depth + 1);
    out->arguments.push_back(std::move(argument));
  }
  return is_negated ? joined(ExpressionType::kNot, std::move(out), nullptr, at)
                    : Result<ExpressionPtr>(std::move(out));
}

}  // namespace bm::models::jinja
