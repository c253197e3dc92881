#include "compiler/codegen/program.h"

#include <fmt/format.h>

#include "runtime/base/bits.h"

namespace bm::compiler {
namespace {

std::string_view op_text(ValueOp op) {
  switch (op) {
    case ValueOp::kConst: return "const";
    case ValueOp::kArgument: return "argument";
    case ValueOp::kVar: return "var";
    case ValueOp::kIndex: return "index";
    case ValueOp::kIota: return "iota";
    case ValueOp::kSplat: return "splat";
    case ValueOp::kExtract: return "extract";
    case ValueOp::kBuild: return "build";
    case ValueOp::kInsert: return "insert";
    case ValueOp::kHalf: return "half";
    case ValueOp::kReverse: return "reverse";
    case ValueOp::kSlide: return "slide";
    case ValueOp::kInterleave: return "interleave";
    case ValueOp::kEven: return "even";
    case ValueOp::kLoad: return "load";
    case ValueOp::kWords: return "words";
    case ValueOp::kAnyWords: return "any_words";
    case ValueOp::kFragment: return "fragment";
    case ValueOp::kIsAligned: return "is_aligned";
    case ValueOp::kTable: return "table";
    case ValueOp::kItem: return "item";
    case ValueOp::kLocalLoad: return "local";
    case ValueOp::kRead: return "read";
    case ValueOp::kCall: return "call";
    case ValueOp::kDot: return "dot";
    case ValueOp::kScale: return "scale";
    case ValueOp::kAny: return "any";
    case ValueOp::kConvert: return "convert";
    case ValueOp::kAlu: return "alu";
  }
  return "?";
}

std::string type_text(Type t) {
  return t.lanes == 1 ? std::string(dtype_name(t.dtype))
                      : fmt::format("{}x{}", dtype_name(t.dtype), t.lanes);
}

class Printer {
 public:
  explicit Printer(const Program& p) : p_(p) {}

  std::string run() {
    out_ = fmt::format("program {}\n", p_.name);
    for (size_t i = 0; i < p_.params.size(); ++i)
      out_ += fmt::format("  param {}: {}[{}]{}{}\n", i, dtype_name(p_.params[i].dtype),
                          p_.params[i].elements, p_.params[i].is_read ? " read" : "",
                          p_.params[i].is_written ? " written" : "");
    if (p_.block) out_ += fmt::format("  block of {} work-items\n", p_.block);
    for (size_t i = 0; i < p_.locals.size(); ++i)
      out_ += fmt::format("  local {}: {}[{}]\n", i, dtype_name(p_.locals[i].dtype),
                          p_.locals[i].count);
    block(p_.root, 1);
    for (const Function& f : p_.functions) {
      out_ += fmt::format("function {}\n", f.name);
      block(f.body, 1);
      out_ += fmt::format("  return v{}\n", f.result);
    }
    return std::move(out_);
  }

 private:
  void line(int depth, std::string_view text) {
    out_ += fmt::format("{:{}}{}\n", "", depth * 2, text);
  }

  std::string value(ValueId id) {
    const Value& v = p_.at(id);
    std::string s = fmt::format("v{}: {} = {}", id, type_text(v.type),
                                v.op == ValueOp::kAlu ? ir::op_name(v.alu) : op_text(v.op));
    if (v.op == ValueOp::kConst && is_float(v.type.dtype))
      s += fmt::format(" {}", std::bit_cast<double>(v.imm));
    else if (v.op != ValueOp::kAlu && v.op != ValueOp::kSplat && v.op != ValueOp::kConvert)
      s += fmt::format(" #{}", v.imm);
    for (ValueId a : v.args) s += fmt::format(" v{}", a);
    return s;
  }

  void block(BlockId id, int depth) {
    for (const Stmt& s : p_.blocks[id].stmts) {
      switch (s.kind) {
        case StmtKind::kLet: line(depth, value(s.value)); break;
        case StmtKind::kAssign: line(depth, fmt::format("r{} <- v{}", s.target, s.value)); break;
        case StmtKind::kStore:
          line(depth,
               fmt::format("{} p{}[v{}] = v{}{}", s.is_streamed ? "stream" : "store", s.target,
                           s.begin, s.value, s.end == kNone ? "" : fmt::format(" if v{}", s.end)));
          break;
        case StmtKind::kPrefetch:
          line(depth,
               fmt::format("prefetch {}{}[v{}]", s.is_local ? "local " : "p", s.target, s.begin));
          break;
        case StmtKind::kIf:
          line(depth, fmt::format("if v{}", s.value));
          block(s.body, depth + 1);
          break;
        case StmtKind::kLocalStore:
          line(depth, fmt::format("local {}[v{}] = v{}", s.target, s.begin, s.value));
          break;
        case StmtKind::kMatrix: {
          std::string words;
          for (ValueId w : s.operands) words += fmt::format(" v{}", w);
          line(depth, fmt::format("matrix {} r{}{}", dtype_name(s.matrix), s.target, words));
          break;
        }
        case StmtKind::kCopy:
        case StmtKind::kPipe:
        case StmtKind::kGroupMatrix: line(depth, beside(s)); break;
        case StmtKind::kBarrier: line(depth, "barrier"); break;
        case StmtKind::kFault:
          line(depth, fmt::format("fault at v{}: {}", s.begin, p_.faults[s.target]));
          break;
        case StmtKind::kLoop:
          line(depth, loop(s));
          block(s.body, depth + 1);
          break;
      }
    }
  }

