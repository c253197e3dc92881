// Checks of a Program's structure; see verify() in program.h.
#include <fmt/format.h>

#include "compiler/program/program.h"

namespace bm::compiler {
namespace {

class Verifier {
 public:
  explicit Verifier(const Program& p)
      : p_(p),
        is_defined_(p.values.size(), false),
        is_own_(p.values.size(), false),
        is_written_(p.locals.size(), false) {}

  Status run() {
    BM_TRY(block(p_.root));
    for (const Function& f : p_.functions) {
      BM_TRY(block(f.body));
      if (!is_defined_[f.result]) return bad(f.result, "result is not defined");
    }
    return {};
  }

 private:
  Status bad(ValueId v, std::string_view what) const {
    return fail(Code::kInternal, "program {}: v{}: {}", p_.name, v, what);
  }

  Status use(ValueId v) const {
    if (v >= p_.values.size()) return bad(v, "no such value");
    return is_defined_[v] ? Status{} : bad(v, "used before its definition");
  }

  Status alu(ValueId id, const Value& v) const {
    const auto t = [&](size_t i) { return p_.type(v.args[i]); };
    const size_t arity = v.args.size();
    if (arity == 0 || arity > 3) return bad(id, "wrong number of operands");
    for (size_t i = 0; i < arity; ++i)
      if (t(i).lanes != v.type.lanes) return bad(id, "operands differ in lanes");
    if (v.alu == Op::kSelect)
      return arity == 3 && t(0).dtype == DType::kBool && t(1) == v.type && t(2) == v.type
                 ? Status{}
                 : bad(id, "malformed select");
    if (v.alu == Op::kBitcast)
      return item_size(t(0).dtype) == item_size(v.type.dtype) ? Status{}
                                                              : bad(id, "bitcast changes the size");
    for (size_t i = 0; i < arity; ++i) {
      if (t(i).dtype != t(0).dtype) return bad(id, "operands differ in dtype");
      if (is_half_like(t(i).dtype) && (p_.block == 0 || !is_half_arithmetic(v.alu)))
        return bad(id, "arithmetic on a 16-bit float");
    }
    const DType want = ir::is_comparison(v.alu) ? DType::kBool : t(0).dtype;
    return v.type.dtype == want ? Status{} : bad(id, "result has the wrong dtype");
  }

  Status dot(ValueId id, const Value& v) const {
    const DType sum = dot_sum(static_cast<DotKind>(v.imm));
    const Type words{DType::kU32, v.type.lanes};
    return v.args.size() == 3 && v.type.dtype == sum && p_.type(v.args[0]) == v.type &&
                   p_.type(v.args[1]) == words && p_.type(v.args[2]) == words
               ? Status{}
               : bad(id, "malformed dot product");
  }

  /// Of a local array of narrower elements.
  bool is_word(const Value& v) const {
    return p_.block == 0 && v.type == Type{DType::kU32, 1} &&
           item_size(p_.locals[static_cast<size_t>(v.imm)].dtype) < 4;
  }

  Status sub_group(ValueId id, const Value& v) const {
    const Type one{DType::kF32, 1};
    if (v.op == ValueOp::kPackHalf2)
      return v.args.size() == 2 && p_.type(v.args[0]) == one && p_.type(v.args[1]) == one &&
                     v.type == Type{DType::kU32, 1} && p_.block != 0 &&
                     is_half_like(static_cast<DType>(v.imm))
                 ? Status{}
                 : bad(id, "malformed word of two halves");
    if (v.op == ValueOp::kDequantise2) {
      const Type word{DType::kU32, 1};
      return v.args.size() == 2 && p_.type(v.args[0]) == word && p_.type(v.args[1]) == word &&
                     v.type == word && p_.block != 0 && (v.imm == 0 || v.imm == 1)
                 ? Status{}
                 : bad(id, "malformed word of two codes");
    }
    if (v.op == ValueOp::kExp2)
      return v.args.size() == 1 && p_.type(v.args[0]) == one && v.type == one && p_.block != 0
                 ? Status{}
                 : bad(id, "malformed power of two");
    if (v.op == ValueOp::kRoundTf32)
      return v.args.size() == 1 && p_.type(v.args[0]) == v.type && v.type == Type{DType::kU32, 1} &&
                     p_.block != 0
                 ? Status{}
                 : bad(id, "malformed rounding to tf32");
    return v.args.size() == 1 && p_.type(v.args[0]) == v.type && v.type.lanes == 1 &&
                   item_size(v.type.dtype) == 4 && v.imm > 0 && p_.block != 0 && divergence_ == 0
               ? Status{}
               : bad(id, "malformed exchange, or one that some work-items may not reach");
  }

