#pragma once
// A client of servers with OpenAI's API that notes when tokens come; for measuring.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace bm::cli {

struct StreamTimes {
  /// From sending the request to the first text; none where no token had any: servers send no event
  /// for control tokens, nor for the beginning of a character.
  std::optional<double> first_ms;
  std::vector<double> gaps_ms;  ///< between two events with text
  double total_ms = 0;
  uint32_t tokens = 0;  ///< as the server's usage says; events with text where it says nothing
};

/// Streams one completion of a server on this machine; `body` asks for usage to have all tokens
/// counted. Errors: kIo (no connection, or it broke), kInternal (another status than 200, an error
/// or no token in the stream, with the answer).
Result<StreamTimes> stream_completion(uint16_t port, const std::string& body);

/// Whether GET `path` is answered by 200.
bool answers(uint16_t port, const std::string& path);

/// A port that was free a moment ago.
Result<uint16_t> free_port();

}  // namespace bm::cli
