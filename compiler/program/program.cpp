#include "compiler/program/program.h"

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
    case ValueOp::kConcatShift: return "concat_shift";
    case ValueOp::kInterleave: return "interleave";
    case ValueOp::kDeinterleave: return "deinterleave";
    case ValueOp::kLoad: return "load";
    case ValueOp::kWords: return "words";
    case ValueOp::kUnalignedWords: return "unaligned_words";
    case ValueOp::kFragment: return "fragment";
    case ValueOp::kIsAligned: return "is_aligned";
    case ValueOp::kShuffle: return "shuffle";
    case ValueOp::kPackHalf2: return "pack_half2";
    case ValueOp::kDequantise2: return "dequantise2";
    case ValueOp::kExp2: return "exp2";
    case ValueOp::kRoundTf32: return "round_tf32";
    case ValueOp::kTable: return "table";
    case ValueOp::kItem: return "item";
    case ValueOp::kLocalLoad: return "local";
    case ValueOp::kRead: return "read";
    case ValueOp::kCall: return "call";
    case ValueOp::kDot: return "dot";
    case ValueOp::kLdexp: return "ldexp";
    case ValueOp::kLookup: return "lookup";
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
  static std::string together(const std::vector<ValueId>& operands) {
    std::string out;
    for (const ValueId v : operands) out += fmt::format(" v{}", v);
    return out;
  }

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
          line(depth, fmt::format("local {}[v{}] = v{}{}", s.target, s.begin, s.value,
                                  together(s.operands)));
          break;
        case StmtKind::kMma: {
          std::string words;
          for (ValueId w : s.operands) words += fmt::format(" v{}", w);
          line(depth, fmt::format("matrix {}{} r{}{}", dtype_name(s.matrix),
                                  s.has_signed_right ? "·i8" : "", s.target, words));
          break;
        }
        case StmtKind::kCopy:
        case StmtKind::kPipe:
        case StmtKind::kWarpgroupMma: line(depth, beside(s)); break;
        case StmtKind::kTensor: line(depth, tensor(s)); break;
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
      case PipeOp::kProxyFence: return "proxy fence";
      case PipeOp::kWgmmaFence: return "wgmma fence";
      case PipeOp::kWgmmaCommit: return "wgmma commit";
      case PipeOp::kWgmmaWait: return "wgmma wait";
      case PipeOp::kOrder: return "order";
      case PipeOp::kSettle: return "settle";
    }
    __builtin_unreachable();
  }

  static std::string tile(const Stmt& s, size_t side) {
    return fmt::format("[v{}]{}", side == 0 ? s.operands.front() : s.operands.back(),
                       s.tiles[side].is_transposed ? " transposed" : "");
  }

  static std::string warpgroup_mma(const Stmt& s) {
    std::string left = tile(s, 0);
    if (s.operands.size() > 2)
      left = fmt::format("v{}", fmt::join(s.operands.begin(), s.operands.end() - 1, " v"));
    return fmt::format("matrix {} r{}…{} local {}{} {}", dtype_name(s.matrix), s.target,
                       s.is_new_sum ? " new" : "", s.local, left, tile(s, 1));
  }

  static std::string tensor(const Stmt& s) {
    switch (s.tensor) {
      case TensorOp::kAllocate:
        return fmt::format("tensor memory of {} columns, local {}[v{}]", s.step, s.local, s.begin);
      case TensorOp::kMma:
        return fmt::format("matrix {} tensor memory, {} columns, local {}{}{} if v{}, then [v{}]",
                           dtype_name(s.matrix), s.accumulators, s.local, tile(s, 0), tile(s, 1),
                           s.end, s.begin);
      case TensorOp::kWait:
        return fmt::format("wait for local {}[v{}], phase v{}", s.local, s.begin, s.value);
      case TensorOp::kLoad:
        return fmt::format("r{}… {} × {} = tensor memory [v{}]", s.target, s.step, s.accumulators,
                           s.value);
      case TensorOp::kFree: return fmt::format("free {} columns of tensor memory", s.step);
    }
    __builtin_unreachable();
  }

  static std::string beside(const Stmt& s) {
    if (s.kind == StmtKind::kPipe)
      return fmt::format("{}{}", name(s.pipe), s.step ? fmt::format(" but {}", s.step) : "");
    if (s.kind == StmtKind::kWarpgroupMma) return warpgroup_mma(s);
    if (s.copy == CopyKind::kRoundTf32)
      return fmt::format("round {} bytes to tf32: local {}[v{}]", s.step, s.target, s.value);
    constexpr std::array<std::string_view, 3> kHow = {"async", "words", "any words"};
    return fmt::format("copy {}{} local {}[v{}] = p{}[v{}]{}", kHow[static_cast<size_t>(s.copy)],
                       s.step == 16 ? "" : " of 4 bytes", s.target, s.value, s.param, s.begin,
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
                           s.trip_count ? fmt::format(", {} each", s.trip_count) : "");
    }
    return {};
  }

  const Program& p_;
  std::string out_;
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

}  // namespace bm::compiler
