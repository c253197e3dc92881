// Builder: functions, calls, labels, special registers.
#include <algorithm>
#include <array>

#include "tests/sim/ptx/builder.h"
#include "tests/sim/ptx/lanes.h"

namespace bm::sim::ptx {
namespace {

constexpr uint32_t kMaxParamBytes = 32764;  // PTX ISA, .param of kernels, sm_70 and later

struct SpecialRow {
  std::string_view name;
  Special which;
};
constexpr std::array kSpecials{
    SpecialRow{"%tid.x", Special::kTidX},
    SpecialRow{"%tid.y", Special::kTidY},
    SpecialRow{"%tid.z", Special::kTidZ},
    SpecialRow{"%ntid.x", Special::kNtidX},
    SpecialRow{"%ntid.y", Special::kNtidY},
    SpecialRow{"%ntid.z", Special::kNtidZ},
    SpecialRow{"%ctaid.x", Special::kCtaidX},
    SpecialRow{"%ctaid.y", Special::kCtaidY},
    SpecialRow{"%ctaid.z", Special::kCtaidZ},
    SpecialRow{"%nctaid.x", Special::kNctaidX},
    SpecialRow{"%nctaid.y", Special::kNctaidY},
    SpecialRow{"%nctaid.z", Special::kNctaidZ},
    SpecialRow{"%laneid", Special::kLane},
    SpecialRow{"%warpid", Special::kWarpId},
    SpecialRow{"%nwarpid", Special::kWarpCount},
    SpecialRow{"%smid", Special::kSm},
    SpecialRow{"%nsmid", Special::kSmCount},
    SpecialRow{"%gridid", Special::kGridId},
    SpecialRow{"%lanemask_eq", Special::kMaskEq},
    SpecialRow{"%lanemask_le", Special::kMaskLe},
    SpecialRow{"%lanemask_lt", Special::kMaskLt},
    SpecialRow{"%lanemask_ge", Special::kMaskGe},
    SpecialRow{"%lanemask_gt", Special::kMaskGt},
    SpecialRow{"%dynamic_smem_size", Special::kDynamicShared},
    SpecialRow{"%total_smem_size", Special::kTotalShared},
    // A block is a cluster of its own.
    SpecialRow{"%clusterid.x", Special::kCtaidX},
    SpecialRow{"%clusterid.y", Special::kCtaidY},
    SpecialRow{"%clusterid.z", Special::kCtaidZ},
    SpecialRow{"%nclusterid.x", Special::kNctaidX},
    SpecialRow{"%nclusterid.y", Special::kNctaidY},
    SpecialRow{"%nclusterid.z", Special::kNctaidZ},
    SpecialRow{"%cluster_ctaid.x", Special::kZero},
    SpecialRow{"%cluster_ctaid.y", Special::kZero},
    SpecialRow{"%cluster_ctaid.z", Special::kZero},
    SpecialRow{"%cluster_ctarank", Special::kZero},
    SpecialRow{"%cluster_nctaid.x", Special::kOne},
    SpecialRow{"%cluster_nctaid.y", Special::kOne},
    SpecialRow{"%cluster_nctaid.z", Special::kOne},
    SpecialRow{"%cluster_nctarank", Special::kOne},
};

/// Time in steps: the same in every run.
template <class T>
void read_clock(Exec& x, const Inst& in) {
  T* d = x.reg<T>(in.op[0]);
  const auto now = static_cast<T>(x.clock);
  each(x, [=](uint32_t i) { d[i] = now; });
}

void copy_local(Exec& x, const Inst& in) {
  const uint32_t bytes = x.kernel->info.local_bytes;
  each_thread(x, [&](uint32_t i) {
    std::byte* base = x.local + size_t{i} * bytes;
    std::copy_n(base + in.op[1], in.imm, base + in.op[0]);
  });
}

template <class T>
void copy_register(Exec& x, const Inst& in) {
  T* d = x.reg<T>(in.op[0]);
  const T* a = x.reg<T>(in.op[1]);
  each(x, [=](uint32_t i) { d[i] = a[i]; });
}

Handler copier(uint32_t width) {
  if (width == 1) return &copy_register<uint8_t>;
  if (width == 2) return &copy_register<uint16_t>;
  if (width == 4) return &copy_register<uint32_t>;
  return &copy_register<uint64_t>;
}

/// The runtime's functions that device code may call: printing does nothing, a failed assertion
/// traps.
bool is_runtime_function(std::string_view name) {
  return name == "vprintf" || name == "__assertfail";
}

}  // namespace

Result<uint32_t> Builder::special(std::string_view name, Type type) {
  const uint32_t width = type_bytes(type) == 8 ? 8 : 4;
  if (name == "%clock" || name == "%clock_hi" || name == "%clock64" || name == "%globaltimer" ||
      name == "%globaltimer_lo" || name == "%globaltimer_hi") {
    const uint32_t place = temporary(width);
    emit(width == 8 ? &read_clock<uint64_t> : &read_clock<uint32_t>, {place});
    return place;
  }
  for (const SpecialRow& row : kSpecials)
    if (row.name == name)
      return pooled({.kind = Constant::Kind::kSpecial,
                     .width = static_cast<uint8_t>(width),
                     .value = static_cast<uint64_t>(row.which)});
  return error(fmt::format("'{}' is not declared", name));
}

Status Builder::collect(const Function& f, std::vector<const Function*>& order, int depth) {
  if (std::find(order.begin(), order.end(), &f) != order.end()) return {};
  if (depth > 64)
    return fail(Code::kCompile, "line {}: function '{}' calls itself or nests too deeply", f.line,
                f.name);
  for (const Statement& s : f.body) {
    if (s.kind != Statement::Kind::kInstruction || !s.name.starts_with("call")) continue;
    for (const Operand& o : s.operands) {
      if (o.kind != Operand::Kind::kName) continue;
      const auto at = module_.functions.find(o.name);
      if (at == module_.functions.end() || !at->second->has_body) continue;
      BM_TRY(collect(*at->second, order, depth + 1));
    }
  }
  order.push_back(&f);
  return {};
}

Status Builder::build(const Function& entry) {
  kernel_.info.name = entry.name;
  std::vector<const Function*> order;
  BM_TRY(collect(entry, order, 0));
  scopes_.emplace_back();
  for (const Function* f : order) BM_TRY(lower_function(*f));
  kernel_.info.instructions = static_cast<uint32_t>(kernel_.code.size());
  kernel_.info.registers = kernel_.file_bytes / 4;
  if (kernel_.info.local_bytes > 512 * 1024)
    return fail(Code::kCompile, "kernel '{}' uses more than 512 KiB of local memory", entry.name);
  return {};
}

Status Builder::formals(const std::vector<Variables>& all, std::vector<Symbol>& out) {
  for (const Variables& v : all) {
    const Variables::One& one = v.names.front();
    Symbol s;
    s.type = v.type;
    s.bytes = static_cast<uint32_t>(one.bytes);
    if (v.space == Variables::Space::kReg) {
      s.kind = Symbol::Kind::kRegister;
      s.place = new_place(type_bytes(v.type));
    } else {
      s.kind = Symbol::Kind::kLocal;
      s.place = take_local(one.bytes, std::max(v.alignment, type_bytes(v.type)));
    }
    scopes_[scope_].symbols[one.name] = s;
    out.push_back(s);
  }
  return {};
}

Status Builder::entry_params(const Function& f) {
  uint32_t at = 0;
  for (const Variables& v : f.params) {
    const Variables::One& one = v.names.front();
    const uint32_t alignment = std::max(v.alignment, type_bytes(v.type) * v.vector);
    at = (at + alignment - 1) / alignment * alignment;
    if (v.space != Variables::Space::kParam || at + one.bytes > kMaxParamBytes)
      return fail(Code::kCompile, "line {}: parameter '{}' of kernel '{}' has no place", one.line,
                  one.name, f.name);
    const auto bytes = static_cast<uint32_t>(one.bytes);
    kernel_.info.params.push_back({std::string(one.name), at, bytes, alignment});
    scopes_[scope_].symbols[one.name] = {
        .kind = Symbol::Kind::kParam, .type = v.type, .place = at, .range = 0, .bytes = bytes};
    at += bytes;
  }
  kernel_.info.param_bytes = at;
  return {};
}

Status Builder::lower_function(const Function& f) {
  function_ = &f;
  statement_ = nullptr;
  fixups_.clear();
  scopes_.clear();
  scopes_.emplace_back();
  scope_ = 0;
  Activation& self = activations_[&f];
  self.entry = static_cast<uint32_t>(kernel_.code.size());
  if (f.is_entry) {
    kernel_.entry = self.entry;
    BM_TRY(entry_params(f));
  } else {
    self.return_place = new_place(4);
    BM_TRY(formals(f.results, self.results));
    BM_TRY(formals(f.params, self.params));
  }
  for (const Statement& s : f.body) {
    if (s.kind == Statement::Kind::kOpen) {
      scopes_.emplace_back().parent = scope_;
      scope_ = static_cast<uint32_t>(scopes_.size() - 1);
    } else if (s.kind == Statement::Kind::kClose) {
      scope_ = scopes_[scope_].parent;
    } else if (s.kind == Statement::Kind::kLabel) {
      const auto here = static_cast<uint32_t>(kernel_.code.size());
      statement_ = &s;
      if (!scopes_[scope_].labels.try_emplace(s.name, here).second)
        return error("label is declared twice");
    } else if (s.kind == Statement::Kind::kTargets) {
      scopes_[scope_].targets[s.name] = &s;
    }
    BM_TRY(lower_statement(s));
  }
  statement_ = nullptr;
  guard_ = kNone;
  return_from_function();
  return resolve_fixups();
}

void Builder::return_from_function() {
  if (function_->is_entry)
    emit(nullptr, {}, Flow::kExit);
  else
    emit(nullptr, {activations_[function_].return_place}, Flow::kReturn);
}

Status Builder::branch_to(std::string_view label) {
  emit(nullptr, {}, Flow::kBranch);
  Fixup f;
  f.inst = static_cast<uint32_t>(kernel_.code.size() - 1);
  f.scope = scope_;
  f.label = label;
  f.statement = statement_;
  fixups_.push_back(f);
  return {};
}

Status Builder::branch_table(std::string_view label, uint32_t index) {
  const Statement* list = nullptr;
  for (uint32_t s = scope_; s != kNone && !list; s = scopes_[s].parent)
    if (const auto at = scopes_[s].targets.find(label); at != scopes_[s].targets.end())
      list = at->second;
  if (!list) return error(fmt::format("no .branchtargets '{}' before this", label));
  const auto table = static_cast<uint32_t>(kernel_.tables.size());
  kernel_.tables.emplace_back(list->operands.size());
  emit(nullptr, {index}, Flow::kTable).target = table;
  for (uint32_t i = 0; i < list->operands.size(); ++i) {
    Fixup f;
    f.scope = scope_;
    f.label = list->operands[i].name;
    f.table = table;
    f.entry = i;
    f.statement = statement_;
    fixups_.push_back(f);
  }
  return {};
}

Status Builder::resolve_fixups() {
  for (const Fixup& f : fixups_) {
    const uint32_t* found = nullptr;
    for (uint32_t s = f.scope; s != kNone && !found; s = scopes_[s].parent)
      if (const auto at = scopes_[s].labels.find(f.label); at != scopes_[s].labels.end())
        found = &at->second;
    statement_ = f.statement;
    if (!found) return error(fmt::format("label '{}' is not declared", f.label));
    if (f.table == kNone)
      kernel_.code[f.inst].target = *found;
    else
      kernel_.tables[f.table][f.entry] = *found;
  }
  statement_ = nullptr;
  return {};
}

Result<uint32_t> Builder::copy_argument(const Symbol& formal, const Operand& o, bool is_result) {
  if (formal.kind == Symbol::Kind::kRegister) {
    const uint32_t place = is_result ? BM_TRY(out(o, formal.type)) : BM_TRY(in(o, formal.type));
    const uint32_t d = is_result ? place : formal.place, a = is_result ? formal.place : place;
    emit(copier(type_bytes(formal.type)), {d, a});
    return 0u;
  }
  const Symbol* actual = o.kind == Operand::Kind::kName ? find(o.name) : nullptr;
  if (!actual || actual->kind != Symbol::Kind::kLocal)
    return error(fmt::format("'{}' is no .param variable of this function", o.name));
  if (actual->bytes != formal.bytes)
    return error(
        fmt::format("'{}' has {} bytes where {} belong", o.name, actual->bytes, formal.bytes));
  const uint32_t d = is_result ? actual->place : formal.place;
  const uint32_t a = is_result ? formal.place : actual->place;
  emit(&copy_local, {d, a}).imm = formal.bytes;
  return 0u;
}

Status Builder::call(const Operand* results, std::string_view callee, const Operand* arguments) {
  if (is_runtime_function(callee)) {
    if (callee == "__assertfail") emit(nullptr, {}, Flow::kTrap);
    return {};
  }
  const auto at = module_.functions.find(callee);
  if (at == module_.functions.end() || !at->second->has_body)
    return error(fmt::format("function '{}' is not defined in this module", callee));
  const auto found = activations_.find(at->second);
  if (at->second->is_entry || found == activations_.end() || at->second == function_)
    return error(fmt::format("function '{}' cannot be called from here", callee));
  const Activation activation = found->second;
  const size_t given = arguments ? arguments->elements.size() : 0;
  const size_t wanted = results ? results->elements.size() : 0;
  if (given != activation.params.size() || wanted != activation.results.size())
    return error(fmt::format("function '{}' takes {} arguments and returns {}", callee,
                             activation.params.size(), activation.results.size()));
  for (size_t i = 0; i < given; ++i)
    BM_TRY(copy_argument(activation.params[i], arguments->elements[i], false));
  emit(nullptr, {activation.return_place}, Flow::kCall).target = activation.entry;
  for (size_t i = 0; i < wanted; ++i)
    BM_TRY(copy_argument(activation.results[i], results->elements[i], true));
  return {};
}

Lowering find_operation(std::string_view name) {
  static const auto kTable = [] {
    std::unordered_map<std::string_view, Lowering> table;
    for (const auto rows :
         {arithmetic_operations(), rounding_operations(), bit_operations(), carry_operations(),
          compare_operations(), convert_operations(), memory_operations(), atomic_operations(),
          control_operations(), warp_operations(), matrix_operations(), copy_operations(),
          group_matrix_operations(), tensor_memory_operations()})
      for (const Operation& row : rows) table.emplace(row.name, row.lower);
    return table;
  }();
  const auto at = kTable.find(name);
  return at == kTable.end() ? nullptr : at->second;
}

}  // namespace bm::sim::ptx
