#pragma once
// Kernels of a computation, with what each costs and what the machine could do.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/graph.h"
#include "tensor/schedule.h"
#include "tools/bellmetal/cpu_bench/limits.h"

namespace bm::cli {

/// "ir", "schedule", "program", "source", "assembly": the order in which a kernel passes them.
std::vector<std::string> explain_stages();

/// One kernel of a computation, however often it is launched.
struct ExplainedKernel {
  runtime::Call call;  ///< of its first launch
  uint32_t launches = 0;
  double flops = 0, bytes = 0;  ///< of one launch; each element touched counts once
};

/// The launches of a computation, recorded but not run.
class Recorded {
 public:
  /// `work` builds and realises tensors; nothing runs. Errors: what it throws.
  static Result<std::unique_ptr<Recorded>> record(const std::function<void()>& work);

  const std::vector<ExplainedKernel>& kernels() const { return kernels_; }
  /// The kernel as the compiler gets it; nullptr for copies.
  const ir::KernelIr* ir(const ExplainedKernel& kernel) const;
  /// Values of the kernel's variables.
  std::vector<int64_t> variables(const ExplainedKernel& kernel) const;
  /// Median seconds of a launch on the memory it was recorded with.
  Result<double> measure(const ExplainedKernel& kernel) const;

 private:
  KernelRecorder::Programs irs_;
  Schedule schedule_;
  std::vector<ExplainedKernel> kernels_;
};

/// The roof over one kernel: as fast as arithmetic or memory allow.
struct Roof {
  double seconds = 0;
  bool is_memory = false;  ///< memory is what limits
};

/// Limits of the CPU as measured when first asked: the best of several tries.
class Roofline {
 public:
  explicit Roofline(uint32_t threads) : team_(threads) {}
  Roof roof(double flops, double bytes);
  double flops_per_second();
  /// Of reading as many bytes again and again.
  double bytes_per_second(double bytes);

 private:
  double rate(const Contender& limit, double amount);
  Team team_;
  double flops_ = 0;
  std::map<int, double> bytes_;  ///< by the binary logarithm of the size
};

}  // namespace bm::cli