  static std::string_view name(PipeOp op) {
    switch (op) {
      case PipeOp::kCommitCopies: return "commit copies";
      case PipeOp::kWaitCopies: return "wait for copies";
      case PipeOp::kPublish: return "publish";
      case PipeOp::kOpenProducts: return "open products";
      case PipeOp::kCommitProducts: return "commit products";
      case PipeOp::kWaitProducts: return "wait for products";
    }
    __builtin_unreachable();
  }

  static std::string beside(const Stmt& s) {
    if (s.kind == StmtKind::kPipe)
      return fmt::format("{}{}", name(s.pipe), s.step ? fmt::format(" but {}", s.step) : "");
    if (s.kind == StmtKind::kGroupMatrix)
      return fmt::format("matrix {} r{}… local {}[v{}]{} [v{}]{}", dtype_name(s.matrix), s.target,
                         s.local, s.operands[0], s.tiles[0].is_turned ? " turned" : "",
                         s.operands[1], s.tiles[1].is_turned ? " turned" : "");
    constexpr std::array<std::string_view, 3> kHow = {"async", "words", "any words"};
    return fmt::format("copy {} local {}[v{}] = p{}[v{}]{}", kHow[static_cast<size_t>(s.copy)],
                       s.target, s.value, s.param, s.begin,
                       s.end == kNone ? "" : fmt::format(" if v{}", s.end));
  }

  static std::string loop(const Stmt& s) {
    const std::string end = s.end == kNone ? "" : fmt::format(" to v{}", s.end);
    switch (s.loop) {
      case LoopKind::kGrid:
        return fmt::format("grid v{} = v{}{} step {}", s.value, s.begin, end, s.step);
      case LoopKind::kSerial:
        return fmt::format("for v{} = v{}{} step {}", s.value, s.begin, end, s.step);
      case LoopKind::kGroup: return fmt::format("groups v{} along {}{}", s.value, s.axis, end);
      case LoopKind::kItem:
        return fmt::format("items v{} = v{}{}{}", s.value, s.begin, end,
                           s.trips ? fmt::format(", {} each", s.trips) : "");
    }
    return {};
  }

  const Program& p_;
  std::string out_;
};

class Verifier {
 public:
  explicit Verifier(const Program& p)
      : p_(p), is_defined_(p.values.size(), false), is_own_(p.values.size(), false) {}

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
      if (is_half_like(t(i).dtype)) return bad(id, "arithmetic on a 16-bit float");
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

