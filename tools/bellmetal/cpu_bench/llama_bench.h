#pragma once
// llama.cpp and ik_llama.cpp as peers: their program llama-bench, which loads, warms up and
// measures by itself.

#include <cstdint>
#include <memory>
#include <string>

#include "tools/bellmetal/cpu_bench/contest.h"

namespace bm::cli {

class LlamaBench {
 public:
  /// `program`: its path; empty: llama-bench of PATH. Errors: kNotFound with the remedy.
  static Result<std::unique_ptr<LlamaBench>> open(const std::string& program, uint32_t threads);

  /// Seconds for `prompt` tokens at once, or for `decode` tokens one by one; one of the two is 0.
  /// `extra`: further arguments of the program.
  Contender contender(std::string name, const std::string& model, uint32_t prompt, uint32_t decode,
                      const std::string& extra = "") const;

 private:
  std::string program_;
  uint32_t threads_ = 1;
};

/// Runs a command line of the shell; its standard output. Errors: kNotFound when it cannot be
/// started, kInternal when it fails.
Result<std::string> run_command(const std::string& command);

}  // namespace bm::cli
