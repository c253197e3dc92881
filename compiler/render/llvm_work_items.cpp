#include "compiler/render/llvm_work_items.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace bm::compiler {

void LlvmWorkItems::kernel(std::string_view define, std::string_view metadata) {
  std::string args;
  for (size_t i = 0; i < p_.params.size(); ++i)
    args += fmt::format("{}ptr addrspace(1) noalias %p{}", i ? ", " : "", i);
  for (uint32_t i = 0; i < p_.num_vars; ++i)
    args += fmt::format("{}i64 %var{}", args.empty() ? "" : ", ", i);
  out_ += fmt::format("{} void @{}({}) #0{} {{\n", define, p_.name, args, metadata);
  label("entry");
  item_ = special(item_number(), p_.block);
  for (uint32_t i = 0; i < p_.num_vars && !narrow_.fits.empty(); ++i)
    line("%var{0}.n = trunc i64 %var{0} to i32", i);
  registers(p_.root);
  block(p_.root);
  out_ += "  ret void\n}\n";
}

std::string LlvmWorkItems::local_arrays() const {
  std::string text;
  for (size_t i = 0; i < p_.locals.size(); ++i)
    text += fmt::format("@local{} = internal addrspace(3) global [{} x {}] undef, align 16\n", i,
                        p_.locals[i].count, memory_type({p_.locals[i].dtype, 1}));
  return text;
}

std::string LlvmWorkItems::bounds() const {
  std::string text;
  for (size_t i = 0; i < bounds_.size(); ++i)
    text += fmt::format("!{} = !{{i32 0, i32 {}}}\n", i + kFirstBound, bounds_[i]);
  return text;
}

/// What an intrinsic says, known to be below `bound`.
LlvmWorkItems::Number LlvmWorkItems::special(std::string_view intrinsic, int64_t bound) {
  declarations_.insert(fmt::format("declare i32 @{}()", intrinsic));
  const std::string narrow = fresh("%s"), wide = fresh("%s");
  line("{} = call i32 @{}(), !range !{}", narrow, intrinsic, bounds_.size() + kFirstBound);
  bounds_.push_back(bound);
  line("{} = zext i32 {} to i64", wide, narrow);
  return {narrow, wide};
}

// Values.

std::string LlvmWorkItems::narrow_ref(ValueId v) const {
  const Value& value = p_.at(v);
  if (value.op == ValueOp::kConst) return literal({DType::kI32, 1}, value.imm);
  if (value.op == ValueOp::kVar) return fmt::format("%var{}.n", value.imm);
  return fmt::format("%v{}.n", v);
}

void LlvmWorkItems::widen(ValueId v) {
  line("%v{0} = {1} i32 %v{0}.n to i64", v, is_natural(v) ? "zext" : "sext");
}

void LlvmWorkItems::let(ValueId id) {
  const Value& v = p_.at(id);
  if (v.op == ValueOp::kConst || v.op == ValueOp::kVar || v.op == ValueOp::kIndex ||
      !narrow_alu(id))
    LlvmText::let(id);
}

