// Numbers values down the text of a program.
#include "compiler/program/numbering.h"

namespace bm::compiler {
namespace {

class Numbering {
 public:
  explicit Numbering(Program& p) : p_(p), number_(p.values.size(), kNone) {}

  void run() {
    define(p_.root);
    for (const Function& f : p_.functions) define(f.body);
    for (ValueId& v : order_) {
      values_.push_back(std::move(p_.values[v]));
      blocks_.push_back(p_.block_of[v]);
    }
    for (Value& v : values_) rename(v.args);
    for (Block& block : p_.blocks)
      for (Stmt& s : block.stmts) {
        for (ValueId* v : {&s.value, &s.begin, &s.end}) rename(v);
        rename(s.operands);
      }
    for (Function& f : p_.functions) rename(&f.result);
    rename(&p_.block_begin);
    rename(&p_.block_end);
    p_.values = std::move(values_);
    p_.block_of = std::move(blocks_);
  }

 private:
  void define(BlockId block) {
    for (const Stmt& s : p_.blocks[block].stmts) {
      if (s.kind == StmtKind::kLet || s.kind == StmtKind::kLoop) {
        number_[s.value] = static_cast<ValueId>(order_.size());
        order_.push_back(s.value);
      }
      if (s.body != kNone) define(s.body);
    }
  }

  void rename(ValueId* v) const {
    if (*v != kNone) *v = number_[*v];
  }
  void rename(std::vector<ValueId>& all) const {
    for (ValueId& v : all) rename(&v);
  }

  Program& p_;
  std::vector<ValueId> number_;  ///< new one, by old one
  std::vector<ValueId> order_;   ///< old ones, by new one
  std::vector<Value> values_;
  std::vector<BlockId> blocks_;
};

}  // namespace

void number_values(Program& program) { Numbering(program).run(); }

}  // namespace bm::compiler
