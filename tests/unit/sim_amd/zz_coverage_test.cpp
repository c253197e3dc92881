// Every row of the opcode tables is executable and was executed by a test of this program.

#include <set>

#include "tests/unit/sim_amd/one_wave.h"

namespace bm::sim::amd::test {
namespace {

// Decoded, never executed: the filler behind a program's end.
const std::set<std::string_view> kNotExecuted = {"s_code_end"};

TEST(Tables, EveryOpcodeHasSemantics) {
  for (const OpcodeRow& row : opcode_rows()) {
    if (kNotExecuted.contains(row.name)) continue;
    EXPECT_TRUE(is_executable(row)) << format_name(row.format) << " " << row.name;
  }
}

TEST(Tables, EveryOpcodeHasATestOfItsOwn) {
  if (covered().empty()) GTEST_SKIP() << "only this test runs";
  const std::set<std::string_view> done(covered().begin(), covered().end());
  std::set<std::string_view> missing;
  for (const OpcodeRow& row : opcode_rows())
    // RDNA2's old names run what RDNA3's do.
    if (!done.contains(row.name) && !done.contains(row.meaning()) &&
        !kNotExecuted.contains(row.name))
      missing.insert(row.name);
  std::string names;
  for (const std::string_view name : missing) names += " " + std::string(name);
  EXPECT_TRUE(missing.empty()) << "without a test:" << names;
}

}  // namespace
}  // namespace bm::sim::amd::test
