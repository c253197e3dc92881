// The dependency tracker against a model that keeps last writer and readers per byte.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/tracker.h"

namespace {

constexpr size_t kBases = 3;
constexpr uint64_t kBytes = 64;

struct ByteState {
  bool has_writer = false;
  uint32_t writer = 0;
  std::vector<uint32_t> readers;
};
using Model = std::array<std::array<ByteState, kBytes>, kBases>;

std::vector<uint32_t> model_add(Model& model, uint32_t call,
                                const std::vector<bm::runtime::Access>& accesses) {
  const auto bytes_of = [&](const bm::runtime::Access& a) -> std::array<ByteState, kBytes>& {
    return model[reinterpret_cast<uintptr_t>(a.base) - 1];
  };
  std::set<uint32_t> found;
  for (const auto& a : accesses) {
    for (uint64_t i = a.begin; i < a.end; ++i) {
      const ByteState& byte = bytes_of(a)[i];
      if (byte.has_writer) found.insert(byte.writer);
      if (a.is_written) found.insert(byte.readers.begin(), byte.readers.end());
    }
  }
  for (const auto& a : accesses)
    for (uint64_t i = a.begin; i < a.end && a.is_read; ++i) bytes_of(a)[i].readers.push_back(call);
  for (const auto& a : accesses)
    for (uint64_t i = a.begin; i < a.end && a.is_written; ++i) bytes_of(a)[i] = {true, call, {}};
  return {found.begin(), found.end()};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bm::runtime::DependencyTracker tracker;
  Model model;
  std::vector<uint32_t> dependencies;
  std::vector<bm::runtime::Access> accesses;
  uint32_t call = 0;
  // Three bytes per access: base and flags, begin, length; a flag ends the call.
  for (size_t i = 0; i + 3 <= size && call < 300; i += 3) {
    bm::runtime::Access access;
    access.base = reinterpret_cast<const void*>(static_cast<uintptr_t>(data[i] % kBases + 1));
    access.begin = data[i + 1] % kBytes;
    access.end = std::min<uint64_t>(kBytes, access.begin + data[i + 2] % 24);
    access.is_read = (data[i] & 0x40) != 0;
    access.is_written = (data[i] & 0x20) != 0;
    accesses.push_back(access);
    if ((data[i] & 0x80) != 0) continue;
    tracker.add(call, accesses, dependencies);
    BM_CHECK(dependencies == model_add(model, call, accesses));
    accesses.clear();
    ++call;
  }
  return 0;
}
