#include "compiler/cache/cache_directory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sys/stat.h>

#include "tests/unit/compiler/cache/temporary_directory.h"

namespace bm::compiler {
namespace {

TEST(CacheDirectory, MissingParentsAreMadeForTheOwnerOnly) {
  const TemporaryDirectory temporary;
  const std::string path = temporary.path() + "/a/b/c";
  ASSERT_TRUE(prepare_cache_directory(path));
  struct stat info{};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_TRUE(prepare_cache_directory(path)) << "a second time";
}

TEST(CacheDirectory, RelativePathIsRefusedAndNothingMade) {
  const TemporaryDirectory temporary;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(temporary.path());
  const auto made = prepare_cache_directory("x/y");
  std::filesystem::current_path(before);
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().message.find("absolute path"), std::string::npos) << made.error().message;
  EXPECT_FALSE(std::filesystem::exists(temporary.path() + "/x"));
}

TEST(CacheDirectory, WritableByItsGroupIsRefused) {
  const TemporaryDirectory temporary;
  ::chmod(temporary.path().c_str(), 0770);
  const auto made = prepare_cache_directory(temporary.path());
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::kPermission);
  EXPECT_NE(made.error().message.find("chmod g-w"), std::string::npos) << made.error().message;
}

TEST(CacheDirectory, WritableByEveryoneIsRefused) {
  const TemporaryDirectory temporary;
  ::chmod(temporary.path().c_str(), 0777);
  const auto made = prepare_cache_directory(temporary.path());
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::kPermission);
  EXPECT_NE(made.error().message.find("chmod go-w"), std::string::npos) << made.error().message;
}

TEST(CacheDirectory, FilesOfTheCacheAreTheOwnersAlone) {
  const TemporaryDirectory temporary;
  const std::string file = temporary.path() + "/kernels.db";
  const mode_t before = ::umask(0);
  ASSERT_TRUE(check_cache_file(file));
  ::umask(before);
  struct stat info{};
  ASSERT_EQ(::stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
}

TEST(CacheDirectory, DatabaseOrLogThatOthersCanWriteIsRefused) {
  for (const char* suffix : {"", "-wal", "-shm", "-journal"}) {
    const TemporaryDirectory temporary;
    const std::string file = temporary.path() + "/kernels.db";
    ASSERT_TRUE(check_cache_file(file));
    std::ofstream(file + suffix) << "x";
    ASSERT_EQ(::chmod((file + suffix).c_str(), 0660), 0);
    const Status checked = check_cache_file(file);
    ASSERT_FALSE(checked) << suffix;
    EXPECT_EQ(checked.error().code, Code::kPermission);
    EXPECT_NE(checked.error().message.find(file + suffix), std::string::npos)
        << checked.error().message;
  }
}

TEST(CacheDirectory, LinkInPlaceOfTheDatabaseIsRefused) {
  const TemporaryDirectory temporary;
  const std::string file = temporary.path() + "/kernels.db";
  std::ofstream(temporary.path() + "/other") << "x";
  std::filesystem::create_symlink("other", file);
  const Status checked = check_cache_file(file);
  ASSERT_FALSE(checked);
  EXPECT_NE(checked.error().message.find("symbolic link"), std::string::npos);
}

TEST(CacheDirectory, FileInTheWayIsNamed) {
  const TemporaryDirectory temporary;
  const std::string file = temporary.path() + "/file";
  std::ofstream(file) << "x";
  const auto made = prepare_cache_directory(file + "/cache");
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().message.find(file), std::string::npos) << made.error().message;
}

}  // namespace
}  // namespace bm::compiler
