#pragma once
// The contract every device implements. Drivers implement it and see nothing else of the runtime.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/hal/arch.h"
#include "runtime/hal/command.h"
#include "runtime/hal/program.h"

namespace bm::hal {

/// What BufferDesc::external points to.
enum class ExternalKind : uint8_t {
  kHostPointer,  ///< memory of this process
  kClMem,        ///< a cl_mem of the device's context; retained while wrapped (OpenCL only)
  kSvmPointer,   ///< memory of clSVMAlloc; `host_visible` says it is fine-grained (OpenCL only)
  kCudaPointer,  ///< a CUdeviceptr of the device's GPU and primary context (CUDA only)
};

/// How memory is to be placed. Compared by value: it is part of the allocator's cache key.
struct BufferDesc {
  uint64_t size = 0;          ///< bytes, > 0
  bool host_visible = false;  ///< Buffer::host() must work
  bool host_memory = false;   ///< backing is system memory
  bool uncached = false;      ///< coherent: signals, rings, command pages
  bool zero = false;          ///< contents are zero; never cached on free
  bool no_cache = false;      ///< release at once when freed
  void* external =
      nullptr;  ///< wrap caller memory (host pointer, cl_mem, …); never freed by the device
  ExternalKind external_kind =
      ExternalKind::kHostPointer;  ///< other kinds: kUnsupported where foreign
  bool operator==(const BufferDesc&) const = default;
};

/// One allocation. Destroying it frees it at once; delaying that is the allocator's job.
class Buffer {
 public:
  virtual ~Buffer() = default;
  GpuVa va() const { return va_; }
  uint64_t size() const { return desc_.size; }
  const BufferDesc& desc() const { return desc_; }
  /// Host view of the memory, or nullptr if it cannot be reached by the CPU.
  std::byte* host() const { return host_; }

