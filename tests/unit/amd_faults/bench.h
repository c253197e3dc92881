#pragma once
// What planted faults need: a simulated machine, the AMD device on it as the runtime opens it,
// kernels of real code, and the table the faults are rows of.

#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/amd/device.h"
#include "runtime/device.h"
#include "runtime/stream.h"
#include "tests/sim/amd/kfd/fake_kfd.h"

namespace bm::amd::faults {

/// BM_WAIT_TIMEOUT_MS where a wait is to run out.
inline constexpr uint32_t kWaitMs = 300;

class Bench {
 public:
  Bench(sim::amd::Options machine, PacketMode packets);
  ~Bench() { close(); }

  sim::amd::FakeKfd& system() { return *system_; }
  sim::amd::Knobs& knobs() { return system_->knobs(); }
  runtime::Device& device() { return *device_; }
  hal::Device& hal() { return device_->hal(); }
  bool is_open() const { return device_ != nullptr; }

  Status open(uint32_t index = 0);
  Result<std::unique_ptr<runtime::Device>> open_unit(uint32_t index);
  void close();
  /// As if the program were started again on the same machine.
  void start_again();

  /// Lives until close().
  Result<hal::Buffer*> allocate(uint64_t bytes, bool host_visible = false);
  /// A kernel of data/faults.ll: one buffer, blocks of 32 threads.
  hal::CodeObject code(std::string_view kernel) const;
  Result<const hal::Program*> load(std::string_view kernel);
  /// Submits and waits as the runtime does.
  Status run(hal::QueueKind kind, std::vector<hal::Command> commands);
  Status launch(std::string_view kernel, uint64_t at, hal::Dim3 grid = {});
  Status copy(hal::QueueKind kind, uint64_t to, uint64_t from, uint64_t bytes);
  /// Kernels (with and without scratch) and copies give the right bytes.
  Status works();

  /// More of what the message must say, known only when the fault is planted.
  std::vector<std::string> also;

 private:
  std::unique_ptr<sim::amd::FakeKfd> system_;
  PacketMode packets_;
  std::unique_ptr<runtime::Device> device_;
  std::vector<std::unique_ptr<hal::Buffer>> buffers_;
  std::vector<std::unique_ptr<hal::Program>> programs_;
};

/// One planted fault.
struct Planted {
  const char* name;
  sim::amd::Options machine = {};
  bool needs_device = true;  ///< opened before `plant` is called
  Status (*plant)(Bench& bench) = nullptr;
  Code code = Code::kDeviceFault;
  std::vector<std::string> says;  ///< all of it must be in the message
  std::string says_not = {};      ///< and this must not, if any
  bool is_sticky = false;         ///< every later call must tell the same
  bool is_repairable = true;      ///< the next process on the same machine works
};

/// The name, for the test program's messages.
void PrintTo(const Planted& fault, std::ostream* out);

std::vector<Planted> device_faults();   ///< kernels and copies that go wrong, engines that stand
std::vector<Planted> machine_faults();  ///< machines, drivers and programs that must be refused

}  // namespace bm::amd::faults
