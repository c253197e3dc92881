// PTX. One work-item is one thread; rounding is spelled out wherever an assembler could contract,
// and subnormal numbers are kept. Helper functions are written out where they are called.
#include <map>
#include <unordered_map>
#include <vector>

#include "compiler/render/ptx_text.h"
#include "compiler/render/ptx_values.h"
#include "compiler/render/render.h"
#include "runtime/base/check.h"

namespace bm::compiler {
namespace {

using ptx::File;

/// Lowest version of the language that knows a target and its matrix instructions. Source: PTX
/// ISA 9.0, "Release Notes".
struct VersionRow {
  std::string_view target, version;
};
constexpr std::array kVersions = {
    VersionRow{"sm_75", "6.5"},  VersionRow{"sm_80", "7.0"},  VersionRow{"sm_86", "7.1"},
    VersionRow{"sm_87", "7.4"},  VersionRow{"sm_88", "9.0"},  VersionRow{"sm_89", "7.8"},
    VersionRow{"sm_90", "7.8"},  VersionRow{"sm_90a", "8.0"}, VersionRow{"sm_100", "8.6"},
    VersionRow{"sm_103", "8.8"}, VersionRow{"sm_110", "9.0"}, VersionRow{"sm_120", "8.7"},
    VersionRow{"sm_121", "8.8"}};
/// For targets not listed, which are newer.
constexpr std::string_view kNewest = "9.0";

std::string_view version_for(std::string_view target) {
  for (const VersionRow& row : kVersions)
    if (row.target == target) return row.version;
  return kNewest;
}

class PtxRenderer {
 public:
  PtxRenderer(const Program& p, const TargetInfo& target) : p_(p), target_(target), v_(p, out_) {}

  std::string run() {
    arguments();
    for (size_t i = 0; i < p_.locals.size(); ++i) {
      local_addresses_.push_back(out_.fresh(File::kB32));
      out_.line("mov.u32 {}, bm_local{};", local_addresses_[i], i);
    }
    registers(p_.root);
    block(p_.root);
    out_.line("ret;");
    std::string text = fmt::format(".version {}\n.target {}\n.address_size 64\n\n",
                                   version_for(target_.cpu), target_.cpu);
    text += fmt::format(".visible .entry {}({})\n.maxntid {}, 1, 1\n{{\n", p_.name, signature(),
                        p_.block);
    text += out_.declarations();
    for (size_t i = 0; i < p_.locals.size(); ++i)
      text +=
          fmt::format("\t.shared .align 16 .b8 bm_local{}[{}];\n", i,
                      p_.locals[i].count * static_cast<uint64_t>(item_size(p_.locals[i].dtype)));
    return text + "\n" + out_.text() + "}\n";
  }

 private:
  size_t num_arguments() const { return p_.params.size() + p_.num_vars; }

  std::string signature() const {
    std::string s;
    for (size_t i = 0; i < num_arguments(); ++i)
      s += fmt::format("{}\n\t.param .u64 {}_param_{}", i ? "," : "", p_.name, i);
    return s + "\n";
  }

  void arguments() {
    for (size_t i = 0; i < p_.params.size(); ++i) {
      const std::string given = out_.fresh(File::kB64), global = out_.fresh(File::kB64);
      out_.line("ld.param.u64 {}, [{}_param_{}];", given, p_.name, i);
      out_.line("cvta.to.global.u64 {}, {};", global, given);
      params_.push_back(global);
    }
    for (uint32_t i = 0; i < p_.num_vars; ++i) {
      const std::string reg = out_.fresh(File::kB64);
      out_.line("ld.param.u64 {}, [{}_param_{}];", reg, p_.name, p_.params.size() + i);
      vars_.push_back(reg);
    }
    item_ = out_.fresh(File::kB32);
    out_.line("mov.u32 {}, %tid.x;", item_);
  }

  void registers(BlockId root) {
    registers_.resize(p_.registers.size());
    for (size_t i = 0; i < p_.registers.size(); ++i)
      if (p_.register_block[i] == root)
        registers_[i] = out_.fresh(ptx::file_of(p_.registers[i].dtype));
  }

