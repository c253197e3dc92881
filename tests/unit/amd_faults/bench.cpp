#include "tests/unit/amd_faults/bench.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <span>

#include "drivers/amd/kfd/gpu.h"
#include "tests/sim/amd/engine/interpreter.h"

namespace bm::amd::faults {
namespace {

/// Allocations follow one another there, so that it is known what lies beside them. Below what the
/// system hands out; ThreadSanitizer allows nothing that low.
#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kWindow = 0x7e90'0000'0000;
#else
constexpr uint64_t kWindow = 0x6f00'0000'0000;
#endif

sim::amd::Options with_code(sim::amd::Options machine) {
  if (!machine.execute) machine.execute = sim::amd::interpreter(machine.chip);
  return machine;
}

}  // namespace

Bench::Bench(sim::amd::Options machine, PacketMode packets)
    : system_(std::make_unique<sim::amd::FakeKfd>(with_code(std::move(machine)))),
      packets_(packets) {}

Result<std::unique_ptr<runtime::Device>> Bench::open_unit(uint32_t index) {
  auto kernel = BM_TRY(kfd::open_gpu(*system_, {.index = index, .window = kWindow}));
  auto made = BM_TRY(make_device(std::move(kernel), {.packets = packets_}));
  return runtime::make_device(std::move(made), fmt::format("AMD:{}", index), "LLVM");
}

void Bench::start_again() {
  close();
  system_ = system_->next_process();
}

hal::CodeObject Bench::code(std::string_view kernel) const {
  const std::string chip = system_->machine().options.chip;
  std::ifstream file("tests/unit/amd_faults/data/" + chip + ".o", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto bytes = std::as_bytes(std::span(text));
  hal::CodeObject code;
  code.entry = kernel;
  code.arch = chip;
  code.image.assign(bytes.begin(), bytes.end());
  code.num_buffers = 1;
  code.block = {.x = 32};
  return code;
}

Status Bench::works() {
  constexpr uint64_t kBytes = 32 * 8;
  hal::Buffer* const video = BM_TRY(allocate(kBytes));
  hal::Buffer* const seen = BM_TRY(allocate(kBytes, true));
  BM_TRY(launch("numbers", hal::raw(video->va())));
  BM_TRY(copy(hal::QueueKind::kCopy, hal::raw(seen->va()), hal::raw(video->va()), kBytes));
  BM_TRY(launch("step", hal::raw(seen->va())));
  for (uint64_t i = 0; i < 32; ++i) {
    uint64_t number = 0;
    std::memcpy(&number, seen->host() + i * 8, 8);
    const uint64_t wanted = i == 0 ? 7 * 3 + 1 : i * 8 + 7;
    if (number != wanted) return fail(Code::kInternal, "number {} is {}", i, number);
  }
  return {};
}

}  // namespace bm::amd::faults
