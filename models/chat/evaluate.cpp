// Expressions: what each node of the syntax tree is worth.

#include "models/chat/interpreter.h"
#include "models/chat/text.h"

namespace bm::models::jinja {

Result<Value> Interpreter::evaluate(const Expression& expression) {
  const Level level(*this);
  at_ = expression.at;
  if (level.is_too_deep()) return error("expressions and macros are nested too deeply");
  BM_TRY(spend(1));
  return evaluate_now(expression);
}

Result<Value> Interpreter::evaluate_now(const Expression& expression) {
  const auto& children = expression.children;
  switch (expression.type) {
    case ExpressionType::kConstant: return expression.constant;
    case ExpressionType::kName: return evaluate_name(expression);
    case ExpressionType::kList:
    case ExpressionType::kTuple: {
      std::vector<Value> values;
      for (const ExpressionPtr& child : children) values.push_back(BM_TRY(evaluate(*child)));
      return list(std::move(values), expression.type == ExpressionType::kList
                                         ? SequenceType::kList
                                         : SequenceType::kTuple);
    }
    case ExpressionType::kDict: return evaluate_dict(expression);
    case ExpressionType::kAttribute: {
      const Value object = BM_TRY(evaluate(*children[0]));
      at_ = expression.at;
      return attribute(object, expression.name);
    }
    case ExpressionType::kItem: {
      const Value object = BM_TRY(evaluate(*children[0]));
      const Value key = BM_TRY(evaluate(*children[1]));
      at_ = expression.at;
      return item(object, key);
    }
    case ExpressionType::kSlice: return evaluate_slice(expression);
    case ExpressionType::kCall: return evaluate_call(expression);
    case ExpressionType::kFilter: return evaluate_filter(expression);
    case ExpressionType::kTest: {
      const Value value = BM_TRY(evaluate(*children[0]));
      const Arguments arguments = BM_TRY(evaluate_arguments(expression));
      at_ = expression.at;
      return apply(*expression.function, value, arguments);
    }
    case ExpressionType::kNegate:
    case ExpressionType::kPlus: {
      const Value value = BM_TRY(evaluate(*children[0]));
      at_ = expression.at;
      if (value.is_undefined()) return undefined_error(value);
      if (!value.is_numeric()) return error("{} has no sign", type_name(value));
      if (expression.type == ExpressionType::kNegate) return negate(value);
      return value.kind == Kind::kBool ? Value::of(value.as_int()) : value;
    }
    case ExpressionType::kNot: return Value::of(!is_truthy(BM_TRY(evaluate(*children[0]))));
    case ExpressionType::kAnd:
    case ExpressionType::kOr: {
      const Value left = BM_TRY(evaluate(*children[0]));
      if (is_truthy(left) == (expression.type == ExpressionType::kOr)) return left;
      return evaluate(*children[1]);
    }
    case ExpressionType::kAdd:
    case ExpressionType::kSubtract:
    case ExpressionType::kMultiply:
    case ExpressionType::kDivide:
    case ExpressionType::kFloorDivide:
    case ExpressionType::kModulo:
    case ExpressionType::kPower: return evaluate_binary(expression);
    case ExpressionType::kConcat: return evaluate_concat(expression);
    case ExpressionType::kCompare: return evaluate_compare(expression);
    case ExpressionType::kConditional:
      if (is_truthy(BM_TRY(evaluate(*children[1])))) return evaluate(*children[0]);
      if (children[2]) return evaluate(*children[2]);
      return undefined("the condition of this inline if is false, and it has no else");
  }
  return Value();
}

Result<Value> Interpreter::evaluate_name(const Expression& expression) {
  if (const Value* const value = scope_->find(expression.name)) return *value;
  if (const FunctionRow* const row = find_global(expression.name))
    return heap_.function(row, Value());
  return undefined(fmt::format("{} is undefined", quote_name(expression.name)));
}

Result<Value> Interpreter::evaluate_dict(const Expression& expression) {
  const Value out = heap_.dict();
  for (size_t i = 0; i + 1 < expression.children.size(); i += 2) {
    const Value key = BM_TRY(evaluate(*expression.children[i]));
    const Value value = BM_TRY(evaluate(*expression.children[i + 1]));
    at_ = expression.children[i]->at;
    if (!is_hashable(key))
      return unsupported("a key of a dict cannot be of type {}", type_name(key));
    heap_.charge(4 * sizeof(Value));
    out.dict->set(key, value);
  }
  return out;
}

Result<Value> Interpreter::evaluate_binary(const Expression& expression) {
  const Value a = BM_TRY(evaluate(*expression.children[0]));
  const Value b = BM_TRY(evaluate(*expression.children[1]));
  at_ = expression.at;
  return binary(expression.type, a, b);
}

Result<Value> Interpreter::evaluate_concat(const Expression& expression) {
  std::string out;
  for (const ExpressionPtr& child : expression.children) {
    const Value value = BM_TRY(evaluate(*child));
    BM_TRY(append_text(out, value));
  }
  return string(std::move(out));
}

Result<Value> Interpreter::evaluate_compare(const Expression& expression) {
  Value left = BM_TRY(evaluate(*expression.children[0]));
  for (size_t i = 0; i < expression.comparisons.size(); ++i) {
    const Value right = BM_TRY(evaluate(*expression.children[i + 1]));
    at_ = expression.at;
    if (!BM_TRY(compare(expression.comparisons[i], left, right))) return Value::of(false);
    left = right;
  }
  return Value::of(true);
}

Result<Arguments> Interpreter::evaluate_arguments(const Expression& expression) {
  Arguments out;
  for (const Argument& argument : expression.arguments) {
    const Value value = BM_TRY(evaluate(*argument.value));
    switch (argument.type) {
      case Argument::Type::kPositional: out.positional.push_back(value); break;
      case Argument::Type::kNamed: out.named.emplace_back(argument.name, value); break;
      case Argument::Type::kSpread:
        for (const Value& item : BM_TRY(items(value))) out.positional.push_back(item);
        break;
      case Argument::Type::kSpreadNamed:
        if (!value.is_dict()) return error("** needs a dict, not {}", type_name(value));
        for (const auto& [key, item] : value.dict->entries) {
          if (!key.is_string()) return error("** needs a dict whose keys are strings");
          out.named.emplace_back(key.text(), item);
        }
        break;
    }
  }
  return out;
}

Result<Value> Interpreter::evaluate_call(const Expression& expression) {
  const Value callee = BM_TRY(evaluate(*expression.children[0]));
  const Arguments arguments = BM_TRY(evaluate_arguments(expression));
  at_ = expression.at;
  return call(callee, arguments);
}

Result<Value> Interpreter::evaluate_filter(const Expression& expression) {
  const Value value = BM_TRY(evaluate(*expression.children[0]));
  const Arguments arguments = BM_TRY(evaluate_arguments(expression));
  at_ = expression.at;
  return apply(*expression.function, value, arguments);
}

Result<Value> Interpreter::filter_chain(const Expression& chain, const Value& head) {
  Value value = head;
  if (chain.children[0]) value = BM_TRY(filter_chain(*chain.children[0], head));
  const Arguments arguments = BM_TRY(evaluate_arguments(chain));
  at_ = chain.at;
  return apply(*chain.function, value, arguments);
}

Result<Value> Interpreter::call(const Value& callee, const Arguments& arguments) {
  BM_TRY(spend(1));
  if (callee.is_undefined()) return undefined_error(callee);
  if (callee.kind == Kind::kMacro) return call_macro(*callee.macro, arguments);
  if (callee.kind == Kind::kFunction)
    return apply(*callee.function->row, callee.function->self, arguments);
  return error("a value of type {} cannot be called", type_name(callee));
}

Result<Value> Interpreter::apply(const FunctionRow& row, const Value& self,
                                 const Arguments& arguments) {
  BM_TRY(spend(1));
  BoundArguments bound;
  bound.all = &arguments;
  if (!row.is_variadic) {
    if (arguments.positional.size() > row.parameters.size())
      return error("{} takes at most {} arguments, not {}", row.name, row.parameters.size(),
                   arguments.positional.size());
    for (size_t i = 0; i < arguments.positional.size(); ++i)
      bound.values[i] = &arguments.positional[i];
    for (const auto& [name, value] : arguments.named) {
      size_t index = 0;
      while (index < row.parameters.size() && row.parameters[index] != name) ++index;
      if (name.empty() || index == row.parameters.size())
        return error("{} has no argument {}", row.name, quote_name(name));
      if (bound.values[index] != nullptr) return error("{} got two values for {}", row.name, name);
      bound.values[index] = &value;
    }
    for (size_t i = 0; i < row.required; ++i)
      if (bound.values[i] == nullptr)
        return error("{} takes at least {} arguments", row.name, row.required);
  }
  return row.function(*this, self, bound);
}

}  // namespace bm::models::jinja
