#include "runtime/tracker.h"

#include <random>

#include <gtest/gtest.h>

extern "C" int fuzz_tracker(const uint8_t* data, size_t size);

namespace bm::runtime {
namespace {

const int kBaseA = 0, kBaseB = 0;

Access read(uint64_t begin, uint64_t end, const void* base = &kBaseA) {
  return {base, begin, end, true, false};
}
Access write(uint64_t begin, uint64_t end, const void* base = &kBaseA) {
  return {base, begin, end, false, true};
}

class Tracker : public testing::Test {
 protected:
  std::vector<uint32_t> add(std::vector<Access> accesses) {
    std::vector<uint32_t> dependencies;
    tracker_.add(next_++, accesses, dependencies);
    return dependencies;
  }
  DependencyTracker tracker_;
  uint32_t next_ = 0;
};
using Calls = std::vector<uint32_t>;

TEST_F(Tracker, ReaderDependsOnWriter) {
  EXPECT_EQ(add({write(0, 16)}), Calls{});
  EXPECT_EQ(add({read(8, 12)}), Calls{0});
}

TEST_F(Tracker, ReadersDoNotDependOnEachOther) {
  add({read(0, 16)});
  EXPECT_EQ(add({read(0, 16)}), Calls{});
}

TEST_F(Tracker, WriterDependsOnReadersAndWriter) {
  add({write(0, 16)});
  add({read(0, 8)});
  add({read(8, 16)});
  EXPECT_EQ(add({write(0, 4)}), (Calls{0, 1}));
}

TEST_F(Tracker, AdjacentRangesAreIndependent) {
  add({write(0, 8)});
  EXPECT_EQ(add({write(8, 16)}), Calls{});
}

TEST_F(Tracker, BasesAreIndependent) {
  add({write(0, 8, &kBaseA)});
  EXPECT_EQ(add({write(0, 8, &kBaseB)}), Calls{});
}

TEST_F(Tracker, MiddleWriteSplitsAndLeavesBothSides) {
  add({write(0, 30)});
  EXPECT_EQ(add({write(10, 20)}), Calls{0});
  EXPECT_EQ(add({read(0, 10)}), Calls{0});
  EXPECT_EQ(add({read(20, 30)}), Calls{0});
  EXPECT_EQ(add({read(10, 20)}), Calls{1});
}

TEST_F(Tracker, PartialWriteKeepsReadersOfTheRest) {
  add({read(0, 30)});
  EXPECT_EQ(add({write(0, 10)}), Calls{0});
  EXPECT_EQ(add({write(10, 30)}), Calls{0});
}

TEST_F(Tracker, CallReadingWhatItWritesDoesNotDependOnItself) {
  EXPECT_EQ(add({{&kBaseA, 0, 16, true, true}}), Calls{});
  EXPECT_EQ(add({read(0, 16), write(0, 16)}), Calls{0});
  EXPECT_EQ(add({write(0, 16), read(0, 16)}), Calls{1});
}

TEST_F(Tracker, EmptyRangesAreIgnored) {
  add({write(0, 16)});
  EXPECT_EQ(add({write(8, 8)}), Calls{});
}

TEST(TrackerModel, AgreesWithByteArraysOnRandomAccesses) {
  std::mt19937 random(11);
  std::vector<uint8_t> data(600);
  for (int round = 0; round < 300; ++round) {
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
    fuzz_tracker(data.data(), data.size());
  }
}

}  // namespace
}  // namespace bm::runtime
