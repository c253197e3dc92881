#pragma once
// Kernels: a cubin, PTX text that the driver compiles, or the one with the other behind it
// (runtime/base/paired_image.h): then the text is taken where the driver refuses the cubin.

#include <cstdint>
#include <memory>
#include <string_view>

#include "drivers/cuda/context.h"
#include "runtime/base/result.h"
#include "runtime/hal/program.h"

namespace bm::cuda {

class CudaProgram final : public hal::Program {
 public:
  /// Everything a launch could be refused for is checked here, but for the grid. Errors: kCompile
  /// with the driver's log; kCorrupt (a cubin that leaves its own bytes); kInvalidArgument
  /// (architecture, block, arguments); kUnsupported (more shared memory than there is).
  static Result<std::unique_ptr<CudaProgram>> load(ContextPtr context, const hal::CodeObject& code);
  ~CudaProgram() override;

  CuFunction function() const { return function_; }
  const Context& context() const { return *context_; }
  /// Shared memory that a launch asks for besides what the kernel declares.
  uint32_t launch_shared_bytes() const { return launch_shared_bytes_; }
  /// The kernel says itself when it needs what the kernel before it wrote (griddepcontrol.wait), so
  /// it may be started early.
  bool waits_for_grid() const { return waits_for_grid_; }
  uint32_t argument_words() const { return code_.num_buffers + code_.num_vars; }
  /// Errors: kInvalidArgument naming the axis and the limit. A grid of nothing is fine.
  Status check_grid(hal::Dim3 grid) const;

 private:
  CudaProgram(ContextPtr context, hal::CodeObject code)
      : Program(std::move(code)), context_(std::move(context)) {}
  Status load_module();
  Status load_image(const std::byte* image, bool is_text);
  Status check_arguments() const;
  Status check_limits() const;
  Status plan_shared();
  void plan_early_start();

  const ContextPtr context_;
  CuModule module_ = nullptr;
  CuFunction function_ = nullptr;
  uint32_t launch_shared_bytes_ = 0;
  bool waits_for_grid_ = false;
};

/// Whether the entry `kernel` of PTX text has the instruction griddepcontrol.wait (PTX ISA 7.8).
/// What comments say and what other functions do does not count.
bool has_grid_wait(std::string_view text, std::string_view kernel);

}  // namespace bm::cuda
