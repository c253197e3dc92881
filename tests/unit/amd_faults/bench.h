#pragma once
// What planted faults need of AMD: a simulated machine, the device on it, kernels of real code, and
// the tables the faults are rows of.

#include <memory>
#include <string_view>
#include <vector>

#include "drivers/amd/device.h"
#include "tests/sim/amd/kfd/fake_kfd.h"
#include "tests/unit/planted/planted.h"

namespace bm::amd::faults {

class Bench final : public planted::Bench {
 public:
  Bench(sim::amd::Options machine, PacketMode packets);
  ~Bench() override { close(); }

  sim::amd::FakeKfd& system() { return *system_; }
  sim::amd::Knobs& knobs() { return system_->knobs(); }
  /// As if the program were started again on the same machine.
  void start_again();

  Result<std::unique_ptr<runtime::Device>> open_unit(uint32_t index) override;
  hal::CodeObject any_code() override { return code("numbers"); }
  /// With and without scratch.
  Status works() override;

  /// A kernel of data/faults.ll: one buffer, blocks of 32 threads.
  hal::CodeObject code(std::string_view kernel) const;
  using planted::Bench::launch, planted::Bench::load;
  Result<const hal::Program*> load(std::string_view kernel) { return load(code(kernel)); }
  Status launch(std::string_view kernel, uint64_t at, hal::Dim3 grid = {}) {
    return launch(code(kernel), at, grid);
  }

 private:
  std::unique_ptr<sim::amd::FakeKfd> system_;
  PacketMode packets_;
};

using Planted = planted::Row<Bench, sim::amd::Options>;

std::vector<Planted> device_faults();   ///< kernels and copies that go wrong, engines that stand
std::vector<Planted> machine_faults();  ///< machines, drivers and programs that must be refused

}  // namespace bm::amd::faults
