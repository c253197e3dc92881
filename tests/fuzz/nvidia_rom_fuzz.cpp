// Any bytes as a card's ROM: from its images to FWSEC with a command in it. The header of the BIT
// is made to add up first, or few mutations would get past it.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "firmware/nvidia/fwsec.h"
#include "firmware/nvidia/vbios.h"
#include "runtime/base/check.h"

namespace {

using namespace bm::firmware;
using Bytes = std::span<const std::byte>;

void inside(Bytes part, Bytes whole) {
  if (part.empty()) return;
  BM_CHECK(part.data() >= whole.data());
  BM_CHECK(part.data() + part.size() <= whole.data() + whole.size());
}

void look(Bytes bytes) {
  const auto rom = nvidia::parse_rom(Image("fuzz", bytes));
  if (!rom) {
    BM_CHECK(rom.error().message.find('\n') == std::string::npos);
    return;
  }
  inside(rom->bytes, bytes);
  for (const nvidia::RomImage& image : rom->images)
    BM_CHECK(image.size != 0 && uint64_t{image.offset} + image.size <= rom->bytes.size());
  if (const auto bit = nvidia::find_bit(*rom)) (void)nvidia::vbios_version(*rom, *bit);
  for (const auto fusing : {nvidia::Fusing::kProduction, nvidia::Fusing::kDebug}) {
    const auto fwsec = nvidia::find_fwsec(*rom, fusing);
    if (!fwsec) continue;
    inside(fwsec->code, bytes);
    inside(fwsec->data, bytes);
    for (const Bytes signature : fwsec->signatures) inside(signature, bytes);
    for (const uint32_t fuses : {0u, 1u, 0xffu}) {
      const auto ready = nvidia::prepare(
          *fwsec, {.frts_address = 0x10000, .frts_size = 0x1000, .fuse_register = fuses});
      if (!ready) continue;
      BM_CHECK(ready->code.size() >= fwsec->code.size() && ready->code.size() % 256 == 0);
      BM_CHECK(ready->data.size() >= fwsec->data.size() && ready->data.size() % 256 == 0);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::byte> bytes(std::as_bytes(std::span(data, size)).begin(),
                               std::as_bytes(std::span(data, size)).end());
  look(bytes);
  constexpr uint8_t kMark[] = {0xff, 0xb8, 'B', 'I', 'T', 0};
  for (size_t at = 0; at + 12 <= bytes.size(); ++at) {
    if (std::memcmp(&bytes[at], kMark, sizeof kMark) != 0) continue;
    bytes[at + 8] = std::byte{12};
    uint8_t sum = 0;
    for (size_t i = 0; i < 11; ++i)
      sum = static_cast<uint8_t>(sum + static_cast<uint8_t>(bytes[at + i]));
    bytes[at + 11] = static_cast<std::byte>(-sum);
  }
  look(bytes);
  return 0;
}
