// Numbers of values say where they are, not when they were made.
#include "compiler/program/numbering.h"

#include <gtest/gtest.h>

#include "compiler/program/builder.h"

namespace bm::compiler {
namespace {

struct Made {
  Program program;
  Builder b{program, TargetInfo{}};
  uint32_t reg = b.add_register({DType::kI64, 1});
};

/// reg ← x·3 + i in a loop over i < y; `is_late`: what the loop needs from outside is made last.
void add_loop(Made& m, bool is_late) {
  const ValueId x = m.b.variable(0), y = m.b.variable(1), begin = m.b.index(0);
  ValueId product = is_late ? kNone : m.b.mul(x, m.b.index(3));
  const Builder::Loop loop = m.b.open_loop(m.program.root);
  const ValueId before = m.b.read(loop.body, m.reg);
  if (is_late) product = m.b.mul(x, m.b.index(3));
  m.b.assign(loop.body, m.reg, m.b.add(before, m.b.add(product, loop.index)));
  m.b.close_loop(loop, begin, y, 1);
}

TEST(Numbering, FollowsTheTextWhateverTheOrderOfMaking) {
  Made early, late;
  add_loop(early, false);
  add_loop(late, true);
  EXPECT_NE(to_string(early.program), to_string(late.program));
  number_values(early.program);
  number_values(late.program);
  EXPECT_EQ(to_string(early.program), to_string(late.program));
  ASSERT_TRUE(verify(late.program));
  ValueId next = 0;
  for (const Stmt& s : late.program.blocks[late.program.root].stmts)
    if (s.kind == StmtKind::kLet) {
      EXPECT_EQ(s.value, next++);
    }
  EXPECT_EQ(late.program.block_of.size(), late.program.values.size());
}

TEST(Numbering, ValuesThatNoBlockDefinesAreGone) {
  Made plain, other;
  add_loop(plain, false);
  const BlockId dropped = other.b.open_block(other.program.root);
  other.b.read(dropped, other.reg);
  add_loop(other, false);
  number_values(plain.program);
  number_values(other.program);
  EXPECT_EQ(other.program.values.size(), plain.program.values.size());
  EXPECT_EQ(to_string(other.program), to_string(plain.program));
  const std::string once = to_string(other.program);
  number_values(other.program);
  EXPECT_EQ(to_string(other.program), once);
}

TEST(Numbering, FunctionsAreNumberedToo) {
  Made m;
  // Sines of large numbers are a function of the program.
  const ValueId x = m.b.convert(m.b.variable(0), DType::kF64);
  const uint32_t reg = m.b.add_register({DType::kF64, 1});
  m.b.assign(m.program.root, reg, m.b.alu(Op::kSin, DType::kF64, std::array{x}));
  ASSERT_FALSE(m.program.functions.empty());
  number_values(m.program);
  ASSERT_TRUE(verify(m.program)) << to_string(m.program);
  for (const Function& f : m.program.functions) EXPECT_LT(f.result, m.program.values.size());
}

}  // namespace
}  // namespace bm::compiler
