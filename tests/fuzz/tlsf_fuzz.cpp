// Random programs against Tlsf: every answer is checked against a plain map of live blocks.
#include <cstdlib>
#include <map>

#include "runtime/base/byte_reader.h"
#include "runtime/base/check.h"
#include "runtime/base/tlsf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bm::ByteReader input(std::as_bytes(std::span(data, size)));
  const uint32_t shift = input.read<uint8_t>().value_or(0) % 16;
  const uint64_t base = uint64_t{input.read<uint32_t>().value_or(0)} << shift;
  bm::Result<bm::Tlsf> made =
      bm::Tlsf::create(base, input.read<uint64_t>().value_or(0), uint64_t{1} << shift);
  if (!made) return 0;
  bm::Tlsf& tlsf = *made;
  std::map<uint64_t, uint64_t> live;
  while (input.remaining() != 0) {
    const uint8_t what = *input.read<uint8_t>();
    if (what % 4 == 0) {  // any address: succeeds exactly for live blocks
      const uint64_t address = input.read<uint64_t>().value_or(base);
      BM_CHECK(tlsf.free(address).has_value() == (live.erase(address) == 1));
    } else if (what % 4 == 1 && !live.empty()) {
      const auto victim = live.lower_bound(input.read<uint64_t>().value_or(0));
      const uint64_t address = victim == live.end() ? live.begin()->first : victim->first;
      BM_CHECK(tlsf.free(address).has_value());
      live.erase(address);
    } else {
      const uint64_t bytes =
          what % 4 == 2 ? input.read<uint64_t>().value_or(1) : input.read<uint16_t>().value_or(1);
      const uint64_t alignment = uint64_t{1} << (what >> 2);
      const std::optional<uint64_t> address = tlsf.try_allocate(bytes, alignment);
      if (!address) continue;
      const uint64_t length = *tlsf.size_of(*address);
      const auto after = live.lower_bound(*address);
      BM_CHECK(length >= bytes && *address % alignment == 0 && *address >= base);
      BM_CHECK(*address - base <= tlsf.stats().capacity - length);
      BM_CHECK(after == live.end() || after->first - *address >= length);
      BM_CHECK(after == live.begin() ||
               *address - std::prev(after)->first >= std::prev(after)->second);
      live[*address] = length;
    }
    BM_CHECK(tlsf.stats().allocations == live.size());
  }
  for (const auto& [address, length] : live) BM_CHECK(tlsf.free(address).has_value());
  BM_CHECK(tlsf.is_empty() && tlsf.stats().free_blocks <= 1);
  BM_CHECK(tlsf.largest_free() == tlsf.stats().capacity);
  return 0;
}