  /// What is read has been written: before, or by an earlier iteration of a loop around.
  Status read(size_t array) {
    if (is_written_[array]) return {};
    if (serial_loops_ == 0) return unwritten(array);
    read_early_.push_back(array);
    return {};
  }

  Status unwritten(size_t array) const {
    return fail(Code::kInternal, "program {}: local array {} is read but not written before",
                p_.name, array);
  }

  /// The outermost of loops whose iterations follow each other has ended.
  Status check_early_reads() {
    for (const size_t array : read_early_)
      if (!is_written_[array]) return unwritten(array);
    read_early_.clear();
    return {};
  }

  Status define(ValueId id) {
    const Value& v = p_.at(id);
    for (ValueId a : v.args) BM_TRY(use(a));
    if (is_defined_[id]) return bad(id, "defined twice");
    if (v.op == ValueOp::kAlu) BM_TRY(alu(id, v));
    if (v.op == ValueOp::kLoad && (v.args.empty() || p_.type(v.args[0]) != Type{DType::kI64, 1}))
      return bad(id, "load without an int64 index");
    if (v.op == ValueOp::kSplat && p_.type(v.args[0]) != Type{v.type.dtype, 1})
      return bad(id, "splat of a vector");
    if (v.op == ValueOp::kConvert && p_.type(v.args[0]).lanes != v.type.lanes)
      return bad(id, "conversion changes lanes");
    if (v.op == ValueOp::kDot) BM_TRY(dot(id, v));
    if (v.op == ValueOp::kLdexp && (v.args.size() != 2 || !is_float(v.type.dtype) ||
                                    p_.type(v.args[0]) != v.type || p_.type(v.args[1]) != v.type))
      return bad(id, "malformed scaling");
    if (v.op == ValueOp::kLookup &&
        (v.args.size() != 1 || v.type.dtype != DType::kU32 || p_.type(v.args[0]) != v.type ||
         static_cast<size_t>(v.imm) >= p_.tables.size() ||
         p_.tables[static_cast<size_t>(v.imm)].size() != 2))
      return bad(id, "malformed lookup");
    if (v.op == ValueOp::kFragment &&
        (v.args.size() != 1 || p_.type(v.args[0]) != Type{DType::kI64, 1} ||
         v.type != Type{DType::kU32, 4} || !is_bytes(static_cast<uint32_t>(v.imm / 2)) ||
         divergence_ != 0))
      return bad(id, "malformed fragment of a tile");
    if (v.op == ValueOp::kShuffle || v.op == ValueOp::kPackHalf2 || v.op == ValueOp::kDequantise2 ||
        v.op == ValueOp::kExp2 || v.op == ValueOp::kRoundTf32)
      BM_TRY(sub_group(id, v));
    if (v.op == ValueOp::kLocalLoad &&
        (v.args.size() != 1 || p_.type(v.args[0]) != Type{DType::kI64, 1} ||
         static_cast<size_t>(v.imm) >= p_.locals.size() ||
         (v.type.dtype != p_.locals[static_cast<size_t>(v.imm)].dtype && !is_word(v)) ||
         (p_.block != 0 && v.type.lanes * item_size(v.type.dtype) > 16)))
      return bad(id, "malformed access to a local array");
    if (v.op == ValueOp::kLocalLoad) BM_TRY(read(static_cast<size_t>(v.imm)));
    if (v.op == ValueOp::kFragment) BM_TRY(read(static_cast<size_t>(v.imm / 2)));
    is_defined_[id] = true;
    // Registers are taken to differ between work-items.
    is_own_[id] = v.op == ValueOp::kItem || v.op == ValueOp::kRead;
    for (ValueId a : v.args) is_own_[id] = is_own_[id] || is_own_[a];
    visible_.push_back(id);
    return {};
  }

  Status block(BlockId id) {
    const size_t mark = visible_.size();
    for (const Stmt& s : p_.blocks[id].stmts) BM_TRY(statement(s));
    while (visible_.size() > mark) {
      if (id != p_.root && p_.blocks[id].parent != kNone) is_defined_[visible_.back()] = false;
      visible_.pop_back();
    }
    return {};
  }

