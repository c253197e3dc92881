// Versions, and structures filled through the tables.

#include <array>
#include <cstring>

#include <gtest/gtest.h>

#include "drivers/nv/abi/abi.h"

namespace bm::nv::abi {
namespace {

Abi abi_of(std::string_view version) { return Abi::create(parse_version(version).value()).value(); }

TEST(Version, ReadsWhatTheDriverWrites) {
  EXPECT_EQ(parse_version("580.159.04").value(), (Version{580, 159, 4}));
  EXPECT_EQ(parse_version("570.144").value(), (Version{570, 144, 0}));
  for (const char* bad :
       {"", "580", "580.", "580.1.2.3", "580.a", "x580.1", "580.105.08 ", "-1.2", "99999999.1"})
    EXPECT_FALSE(parse_version(bad)) << bad;
}

TEST(Version, OldReleasesAreRefusedAndNewOnesTakeTheNewest) {
  EXPECT_FALSE(Abi::create({534, 99, 0}));
  EXPECT_FALSE(Abi::create({470, 256, 2}));
  EXPECT_TRUE(Abi::create({535, 0, 0}));
  const Abi newest = Abi::create(newest_known()).value(), later = Abi::create({699, 1, 0}).value();
  EXPECT_FALSE(newest.is_newer_than_known());
  EXPECT_TRUE(later.is_newer_than_known());
  for (size_t i = 0; i < kStructCount; ++i) {
    const StructId id = static_cast<StructId>(i);
    EXPECT_EQ(&newest.layout(id), &later.layout(id));
  }
}

TEST(Version, BranchesBetweenTagsTakeTheLayoutBefore) {
  EXPECT_EQ(abi_of("565.99").layout(StructId::kChannelAlloc).size, 360u);
  EXPECT_EQ(abi_of("570.10.01").layout(StructId::kChannelAlloc).size, 368u);
  EXPECT_EQ(abi_of("609.99.99").layout(StructId::kChannelAlloc).size, 368u);
  EXPECT_EQ(abi_of("610.00.01").layout(StructId::kChannelAlloc).size, 376u);
  EXPECT_EQ(abi_of("580.159.04").layout(StructId::kVaSpaceAlloc).size, 56u);
}

TEST(Params, EveryFieldOfEveryLayoutComesBackAndTouchesNothingElse) {
  for (const Layout& layout : layouts()) {
    for (size_t field = 0; field < layout.fields.size(); ++field) {
      const FieldPlace& place = layout.fields[field];
      for (uint32_t i = 0; i < place.count; ++i) {
        struct Open : AnyParams {  // the typed face would need a type per structure
          using AnyParams::AnyParams;
          using AnyParams::load;
          using AnyParams::piece;
          using AnyParams::store;
        } params(layout);
        const uint8_t f = static_cast<uint8_t>(field);
        if (place.bytes <= 8) {
          params.store(f, ~uint64_t{0}, i);
          const uint64_t all = place.bytes == 8 ? ~uint64_t{0} : (1ull << place.bytes * 8) - 1;
          EXPECT_EQ(params.load(f, i), all);
        } else {
          for (std::byte& b : params.piece(f, i)) b = std::byte{0xff};
        }
        const auto* const bytes = static_cast<const uint8_t*>(params.data());
        for (size_t at = 0; at < layout.size + kSlack; ++at) {
          const size_t first = place.offset + i * place.stride;
          const bool is_mine = at >= first && at < first + place.bytes;
          ASSERT_EQ(bytes[at], is_mine ? 0xff : 0)
              << "structure " << int(layout.id) << " field " << field << " at " << at;
        }
      }
    }
  }
}

TEST(Params, FieldsARemovedReleaseLacksAreIgnored) {
  const Abi old = abi_of("580.105.08"), fresh = abi_of("590.48.01");
  Params<UvmFree> before(old), after(fresh);
  for (Params<UvmFree>* params : {&before, &after})
    params->set(UvmFree::base, 0x1234000).set(UvmFree::length, 0x5000);
  EXPECT_EQ(before.get(UvmFree::length), 0x5000u);
  EXPECT_EQ(after.get(UvmFree::length), 0u);
  EXPECT_EQ(after.get(UvmFree::base), 0x1234000u);
  EXPECT_FALSE(after.has(UvmFree::length));
  const std::array<uint8_t, 16> uuid = {1, 2, 3};
  Params<UvmUnregisterChannel> gone(fresh);
  gone.set_bytes(UvmUnregisterChannel::gpuUuid_uuid, uuid);
  gone.set(UvmUnregisterChannel::hClient, 7);
  EXPECT_EQ(gone.get(UvmUnregisterChannel::hClient), 7u);
}

}  // namespace
}  // namespace bm::nv::abi