/// Whether the operation was done in 32 bits. No 64-bit processor takes part, which index
/// arithmetic on GPUs would pay for twice.
bool LlvmWorkItems::narrow_alu(ValueId id) {
  const Value& v = p_.at(id);
  if (v.op == ValueOp::kItem && fits(id)) {
    line("%v{}.n = add i32 {}, 0", id, item_.narrow);
    widen(id);
    return true;
  }
  const size_t first = v.alu == Op::kSelect ? 1 : 0;
  const bool is_index = v.op == ValueOp::kAlu && v.args.size() > first &&
                        std::all_of(v.args.begin() + static_cast<ptrdiff_t>(first), v.args.end(),
                                    [&](ValueId a) { return fits(a) && p_.type(a).lanes == 1; });
  if (!is_index) {
    if (!fits(id)) return false;
    LlvmText::let(id);
    line("%v{0}.n = trunc i64 %v{0} to i32", id);
    return true;
  }
  const auto operand = [&](size_t i) { return narrow_ref(v.args[i]); };
  const bool is_natural_pair = is_natural(v.args[0]) && is_natural(v.args.back());
  std::string_view op;
  switch (v.alu) {
    case Op::kLt: op = "icmp slt"; break;
    case Op::kEq: op = "icmp eq"; break;
    case Op::kNe: op = "icmp ne"; break;
    case Op::kAdd: op = "add nsw"; break;
    case Op::kSub: op = "sub nsw"; break;
    case Op::kMul: op = "mul nsw"; break;
    case Op::kAnd: op = "and"; break;
    case Op::kOr: op = "or"; break;
    case Op::kXor: op = "xor"; break;
    case Op::kDiv: op = is_natural_pair ? "udiv" : "sdiv"; break;
    case Op::kMod: op = is_natural_pair ? "urem" : "srem"; break;
    case Op::kShl: op = "shl nsw"; break;
    case Op::kShr: op = is_natural_pair ? "lshr" : "ashr"; break;
    case Op::kSelect:
    case Op::kBitcast: break;
    default: op = "?"; break;
  }
  const bool is_comparison = op.starts_with("icmp");
  if (op == "?" || (!is_comparison && !fits(id))) {
    LlvmText::let(id);
    if (fits(id)) line("%v{0}.n = trunc i64 %v{0} to i32", id);
    return true;
  }
  if (is_comparison) {
    line("%v{} = {} i32 {}, {}", id, op, operand(0), operand(1));
    return true;
  }
  if (v.alu == Op::kSelect)
    line("%v{}.n = select {}, i32 {}, i32 {}", id, typed(v.args[0]), operand(1), operand(2));
  else if (v.alu == Op::kBitcast)
    line("%v{}.n = add i32 {}, 0", id, operand(0));
  else
    line("%v{}.n = {} i32 {}, {}", id, op, operand(0), operand(1));
  widen(id);
  return true;
}

// Loops.

void LlvmWorkItems::loop(const Stmt& s) {
  switch (s.loop) {
    case LoopKind::kGrid: break;
    case LoopKind::kSerial: return fits(s.value) ? counted(s) : serial_loop(s);
    case LoopKind::kGroup: {
      const Number number = special(group_number(s.axis), p_.max_groups[s.axis]);
      if (fits(s.value)) line("%v{}.n = add i32 {}, 0", s.value, number.narrow);
      line("%v{} = add nsw i64 {}, 0", s.value, number.wide);
      return guarded(s);
    }
    case LoopKind::kItem: return items(s);
  }
}

void LlvmWorkItems::guarded(const Stmt& s) {
  if (s.end == kNone) return block(s.body);
  const std::string body = fresh("body"), exit = fresh("exit");
  branch_below_end(s, body, exit);
  label(body);
  block(s.body);
  line("br label %{}", exit);
  label(exit);
}

void LlvmWorkItems::branch_below_end(const Stmt& s, const std::string& body,
                                     const std::string& exit) {
  const bool is_narrow = fits(s.value) && fits(s.end);
  const std::string is_below = fresh("%c");
  line("{} = icmp slt {} {}, {}", is_below, is_narrow ? "i32" : "i64",
       is_narrow ? fmt::format("%v{}.n", s.value) : fmt::format("%v{}", s.value),
       index_ref(s.end, is_narrow));
  line("br i1 {}, label %{}, label %{}", is_below, body, exit);
}