  void block(BlockId id) {
    addresses_.emplace_back();
    for (const Stmt& s : p_.blocks[id].stmts) statement(s);
    addresses_.pop_back();
  }

  void statement(const Stmt& s) {
    switch (s.kind) {
      case StmtKind::kLet: return let(s.value);
      case StmtKind::kLoop: return loop(s);
      case StmtKind::kIf: {
        const std::string end = out_.fresh_label();
        out_.line("@!{} bra {};", v_.operand(s.value), end);
        block(s.body);
        return out_.label(end);
      }
      case StmtKind::kAssign: {
        const File file = ptx::file_of(p_.registers[s.target].dtype);
        const std::string from = file == File::kB64 ? v_.wide(s.value) : v_.operand(s.value);
        return v_.move(file, registers_[s.target], from);
      }
      case StmtKind::kStore:
        return store("global", global_address(s.target, s.begin), s.value, s.end);
      case StmtKind::kPrefetch: return;
      case StmtKind::kLocalStore:
        return store("shared", local_address(s.target, s.begin), s.value, kNone);
      case StmtKind::kMatrix: return matrix(s);
      case StmtKind::kBarrier: return out_.line("bar.sync 0;");
      case StmtKind::kFault: check_failed("checks are for CPUs", __FILE__, __LINE__);
    }
  }

  // Loops. An index is a register that changes after the body.

  std::string sized(ValueId v, bool is_narrow) { return is_narrow ? v_.low(v) : v_.wide(v); }

  void loop(const Stmt& s) {
    switch (s.loop) {
      case LoopKind::kGrid: break;
      case LoopKind::kSerial: return serial(s);
      case LoopKind::kGroup: {
        static constexpr std::array kAxes = {"%ctaid.x", "%ctaid.y", "%ctaid.z"};
        const std::string number = out_.fresh(File::kB32);
        out_.line("mov.u32 {}, {};", number, kAxes[s.axis]);
        if (v_.is_narrow(s.value))
          v_.alias(s.value, number);
        else
          out_.line("cvt.u64.u32 {}, {};", v_.define(s.value), number);
        return guarded(s);
      }
      case LoopKind::kItem: return items(s);
    }
  }

  /// The body, if the index is below the end.
  void guarded(const Stmt& s) {
    if (s.end == kNone) return block(s.body);
    const std::string end = out_.fresh_label();
    leave_at_end(s, end);
    block(s.body);
    out_.label(end);
  }

  std::string_view index_type(const Stmt& s) const { return v_.is_narrow(s.value) ? "s32" : "s64"; }

  void leave_at_end(const Stmt& s, const std::string& label) {
    const std::string limit = sized(s.end, v_.is_narrow(s.value)), p = out_.fresh(File::kPred);
    out_.line("setp.ge.{} {}, {}, {};", index_type(s), p, v_.operand(s.value), limit);
    out_.line("@{} bra {};", p, label);
  }

  void repeat(const Stmt& s, const std::string& limit, const std::string& again) {
    const std::string p = out_.fresh(File::kPred);
    out_.line("setp.lt.{} {}, {}, {};", index_type(s), p, v_.operand(s.value), limit);
    out_.line("@{} bra {};", p, again);
  }

  void advance(const Stmt& s, int64_t step) {
    const std::string index = v_.operand(s.value);
    out_.line("add.{} {}, {}, {};", index_type(s), index, index, step);
  }

  bool runs_at_all(const Stmt& s) const {
    const Value &begin = p_.at(s.begin), &end = p_.at(s.end);
    return begin.op == ValueOp::kConst && end.op == ValueOp::kConst && begin.imm < end.imm;
  }

