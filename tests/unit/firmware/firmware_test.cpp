#include <lzma.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include <gtest/gtest.h>

#include "firmware/decompress.h"
#include "firmware/image.h"
#include "firmware/manifest.h"
#include "firmware/sha256.h"
#include "firmware/store.h"
#include "runtime/base/env.h"

namespace bm::firmware {
namespace {

namespace fs = std::filesystem;

using Bytes = std::vector<std::byte>;

Bytes bytes_of(std::string_view text) {
  const auto raw = std::as_bytes(std::span(text));
  return {raw.begin(), raw.end()};
}

Bytes noise(size_t count, uint32_t seed = 1) {
  std::mt19937 random(seed);
  Bytes result(count);
  for (std::byte& byte : result) byte = static_cast<std::byte>(random() % 7);
  return result;
}

Bytes xz(const Bytes& plain) {
  Bytes packed(lzma_stream_buffer_bound(plain.size()));
  size_t size = 0;
  EXPECT_EQ(lzma_easy_buffer_encode(
                6, LZMA_CHECK_CRC32, nullptr, reinterpret_cast<const uint8_t*>(plain.data()),
                plain.size(), reinterpret_cast<uint8_t*>(packed.data()), &size, packed.size()),
            LZMA_OK);
  packed.resize(size);
  return packed;
}

Bytes zstd(const Bytes& plain) {
  Bytes packed(ZSTD_compressBound(plain.size()));
  packed.resize(ZSTD_compress(packed.data(), packed.size(), plain.data(), plain.size(), 3));
  return packed;
}

TEST(Sha256, OfTheExamplesOfTheStandard) {
  // FIPS 180-4's examples (NIST, "SHA256.pdf"), and lengths around the padding by sha256sum(1).
  EXPECT_EQ(sha256_hex(bytes_of("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex(bytes_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(Bytes(1'000'000, std::byte{'a'})),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, AgreesWithTheTool) {
  const fs::path file = fs::temp_directory_path() / fmt::format("bm-sha256-{}", ::getpid());
  for (const size_t count :
       std::initializer_list<size_t>{1, 55, 56, 57, 63, 64, 65, 119, 120, 128, 4097}) {
    const Bytes data = noise(count);
    std::ofstream(file, std::ios::binary)
        .write(reinterpret_cast<const char*>(data.data()), static_cast<long>(count));
    std::array<char, 65> line{};
    FILE* const tool = ::popen(fmt::format("sha256sum {}", file.string()).c_str(), "r");
    ASSERT_NE(tool, nullptr);
    EXPECT_EQ(std::fread(line.data(), 1, 64, tool), 64u);
    ::pclose(tool);
    EXPECT_EQ(sha256_hex(data), line.data()) << count;
  }
  fs::remove(file);
}

TEST(Decompress, GivesBackWhatWasPacked) {
  for (const size_t count : {size_t{0}, size_t{1}, size_t{65536}, size_t{300'000}}) {
    const Bytes plain = noise(count);
    EXPECT_EQ(*decompress(xz(plain), Compression::kXz, count), plain);
    EXPECT_EQ(*decompress(zstd(plain), Compression::kZstd, count), plain);
    EXPECT_EQ(*decompress(plain, Compression::kNone, count), plain);
  }
}

TEST(Decompress, DamageIsAnError) {
  const Bytes plain = noise(200'000);
  for (const Compression how : {Compression::kXz, Compression::kZstd}) {
    const Bytes packed = how == Compression::kXz ? xz(plain) : zstd(plain);
    const auto code = [&](const Bytes& bytes, uint64_t limit) {
      const auto result = decompress(bytes, how, limit);
      return result ? Code::kInternal : result.error().code;
    };
    EXPECT_EQ(code(packed, plain.size() - 1), Code::kCorrupt) << "a bomb";
    EXPECT_EQ(code({}, 100), Code::kCorrupt);
    EXPECT_EQ(code(plain, 1 << 20), Code::kCorrupt) << "not packed at all";
    Bytes longer = packed;
    longer.push_back(std::byte{1});
    EXPECT_EQ(code(longer, 1 << 20), Code::kCorrupt);
    for (size_t left = 1; left < packed.size(); left += packed.size() / 40) {
      Bytes cut(packed.begin(), packed.begin() + static_cast<long>(left));
      EXPECT_EQ(code(cut, 1 << 20), Code::kCorrupt) << left;
    }
  }
}

TEST(Decompress, Crc32IsThatOfZlib) {
  EXPECT_EQ(crc32(bytes_of("123456789")), 0xcbf43926u);  // the check value every catalogue gives
  EXPECT_EQ(crc32({}), 0u);
}

TEST(Image, PartsAreInside) {
  const Bytes data = bytes_of("0123456789abcdef");
  const Image image("x.bin", data);
  EXPECT_EQ(*image.at<uint8_t>(15, "end"), 'f');
  EXPECT_EQ(*image.at<uint16_t>(1, "pair"), 0x3231);
  EXPECT_EQ(image.section(16, 0, "nothing")->size(), 0u);
  EXPECT_EQ((*image.table<uint16_t>(2, 3, "words"))[1], 0x3534);
  EXPECT_EQ(image.part(4, 8, "inner")->size(), 8u);
  EXPECT_EQ(*image.part(4, 8, "inner")->at<uint8_t>(0, "first"), '4');
  EXPECT_TRUE(image.check_crc32(0, crc32(data)));
}

TEST(Image, WhatIsOutsideIsAnErrorWithNames) {
  const Bytes data = bytes_of("0123456789abcdef");
  const Image image("x.bin", data);
  constexpr uint64_t kMost = ~uint64_t{0};
  EXPECT_FALSE(image.at<uint16_t>(15, "pair"));
  EXPECT_FALSE(image.at<uint8_t>(kMost, "far"));
  EXPECT_FALSE(image.section(8, kMost - 4, "wraps"));
  EXPECT_FALSE(image.section(17, 0, "behind"));
  EXPECT_FALSE(image.table<uint64_t>(0, kMost / 8 + 2, "wraps"));
  EXPECT_FALSE(image.table<uint64_t>(8, 2, "too many"));
  EXPECT_FALSE(image.check_crc32(17, 0));
  const Status sum = image.check_crc32(4, 7);
  EXPECT_NE(sum.error().message.find("00000007"), std::string::npos) << sum.error().message;
  const auto inner = image.part(4, 8, "ucode")->at<uint32_t>(6, "jump table");
  EXPECT_EQ(inner.error().code, Code::kCorrupt);
  EXPECT_EQ(inner.error().message,
            "x.bin: ucode: jump table (1 × 4 bytes at 0x6) is not inside its 0x8 bytes");
}

TEST(Manifest, RowsAreOrderedAndWhole) {
  ASSERT_GT(manifest().size(), 100u);
  EXPECT_TRUE(std::ranges::is_sorted(manifest(), {}, &Row::name));
  for (const Row& row : manifest()) {
    EXPECT_EQ(row.sha256.size(), 64u) << row.name;
    EXPECT_EQ(row.sha256.find_first_not_of("0123456789abcdef"), std::string_view::npos);
    EXPECT_GT(row.size, 0u);
    EXPECT_TRUE(row.name.starts_with("amdgpu/") || row.name.starts_with("nvidia/")) << row.name;
    EXPECT_FALSE(row.licence.empty() || row.package.empty() || row.suite.empty());
  }
  EXPECT_TRUE(versions_of("amdgpu/none.bin").empty());
  EXPECT_EQ(versions_of("amdgpu/psp_13_0_0_sos.bin").front().suite, "bookworm");
}

class Store : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "bm-firmware-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    fs::create_directories(folder_ / "amdgpu");
    search_ = {.folders = {folder_.string()}};
    for (const fs::path& each : {folder_, folder_ / "amdgpu"})
      fs::permissions(each, fs::perms::owner_all);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void put(const std::string& name, const Bytes& data) {
    std::ofstream(folder_ / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(data.data()), static_cast<long>(data.size()));
    fs::permissions(folder_ / name, fs::perms::owner_read | fs::perms::owner_write);
  }
  fs::path folder_;
  Search search_;
};

TEST_F(Store, FindsPlainAndPackedFiles) {
  const Bytes data = noise(5000);
  put("amdgpu/a.bin", data);
  put("amdgpu/b.bin.xz", xz(data));
  put("amdgpu/c.bin.zst", zstd(data));
  for (const auto& [name, ending] : {std::pair{"a", ""}, {"b", ".xz"}, {"c", ".zst"}}) {
    const Result<File> file = load(fmt::format("amdgpu/{}.bin", name), search_);
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->bytes, data);
    EXPECT_TRUE(file->path.ends_with(fmt::format("{}.bin{}", name, ending))) << file->path;
    EXPECT_EQ(file->row, nullptr);
  }
}

TEST_F(Store, TheFirstFolderCounts) {
  fs::create_directories(folder_ / "other/amdgpu");
  for (const fs::path& each : {folder_ / "other", folder_ / "other/amdgpu"})
    fs::permissions(each, fs::perms::owner_all);
  put("amdgpu/a.bin", bytes_of("second"));
  put("other/amdgpu/a.bin.xz", xz(bytes_of("first")));
  search_.folders = {(folder_ / "none").string(), (folder_ / "other").string(), folder_.string()};
  EXPECT_EQ(load("amdgpu/a.bin", search_)->bytes, bytes_of("first"));
}

TEST_F(Store, AVersionThatTheManifestLacksIsLoadedAndTold) {
  put("amdgpu/gc_11_0_0_mec.bin", noise(407072));  // the size of one that it has
  const Result<File> update = load("amdgpu/gc_11_0_0_mec.bin", search_);
  ASSERT_TRUE(update) << update.error().message;
  EXPECT_EQ(update->row, nullptr);
  EXPECT_EQ(update->bytes.size(), 407072u);
}

TEST_F(Store, WhatIsNoGoodIsAnError) {
  put("amdgpu/empty.bin", {});
  EXPECT_EQ(load("amdgpu/empty.bin", search_).error().code, Code::kCorrupt);
  put("amdgpu/bad.bin.xz", noise(100));
  const Result<File> bad = load("amdgpu/bad.bin", search_);
  EXPECT_EQ(bad.error().code, Code::kCorrupt);
  EXPECT_NE(bad.error().message.find("bad.bin.xz"), std::string::npos) << bad.error().message;
  fs::create_directory(folder_ / "amdgpu/folder.bin");
  EXPECT_FALSE(load("amdgpu/folder.bin", search_));
  fs::create_symlink("nowhere.bin", folder_ / "amdgpu/dangling.bin");
  EXPECT_EQ(load("amdgpu/dangling.bin", search_).error().code, Code::kNotFound);
  put("amdgpu/a.bin", noise(10));
  fs::create_symlink("a.bin", folder_ / "amdgpu/link.bin");
  EXPECT_TRUE(load("amdgpu/link.bin", search_));
  fs::permissions(folder_ / "amdgpu/a.bin", fs::perms::others_write, fs::perm_options::add);
  EXPECT_EQ(load("amdgpu/a.bin", search_).error().code, Code::kPermission);
  for (const char* name :
       {"", "/etc/passwd", "amdgpu/../../etc/passwd", "amdgpu//a.bin", "./a", "amdgpu/"})
    EXPECT_EQ(load(name, search_).error().code, Code::kInvalidArgument) << name;
}

TEST_F(Store, OneLineAPackageSaysWhatIsMissing) {
  put("amdgpu/empty.bin", {});
  put("amdgpu/fine.bin", noise(10));
  const std::array<std::string_view, 5> names = {
      "amdgpu/gc_11_0_3_mec.bin", "amdgpu/gc_11_0_3_imu.bin", "amdgpu/empty.bin", "amdgpu/fine.bin",
      "nvidia/gh100/gsp/fmc-570.144.bin"};
  const std::vector<std::string> lines = check(names, search_);
  EXPECT_TRUE(check(std::span(names).subspan(3, 1), search_).empty());
  const auto has = [&lines](std::initializer_list<std::string_view> words) {
    return std::ranges::any_of(lines, [&](const std::string& line) {
      return std::ranges::all_of(
          words, [&](std::string_view word) { return line.find(word) != std::string::npos; });
    });
  };
  ASSERT_EQ(lines.size(), 3u) << fmt::format("{}", fmt::join(lines, "\n"));
  EXPECT_TRUE(has({"empty.bin is empty"}));
  EXPECT_TRUE(has({"missing: ", "fmc-570.144.bin", "firmware-nvidia-graphics", "sid"}));
  EXPECT_TRUE(has({"missing: ", "gc_11_0_3_mec.bin", "firmware-amd-graphics", "non-free-firmware",
                   "bookworm-backports", "BM_FIRMWARE_DIR"}));
  for (const std::string& line : lines) EXPECT_EQ(line.find('\n'), std::string::npos);
}

TEST(Search, TheSettingComesBeforeTheSystem) {
  const ScopedSetting setting("BM_FIRMWARE_DIR", "/opt/a::/opt/b");
  const Search search = default_search();
  ASSERT_GE(search.folders.size(), 5u);
  EXPECT_EQ(search.folders[0], "/opt/a");
  EXPECT_EQ(search.folders[1], "/opt/b");
  EXPECT_EQ(search.folders.back(), "/usr/lib/firmware");
  EXPECT_TRUE(std::ranges::find(search.folders, "/lib/firmware") != search.folders.end());
}

/// What is installed, if anything: every file of the manifest that loads is a known version.
TEST(Installed, FilesOfThePackagesAreRecognised) {
  size_t found = 0;
  std::string_view last;
  for (const Row& row : manifest()) {
    if (row.name == last) continue;
    last = row.name;
    const Result<File> file = load(row.name, default_search());
    if (!file) continue;
    ++found;
    EXPECT_NE(file->row, nullptr);
  }
  if (found == 0) GTEST_SKIP() << "no firmware of AMD or NVIDIA GPUs is installed";
}

}  // namespace
}  // namespace bm::firmware
