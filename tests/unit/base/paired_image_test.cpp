#include "runtime/base/paired_image.h"

#include <gtest/gtest.h>

namespace bm {
namespace {

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

TEST(PairedImage, GivesBackBothParts) {
  for (const std::string_view text : {"", "text", "text with\nlines"}) {
    const auto code = bytes_of("machine code");
    const auto image = pair_image(code, text);
    const PairedImage pair = split_image(image);
    EXPECT_EQ(std::vector(pair.code.begin(), pair.code.end()), code);
    EXPECT_EQ(pair.text, text);
    EXPECT_EQ(pair.text.data()[text.size()], '\0') << "a C string";
  }
}

TEST(PairedImage, TakesOtherBytesAsCodeWithoutText) {
  auto damaged = pair_image(bytes_of("code"), "text");
  damaged[9] = std::byte{0xff};  // length
  damaged[16] = std::byte{0xff};
  for (const auto& image : {bytes_of(""), bytes_of("code"), bytes_of("BMPAIR01"), damaged}) {
    const PairedImage whole = split_image(image);
    EXPECT_EQ(whole.code.size(), image.size());
    EXPECT_TRUE(whole.text.empty());
  }
}

}  // namespace
}  // namespace bm
