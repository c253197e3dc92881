#pragma once
// Values of a chat template: what Python's objects are to Jinja. Containers lie in a Heap and are
// freed with it, so values are plain handles, cycles leak nothing and no destructor recurses.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace bm::models::jinja {

struct String;
struct Sequence;
struct Dict;
struct Function;
struct Macro;
struct Loop;

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kSequence,
  kDict,
  kNamespace,
  kFunction,
  kMacro,
  kLoop,
};

/// A handle; copying it shares the object. Valid as long as the Heap (or template) its object lies
/// in.
struct Value {
  Kind kind = Kind::kUndefined;
  union {
    bool boolean;
    int64_t integer = 0;
    double number;
    const String* string;  ///< of kString; of kUndefined why it is (may be null)
    Sequence* sequence;
    Dict* dict;  ///< of kDict, which is never changed once built, and kNamespace
    const Function* function;
    const Macro* macro;
    Loop* loop;
  };

  static Value none() { return of(Kind::kNone); }
  static Value of(Kind kind) {
    Value value;
    value.kind = kind;
    return value;
  }
  static Value of(bool flag) {
    Value value = of(Kind::kBool);
    value.boolean = flag;
    return value;
  }
  static Value of(int64_t number) {
    Value value = of(Kind::kInt);
    value.integer = number;
    return value;
  }
  static Value of(double number) {
    Value value = of(Kind::kFloat);
    value.number = number;
    return value;
  }
  static Value of(const String* text) {
    Value value = of(Kind::kString);
    value.string = text;
    return value;
  }

  bool is_undefined() const { return kind == Kind::kUndefined; }
  bool is_none() const { return kind == Kind::kNone; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_sequence() const { return kind == Kind::kSequence; }
  bool is_dict() const { return kind == Kind::kDict; }
  /// bool is a kind of int in Python.
  bool is_integral() const { return kind == Kind::kInt || kind == Kind::kBool; }
  bool is_numeric() const { return is_integral() || kind == Kind::kFloat; }
  /// Of an integral value.
  int64_t as_int() const { return kind == Kind::kBool ? int64_t{boolean} : integer; }
  /// Of a numeric value.
  double as_double() const { return kind == Kind::kFloat ? number : static_cast<double>(as_int()); }
  std::string_view text() const;
};

/// Valid UTF-8. Python counts code points, so their number is kept.
struct String {
  explicit String(std::string bytes);
  std::string text;
  int64_t length = 0;  ///< code points
  bool is_ascii() const { return length == static_cast<int64_t>(text.size()); }
};

enum class SequenceType : uint8_t {
  kList,
  kTuple,
  kRange,
  kKeys,
  kValues,
  kItems,
  kGenerator,  ///< what filters such as map give: read once, without a length
};

struct Sequence {
  SequenceType type = SequenceType::kList;
  std::vector<Value> items;
  int64_t start = 0, stop = 0, step = 1;  ///< of kRange, for its text
  size_t next = 0;                        ///< of kGenerator: items before it have been read
};

/// Keeps the order in which keys were first set, as Python's dict.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  /// `key` is hashable (is_hashable).
  void set(const Value& key, const Value& value);

 private:
  int64_t index_of(const Value& key, size_t hash) const;
  std::unordered_multimap<size_t, uint32_t> index_;  ///< hash → entry, once there are many
};

struct FunctionRow;
struct MacroDefinition;

/// A function of the language, or a method bound to `self`.
struct Function {
  const FunctionRow* row = nullptr;
  Value self;
};

/// Names of one block; names that it lacks are looked up in `parent`.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string_view, Value>> variables;
  const Value* find(std::string_view name) const;  ///< here or above
  void set(std::string_view name, const Value& value);
};

/// A macro with the scope it was defined in, whose later changes it sees.
struct Macro {
  const MacroDefinition* definition = nullptr;
  Scope* scope = nullptr;
};

/// The variable `loop`.
struct Loop {
  Sequence* items = nullptr;
  size_t index = 0;
  Sequence* last_changed = nullptr;  ///< arguments of the last loop.changed()
};

/// Work that is left to a rendering. One step is about one node of the syntax tree or 16 bytes.
class Budget {
 public:
  explicit Budget(uint64_t steps) : left_(steps) {}
  /// False once there is nothing left.
  bool spend(uint64_t steps) {
    left_ = steps > left_ ? 0 : left_ - steps;
    return left_ > 0;
  }
  bool is_spent() const { return left_ == 0; }

 private:
  uint64_t left_;
};

/// What may be the key of a dict: scalars. (Python has tuples too; templates do not.)
bool is_hashable(const Value& value);
/// Equal keys have equal hashes: 1, 1.0 and true are one key.
size_t hash_of(const Value& value);
/// Python's ==. Containers deeper than `depth`, and all once the budget is spent, are unequal.
bool equals(const Value& a, const Value& b, Budget& budget, int depth = 200);
bool is_truthy(const Value& value);
/// "str", "list", …: what Python calls the type; for messages.
std::string_view type_name(const Value& value);

/// Owns every object that a rendering makes.
class Heap {
 public:
  Heap() = default;
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  Value string(std::string text);
  Value list(std::vector<Value> items, SequenceType type = SequenceType::kList);
  Value dict();
  Value name_space();
  Value function(const FunctionRow* row, const Value& self);
  Value macro(const Macro& macro);
  Loop* loop(Sequence* items);
  Sequence* sequence(std::vector<Value> items, SequenceType type);
  Scope* scope(Scope* parent);

  /// Bytes taken so far; nothing is given back before the end.
  size_t bytes() const { return bytes_; }
  void charge(size_t bytes) { bytes_ += bytes; }

 private:
  size_t bytes_ = 0;
  std::deque<String> strings_;
  std::deque<Sequence> sequences_;
  std::deque<Dict> dicts_;
  std::deque<Function> functions_;
  std::deque<Macro> macros_;
  std::deque<Loop> loops_;
  std::deque<Scope> scopes_;
};

}  // namespace bm::models::jinja
