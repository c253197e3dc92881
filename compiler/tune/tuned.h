#pragma once
// Schedules that a search has found, kept beside the compile cache and shareable as a file.

#include <optional>
#include <string>
#include <string_view>

#include "compiler/tune/knobs.h"

namespace bm::compiler {

/// One result. `id` stands for kernel, target and compiler version; see schedule_id in compile.h.
struct TunedSchedule {
  std::string id;      ///< 32 hexadecimal digits
  std::string kernel;  ///< name, for readers
  std::string target;  ///< for readers: no spaces
  uint64_t before_ns = 0, after_ns = 0;
  Knobs knobs;  ///< empty: the search found nothing better

  /// One line: "ID KERNEL TARGET BEFORE AFTER [NAME=VALUE …]".
  std::string line() const;
  /// Errors: kInvalidArgument.
  static Result<TunedSchedule> parse(std::string_view line);
};

std::optional<TunedSchedule> find_tuned(const std::string& id);
void remember_tuned(const TunedSchedule& schedule);

/// All results as a text file, and back. Results of other versions and targets stay without effect.
/// Returns how many lines there were. Errors: those of the cache's file and of replace_file; those
/// of open_trusted (results become code); kInvalidArgument naming the line (nothing is taken from
/// such a file).
Result<size_t> export_tuned(const std::string& path);
Result<size_t> import_tuned(const std::string& path);

}  // namespace bm::compiler
