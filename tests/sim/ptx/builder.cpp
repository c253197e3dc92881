#include "tests/sim/ptx/builder.h"

#include <algorithm>
#include <bit>

#include "tests/sim/ptx/lanes.h"

namespace bm::sim::ptx {
namespace {

constexpr uint32_t kMaxFileBytes = 1 << 18;  // registers per thread
constexpr uint64_t kMaxLocal = 512 * 1024;   // per thread; CUDA programming guide, table of limits
constexpr uint64_t kMaxStaticShared = 48 * 1024;  // ptxas refuses more for every target

uint64_t aligned(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

std::string one_line(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 160)) {
    const bool is_space = c == ' ' || c == '\t' || c == '\n' || c == '\r';
    if (is_space && (out.empty() || out.back() == ' ')) continue;
    out += is_space ? ' ' : c;
  }
  return out;
}

struct NotPred {
  bool operator()(bool a) const { return !a; }
};

}  // namespace

tl::unexpected<Error> Builder::error(std::string_view what) const {
  return fail(Code::kCompile, "line {}: {} in '{}'", statement_ ? statement_->line : 0, what,
              statement_ ? one_line(statement_->text) : "");
}

bool Builder::has(std::string_view name) {
  const auto at = std::find(suffixes_.begin(), suffixes_.end(), name);
  if (at == suffixes_.end()) return false;
  suffixes_.erase(at);
  return true;
}

Type Builder::next_type() {
  for (auto at = suffixes_.begin(); at != suffixes_.end(); ++at) {
    const Type type = type_named(at->substr(1));
    if (type == Type::kNone) continue;
    suffixes_.erase(at);
    return type;
  }
  return Type::kNone;
}

std::string_view Builder::next_suffix() {
  if (suffixes_.empty()) return {};
  const std::string_view out = suffixes_.front();
  suffixes_.erase(suffixes_.begin());
  return out;
}

std::string_view Builder::peek_suffix() const {
  return suffixes_.empty() ? std::string_view() : suffixes_.front();
}

Status Builder::expect_operands(size_t least, size_t most) {
  if (operand_count() >= least && operand_count() <= most) return {};
  return error(fmt::format("{} operands where {} to {} belong", operand_count(), least, most));
}

uint32_t Builder::new_place(uint32_t width) {
  const auto place = static_cast<uint32_t>(aligned(kernel_.file_bytes, width));
  kernel_.file_bytes = place + width;
  return place;
}

uint32_t Builder::pooled(const Constant& c) {
  const auto key = std::tuple(static_cast<uint8_t>(c.kind), c.width, c.value);
  const auto [at, is_new] = pool_.try_emplace(key, 0);
  if (is_new) {
    at->second = new_place(c.width);
    kernel_.constants.push_back(c);
    kernel_.constants.back().place = at->second;
  }
  return at->second;
}

uint32_t Builder::constant(uint64_t bits, uint32_t width) {
  if (width < 8) bits &= (uint64_t{1} << (8 * width)) - 1;
  return pooled({.width = static_cast<uint8_t>(width), .value = bits});
}

Inst& Builder::emit(Handler run, std::initializer_list<uint32_t> ops, Flow flow) {
  Inst in;
  in.run = run;
  in.flow = flow;
  in.guard = guard_;
  in.guard_negated = statement_ && statement_->guard_negated;
  in.line = statement_ ? statement_->line : function_->line;
  in.text = statement_ ? statement_->text : function_->name;
  std::copy(ops.begin(), ops.end(), in.op);
  kernel_.code.push_back(in);
  return kernel_.code.back();
}

const Builder::Symbol* Builder::find(std::string_view name) {
  for (uint32_t s = scope_; s != kNone; s = scopes_[s].parent) {
    const auto at = scopes_[s].symbols.find(name);
    if (at != scopes_[s].symbols.end() && at->second.kind != Symbol::Kind::kRange)
      return &at->second;
  }
  size_t digits = name.size();
  while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
  // %a10<4> names %a100 to %a103, so every split of the digits is possible.
  for (; digits < name.size() && name.size() - digits <= 8; ++digits) {
    if (name[digits] == '0' && digits + 1 < name.size()) continue;
    uint32_t number = 0;
    for (const char c : name.substr(digits)) number = number * 10 + static_cast<uint32_t>(c - '0');
    for (uint32_t s = scope_; s != kNone; s = scopes_[s].parent) {
      const auto at = scopes_[s].symbols.find(name.substr(0, digits));
      if (at == scopes_[s].symbols.end() || at->second.kind != Symbol::Kind::kRange) continue;
      if (number >= at->second.range) continue;
      Symbol one = at->second;
      one.kind = Symbol::Kind::kRegister;
      one.place = new_place(type_bytes(one.type));
      return &(scopes_[s].symbols[name] = one);
    }
  }
  return nullptr;
}

