#pragma once
// What the programs that only open a card do with it: zero some video memory, and close it. With
// --stay they say "open" and wait to be killed; with --fork a child made meanwhile ends first,
// which frees and closes all of it on its side.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/hal/device.h"

namespace bm::test {

inline int use_card(const Result<std::unique_ptr<hal::Device>>& device, std::string_view word) {
  if (!device) {
    std::fprintf(stderr, "%s\n", device.error().message.c_str());
    return 1;
  }
  const auto memory = (*device)->allocate({.size = 1 << 20, .zero = true});
  if (!memory) {
    std::fprintf(stderr, "%s\n", memory.error().message.c_str());
    return 1;
  }
  if (word == "--fork") {
    const pid_t child = fork();
    if (child == 0) return 0;
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
      std::fprintf(stderr, "the child ended with %d\n", status);
      return 1;
    }
    const auto more = (*device)->allocate({.size = 4 << 20, .zero = true});
    if (!more || !(*device)->status()) {
      std::fprintf(stderr, "after the child: %s\n", more ? "lost" : more.error().message.c_str());
      return 1;
    }
  }
  if (word == "--stay") {
    std::puts("open");
    std::fflush(stdout);
    for (;;) pause();
  }
  return 0;
}

}  // namespace bm::test
