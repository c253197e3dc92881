#include "models/chat/interpreter.h"

namespace bm::models::jinja {

Status Interpreter::spend(uint64_t steps) {
  if (!budget_.spend(steps)) return error("the template takes more than {} steps", limits_.steps);
  if (heap_.bytes() > limits_.heap_bytes)
    return error("the template takes more than {} bytes of memory", limits_.heap_bytes);
  return {};
}

Result<Value> Interpreter::string(std::string text) {
  const uint64_t steps = 1 + text.size() / 16;
  const Value value = heap_.string(std::move(text));
  BM_TRY(spend(steps));
  return value;
}

Result<Value> Interpreter::list(std::vector<Value> items, SequenceType type) {
  const uint64_t steps = 1 + items.size();
  const Value value = heap_.list(std::move(items), type);
  BM_TRY(spend(steps));
  return value;
}

Value Interpreter::undefined(std::string why) {
  Value value;
  value.string = heap_.string(std::move(why)).string;
  return value;
}

tl::unexpected<Error> Interpreter::undefined_error(const Value& value) const {
  return error(
      "{}", value.string != nullptr ? value.text() : std::string_view("this value is undefined"));
}

Result<std::string> Interpreter::run(const Template& parsed) {
  scope_ = heap_.scope(globals_);
  std::string out;
  output_ = &out;
  BM_TRY(execute(parsed.body));
  return out;
}

Status Interpreter::write(std::string_view text) {
  if (output_->size() + text.size() > limits_.output_bytes)
    return error("the template prints more than {} bytes", limits_.output_bytes);
  output_->append(text);
  return spend(1 + text.size() / 16);
}

Result<Interpreter::Flow> Interpreter::execute(const Body& body) {
  const Level level(*this);
  if (level.is_too_deep()) return error("blocks and macros are nested too deeply");
  for (const auto& statement : body) {
    const Flow flow = BM_TRY(execute(*statement));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::execute(const Statement& statement) {
  at_ = statement.at;
  BM_TRY(spend(1));
  switch (statement.type) {
    case StatementType::kText: BM_TRY(write(statement.text)); return Flow::kNext;
    case StatementType::kOutput: {
      const Value value = BM_TRY(evaluate(*statement.expression));
      if (value.is_string()) {
        BM_TRY(write(value.text()));
      } else {
        const std::string printed = BM_TRY(text(value));
        BM_TRY(write(printed));
      }
      return Flow::kNext;
    }
    case StatementType::kIf: return run_if(statement);
    case StatementType::kFor: return run_for(statement);
    case StatementType::kSet: {
      const Value value = BM_TRY(evaluate(*statement.expression));
      BM_TRY(assign(*statement.target, value));
      return Flow::kNext;
    }
    case StatementType::kSetBlock: BM_TRY(run_set_block(statement)); return Flow::kNext;
    case StatementType::kMacro:
      scope_->set(statement.macro->name, heap_.macro({statement.macro.get(), scope_}));
      return Flow::kNext;
    case StatementType::kCallBlock: BM_TRY(run_call_block(statement)); return Flow::kNext;
    case StatementType::kFilterBlock: BM_TRY(run_filter_block(statement)); return Flow::kNext;
    case StatementType::kWith: BM_TRY(run_with(statement)); return Flow::kNext;
    case StatementType::kScope: {
      Scope* const outer = std::exchange(scope_, heap_.scope(scope_));
      auto flow = execute(statement.bodies[0]);
      scope_ = outer;
      return flow;
    }
    case StatementType::kBreak: return Flow::kBreak;
    case StatementType::kContinue: return Flow::kContinue;
  }
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::run_if(const Statement& statement) {
  for (size_t i = 0; i < statement.conditions.size(); ++i)
    if (is_truthy(BM_TRY(evaluate(*statement.conditions[i])))) return execute(statement.bodies[i]);
  if (statement.bodies.size() > statement.conditions.size())
    return execute(statement.bodies.back());
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::run_for(const Statement& statement) {
  const Value iterated = BM_TRY(evaluate(*statement.expression));
  std::vector<Value> all = BM_TRY(items(iterated));
  Scope* const outer = scope_;
  if (statement.filter) {
    std::vector<Value> kept;
    for (const Value& value : all) {
      scope_ = heap_.scope(outer);
      Status status = assign(*statement.target, value);
      auto keep =
          status ? evaluate(*statement.filter) : Result<Value>(tl::unexpected(status.error()));
      scope_ = outer;
      if (!keep) return tl::unexpected(keep.error());
      if (is_truthy(*keep)) kept.push_back(value);
    }
    all = std::move(kept);
  }
  // Jinja runs the else of a loop when no iteration has come to its end, be it because of break or
  // continue.
  bool has_finished_one = false;
  Value loop = Value::of(Kind::kLoop);
  loop.loop = heap_.loop(heap_.sequence(std::move(all), SequenceType::kList));
  for (size_t i = 0; i < loop.loop->items->items.size(); ++i) {
    loop.loop->index = i;
    scope_ = heap_.scope(outer);
    scope_->set("loop", loop);
    const Status status = assign(*statement.target, loop.loop->items->items[i]);
    auto flow =
        status ? execute(statement.bodies[0]) : Result<Flow>(tl::unexpected(status.error()));
    scope_ = outer;
    if (!flow) return flow;
    if (*flow == Flow::kBreak) break;
    has_finished_one |= *flow == Flow::kNext;
  }
  if (has_finished_one || statement.bodies.size() < 2) return Flow::kNext;
  scope_ = heap_.scope(outer);
  auto flow = execute(statement.bodies[1]);
  scope_ = outer;
  return flow;
}

Status Interpreter::assign(const Expression& target, const Value& value) {
  if (target.type == ExpressionType::kName) {
    scope_->set(target.name, value);
    return spend(1);
  }
  at_ = target.at;
  if (target.type == ExpressionType::kAttribute) {
    const std::string& name = target.children[0]->name;
    const Value* const object = scope_->find(name);
    if (object == nullptr || object->kind != Kind::kNamespace)
      return error("{} is not a namespace: its attributes cannot be set", name);
    object->dict->set(BM_TRY(string(target.name)), value);
    heap_.charge(sizeof(Value) * 2);
    return {};
  }
  const std::vector<Value> parts = BM_TRY(items(value));
  if (parts.size() != target.children.size())
    return error("{} names are set from {} values", target.children.size(), parts.size());
  for (size_t i = 0; i < parts.size(); ++i) BM_TRY(assign(*target.children[i], parts[i]));
  return {};
}

Result<Value> Interpreter::capture(const Body& body) {
  std::string captured;
  std::string* const output = std::exchange(output_, &captured);
  Scope* const outer = std::exchange(scope_, heap_.scope(scope_));
  const auto flow = execute(body);
  scope_ = outer;
  output_ = output;
  if (!flow) return tl::unexpected(flow.error());
  return string(std::move(captured));
}

Status Interpreter::run_set_block(const Statement& statement) {
  Value value = BM_TRY(capture(statement.bodies[0]));
  if (statement.expression) value = BM_TRY(filter_chain(*statement.expression, value));
  return assign(*statement.target, value);
}

Status Interpreter::run_filter_block(const Statement& statement) {
  const Value value = BM_TRY(capture(statement.bodies[0]));
  const Value filtered = BM_TRY(filter_chain(*statement.expression, value));
  const std::string printed = BM_TRY(text(filtered));
  return write(printed);
}

Status Interpreter::run_call_block(const Statement& statement) {
  const Expression& call_expression = *statement.expression;
  const Value caller = heap_.macro({statement.macro.get(), scope_});
  const Value callee = BM_TRY(evaluate(*call_expression.children[0]));
  Arguments arguments = BM_TRY(evaluate_arguments(call_expression));
  arguments.named.emplace_back("caller", caller);
  at_ = call_expression.at;
  const Value result = BM_TRY(call(callee, arguments));
  const std::string printed = BM_TRY(text(result));
  return write(printed);
}

Status Interpreter::run_with(const Statement& statement) {
  std::vector<Value> values;
  for (const ExpressionPtr& value : statement.conditions)
    values.push_back(BM_TRY(evaluate(*value)));
  Scope* const outer = std::exchange(scope_, heap_.scope(scope_));
  for (size_t i = 0; i < values.size(); ++i) scope_->set(statement.targets[i]->name, values[i]);
  const auto flow = execute(statement.bodies[0]);
  scope_ = outer;
  if (!flow) return tl::unexpected(flow.error());
  return {};
}

Status Interpreter::bind_parameters(const Macro& macro, const Arguments& arguments, Scope& scope) {
  const MacroDefinition& definition = *macro.definition;
  const size_t count = definition.parameters.size();
  const size_t without_default = count - definition.defaults.size();
  std::vector<bool> is_used(arguments.named.size(), false);
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = definition.parameters[i];
    const Value* given = i < arguments.positional.size() ? &arguments.positional[i] : nullptr;
    for (size_t j = 0; j < arguments.named.size(); ++j) {
      if (arguments.named[j].first != name) continue;
      if (given != nullptr) return error("macro {} got two values for {}", definition.name, name);
      given = &arguments.named[j].second;
      is_used[j] = true;
    }
    if (given != nullptr)
      scope.set(name, *given);
    else if (i >= without_default)
      scope.set(name, BM_TRY(evaluate(*definition.defaults[i - without_default])));
    else
      scope.set(name, undefined(fmt::format("parameter {} of macro {} was not given", name,
                                            definition.name)));
  }
  if (arguments.positional.size() > count && !definition.uses_varargs)
    return error("macro {} takes {} arguments, not {}", definition.name, count,
                 arguments.positional.size());
  if (definition.uses_varargs) {
    std::vector<Value> rest;
    for (size_t i = count; i < arguments.positional.size(); ++i)
      rest.push_back(arguments.positional[i]);
    scope.set("varargs", BM_TRY(list(std::move(rest), SequenceType::kTuple)));
  }
  Value caller = undefined("no caller: the macro was not called by a call block");
  const Value named = heap_.dict();
  for (size_t j = 0; j < arguments.named.size(); ++j) {
    const auto& [name, value] = arguments.named[j];
    if (is_used[j]) continue;
    if (name == "caller" && definition.uses_caller)
      caller = value;
    else if (definition.uses_kwargs)
      named.dict->set(BM_TRY(string(std::string(name))), value);
    else
      return error("macro {} has no parameter {}", definition.name, quote_name(name));
  }
  if (definition.uses_kwargs) scope.set("kwargs", named);
  if (definition.uses_caller) scope.set("caller", caller);
  return {};
}

Result<Value> Interpreter::call_macro(const Macro& macro, const Arguments& arguments) {
  const Level level(*this);
  if (level.is_too_deep()) return error("macros call each other too deeply");
  Scope* const scope = heap_.scope(macro.scope);
  Scope* const outer = std::exchange(scope_, scope);
  const Position at = at_;
  Status status = bind_parameters(macro, arguments, *scope);
  std::string captured;
  if (status) {
    std::string* const output = std::exchange(output_, &captured);
    auto flow = execute(macro.definition->body);
    output_ = output;
    if (!flow) status = tl::unexpected(flow.error());
  }
  scope_ = outer;
  if (!status) return tl::unexpected(status.error());
  at_ = at;
  return string(std::move(captured));
}

}  // namespace bm::models::jinja
