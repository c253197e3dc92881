#pragma once
// What planted faults need of NVIDIA: a simulated machine, the device on it, kernels of a few PTX
// instructions, and the tables the faults are rows of.

#include <memory>
#include <string_view>
#include <vector>

#include "drivers/nv/device.h"
#include "tests/sim/nv/fake_system.h"
#include "tests/unit/planted/planted.h"

namespace bm::nv::faults {

using planted::kWaitMs;

/// A kernel: the instructions of its body. `%d1` holds its only argument, "at".
struct KernelText {
  std::string_view name;
  std::string_view body;
  hal::Dim3 block = {.x = 32};
  uint32_t shared_bytes = 0;
};

class Bench final : public planted::Bench {
 public:
  explicit Bench(const sim::nv::Options& options);
  ~Bench() override { close(); }

  sim::nv::FakeNvSystem& system() { return *system_; }
  sim::nv::Knobs& knobs() { return system_->kernel().knobs(); }

  Result<std::unique_ptr<runtime::Device>> open_unit(uint32_t index) override;
  hal::CodeObject any_code() override { return code({"nothing", ""}); }
  Status works() override;

  hal::CodeObject code(const KernelText& kernel);
  using planted::Bench::launch, planted::Bench::load;
  Result<const hal::Program*> load(const KernelText& kernel) { return load(code(kernel)); }
  Status launch(const KernelText& kernel, uint64_t at, hal::Dim3 grid = {}) {
    return launch(code(kernel), at, grid);
  }

 private:
  std::unique_ptr<sim::nv::FakeNvSystem> system_;
};

using Planted = planted::Row<Bench, sim::nv::Options>;

std::vector<Planted> device_faults();   ///< kernels and copies that go wrong, engines that stand
std::vector<Planted> machine_faults();  ///< machines, drivers and programs that must be refused

}  // namespace bm::nv::faults
