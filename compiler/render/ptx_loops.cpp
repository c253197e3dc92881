// Loops in PTX: an index is a register that changes after the body.
#include <algorithm>
#include <array>

#include "compiler/render/ptx_renderer.h"

namespace bm::compiler {

using ptx::File;

void PtxRenderer::loop(const Stmt& s) {
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
void PtxRenderer::guarded(const Stmt& s) {
  if (s.end == kNone) return block(s.body);
  const std::string end = out_.fresh_label();
  leave_at_end(s, end);
  block(s.body);
  out_.label(end);
}

void PtxRenderer::leave_at_end(const Stmt& s, const std::string& label) {
  const std::string limit = sized(s.end, v_.is_narrow(s.value)), p = out_.fresh(File::kPred);
  out_.line("setp.ge.{} {}, {}, {};", index_type(s), p, v_.operand(s.value), limit);
  out_.line("@{} bra {};", p, label);
}

void PtxRenderer::repeat(const Stmt& s, const std::string& limit, const std::string& again) {
  const std::string p = out_.fresh(File::kPred);
  out_.line("setp.lt.{} {}, {}, {};", index_type(s), p, v_.operand(s.value), limit);
  out_.line("@{} bra {};", p, again);
}

void PtxRenderer::advance(const Stmt& s, int64_t step) {
  const std::string index = v_.operand(s.value);
  out_.line("add.{} {}, {}, {};", index_type(s), index, index, step);
}

bool PtxRenderer::runs_at_all(const Stmt& s) const {
  const Value &begin = p_.at(s.begin), &end = p_.at(s.end);
  return begin.op == ValueOp::kConst && end.op == ValueOp::kConst && begin.imm < end.imm;
}

/// Whether a turn copies through registers: of several turns at once those would be too many.
bool PtxRenderer::stays_rolled(const Stmt& s) const {
  return std::ranges::any_of(p_.blocks[s.body].stmts, [](const Stmt& own) {
    return own.kind == StmtKind::kCopy && own.copy == CopyKind::kUnalignedWords;
  });
}

void PtxRenderer::serial(const Stmt& s) {
  const bool is_narrow = v_.is_narrow(s.value);
  const std::string limit = sized(s.end, is_narrow), first = sized(s.begin, is_narrow);
  const std::string index = v_.define(s.value), again = out_.fresh_label(),
                    end = out_.fresh_label();
  v_.move(v_.file(s.value), index, first);
  const bool is_certain = runs_at_all(s);
  if (!is_certain) leave_at_end(s, end);
  out_.label(again);
  if (stays_rolled(s)) out_.line(".pragma \"nounroll\";");
  block(s.body);
  advance(s, s.step);
  repeat(s, limit, again);
  if (!is_certain) out_.label(end);
}

/// First index of this thread.
void PtxRenderer::start_items(const Stmt& s) {
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

void PtxRenderer::items(const Stmt& s) {
  start_items(s);
  if (s.trip_count == 1) return guarded(s);
  const std::string again = out_.fresh_label(), end = out_.fresh_label();
  if (s.trip_count == 0) {
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
  out_.line("setp.lt.s32 {}, {}, {};", p, trip, s.trip_count);
  out_.line("@{} bra {};", p, again);
  if (s.end != kNone) out_.label(end);
}

}  // namespace bm::compiler
