#pragma once
// A small generator of reproducible random numbers and texts, and a folder that removes itself.

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/unicode.h"

namespace bm::models::test {

/// xorshift64*; Marsaglia, "Xorshift RNGs" (2003), with Vigna's multiplier.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2654435769u + 88172645463325252u) {}
  uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 2685821657736338717u;
  }
  size_t below(size_t n) { return static_cast<size_t>((next() >> 32) % n); }

 private:
  uint64_t state_;
};

/// Characters of all classes that pre-tokenizers tell apart, from blocks older than Unicode 12
/// (PCRE2 and utf8proc may know different versions).
inline std::string random_text(Random& random, size_t characters) {
  static const std::vector<std::u32string> pools = {U"abcdefgstvmrl",
                                                    U"ABCSTDLL",
                                                    U"0123456789",
                                                    U"    ",
                                                    U" \t\n\r\v\f",
                                                    U"'\"’",
                                                    U".,!?/-_$+^|`",
                                                    U"éßñÅÆǅʰªĦſ",
                                                    U"中文字日本",
                                                    U"ひらカター",
                                                    U"٣४Ⅷ½²",
                                                    U"\u0301\u0903\u20DD\u0300",
                                                    U"😀🎉€©→",
                                                    U"\u00A0\u2003\u3000\u2028\u0085\u180E",
                                                    U"\u200B\u200D\u00AD\u0007\u0000",
                                                    U"{}[]<>=~#%&*\\",
                                                    U"'s'T're'VE'm'LL'd"};
  std::string out;
  for (size_t i = 0; i < characters; ++i) {
    const std::u32string& pool = pools[random.below(pools.size())];
    const size_t run = random.below(4) == 0 ? 1 + random.below(5) : 1;
    for (size_t k = 0; k < run; ++k) append_utf8(out, pool[random.below(pool.size())]);
  }
  return out;
}

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "bm-formats-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string write(const std::string& name, std::span<const std::byte> bytes) const {
    const std::string path = file(name);
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
    return path;
  }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace bm::models::test
