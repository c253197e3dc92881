// Random programs mean the same everywhere: reference device, compiled lazily (fused), compiled
// step by step, and captured and replayed. A failure prints the seed and a program reduced to the
// steps that matter. BM_TEST_LONG=1 runs twenty times as many.
#include "tensor/jit.h"
#include "tests/unit/tensor/random_program.h"
#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

enum class Mode : uint8_t { kFused, kEager, kCaptured };

using Values = std::vector<std::vector<double>>;

/// The newest slots, which depend on most of the others.
std::vector<Tensor> outputs_of(const std::vector<Slot>& slots) {
  std::vector<Tensor> out;
  for (size_t i = slots.size() >= 7 ? slots.size() - 3 : 4; i < slots.size(); ++i)
    out.push_back(slots[i].x.contiguous());
  return out;
}

Values values_of(const std::vector<Tensor>& tensors) {
  Values out;
  for (const Tensor& t : tensors) out.push_back(numbers(t));
  return out;
}

Values run_on(const Program& p, uint64_t input_seed, const std::string& device, Mode mode) {
  if (mode != Mode::kCaptured)
    return values_of(
        outputs_of(run_program(p, program_inputs(input_seed, device), mode == Mode::kEager)));
  Jit step([&](const std::vector<Tensor>& in) { return outputs_of(run_program(p, in, false)); });
  for (uint64_t other = 1; other <= 2; ++other) step(program_inputs(input_seed + other, device));
  return values_of(
      step(program_inputs(input_seed, device)));  // the replay sees other inputs than the capture
}

/// "" or what differs between REF and a device.
std::string difference(const Program& p, const std::string& device, Mode mode) {
  const std::vector<Slot> slots = run_program(p, program_inputs(p.seed, "REF"), false);
  const Values expected = values_of(outputs_of(slots));
  Values actual;
  try {
    actual = run_on(p, p.seed, device, mode);
  } catch (const Exception& e) {
    return fmt::format("throws: {}", e.what());
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    const bool is_exact = slots[slots.size() - expected.size() + i].is_exact;
    const auto result =
        are_close(expected[i], actual[i], is_exact ? Tolerance{} : Tolerance{1e-4, 1e-4});
    if (!result) return fmt::format("output {}: {}", i, result.message());
  }
  return "";
}

/// Leaves out every step without which it still fails.
Program reduced(Program p, const std::string& device, Mode mode) {
  for (bool has_shrunk = true; has_shrunk;) {
    has_shrunk = false;
    for (size_t i = p.steps.size(); i-- > 0 && p.steps.size() > 1;) {
      Program shorter = p;
      shorter.steps.erase(shorter.steps.begin() + static_cast<int64_t>(i));
      if (difference(shorter, device, mode).empty()) continue;
      p = std::move(shorter);
      has_shrunk = true;
    }
  }
  return p;
}

struct Where {
  const char* device;
  Mode mode;
  int programs;
};

class RandomProgram : public ::testing::TestWithParam<Where> {};

std::string where_name(const ::testing::TestParamInfo<Where>& info) {
  static constexpr const char* kModes[] = {"Fused", "Eager", "Captured"};
  std::string name =
      fmt::format("{}_{}", info.param.device, kModes[static_cast<int>(info.param.mode)]);
  for (char& c : name)
    if (c == ':') c = '_';
  return name;
}

std::vector<Where> everywhere() {
  std::vector<Where> list{Where{"CPU", Mode::kFused, 100},     Where{"CPU", Mode::kEager, 30},
                          Where{"CPU", Mode::kCaptured, 50},   Where{"REF", Mode::kCaptured, 50},
                          Where{"CPU:CLANG", Mode::kFused, 4}, Where{"CL", Mode::kFused, 10},
                          Where{"CL", Mode::kCaptured, 5}};
  for (const char* device : devices_and({}))
    for (const Mode mode : {Mode::kFused, Mode::kCaptured}) list.push_back({device, mode, 8});
  return list;
}
INSTANTIATE_TEST_SUITE_P(Everywhere, RandomProgram, ::testing::ValuesIn(everywhere()), where_name);

TEST_P(RandomProgram, AgreesWithTheReferenceDevice) {
  const Where& w = GetParam();
  for (const char* name : {"REF", w.device})
    if (const std::string reason = why_not(name); !reason.empty()) GTEST_SKIP() << reason;
  for (int i = 0; i < w.programs * effort(); ++i) {
    const auto seed = static_cast<uint64_t>(i) * 7919 + 1;
    const Program p = draw_program(seed, 4 + static_cast<size_t>(i) % 12);
    const std::string first = difference(p, w.device, w.mode);
    if (first.empty()) continue;
    const Program small = reduced(p, w.device, w.mode);
    std::string listing;
    run_program(small, program_inputs(seed, "REF"), false, &listing);
    FAIL() << "seed " << seed << ": " << difference(small, w.device, w.mode)
           << "\n(slots 0, 1: float32 [3, 4], [5]; 2, 3: int32 [3, 4], [2, 1, 4])\n"
           << listing << "before reduction: " << first;
  }
}

}  // namespace
}  // namespace bm::test
