#pragma once
// A simulator that cannot go on: one line, no core.

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

namespace bm::sim {

/// Ends the process with code 1. For what the machine lacks (memory, descriptors, a folder for
/// temporary files); faults of the simulator itself abort.
[[noreturn]] inline void give_up(const std::string& what) {
  std::fprintf(stderr, "sim-amd: %s\n", what.c_str());
  _exit(1);
}
[[noreturn]] inline void give_up_errno(const char* what) {
  give_up(std::string(what) + ": " + std::strerror(errno));
}

}  // namespace bm::sim
