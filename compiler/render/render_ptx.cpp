// PTX. One work-item is one thread; rounding is spelled out wherever an assembler could contract,
// and subnormal numbers are kept. Helper functions are written out where they are called.
#include <array>

#include "compiler/render/ptx_renderer.h"

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
    VersionRow{"sm_75", "6.5"},   VersionRow{"sm_80", "7.0"},   VersionRow{"sm_86", "7.1"},
    VersionRow{"sm_87", "7.4"},   VersionRow{"sm_88", "9.0"},   VersionRow{"sm_89", "7.8"},
    VersionRow{"sm_90", "7.8"},   VersionRow{"sm_90a", "8.0"},  VersionRow{"sm_100", "8.6"},
    VersionRow{"sm_100a", "8.6"}, VersionRow{"sm_103", "8.8"},  VersionRow{"sm_103a", "8.8"},
    VersionRow{"sm_110", "9.0"},  VersionRow{"sm_110a", "9.0"}, VersionRow{"sm_120", "8.7"},
    VersionRow{"sm_121", "8.8"}};
/// For targets not listed, which are newer.
constexpr std::string_view kNewest = "9.0";

std::string_view version_for(std::string_view target) {
  for (const VersionRow& row : kVersions)
    if (row.target == target) return row.version;
  return kNewest;
}

}  // namespace

std::string PtxRenderer::run() {
  arguments();
  for (size_t i = 0; i < p_.locals.size(); ++i) {
    local_addresses_.push_back(out_.fresh(File::kB32));
    out_.line("mov.u32 {}, bm_local{};", local_addresses_[i], i);
  }
  registers(p_.root);
  block(p_.root);
  out_.line("ret;");
  const std::string_view cpu = cuda_target(p_, target_);
  std::string text =
      fmt::format(".version {}\n.target {}\n.address_size 64\n\n", version_for(cpu), cpu);
  if (p_.has_dynamic_shared)
    text += fmt::format(".extern .shared .align {} .b8 bm_local0[];\n\n", p_.locals[0].alignment);
  text += fmt::format(".visible .entry {}({})\n.maxntid {}, 1, 1\n{{\n", p_.name, signature(),
                      p_.block);
  text += out_.declarations();
  for (size_t i = 0; i < p_.locals.size() && !p_.has_dynamic_shared; ++i)
    text += fmt::format("\t.shared .align {} .b8 bm_local{}[{}];\n", p_.locals[i].alignment, i,
                        p_.locals[i].count * static_cast<uint64_t>(item_size(p_.locals[i].dtype)));
  return text + "\n" + out_.text() + "}\n";
}

std::string PtxRenderer::signature() const {
  std::string s;
  for (size_t i = 0; i < num_arguments(); ++i)
    s += fmt::format("{}\n\t.param .u64 {}_param_{}", i ? "," : "", p_.name, i);
  return s + "\n";
}

void PtxRenderer::arguments() {
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

void PtxRenderer::registers(BlockId root) {
  registers_.resize(p_.registers.size());
  for (size_t i = 0; i < p_.registers.size(); ++i)
    if (p_.register_block[i] == root)
      registers_[i] = out_.fresh(ptx::file_of(p_.registers[i].dtype));
}

void PtxRenderer::block(BlockId id) {
  addresses_.emplace_back();
  for (const Stmt& s : p_.blocks[id].stmts) statement(s);
  addresses_.pop_back();
}

void PtxRenderer::statement(const Stmt& s) {
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
      if (!s.operands.empty()) return store_together(s);
      return store("global", global_address(s.target, s.begin), s.value, s.end);
    case StmtKind::kPrefetch: return;
    case StmtKind::kLocalStore:
      if (!s.operands.empty()) return store_together(s);
      return store("shared", local_address(s.target, s.begin), s.value, kNone);
    case StmtKind::kMma: return matrix(s);
    case StmtKind::kCopy: return copy(s);
    case StmtKind::kPipe: return out_.line("{}", pipe_text(s));
    case StmtKind::kWarpgroupMma: return warpgroup_mma(s);
    case StmtKind::kTensor: return tensor(s);
    case StmtKind::kBarrier: return out_.line("bar.sync 0;");
    case StmtKind::kFault: check_failed("checks are for CPUs", __FILE__, __LINE__);
  }
}

std::string PtxRenderer::bracket(const std::string& reg, int64_t bytes) {
  return bytes == 0 ? fmt::format("[{}]", reg) : fmt::format("[{}+{}]", reg, bytes);
}

std::string PtxRenderer::braced(const std::vector<std::string>& registers) {
  return fmt::format("{{{}}}", fmt::join(registers, ", "));
}

void PtxRenderer::matrix(const Stmt& s) {
  std::vector<std::string> a, b,
      accumulators(registers_.begin() + s.target, registers_.begin() + s.target + s.accumulators);
  const size_t left = mma_left_words(s);
  for (size_t i = 0; i < s.operands.size(); ++i)
    (i < left ? a : b).push_back(v_.in_register(s.operands[i]));
  out_.line("{} {}, {}, {}, {};", mma_name(s), braced(accumulators), braced(a), braced(b),
            braced(accumulators));
}

void PtxRenderer::dot(ValueId id) {
  const Value& v = p_.at(id);
  std::string sources;
  for (const size_t i : {1U, 2U, 0U}) sources += ", " + v_.in_register(v.args[i]);
  out_.line("{} {}{};", dp4a_name(v), v_.define(id), sources);
}

void PtxRenderer::let(ValueId id) {
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
    case ValueOp::kFragment: return fragment(id);
    case ValueOp::kShuffle:
    case ValueOp::kPackHalf2:
    case ValueOp::kDequantise2:
    case ValueOp::kExp2:
    case ValueOp::kRoundTf32: return sub_group(id);
    case ValueOp::kWords: return words(id);
    case ValueOp::kUnalignedWords: return any_words(id);
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
    default: break;
  }
  check_failed("vectors are not for work-items", __FILE__, __LINE__);
}

void PtxRenderer::call(ValueId id) {
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

BlockId PtxRenderer::root_of(BlockId block) const {
  while (p_.blocks[block].parent != kNone) block = p_.blocks[block].parent;
  return block;
}

std::string render_ptx(const Program& program, const TargetInfo& target) {
  return PtxRenderer(program, target).run();
}

}  // namespace bm::compiler
