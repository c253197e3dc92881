// `bellmetal gpu trace diff`, and logs of Linux's mmiotrace.

#include <fstream>

#include "drivers/transport/mmiotrace.h"
#include "tests/unit/bringup/bench.h"

namespace bm::cli {
namespace {

using test::Bench;
using test::Outcome;

const char* const kLog =
    "VERSION 20070824\n"
    "PCIDEV 0300 1002744c 2a f00000000c 0 fe0000000c 0 d001 f8000000 0 10000000 0 200000 0 100 "
    "100000 0 amdgpu\n"
    "PCIDEV 0400 80861234 2b f9000000 0 0 0 0 0 0 1000 0 0 0 0 0 0 e1000e\n"
    "MAP 1.000001 1 0xf8000000 0xffffc90000000000 0x100000 0x0 0\n"
    "W 4 1.000002 1 0xf8000010 0xabcd 0x0 0\n"
    "R 4 1.000004 1 0xf8000010 0xabcd 0x0 0\n"
    "R 4 1.000005 1 0xf8000010 0xabcd 0x0 0\n"
    "R 4 1.000006 2 0xf9000010 0x1 0x0 0\n"
    "MARK 0.000000 Lost 3 events.\n"
    "UNMAP 1.000009 1 0x0 0\n";

TEST(MmioTrace, AccessesAreSortedIntoBars) {
  const auto trace = import_mmiotrace(kLog, 0x1002);
  ASSERT_TRUE(trace) << trace.error().message;
  EXPECT_EQ(trace->identity.device, 0x744c);
  EXPECT_EQ(to_string(trace->identity.address), "0000:03:00.0");
  EXPECT_EQ(trace->bars[5].size, 0x100000u);
  EXPECT_EQ(trace->bars[0].address, 0xf000000000u);
  ASSERT_EQ(trace->accesses.size(), 3u);
  EXPECT_EQ(trace->accesses[0].kind, PciAccess::Kind::kWrite);
  EXPECT_EQ(trace->accesses[0].bar, 5u);
  EXPECT_EQ(trace->accesses[0].offset, 0x10u);
  EXPECT_EQ(trace->accesses[1].repeats, 2u);
  EXPECT_EQ(trace->accesses[1].us, 2u);
  EXPECT_EQ(trace->accesses[2].text, "Lost 3 events.");
}

TEST(MmioTrace, WhatIsNoLogIsRefused) {
  const std::string log = kLog;
  EXPECT_EQ(import_mmiotrace("").error().code, Code::kCorrupt);
  EXPECT_EQ(import_mmiotrace(log.substr(17)).error().code, Code::kCorrupt);
  EXPECT_EQ(import_mmiotrace(log, 0x10de).error().code, Code::kNotFound);
  for (const char* line : {"R 3 1.000002 1 0x10 0x0 0x0 0\n", "W 4 1 1 0x10 0x0 0x0 0\n",
                           "W 4 1.000001 1 x 0x0\n", "R\n", "PCIDEV 0300 1002744c 2a\n"}) {
    const auto trace = import_mmiotrace(log + line);
    ASSERT_FALSE(trace) << line;
    EXPECT_NE(trace.error().message.find("line 11"), std::string::npos) << trace.error().message;
  }
}

TEST(GpuTraceDiff, TwoBootsOfOneCardLeaveTheSameValues) {
  std::string first, second;
  const Bench bench;
  for (const char* const name : {"a.trace", "b.trace"})
    ASSERT_EQ(bench.gpu({"boot", "--reset", "--trace", bench.file(name)}).exit, kOk);
  const Outcome outcome = test::run_command(
      {"gpu", "trace", "diff", bench.file("a.trace"), bench.file("b.trace"), "--json"});
  // The second boot resets the card, which the first found fresh: nothing else may differ.
  for (const auto& one : outcome.json()["differences"])
    EXPECT_TRUE(one["name"].get<std::string>().starts_with("MP1_")) << one;
}

TEST(GpuTraceDiff, ARegisterThatDiffersIsNamed) {
  const Bench bench;
  ASSERT_EQ(bench.gpu({"boot", "--trace", bench.file("a.trace")}).exit, kOk);
  std::ifstream in(bench.file("a.trace"));
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  // The last write of the stage that marks the card is to SCRATCH_REG6.
  const auto trace = parse_pci_trace(text);
  ASSERT_TRUE(trace);
  uint64_t scratch = 0;
  for (const PciAccess& access : trace->accesses)
    if (access.kind == PciAccess::Kind::kMark && access.text == "stage mark")
      scratch = (&access + 2)->offset;
  ASSERT_NE(scratch, 0u);
  std::ofstream(bench.file("b.trace")) << text << "9999999 w 5 " << scratch << " 4 0x77\n";
  const Outcome outcome = test::run_command(
      {"gpu", "trace", "diff", bench.file("a.trace"), bench.file("b.trace"), "--json"});
  EXPECT_EQ(outcome.exit, kFailure) << outcome.err;
  const auto differences = outcome.json()["differences"];
  ASSERT_EQ(differences.size(), 1u) << differences;
  EXPECT_EQ(differences[0]["name"], "SCRATCH_REG6");
  EXPECT_EQ(differences[0]["b"]["last_written"], 0x77);
}

TEST(GpuTraceDiff, AnMmioTraceIsTakenAsItIs) {
  const Bench bench;
  std::ofstream(bench.file("linux.log")) << kLog;
  std::ofstream(bench.file("none.log")) << "hello\n";
  EXPECT_EQ(
      test::run_command({"gpu", "trace", "diff", bench.file("linux.log"), bench.file("linux.log")})
          .exit,
      kOk);
  const Outcome wrong =
      test::run_command({"gpu", "trace", "diff", bench.file("linux.log"), bench.file("none.log")});
  EXPECT_EQ(wrong.exit, kBadFile);
  EXPECT_NE(wrong.err.find("none.log"), std::string::npos) << wrong.err;
}

/// A file of the test's own, and what `gpu trace diff` says of it and another.
class Files {
 public:
  Files() {
    std::string name = "/tmp/trace-diff-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~Files() { std::filesystem::remove_all(folder_); }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  std::string put(const std::string& name, const std::string& text) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
};

Outcome diff(const std::string& a, const std::string& b) {
  return test::run_command({"gpu", "trace", "diff", a, b, "--json"});
}

const std::string kAmdHead =
    "# bellmetal pci trace 1\nfunction 0000:03:00.0 0x1002 0x744c 0 0 0x030000 0\n";
const std::string kNvidiaHead =
    "# bellmetal pci trace 1\nfunction 0000:04:00.0 0x10de 0x2684 0 0 0x030000 0\n";

TEST(GpuTraceDiff, RegistersOfNvidiaAreThoseOfBar0) {
  const Files files;
  const std::string a = files.put("a", kNvidiaHead + "1 w 0 0x1454 4 0x1\n2 w 1 0x0 4 0x5\n");
  const std::string b = files.put("b", kNvidiaHead + "1 w 0 0x1454 4 0x2\n2 w 1 0x0 4 0x6\n");
  EXPECT_EQ(diff(a, a).exit, kOk);
  const Outcome outcome = diff(a, b);
  EXPECT_EQ(outcome.exit, kFailure) << outcome.out << outcome.err;
  const auto differences = outcome.json()["differences"];
  ASSERT_EQ(differences.size(), 1u) << outcome.out;
  EXPECT_EQ(differences[0]["name"], "PBUS_SW_SCRATCH_15");
  EXPECT_EQ(differences[0]["byte"], 0x1454);
  EXPECT_EQ(differences[0]["b"]["last_written"], 2);
}

TEST(GpuTraceDiff, ALogOfNouveauIsSearchedForTheCardOfOurTrace) {
  const Files files;
  const std::string ours = files.put("ours", kNvidiaHead + "1 w 0 0x1454 4 0x1\n");
  // Two cards: AMD's has more accesses, and is not what our trace is of.
  std::string text = kLog;
  text +=
      "PCIDEV 0400 10de2684 2a fb000000 600000000c 0 700000000c 0 0 0 1000000 10000000 0 2000000 0 "
      "0 0 "
      "nouveau\nW 4 1.000012 3 0xfb001454 0x1 0x0 0\n";
  const std::string log = files.put("log", text);
  EXPECT_EQ(diff(ours, log).exit, kOk) << diff(ours, log).out;
  EXPECT_EQ(diff(log, ours).exit, kOk);
  const std::string only = files.put(
      "only",
      "VERSION 20070824\nPCIDEV 0400 10de2684 2a fb000000 0 0 0 0 0 0 1000000 0 0 0 0 0 0 nouveau\n"
      "W 4 1.000012 3 0xfb001454 0x7 0x0 0\n");
  EXPECT_EQ(diff(only, only).exit, kOk) << diff(only, only).out;
  EXPECT_EQ(diff(only, ours).exit, kFailure);
}

TEST(GpuTraceDiff, WhatCannotBeComparedIsRefused) {
  const Files files;
  const std::string amd = files.put("amd", kAmdHead + "1 w 5 0x10 4 0x1\n");
  const std::string nvidia = files.put("nvidia", kNvidiaHead + "1 w 0 0x10 4 0x1\n");
  const std::string none = files.put("none", kAmdHead + "1 mark stage map\n2 w 0 0x10 4 0x1\n");
  const std::string other = files.put(
      "other", "# bellmetal pci trace 1\nfunction 0000:04:00.0 0x8086 0x1 0 0 0 0\n1 w 5 0 4 1\n");
  for (const auto& [a, b] : {std::pair(amd, nvidia),
                             {nvidia, amd},
                             {amd, none},
                             {none, amd},
                             {none, none},
                             {other, other},
                             {amd, files.folder()},
                             {amd, files.folder() + "/nowhere"}}) {
    const Outcome outcome = diff(a, b);
    EXPECT_EQ(outcome.exit, kBadFile) << a << " " << b << outcome.out << outcome.err;
  }
  EXPECT_NE(diff(amd, files.folder()).out.find("Is a directory"), std::string::npos)
      << diff(amd, files.folder()).out;
  EXPECT_NE(diff(files.folder() + "/nowhere", amd).out.find("No such file"), std::string::npos);
}

TEST(GpuTraceDiff, AValueThatIsCutOffIsNotCompared) {
  const Files files;
  const std::string text = kAmdHead + "1 mark stage map\n1 w 5 0x10 4 0x1234\n";
  const std::string whole = files.put("whole", text + "2 mark stage state\n2 w 5 0x14 4 0x567\n");
  const std::string cut = files.put("cut", text + "2 mark stage state\n2 w 5 0x14 4 0x56");
  const std::string zeroes = files.put("zeroes", text + std::string(100, '\0'));
  const Outcome outcome = diff(whole, cut);
  EXPECT_EQ(outcome.exit, kFailure);
  const auto differences = outcome.json()["differences"];
  ASSERT_EQ(differences.size(), 1u) << outcome.out;
  EXPECT_EQ(differences[0]["dword"], 5);
  EXPECT_EQ(differences[0]["b"]["writes"], 0);
  ASSERT_EQ(outcome.json()["notes"].size(), 1u) << outcome.out;
  EXPECT_NE(outcome.json()["notes"][0].get<std::string>().find("cut is cut off"),
            std::string::npos);
  // Where two ended is said, too.
  const auto notes = diff(whole, zeroes).json()["notes"];
  ASSERT_EQ(notes.size(), 2u) << notes;
  EXPECT_NE(notes[1].get<std::string>().find("in stage 'map'"), std::string::npos) << notes;
  EXPECT_EQ(diff(whole, whole).json()["notes"].size(), 0u);
  const std::string log = files.put("log", std::string(kLog) + "W 4 1.000010 1 0xf8000010 0x12");
  EXPECT_EQ(diff(log, files.put("log2", kLog)).exit, kOk);
}

}  // namespace
}  // namespace bm::cli
