#pragma once
// Commands are values: a queue takes a span of them. Encoding them is the driver's pure function.

#include <cstdint>
#include <variant>

#include "runtime/hal/program.h"

namespace bm::hal {

/// Address in the device's space. On the CPU device it is the host pointer.
enum class GpuVa : uint64_t {};
constexpr uint64_t raw(GpuVa va) { return static_cast<uint64_t>(va); }
constexpr GpuVa offset(GpuVa va, uint64_t bytes) { return GpuVa{raw(va) + bytes}; }

/// Hold the queue until *signal >= value. Gives up when the word stands still for
/// BM_WAIT_TIMEOUT_MS. An inline device then returns kTimeout with wanted and actual value, runs
/// nothing behind the wait, and is usable. A queue either makes that its device's fault
/// (Device::status) and never runs what is behind the wait, or goes on standing there: the host's
/// own waits time out, and a late signal lets the queue go on.
struct Wait {
  GpuVa signal;
  uint64_t value;
};
struct Signal {
  GpuVa signal;
  uint64_t value;
};  ///< after all earlier commands are visible: *signal = value
struct Timestamp {
  GpuVa dst;
};  ///< device clock, 64-bit ticks of Arch::clock_hz
struct Barrier {};  ///< later commands see writes of host, peers and earlier commands
struct Copy {
  GpuVa dst, src;
  uint64_t bytes;
};
/// `kernarg` holds CodeObject's argument block (num_buffers + num_vars words of 8 bytes) and must
/// stay valid and unchanged until the commands complete.
struct Dispatch {
  const Program* program;
  GpuVa kernarg;
  Dim3 grid;
};
struct Write {
  GpuVa dst;
  uint64_t value;
};
using Command = std::variant<Wait, Signal, Timestamp, Barrier, Copy, Dispatch, Write>;

/// Patch site: a word of a recorded command list that replay rewrites with `values[slot] + addend`.
enum class PatchField : uint8_t {
  kKernarg,  ///< word `word` of the Dispatch's argument block
  kGridX,
  kGridY,
  kGridZ,
  kCopyDst,
  kCopySrc,
  kCopyBytes,
  kSignalAddress,
  kSignalValue,  ///< of Wait, Signal; of Timestamp/Write: dst, value
};
struct Patch {
  uint32_t command = 0;
  PatchField field = PatchField::kKernarg;
  uint32_t word = 0;
  uint32_t slot = 0;
  uint64_t addend = 0;
};

}  // namespace bm::hal
