#pragma once
// What planted faults need: a simulated machine, the NVIDIA device on it as the runtime opens it,
// kernels of a few PTX instructions, and the table the faults are rows of.

#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/nv/device.h"
#include "runtime/device.h"
#include "runtime/stream.h"
#include "tests/sim/nv/fake_system.h"

namespace bm::nv::faults {

/// BM_WAIT_TIMEOUT_MS where a wait is to run out.
inline constexpr uint32_t kWaitMs = 300;

/// A kernel: the instructions of its body. `%d1` holds its only argument, "at".
struct KernelText {
  std::string_view name;
  std::string_view body;
  hal::Dim3 block = {.x = 32};
  uint32_t shared_bytes = 0;
};

class Bench {
 public:
  explicit Bench(const sim::nv::Options& options);
  ~Bench() { close(); }

  sim::nv::FakeNvSystem& system() { return *system_; }
  sim::nv::Knobs& knobs() { return system_->kernel().knobs(); }
  runtime::Device& device() { return *device_; }
  hal::Device& hal() { return device_->hal(); }
  bool is_open() const { return device_ != nullptr; }

  Status open(uint32_t index = 0);
  Result<std::unique_ptr<runtime::Device>> open_unit(uint32_t index);
  void close();

  /// Lives until close(). `host_visible` memory is mapped at its address, so host() works.
  Result<hal::Buffer*> allocate(uint64_t bytes, bool host_visible = false);
  hal::CodeObject code(const KernelText& kernel);
  Result<const hal::Program*> load(const KernelText& kernel);
  /// Submits and waits as the runtime does.
  Status run(hal::QueueKind kind, std::vector<hal::Command> commands);
  Status launch(const KernelText& kernel, uint64_t at, hal::Dim3 grid = {});
  Status copy(hal::QueueKind kind, uint64_t to, uint64_t from, uint64_t bytes);
  /// A kernel and copies give the right bytes.
  Status works();

  /// More of what the message must say, known only when the fault is planted.
  std::vector<std::string> also;

 private:
  std::unique_ptr<sim::nv::FakeNvSystem> system_;
  std::unique_ptr<runtime::Device> device_;
  std::vector<std::unique_ptr<hal::Buffer>> buffers_;
  std::vector<std::unique_ptr<hal::Program>> programs_;
};

/// What the message says of the compute ring: all was fetched, or some was not.
enum class Ring : uint8_t { kAny, kFetched, kBehind };

/// One planted fault.
struct Planted {
  const char* name;
  sim::nv::Options machine = {};
  bool needs_device = true;  ///< opened before `plant` is called
  Status (*plant)(Bench& bench) = nullptr;
  Code code = Code::kDeviceFault;
  std::vector<std::string> says;  ///< all of it must be in the message
  std::string says_not = {};      ///< and this must not, if any
  Ring ring = Ring::kAny;
  bool is_sticky = false;     ///< every later call must tell the same
  bool is_repairable = true;  ///< the same machine works again once the knobs are back
};

/// The name, for the test program's messages.
void PrintTo(const Planted& fault, std::ostream* out);

std::vector<Planted> device_faults();   ///< kernels and copies that go wrong, engines that stand
std::vector<Planted> machine_faults();  ///< machines, drivers and programs that must be refused

}  // namespace bm::nv::faults
