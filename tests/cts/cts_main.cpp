// Registers every case for every device of subjects() and runs them.

#include <gtest/gtest.h>

#include <string>

#include "tests/cts/cts.h"

namespace bm::cts {
namespace {

const Exemption* find(const std::vector<Exemption>& list, std::string_view name) {
  for (const Exemption& exemption : list) {
    const bool is_prefix = exemption.cases.ends_with('*');
    const auto stem = exemption.cases.substr(0, exemption.cases.size() - (is_prefix ? 1 : 0));
    if (is_prefix ? name.starts_with(stem) : name == stem) return &exemption;
  }
  return nullptr;
}

class CaseTest : public testing::Test {
 public:
  CaseTest(const Subject& subject, const Case& test) : subject_(subject), case_(test) {}

  void TestBody() override {
    if (const Exemption* exemption = find(subject_.unsupported, case_.name))
      GTEST_SKIP() << exemption->reason;
    const Status status = run();
    if (const Exemption* exemption = find(subject_.expected_failures, case_.name)) {
      EXPECT_FALSE(status) << "passes although listed as a failure: " << exemption->reason;
    } else {
      EXPECT_TRUE(status) << status.error().message;
    }
  }

 private:
  Status run() {
    Rig rig = BM_TRY(Rig::open(subject_));
    return case_.run(rig);
  }
  const Subject& subject_;
  const Case& case_;
};

}  // namespace
}  // namespace bm::cts

int main(int argc, char** argv) {
  using namespace bm::cts;
  testing::InitGoogleTest(&argc, argv);
  const std::vector<Subject> all = subjects();
  for (const Subject& subject : all)
    for (const auto cases :
         {memory_cases(), copy_cases(), timeline_cases(), queue_cases(), dispatch_cases()})
      for (const Case& test : cases)
        testing::RegisterTest(
            subject.name, std::string(test.name).c_str(), nullptr, nullptr, __FILE__, __LINE__,
            [&subject, &test]() -> testing::Test* { return new CaseTest(subject, test); });
  return RUN_ALL_TESTS();
}
