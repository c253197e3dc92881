// Addresses, loads and stores in PTX.
#include "compiler/render/ptx_renderer.h"

namespace bm::compiler {

using ptx::File;

/// Index as something that several accesses share, and a constant.
PtxRenderer::Address PtxRenderer::address(ValueId index) const {
  Address at{.base = index, .offset = 0};
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

std::string PtxRenderer::known_address(const AddressKey& key) const {
  for (const auto& scope : addresses_)
    if (const auto it = scope.find(key); it != scope.end()) return it->second;
  return {};
}

std::string PtxRenderer::global_address(uint32_t param, ValueId index) {
  const int64_t size = item_size(p_.params[param].dtype);
  Address at = address(index);
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

std::string PtxRenderer::local_address(uint32_t array, ValueId index) {
  const int64_t size = item_size(p_.locals[array].dtype);
  const Address at = address(index);
  const std::string& start = local_addresses_[array];
  if (at.base == kNone) return bracket(start, at.offset * size);
  const AddressKey key{true, array, at.base};
  std::string reg = known_address(key);
  if (reg.empty()) {
    std::string bytes = v_.low(at.base);
    if (size > 1) {
      const std::string element = bytes;
      bytes = out_.fresh(File::kB32);
      out_.line("mul.lo.s32 {}, {}, {};", bytes, element, size);
    }
    reg = out_.fresh(File::kB32);
    out_.line("add.s32 {}, {}, {};", reg, start, bytes);
    addresses_.back()[key] = reg;
  }
  return bracket(reg, at.offset * size);
}

void PtxRenderer::store(std::string_view space, const std::string& address, ValueId value,
                        ValueId gate) {
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

void PtxRenderer::load(ValueId id, std::string_view space, const std::string& address,
                       ValueId gate) {
  const DType t = p_.type(id).dtype;
  const std::string when = gate == kNone ? "" : fmt::format("@{} ", v_.operand(gate));
  const std::string to = is_bool(t) ? out_.fresh(File::kB32) : v_.define(id);
  if (gate != kNone)
    v_.move(is_bool(t) ? File::kB32 : ptx::file_of(t), to,
            ptx::literal(is_bool(t) ? DType::kU32 : t, 0));
  out_.line("{}ld.{}.{} {}, {};", when, space, ptx::memory_type(t), to, address);
  if (is_bool(t)) out_.line("setp.ne.s32 {}, {}, 0;", v_.define(id), to);
}

std::vector<std::string>& PtxRenderer::fresh_words(ValueId id) {
  std::vector<std::string>& words = words_[id];
  words.clear();
  for (uint32_t i = 0; i < p_.type(id).lanes; ++i) words.push_back(out_.fresh(File::kB32));
  if (words.size() == 1) v_.alias(id, words[0]);
  return words;
}

void PtxRenderer::words(ValueId id) {
  const Value& v = p_.at(id);
  const std::string address = global_address(static_cast<uint32_t>(v.imm), v.args[0]);
  const std::vector<std::string>& to = fresh_words(id);
  if (to.size() == 1) return out_.line("ld.global.u32 {}, {};", to[0], address);
  out_.line("ld.global.v{}.u32 {}, {};", to.size(), braced(to), address);
}

void PtxRenderer::local_lanes(ValueId id) {
  const Value& v = p_.at(id);
  std::vector<std::string>& to = words_[id];
  to.clear();
  for (uint32_t i = 0; i < v.type.lanes; ++i) to.push_back(out_.fresh(ptx::file_of(v.type.dtype)));
  out_.line("ld.shared.v{}.{} {}, {};", to.size(), ptx::memory_type(v.type.dtype), braced(to),
            local_address(static_cast<uint32_t>(v.imm), v.args[0]));
}

/// Words at any address are put together from elements.
void PtxRenderer::any_words(ValueId id) {
  const Value& v = p_.at(id);
  const auto param = static_cast<uint32_t>(v.imm);
  const std::string address = global_address(param, v.args[0]);
  fill_words(param, address, fresh_words(id));
}

void PtxRenderer::fill_words(uint32_t param, const std::string& address,
                             const std::vector<std::string>& words) {
  const int64_t size = item_size(p_.params[param].dtype);
  const std::string_view type = size == 1 ? "u8" : size == 2 ? "u16" : "u32";
  const std::string start = out_.fresh(File::kB64);
  const size_t plus = address.find('+');
  const std::string reg = address.substr(1, std::min(plus, address.size() - 1) - 1);
  const std::string offset =
      plus == std::string::npos ? "0" : address.substr(plus + 1, address.size() - plus - 2);
  out_.line("add.s64 {}, {}, {};", start, reg, offset);
  int64_t at = 0;
  for (const std::string& word : words) {
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

/// Contiguous elements in one instruction.
void PtxRenderer::store_together(const Stmt& s) {
  const DType t = p_.type(s.value).dtype;
  std::vector<std::string> from;
  const auto add = [&](ValueId v) {
    std::string text = item_size(t) == 8 && is_int(t) ? v_.wide(v) : v_.operand(v);
    if (is_bool(t)) {
      const std::string byte = out_.fresh(File::kB32);
      out_.line("selp.u32 {}, 1, 0, {};", byte, text);
      text = byte;
    } else if (text[0] != '%') {
      const std::string reg = out_.fresh(ptx::file_of(t));
      v_.move(ptx::file_of(t), reg, text);
      text = reg;
    }
    from.push_back(text);
  };
  add(s.value);
  for (const ValueId v : s.operands) add(v);
  const std::string when = s.end == kNone ? "" : fmt::format("@{} ", v_.operand(s.end));
  const bool is_local = s.kind == StmtKind::kLocalStore;
  const std::string address =
      is_local ? local_address(s.target, s.begin) : global_address(s.target, s.begin);
  const std::string_view space = is_local ? "shared" : "global";
  if (item_size(t) < 4 && from.size() * static_cast<size_t>(item_size(t)) % 4 == 0) {
    from = packed(from, t);
    if (from.size() == 1) return out_.line("{}st.{}.u32 {}, {};", when, space, address, from[0]);
    return out_.line("{}st.{}.v{}.u32 {}, {};", when, space, from.size(), address, braced(from));
  }
  out_.line("{}st.{}.v{}.{} {}, {};", when, space, from.size(), ptx::memory_type(t), address,
            braced(from));
}

/// Elements narrower than a word as words: vectors have four numbers at most.
std::vector<std::string> PtxRenderer::packed(const std::vector<std::string>& from, DType t) {
  std::vector<std::string> words;
  const auto select = [&](const std::string& a, const std::string& b, std::string_view bytes) {
    const std::string word = out_.fresh(File::kB32);
    out_.line("prmt.b32 {}, {}, {}, {};", word, a, b, bytes);
    return word;
  };
  const size_t per_word = 4 / static_cast<size_t>(item_size(t));
  for (size_t i = 0; i < from.size(); i += per_word) {
    if (per_word == 4) {
      const std::string low = select(from[i], from[i + 1], "0x0040");
      const std::string high = select(from[i + 2], from[i + 3], "0x0040");
      words.push_back(select(low, high, "0x5410"));
    } else if (ptx::file_of(t) == File::kB16) {
      words.push_back(out_.fresh(File::kB32));
      out_.line("mov.b32 {}, {{{}, {}}};", words.back(), from[i], from[i + 1]);
    } else {
      words.push_back(select(from[i], from[i + 1], "0x5410"));
    }
  }
  return words;
}

void PtxRenderer::is_aligned(ValueId id) {
  const std::string& address = params_[static_cast<size_t>(p_.at(id).imm)];
  const std::string rest = out_.fresh(File::kB64);
  out_.line("and.b64 {}, {}, 15;", rest, address);
  out_.line("setp.eq.s64 {}, {}, 0;", v_.define(id), rest);
}

/// A table is short: its entries are chosen among, so that the kernel needs no data of its own.
void PtxRenderer::table(ValueId id) {
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

}  // namespace bm::compiler