  /// Of a local array of narrower numbers.
  bool is_word(const Value& v) const {
    return p_.block == 0 && v.type == Type{DType::kU32, 1} &&
           item_size(p_.locals[static_cast<size_t>(v.imm)].dtype) < 4;
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
    if (v.op == ValueOp::kScale && (v.args.size() != 2 || !is_float(v.type.dtype) ||
                                    p_.type(v.args[0]) != v.type || p_.type(v.args[1]) != v.type))
      return bad(id, "malformed scaling");
    if (v.op == ValueOp::kFragment &&
        (v.args.size() != 1 || p_.type(v.args[0]) != Type{DType::kI64, 1} ||
         v.type != Type{DType::kU32, 4} || !is_bytes(static_cast<uint32_t>(v.imm / 2)) ||
         divergence_ != 0))
      return bad(id, "malformed fragment of a tile");
    if (v.op == ValueOp::kLocalLoad &&
        (v.args.size() != 1 || p_.type(v.args[0]) != Type{DType::kI64, 1} ||
         static_cast<size_t>(v.imm) >= p_.locals.size() ||
         (v.type.dtype != p_.locals[static_cast<size_t>(v.imm)].dtype && !is_word(v)) ||
         (p_.block != 0 && v.type.lanes * item_size(v.type.dtype) > 16)))
      return bad(id, "malformed access to a local array");
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
    if (s.kind == StmtKind::kMatrix) return matrix(s);
    if (s.kind == StmtKind::kFault) return use(s.begin);
    if (s.kind == StmtKind::kCopy) return copy(s);
    if (s.kind == StmtKind::kGroupMatrix) return group_matrix(s);
    // Only orders what is there.
    if (s.kind == StmtKind::kPipe && s.pipe <= PipeOp::kPublish) return {};
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
    if (s.kind == StmtKind::kLocalStore)
      return s.target < p_.locals.size() && p_.type(s.begin) == Type{DType::kI64, 1} &&
                     p_.type(s.value).dtype == p_.locals[s.target].dtype &&
                     (p_.block == 0 || p_.type(s.value).lanes == 1)
                 ? Status{}
                 : bad(s.value, "malformed store to a local array");
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

  bool is_bytes(uint32_t array) const {
    return p_.block != 0 && array < p_.locals.size() && p_.locals[array].dtype == DType::kU8;
  }

  Status copy(const Stmt& s) const {
    for (const ValueId v : {s.value, s.begin}) {
      BM_TRY(use(v));
      if (p_.type(v) != Type{DType::kI64, 1}) return bad(v, "copy at no int64 index");
    }
    if (s.end != kNone) BM_TRY(use(s.end));
    return is_bytes(s.target) && s.param < p_.params.size()
               ? Status{}
               : bad(s.value, "copy to a local array that does not hold bytes");
  }

  Status group_matrix(const Stmt& s) const {
    BM_TRY(sums(s));
    for (const ValueId v : s.operands) {
      BM_TRY(use(v));
      if (p_.type(v) != Type{DType::kI64, 1}) return bad(v, "tile at no int64 index");
    }
    return s.operands.size() == 2 && is_bytes(s.local) && s.sums % 4 == 0 && s.sums <= 128
               ? Status{}
               : fail(Code::kInternal, "program {}: malformed product of tiles", p_.name);
  }

  Status matrix(const Stmt& s) const {
    BM_TRY(sums(s));
    for (ValueId w : s.operands) {
      BM_TRY(use(w));
      if (p_.type(w) != Type{DType::kU32, 1}) return bad(w, "fragment of a matrix is no word");
    }
    // Twice as many words of the left operand as of the right, or equally many.
    return s.operands.size() == 6 || s.operands.size() == 3 ||
                   (!s.operands.empty() && s.operands.size() % 2 == 0 && s.operands.size() <= 16)
               ? Status{}
               : fail(Code::kInternal, "program {}: matrix product of {} words", p_.name,
                      s.operands.size());
  }

  /// All work-items come to a product, with registers for it.
  Status sums(const Stmt& s) const {
    if (divergence_ != 0)
      return fail(Code::kInternal, "program {}: matrix product that some work-items may not reach",
                  p_.name);
    const DType sum = is_float(s.matrix) ? DType::kF32 : DType::kI32;
    for (uint32_t r = s.target; r < s.target + s.sums; ++r)
      if (r >= p_.registers.size() || p_.registers[r] != Type{sum, 1})
        return fail(Code::kInternal, "program {}: register {} cannot hold a matrix product",
                    p_.name, r);
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
    const bool is_dealt = s.loop == LoopKind::kGroup || s.loop == LoopKind::kItem;
    if (s.step <= 0 || (is_dealt && s.step != 1))
      return bad(s.value, "loop without a positive step");
    if (!is_dealt && s.end == kNone) return bad(s.value, "loop without an end");
    if (is_dealt && p_.block == 0) return bad(s.value, "work-items without a block");
    if (s.loop == LoopKind::kItem && s.end == kNone && s.trips == 0)
      return bad(s.value, "loop without an end");
    const bool is_own =
        s.loop == LoopKind::kItem || is_own_[s.begin] || (s.end != kNone && is_own_[s.end]);
    is_defined_[s.value] = true;
    is_own_[s.value] = is_own;
    const Status inside = nested(s.body, is_own);
    is_defined_[s.value] = false;
    return inside;
  }

  const Program& p_;
  std::vector<bool> is_defined_;
  std::vector<bool> is_own_;  ///< differs between the work-items of a group
  int divergence_ = 0;
  std::vector<ValueId> visible_;
};

}  // namespace

uint64_t local_bytes(const Program& program) {
  uint64_t sum = 0;
  if (program.block == 0) return sum;
  for (const LocalArray& a : program.locals)
    sum += a.count * static_cast<uint64_t>(item_size(a.dtype));
  return sum;
}

uint64_t scratch_offset(const Program& program, size_t array) {
  uint64_t offset = 0;
  for (size_t i = 0; i < array; ++i) {
    const LocalArray& a = program.locals[i];
    offset = align_up(offset + a.count * static_cast<uint64_t>(item_size(a.dtype)), 64);
  }
  return offset;
}

uint64_t scratch_bytes(const Program& program) {
  return program.block == 0 ? scratch_offset(program, program.locals.size()) : 0;
}

std::string to_string(const Program& program) { return Printer(program).run(); }
Status verify(const Program& program) { return Verifier(program).run(); }

}  // namespace bm::compiler
