// Bundles are files from elsewhere. Whatever the bytes, parsing must refuse them or give a bundle
// whose kernels can be asked for.
#include <cstring>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "compiler/bundle.h"
#include "runtime/base/check.h"

namespace {

void check(std::span<const std::byte> bytes) {
  const auto bundle = bm::compiler::Bundle::parse(bytes);
  if (!bundle) {
    BM_CHECK(!bundle.error().message.empty());
    return;
  }
  (void)bundle->fits(bm::hal::Arch{});
  // Keys lie at a known place: 20 bytes, vendor, three texts, count.
  size_t at = 20 + 1;
  for (int text = 0; text < 3; ++text) {
    uint64_t size = 0;
    std::memcpy(&size, bytes.data() + at, sizeof size);
    at += sizeof size + size;
  }
  at += sizeof(uint64_t);
  for (size_t i = 0; i < bundle->size(); ++i, at += 32) {
    bm::compiler::BundleKey key;
    std::memcpy(&key.high, bytes.data() + at, 8);
    std::memcpy(&key.low, bytes.data() + at + 8, 8);
    const auto code = bundle->find(key);
    BM_CHECK(!code || code->has_value());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  check(input);
  // A fuzzer does not guess checksums: put the right one behind the head where there is room.
  std::vector<std::byte> sealed(input.begin(), input.end());
  uint64_t head = 0;
  if (sealed.size() < 20) return 0;
  std::memcpy(&head, sealed.data() + 12, sizeof head);
  if (head > sealed.size() - 20 || sealed.size() - 20 - head < sizeof head) return 0;
  const uint64_t sum = XXH3_64bits(sealed.data(), 20 + head);
  std::memcpy(sealed.data() + 20 + head, &sum, sizeof sum);
  check(sealed);
  return 0;
}
