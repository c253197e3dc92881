// Registers every case for every device of subjects() and runs them.
//   --device=NAMES --case=CASES   comma separated, '*' allowed: "CL,CL_MEM", "graph.*,copy.exact"
//   --list                        devices, cases, and which are exempt and why

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>

#include "runtime/base/env.h"
#include "tests/cts/cts.h"
#include "tests/cts/world.h"

namespace bm::cts {
namespace {

bool matches(std::string_view pattern, const Case& test) {
  if (pattern == "#copies") return test.needs == Needs::kCopies;
  if (pattern == "#kernels") return test.needs == Needs::kKernels;
  if (pattern.ends_with('*')) return test.name.starts_with(pattern.substr(0, pattern.size() - 1));
  return test.name == pattern;
}

const Exemption* find(const std::vector<Exemption>& list, const Case& test) {
  for (const Exemption& exemption : list)
    if (matches(exemption.cases, test)) return &exemption;
  return nullptr;
}

std::vector<const Case*> all_cases() {
  std::vector<const Case*> all;
  for (const auto cases :
       {memory_cases(), copy_cases(), timeline_cases(), queue_cases(), dispatch_cases(),
        graph_cases(), cross_cases(), fault_cases(), runtime_fault_cases()})
    for (const Case& test : cases) all.push_back(&test);
  return all;
}

Status run(const Subject& subject, const Case& test) {
  std::optional<ScopedSetting> timeout;
  if (test.wait_timeout_ms != 0)
    timeout.emplace("BM_WAIT_TIMEOUT_MS", std::to_string(test.wait_timeout_ms));
  if (const auto* on_rig = std::get_if<Status (*)(Rig&)>(&test.run)) {
    Rig rig = BM_TRY(Rig::open(subject));
    return (*on_rig)(rig);
  }
  if (const auto* on_subject = std::get_if<Status (*)(const Subject&)>(&test.run))
    return (*on_subject)(subject);
  const auto world = BM_TRY(World::open(subject));
  return std::get<Status (*)(World&)>(test.run)(*world);
}

struct Counts {
  int run = 0, passed = 0, failed = 0, unsupported = 0, expected_failures = 0;
};

class CaseTest : public testing::Test {
 public:
  CaseTest(const Subject& subject, const Case& test, Counts& counts)
      : subject_(subject), case_(test), counts_(counts) {}

  void TestBody() override {
    if (const Exemption* exemption = find(subject_.unsupported, case_)) {
      ++counts_.unsupported;
      GTEST_SKIP() << subject_.name << '.' << case_.name << ": " << exemption->reason;
    }
    ++counts_.run;
    const Status status = run(subject_, case_);
    const Exemption* expected = find(subject_.expected_failures, case_);
    if (expected != nullptr && !status) {
      ++counts_.expected_failures;
      return;
    }
    ++(status && expected == nullptr ? counts_.passed : counts_.failed);
    EXPECT_TRUE(status) << status.error().message;
    if (expected != nullptr)
      ADD_FAILURE() << "passes although listed as a failure: " << expected->reason;
  }

 private:
  const Subject& subject_;
  const Case& case_;
  Counts& counts_;
};

/// An entry that names no case is a typing mistake or out of date.
TEST(Lists, EveryExemptionNamesACaseAndAReason) {
  const auto all = all_cases();
  for (const Subject& subject : subjects())
    for (const auto* list : {&subject.unsupported, &subject.expected_failures})
      for (const Exemption& exemption : *list) {
        bool is_used = false;
        for (const Case* test : all) is_used |= matches(exemption.cases, *test);
        EXPECT_TRUE(is_used) << subject.name << ": " << exemption.cases;
        EXPECT_FALSE(exemption.reason.empty()) << subject.name << ": " << exemption.cases;
      }
}

void list(const std::vector<Subject>& all) {
  for (const Subject& subject : all)
    for (const Case* test : all_cases()) {
      const Exemption* out = find(subject.unsupported, *test);
      const Exemption* bad = find(subject.expected_failures, *test);
      const std::string note = out   ? "  unsupported: " + std::string(out->reason)
                               : bad ? "  expected failure: " + std::string(bad->reason)
                                     : "";
      std::printf("%s.%s%s\n", subject.name, std::string(test->name).c_str(), note.c_str());
    }
}

void print(const std::vector<Subject>& all, const std::vector<Counts>& counts) {
  std::printf("%-16s %6s %7s %7s %12s %18s\n", "device", "run", "passed", "failed", "unsupported",
              "expected failures");
  for (size_t i = 0; i < all.size(); ++i)
    std::printf("%-16s %6d %7d %7d %12d %18d\n", all[i].name, counts[i].run, counts[i].passed,
                counts[i].failed, counts[i].unsupported, counts[i].expected_failures);
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// Every pair of the chosen devices and cases, as gtest spells it.
std::string filter_of(std::string_view devices, std::string_view cases) {
  std::string filter;
  for (const std::string& device : split(devices))
    for (const std::string& test : split(cases))
      filter.append(filter.empty() ? "" : ":").append(device).append(".").append(test);
  return filter;
}

int run_all(int argc, char** argv) {
  std::string devices = "*", cases = "*";
  bool is_filtered = false, is_listing = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    is_listing |= argument == "--list";
    if (argument.starts_with("--device=")) devices = argument.substr(9);
    if (argument.starts_with("--case=")) cases = argument.substr(7);
    is_filtered |= argument.starts_with("--device=") || argument.starts_with("--case=");
  }
  const std::vector<Subject> all = subjects();
  if (is_listing) {
    list(all);
    return 0;
  }
  if (is_filtered) testing::GTEST_FLAG(filter) = filter_of(devices, cases);
  std::vector<Counts> counts(all.size());
  for (size_t i = 0; i < all.size(); ++i)
    for (const Case* test : all_cases())
      testing::RegisterTest(all[i].name, std::string(test->name).c_str(), nullptr, nullptr,
                            __FILE__, __LINE__,
                            [&subject = all[i], test, &count = counts[i]]() -> testing::Test* {
                              return new CaseTest(subject, *test, count);
                            });
  const int result = RUN_ALL_TESTS();
  print(all, counts);
  return result;
}

}  // namespace
}  // namespace bm::cts

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return bm::cts::run_all(argc, argv);
}
