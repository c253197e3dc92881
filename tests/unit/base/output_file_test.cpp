#include "runtime/base/output_file.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/trust.h"

namespace bm {
namespace {

class OutputFileTest : public testing::Test {
 protected:
  OutputFileTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "bm-output-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    path_ = folder_ + "/out";
  }
  ~OutputFileTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  static Status write(const std::string& path, std::string_view text,
                      OutputFile::Options options = {}) {
    return replace_file(path, std::as_bytes(std::span(text)), options);
  }
  static std::string read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  static mode_t mode_of(const std::string& path) {
    struct stat info{};
    EXPECT_EQ(::lstat(path.c_str(), &info), 0);
    return info.st_mode & 07777;
  }
  size_t num_files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  std::string folder_, path_;
};

TEST_F(OutputFileTest, TheFileIsThereAfterCommitAndNotBefore) {
  auto file = OutputFile::create(path_);
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_TRUE(file->write("first "));
  ASSERT_TRUE(file->write("second"));
  EXPECT_EQ(num_files(), 0u) << "contents without a name: nothing is left over, whatever happens";
  ASSERT_TRUE(file->commit());
  EXPECT_EQ(read(path_), "first second");
  EXPECT_EQ(num_files(), 1u);
}

TEST_F(OutputFileTest, WithoutCommitTheOldContentsStay) {
  ASSERT_TRUE(write(path_, "old"));
  {
    auto file = OutputFile::create(path_);
    ASSERT_TRUE(file && file->write("new"));
  }
  EXPECT_EQ(read(path_), "old");
  EXPECT_EQ(num_files(), 1u);
}

TEST_F(OutputFileTest, PlantedNamesAreNotFollowed) {
  const std::string victim = folder_ + "/victim";
  ASSERT_TRUE(write(victim, "precious"));
  for (const char* ending : {".tmp", ".draft", ".new", "~"})
    std::filesystem::create_symlink(victim, path_ + ending);
  ASSERT_TRUE(write(path_, "mine"));
  EXPECT_EQ(read(victim), "precious");
  EXPECT_EQ(read(path_), "mine");
}

TEST_F(OutputFileTest, OurOwnLinksAreFollowed) {
  const std::string target = folder_ + "/target";
  std::filesystem::create_symlink("target", path_);
  ASSERT_TRUE(write(path_, "new"));
  EXPECT_TRUE(std::filesystem::is_symlink(path_));
  EXPECT_EQ(read(target), "new");
}

TEST_F(OutputFileTest, LinksOfOthersAreRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make files of others";
  const std::string victim = folder_ + "/victim";
  ASSERT_TRUE(write(victim, "precious"));
  std::filesystem::create_symlink(victim, path_);
  ASSERT_EQ(::lchown(path_.c_str(), 12345, 12345), 0);
  const Status written = write(path_, "mine");
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, Code::kPermission);
  EXPECT_NE(written.error().message.find("symbolic link of user 12345"), std::string::npos);
  EXPECT_EQ(read(victim), "precious");
}

TEST_F(OutputFileTest, PermissionsAreThoseOfTheUmaskOrOfTheFileBefore) {
  const mode_t before = ::umask(0002);
  ASSERT_TRUE(write(path_, "x"));
  EXPECT_EQ(mode_of(path_), 0664u);
  ASSERT_EQ(::chmod(path_.c_str(), 0640), 0);
  ASSERT_TRUE(write(path_, "y"));
  EXPECT_EQ(mode_of(path_), 0640u);
  ::umask(before);
}

TEST_F(OutputFileTest, CodeIsNeverWrittenSoThatItWouldBeRefused) {
  const mode_t before = ::umask(0002);
  ASSERT_TRUE(write(path_, "x", {.is_code = true}));
  EXPECT_EQ(mode_of(path_), 0644u);
  ASSERT_EQ(::chmod(path_.c_str(), 0666), 0);
  ASSERT_TRUE(write(path_, "y", {.is_code = true}));
  EXPECT_EQ(mode_of(path_), 0644u);
  EXPECT_TRUE(open_trusted(path_));
  ::umask(before);
}

TEST_F(OutputFileTest, OnlyRegularFilesAreReplaced) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(write(path_, "x").error().code, Code::kInvalidArgument);
  EXPECT_EQ(write(folder_, "x").error().code, Code::kInvalidArgument);
  EXPECT_EQ(write("/dev/null", "x").error().code, Code::kInvalidArgument);
  EXPECT_EQ(write(folder_ + "/none/out", "x").error().code, Code::kNotFound);
  EXPECT_EQ(num_files(), 1u);
}

TEST_F(OutputFileTest, ADiskThatIsFullLeavesTheOldFileAlone) {
  ASSERT_TRUE(write(path_, "old"));
  // A limit on file sizes stands in for a full disk.
  rlimit low{};
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &low), 0);
  const rlimit before = low;
  low.rlim_cur = 10'000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  const Status written = write(path_, std::string(20'000, 'x'));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  ASSERT_FALSE(written);
  EXPECT_NE(written.error().message.find(path_), std::string::npos) << written.error().message;
  EXPECT_EQ(read(path_), "old");
  EXPECT_EQ(num_files(), 1u);
}

}  // namespace
}  // namespace bm
