// `bellmetal gpu autopsy` on the modelled card behind a socket; which hang is called what is
// amd_autopsy_test's matter.

#include "tests/unit/bringup/bench.h"

namespace bm::cli {
namespace {

using test::Bench;
using test::Outcome;

TEST(GpuAutopsy, BeginsWithCauseAndRemedy) {
  const Bench bench;
  const Outcome fresh = bench.gpu({"autopsy"});
  EXPECT_EQ(fresh.exit, kOk) << fresh.err;
  EXPECT_TRUE(fresh.out.starts_with("cause: the card is not booted")) << fresh.out;
  EXPECT_NE(fresh.out.substr(0, fresh.out.find('\n')).find("; remedy: "), std::string::npos);
  EXPECT_EQ(bench.rig.card->deaths().size(), 0u);
}

TEST(GpuAutopsy, JsonOfACardThatWasLeftInOrder) {
  const Bench bench;
  ASSERT_EQ(bench.gpu({"boot"}).exit, kOk);
  const auto json = bench.gpu({"autopsy", "--address", "0x200000000000", "--json"}).json();
  EXPECT_EQ(json["cause"], "none") << json;
  EXPECT_EQ(json["hubs"].size(), 2u);
  ASSERT_EQ(json["walks"].size(), 1u);
  EXPECT_EQ(json["walks"][0]["address"], 0x200000000000);
  EXPECT_FALSE(json["walks"][0]["mapped"]);
  EXPECT_GT(json["registers"].size(), 10u);
  // It has changed nothing: the next boot takes the card as it was left.
  EXPECT_TRUE(bench.gpu({"boot", "--json"}).json()["warm"]);
  EXPECT_EQ(bench.rig.violations(), "");
}

TEST(GpuAutopsy, ASilentSmuIsNamedAfterTheBootThatItEnded) {
  const Bench bench({.smu_answer = {{0x6, 0}}});
  EXPECT_NE(bench.gpu({"boot"}).exit, kOk);
  EXPECT_EQ(bench.gpu({"autopsy", "--json"}).json()["cause"], "smu-silent");
}

}  // namespace
}  // namespace bm::cli
