// Files of captured programs come from elsewhere. Whatever the bytes, parsing must refuse them or
// give an image whose every index and range is good, and which is written back as it was.
#include <algorithm>
#include <cstring>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/base/check.h"
#include "tensor/captured_program_file.h"

namespace {

constexpr size_t kPrologue = 20;  // magic, version, checksum of the rest

void check(std::span<const std::byte> bytes) {
  const auto image = bm::parse_image(bytes);
  if (!image) {
    BM_CHECK(!image.error().message.empty());
    return;
  }
  for (const auto& call : image->calls)
    for (const auto& arg : call.args)
      if (arg.slot < 0) {
        const auto& memory = image->memory.at(arg.memory);
        BM_CHECK(arg.offset <= memory.size && arg.size <= memory.size - arg.offset);
      }
  for (const auto& memory : image->memory) {
    const auto* const at = memory.contents.data();
    BM_CHECK(memory.contents.empty() ||
             (at >= bytes.data() && at + memory.contents.size() <= bytes.data() + bytes.size()));
  }
  const std::vector<std::byte> again = bm::write_image(*image);
  BM_CHECK(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  check(input);
  // A fuzzer does not guess checksums, nor the start.
  if (size < kPrologue) return 0;
  std::vector<std::byte> sealed(input.begin(), input.end());
  const uint64_t magic = 0x4d5247504d42;
  const uint32_t version = 1;
  std::memcpy(sealed.data(), &magic, sizeof magic);
  std::memcpy(sealed.data() + sizeof magic, &version, sizeof version);
  const uint64_t sum = XXH3_64bits(sealed.data() + kPrologue, sealed.size() - kPrologue);
  std::memcpy(sealed.data() + sizeof magic + sizeof version, &sum, sizeof sum);
  check(sealed);
  return 0;
}
