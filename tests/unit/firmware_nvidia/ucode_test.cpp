// Containers, falcons' programs, RISC-V descriptors, GSP and FMC images.

#include <gtest/gtest.h>

#include "firmware/nvidia/falcon.h"
#include "firmware/nvidia/gsp_image.h"
#include "firmware/nvidia/riscv.h"
#include "tests/unit/firmware_nvidia/nv_files.h"

namespace bm::firmware::nvidia {
namespace {

bool is_at(std::span<const std::byte> part, const Bytes& file, size_t at, size_t size) {
  return part.size() == size && part.data() == view(file).data() + at;
}
bool same(std::span<const std::byte> part, const Bytes& bytes) {
  return std::ranges::equal(part, view(bytes));
}
/// Every file that ends earlier is refused with one line that names it.
template <class Parse>
void expect_truncations_refused(const Bytes& whole, const Parse& parse) {
  ASSERT_TRUE(parse(Image("file", view(whole))));
  for (size_t size = 0; size < whole.size(); ++size) {
    const Bytes cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
    const auto result = parse(Image("file", view(cut)));
    ASSERT_FALSE(result) << size;
    EXPECT_EQ(result.error().code, Code::kCorrupt) << size << ": " << result.error().message;
    ASSERT_EQ(result.error().message.find('\n'), std::string::npos);
    ASSERT_EQ(result.error().message.find("file"), 0u) << result.error().message;
  }
}
template <class Parse>
void expect_error(const Bytes& bytes, const Parse& parse, Code code, std::string_view part) {
  const auto result = parse(Image("file", view(bytes)));
  ASSERT_FALSE(result) << part;
  EXPECT_EQ(result.error().code, code) << result.error().message;
  EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
}

TEST(HsUcode, EveryFieldComesFromTheFile) {
  const HsFile file;
  const Bytes bytes = file.build();
  const auto ucode = parse_hs_ucode(image_of(bytes));
  ASSERT_TRUE(ucode) << ucode.error().message;
  EXPECT_TRUE(is_at(ucode->image, bytes, 120 + 32, 0x400));
  EXPECT_EQ(ucode->signature_at, 0x310u);
  EXPECT_EQ(ucode->signature_in_data(), 0x10u);
  ASSERT_EQ(ucode->signatures.size(), 2u);
  EXPECT_TRUE(is_at(ucode->signatures[1], bytes, 60 + 16, 16));
  EXPECT_EQ(ucode->fuse_version, 1u);
  EXPECT_EQ(ucode->engine_id_mask, 1u);
  EXPECT_EQ(ucode->ucode_id, 3u);
  EXPECT_EQ(ucode->os_code, (Range{0, 0x100}));
  EXPECT_EQ(ucode->os_data, (Range{0x300, 0x100}));
  ASSERT_EQ(ucode->apps.size(), 1u);
  EXPECT_EQ(ucode->apps[0].code, (Range{0x100, 0x200}));
}

TEST(HsUcode, FilesThatEndEarlyAreRefused) {
  expect_truncations_refused(HsFile{}.build(), parse_hs_ucode);
  expect_truncations_refused(gen_bootloader_file(), parse_falcon_boot_loader);
  expect_truncations_refused(riscv_file(riscv_descriptor()), parse_riscv_ucode);
}

TEST(HsUcode, FieldsThatLeadOutsideAreRefused) {
  const Bytes whole = HsFile{}.build();
  // Every offset and size of the three headers, as large as it can be.
  for (const size_t at :
       {12u, 16u, 20u, 24u, 28u, 32u, 36u, 40u, 48u, 52u, 56u, 92u, 128u, 132u, 116u}) {
    for (const uint32_t value : {0xffffffffu, 0xfffffff0u, 0x80000000u}) {
      Bytes bytes = whole;
      set(bytes, at, value);
      const auto result = parse_hs_ucode(image_of(bytes));
      EXPECT_FALSE(result) << at << " " << value;
    }
  }
  Bytes bytes = whole;
  set<uint32_t>(bytes, 112, 0);  // num_sig
  expect_error(bytes, parse_hs_ucode, Code::kCorrupt, "0 signatures");
  set<uint32_t>(bytes, 112, 3);
  expect_error(bytes, parse_hs_ucode, Code::kCorrupt, "3 signatures");
  bytes = whole;
  set<uint32_t>(bytes, 96, 16);  // patch_sig
  expect_error(bytes, parse_hs_ucode, Code::kUnsupported, "patch_sig");
  bytes = whole;
  set<uint32_t>(bytes, 108, 17);  // ucode_id
  expect_error(bytes, parse_hs_ucode, Code::kUnsupported, "ucode_id");
  bytes = whole;
  set<uint32_t>(bytes, 0, 0x1002);
  expect_error(bytes, parse_hs_ucode, Code::kCorrupt, "bin_magic");
  bytes = whole;
  set<uint32_t>(bytes, 4, 2);
  expect_error(bytes, parse_hs_ucode, Code::kUnsupported, "bin_ver");
  // Inside the image, and not in what becomes data memory.
  for (const uint32_t at : {0x2ffu, 0x3f1u, 0x0u})
    expect_error(HsFile{.signature_at = at}.build(), parse_hs_ucode, Code::kCorrupt, "signature");
}

TEST(HsUcode, FusesChooseTheSignature) {
  const Bytes bytes = HsFile{.signatures = 3, .fuse_version = 2}.build();
  const auto ucode = parse_hs_ucode(image_of(bytes));
  ASSERT_TRUE(ucode) << ucode.error().message;
  // No fuse blown: the last one; each further version one before it.
  for (const auto& [fuses, index] : {std::pair{0u, 2u}, {1u, 1u}, {3u, 0u}, {2u, 0u}}) {
    const auto image = signed_image(*ucode, fuses);
    ASSERT_TRUE(image) << image.error().message;
    Bytes expected = pattern(0x400, 1);
    const Bytes signature = pattern(16, 100 + index);
    std::ranges::copy(signature, expected.begin() + 0x310);
    EXPECT_TRUE(same(*image, expected)) << fuses;
  }
  const auto none = signed_image(*ucode, 4);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::kUnsupported);
  EXPECT_NE(none.error().message.find("version 3"), std::string::npos) << none.error().message;