Result<uint64_t> Builder::literal(const Operand& o, Type type) const {
  const bool is_float = type_class(type) == TypeClass::kFloat;
  const uint32_t bytes = type_bytes(type);
  using Kind = Operand::Kind;
  if (o.kind == Kind::kInteger) {
    if (is_float) return error("integer literal for a floating-point operand");
    if (type == Type::kPred) return uint64_t{o.bits != 0};
    return o.bits;
  }
  if (bytes != 4 && bytes != 8) return error("floating-point literal for an operand of this type");
  if (o.kind == Kind::kFloat32) {
    if (bytes == 4) return o.bits;
    return std::bit_cast<uint64_t>(
        static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(o.bits))));
  }
  if (bytes == 8) return o.bits;
  return std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(o.bits)));
}

Result<uint32_t> Builder::in(const Operand& o, Type type) {
  using Kind = Operand::Kind;
  if (o.kind == Kind::kInteger || o.kind == Kind::kFloat32 || o.kind == Kind::kFloat64)
    return constant(BM_TRY(literal(o, type)), type_bytes(type));
  const Register r = BM_TRY(in_any(o, type));
  if (!types_agree(r.type, type))
    return error(
        fmt::format("'{}' is .{} where .{} belongs", o.name, type_name(r.type), type_name(type)));
  return r.place;
}

Result<Builder::Register> Builder::in_any(const Operand& o, Type at_least) {
  using Kind = Operand::Kind;
  if (o.kind == Kind::kInteger || o.kind == Kind::kFloat32 || o.kind == Kind::kFloat64)
    return Register{constant(BM_TRY(literal(o, at_least)), type_bytes(at_least)), at_least};
  if (o.kind != Kind::kName) return error("register or literal expected");
  if (!o.second.empty()) return error("one register expected");
  const Symbol* s = find(o.name);
  if (s && s->kind == Symbol::Kind::kRegister) {
    if (o.bits) return error("register with an offset outside an address");
    if (!o.is_negated) return Register{s->place, s->type};
    if (s->type != Type::kPred) return error("'!' before something that is no predicate");
    const uint32_t source = s->place, negated = temporary(1);
    emit(&map1<NotPred, Pred>, {negated, source});
    return Register{negated, Type::kPred};
  }
  if (o.is_negated) return error(fmt::format("'{}' is not declared", o.name));
  if (!s && o.name.starts_with('%')) {
    const uint32_t place = BM_TRY(special(o.name, at_least));
    return Register{place, type_bytes(at_least) == 8 ? Type::kU64 : Type::kU32};
  }
  const uint32_t width = type_bytes(at_least);
  if ((width != 4 && width != 8) || type_class(at_least) == TypeClass::kFloat)
    return error(fmt::format("'{}' is no register", o.name));
  Constant c = BM_TRY(address_of(o.name, width, nullptr));
  c.value += o.bits;
  return Register{pooled(c), at_least};
}

Result<uint32_t> Builder::out(const Operand& o, Type type) {
  const Register r = BM_TRY(out_any(o, type));
  if (!types_agree(r.type, type))
    return error(
        fmt::format("'{}' is .{} where .{} belongs", o.name, type_name(r.type), type_name(type)));
  return r.place;
}

Result<Builder::Register> Builder::out_any(const Operand& o, Type at_least) {
  if (o.kind == Operand::Kind::kSink && o.second.empty())
    return Register{temporary(type_bytes(at_least)), at_least};
  if (o.kind != Operand::Kind::kName || o.is_negated || !o.second.empty() || o.bits != 0)
    return error("register expected as destination");
  const Symbol* s = find(o.name);
  if (!s || s->kind != Symbol::Kind::kRegister)
    return error(fmt::format("'{}' is no register", o.name));
  return Register{s->place, s->type};
}

Result<std::pair<uint32_t, uint32_t>> Builder::out_pair(size_t i, Type type, Type second) {
  Operand first = operand(i);
  const std::string_view name = first.second;
  first.second = {};
  const uint32_t a = BM_TRY(out(first, type));
  if (name.empty()) return std::pair(a, kNone);
  Operand other;
  other.kind = name == "_" ? Operand::Kind::kSink : Operand::Kind::kName;
  other.name = name;
  return std::pair(a, BM_TRY(out(other, second)));
}

Result<Constant> Builder::address_of(std::string_view name, uint32_t width, Space* space) {
  Constant c;
  c.width = static_cast<uint8_t>(width);
  const auto in_space = [&](Space s) {
    if (space) *space = s;
    return c;
  };
  if (const Symbol* s = find(name)) {
    c.value = s->place;
    if (s->kind == Symbol::Kind::kShared) return in_space(Space::kShared);
    if (s->kind == Symbol::Kind::kLocal) return in_space(Space::kLocal);
    if (s->kind == Symbol::Kind::kParam) return in_space(Space::kParam);
    return error(fmt::format("'{}' has no address", name));
  }
  const auto at = module_.symbols.find(name);
  if (at == module_.symbols.end()) return error(fmt::format("'{}' is not declared", name));
  const ModuleSymbol& m = at->second;
  if (m.space != Variables::Space::kShared) {
    c.kind = Constant::Kind::kImage;
    c.value = m.offset;
    return in_space(Space::kGlobal);
  }
  if (m.is_dynamic) {
    kernel_.info.uses_dynamic_shared = true;
    c.kind = Constant::Kind::kDynamicShared;
    return in_space(Space::kShared);
  }
  const auto [place, is_new] = shared_places_.try_emplace(name, 0);
  if (is_new) place->second = BM_TRY(take_shared(m.bytes, m.alignment));
  c.value = place->second;
  return in_space(Space::kShared);
}