/// A serial loop whose index fits 32 bits, one step past its end, too.
void LlvmWorkItems::counted(const Stmt& s) {
  const std::string body = fresh("body"), latch = fresh("latch"), exit = fresh("exit"),
                    from = current_;
  const std::string guard = fresh("%c"), begin = narrow_ref(s.begin), end = narrow_ref(s.end);
  line("{} = icmp slt i32 {}, {}", guard, begin, end);
  line("br i1 {}, label %{}, label %{}", guard, body, exit);
  label(body);
  line("%v{0}.n = phi i32 [ {1}, %{2} ], [ %v{0}.next, %{3} ]", s.value, begin, from, latch);
  widen(s.value);
  block(s.body);
  line("br label %{}", latch);
  label(latch);
  line("%v{0}.next = add nsw i32 %v{0}.n, {1}", s.value, s.step);
  const std::string again = fresh("%c");
  line("{} = icmp slt i32 %v{}.next, {}", again, s.value, end);
  line("br i1 {}, label %{}, label %{}", again, body, exit);
  label(exit);
}

void LlvmWorkItems::items(const Stmt& s) {
  const bool is_narrow = fits(s.value);
  const std::string type = index_type(s.value), begin = index_ref(s.begin, is_narrow),
                    item = is_narrow ? item_.narrow : item_.wide,
                    index = fmt::format("%v{}{}", s.value, is_narrow ? ".n" : "");
  if (s.trip_count == 1) {
    line("{} = add nsw {} {}, {}", index, type, begin, item);
    if (is_narrow) widen(s.value);
    return guarded(s);
  }
  const std::string first = fresh("%first"), head = fresh("head"), body = fresh("body"),
                    latch = fresh("latch"), exit = fresh("exit"), from = current_;
  line("{} = add nsw {} {}, {}", first, type, begin, item);
  line("br label %{}", head);
  label(head);
  line("{} = phi {} [ {}, %{} ], [ %v{}.next, %{} ]", index, type, first, from, s.value, latch);
  line("%v{}.trip = phi i32 [ 0, %{} ], [ %v{}.again, %{} ]", s.value, from, s.value, latch);
  if (is_narrow) widen(s.value);
  if (s.end == kNone)
    line("br label %{}", body);
  else
    branch_below_end(s, body, exit);
  label(body);
  block(s.body);
  line("br label %{}", latch);
  label(latch);
  line("%v{}.next = add nsw {} {}, {}", s.value, type, index, p_.block);
  line("%v{}.again = add i32 %v{}.trip, 1", s.value, s.value);
  if (s.trip_count == 0) {
    line("br label %{}", head);
  } else {
    const std::string has_more = fresh("%c");
    line("{} = icmp slt i32 %v{}.again, {}", has_more, s.value, s.trip_count);
    line("br i1 {}, label %{}, label %{}", has_more, head, exit);
  }
  label(exit);
}

// Memory.

std::string LlvmWorkItems::address(uint32_t param, ValueId index) {
  if (is_natural(index)) return byte_address(param, index);
  const std::string at = fresh("%at");
  line("{} = getelementptr {}, ptr addrspace(1) %p{}, i64 {}", at,
       memory_type({p_.params[param].dtype, 1}), param, ref(index));
  return "ptr addrspace(1) " + at;
}

/// An element that is there, so that its distance in bytes has no sign; where it also fits 32 bits,
/// targets add it to the param's address in the instruction. A constant part is kept apart.
std::string LlvmWorkItems::byte_address(uint32_t param, ValueId index) {
  const ir::Param& p = p_.params[param];
  const int64_t size = item_size(p.dtype);
  const std::string element = memory_type({p.dtype, 1});
  int64_t constant = 0;
  const Value& v = p_.at(index);
  if (v.op == ValueOp::kAlu && v.alu == Op::kAdd && p_.at(v.args[1]).op == ValueOp::kConst &&
      is_natural(v.args[0]) && is_natural(v.args[1])) {
    constant = p_.at(v.args[1]).imm;
    index = v.args[0];
  }
  const std::string at = fresh("%at");
  if (p.elements <= UINT32_MAX / size) {
    const std::string narrow = fresh("%o"), wide = fresh("%o");
    line("{} = mul nuw i32 {}, {}", narrow, narrow_ref(index), size);
    line("{} = zext i32 {} to i64", wide, narrow);
    line("{} = getelementptr i8, ptr addrspace(1) %p{}, i64 {}", at, param, wide);
  } else {
    line("{} = getelementptr {}, ptr addrspace(1) %p{}, i64 {}", at, element, param, ref(index));
  }
  if (constant == 0) return "ptr addrspace(1) " + at;
  const std::string moved = fresh("%at");
  line("{} = getelementptr {}, ptr addrspace(1) {}, i64 {}", moved, element, at, constant);
  return "ptr addrspace(1) " + moved;
}

