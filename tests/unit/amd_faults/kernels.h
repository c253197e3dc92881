#pragma once
// Kernels of data/faults.ll, and the proof that a device still works, on whatever bench.

#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

#include "runtime/hal/program.h"
#include "tests/unit/planted/bench.h"

namespace bm::amd::faults {

/// One buffer, blocks of 32 threads.
inline hal::CodeObject kernel(const std::string& chip, std::string_view name) {
  std::ifstream file("tests/unit/amd_faults/data/" + chip + ".o", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto bytes = std::as_bytes(std::span(text));
  hal::CodeObject code;
  code.entry = name;
  code.arch = chip;
  code.image.assign(bytes.begin(), bytes.end());
  code.num_buffers = 1;
  code.block = {.x = 32};
  return code;
}

/// A kernel without scratch, a copy, a kernel with scratch; then their numbers are compared.
/// `Bench`: has launch(kernel, address).
template <class Bench>
Status kernels_and_copies_work(Bench& bench) {
  constexpr uint64_t kBytes = 32 * 8;
  hal::Buffer* const video = BM_TRY(bench.allocate(kBytes));
  hal::Buffer* const seen = BM_TRY(bench.allocate(kBytes, true));
  BM_TRY(bench.launch("numbers", hal::raw(video->va())));
  BM_TRY(bench.copy(hal::QueueKind::kCopy, hal::raw(seen->va()), hal::raw(video->va()), kBytes));
  BM_TRY(bench.launch("step", hal::raw(seen->va())));
  for (uint64_t i = 0; i < 32; ++i) {
    uint64_t number = 0;
    std::memcpy(&number, seen->host() + i * 8, 8);
    const uint64_t wanted = i == 0 ? 7 * 3 + 1 : i * 8 + 7;
    if (number != wanted) return fail(Code::kInternal, "number {} is {}", i, number);
  }
  return {};
}

}  // namespace bm::amd::faults
