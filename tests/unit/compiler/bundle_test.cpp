// Bundles of kernels: written, read back, used in place of a compiler, and refused when they
// should.
#include "compiler/bundle.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/env.h"
#include "tests/unit/compiler/cache/temporary_directory.h"
#include "tests/unit/compiler/random_kernel.h"
#include "tests/unit/compiler/runner.h"

namespace bm::compiler {
namespace {

std::string write_file(const std::string& name, std::span<const std::byte> bytes) {
  // Bundles are taken from folders that nobody else can write only, so not from /tmp itself.
  static const TemporaryDirectory folder;
  const std::string path = folder.path() + "/" + name;
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  return path;
}

std::vector<std::byte> bundle_of(const hal::Arch& arch, uint64_t first, uint64_t count) {
  std::vector<std::pair<BundleKey, hal::CodeObject>> kernels;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const ir::KernelIr k = test::random_pattern(seed).kernel;
    auto code = compile(k, arch, "LLVM", {.use_cache = false});
    EXPECT_TRUE(code);
    kernels.emplace_back(bundle_key(k), std::move(*code));
  }
  return write_bundle(arch, kernels);
}

TEST(Bundle, HasWhatWasPutIn) {
  const hal::Arch arch = test::native_arch();
  const std::vector<std::byte> bytes = bundle_of(arch, 0, 6);
  const auto bundle = Bundle::parse(bytes);
  ASSERT_TRUE(bundle) << bundle.error().message;
  EXPECT_EQ(bundle->size(), 6u);
  EXPECT_TRUE(bundle->fits(arch));
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const ir::KernelIr k = test::random_pattern(seed).kernel;
    const auto found = bundle->find(bundle_key(k));
    ASSERT_TRUE(found && *found);
    EXPECT_EQ((*found)->image, compile(k, arch, "LLVM", {.use_cache = false})->image);
  }
  const auto other = bundle->find(bundle_key(test::random_pattern(7).kernel));
  ASSERT_TRUE(other);
  EXPECT_FALSE(*other);
  EXPECT_TRUE(Bundle::parse(write_bundle(arch, {})));
}

TEST(Bundle, ReplacesTheCompiler) {
  const hal::Arch arch = test::native_arch();
  const std::string path = write_file("good.bundle", bundle_of(arch, 20, 2));
  const ScopedSetting bundle("BM_BUNDLE", "/dev/null/none:" + path);
  const auto bad = compile(test::random_pattern(20).kernel, arch, "LLVM");
  ASSERT_FALSE(bad) << "a file that is named must be there";
  const ScopedSetting good("BM_BUNDLE", path);
  // This renderer needs a program that is not there.
  const ScopedSetting clang("BM_CLANG", "/nowhere/clang");
  EXPECT_TRUE(compile(test::random_pattern(20).kernel, arch, "CLANG"));
  EXPECT_TRUE(compile(test::random_pattern(21).kernel, arch, "CLANG"));
  const auto missing = compile(test::random_pattern(22).kernel, arch, "CLANG");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("good.bundle"), std::string::npos)
      << missing.error().message;
}

TEST(Bundle, ForAnotherMachineIsRefused) {
  hal::Arch arch = test::native_arch();
  const std::vector<std::byte> bytes = bundle_of(arch, 0, 1);
  const auto bundle = Bundle::parse(bytes);
  ASSERT_TRUE(bundle);
  hal::Arch other = arch;
  other.name = "sm_90";
  other.vendor = hal::Vendor::kNv;
  ASSERT_FALSE(bundle->fits(other));
  EXPECT_NE(bundle->fits(other).error().message.find("sm_90"), std::string::npos);
  // Fewer features than it was made with.
  const std::string needle = "+sse3";
  const size_t at = arch.features.find(needle);
  ASSERT_NE(at, std::string::npos);
  arch.features[at] = '-';
  const Status lacks = bundle->fits(arch);
  ASSERT_FALSE(lacks);
  EXPECT_EQ(lacks.error().code, Code::kUnsupported);
  EXPECT_NE(lacks.error().message.find("lacks sse3"), std::string::npos) << lacks.error().message;
  const ScopedSetting set("BM_BUNDLE", write_file("other.bundle", bytes));
  const auto code = compile(test::random_pattern(0).kernel, arch, "LLVM");
  ASSERT_FALSE(code);
  EXPECT_NE(code.error().message.find("lacks sse3"), std::string::npos);
}

TEST(Bundle, OneThatOthersCouldHaveWrittenIsRefusedAndNothingCompiledInItsPlace) {
  const hal::Arch arch = test::native_arch();
  const std::string path = write_file("foreign.bundle", bundle_of(arch, 20, 1));
  const auto message = [&](const std::string& setting) {
    const ScopedSetting bundle("BM_BUNDLE", setting);
    const auto code = compile(test::random_pattern(20).kernel, arch, "LLVM");
    EXPECT_FALSE(code) << setting;
    return code ? "" : code.error().message;
  };
  using std::filesystem::perms;
  std::filesystem::permissions(path, perms::group_write, std::filesystem::perm_options::add);
  EXPECT_NE(message(path).find("chmod g-w"), std::string::npos) << message(path);
  // Failures are remembered by path, so other places have other names.
  const std::string open = path + ".open";
  std::filesystem::create_directory(open);
  std::filesystem::permissions(open, perms::all);
  std::filesystem::copy_file(path, open + "/bundle");
  EXPECT_NE(message(open + "/bundle").find("everyone"), std::string::npos);
  std::filesystem::create_symlink(path, path + ".link");
  EXPECT_NE(message(path + ".link").find("symbolic link"), std::string::npos);
  EXPECT_NE(message("foreign.bundle").find("absolute path"), std::string::npos);
}

TEST(Bundle, EveryCutAndEveryDamageIsNoticed) {
  const hal::Arch arch = test::native_arch();
  const std::vector<std::byte> bytes = bundle_of(arch, 0, 2);
  for (size_t size = 0; size < bytes.size(); size += size < 400 ? 1 : 97) {
    const auto cut = Bundle::parse(std::span(bytes).first(size));
    ASSERT_FALSE(cut) << size;
    EXPECT_FALSE(cut.error().message.empty());
  }
  const BundleKey key = bundle_key(test::random_pattern(0).kernel),
                  second = bundle_key(test::random_pattern(1).kernel);
  for (size_t at = 0; at < bytes.size(); at += at < 400 ? 1 : 97) {
    std::vector<std::byte> damaged = bytes;
    damaged[at] ^= std::byte{0x10};
    const auto bundle = Bundle::parse(damaged);
    if (!bundle) continue;
    EXPECT_FALSE(bundle->find(key) && bundle->find(second)) << "byte " << at;
  }
}

TEST(Bundle, OfAnotherVersionSaysSo) {
  std::vector<std::byte> bytes = write_bundle(test::native_arch(), {});
  bytes[8] ^= std::byte{1};
  const auto bundle = Bundle::parse(bytes);
  ASSERT_FALSE(bundle);
  EXPECT_EQ(bundle.error().code, Code::kUnsupported);
  EXPECT_NE(bundle.error().message.find("bake it again"), std::string::npos);
}

}  // namespace
}  // namespace bm::compiler
