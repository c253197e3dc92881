#pragma once
// A client of servers with OpenAI's API that notes when tokens come; for measuring.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace bm::cli {

struct StreamTimes {
  double first_ms = 0;          ///< from sending the request to the first token
  std::vector<double> gaps_ms;  ///< between two tokens
  double total_ms = 0;
  uint32_t tokens = 0;
};

/// Streams one completion of a server on this machine.
/// Errors: kIo (no connection, or it broke), kInternal (another status than 200, with the answer).
Result<StreamTimes> stream_completion(uint16_t port, const std::string& body);

/// Whether GET `path` is answered by 200.
bool answers(uint16_t port, const std::string& path);

/// A port that was free a moment ago.
Result<uint16_t> free_port();

}  // namespace bm::cli
