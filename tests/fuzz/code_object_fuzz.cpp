// Code objects come from the cache file. Whatever the bytes, deserialize must refuse or return a
// value that serializes to the same bytes.
#include <cstring>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/base/check.h"
#include "runtime/hal/program.h"

namespace {

void check(std::span<const std::byte> bytes) {
  const auto code = bm::hal::CodeObject::deserialize(bytes);
  if (!code) return;
  const std::vector<std::byte> again = code->serialize();
  BM_CHECK(again.size() == bytes.size());
  BM_CHECK(std::memcmp(again.data(), bytes.data(), bytes.size()) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  check(input);
  // A fuzzer does not guess checksums: append the right one so that the fields are reached.
  std::vector<std::byte> sealed(input.begin(), input.end());
  const uint64_t sum = XXH3_64bits(sealed.data(), sealed.size());
  const auto* sum_bytes = reinterpret_cast<const std::byte*>(&sum);
  sealed.insert(sealed.end(), sum_bytes, sum_bytes + sizeof sum);
  check(sealed);
  return 0;
}
