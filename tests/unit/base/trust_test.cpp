#include "runtime/base/trust.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

namespace bm {
namespace {

/// Of a file as it should be: in a folder of its own, 0700, the file 0600.
class Trust : public testing::Test {
 protected:
  Trust() {
    std::string pattern = (std::filesystem::temp_directory_path() / "bm-trust-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    file_ = folder_ + "/file";
    std::ofstream(file_) << "code";
    set_mode(file_, 0600);
  }
  ~Trust() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  static void set_mode(const std::string& path, mode_t mode) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0) << path;
  }
  /// One line that says each of `words`.
  static void expect_refused(const Result<TrustedFile>& opened, Code code,
                             std::initializer_list<std::string> words) {
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, code) << opened.error().message;
    EXPECT_EQ(std::count(opened.error().message.begin(), opened.error().message.end(), '\n'), 0);
    for (const std::string& word : words)
      EXPECT_NE(opened.error().message.find(word), std::string::npos)
          << word << " in: " << opened.error().message;
  }

  std::string folder_, file_;
};

TEST_F(Trust, AFileOfOursInAFolderOfOursIsOpened) {
  const auto opened = open_trusted(file_);
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->path, std::filesystem::canonical(file_));
  char text[5] = {};
  EXPECT_EQ(::read(opened->fd.get(), text, sizeof text), 4);
  EXPECT_STREQ(text, "code");
}

TEST_F(Trust, AFileThatItsGroupCanWriteIsRefused) {
  set_mode(file_, 0620);
  expect_refused(open_trusted(file_), Code::kPermission, {file_, "its group", "chmod g-w"});
}

TEST_F(Trust, AFileThatEverybodyCanWriteIsRefused) {
  set_mode(file_, 0666);
  expect_refused(open_trusted(file_), Code::kPermission, {file_, "everyone", "chmod go-w"});
  set_mode(file_, 0602);
  expect_refused(open_trusted(file_), Code::kPermission, {"chmod o-w"});
}

TEST_F(Trust, AFolderThatItsGroupCanWriteIsRefused) {
  set_mode(folder_, 0770);
  expect_refused(open_trusted(file_), Code::kPermission, {folder_, "its group", "chmod g-w"});
  EXPECT_FALSE(trusted_folder(folder_));
}

TEST_F(Trust, AFolderOnTheWayThatOthersCanWriteIsRefused) {
  const std::string inner = folder_ + "/inner";
  std::filesystem::create_directory(inner);
  std::filesystem::rename(file_, inner + "/file");
  ASSERT_TRUE(open_trusted(inner + "/file"));
  set_mode(folder_, 0777);
  expect_refused(open_trusted(inner + "/file"), Code::kPermission, {folder_, "chmod go-w"});
  EXPECT_FALSE(trusted_folder(inner)) << "who writes the outer folder can replace the inner one";
  EXPECT_FALSE(trusted_target(inner + "/file"));
}

TEST_F(Trust, AStickyFolderWillDoOnTheWayButNotForTheFile) {
  const std::string inner = folder_ + "/inner";
  std::filesystem::create_directory(inner);
  std::filesystem::copy_file(file_, inner + "/file");
  set_mode(folder_, 01777);
  EXPECT_TRUE(open_trusted(inner + "/file"));
  EXPECT_TRUE(trusted_folder(inner));
  expect_refused(open_trusted(file_), Code::kPermission,
                 {folder_, "everyone", "a folder that only you can write"});
  EXPECT_FALSE(trusted_folder(folder_));
}

TEST_F(Trust, AFileOfAnotherUserIsRefused) {
  TrustOptions options;
  if (::geteuid() == 0) {
    // The folder is ours, only the file is theirs.
    ASSERT_EQ(::chown(file_.c_str(), 12345, 12345), 0);
    expect_refused(open_trusted(file_, options), Code::kPermission,
                   {file_, "user 12345", "neither root nor you"});
    options.also = 12345;
    EXPECT_TRUE(open_trusted(file_, options)) << "who owns the program may own its parts";
  } else {
    // Seen by somebody else, whose folder it is not either.
    options.user = ::geteuid() + 1;
    expect_refused(open_trusted(file_, options), Code::kPermission,
                   {fmt::format("user {}", ::geteuid()), "neither root nor you"});
    options.also = ::geteuid();
    EXPECT_TRUE(open_trusted(file_, options));
  }
}

