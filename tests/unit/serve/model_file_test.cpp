#include "serve/model_file.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace bm::serve {
namespace {

class ModelFile : public ::testing::Test {
 protected:
  void SetUp() override { write(path_, "weights"); }
  void TearDown() override { std::filesystem::remove(path_); }
  static void write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  std::string path_ = testing::TempDir() + "model_file_test.gguf";
};

TEST_F(ModelFile, OneThatStaysIsNotTold) {
  FileWatch watch(path_);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(watch.has_changed());
}

TEST_F(ModelFile, AnotherInItsPlaceIsToldOnceItIsCalmAndThenNoMore) {
  FileWatch watch(path_);
  write(path_ + ".new", "other weights");
  std::filesystem::rename(path_ + ".new", path_);
  EXPECT_FALSE(watch.has_changed());
  EXPECT_TRUE(watch.has_changed());
  EXPECT_FALSE(watch.has_changed());
}

TEST_F(ModelFile, OneThatIsStillBeingWrittenIsNotTold) {
  FileWatch watch(path_);
  std::string text = "weights";
  for (int i = 0; i < 3; ++i) {
    write(path_, text += "!");
    EXPECT_FALSE(watch.has_changed());
  }
  EXPECT_TRUE(watch.has_changed());
}

TEST_F(ModelFile, OneThatIsGoneIsToldWhenItIsThereAgain) {
  FileWatch watch(path_);
  std::filesystem::remove(path_);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(watch.has_changed());
  write(path_, "other weights");
  EXPECT_FALSE(watch.has_changed());
  EXPECT_TRUE(watch.has_changed());
}

TEST_F(ModelFile, OverwrittenIsNotReplaced) {
  const FileMark before = *mark_of(path_);
  EXPECT_FALSE(before.is_overwritten(before));
  write(path_, "longer weights");
  EXPECT_TRUE(before.is_overwritten(*mark_of(path_)));
  write(path_ + ".new", "weights of another length");
  std::filesystem::rename(path_ + ".new", path_);
  EXPECT_FALSE(before.is_overwritten(*mark_of(path_)));
  EXPECT_FALSE(mark_of(path_ + ".none"));
}

}  // namespace
}  // namespace bm::serve
