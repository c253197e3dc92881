// BM_CHECKED with every schedule: kernels inside their buffers run as they do without it, and an
// access moved outside, in whatever code a schedule makes, is reported with the kernel's name.
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>

#include "compiler/program/checks.h"
#include "compiler/ir/evaluate.h"
#include "compiler/lowering/lower.h"
#include "compiler/schedules/gemm_cpu/prepack.h"
#include "compiler/analysis/unify.h"
#include "compiler/render/render.h"
#include "compiler/toolchain/toolchain.h"
#include "runtime/base/env.h"
#include "tests/unit/compiler/census.h"
#include "tests/unit/compiler/random_compare.h"
#include "tests/unit/compiler/random_kernel.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {
namespace {

using compiler::Program;
using compiler::Schedule;
using compiler::Stmt;
using compiler::StmtKind;
using compiler::Value;
using compiler::ValueId;
using compiler::ValueOp;

struct Subject {
  std::string_view schedule;  ///< name in the census
  std::string_view pattern;   ///< start of the names of patterns that have it
  bool is_small = false;      ///< on a machine with tiny caches
  bool is_packed = false;     ///< an operand is packed before
};

hal::Arch arch_for(const Subject& s) {
  hal::Arch arch = native_arch();
  if (!s.is_small) return arch;
  arch.l1_bytes = 1 << 10;
  arch.l2_bytes = 2 << 10;
  arch.llc_bytes = 4 << 10;
  return arch;
}

/// A kernel whose code can be changed before it is compiled.
struct Made {
  RandomKernel drawn;
  ir::KernelIr unified;  ///< what is compiled; the reference has one index per loop
  Schedule schedule;
  Program program;
};

Result<std::unique_ptr<cpu::CpuProgram>> finish(const Made& made, Program p,
                                                const hal::Arch& arch) {
  const compiler::TargetInfo target = compiler::target_info(arch);
  compiler::insert_checks(p);
  BM_TRY(compiler::verify(p));
  hal::CodeObject code;
  code.entry = p.name;
  code.arch = arch.name;
  code.num_buffers = static_cast<uint32_t>(p.params.size());
  code.num_vars = p.num_vars;
  code.grid = made.schedule.grid;
  code.scratch_bytes = compiler::scratch_bytes(made.program);
  code.image = BM_TRY(compiler::llvm_compile(compiler::render_llvm(p, target), target));
  return cpu::CpuProgram::load(code, arch.name);
}

/// The kernel with an operand packed, and the operand packed; nothing if there is none.
std::optional<RandomKernel> packed(RandomKernel k, const hal::Arch& arch) {
  std::vector<bool> is_constant;
  for (const ir::Param& p : k.kernel.params) is_constant.push_back(!p.is_written);
  auto two =
      compiler::pack_constants(k.kernel, compiler::target_info(arch), arch.units, is_constant);
  if (!two) return std::nullopt;
  const ir::Param& panels = two->pack.params[0];
  Buffers sides{
      std::vector<std::byte>(static_cast<size_t>(panels.elements * item_size(panels.dtype))),
      k.buffers[static_cast<size_t>(two->operand)]};
  if (!run_on_cpu(arch, "LLVM", two->pack, sides, {})) return std::nullopt;
  k.kernel = std::move(two->main);
  k.buffers.push_back(sides[0]);
  return k;
}

/// One access to memory: a statement that stores, or one that defines a loaded value.
struct Place {
  compiler::BlockId block = 0;
  size_t stmt = 0;
  bool is_store = false, is_scratch = false;
  uint32_t number = 0;  ///< of the param or scratch array
};

std::vector<Place> places_of(const Program& p) {
  std::vector<Place> out;
  for (compiler::BlockId b = 0; b < p.blocks.size(); ++b)
    for (size_t i = 0; i < p.blocks[b].stmts.size(); ++i) {
      const Stmt& s = p.blocks[b].stmts[i];
      if (s.kind == StmtKind::kStore) out.push_back({b, i, true, false, s.target});
      if (s.kind == StmtKind::kLocalStore) out.push_back({b, i, true, true, s.target});
      if (s.kind != StmtKind::kLet) continue;
      const Value& v = p.at(s.value);
      const auto number = static_cast<uint32_t>(v.imm);
      if (v.op == ValueOp::kLocalLoad) out.push_back({b, i, false, true, number});
      if (v.op == ValueOp::kLoad || v.op == ValueOp::kWords || v.op == ValueOp::kUnalignedWords)
        out.push_back({b, i, false, false, number});
    }
  return out;
}

/// Accesses that a program may have: compiling each with its check takes long.
constexpr size_t kMostPlaces = 350;

std::optional<Made> make(const Subject& s, uint64_t seed, const hal::Arch& arch) {
  const compiler::TargetInfo target = compiler::target_info(arch);
  Made m{.drawn = random_pattern(seed), .unified = {}, .schedule = {}, .program = {}};
  // All of the code but edges runs, and all that the formula reads is read.
  if (!m.drawn.vars.empty() || m.drawn.kernel.stores[0].gate) return std::nullopt;
  if (s.is_packed) {
    auto k = packed(std::move(m.drawn), arch);
    if (!k) return std::nullopt;
    m.drawn = std::move(*k);
  }
  auto copy = ir::deserialize(ir::serialize(m.drawn.kernel));
  if (!copy) return std::nullopt;
  m.unified = std::move(*copy);
  m.unified.name = "checked";
  m.unified.vars = m.drawn.kernel.vars;
  compiler::unify_ranges(&m.unified);
  m.schedule = compiler::make_schedule(m.unified, target, arch.units);
  auto program = compiler::lower(m.unified, m.schedule, target);
  if (!program) return std::nullopt;
  m.program = std::move(*program);
  const auto names = schedules_of(m.schedule, m.program);
  if (std::find(names.begin(), names.end(), s.schedule) == names.end()) return std::nullopt;
  if (places_of(m.program).size() > kMostPlaces) return std::nullopt;
  return m;
}

/// What a kernel says before it ends in a process of its own; "" where it ends as usual.
std::string said(const cpu::CpuProgram& program, Buffers buffers, std::span<const int64_t> vars) {
  int ends[2] = {};
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    for (const int number : {SIGSEGV, SIGBUS, SIGABRT}) signal(number, SIG_DFL);
    alarm(30);
    const GuardedBuffers guarded(buffers);
    run_kernel(program, guarded.pointers(), vars);
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char part[512];
  for (ssize_t n = 0; (n = read(ends[0], part, sizeof part)) > 0;)
    text.append(part, static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  return text.empty() ? fmt::format("ended with status {:#x}", status) : text;
}

/// The same program with one access moved `by` elements.
Program moved(Program p, const Place& at, int64_t by) {
  auto& stmts = p.blocks[at.block].stmts;
  const auto add = [&](Value v) {
    p.values.push_back(std::move(v));
    p.block_of.push_back(at.block);
    return static_cast<ValueId>(p.values.size() - 1);
  };
  const Stmt old = stmts[at.stmt];
  const ValueId from = at.is_store ? old.begin : p.at(old.value).args[0];
  const compiler::Type index{DType::kI64, 1};
  const ValueId distance =
      add({.op = ValueOp::kConst, .alu = ir::Op::kConst, .type = index, .imm = by, .args = {}});
  const ValueId to = add({.op = ValueOp::kAlu,
                          .alu = ir::Op::kAdd,
                          .type = index,
                          .imm = 0,
                          .args = {from, distance}});
  if (at.is_store)
    stmts[at.stmt].begin = to;
  else
    p.values[old.value].args[0] = to;
  const auto here = stmts.begin() + static_cast<std::ptrdiff_t>(at.stmt);
  stmts.insert(
      here, {{.kind = StmtKind::kLet, .value = distance}, {.kind = StmtKind::kLet, .value = to}});
  return p;
}

std::string report_of(const Program& p, const Place& at) {
  return fmt::format("kernel checked: {} of ", at.is_store ? "store" : "load") + "@" +
         (at.is_scratch ? fmt::format("scratch array {} ", at.number)
                        : fmt::format("param {} ", at.number)) +
         "@" +
         fmt::format("{} elements) at element ",
                     at.is_scratch ? static_cast<int64_t>(p.locals[at.number].count)
                                   : p.params[at.number].elements) +
         "@: outside";
}

/// Whether the parts of `report`, which "@" separates, are in `text` one after the other.
bool has_report(const std::string& text, const std::string& report) {
  size_t at = 0, begin = 0;
  while (begin <= report.size()) {
    const size_t end = std::min(report.find('@', begin), report.size());
    const size_t found = text.find(report.substr(begin, end - begin), at);
    if (found == std::string::npos) return false;
    at = found + (end - begin);
    begin = end + 1;
  }
  return true;
}

/// Leave the test's own line for the subject readable.
void PrintTo(const Subject& s, std::ostream* out) { *out << s.schedule; }

class CheckedSchedules : public testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    const auto known = schedules_for(compiler::target_info(arch_));
    if (std::find(known.begin(), known.end(), GetParam().schedule) == known.end())
      GTEST_SKIP() << "no kernel for this processor has the schedule: it has no masked vectors";
  }