TEST_F(Trust, AFolderOfAnotherUserIsRefused) {
  TrustOptions options;
  uid_t theirs = ::geteuid();
  if (::geteuid() == 0)
    ASSERT_EQ(::chown(folder_.c_str(), theirs = 12345, 12345), 0);
  else
    options.user = ::geteuid() + 1;
  expect_refused(open_trusted(file_, options), Code::kPermission,
                 {folder_, fmt::format("user {}", theirs), "a folder of your own"});
  EXPECT_FALSE(trusted_folder(folder_, options));
}

TEST_F(Trust, ASymbolicLinkInPlaceOfTheFileIsRefusedAndItsTargetNamed) {
  const std::string link = folder_ + "/link";
  std::filesystem::create_symlink(file_, link);
  expect_refused(open_trusted(link), Code::kInvalidArgument, {link, "symbolic link", file_});
  // Packages of libraries and compilers are made of links.
  const auto target = trusted_target(link);
  ASSERT_TRUE(target) << target.error().message;
  EXPECT_EQ(*target, std::filesystem::canonical(file_));
}

TEST_F(Trust, LinksOfFoldersLeadOnlyThroughFoldersOfOurs) {
  const std::string real = folder_ + "/real", open = folder_ + "/open", link = folder_ + "/link";
  std::filesystem::create_directory(real);
  std::filesystem::create_directory(open);
  std::filesystem::copy_file(file_, real + "/file");
  std::filesystem::create_symlink("real", link);
  const auto opened = open_trusted(link + "/file");
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->path, std::filesystem::canonical(real + "/file"));
  std::filesystem::create_symlink("../real/../real", open + "/link");
  EXPECT_TRUE(open_trusted(open + "/link/file"));
  set_mode(open, 0777);
  expect_refused(open_trusted(open + "/link/file"), Code::kPermission, {open, "everyone"});
}

TEST_F(Trust, LinksInACircleAreAnError) {
  std::filesystem::create_symlink("b", folder_ + "/a");
  std::filesystem::create_symlink("a", folder_ + "/b");
  expect_refused(open_trusted(folder_ + "/a/file"), Code::kInvalidArgument, {"too many"});
  EXPECT_FALSE(trusted_target(folder_ + "/a"));
}

TEST_F(Trust, ARelativePathIsRefused) {
  for (const char* path : {"file", "./file", "../file", ""}) {
    expect_refused(open_trusted(path), Code::kInvalidArgument, {"relative", "absolute"});
    EXPECT_FALSE(trusted_folder(path));
    EXPECT_FALSE(trusted_target(path));
  }
  EXPECT_FALSE(check_library("./libm.so.6"));
  EXPECT_TRUE(check_library("libm.so.6")) << "the loader's to find";
}

TEST_F(Trust, WhatIsNoRegularFileIsRefusedWithoutWaiting) {
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_refused(open_trusted(pipe), Code::kInvalidArgument, {"not a regular file"});
  EXPECT_FALSE(open_trusted(folder_));
  EXPECT_FALSE(open_trusted("/dev/null"));
  EXPECT_EQ(open_trusted(folder_ + "/missing").error().code, Code::kNotFound);
  EXPECT_EQ(open_trusted(file_ + "/below").error().code, Code::kNotFound);
}

TEST_F(Trust, NamesAreSeenFromTheCurrentFolder) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder_);
  const auto name = absolute_path("file");
  std::filesystem::current_path(before);
  ASSERT_TRUE(name);
  EXPECT_TRUE(open_trusted(*name));
  EXPECT_EQ(*absolute_path("/x/y"), "/x/y");
}

}  // namespace
}  // namespace bm