  void serial(const Stmt& s) {
    const bool is_narrow = v_.is_narrow(s.value);
    const std::string limit = sized(s.end, is_narrow), first = sized(s.begin, is_narrow);
    const std::string index = v_.define(s.value), again = out_.fresh_label(),
                      end = out_.fresh_label();
    v_.move(v_.file(s.value), index, first);
    const bool is_certain = runs_at_all(s);
    if (!is_certain) leave_at_end(s, end);
    out_.label(again);
    block(s.body);
    advance(s, s.step);
    repeat(s, limit, again);
    if (!is_certain) out_.label(end);
  }

  /// First index of this thread.
  void start_items(const Stmt& s) {
    const bool is_narrow = v_.is_narrow(s.value);
    const Value& begin = p_.at(s.begin);
    const bool is_zero = begin.op == ValueOp::kConst && begin.imm == 0;
    const std::string first = is_zero ? "" : sized(s.begin, is_narrow);
    if (is_narrow && is_zero) {
      v_.move(File::kB32, v_.define(s.value), item_);
    } else if (is_narrow) {
      out_.line("add.s32 {}, {}, {};", v_.define(s.value), first, item_);
    } else {
      const std::string own = out_.fresh(File::kB64);
      out_.line("cvt.u64.u32 {}, {};", own, item_);
      out_.line("add.s64 {}, {}, {};", v_.define(s.value), own, is_zero ? "0" : first);
    }
  }

  void items(const Stmt& s) {
    start_items(s);
    if (s.trips == 1) return guarded(s);
    const std::string again = out_.fresh_label(), end = out_.fresh_label();
    if (s.trips == 0) {
      const std::string limit = sized(s.end, v_.is_narrow(s.value));
      leave_at_end(s, end);
      out_.label(again);
      block(s.body);
      advance(s, p_.block);
      repeat(s, limit, again);
      return out_.label(end);
    }
    const std::string trip = out_.fresh(File::kB32), p = out_.fresh(File::kPred);
    out_.line("mov.u32 {}, 0;", trip);
    out_.label(again);
    if (s.end != kNone) leave_at_end(s, end);
    block(s.body);
    advance(s, p_.block);
    out_.line("add.s32 {}, {}, 1;", trip, trip);
    out_.line("setp.lt.s32 {}, {}, {};", p, trip, s.trips);
    out_.line("@{} bra {};", p, again);
    if (s.end != kNone) out_.label(end);
  }

  // Memory.

  struct Place {
    ValueId base = kNone;  ///< kNone: none but the offset
    int64_t offset = 0;    ///< elements
  };

  /// Index as something that several accesses share, and a constant.
  Place place(ValueId index) const {
    Place at{.base = index, .offset = 0};
    for (;;) {
      const Value& v = p_.at(at.base);
      if (v.op == ValueOp::kConst) return {kNone, at.offset + v.imm};
      if (v.op != ValueOp::kAlu || v.alu != Op::kAdd) return at;
      const bool is_second = p_.at(v.args[1]).op == ValueOp::kConst;
      if (!is_second && p_.at(v.args[0]).op != ValueOp::kConst) return at;
      // Sums in 64 bits may wrap, addresses then too.
      at.offset += p_.at(v.args[is_second ? 1 : 0]).imm;
      at.base = v.args[is_second ? 0 : 1];
    }
  }

  static bool fits(int64_t bytes) { return bytes >= INT32_MIN && bytes <= INT32_MAX; }

  /// What an address computed in this block or one around it was computed from.
  struct AddressKey {
    bool is_local = false;
    uint32_t memory = 0;
    ValueId base = kNone;
    auto operator<=>(const AddressKey&) const = default;
  };

  std::string known_address(const AddressKey& key) const {
    for (const auto& scope : addresses_)
      if (const auto it = scope.find(key); it != scope.end()) return it->second;
    return {};
  }

  static std::string bracket(const std::string& reg, int64_t bytes) {
    return bytes == 0 ? fmt::format("[{}]", reg) : fmt::format("[{}+{}]", reg, bytes);
  }