  const Bytes single = HsFile{.signatures = 1, .fuse_version = 0}.build();
  const auto one = parse_hs_ucode(image_of(single));
  ASSERT_TRUE(one);
  EXPECT_EQ(signature_index(*one, 0xff).value(), 0u);
  const Bytes odd = HsFile{.signatures = 2, .fuse_version = 2}.build();
  const auto unclear = parse_hs_ucode(image_of(odd));
  ASSERT_TRUE(unclear);
  EXPECT_EQ(signature_index(*unclear, 0).error().code, Code::kUnsupported);
}

TEST(FalconBootLoader, CodeAndTag) {
  Bytes bytes = gen_bootloader_file();
  const auto loader = parse_falcon_boot_loader(image_of(bytes));
  ASSERT_TRUE(loader) << loader.error().message;
  EXPECT_EQ(loader->start_tag, 0xfdu);
  EXPECT_EQ(loader->descriptor_at, 0x20u);
  EXPECT_TRUE(is_at(loader->code, bytes, 48, 0x200));
  EXPECT_TRUE(is_at(loader->data, bytes, 48 + 0x200, 0x100));
  set<uint32_t>(bytes, 24, 0x10000);
  expect_error(bytes, parse_falcon_boot_loader, Code::kCorrupt, "start tag");
  set<uint32_t>(bytes, 24, 0xfd);
  set<uint32_t>(bytes, 36, 0xfffffff0);
  expect_error(bytes, parse_falcon_boot_loader, Code::kCorrupt, "code");
  set<uint32_t>(bytes, 36, 0);
  expect_error(bytes, parse_falcon_boot_loader, Code::kCorrupt, "no code");
}

TEST(RiscvUcode, DescriptorsOfEveryLength) {
  Bytes bytes = riscv_file(riscv_descriptor());
  const auto ucode = parse_riscv_ucode(image_of(bytes));
  ASSERT_TRUE(ucode) << ucode.error().message;
  EXPECT_TRUE(is_at(ucode->image, bytes, 24 + 84, 0x1000));
  EXPECT_EQ(ucode->version, 5u);
  EXPECT_EQ(ucode->app_version, 0x1234u);
  EXPECT_EQ(ucode->bootloader, (Range{0x600, 0x80}));
  EXPECT_EQ(ucode->bootloader_params, (Range{0x680, 0x10}));
  EXPECT_EQ(ucode->manifest, (Range{0, 0x80}));
  EXPECT_EQ(ucode->monitor_data, (Range{0x80, 0x100}));
  EXPECT_EQ(ucode->monitor_code, (Range{0x180, 0x200}));
  EXPECT_TRUE(ucode->is_monitor_enabled);
  EXPECT_EQ(ucode->fb_reserved_size, 0x900u);
  EXPECT_TRUE(ucode->is_signed_as_code);
  // Turing's ends behind the software boot ROM: what follows is the image, not a descriptor.
  std::vector<uint32_t> shorter = riscv_descriptor();
  shorter.resize(19);
  const Bytes old = riscv_file(shorter);
  const auto turing = parse_riscv_ucode(image_of(old));
  ASSERT_TRUE(turing) << turing.error().message;
  EXPECT_EQ(turing->fb_reserved_size, 0u);
  EXPECT_FALSE(turing->is_signed_as_code);
  EXPECT_TRUE(is_at(turing->image, old, 24 + 76, 0x1000));
  shorter.resize(13);
  expect_error(riscv_file(shorter), parse_riscv_ucode, Code::kCorrupt, "descriptor");
  for (const size_t at : {1u, 3u, 8u, 10u, 12u}) {
    std::vector<uint32_t> outside = riscv_descriptor();
    outside[at] = 0xfffffff8;
    expect_error(riscv_file(outside), parse_riscv_ucode, Code::kCorrupt, "not inside its image");
  }
}

TEST(GspImage, SignaturesByFamily) {
  const Bytes bytes = gsp_file(gsp_parts());
  const auto gsp = parse_gsp_image(image_of(bytes));
  ASSERT_TRUE(gsp) << gsp.error().message;
  EXPECT_TRUE(same(gsp->image, gsp_parts()[0].bytes));
  EXPECT_EQ(gsp->version, "570.144");
  ASSERT_EQ(gsp->signatures.size(), 4u);
  EXPECT_TRUE(same(gsp->signature_of("ga10x").value(), gsp_parts()[5].bytes));
  EXPECT_TRUE(same(gsp->signature_of("gh100").value(), gsp_parts()[4].bytes));
  EXPECT_TRUE(same(gsp->signature_of("gh100", true).value(), gsp_parts()[3].bytes));
  const auto missing = gsp->signature_of("tu10x");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kUnsupported);
  EXPECT_NE(missing.error().message.find("ad10x, cc_gh100, gh100, ga10x"), std::string::npos);
}

