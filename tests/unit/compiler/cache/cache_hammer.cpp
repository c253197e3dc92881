// cache_hammer DIRECTORY SEED PIPE_FD: puts and gets verifiable blobs, one byte into the pipe after
// each, until killed or 100,000 operations. Exit 9: a wrong payload. Exit 8: an error came out.
#include <cstdlib>
#include <random>
#include <string>
#include <unistd.h>

#include "compiler/cache/disk_cache.h"
#include "tests/unit/compiler/cache/hammer_payload.h"

int main(int argc, char** argv) {
  using namespace bm::compiler;
  if (argc != 4) return 2;
  const auto seed = static_cast<unsigned>(std::atoi(argv[2]));
  const int pipe = std::atoi(argv[3]);
  std::minstd_rand random(seed + 1);
  DiskCache cache({.directory = argv[1], .max_bytes = 400'000});
  for (int i = 0; i < 100'000; ++i) {
    const auto key = static_cast<uint32_t>(random() % 64);
    const std::string name = "key" + std::to_string(key);
    const auto action = random() % 200;
    if (action < 60) {
      if (!cache.put("hammer", name, hammer_payload(key, static_cast<uint32_t>(random()))))
        return 8;
    } else if (action == 60) {
      if (!cache.trim(200'000)) return 8;
    } else {
      const auto found = cache.get("hammer", name);
      if (!found) return 8;
      if (*found && !is_hammer_payload(key, **found)) return 9;
    }
    if (::write(pipe, ".", 1) != 1) return 0;
  }
  return 0;
}