 protected:
  Buffer(const BufferDesc& desc, GpuVa va, std::byte* host) : desc_(desc), va_(va), host_(host) {}
  BufferDesc desc_;
  GpuVa va_{};
  std::byte* host_ = nullptr;
};

/// Immutable command image of one queue, with patch table.
class Recording {
 public:
  virtual ~Recording() = default;
};

enum class QueueKind : uint8_t { kCompute, kCopy };

class Queue {
 public:
  virtual ~Queue() = default;
  /// Hands commands to the hardware in order; returns before they complete unless the device runs
  /// inline (Device::is_inline). Back-pressure: blocks (bounded) while the ring is full.
  ///
  /// Errors: kInvalidArgument, and nothing of the list runs, for what cannot be right: Wait,
  /// Signal, Timestamp or Write at address 0 or one that is no multiple of 8; Copy of bytes from or
  /// to address 0; Dispatch without a program, of a program this device did not load, without an
  /// aligned argument block where the kernel takes arguments, or of more blocks than the device can
  /// launch (never more than 2^63). An address that is wrong otherwise is refused where the device
  /// knows its ranges and a fault where it does not. kTimeout: the ring stayed full, or an inline
  /// device's Wait gave up (Wait). The device's sticky fault.
  virtual Status submit(std::span<const Command> commands) = 0;
  /// Encodes once. Errors: as submit; kInvalidArgument also for a patch of a command, field or word
  /// that does not exist, or two slots of one place. kUnsupported: the caller falls back to submit.
  virtual Result<std::unique_ptr<Recording>> record(std::span<const Command> commands,
                                                    std::span<const Patch> patches) = 0;
  /// Rewrites what changed since the last replay of this recording and starts it. The previous
  /// replay of the same recording must have completed. No allocation, no system call on success.
  /// Errors: as submit, for the values patched in, too; a launch dimension beyond 32 bits and too
  /// few values are kInvalidArgument. After a refusal the recording is as good as before.
  virtual Status replay(Recording& recording, std::span<const uint64_t> values) = 0;
};

struct MemoryInfo {
  uint64_t total = 0, used = 0;
};

class Device {
 public:
  /// After everything made by it. Waits for work in flight, bounded; what is stuck is given up.
  virtual ~Device() = default;
  virtual const Arch& arch() const = 0;
  /// Human name: CPU model, card's marketing name.
  virtual std::string description() const = 0;
  /// Errors: kInvalidArgument: no bytes, or `external` reaches beyond the address space or, where
  /// the device looks, is not the caller's memory; kUnsupported: a foreign `external_kind`;
  /// kOutOfMemory with requested and used bytes: the device stays as good as before.
  virtual Result<std::unique_ptr<Buffer>> allocate(const BufferDesc& desc) = 0;
  /// Makes another device's buffer reachable here; returns its address on this device.
  virtual Result<GpuVa> map(Buffer& peer) = 0;
  /// Errors, before anything of it runs: kInvalidArgument: made for another arch (names both), a
  /// block without threads or of more than Arch::max_block; kUnsupported: more shared memory than
  /// Arch::shared_memory_bytes, more for launches than there is, symbols nobody has; kCorrupt,
  /// kCompile or those: a damaged image.
  virtual Result<std::unique_ptr<Program>> load(const CodeObject& code) = 0;
  virtual Queue& queue(QueueKind kind) = 0;
  /// True: submit and replay return with all work done (CPU, REF, NULL); their Signals are already
  /// visible.
  virtual bool is_inline() const { return false; }
  /// Sticky: first fault after which every call fails with the same cause: allocate, load, submit,
  /// record and replay return this very error. Bad input never causes one.
  virtual Status status() = 0;
  /// Gives the device up, where it has no fault yet: `cause` becomes its sticky fault, waits inside
  /// the driver end, and destruction waits for nothing. For who waited in vain, since only he knows
  /// that nothing moves. Devices that run inline are never given up. Thread: any, also while other
  /// threads wait inside submit.
  virtual void lose(const Error& /*cause*/) {}
  /// Makes a device whose work failed or hangs usable again: what was in flight is dropped,
  /// wherever it was; buffers keep address and contents, programs and recordings stay good;
  /// status() is well. Signals of dropped work never come: who counts on them moves the words
  /// himself, between this and the next submission. Thread: no other call may submit meanwhile.
  /// Errors: kUnsupported: open the device again; kDeviceLost: there is nothing to recover; what
  /// rebuilding returns: the device stays failed and may be tried again.
  virtual Status recover() {
    return fail(Code::kUnsupported, "this device cannot recover: open it again");
  }
  /// Ends what is in flight, whatever it takes, before the device is destroyed: afterwards no
  /// engine touches memory any more, and buffers, programs and recordings may outlive the device.
  /// Every later call returns the fault there was, or kDeviceLost. False: this device cannot.
  virtual bool stop() { return false; }
  virtual MemoryInfo memory() const = 0;
  /// Disassembly of a code object's kernel, or kUnsupported.
  virtual Result<std::string> disassemble(const CodeObject& code) = 0;
};

using OpenedDevice = Result<std::unique_ptr<Device>>;

/// One row of the table of drivers (drivers/builtin.cpp).
struct DriverInfo {
  const char* name;  ///< device name in DEV: "CPU", "AMD", …
  const char*
      interfaces;  ///< space separated interface names in order of trial: "KFD PCI USB"; "" if
                   ///< none, nullptr where any unit number opens: what is no piece of hardware
  const char* renderers;  ///< space separated renderer names, default first: "LLVM CLANG"
  const char* help;       ///< what is missing when it cannot be opened, e.g. the package to install
  /// Number of physical units; must not open or disturb them. `interface` empty: the first that
  /// works.
  Result<uint32_t> (*count)(std::string_view interface);
  /// What is installed, by files alone, e.g. "pocl.icd (libpocl.so.2)"; "" if files do not tell.
  /// nullptr where `count` is as cheap; never loads a library that brings more than itself.
  Result<std::string> (*installed)() = nullptr;
  /// Opens unit `index`. `arch`: requested architecture or empty.
  OpenedDevice (*open)(std::string_view interface, uint32_t index, std::string_view arch);
  /// Those of `interfaces` that take a device for this process alone, because opening boots it:
  /// "PCI USB". Tried only when named, and not opened to list devices.
  const char* booting = "";
};

/// Every driver in this build, in order of preference as default device. Defined in
/// drivers/builtin.cpp.
std::span<const DriverInfo> builtin_drivers();

}  // namespace bm::hal
