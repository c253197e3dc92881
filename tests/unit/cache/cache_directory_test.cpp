#include "compiler/cache/cache_directory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sys/stat.h>

#include "tests/unit/cache/temporary_directory.h"

namespace bm::compiler {
namespace {

TEST(CacheDirectory, MissingParentsAreMadeForTheOwnerOnly) {
  const TemporaryDirectory temporary;
  const std::string path = temporary.path() + "/a/b/c";
  ASSERT_TRUE(prepare_cache_directory(path));
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_TRUE(prepare_cache_directory(path)) << "a second time";
}

TEST(CacheDirectory, RelativePathIsAccepted) {
  const TemporaryDirectory temporary;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(temporary.path());
  const Status made = prepare_cache_directory("x/y");
  std::filesystem::current_path(before);
  EXPECT_TRUE(made);
  EXPECT_TRUE(std::filesystem::is_directory(temporary.path() + "/x/y"));
}

TEST(CacheDirectory, WritableByEveryoneIsRefused) {
  const TemporaryDirectory temporary;
  ::chmod(temporary.path().c_str(), 0777);
  const Status made = prepare_cache_directory(temporary.path());
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::kPermission);
  EXPECT_NE(made.error().message.find("chmod o-w"), std::string::npos) << made.error().message;
}

TEST(CacheDirectory, FileInTheWayIsNamed) {
  const TemporaryDirectory temporary;
  const std::string file = temporary.path() + "/file";
  std::ofstream(file) << "x";
  const Status made = prepare_cache_directory(file + "/cache");
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().message.find(file), std::string::npos) << made.error().message;
}

}  // namespace
}  // namespace bm::compiler
