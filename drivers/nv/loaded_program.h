#pragma once
// A kernel in GPU memory with everything its launches share.

#include <memory>
#include <string_view>

#include "drivers/hcq/gpu.h"
#include "drivers/nv/chips.h"
#include "drivers/nv/methods/qmd.h"
#include "drivers/nv/program.h"
#include "runtime/hal/program.h"

namespace bm::nv {

struct Gpu;

/// What launches of a kernel need, without its memory: a pure function of chip and kernel.
struct LaunchPlan {
  QmdVersion version = QmdVersion::k3_0;
  LaunchMethod method = LaunchMethod::kPcas2B;
  uint32_t action = 0;  ///< of kPcas2B
  LaunchShape shape;    ///< addresses relative to the image, grid 1
  Bank0Layout bank0;
  uint32_t bank0_bytes = 0;     ///< multiple of 16
  uint32_t dynamic_shared = 0;  ///< bytes that the launch adds to what the kernel declares
  uint32_t reserved_shared = 0;
  bool is_ptx = false;
};

/// How kernels are launched where a chip knows several ways.
struct LaunchForm {
  QmdVersion descriptor;
  uint8_t action;
};
/// The chip's own, or what `text` says: "4.0", "3.0,9" (descriptor, action of
/// SEND_SIGNALING_PCAS2_B).
/// Errors: kInvalidArgument naming what the chip takes.
Result<LaunchForm> parse_launch_form(const ChipRow& chip, std::string_view text);

/// What an SM has, beside the chip's row.
struct SmLimits {
  uint32_t sm = 0;  ///< 90 for sm_90
  uint32_t warps_per_sm = 64;
  LaunchForm form;
};

/// Errors: kInvalidArgument naming the resource (threads, registers, shared memory, block
/// dimensions, parameters) that no launch of this kernel could have, with limit and remedy.
Result<LaunchPlan> plan_launch(const ChipRow& chip, const SmLimits& limits,
                               const KernelInfo& kernel, const hal::CodeObject& code);

/// Errors: kInvalidArgument for a grid beyond what the descriptor and the hardware take.
Status check_grid(const hal::CodeObject& code, const hal::Dim3& grid);
inline constexpr uint32_t kLargestGridX = 0x7fffffff, kLargestGridYZ = 0xffff;

class NvProgram final : public hcq::GpuProgram<NvProgram, Gpu> {
 public:
  NvProgram(std::shared_ptr<Gpu> gpu, hal::CodeObject code, LaunchPlan plan, hcq::Allocation image);
  ~NvProgram() override;
  const LaunchPlan& plan() const { return plan_; }

 private:
  LaunchPlan plan_;
};

}  // namespace bm::nv
