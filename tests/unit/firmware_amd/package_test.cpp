// AMD's own files, where they are installed: the judge of the readers that we wrote for our own
// blobs.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include <gtest/gtest.h>
#include <unistd.h>

#include "firmware/amd/discovery.h"
#include "firmware/amd/set.h"
#include "firmware/amd/ucode.h"
#include "firmware/decompress.h"
#include "firmware/store.h"

namespace bm::firmware::amd {
namespace {

namespace fs = std::filesystem;

// What AMD's packages themselves have wrong, by name; all of chips that are not driven from here.
struct Exception {
  std::string_view name;
  std::string_view why;
};
constexpr Exception kExceptions[] = {{"raven2_rlc", "begins inside ucode"}};

fs::path installed() {
  for (const std::string& folder : default_search().folders)
    if (fs::is_directory(fs::path(folder) / "amdgpu")) return fs::path(folder) / "amdgpu";
  return {};
}

std::vector<std::byte> contents(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  const auto raw = std::as_bytes(std::span(text));
  std::vector<std::byte> bytes(raw.begin(), raw.end());
  for (const Compression form : {Compression::kZstd, Compression::kXz}) {
    if (path.extension() != suffix(form)) continue;
    auto plain = decompress(bytes, form, 256 << 20);
    EXPECT_TRUE(plain) << path;
    if (plain) return *plain;
  }
  return bytes;
}

/// "gc_11_0_0_mec" of ".../gc_11_0_0_mec.bin.xz"; "" for other files.
std::string stem(const fs::path& path) {
  const std::string name = path.filename().string();
  const size_t end = name.find(".bin");
  return end == std::string::npos ? "" : name.substr(0, end);
}

TEST(Package, EveryFileParses) {
  const fs::path folder = installed();
  if (folder.empty())
    GTEST_SKIP() << "no amdgpu folder in "
                 << fmt::format("{}", fmt::join(default_search().folders, ", "))
                 << "; unpack firmware-amd-graphics and name its lib/firmware in BM_FIRMWARE_DIR";
  std::map<std::string, int> read;
  std::vector<std::string> unknown;
  int other = 0, parts = 0, unread = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = stem(entry.path());
    const auto kind = kind_of(name + ".bin");
    // Links to nothing and empty files occur.
    if (name.empty() || !kind || !fs::exists(entry.path()) || fs::file_size(entry.path()) == 0) {
      ++other;
      continue;
    }
    const std::vector<std::byte> bytes = contents(entry.path());
    const auto ucode = parse(*kind, Image(name, bytes));
    // RLC files of chips before 2015 (v1): the kernel's reader of today refuses them as well.
    if (!ucode && *kind == Kind::kRlc && bytes.size() > 8 && bytes[8] == std::byte{1}) {
      ++unread;
      continue;
    }
    const auto exception = std::ranges::find(kExceptions, name, &Exception::name);
    if (exception != std::end(kExceptions)) {
      const std::string message = ucode ? "" : ucode.error().message;
      EXPECT_NE(message.find(exception->why), std::string::npos) << message;
      continue;
    }
    ASSERT_TRUE(ucode) << ucode.error().message;
    EXPECT_FALSE(ucode->parts.empty()) << name;
    for (const Part& part : ucode->parts)
      if (part.id == PartId::kUnknown) unknown.push_back(fmt::format("{} {}", name, part.type));
    ++read[fmt::format("{} v{}.{}", kind_name(*kind), ucode->header.header_version_major,
                       ucode->header.header_version_minor)];
    parts += static_cast<int>(ucode->parts.size());
  }
  int total = 0;
  for (const auto& [format, count] : read) {
    std::printf("%s: %d\n", format.c_str(), count);
    total += count;
  }
  std::printf("%d files, %d parts; %d RLC v1, %d of other blocks\n", total, parts, unread, other);
  EXPECT_GT(total, 0);
  EXPECT_TRUE(unknown.empty()) << fmt::format("{}", fmt::join(unknown, ", "));
}

TEST(Package, HeadersHaveTheVersionOfTheName) {
  const fs::path folder = installed();
  if (folder.empty()) GTEST_SKIP() << "no amdgpu folder; see Package.EveryFileParses";
  const Search search{.folders = {folder.parent_path().string()}};
  int num_files = 0;
  // The blocks' versions in the discovery tables of the chips that are booted.
  for (const ChipId& chip : {ChipId{{9, 4, 3}, {13, 0, 6}, {13, 0, 6}, {4, 4, 2}},
                             ChipId{{11, 0, 0}, {13, 0, 0}, {13, 0, 0}, {6, 0, 0}},
                             ChipId{{11, 0, 2}, {13, 0, 7}, {13, 0, 7}, {6, 0, 2}},
                             ChipId{{11, 0, 3}, {13, 0, 10}, {13, 0, 10}, {6, 0, 3}},
                             ChipId{{12, 0, 0}, {14, 0, 2}, {14, 0, 2}, {7, 0, 0}},
                             ChipId{{12, 0, 1}, {14, 0, 3}, {14, 0, 3}, {7, 0, 1}}}) {
    const auto set = firmware_set(chip);
    ASSERT_TRUE(set);
    for (const SetFile& wanted : set->files) {
      const auto file = load(wanted.name, search);
      if (!file) continue;  // a package older than the chip
      const auto ucode = parse(wanted, Image(file->path, file->bytes));
      EXPECT_TRUE(ucode) << ucode.error().message;
      ++num_files;
    }
  }
  EXPECT_GT(num_files, 0);
  std::printf("%d files\n", num_files);
}

TEST(Package, AKnownFileUnderAnotherNameIsTold) {
  const fs::path folder = installed();
  const Search search{.folders = {folder.parent_path().string()}};
  const auto known = load("amdgpu/gc_11_0_2_mec.bin", search);
  if (!known || known->row == nullptr) GTEST_SKIP() << "no gc_11_0_2_mec.bin that is known";
  const fs::path other = fs::temp_directory_path() / fmt::format("bm-renamed-{}", ::getpid());
  fs::create_directories(other / "amdgpu");
  std::ofstream(other / "amdgpu/gc_11_0_0_mec.bin", std::ios::binary)
      .write(reinterpret_cast<const char*>(known->bytes.data()),
             static_cast<std::streamsize>(known->bytes.size()));
  const auto renamed = load("amdgpu/gc_11_0_0_mec.bin", {.folders = {other.string()}});
  ASSERT_FALSE(renamed);
  EXPECT_NE(renamed.error().message.find("is amdgpu/gc_11_0_2_mec.bin of"), std::string::npos)
      << renamed.error().message;
  fs::remove_all(other);
}

TEST(Package, DiscoveryTablesOfOldChipsParse) {
  const fs::path folder = installed();
  if (folder.empty()) GTEST_SKIP() << "no amdgpu folder; see Package.EveryFileParses";
  int tables = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = stem(entry.path());
    if (!name.ends_with("_ip_discovery")) continue;
    ++tables;
    const std::vector<std::byte> bytes = contents(entry.path());
    const auto table = parse_discovery(Image(name, bytes));
    ASSERT_TRUE(table) << table.error().message;
    const IpBlock* const gc = table->find(kGcHwId);
    ASSERT_NE(gc, nullptr) << name;
    EXPECT_EQ(gc->major, 9) << name;
    EXPECT_FALSE(gc->base_address.empty()) << name;
    EXPECT_NE(table->find(kMp0HwId), nullptr) << name;
    EXPECT_EQ(table->unknown_ips, 0u) << name;
    if (table->gc) {
      EXPECT_EQ(table->gc->gc_wave_size, 64u) << name;
      EXPECT_EQ(table->gc->gc_lds_size, 64u) << name;
    }
    std::printf("%s: GC %d.%d.%d, %zu IPs, %zu harvested, GC info %s\n", name.c_str(), gc->major,
                gc->minor, gc->revision, table->ips.size(), table->harvest.size(),
                table->gc ? "yes" : "no");
  }
  if (tables == 0)
    GTEST_SKIP() << "no *_ip_discovery.bin in " << folder << " (packages of 2025 on have some)";
}

}  // namespace
}  // namespace bm::firmware::amd
