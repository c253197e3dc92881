#pragma once
// Symbolic integers for shapes: constant + Σ coefficient·variable. One captured program serves all
// values a variable takes within its bounds.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace bm {

/// A named integer whose value may change between runs, e.g. the position in a sequence.
/// Handle: copies share the value. The value is read when work is realised or replayed.
class Var {
 public:
  /// Requires min <= max. The value starts at min.
  Var(std::string name, int64_t min, int64_t max);
  const std::string& name() const;
  int64_t min() const;
  int64_t max() const;
  int64_t value() const;
  /// Throws Exception(kInvalidArgument) outside [min, max].
  void set(int64_t value) const;
  uint64_t id() const;  ///< unique per variable in this process
  bool operator==(const Var& other) const { return state_ == other.state_; }

 private:
  struct State;
  std::shared_ptr<State> state_;
};

class SymInt {
 public:
  SymInt(int64_t value = 0)
      : constant_(value) {}  // NOLINT(google-explicit-constructor): an integer is a SymInt
  SymInt(const Var& var) : terms_{{var, 1}} {}  // NOLINT(google-explicit-constructor)

  struct Term {
    Var var;
    int64_t coefficient;
    bool operator==(const Term&) const = default;
  };

  bool is_const() const { return terms_.empty(); }
  bool is(int64_t v) const { return terms_.empty() && constant_ == v; }
  int64_t constant() const { return constant_; }
  const std::vector<Term>& terms() const { return terms_; }
  int64_t min() const;
  int64_t max() const;
  int64_t value() const;  ///< with the variables' current values
  std::string to_string() const;

  friend SymInt operator+(const SymInt& a, const SymInt& b);
  friend SymInt operator-(const SymInt& a, const SymInt& b);
  friend SymInt operator*(const SymInt& a, int64_t b);
  bool operator==(const SymInt&) const = default;

 private:
  int64_t constant_ = 0;
  std::vector<Term> terms_;  ///< sorted by variable id, coefficients never 0
};

using Shape = std::vector<SymInt>;

/// "[2, 3, n+1]".
std::string to_string(const Shape& shape);
/// Product of the dimensions' largest values. Throws Exception(kInvalidArgument) past 2^62.
int64_t max_elements(const Shape& shape);
/// Product of the dimensions' current values.
int64_t elements_now(const Shape& shape);
bool is_static(const Shape& shape);
/// Row-major strides in elements over the dimensions' largest values.
std::vector<int64_t> strides_of(const Shape& shape);
/// Numpy broadcasting. Throws Exception(kInvalidArgument) naming both shapes and `what`.
Shape broadcast(const Shape& a, const Shape& b, std::string_view what);

}  // namespace bm
