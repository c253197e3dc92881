// Tables found in expressions over bytes: what codebooks of quantised blocks become.
#include <gtest/gtest.h>

#include <random>

#include "compiler/analysis/byte_lookup.h"

namespace bm::compiler {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;
using Book = std::array<uint8_t, 16>;

class Expressions {
 public:
  const Node* load(int param) { return g_.load(param, DType::kU8, g_.range(g_.index(64))); }
  const Node* number(int64_t n) { return g_.constant(DType::kU8, n); }
  const Node* op(Op o, const Node* a, const Node* b) { return g_.binary(o, a, b); }
  const Node* op(Op o, const Node* a, int64_t b) { return op(o, a, number(b)); }
  /// All bits of the byte as bit `b` of `code`.
  const Node* mask(const Node* code, int64_t b) {
    return op(Op::kMul, op(Op::kAnd, op(Op::kShr, code, b), 1), 255);
  }
  /// Entry `code` of the first 2^bits of `book`: one bit chooses after the other.
  const Node* choose(const Book& book, const Node* code, int64_t bits) {
    std::vector<const Node*> entries;
    for (size_t i = 0; i < size_t{1} << bits; ++i) entries.push_back(number(book[i]));
    for (int64_t b = 0; b < bits; ++b) {
      for (size_t i = 0; i < entries.size() / 2; ++i) {
        const Node* change = op(Op::kXor, entries[2 * i], entries[2 * i + 1]);
        entries[i] = op(Op::kXor, entries[2 * i], op(Op::kAnd, mask(code, b), change));
      }
      entries.resize(entries.size() / 2);
    }
    return entries[0];
  }

 private:
  Graph g_;
};

Book random_book() {
  std::mt19937 random(std::random_device{}());
  Book out;
  for (uint8_t& b : out) b = static_cast<uint8_t>(random());
  return out;
}

TEST(ByteLookup, ABookOfNibblesIsItsTable) {
  for (const int64_t from : {0, 2, 4}) {
    Expressions e;
    const Book book = random_book();
    const Node* word = e.load(0);
    const Node* code = e.op(Op::kAnd, e.op(Op::kShr, word, from), 15);
    const auto found = find_byte_lookup(e.choose(book, code, 4));
    ASSERT_TRUE(found);
    ASSERT_EQ(found->fields.size(), 1u);
    EXPECT_EQ(found->fields[0].load, word);
    EXPECT_EQ(found->fields[0].from, from);
    EXPECT_EQ(found->fields[0].bits, 4u);
    EXPECT_EQ(found->table, book);
  }
}

TEST(ByteLookup, BitsOfTwoPlanesFollowEachOther) {
  Expressions e;
  const Book book = random_book();
  const Node *low = e.load(0), *high = e.load(1);
  const Node* code = e.op(Op::kOr, e.op(Op::kAnd, e.op(Op::kShr, low, 4), 3),
                          e.op(Op::kShl, e.op(Op::kAnd, e.op(Op::kShr, high, 7), 1), 2));
  const auto found = find_byte_lookup(e.choose(book, code, 3));
  ASSERT_TRUE(found);
  ASSERT_EQ(found->fields.size(), 2u);
  for (uint32_t i = 0; i < 8; ++i) {
    // The planes' bytes that have code i, as the fields say.
    uint32_t at = 0, index = 0;
    for (const ByteLookup::Field& f : found->fields) {
      const bool is_low = f.load == low;
      EXPECT_EQ(f.from, is_low ? 4u : 7u);
      EXPECT_EQ(f.bits, is_low ? 2u : 1u);
      index |= (is_low ? i & 3 : i >> 2) << at;
      at += f.bits;
    }
    EXPECT_EQ(found->table[index], book[i]) << i;
  }
}

TEST(ByteLookup, NothingIsFoundWhereATableWouldNotDo) {
  Expressions e;
  const Book book = random_book();
  const Node* word = e.load(0);
  const Node* nibble = e.op(Op::kAnd, word, 15);
  EXPECT_FALSE(find_byte_lookup(nibble)) << "shorter than a lookup";
  EXPECT_FALSE(find_byte_lookup(word));
  const Node* fifth = e.op(Op::kXor, e.choose(book, nibble, 4), e.op(Op::kAnd, word, 16));
  EXPECT_FALSE(find_byte_lookup(fifth)) << "five bits";
  const Node* apart =
      e.op(Op::kOr, e.op(Op::kAnd, word, 3), e.op(Op::kAnd, e.op(Op::kShr, word, 3), 12));
  EXPECT_FALSE(find_byte_lookup(e.choose(book, apart, 4))) << "bits 0, 1, 5 and 6";
  const Node* three =
      e.op(Op::kOr, e.op(Op::kAnd, e.load(1), 1), e.op(Op::kShl, e.op(Op::kAnd, e.load(2), 1), 1));
  const Node* sum = e.op(Op::kOr, three, e.op(Op::kShl, e.op(Op::kAnd, word, 1), 2));
  EXPECT_FALSE(find_byte_lookup(e.choose(book, sum, 3))) << "three loads";
}

}  // namespace
}  // namespace bm::compiler