std::string LlvmWorkItems::local_address(uint32_t array, ValueId index) {
  const std::string at = fresh("%at");
  line("{} = getelementptr {}, ptr addrspace(3) @local{}, {} {}", at,
       memory_type({p_.locals[array].dtype, 1}), array, index_type(index),
       index_ref(index, fits(index)));
  return "ptr addrspace(3) " + at;
}

/// Contiguous elements as one vector.
void LlvmWorkItems::store_together(const Stmt& s) {
  const DType t = p_.type(s.value).dtype;
  const size_t count = s.operands.size() + 1, bytes = count * static_cast<size_t>(item_size(t));
  const auto value_at = [&](size_t i) { return in_memory(i == 0 ? s.value : s.operands[i - 1]); };
  const auto put = [&](const std::string& whole, const std::string& type,
                       const std::string& element, const std::string& value, size_t i) {
    const std::string next = fresh("%w");
    line("{} = insertelement {} {}, {} {}, i64 {}", next, type, whole, element, value, i);
    return next;
  };
  constexpr size_t kWord = 4;
  const bool has_words = stores_words() && item_size(t) == 1 && count % kWord == 0;
  const std::string one = has_words ? "i32" : memory_type({t, 1});
  const std::string all = fmt::format("<{} x {}>", has_words ? count / kWord : count, one);
  std::string vector = "poison";
  for (size_t i = 0; i < count; i += has_words ? kWord : 1) {
    std::string value = value_at(i);
    // By shifts: a vector of bytes seen as words is turned back into one of bytes.
    for (size_t j = 0; has_words && j < kWord; ++j) {
      const std::string wide = fresh("%w"), high = fresh("%w"), both = fresh("%w");
      line("{} = zext {} {} to i32", wide, memory_type({t, 1}), value_at(i + j));
      line("{} = shl i32 {}, {}", high, wide, 8 * j);
      line("{} = or i32 {}, {}", both, high, j == 0 ? "0" : value);
      value = both;
    }
    vector = put(vector, all, one, value, has_words ? i / kWord : i);
  }
  const bool is_local = s.kind == StmtKind::kLocalStore;
  const auto plain = [&] {
    const std::string at = is_local ? local_address(s.target, s.begin) : address(s.target, s.begin);
    line("store {} {}, {}, align {}", all, vector, at, bytes);
  };
  if (is_local || s.end == kNone) return plain();
  const std::string then = fresh("then"), join = fresh("join");
  line("br i1 {}, label %{}, label %{}", ref(s.end), then, join);
  label(then);
  plain();
  line("br label %{}", join);
  label(join);
}

void LlvmWorkItems::memory_statement(const Stmt& s) {
  switch (s.kind) {
    case StmtKind::kStore:
      if (!s.operands.empty()) return store_together(s);
      return store(s.value, s.end, [&] { return address(s.target, s.begin); });
    case StmtKind::kLocalStore:
      if (!s.operands.empty()) return store_together(s);
      return store(s.value, kNone, [&] { return local_address(s.target, s.begin); });
    case StmtKind::kMma: return matrix(s);
    case StmtKind::kCopy:
    case StmtKind::kPipe:
    case StmtKind::kTensor:
    case StmtKind::kWarpgroupMma: return beside(s);
    case StmtKind::kBarrier: return barrier();
    case StmtKind::kPrefetch: return;
    case StmtKind::kLet:
    case StmtKind::kLoop:
    case StmtKind::kIf:
    case StmtKind::kFault:
    case StmtKind::kAssign: break;
  }
  check_failed("no statement that touches memory", __FILE__, __LINE__);
}

