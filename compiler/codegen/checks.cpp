#include "compiler/codegen/checks.h"

#include <array>
#include <utility>

#include <fmt/format.h>

namespace bm::compiler {
namespace {

class Checker {
 public:
  explicit Checker(Program& p) : p_(p) {}

  void run() {
    // Blocks made here hold reports only.
    const auto blocks = static_cast<BlockId>(p_.blocks.size());
    for (BlockId b = 0; b < blocks; ++b) {
      block_ = b;
      const std::vector<Stmt> before = std::exchange(p_.blocks[b].stmts, {});
      for (const Stmt& s : before) {
        check(s);
        p_.blocks[b].stmts.push_back(s);
      }
    }
  }

 private:
  /// One access: `lanes` elements from `at` on, of `count`.
  struct Access {
    std::string what;
    int64_t count = 0, lanes = 1;
    ValueId at = kNone, gate = kNone;
  };

  std::string param_text(std::string_view verb, uint32_t param, int64_t lanes) const {
    const ir::Param& p = p_.params[param];
    return fmt::format("{} of {} element{} of param {} ({}, {} elements)", verb, lanes,
                       lanes == 1 ? "" : "s", param, dtype_name(p.dtype), p.elements);
  }
  std::string local_text(std::string_view verb, size_t array, int64_t lanes) const {
    const LocalArray& a = p_.locals[array];
    return fmt::format("{} of {} element{} of scratch array {} ({}, {} elements)", verb, lanes,
                       lanes == 1 ? "" : "s", array, dtype_name(a.dtype), a.count);
  }

  void check(const Stmt& s) {
    if (s.kind == StmtKind::kLet) return check_load(p_.at(s.value));
    if (s.kind != StmtKind::kStore && s.kind != StmtKind::kLocalStore) return;
    const int64_t lanes = p_.type(s.value).lanes;
    if (s.kind == StmtKind::kStore)
      return check({param_text("store", s.target, lanes), p_.params[s.target].elements, lanes,
                    s.begin, s.end});
    check({local_text("store", s.target, lanes), static_cast<int64_t>(p_.locals[s.target].count),
           lanes, s.begin, kNone});
  }

  void check_load(Value v) {
    const auto number = static_cast<uint32_t>(v.imm);
    int64_t lanes = v.type.lanes;
    switch (v.op) {
      case ValueOp::kWords:
      case ValueOp::kAnyWords: lanes = lanes * 4 / item_size(p_.params[number].dtype); break;
      case ValueOp::kLoad: break;
      case ValueOp::kLocalLoad:
        lanes = lanes * item_size(v.type.dtype) / item_size(p_.locals[number].dtype);
        return check({local_text("load", number, lanes),
                      static_cast<int64_t>(p_.locals[number].count), lanes, v.args[0], kNone});
      default: return;
    }
    check({param_text("load", number, lanes), p_.params[number].elements, lanes, v.args[0],
           v.args.size() > 1 ? v.args[1] : kNone});
  }

  void check(const Access& a) {
    const bool is_masked = a.gate != kNone && p_.type(a.gate).lanes > 1;
    const uint32_t lanes = is_masked ? p_.type(a.gate).lanes : 1;
    ValueId at = a.at;
    if (is_masked) {
      const ValueId first = add(ValueOp::kSplat, Op::kConst, {DType::kI64, lanes}, 0, {at});
      const ValueId steps = add(ValueOp::kIota, Op::kConst, {DType::kI64, lanes}, 1, {});
      at = alu(Op::kAdd, {DType::kI64, lanes}, {first, steps});
    }
    // The last element at which the access may begin.
    const int64_t last = a.count - (is_masked ? 1 : a.lanes);
    const Type flags{DType::kBool, lanes};
    const ValueId below = alu(Op::kLt, flags, {at, constant(0, lanes)});
    const ValueId above = alu(Op::kLt, flags, {constant(last, lanes), at});
    ValueId is_bad = alu(Op::kOr, flags, {below, above});
    if (a.gate != kNone) is_bad = alu(Op::kAnd, flags, {is_bad, a.gate});
    if (is_masked) is_bad = add(ValueOp::kAny, Op::kConst, {DType::kBool, 1}, 0, {is_bad});
    report(is_bad, a);
  }

  void report(ValueId is_bad, const Access& a) {
    p_.faults.push_back(fmt::format("kernel {}: {}", p_.name, a.what));
    const auto body = static_cast<BlockId>(p_.blocks.size());
    p_.blocks.push_back({.parent = block_, .depth = p_.blocks[block_].depth + 1, .stmts = {}});
    p_.blocks[body].stmts.push_back({.kind = StmtKind::kFault,
                                     .begin = a.at,
                                     .target = static_cast<uint32_t>(p_.faults.size() - 1)});
    p_.blocks[block_].stmts.push_back({.kind = StmtKind::kIf, .value = is_bad, .body = body});
  }

  ValueId constant(int64_t v, uint32_t lanes) {
    return add(ValueOp::kConst, Op::kConst, {DType::kI64, lanes}, v, {});
  }
  ValueId alu(Op op, Type t, std::vector<ValueId> args) {
    return add(ValueOp::kAlu, op, t, 0, std::move(args));
  }
  ValueId add(ValueOp op, Op alu_op, Type t, int64_t imm, std::vector<ValueId> args) {
    const auto id = static_cast<ValueId>(p_.values.size());
    p_.values.push_back({.op = op, .alu = alu_op, .type = t, .imm = imm, .args = std::move(args)});
    p_.block_of.push_back(block_);
    p_.blocks[block_].stmts.push_back({.kind = StmtKind::kLet, .value = id});
    return id;
  }

  Program& p_;
  BlockId block_ = 0;
};

}  // namespace

void insert_checks(Program& program) { Checker(program).run(); }

}  // namespace bm::compiler