  /// The next kernel of the subject, from fresh seeds.
  std::optional<Made> next() {
    for (int tries = 0; tries < 4'000; ++tries) {
      do seed_ = random_();
      while (!pattern_name(seed_).starts_with(GetParam().pattern));
      if (auto made = make(GetParam(), seed_, arch_)) return made;
    }
    ADD_FAILURE() << "no kernel has the schedule";
    return std::nullopt;
  }

  std::random_device device_;
  std::mt19937_64 random_{device_()};
  uint64_t seed_ = 0;
  hal::Arch arch_ = arch_for(GetParam());
};

/// Loads and stores, of params and of scratch.
constexpr size_t kKinds = 4;
size_t kind_of(const Place& p) { return (p.is_store ? 1u : 0u) + (p.is_scratch ? 2u : 0u); }

TEST_P(CheckedSchedules, AnAccessMovedOutsideIsReported) {
  constexpr int kMostTries = 10, kMostKernels = 4;
  std::array<int, kKinds> reported{};
  std::array<bool, kKinds> is_missing{};
  for (int kernel = 0; kernel < kMostKernels; ++kernel) {
    const auto made = next();
    ASSERT_TRUE(made);
    const Program& p = made->program;
    std::vector<Place> places = places_of(p);
    std::shuffle(places.begin(), places.end(), random_);
    std::array<int, kKinds> tried{};
    for (const Place& at : places) {
      const size_t kind = kind_of(at);
      if (tried[kind] == kMostTries || reported[kind] == 1) continue;
      const int64_t size = at.is_scratch ? static_cast<int64_t>(p.locals[at.number].count)
                                         : p.params[at.number].elements;
      const int64_t by = random_() % 2 ? size : -size - 64;
      const auto program = finish(*made, moved(p, at, by), arch_);
      ASSERT_TRUE(program) << program.error().message;
      const std::string text = said(**program, made->drawn.buffers, made->drawn.vars);
      ++tried[kind];
      // Code for edges and for longer loops than this kernel has is not run.
      if (text.empty()) continue;
      ++reported[kind];
      EXPECT_TRUE(has_report(text, report_of(p, at))) << "seed " << seed_ << ": " << text;
    }
    for (size_t k = 0; k < kKinds; ++k)
      is_missing[k] = reported[k] == 0 && (is_missing[k] || tried[k] > 0);
    if (std::none_of(is_missing.begin(), is_missing.end(), [](bool b) { return b; })) return;
  }
  FAIL() << "accesses of some kind are never reported, the last in seed " << seed_;
}

