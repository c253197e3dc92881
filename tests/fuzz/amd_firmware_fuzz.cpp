// Any bytes as one of AMD's microcode files: first byte the kind, the rest the file. Nothing may
// crash or read outside, and what is handed out lies inside the file. Size and CRC are set right
// first, or the mutations would all end at them.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "firmware/amd/ucode.h"
#include "firmware/decompress.h"
#include "runtime/base/check.h"

namespace {

using namespace bm::firmware;

void look(amd::Kind kind, std::span<const std::byte> bytes) {
  const auto ucode = amd::parse(kind, Image("fuzz", bytes));
  if (!ucode) {
    BM_CHECK(ucode.error().message.find('\n') == std::string::npos);
    return;
  }
  for (const amd::Part& part : ucode->parts) {
    BM_CHECK(!part.bytes.empty() && part.offset >= sizeof(amd::CommonFirmwareHeader));
    BM_CHECK(part.bytes.data() == bytes.data() + part.offset);
    BM_CHECK(part.offset + part.bytes.size() <= bytes.size());
    BM_CHECK(ucode->need(part.id, part.is_aux, part.type).has_value());
  }
  const auto code = amd::code_before_jump_table(*ucode);
  BM_CHECK(!code || code->size() <= bytes.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto kind = static_cast<amd::Kind>(data[0] % 9);
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  look(kind, bytes);
  if (bytes.size() < sizeof(amd::CommonFirmwareHeader)) return 0;
  std::vector<std::byte> sealed(bytes.begin(), bytes.end());
  const auto put = [&](size_t at, uint32_t value) { std::memcpy(&sealed[at], &value, 4); };
  put(0, static_cast<uint32_t>(sealed.size()));
  put(28, crc32(std::span<const std::byte>(sealed).subspan(32)));
  look(kind, sealed);
  return 0;
}
