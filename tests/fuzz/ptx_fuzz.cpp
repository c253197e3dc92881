// Any text: the PTX parser must neither crash nor accept what cannot be run; what it accepts runs
// for a while over a small memory, with every check on.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runtime/base/check.h"
#include "tests/sim/ptx/interpreter.h"

namespace {

class SmallMemory : public bm::sim::ptx::Memory {
 public:
  std::byte* at(uint64_t address, uint32_t bytes, bm::sim::ptx::Access) override {
    if (address < kBase || address - kBase > bytes_.size()) return nullptr;
    return bytes_.size() - (address - kBase) >= bytes ? bytes_.data() + (address - kBase) : nullptr;
  }
  static constexpr uint64_t kBase = 0x100000;

 private:
  alignas(16) std::array<std::byte, 4096> bytes_{};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bm::sim::ptx;
  const auto module = parse({reinterpret_cast<const char*>(data), size});
  if (!module) {
    BM_CHECK(!module.error().message.empty());
    return 0;
  }
  (*module)->image(SmallMemory::kBase);
  for (const KernelInfo& kernel : (*module)->kernels()) {
    if (kernel.registers > 4096 || kernel.local_bytes > 4096) continue;
    std::vector<uint64_t> params(kernel.param_bytes / 8 + 1, SmallMemory::kBase);
    SmallMemory memory;
    Launch launch;
    launch.kernel = kernel.name;
    launch.grid = {2};
    launch.block = kernel.required_block.value_or(Dim3{40});
    launch.params = std::as_bytes(std::span(params));
    launch.max_instructions = 2000;
    launch.dynamic_shared = 64;
    launch.checks = {true, true};
    const auto result = run(**module, launch, memory);
    if (!result) BM_CHECK(!result.error().text().empty());
  }
  return 0;
}