  std::string global_address(uint32_t param, ValueId index) {
    const int64_t size = item_size(p_.params[param].dtype);
    Place at = place(index);
    if (!fits(at.offset * size)) at = {index, 0};
    if (at.base == kNone) return bracket(params_[param], at.offset * size);
    const AddressKey key{false, param, at.base};
    std::string reg = known_address(key);
    if (reg.empty()) {
      const std::string bytes = out_.fresh(File::kB64);
      if (v_.is_narrow(at.base))
        out_.line("mul.wide.s32 {}, {}, {};", bytes, v_.in_register(at.base), size);
      else
        out_.line("mul.lo.s64 {}, {}, {};", bytes, v_.wide(at.base), size);
      reg = out_.fresh(File::kB64);
      out_.line("add.s64 {}, {}, {};", reg, params_[param], bytes);
      addresses_.back()[key] = reg;
    }
    return bracket(reg, at.offset * size);
  }

  std::string local_address(uint32_t array, ValueId index) {
    const int64_t size = item_size(p_.locals[array].dtype);
    const Place at = place(index);
    const std::string& start = local_addresses_[array];
    if (at.base == kNone) return bracket(start, at.offset * size);
    const AddressKey key{true, array, at.base};
    std::string reg = known_address(key);
    if (reg.empty()) {
      const std::string bytes = out_.fresh(File::kB32);
      out_.line("mul.lo.s32 {}, {}, {};", bytes, v_.low(at.base), size);
      reg = out_.fresh(File::kB32);
      out_.line("add.s32 {}, {}, {};", reg, start, bytes);
      addresses_.back()[key] = reg;
    }
    return bracket(reg, at.offset * size);
  }

  void store(std::string_view space, const std::string& address, ValueId value, ValueId gate) {
    const DType t = p_.type(value).dtype;
    std::string from = item_size(t) == 8 && is_int(t) ? v_.wide(value) : v_.operand(value);
    if (is_bool(t)) {
      const std::string byte = out_.fresh(File::kB32);
      out_.line("selp.u32 {}, 1, 0, {};", byte, from);
      from = byte;
    } else if (from[0] != '%') {
      const std::string reg = out_.fresh(ptx::file_of(t));
      v_.move(ptx::file_of(t), reg, from);
      from = reg;
    }
    const std::string when = gate == kNone ? "" : fmt::format("@{} ", v_.operand(gate));
    out_.line("{}st.{}.{} {}, {};", when, space, ptx::memory_type(t), address, from);
  }

  void load(ValueId id, std::string_view space, const std::string& address, ValueId gate) {
    const DType t = p_.type(id).dtype;
    const std::string when = gate == kNone ? "" : fmt::format("@{} ", v_.operand(gate));
    const std::string to = is_bool(t) ? out_.fresh(File::kB32) : v_.define(id);
    if (gate != kNone)
      v_.move(is_bool(t) ? File::kB32 : ptx::file_of(t), to,
              ptx::literal(is_bool(t) ? DType::kU32 : t, 0));
    out_.line("{}ld.{}.{} {}, {};", when, space, ptx::memory_type(t), to, address);
    if (is_bool(t)) out_.line("setp.ne.s32 {}, {}, 0;", v_.define(id), to);
  }

  // Matrix products.

  static std::string braced(const std::vector<std::string>& registers) {
    return fmt::format("{{{}}}", fmt::join(registers, ", "));
  }

  std::vector<std::string>& fresh_words(ValueId id) {
    std::vector<std::string>& words = words_[id];
    words.clear();
    for (uint32_t i = 0; i < p_.type(id).lanes; ++i) words.push_back(out_.fresh(File::kB32));
    if (words.size() == 1) v_.alias(id, words[0]);
    return words;
  }

  void words(ValueId id) {
    const Value& v = p_.at(id);
    const std::string address = global_address(static_cast<uint32_t>(v.imm), v.args[0]);
    const std::vector<std::string>& to = fresh_words(id);
    if (to.size() == 1) return out_.line("ld.global.u32 {}, {};", to[0], address);
    out_.line("ld.global.v{}.u32 {}, {};", to.size(), braced(to), address);
  }

