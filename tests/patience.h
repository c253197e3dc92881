#pragma once

// Time-outs of tests that grow with the load of the machine.
#include <chrono>
#include <cstdlib>

namespace bm::test {

/// How long to wait for what takes at most `idle` on an idle machine. BM_TEST_TIME_FACTOR, which
/// ctest sets by the load (cmake/TestLimits.cmake), multiplies it; what is no number counts as 1.
inline std::chrono::milliseconds patience(std::chrono::milliseconds idle) {
  const char* const text = std::getenv("BM_TEST_TIME_FACTOR");
  const long factor = text == nullptr ? 1 : std::strtol(text, nullptr, 10);
  return idle * (factor < 1 ? 1 : factor > 100 ? 100 : factor);
}

}  // namespace bm::test
