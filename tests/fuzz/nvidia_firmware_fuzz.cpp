// Any bytes as one of NVIDIA's firmware files: first byte the kind, the rest the file. Nothing may
// crash or read outside, and what is handed out lies inside the file.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "firmware/nvidia/falcon.h"
#include "firmware/nvidia/gsp_image.h"
#include "firmware/nvidia/riscv.h"
#include "runtime/base/check.h"

namespace {

using namespace bm::firmware;
using Bytes = std::span<const std::byte>;

void inside(Bytes part, Bytes whole) {
  if (part.empty()) return;
  BM_CHECK(part.data() >= whole.data());
  BM_CHECK(part.data() + part.size() <= whole.data() + whole.size());
}
void inside(nvidia::Range range, Bytes image) {
  BM_CHECK(range.size == 0 || uint64_t{range.offset} + range.size <= image.size());
}
template <class T>
bool is_read(const bm::Result<T>& result) {
  if (!result) BM_CHECK(result.error().message.find('\n') == std::string::npos);
  return result.has_value();
}

void look_at_hs(const Image& file) {
  const auto ucode = nvidia::parse_hs_ucode(file);
  if (!is_read(ucode)) return;
  inside(ucode->image, file.bytes());
  for (const Bytes signature : ucode->signatures) inside(signature, file.bytes());
  for (const auto& app : ucode->apps) inside(app.code, ucode->image);
  inside(ucode->os_data, ucode->image);
  for (const uint32_t fuses : {0u, 1u, 3u, 0xffffffffu}) {
    const auto image = nvidia::signed_image(*ucode, fuses);
    BM_CHECK(!is_read(image) || image->size() == ucode->image.size());
  }
}

void look_at_others(uint8_t kind, const Image& file) {
  if (kind == 1) {
    const auto loader = nvidia::parse_falcon_boot_loader(file);
    if (!is_read(loader)) return;
    inside(loader->code, file.bytes());
    inside(loader->data, file.bytes());
  } else if (kind == 2) {
    const auto ucode = nvidia::parse_riscv_ucode(file);
    if (!is_read(ucode)) return;
    inside(ucode->image, file.bytes());
    for (const nvidia::Range& part : {ucode->bootloader, ucode->manifest, ucode->monitor_code})
      inside(part, ucode->image);
  } else if (kind == 3) {
    const auto gsp = nvidia::parse_gsp_image(file);
    if (!is_read(gsp)) return;
    inside(gsp->image, file.bytes());
    for (const auto& signature : gsp->signatures) {
      inside(signature.bytes, file.bytes());
      BM_CHECK(gsp->signature_of(signature.family).has_value());
    }
  } else {
    const auto fmc = nvidia::parse_fmc_image(file);
    if (!is_read(fmc)) return;
    for (const Bytes part : {fmc->image, fmc->hash, fmc->public_key, fmc->signature})
      inside(part, file.bytes());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto kind = static_cast<uint8_t>(data[0] % 5);
  const Image file("fuzz", std::as_bytes(std::span(data, size)).subspan(1));
  if (kind == 0)
    look_at_hs(file);
  else
    look_at_others(kind, file);
  return 0;
}