void LlvmWorkItems::beside(const Stmt& s) {
  if (s.kind == StmtKind::kPipe && s.pipe == PipeOp::kOrder) return;
  check_failed("asynchronous copies and MMAs are not for this target", __FILE__, __LINE__);
}

void LlvmWorkItems::fragment(ValueId, const Value&) {
  check_failed("fragments of shared memory are not for this target", __FILE__, __LINE__);
}

void LlvmWorkItems::sub_group(ValueId, const Value&) {
  check_failed("exchanges within a sub-group are not for this target", __FILE__, __LINE__);
}

void LlvmWorkItems::memory_value(ValueId id, const Value& v) {
  const auto number = static_cast<uint32_t>(v.imm);
  switch (v.op) {
    case ValueOp::kLoad:
      return load(id, v.args.size() > 1 ? v.args[1] : kNone,
                  [&] { return address(number, v.args[0]); });
    case ValueOp::kLocalLoad:
      if (v.type.lanes > 1) {
        const std::string at = local_address(number, v.args[0]);
        return line("%v{} = load {}, {}, align {}", id, type_name(v.type), at,
                    v.type.lanes * item_size(v.type.dtype));
      }
      return load(id, kNone, [&] { return local_address(number, v.args[0]); });
    case ValueOp::kItem: return line("%v{} = add nsw i64 {}, 0", id, item_.wide);
    case ValueOp::kDot: return dot(id, v);
    case ValueOp::kFragment: return fragment(id, v);
    case ValueOp::kShuffle:
    case ValueOp::kPackHalf2:
    case ValueOp::kDequantise2:
    case ValueOp::kExp2:
    case ValueOp::kRoundTf32: return sub_group(id, v);
    case ValueOp::kWords: return words(id, v, 4 * v.type.lanes);
    case ValueOp::kUnalignedWords:
      return words(id, v, static_cast<uint32_t>(item_size(p_.params[number].dtype)));
    case ValueOp::kIsAligned: {
      const std::string bits = fresh("%s"), rest = fresh("%s");
      line("{} = ptrtoint ptr addrspace(1) %p{} to i64", bits, number);
      line("{} = and i64 {}, 15", rest, bits);
      return line("%v{} = icmp eq i64 {}, 0", id, rest);
    }
    case ValueOp::kTable: return table(id, v);
    default: check_failed("no value from memory", __FILE__, __LINE__);
  }
}

void LlvmWorkItems::words(ValueId id, const Value& v, uint32_t alignment) {
  const std::string at = address(static_cast<uint32_t>(v.imm), v.args[0]);
  line("%v{} = load {}, {}, align {}", id, type_name(v.type), at, alignment);
}

/// Chosen from, so that the kernel needs no data of its own.
void LlvmWorkItems::table(ValueId id, const Value& v) {
  const std::vector<uint64_t>& entries = p_.tables[static_cast<size_t>(v.imm)];
  std::string chosen = fmt::format("{}", static_cast<int64_t>(entries[0]));
  for (size_t i = 1; i < entries.size(); ++i) {
    const std::string is_it = fresh("%c");
    const std::string next = i + 1 == entries.size() ? fmt::format("%v{}", id) : fresh("%s");
    line("{} = icmp eq {}, {}", is_it, typed(v.args[0]), i);
    line("{} = select i1 {}, i64 {}, i64 {}", next, is_it, static_cast<int64_t>(entries[i]),
         chosen);
    chosen = next;
  }
  if (entries.size() == 1) line("%v{} = add i64 {}, 0", id, chosen);
}

}  // namespace bm::compiler
