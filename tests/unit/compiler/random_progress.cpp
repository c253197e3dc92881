#include "tests/unit/compiler/random_progress.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

namespace bm::test {

// A line is "case SEED NAME" or "made COUNT NAME"; names may have spaces.
Result<RandomProgress> RandomProgress::load(const std::string& path) {
  RandomProgress out;
  std::ifstream file(path);
  std::string kind, name;
  uint64_t number = 0;
  for (int line = 1; file >> kind; ++line) {
    if (!(file >> number) || !std::getline(file >> std::ws, name) ||
        (kind != "case" && kind != "made"))
      return fail(Code::kCorrupt, "{}: line {} is neither a case nor a count", path, line);
    if (kind == "case")
      out.next[name] = number;
    else
      out.census.add(name, number);
  }
  return out;
}

Status RandomProgress::save(const std::string& path) const {
  const std::string fresh = path + ".new";
  std::ofstream file(fresh);
  for (const auto& [name, seed] : next) file << fmt::format("case {} {}\n", seed, name);
  for (const auto& [name, count] : census.counts())
    file << fmt::format("made {} {}\n", count, name);
  file.close();
  std::error_code error;
  std::filesystem::rename(fresh, path, error);
  if (!file || error) return fail(Code::kIo, "write {}: {}", path, error.message());
  return {};
}

}  // namespace bm::test