  Status statement(const Stmt& s) {
    if (s.kind == StmtKind::kLet) return define(s.value);
    if (s.kind == StmtKind::kLoop) return loop(s);
    if (s.kind == StmtKind::kPrefetch) return use(s.begin);
    if (s.kind == StmtKind::kMma) return matrix(s);
    if (s.kind == StmtKind::kFault) return use(s.begin);
    if (s.kind == StmtKind::kCopy) return copy(s);
    if (s.kind == StmtKind::kWarpgroupMma) return warpgroup_mma(s);
    if (s.kind == StmtKind::kTensor) return tensor(s);
    // Only orders what is there.
    if (s.kind == StmtKind::kPipe && (s.pipe <= PipeOp::kProxyFence || s.pipe == PipeOp::kOrder))
      return {};
    if (s.kind == StmtKind::kBarrier || s.kind == StmtKind::kPipe)
      return divergence_ == 0
                 ? Status{}
                 : fail(Code::kInternal, "program {}: barrier that some work-items may not reach",
                        p_.name);
    BM_TRY(use(s.value));
    if (s.kind == StmtKind::kIf) return nested(s.body, is_own_[s.value]);
    if (s.kind == StmtKind::kAssign)
      return p_.type(s.value) == p_.registers[s.target]
                 ? Status{}
                 : bad(s.value, "assigned to a register of another type");
    BM_TRY(use(s.begin));
    if (s.kind == StmtKind::kLocalStore) return local_store(s);
    if (s.end != kNone) BM_TRY(use(s.end));
    if (s.is_streamed && (s.end != kNone || p_.type(s.value).lanes == 1))
      return bad(s.value, "streamed, but no whole vector");
    for (const ValueId v : s.operands) {
      BM_TRY(use(v));
      if (p_.block == 0 || p_.type(v) != p_.type(s.value)) return bad(v, "not stored together");
    }
    return p_.type(s.value).dtype == p_.params[s.target].dtype
               ? Status{}
               : bad(s.value, "stored to a param of another dtype");
  }

  Status local_store(const Stmt& s) {
    if (s.target >= p_.locals.size() || p_.type(s.begin) != Type{DType::kI64, 1} ||
        (p_.type(s.value).dtype != p_.locals[s.target].dtype &&
         (p_.type(s.value).dtype != DType::kU32 || !is_bytes(s.target))) ||
        (p_.block != 0 && p_.type(s.value).lanes != 1))
      return bad(s.value, "malformed store to a local array");
    const size_t together = s.operands.size() + 1;
    for (const ValueId v : s.operands) {
      BM_TRY(use(v));
      if (p_.block == 0 || p_.type(v) != p_.type(s.value) ||
          together * static_cast<size_t>(item_size(p_.type(v).dtype)) > 16)
        return bad(v, "not stored together");
    }
    is_written_[s.target] = true;
    return {};
  }

  bool is_bytes(uint32_t array) const {
    return p_.block != 0 && array < p_.locals.size() && p_.locals[array].dtype == DType::kU8;
  }

  Status copy(const Stmt& s) {
    const bool is_rounded = s.copy == CopyKind::kRoundTf32;
    for (const ValueId v : {s.value, is_rounded ? s.value : s.begin}) {
      BM_TRY(use(v));
      if (p_.type(v) != Type{DType::kI64, 1}) return bad(v, "copy at no int64 index");
    }
    if (s.step != 16 && (s.step != 4 || (s.copy != CopyKind::kAsync && !is_rounded)))
      return bad(s.value, "copy of no 16 bytes");
    if (is_rounded && is_bytes(s.target)) return read(s.target);
    if (s.end != kNone) BM_TRY(use(s.end));
    if (!is_bytes(s.target) || s.param >= p_.params.size())
      return bad(s.value, "copy to a local array that does not hold bytes");
    is_written_[s.target] = true;
    return {};
  }

  Status warpgroup_mma(const Stmt& s) {
    BM_TRY(accumulators(s));
    if (is_bytes(s.local)) BM_TRY(read(s.local));
    const size_t words = s.operands.size() > 2 ? 4 : 0;
    for (size_t i = 0; i < s.operands.size(); ++i) {
      const ValueId v = s.operands[i];
      BM_TRY(use(v));
      if (i >= words && p_.type(v) != Type{DType::kI64, 1}) return bad(v, "tile at no int64 index");
      if (i < words && p_.type(v) != Type{DType::kU32, 1})
        return bad(v, "fragment of a matrix is no word");
    }
    return s.operands.size() == (words == 0 ? 2 : 5) && is_bytes(s.local) &&
                   s.accumulators % 4 == 0 && s.accumulators <= 128
               ? Status{}
               : fail(Code::kInternal, "program {}: malformed warpgroup MMA", p_.name);
  }

