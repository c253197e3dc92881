#pragma once
// Runs a parsed chat template. Everything is bounded: steps, bytes, output and depth; nothing
// outside is reached.

#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "models/chat/functions.h"
#include "models/chat/parser.h"
#include "models/chat/value.h"
#include "models/model_error.h"

namespace bm::models::jinja {

struct InterpreterLimits {
  uint64_t steps = 0;
  size_t heap_bytes = 0;
  size_t output_bytes = 0;
};

class Interpreter {
 public:
  Interpreter(const InterpreterLimits& limits, const std::tm& now)
      : limits_(limits), now_(now), budget_(limits.steps), globals_(heap_.scope(nullptr)) {}

  Heap& heap() { return heap_; }
  Budget& budget() { return budget_; }
  const std::tm& now() const { return now_; }

  /// Makes a variable known; `name` outlives the interpreter.
  void define(std::string_view name, const Value& value) { globals_->set(name, value); }
  Result<std::string> run(const Template& parsed);

  // What functions are made of.

  /// An error at the place that is being evaluated.
  template <class... Args>
  tl::unexpected<Error> error(fmt::format_string<Args...> format, Args&&... args) const {
    return fail(Code::kInvalidArgument, "{}: {}", place(at_),
                fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  tl::unexpected<Error> unsupported(fmt::format_string<Args...> format, Args&&... args) const {
    return fail(Code::kUnsupported, "{}: {}", place(at_),
                fmt::format(format, std::forward<Args>(args)...));
  }
  /// Errors: kInvalidArgument when steps or memory are used up.
  Status spend(uint64_t steps);
  Result<Value> string(std::string text);
  Result<Value> list(std::vector<Value> items, SequenceType type = SequenceType::kList);
  Value undefined(std::string why);

  /// str(value) and repr(value) of Python, appended.
  Status append_text(std::string& out, const Value& value);
  Status append_repr(std::string& out, const Value& value);
  Result<std::string> text(const Value& value);

  /// The items of anything that can be iterated; generators are used up.
  Result<std::vector<Value>> items(const Value& value);
  /// len(value)
  Result<int64_t> length(const Value& value);
  Result<int64_t> integer(const Value& value, std::string_view what);
  Result<std::string_view> string_of(const Value& value, std::string_view what);
  Result<Value> attribute(const Value& object, std::string_view name);
  Result<Value> item(const Value& object, const Value& key);
  /// object.a.0.b, as filters take it in `attribute`; `fallback` stands in for each part that is
  /// missing.
  Result<Value> path(const Value& object, const Value& attribute, const Value* fallback = nullptr);
  Result<bool> contains(const Value& container, const Value& value);
  Result<bool> less(const Value& a, const Value& b);
  Result<Value> add(const Value& a, const Value& b);
  Result<Value> modulo(const Value& a, const Value& b);
  Result<Value> call(const Value& callee, const Arguments& arguments);
  Result<Value> apply(const FunctionRow& row, const Value& self, const Arguments& arguments);
  /// "…" % values
  Result<Value> format_percent(std::string_view format, const Value& values);

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };
  /// Counts nested calls of the interpreter, whatever kind they are of.
  class Level {
   public:
    explicit Level(Interpreter& interpreter) : interpreter_(interpreter) { ++interpreter_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ~Level() { --interpreter_.depth_; }
    bool is_too_deep() const { return interpreter_.depth_ > kMaxDepth; }

   private:
    Interpreter& interpreter_;
  };
  static constexpr int kMaxDepth = 700;

  Result<Flow> execute(const Body& body);
  Result<Flow> execute(const Statement& statement);
  Result<Flow> run_if(const Statement& statement);
  Result<Flow> run_for(const Statement& statement);
  Status run_set_block(const Statement& statement);
  Status run_call_block(const Statement& statement);
  Status run_filter_block(const Statement& statement);
  Status run_with(const Statement& statement);
  Status assign(const Expression& target, const Value& value);
  Status write(std::string_view text);
  /// What `body` prints in a scope of its own, as a string.
  Result<Value> capture(const Body& body);

  Result<Value> evaluate(const Expression& expression);
  Result<Value> evaluate_now(const Expression& expression);
  Result<Value> evaluate_name(const Expression& expression);
  Result<Value> evaluate_dict(const Expression& expression);
  Result<Value> evaluate_slice(const Expression& expression);
  Result<Value> evaluate_call(const Expression& expression);
  Result<Value> evaluate_filter(const Expression& expression);
  Result<Value> evaluate_compare(const Expression& expression);
  Result<Value> evaluate_concat(const Expression& expression);
  Result<Value> evaluate_binary(const Expression& expression);
  Result<Value> filter_chain(const Expression& chain, const Value& head);
  Result<Arguments> evaluate_arguments(const Expression& expression);
  Result<bool> compare(Comparison comparison, const Value& a, const Value& b);
  Result<Value> binary(ExpressionType type, const Value& a, const Value& b);
  Result<Value> arithmetic(ExpressionType type, const Value& a, const Value& b);
  Result<Value> integer_arithmetic(ExpressionType type, int64_t a, int64_t b);
  Result<Value> power(const Value& a, const Value& b);
  Result<Value> repeat(const Value& value, int64_t times);
  Result<Value> negate(const Value& value);
  Result<Value> loop_attribute(Loop& loop, std::string_view name);
  Result<Value> call_macro(const Macro& macro, const Arguments& arguments);
  Status bind_parameters(const Macro& macro, const Arguments& arguments, Scope& scope);
  tl::unexpected<Error> operand_error(std::string_view op, const Value& a, const Value& b) const;
  tl::unexpected<Error> undefined_error(const Value& value) const;

  InterpreterLimits limits_;
  std::tm now_;
  Budget budget_;
  Heap heap_;
  Scope* globals_;
  Scope* scope_ = nullptr;
  std::string* output_ = nullptr;
  Position at_;
  int depth_ = 0;
};

}  // namespace bm::models::jinja