  void local_lanes(ValueId id) {
    const Value& v = p_.at(id);
    std::vector<std::string>& to = words_[id];
    to.clear();
    for (uint32_t i = 0; i < v.type.lanes; ++i)
      to.push_back(out_.fresh(ptx::file_of(v.type.dtype)));
    out_.line("ld.shared.v{}.{} {}, {};", to.size(), ptx::memory_type(v.type.dtype), braced(to),
              local_address(static_cast<uint32_t>(v.imm), v.args[0]));
  }

  /// Words at any address are put together from elements.
  void any_words(ValueId id) {
    const Value& v = p_.at(id);
    const auto param = static_cast<uint32_t>(v.imm);
    const int64_t size = item_size(p_.params[param].dtype);
    const std::string_view type = size == 1 ? "u8" : size == 2 ? "u16" : "u32";
    const std::string address = global_address(param, v.args[0]);
    const std::string start = out_.fresh(File::kB64);
    const size_t plus = address.find('+');
    const std::string reg = address.substr(1, std::min(plus, address.size() - 1) - 1);
    const std::string offset =
        plus == std::string::npos ? "0" : address.substr(plus + 1, address.size() - plus - 2);
    out_.line("add.s64 {}, {}, {};", start, reg, offset);
    int64_t at = 0;
    for (const std::string& word : fresh_words(id)) {
      out_.line("ld.global.{} {}, {};", type, word, bracket(start, at));
      for (int64_t i = size; i < 4; i += size) {
        const std::string part = out_.fresh(File::kB32), moved = out_.fresh(File::kB32);
        out_.line("ld.global.{} {}, {};", type, part, bracket(start, at + i));
        out_.line("shl.b32 {}, {}, {};", moved, part, 8 * i);
        out_.line("or.b32 {}, {}, {};", word, word, moved);
      }
      at += 4;
    }
  }

  void is_aligned(ValueId id) {
    const std::string& address = params_[static_cast<size_t>(p_.at(id).imm)];
    const std::string rest = out_.fresh(File::kB64);
    out_.line("and.b64 {}, {}, 15;", rest, address);
    out_.line("setp.eq.s64 {}, {}, 0;", v_.define(id), rest);
  }

  void matrix(const Stmt& s) {
    std::vector<std::string> a, b,
        sums(registers_.begin() + s.target, registers_.begin() + s.target + 4);
    const size_t left = s.operands.size() * 2 / 3;
    for (size_t i = 0; i < s.operands.size(); ++i)
      (i < left ? a : b).push_back(v_.in_register(s.operands[i]));
    out_.line("{} {}, {}, {}, {};", mma_name(s), braced(sums), braced(a), braced(b), braced(sums));
  }

  void dot(ValueId id) {
    const Value& v = p_.at(id);
    std::string sources;
    for (const size_t i : {1U, 2U, 0U}) sources += ", " + v_.in_register(v.args[i]);
    out_.line("{} {}{};", dp4a_name(v), v_.define(id), sources);
  }

  /// A table is short: its entries are chosen among, so that the kernel needs no data of its own.
  void table(ValueId id) {
    const Value& v = p_.at(id);
    const std::vector<uint64_t>& words = p_.tables[static_cast<size_t>(v.imm)];
    const std::string at = v_.low(v.args[0]);
    std::string chosen = out_.fresh(File::kB64);
    out_.line("mov.u64 {}, {};", chosen, words[0]);
    for (size_t i = 1; i < words.size(); ++i) {
      const std::string p = out_.fresh(File::kPred);
      const std::string next = out_.fresh(File::kB64);
      out_.line("setp.eq.s32 {}, {}, {};", p, at, i);
      out_.line("selp.b64 {}, {}, {}, {};", next, words[i], chosen, p);
      chosen = next;
    }
    v_.alias(id, chosen);
  }