  Status tensor(const Stmt& s) {
    const auto malformed = [&] {
      return fail(Code::kInternal, "program {}: malformed use of tensor memory", p_.name);
    };
    if (divergence_ != 0)
      return fail(Code::kInternal, "program {}: tensor memory that some work-items may not reach",
                  p_.name);
    for (const ValueId v : {s.begin, s.value})
      if (v != kNone) {
        BM_TRY(use(v));
        if (p_.type(v) != Type{DType::kI64, 1}) return bad(v, "tensor memory at no int64 index");
      }
    const bool is_loaded = s.tensor == TensorOp::kLoad, is_freed = s.tensor == TensorOp::kFree;
    if (is_loaded) {
      Stmt all = s;
      all.accumulators *= static_cast<uint32_t>(s.step);
      BM_TRY(accumulators(all));
    }
    if (!is_loaded && !is_freed && (!is_bytes(s.local) || s.begin == kNone)) return malformed();
    if ((is_loaded || s.tensor == TensorOp::kWait) && s.value == kNone) return malformed();
    if (s.tensor != TensorOp::kMma) return {};
    BM_TRY(use(s.end));
    BM_TRY(read(s.local));
    for (const ValueId v : s.operands) {
      BM_TRY(use(v));
      if (p_.type(v) != Type{DType::kI64, 1}) return bad(v, "tile at no int64 index");
    }
    return s.operands.size() == 2 && s.accumulators % 16 == 0 && s.accumulators <= 256
               ? Status{}
               : malformed();
  }

  Status matrix(const Stmt& s) const {
    BM_TRY(accumulators(s));
    for (ValueId w : s.operands) {
      BM_TRY(use(w));
      if (p_.type(w) != Type{DType::kU32, 1}) return bad(w, "fragment of a matrix is no word");
    }
    // Twice as many words of A as of B, or equally many.
    return s.operands.size() == 6 || s.operands.size() == 3 ||
                   (!s.operands.empty() && s.operands.size() % 2 == 0 && s.operands.size() <= 16)
               ? Status{}
               : fail(Code::kInternal, "program {}: MMA of {} words", p_.name, s.operands.size());
  }

  /// All work-items reach an MMA, with accumulators for it.
  Status accumulators(const Stmt& s) const {
    if (divergence_ != 0)
      return fail(Code::kInternal, "program {}: MMA that some work-items may not reach", p_.name);
    const DType sum = is_float(s.matrix) ? DType::kF32 : DType::kI32;
    for (uint32_t r = s.target; r < s.target + s.accumulators; ++r)
      if (r >= p_.registers.size() || p_.registers[r] != Type{sum, 1})
        return fail(Code::kInternal, "program {}: register {} cannot accumulate an MMA", p_.name,
                    r);
    return {};
  }

  /// `is_own`: whether the work-items of a group may take different ways.
  Status nested(BlockId body, bool is_own) {
    divergence_ += is_own;
    const Status inside = block(body);
    divergence_ -= is_own;
    return inside;
  }

  Status loop(const Stmt& s) {
    BM_TRY(use(s.begin));
    if (s.end != kNone) BM_TRY(use(s.end));
    const bool is_partitioned = s.loop == LoopKind::kGroup || s.loop == LoopKind::kItem;
    if (s.step <= 0 || (is_partitioned && s.step != 1))
      return bad(s.value, "loop without a positive step");
    if (!is_partitioned && s.end == kNone) return bad(s.value, "loop without an end");
    if (is_partitioned && p_.block == 0) return bad(s.value, "work-items without a block");
    if (s.loop == LoopKind::kItem && s.end == kNone && s.trip_count == 0)
      return bad(s.value, "loop without an end");
    const bool is_own =
        s.loop == LoopKind::kItem || is_own_[s.begin] || (s.end != kNone && is_own_[s.end]);
    is_defined_[s.value] = true;
    is_own_[s.value] = is_own;
    const bool is_serial = s.loop == LoopKind::kSerial;
    serial_loops_ += is_serial;
    const Status inside = nested(s.body, is_own);
    serial_loops_ -= is_serial;
    is_defined_[s.value] = false;
    BM_TRY(inside);
    return serial_loops_ == 0 ? check_early_reads() : Status{};
  }

  const Program& p_;
  std::vector<bool> is_defined_;
  std::vector<bool> is_own_;        ///< differs between the work-items of a group
  std::vector<bool> is_written_;    ///< by local array
  std::vector<size_t> read_early_;  ///< local arrays read in a loop before any store to them
  int serial_loops_ = 0;            ///< that are open
  int divergence_ = 0;
  std::vector<ValueId> visible_;
};

}  // namespace

Status verify(const Program& program) { return Verifier(program).run(); }

}  // namespace bm::compiler
