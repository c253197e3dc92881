#include "drivers/nv/abi/abi.h"

#include <charconv>
#include <cstring>

#include "runtime/base/check.h"

namespace bm::nv::abi {
namespace {

#include "drivers/nv/abi/layouts.gen.inc"

}  // namespace

std::string Version::text() const { return fmt::format("{}.{:02}.{:02}", major, minor, patch); }

Result<Version> parse_version(std::string_view text) {
  uint16_t parts[3] = {};
  const char* at = text.data();
  const char* const end = at + text.size();
  size_t count = 0;
  while (count < 3) {
    const auto [rest, error] = std::from_chars(at, end, parts[count]);
    if (error != std::errc()) break;
    ++count;
    at = rest;
    if (at == end || *at != '.') break;
    ++at;
  }
  if (count < 2 || at != end)
    return fail(Code::kCorrupt, "'{}' is not a version of the nvidia driver, like 580.105.08",
                text);
  return Version{parts[0], parts[1], parts[2]};
}

std::span<const Layout> layouts() { return kLayouts; }
Version newest_known() { return kNewestKnown; }

Result<Abi> Abi::create(Version version) {
  if (version < kOldestKnown)
    return fail(Code::kUnsupported,
                "the nvidia driver {} is too old: 535 is the oldest release whose interface is "
                "known; install a newer one",
                version.text());
  Abi abi(version);
  for (const Layout& layout : kLayouts)
    if (layout.since <= version) abi.layouts_[static_cast<size_t>(layout.id)] = &layout;
  return abi;
}

void AnyParams::store(uint8_t field, uint64_t value, uint32_t index) {
  const FieldPlace& place = layout_->fields[field];
  if (place.bytes == 0) return;
  BM_CHECK(place.bytes <= sizeof(value) && index < place.count);
  std::memcpy(bytes_.data() + place.offset + index * place.stride, &value, place.bytes);
}

uint64_t AnyParams::load(uint8_t field, uint32_t index) const {
  const FieldPlace& place = layout_->fields[field];
  if (place.bytes == 0) return 0;
  BM_CHECK(place.bytes <= sizeof(uint64_t) && index < place.count);
  uint64_t value = 0;
  std::memcpy(&value, bytes_.data() + place.offset + index * place.stride, place.bytes);
  return value;
}

std::span<std::byte> AnyParams::piece(uint8_t field, uint32_t index) {
  const FieldPlace& place = layout_->fields[field];
  if (place.bytes == 0) return {};
  BM_CHECK(index < place.count);
  return {bytes_.data() + place.offset + index * place.stride, place.bytes};
}

}  // namespace bm::nv::abi
