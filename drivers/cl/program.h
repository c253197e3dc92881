#pragma once
// Kernels: OpenCL C text, or a program binary made by program_binary().

#include <cstddef>
#include <memory>
#include <vector>

#include "drivers/cl/context.h"
#include "runtime/base/result.h"
#include "runtime/hal/program.h"

namespace bm::cl {

class ClProgram final : public hal::Program {
 public:
  /// Everything a launch could be refused for is checked here: block size, local memory, number of
  /// arguments. Errors: kCompile with source line and log; kInvalidArgument (architecture, block,
  /// arguments, binary of another driver); kUnsupported (more local memory or argument bytes than
  /// the device has).
  static Result<std::unique_ptr<ClProgram>> load(ContextPtr context, const hal::CodeObject& code);

  /// Shared kernel of eager launches: set arguments and launch under the submission lock.
  cl_kernel kernel() const { return kernel_.get(); }
  /// A kernel of the caller's own, whose arguments stay as set.
  Result<OwnedKernel> new_kernel() const;
  /// The driver's binary behind a header that names device, driver and platform: load() takes it in
  /// place of the text, and refuses it elsewhere.
  Result<std::vector<std::byte>> binary() const;
  Result<std::vector<std::byte>> native_image() const override { return binary(); }
  /// The driver's binary as it is.
  Result<std::vector<std::byte>> raw_binary() const;
  const Context& context() const { return *context_; }

 private:
  ClProgram(ContextPtr context, hal::CodeObject code)
      : Program(std::move(code)), context_(std::move(context)) {}
  Status build();
  Result<OwnedProgram> create() const;
  Error build_error(cl_int error) const;
  Status check_limits() const;

  const ContextPtr context_;
  OwnedProgram program_;
  OwnedKernel kernel_;
};

/// The first "file:line:column" of a build log with that line of the source, or "". Pure.
std::string quote_line(std::string_view log, std::string_view source);

}  // namespace bm::cl