TEST(GspImage, WhatIsNoneIsRefused) {
  expect_truncations_refused(gsp_file(gsp_parts()), parse_gsp_image);
  const auto with = [](const std::function<void(std::vector<Part>&)>& change) {
    std::vector<Part> parts = gsp_parts();
    change(parts);
    return gsp_file(parts);
  };
  const auto refuses = [](const Bytes& bytes, std::string_view why) {
    expect_error(bytes, parse_gsp_image, Code::kCorrupt, why);
  };
  refuses(with([](auto& p) { p.erase(p.begin()); }), "lacks .fwimage");
  refuses(with([](auto& p) { p.erase(p.begin() + 1); }), "lacks .fwversion");
  refuses(with([](auto& p) { p.resize(2); }), "lacks .fwsignature_*");
  refuses(with([](auto& p) { p.push_back(p[0]); }), "two sections .fwimage");
  refuses(with([](auto& p) { p.push_back(p[1]); }), "two sections .fwversion");
  refuses(with([](auto& p) { p.push_back(p[5]); }), "two sections .fwsignature_ga10x");
  refuses(with([](auto& p) { p[5].bytes.clear(); }), "is empty");
  refuses(with([](auto& p) { p[5].name = ".fwsignature_"; }), "names no chip");
  refuses(with([](auto& p) { p[1].bytes.pop_back(); }), "no text");
  refuses(with([](auto& p) { p[1].bytes[2] = 7; }), "no text");
  refuses(with([](auto& p) { p[1].bytes = version_section(std::string(63, '1')); }), "no text");
}

TEST(FmcImage, SectionsWithTheirSums) {
  for (const auto& [key, signature] : {std::pair{97, 96}, {384, 384}}) {
    const std::vector<Part> parts =
        fmc_parts(static_cast<size_t>(key), static_cast<size_t>(signature));
    const Bytes bytes = fmc_file(parts);
    const auto fmc = parse_fmc_image(image_of(bytes));
    ASSERT_TRUE(fmc) << fmc.error().message;
    EXPECT_TRUE(same(fmc->hash, parts[0].bytes));
    EXPECT_TRUE(same(fmc->signature, parts[1].bytes));
    EXPECT_TRUE(same(fmc->public_key, parts[2].bytes));
    EXPECT_TRUE(same(fmc->image, parts[3].bytes));
  }
  expect_truncations_refused(fmc_file(fmc_parts()), parse_fmc_image);
}

TEST(FmcImage, WhatIsNoneIsRefused) {
  const auto refuses = [](const std::vector<Part>& parts, std::string_view why) {
    expect_error(fmc_file(parts), parse_fmc_image, Code::kCorrupt, why);
  };
  for (size_t i = 0; i < 4; ++i) {
    std::vector<Part> parts = fmc_parts();
    parts.push_back(parts[i]);
    refuses(parts, "two sections " + parts[i].name);
    parts = fmc_parts();
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(i));
    refuses(parts, fmc_parts()[i].name + " has 0 bytes");
    parts = fmc_parts();
    Bytes damaged = fmc_file(parts);
    damaged[get32(damaged, 52 + 40 * (i + 2) + 16)] ^= 1;
    expect_error(damaged, parse_fmc_image, Code::kCorrupt, "CRC-32");
  }
  std::vector<Part> parts = fmc_parts(385, 96);
  refuses(parts, "publickey has 385 bytes");
  parts = fmc_parts();
  parts[0].bytes.pop_back();
  refuses(parts, "hash has 47 bytes");
  Bytes bytes = fmc_file(fmc_parts());
  set<uint8_t>(bytes, 4, 2);
  expect_error(bytes, parse_fmc_image, Code::kUnsupported, "class 2");
  for (const size_t at :
       {32u, 52u + 40u + 16u, 52u + 40u + 20u, 52u + 80u, 52u + 80u + 16u, 52u + 80u + 20u}) {
    bytes = fmc_file(fmc_parts());
    set<uint32_t>(bytes, at, 0xfffffff0);
    expect_error(bytes, parse_fmc_image, Code::kCorrupt, "");
  }
}

}  // namespace
}  // namespace bm::firmware::nvidia