  void let(ValueId id) {
    const Value& v = p_.at(id);
    switch (v.op) {
      case ValueOp::kConst:
      case ValueOp::kArgument:
      case ValueOp::kIndex: return;
      case ValueOp::kItem: return v_.alias(id, item_);
      case ValueOp::kVar: {
        const std::string& reg = vars_[static_cast<size_t>(v.imm)];
        if (!v_.is_narrow(id)) return v_.alias(id, reg);
        return out_.line("cvt.u32.u64 {}, {};", v_.define(id), reg);
      }
      case ValueOp::kLoad:
        return load(id, "global", global_address(static_cast<uint32_t>(v.imm), v.args[0]),
                    v.args.size() > 1 ? v.args[1] : kNone);
      case ValueOp::kLocalLoad:
        if (v.type.lanes > 1) return local_lanes(id);
        return load(id, "shared", local_address(static_cast<uint32_t>(v.imm), v.args[0]), kNone);
      case ValueOp::kWords: return words(id);
      case ValueOp::kAnyWords: return any_words(id);
      case ValueOp::kIsAligned: return is_aligned(id);
      case ValueOp::kExtract: return v_.alias(id, words_.at(v.args[0])[static_cast<size_t>(v.imm)]);
      case ValueOp::kTable: return table(id);
      case ValueOp::kRead: {
        const std::string to = v_.define(id);
        return v_.move(v_.file(id), to, registers_[static_cast<size_t>(v.imm)]);
      }
      case ValueOp::kCall: return call(id);
      case ValueOp::kDot: return dot(id);
      case ValueOp::kConvert:
      case ValueOp::kAlu: return v_.emit(id);
      case ValueOp::kIota:
      case ValueOp::kSplat:
      case ValueOp::kBuild:
      case ValueOp::kInsert:
      case ValueOp::kHalf:
      case ValueOp::kReverse:
      case ValueOp::kSlide:
      case ValueOp::kInterleave:
      case ValueOp::kEven:
      case ValueOp::kScale:
      case ValueOp::kAny: break;
    }
    check_failed("vectors are not for work-items", __FILE__, __LINE__);
  }

  void call(ValueId id) {
    const Value& v = p_.at(id);
    const Function& f = p_.functions[static_cast<size_t>(v.imm)];
    for (ValueId a = 0; a < p_.values.size(); ++a) {
      const Value& argument = p_.at(a);
      if (argument.op != ValueOp::kArgument || root_of(p_.block_of[a]) != f.body) continue;
      v_.alias(a, v_.in_register(v.args[static_cast<size_t>(argument.imm)]));
    }
    registers(f.body);
    block(f.body);
    const std::string to = v_.define(id);
    v_.move(v_.file(id), to, v_.in_register(f.result));
  }

  BlockId root_of(BlockId block) const {
    while (p_.blocks[block].parent != kNone) block = p_.blocks[block].parent;
    return block;
  }

  const Program& p_;
  const TargetInfo& target_;
  ptx::Writer out_;
  ptx::Values v_;
  std::vector<std::string> params_, vars_, local_addresses_;
  std::vector<std::string> registers_;  // by Program::registers
  std::string item_;
  std::vector<std::map<AddressKey, std::string>> addresses_;  // by open block
  std::unordered_map<ValueId, std::vector<std::string>> words_;
};

}  // namespace

std::string_view dp4a_name(const Value& v) {
  return static_cast<DotKind>(v.imm) == DotKind::kS8S8 ? "dp4a.s32.s32" : "dp4a.u32.s32";
}

std::string mma_name(const Stmt& s) {
  std::string_view type = "f16";
  if (s.matrix == DType::kBF16) type = "bf16";
  if (s.matrix == DType::kF32) type = "tf32";
  if (s.matrix == DType::kI8) type = "s8";
  if (s.matrix == DType::kU8) type = "u8";
  const std::string_view sum = is_float(s.matrix) ? "f32" : "s32";
  const auto depth = static_cast<int64_t>(s.operands.size() / 3 * 16) / item_size(s.matrix);
  return fmt::format("mma.sync.aligned.m16n8k{}.row.col.{}.{}.{}.{}", depth, sum, type, type, sum);
}

std::string render_ptx(const Program& program, const TargetInfo& target) {
  return PtxRenderer(program, target).run();
}

}  // namespace bm::compiler
