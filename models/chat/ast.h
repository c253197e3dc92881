#pragma once
// The syntax tree of a chat template. Every node knows its row and column.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/chat/lexer.h"
#include "models/chat/value.h"

namespace bm::models::jinja {

struct Expression;
struct FunctionRow;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class ExpressionType : uint8_t {
  kConstant,
  kName,
  kList,
  kTuple,
  kDict,       ///< children: key, value, key, value, …
  kAttribute,  ///< children[0].name
  kItem,       ///< children[0][children[1]]
  kSlice,      ///< children[0][1:2:3], each of 1 to 3 may be null
  kCall,       ///< children[0](arguments)
  kFilter,  ///< children[0] | filter(arguments); children[0] is null at the head of a filter block
  kTest,    ///< children[0] is test(arguments)
  kNegate,
  kPlus,
  kNot,
  kAnd,
  kOr,
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kConcat,       ///< ~ of all children
  kCompare,      ///< children[0] comparisons[0] children[1] …
  kConditional,  ///< children[0] if children[1] else children[2] (may be null)
};

enum class Comparison : uint8_t {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

struct Argument {
  enum class Type : uint8_t { kPositional, kNamed, kSpread, kSpreadNamed };
  Type type = Type::kPositional;
  std::string name;
  ExpressionPtr value;
};

struct Expression {
  ExpressionType type = ExpressionType::kConstant;
  Position at;
  uint32_t depth = 1;  ///< levels of expressions in it
  Value constant;      ///< points to `literal` when it is a string
  std::unique_ptr<String> literal;
  std::string name;  ///< of kName, kAttribute, kFilter and kTest
  std::vector<ExpressionPtr> children;
  std::vector<Comparison> comparisons;
  std::vector<Argument> arguments;
  const FunctionRow* function = nullptr;  ///< of kFilter and kTest
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

enum class StatementType : uint8_t {
  kText,
  kOutput,
  kIf,        ///< conditions and bodies; one body more than conditions is the else
  kFor,       ///< target in expression if filter: bodies[0], else bodies[1]
  kSet,       ///< target = expression
  kSetBlock,  ///< target = bodies[0], through filter chain `expression` (may be null)
  kMacro,
  kCallBlock,    ///< expression is a call; macro is its caller
  kFilterBlock,  ///< bodies[0] through `expression`
  kWith,         ///< targets = values in bodies[0]
  kScope,        ///< bodies[0] with names of its own: a generation block
  kBreak,
  kContinue,
};

struct MacroDefinition {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  ///< of the last parameters
  Body body;
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

struct Statement {
  StatementType type = StatementType::kText;
  Position at;
  std::string text;
  ExpressionPtr target;  ///< kName, kAttribute of a kName (namespace) or kTuple of targets
  ExpressionPtr expression;
  ExpressionPtr filter;
  std::vector<ExpressionPtr> conditions;  ///< of kWith: the values, whose targets are in `targets`
  std::vector<ExpressionPtr> targets;
  std::vector<Body> bodies;
  std::unique_ptr<MacroDefinition> macro;
};

}  // namespace bm::models::jinja
