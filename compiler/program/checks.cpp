#include "compiler/program/checks.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

namespace bm::compiler {
namespace {

class Checker {
 public:
  Checker(Program& p, bool has_rows) : p_(p), has_rows_(has_rows) {}

  void run() {
    // Blocks made here hold reports only.
    const auto blocks = static_cast<BlockId>(p_.blocks.size());
    std::vector<BlockId> grids;
    for (const Stmt& s : p_.blocks[p_.root].stmts)
      if (s.kind == StmtKind::kLoop && s.loop == LoopKind::kGrid) grids.push_back(s.body);
    for (BlockId b = 0; b < blocks; ++b) {
      block_ = b;
      const std::vector<Stmt> before = std::exchange(p_.blocks[b].stmts, {});
      if (std::find(grids.begin(), grids.end(), b) != grids.end()) fill_locals();
      for (const Stmt& s : before) {
        check(s);
        p_.blocks[b].stmts.push_back(s);
        if (has_rows_ && s.kind == StmtKind::kLet) check_written(s.value);
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

  /// What local arrays start with: signalling NaNs, which no operation gives, and large integers.
  static int64_t pattern(DType t) {
    switch (t) {
      case DType::kF16: return 0x7da5;
      case DType::kBF16: return 0x7fa5;
      case DType::kF32: return 0x7fa5a5a5;
      case DType::kF64: return 0x7ff5a5a5a5a5a5a5;
      default: return 0x5a5a5a5a5a5a5a5a >> (64 - 8 * item_size(t));
    }
  }

  static DType bits_of(DType t) {
    switch (item_size(t)) {
      case 1: return DType::kU8;
      case 2: return DType::kU16;
      case 4: return DType::kU32;
      default: return DType::kU64;
    }
  }

  /// At the start of a block of the grid.
  void fill_locals() {
    for (uint32_t array = 0; array < p_.locals.size(); ++array) {
      const DType t = p_.locals[array].dtype;
      if (is_bool(t)) continue;
      const ValueId begin = constant(0, 1);
      const ValueId end = constant(static_cast<int64_t>(p_.locals[array].count), 1);
      ValueId value = add(ValueOp::kConst, Op::kConst, {bits_of(t), 1}, pattern(t), {});
      if (bits_of(t) != t) value = alu(Op::kBitcast, {t, 1}, {value});
      const BlockId body = open_block();
      const auto index = static_cast<ValueId>(p_.values.size());
      p_.values.push_back(
          {.op = ValueOp::kIndex, .type = {DType::kI64, 1}, .imm = body, .args = {}});
      p_.block_of.push_back(body);
      p_.blocks[body].stmts.push_back(
          {.kind = StmtKind::kLocalStore, .value = value, .begin = index, .target = array});
      p_.blocks[block_].stmts.push_back({.kind = StmtKind::kLoop,
                                         .value = index,
                                         .begin = begin,
                                         .end = end,
                                         .step = 1,
                                         .body = body});
    }
  }

  /// After a load from a local array.
  void check_written(ValueId loaded) {
    const Value v = p_.at(loaded);
    if (v.op != ValueOp::kLocalLoad || !is_float(v.type.dtype)) return;
    const Type bits{bits_of(v.type.dtype), v.type.lanes}, flags{DType::kBool, v.type.lanes};
    const ValueId fresh = add(ValueOp::kConst, Op::kConst, bits, pattern(v.type.dtype), {});
    ValueId is_bad = alu(Op::kEq, flags, {alu(Op::kBitcast, bits, {loaded}), fresh});
    if (flags.lanes > 1) is_bad = add(ValueOp::kAny, Op::kConst, {DType::kBool, 1}, 0, {is_bad});
    report(is_bad, v.args[0],
           local_text("load", static_cast<size_t>(v.imm), v.type.lanes) +
               " at element {}: nothing was written there");
  }

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
      case ValueOp::kUnalignedWords: lanes = lanes * 4 / item_size(p_.params[number].dtype); break;
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
    report(is_bad, a.at, a.what + " at element {}: outside");
  }

  BlockId open_block() {
    p_.blocks.push_back({.parent = block_, .depth = p_.blocks[block_].depth + 1, .stmts = {}});
    return static_cast<BlockId>(p_.blocks.size() - 1);
  }

  /// `what` has {} where the number of the element goes.
  void report(ValueId is_bad, ValueId element, const std::string& what) {
    p_.faults.push_back(fmt::format("kernel {}: {}", p_.name, what));
    const BlockId body = open_block();
    p_.blocks[body].stmts.push_back({.kind = StmtKind::kFault,
                                     .begin = element,
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
  bool has_rows_;
  BlockId block_ = 0;
};

}  // namespace

void insert_checks(Program& program, bool has_rows) { Checker(program, has_rows).run(); }

}  // namespace bm::compiler
