#pragma once
// Expressions of the template language: recursive descent with Jinja's precedences.

#include <string>
#include <string_view>
#include <vector>

#include "models/chat/ast.h"
#include "models/model_error.h"

namespace bm::models::jinja {

/// Levels of one expression, of parentheses and of blocks: more than any template has, few enough
/// for the stack.
constexpr uint32_t kMaxSyntaxDepth = 200;

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  /// Counts recursion of the parser itself.
  class Depth {
   public:
    explicit Depth(ExpressionParser& parser) : parser_(parser) { ++parser_.depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;
    ~Depth() { --parser_.depth_; }
    bool is_too_deep() const { return parser_.depth_ > kMaxSyntaxDepth; }

   private:
    ExpressionParser& parser_;
  };
  using BodyDepth = Depth;

  const Token& current() const { return tokens_[pos_]; }
  const Token& ahead() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
  void advance() { pos_ = std::min(pos_ + 1, tokens_.size() - 1); }
  bool is_operator(std::string_view text) const {
    return current().type == TokenType::kOperator && current().text == text;
  }
  bool is_name(std::string_view text) const {
    return current().type == TokenType::kName && current().text == text;
  }
  bool take(std::string_view op) {
    if (!is_operator(op)) return false;
    advance();
    return true;
  }
  bool take_name(std::string_view name) {
    if (!is_name(name)) return false;
    advance();
    return true;
  }
  template <class... Args>
  tl::unexpected<Error> error(fmt::format_string<Args...> format, Args&&... args) const {
    return fail(Code::kInvalidArgument, "{}: {}", place(current().at),
                fmt::format(format, std::forward<Args>(args)...));
  }
  tl::unexpected<Error> unexpected(std::string_view wanted) const;

  static ExpressionPtr node(ExpressionType type, Position at);
  /// Makes `child` the last child of `parent`.
  static void adopt(Expression& parent, ExpressionPtr child);

  Result<ExpressionPtr> expression() { return conditional(true); }
  /// One expression, or several with commas between them as a tuple.
  Result<ExpressionPtr> tuple(bool has_conditional, bool is_in_parentheses = false);
  /// `| filter | filter` after `value`; with `is_head`, the first comes without its bar.
  Result<ExpressionPtr> filter_chain(ExpressionPtr value, bool is_head = false);

  std::vector<std::string> names_;        ///< that are read
  std::vector<MacroDefinition*> macros_;  ///< around the current token

 private:
  Result<ExpressionPtr> conditional(bool has_conditional);
  Result<ExpressionPtr> disjunction();
  Result<ExpressionPtr> conjunction();
  Result<ExpressionPtr> negation();
  Result<ExpressionPtr> comparison();
  Result<ExpressionPtr> sum();
  Result<ExpressionPtr> concatenation();
  Result<ExpressionPtr> product();
  Result<ExpressionPtr> power();
  Result<ExpressionPtr> unary(bool has_filters);
  Result<ExpressionPtr> primary();
  Result<ExpressionPtr> name();
  Result<ExpressionPtr> string();
  Result<ExpressionPtr> list();
  Result<ExpressionPtr> dict();
  Result<ExpressionPtr> postfix(ExpressionPtr value);
  Result<ExpressionPtr> filters_and_tests(ExpressionPtr value);
  Result<ExpressionPtr> attribute(ExpressionPtr value);
  Result<ExpressionPtr> subscript(ExpressionPtr value);
  Result<ExpressionPtr> subscript_part();
  Result<ExpressionPtr> call(ExpressionPtr value);
  /// The name of a filter or test; dots belong to it.
  std::string dotted_name();
  Result<ExpressionPtr> test(ExpressionPtr value);
  Result<ExpressionPtr> joined(ExpressionType type, ExpressionPtr left, ExpressionPtr right,
                               Position at);
  Status arguments(Expression& call);
  Status check_depth(const Expression& made) const;

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  uint32_t depth_ = 0;
};

}  // namespace bm::models::jinja
