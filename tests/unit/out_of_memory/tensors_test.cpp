// Every allocation of an entry of the tensor surface fails once: the call throws bm::Exception, and
// the same call succeeds afterwards.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tensor/jit.h"
#include "tensor/tensor.h"
#include "tests/unit/out_of_memory/failing_new.h"

namespace bm {
namespace {

using testing::FailingNew;

constexpr const char* kDevice = "CPU";
// More than any call here makes; a loop that reaches it does not end.
constexpr uint64_t kTooMany = 200'000;

std::vector<float> values(const Tensor& t) { return t.data<float>(); }

/// Runs `call` with its first, second, … allocation failing until none is left to fail. Number of
/// failures. `prepare` runs before each and allocates freely, `check` after each.
uint64_t fail_each(const std::function<void()>& prepare, const std::function<void()>& call,
                   const std::function<void()>& check,
                   FailingNew::Which which = FailingNew::Which::kOne) {
  for (uint64_t n = 1; n < kTooMany; ++n) {
    prepare();
    bool has_failed = false;
    std::string said;
    Code code = Code::kInternal;
    {
      const FailingNew failing(n, which);
      try {
        call();
      } catch (const Exception& e) {
        code = e.code();
        said = e.what();
      }
      has_failed = failing.has_failed();
    }
    // Some failures are survived: a cache that is not filled, for example.
    if (!said.empty()) {
      EXPECT_EQ(code, Code::kOutOfMemory) << "allocation " << n << ": " << said;
      EXPECT_NE(said.find("out of memory"), std::string::npos) << said;
    }
    check();
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << "at allocation " << n;
      return n;
    }
    if (!has_failed) return n - 1;
  }
  ADD_FAILURE() << "still failing after " << kTooMany << " allocations";
  return kTooMany;
}

TEST(OutOfMemory, RealizeThrowsAndSucceedsTheNextTime) {
  const Tensor x = Tensor::from<float>({1, 2, 3, 4}, kDevice);
  const auto make = [&] { return (x * 2 + 1).sum() + (x - 1).exp2(); };
  const std::vector<float> want = values(make());  // compiles the kernels
  Tensor y;
  const uint64_t failures =
      fail_each([&] { y = make(); }, [&] { y.realize(); }, [&] { EXPECT_EQ(values(y), want); });
  EXPECT_GT(failures, 10u);
}

TEST(OutOfMemory, ReadingATensorThrowsAndSucceedsTheNextTime) {
  Tensor y = (Tensor::from<float>({1, 2, 3}, kDevice) * 3).realize();
  std::vector<std::byte> got;
  const uint64_t failures = fail_each([] {}, [&] { got = y.bytes(); },
                                      [&] { EXPECT_EQ(values(y), (std::vector<float>{3, 6, 9})); });
  EXPECT_GT(failures, 0u);
}

TEST(OutOfMemory, AssignLeavesTheOldContentsOrTheNew) {
  Tensor state = Tensor::from<float>({1, 1}, kDevice).realize();
  state.assign(state + 1);
  float before = 0;
  Tensor next;
  fail_each(
      [&] {
        before = values(state)[0];
        next = state + 1;
      },
      [&] { state.assign(std::move(next)); },
      [&] {
        next = {};
        const float after = values(state)[0];
        EXPECT_TRUE(after == before || after == before + 1) << before << " became " << after;
      });
}

TEST(OutOfMemory, NothingIsNeededToUnwindWhereNoMemoryIsLeft) {
  const Tensor x = Tensor::from<float>({1, 2, 3, 4}, kDevice);
  const auto make = [&] { return (x * 2 + 1).sum() + (x - 1).exp2(); };
  const std::vector<float> want = values(make());
  Tensor y;
  fail_each([&] { y = make(); },
            [&] {
              y.realize();
              y = {};  // storage is given back, which may not throw
            },
            [&] { EXPECT_EQ(values(make()), want); }, FailingNew::Which::kFromThere);
}

TEST(OutOfMemory, CaptureAndReplayThrowAndSucceedTheNextTime) {
  const Tensor x = Tensor::from<float>({1, 2, 3, 4}, kDevice).realize();
  const std::vector<float> want = values((x * 2 + 1).exp2());
  Jit step([](const Tensor& t) { return (t * 2 + 1).exp2(); });
  const uint64_t captures = fail_each([&] { step.reset(); },
                                      [&] {
                                        // Building the graph in the body is the caller's own work.
                                        try {
                                          step.capture(x);
                                        } catch (const std::bad_alloc&) {
                                          raise(Code::kOutOfMemory, "out of memory: the body");
                                        }
                                      },
                                      [&] { EXPECT_EQ(values(step(x)), want); });
  EXPECT_GT(captures, 10u);
  step.capture(x);
  fail_each([] {},
            [&] {
              try {
                step(x);
              } catch (const std::bad_alloc&) {
                raise(Code::kOutOfMemory, "out of memory: the result");
              }
            },
            [&] { EXPECT_EQ(values(step(x)), want); });
}

}  // namespace
}  // namespace bm
