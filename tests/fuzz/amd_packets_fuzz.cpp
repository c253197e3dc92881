// Any words as PM4, SDMA and AQL packets: decoders must neither crash nor read outside, and what
// those of PM4 and SDMA take must come back from the encoders word for word.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "drivers/amd/aql/packets.h"
#include "drivers/amd/pm4/packets.h"
#include "drivers/amd/sdma/packets.h"
#include "runtime/base/check.h"

namespace {

using namespace bm::amd;

template <class Decode, class Encode>
void round_trip(std::span<const uint32_t> words, const Decode& decode, const Encode& encode) {
  while (!words.empty()) {
    const auto decoded = decode(words);
    if (!decoded) {
      BM_CHECK(!decoded.error().message.empty());
      return;
    }
    BM_CHECK(decoded->dwords != 0 && decoded->dwords <= words.size());
    std::vector<uint32_t> again;
    encode(again, decoded->packet);
    BM_CHECK(std::ranges::equal(again, words.first(decoded->dwords)));
    words = words.subspan(decoded->dwords);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint32_t> words(size / 4);
  if (!words.empty()) std::memcpy(words.data(), data, words.size() * 4);
  for (const auto form :
       {bm::amd::CacheForm::kCoherCntl, bm::amd::CacheForm::kGcr, bm::amd::CacheForm::kGcrNoGl1})
    round_trip(
        words, [&](auto left) { return pm4::decode(left, form); },
        [&](auto& out, const pm4::Packet& packet) {
          pm4::Writer writer(out, form);
          std::visit([&](const auto& one) { writer.put(one); }, packet);
        });
  for (const auto form : {bm::amd::SdmaForm::kV4_4, bm::amd::SdmaForm::kV5_2,
                          bm::amd::SdmaForm::kV6, bm::amd::SdmaForm::kV7})
    round_trip(
        words, [&](auto left) { return sdma::decode(left, form); },
        [&](auto& out, const sdma::Packet& packet) {
          sdma::Writer writer(out, form);
          std::visit([&](const auto& one) { writer.put(one); }, packet);
        });
  for (std::span<const uint32_t> left(words); left.size() >= aql::kPacketBytes / 4;
       left = left.subspan(aql::kPacketBytes / 4))
    if (const auto decoded = aql::decode(left.first(aql::kPacketBytes / 4)); !decoded)
      BM_CHECK(!decoded.error().message.empty());
  return 0;
}
