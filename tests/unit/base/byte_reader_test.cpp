#include "runtime/base/byte_reader.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <fcntl.h>
#include <unistd.h>

#include "runtime/base/mapping.h"
#include "runtime/base/scoped_fd.h"

namespace bm {
namespace {

constexpr std::array<std::byte, 7> kBytes{std::byte{0x78}, std::byte{0x56}, std::byte{0x34},
                                          std::byte{0x12}, std::byte{'a'},  std::byte{'b'},
                                          std::byte{0xff}};

TEST(ByteReader, ReadsLittleEndianWithoutAlignment) {
  ByteReader reader(kBytes);
  EXPECT_EQ(*reader.read<uint8_t>(), 0x78);
  EXPECT_EQ(*reader.read<uint16_t>(), 0x3456);
  EXPECT_TRUE(reader.skip(1));
  EXPECT_EQ(*reader.text(2), "ab");
  EXPECT_EQ(reader.offset(), 6u);
  EXPECT_EQ(reader.remaining(), 1u);
}

TEST(ByteReader, FailsWithTheOffsetAndStaysWhereItWas) {
  ByteReader reader(kBytes);
  ASSERT_TRUE(reader.skip(5));
  const auto value = reader.read<uint32_t>();
  ASSERT_FALSE(value);
  EXPECT_EQ(value.error().code, Code::kCorrupt);
  EXPECT_NE(value.error().message.find("offset 5"), std::string::npos) << value.error().message;
  EXPECT_EQ(reader.offset(), 5u);
}

TEST(ByteReader, RefusesLengthsThatWouldWrap) {
  ByteReader reader(kBytes);
  ASSERT_TRUE(reader.skip(2));
  EXPECT_FALSE(reader.bytes(UINT64_MAX));
  EXPECT_FALSE(reader.skip(UINT64_MAX - 1));
  EXPECT_FALSE(reader.text(6));
  EXPECT_TRUE(reader.bytes(5));
  EXPECT_EQ(reader.remaining(), 0u);
}

TEST(ByteReader, SeeksToTheEndButNotBeyond) {
  ByteReader reader(kBytes);
  EXPECT_TRUE(reader.seek(7));
  EXPECT_FALSE(reader.seek(8));
  EXPECT_EQ(reader.offset(), 7u);
}

std::string temporary_file(std::string_view text) {
  std::string path = testing::TempDir() + "bm_mapping_XXXXXX";
  const int fd = ::mkstemp(path.data());
  EXPECT_GE(fd, 0);
  EXPECT_EQ(::write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ::close(fd);
  return path;
}

TEST(Mapping, ShowsTheBytesOfTheFile) {
  const std::string path = temporary_file("hello");
  Result<Mapping> mapping = Mapping::open_file(path);
  std::remove(path.c_str());
  ASSERT_TRUE(mapping) << mapping.error().message;
  const Mapping moved = std::move(*mapping);
  EXPECT_EQ(*ByteReader(moved.bytes()).text(5), "hello");
  EXPECT_TRUE(mapping->bytes().empty());
}

TEST(Mapping, OfAnEmptyFileIsEmptyAndOpeningOneByItsNameSaysSo) {
  const std::string path = temporary_file("");
  const ScopedFd fd(::open(path.c_str(), O_RDONLY));
  const Result<Mapping> mapping = Mapping::of(fd.get(), path), named = Mapping::open_file(path);
  std::remove(path.c_str());
  ASSERT_TRUE(mapping);
  EXPECT_TRUE(mapping->bytes().empty());
  EXPECT_EQ(named.error().code, Code::kCorrupt);
  EXPECT_EQ(named.error().message,
            path + " is empty (0 bytes), as a download that broke off leaves it: fetch it again");
}

TEST(Mapping, NamesThePathItCannotOpen) {
  const Result<Mapping> missing = Mapping::open_file("/nonexistent/weights.gguf");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  EXPECT_NE(missing.error().message.find("weights.gguf"), std::string::npos);
  EXPECT_EQ(Mapping::open_file(testing::TempDir()).error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace bm