Result<Builder::Address> Builder::address(const Operand& o, Space space) {
  if (o.kind != Operand::Kind::kAddress) return error("address expected");
  Address out;
  out.space = space;
  out.offset = o.bits;
  if (o.name.empty()) {
    out.base = constant(0, 8);
    return out;
  }
  const Symbol* s = find(o.name);
  if (s && s->kind == Symbol::Kind::kRegister) {
    const uint32_t bytes = type_bytes(s->type);
    if ((bytes != 4 && bytes != 8) || type_class(s->type) == TypeClass::kFloat)
      return error(fmt::format("'{}' cannot hold an address", o.name));
    out.base = s->place;
    out.is_wide = bytes == 8;
    return out;
  }
  Space found = space;
  out.base = pooled(BM_TRY(address_of(o.name, 8, &found)));
  const bool is_function_param = space == Space::kParam && found == Space::kLocal;
  if (space == Space::kGeneric || is_function_param)
    out.space = found;
  else if (found != space)
    return error(fmt::format("'{}' lies in another space", o.name));
  return out;
}

uint32_t Builder::take_local(uint64_t bytes, uint32_t alignment) {
  const uint64_t place = aligned(kernel_.info.local_bytes, std::max(alignment, 1u));
  kernel_.info.local_bytes = static_cast<uint32_t>(std::min(place + bytes, kMaxLocal * 2));
  return static_cast<uint32_t>(place);
}

Result<uint32_t> Builder::take_shared(uint64_t bytes, uint32_t alignment) {
  const uint64_t place = aligned(kernel_.info.shared_bytes, std::max(alignment, 1u));
  if (place + bytes > kMaxStaticShared)
    return error(fmt::format("kernel '{}' uses too much static shared memory: {} of {} bytes",
                             kernel_.info.name, place + bytes, kMaxStaticShared));
  kernel_.info.shared_bytes = static_cast<uint32_t>(place + bytes);
  return static_cast<uint32_t>(place);
}

Status Builder::declare(const Variables& v) {
  for (const Variables::One& one : v.names) {
    Symbol s;
    s.type = v.type;
    s.bytes = static_cast<uint32_t>(one.bytes);
    const uint32_t natural = type_bytes(v.type) * v.vector;
    const uint32_t alignment = std::max(v.alignment, natural);
    switch (v.space) {
      case Variables::Space::kReg:
        if (v.vector != 1 || one.is_array)
          return error("vector and array registers are not known here");
        s.kind = one.range ? Symbol::Kind::kRange : Symbol::Kind::kRegister;
        s.range = one.range;
        if (!one.range) s.place = new_place(type_bytes(v.type));
        break;
      case Variables::Space::kShared:
        s.kind = Symbol::Kind::kShared;
        s.place = BM_TRY(take_shared(one.bytes, alignment));
        break;
      case Variables::Space::kLocal:
      case Variables::Space::kParam:  // of a call made here
        s.kind = Symbol::Kind::kLocal;
        s.place = take_local(one.bytes, alignment);
        break;
      case Variables::Space::kGlobal:
      case Variables::Space::kConst: return error("variable inside a function");
    }
    const bool is_new = scopes_[scope_].symbols.try_emplace(one.name, s).second;
    if (!is_new) return error(fmt::format("'{}' is declared twice", one.name));
  }
  return {};
}

Status Builder::lower_statement(const Statement& s) {
  statement_ = &s;
  guard_ = kNone;
  switch (s.kind) {
    case Statement::Kind::kOpen:
    case Statement::Kind::kClose:
    case Statement::Kind::kTargets:
    case Statement::Kind::kLabel: return {};
    case Statement::Kind::kVariables: return declare(s.variables);
    case Statement::Kind::kInstruction: break;
  }
  if (!s.guard.empty()) {
    const Symbol* p = find(s.guard);
    if (!p || p->kind != Symbol::Kind::kRegister || p->type != Type::kPred)
      return error(fmt::format("'{}' is no predicate", s.guard));
    guard_ = p->place;
  }
  suffixes_.clear();
  size_t at = s.name.find('.');
  const Lowering lower = find_operation(s.name.substr(0, at));
  while (at != std::string_view::npos) {
    const size_t end = s.name.find('.', at + 1);
    suffixes_.push_back(s.name.substr(at, end == std::string_view::npos ? end : end - at));
    at = end;
  }
  if (!lower) return error("instruction not known here");
  BM_TRY(lower(*this));
  if (!suffixes_.empty()) return error(fmt::format("'{}' is not known here", suffixes_.front()));
  if (kernel_.file_bytes > kMaxFileBytes) return error("too many registers");
  return {};
}

}  // namespace bm::sim::ptx
