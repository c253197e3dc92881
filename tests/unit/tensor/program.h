#pragma once
// Tensor programs as data: inputs and steps over the public API, with what every value has to be.
//
// A program is drawn, judged, run on a device and shrunk without knowing what its steps do: a step
// is a row of program_ops.cpp. The judge computes in float64 on the reference device and carries a
// bound of the error of every element, so that no tolerance is guessed.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace bm::test {

/// Numbers of a step; which of them count is up to its row.
struct Numbers {
  int64_t i = 0, j = 0, k = 0;
  bool keep = false;
  DType t = DType::kF32;
  Axes axes;
  std::vector<int64_t> dims;
  std::vector<std::pair<int64_t, int64_t>> pads;
  SymInt length;  ///< of the program that has one: the variable, or its value where that is fixed
};

/// What a row's expression sees.
struct Operands {
  Tensor x, y, z;
  Numbers n;
};

/// How far the result of a row may be from the exact one, in units of the last place.
enum class Noise : uint8_t {
  kExact,    ///< moves, selects, or computes on integers
  kRounded,  ///< one rounding: exact where the result is a number of its dtype
  kMath,     ///< several operations or an approximation
  kSum,      ///< many additions
  kNorm,     ///< the same, and a division of what is left after a mean is taken away
  kStep,     ///< jumps: right or wrong
  kOrder,    ///< jumps with the order of elements along axis i: argmax, positions of a sort
};

struct Drawer;
struct Step;

struct Row {
  int weight;
  Noise noise;
  /// Dtypes of x: any of "f" floats, "i" integers, "b" bool.
  const char* takes;
  bool (*draw)(Drawer&, Step&);  ///< other operands and numbers; false: nothing fits
  const char* text;  ///< the expression, over x, y, z, i, j, k, keep, t, axes, dims, pads
  Tensor (*run)(Operands&);
  bool is_assign = false;
  /// Begin and end along axis i of what an assignment writes; nullptr: all of it.
  std::pair<SymInt, SymInt> (*part)(const Numbers&) = nullptr;
};

/// Operands are counted from 0 for results of steps, from -1 downwards for inputs.
struct Step {
  size_t row = 0;
  std::vector<int> args;
  Numbers n;
};

struct Input {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<double> values;
  bool is_mask = false;  ///< hides elements for which no bound could be given
  /// Of a program with a length: how `shape`, the storage, is cut before the first step. Axis a has
  /// times[a] · length + a constant, and its storage has room for the most. Empty: is not cut.
  std::vector<int64_t> times = {};
};

struct Program {
  uint64_t seed = 0;
  std::vector<Input> inputs;
  std::vector<Step> steps;
  std::vector<int> outputs;
  /// A program with a length, a variable within [1, most]: its values, in the order of the runs.
  std::vector<int64_t> lengths = {};
  int64_t most = 0;
};

/// Extents of an input where the length is this.
Shape extents_of(const Program& p, const Input& in, const SymInt& length);
/// Values with poison where an index is not below the extents.
std::vector<double> poisoned(std::vector<double> values, const std::vector<int64_t>& shape,
                             const std::vector<int64_t>& extents, DType t);
/// The program of fixed sizes that a program with a length is where the length is this.
Input at_length(const Program& p, const Input& in, int64_t length);
Program at_length(const Program& p, int64_t length);

constexpr size_t kHideRow = 0;  ///< y ? x : 0; the row after it does the same for bool
const std::vector<Row>& rows();

/// A value as the judge knows it.
struct Judged {
  DType dtype = DType::kF32;  ///< on the device
  std::vector<int64_t> shape;
  Tensor truth;                ///< on REF: float64 for floats
  std::vector<double> values;  ///< of truth, floats only
  std::vector<double> error;   ///< bound of each element, floats only
  Tensor nominal;              ///< on REF, never computed: tells dtypes and shapes
  bool is_exact() const;       ///< every device computes the same bits
};
int64_t count_of(const std::vector<int64_t>& shape);
Judged judge_input(const Input& input);
/// Elements that no bound can be given for are marked in `hidden` (true: hide). Nothing, with the
/// reason, where the step cannot be judged at all: out of the dtype's range, too ill-conditioned.
std::optional<Judged> judge_step(const Step& step, const std::vector<const Judged*>& args,
                                 std::vector<bool>* hidden, std::string* reason);

/// Whether every step and output reads what the judge thinks it reads: no handle of storage that an
/// assignment has given new contents.
bool reads_are_current(const Program& p, const std::vector<Judged>& inputs,
                       const std::vector<Judged>& results);

/// A program and what its steps have to give.
struct Case {
  Program program;
  std::vector<Judged> results;   ///< with a length: those of fixed[0]
  std::vector<Case> fixed = {};  ///< with a length: the case of each of program.lengths
};
/// Of up to 2,048 elements a value, or of up to 65,536; kProducts: of extents and types that matrix
/// instructions take, which the dice of the others seldom give; kLengths: small, over a length that
/// is a variable.
enum class Size : uint8_t { kSmall, kLarge, kProducts, kLengths };
Case draw_case(uint64_t seed, Size size = Size::kSmall);
/// Nothing where the program cannot be judged.
std::optional<Case> case_of(Program p);

/// How a program is run.
enum class Mode : uint8_t { kFused, kSteps, kCaptured, kNested };
const char* mode_name(Mode mode);

/// Elements of outputs, and those that a mask of the program hides.
struct Tally {
  uint64_t programs = 0, steps = 0, compared = 0, hidden = 0;
};
/// Where a program runs, and how.
struct Target {
  std::string device;
  Mode mode = Mode::kFused;
  const Row* planted = nullptr;  ///< stands for the row of equal text on the device: a bug to find
};
/// "" or what differs on the device. Counts what was compared.
std::string difference(const Case& c, const Target& target, Tally* tally);

/// The same for each of several programs of one mode. Fused ones share one schedule, and those that
/// run step by step share one for every step: its kernels are compiled at once.
std::vector<std::string> differences(std::span<const Case* const> cases, const Target& target,
                                     Tally* tally);

/// The program's outputs on the device, not computed: what a compiler would get to see.
std::vector<Tensor> lazy_outputs(const Program& p, const std::string& device);

/// A smaller case that still fails; `why` receives its message.
Case shrunk(Case c, const Target& target, std::string* why);
/// The program as a source file over the public API: runs it on REF and on the device, and prints
/// where they differ.
std::string source_of(const Program& p, const Target& target);

}  // namespace bm::test
