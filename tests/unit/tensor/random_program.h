#pragma once
// Random tensor programs: lists of steps that stay valid whatever steps are removed, because every
// choice is taken from the step's numbers modulo what is possible at that point.

#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace bm::test {

struct Step {
  uint32_t op = 0;
  uint32_t left = 0, right = 0;  ///< slots, counted modulo their number
  uint32_t choice[3] = {};
};

struct Program {
  uint64_t seed = 0;
  std::vector<Step> steps;
};

Program draw_program(uint64_t seed, size_t num_steps);

/// A value, and whether every device computes exactly the same bits for it. Operations that jump
/// (comparisons, rounding, sorting, conversion to integers) are only applied to exact values.
struct Slot {
  Tensor x;
  bool is_exact = true;
};

/// Inputs of every program: float32 [3, 4], float32 [5], int32 [3, 4], int32 [2, 1, 4].
std::vector<Tensor> program_inputs(uint64_t seed, const std::string& device);

/// Runs the steps; slots 0 … 3 are the inputs. `is_eager`: realises after every step.
/// `log`, if given, receives one line per step.
std::vector<Slot> run_program(const Program& p, const std::vector<Tensor>& inputs, bool is_eager,
                              std::string* log = nullptr);

}  // namespace bm::test