TEST_P(CheckedSchedules, OnlyAParamTooShortIsReported) {
  const auto made = next();
  ASSERT_TRUE(made);
  const RandomKernel& k = made->drawn;
  const auto text_of = [&](const Program& program) {
    const auto loaded = finish(*made, program, arch_);
    return loaded ? said(**loaded, k.buffers, k.vars) : loaded.error().message;
  };
  EXPECT_EQ(text_of(made->program), "") << "seed " << seed_;
  for (size_t p = 0; p < k.kernel.params.size(); ++p) {
    if (k.kernel.params[p].elements < 2) continue;
    // Panels are read to their end, beyond the last column.
    if (GetParam().is_packed && p + 1 == k.kernel.params.size()) continue;
    // What the formula touches says whether there is something to report.
    Buffers shorter = k.buffers;
    shorter[p].resize(shorter[p].size() - static_cast<size_t>(item_size(k.kernel.params[p].dtype)));
    std::vector<std::span<std::byte>> spans(shorter.begin(), shorter.end());
    const bool is_touched = !compiler::evaluate(k.kernel, spans, k.vars);
    Program program = made->program;
    program.params[p].elements -= 1;
    const std::string text = text_of(program);
    // Keys that are hidden whole are not touched by the kernel.
    const bool is_skipping = GetParam().schedule.starts_with("attention");
    const bool is_wrong = text.empty() ? is_touched && !is_skipping : !is_touched;
    EXPECT_FALSE(is_wrong) << "seed " << seed_ << " param " << p << ": " << text;
    const std::string param = fmt::format(" of param {} (", p);
    EXPECT_TRUE(text.empty() || (text.find("kernel checked: ") != std::string::npos &&
                                 text.find(param) != std::string::npos))
        << text;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, CheckedSchedules,
    testing::Values(Subject{"lanes along an output loop", "elementwise"},
                    Subject{"lanes, the last ones masked", ""},
                    Subject{"lanes along a reduction", "reduction"},
                    Subject{"row cache", "softmax"},
                    Subject{"squares transposed in registers", "transposition"},
                    Subject{"transposition in tiles", "transposition", true},
                    Subject{"non-temporal stores", "elementwise", true},
                    Subject{"every other element", "reduction"},
                    Subject{"scan in lanes", "running"}, Subject{"scans, one per lane", "running"},
                    Subject{"top-k", "least"}, Subject{"int8 dot products", "repacked"},
                    Subject{"int8 dot products, a tile of vectors", "repacked"},
                    Subject{"attention, masked keys", "attention tiles"},
                    Subject{"attention, logits at the causal bound", "attention tiles"},
                    Subject{"attention, several blocks of keys", "attention tiles", true},
                    Subject{"packed GEMM", "panels"}, Subject{"packed GEMM, N tail", "panels"},
                    Subject{"packed GEMM, several blocks of K", "panels", true},
                    Subject{"packed GEMM, several contractions", "panels"},
                    Subject{"packed GEMM, A in place", "panels"},
                    Subject{"packed GEMM, packed transposed", "panels"},
                    Subject{"packed GEMM, packed one by one", "panels"},
                    Subject{"packed GEMM, B in place", "panels", false, true},
                    Subject{"packed GEMM of words", "panels of bytes"},
                    Subject{"packed GEMM of words, signs flipped", "panels of bytes"},
                    Subject{"packed GEMM of words, K tail", "panels of bytes"},
                    Subject{"GEMV, accumulators in workspace", "few rows"}),
    [](const auto& subject) {
      std::string name;
      for (const char c : subject.param.schedule)
        if (std::isalnum(static_cast<unsigned char>(c)))
          name += c;
        else if (c == ' ')
          name += '_';
      return name;
    });

}  // namespace
}  // namespace bm::test
