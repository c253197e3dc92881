// Asynchronous copies to shared memory (cp.async) and warpgroup MMA (wgmma) in PTX.
#include "compiler/render/ptx_renderer.h"
#include "compiler/render/render.h"
#include "runtime/base/check.h"

namespace bm::compiler {

using ptx::File;

void PtxRenderer::copy(const Stmt& s) {
  if (s.copy == CopyKind::kRoundTf32) return round_tf32(s);
  if (s.copy != CopyKind::kAsync) return copy_words(s);
  const std::string_view name = async_copy_name(s);
  const std::string to = local_address(s.target, s.value), from = global_address(s.param, s.begin);
  if (s.end == kNone) return out_.line("{} {}, {}, {};", name, to, from, s.step);
  const std::string bytes = out_.fresh(File::kB32);
  out_.line("selp.u32 {}, {}, 0, {};", bytes, s.step, v_.operand(s.end));
  out_.line("{} {}, {}, {}, {};", name, to, from, s.step, bytes);
}

void PtxRenderer::round_tf32(const Stmt& s) {
  const std::string at = local_address(s.target, s.value);
  std::vector<std::string> before, after;
  for (int64_t i = 0; i < s.step / 4; ++i) {
    before.push_back(out_.fresh(File::kF32));
    after.push_back(out_.fresh(File::kB32));
  }
  const bool is_one = before.size() == 1;
  const std::string_view vector = is_one ? "" : ".v4";
  out_.line("ld.shared{}.f32 {}, {};", vector, is_one ? before[0] : braced(before), at);
  for (size_t i = 0; i < before.size(); ++i)
    out_.line("{} {}, {};", kRoundTf32Name, after[i], before[i]);
  out_.line("st.shared{}.u32 {}, {};", vector, at, is_one ? after[0] : braced(after));
}

void PtxRenderer::copy_words(const Stmt& s) {
  const std::string to = local_address(s.target, s.value), from = global_address(s.param, s.begin);
  std::vector<std::string> words;
  for (int i = 0; i < 4; ++i) words.push_back(out_.fresh(File::kB32));
  std::string end;
  if (s.end != kNone) {
    for (const std::string& word : words) v_.move(File::kB32, word, "0");
    end = out_.fresh_label();
    out_.line("@!{} bra {};", v_.operand(s.end), end);
  }
  if (s.copy == CopyKind::kWords)
    out_.line("ld.global.v4.u32 {}, {};", braced(words), from);
  else
    fill_words(s.param, from, words);
  if (!end.empty()) out_.label(end);
  out_.line("st.shared.v4.u32 {}, {};", to, braced(words));
}

void PtxRenderer::fragment(ValueId id) {
  const Value& v = p_.at(id);
  const std::string from = local_address(static_cast<uint32_t>(v.imm / 2), v.args[0]);
  out_.line("ldmatrix.sync.aligned.m8n8.x4{}.shared.b16 {}, {};", v.imm % 2 ? ".trans" : "",
            braced(fresh_words(id)), from);
}

void PtxRenderer::sub_group(ValueId id) {
  const Value& v = p_.at(id);
  const std::string low = v_.in_register(v.args[0]);
  if (v.op == ValueOp::kExp2) return out_.line("{} {}, {};", kExp2Name, v_.define(id), low);
  if (v.op == ValueOp::kShuffle) return out_.line("{}", shuffle_text(v_.define(id), low, v));
  if (v.op == ValueOp::kRoundTf32)
    return out_.line("{} {}, {};", kRoundTf32Name, v_.define(id), low);
  const std::string high = v_.in_register(v.args[1]);
  if (v.op == ValueOp::kDequantise2) {
    const std::array<std::string, 2> spare{out_.fresh(File::kB32), out_.fresh(File::kB32)};
    return out_.line("{}", dequantise2_text(v_.define(id), low, high, spare, v));
  }
  out_.line("{} {}, {}, {};", pack_half2_name(v), v_.define(id), high, low);
}

/// What wgmma and tcgen05 want to know of a tile that starts at `byte` of a local array; `bits` but
/// for where.
std::string PtxRenderer::descriptor(uint32_t array, ValueId byte, const TileLayout& tile,
                                    uint64_t bits) {
  const Address at = address(byte);
  // Among addresses of shared memory, with ids that no array has.
  const AddressKey key{true, ~(2 * array + (tile.is_transposed ? 1 : 0)), at.base};
  std::string reg = known_address(key);
  if (reg.empty()) {
    std::string start = local_addresses_[array];
    if (at.base != kNone) {
      start = out_.fresh(File::kB32);
      out_.line("add.s32 {}, {}, {};", start, local_addresses_[array], v_.low(at.base));
    }
    const std::string pieces = out_.fresh(File::kB32), wide = out_.fresh(File::kB64);
    out_.line("shr.u32 {}, {}, {};", pieces, start, kDescriptorShift);
    out_.line("cvt.u64.u32 {}, {};", wide, pieces);
    reg = out_.fresh(File::kB64);
    out_.line("or.b64 {}, {}, {};", reg, wide, static_cast<int64_t>(bits));
    addresses_.back()[key] = reg;
  }
  if (at.offset == 0) return reg;
  const std::string moved = out_.fresh(File::kB64);
  out_.line("add.s64 {}, {}, {};", moved, reg, at.offset >> kDescriptorShift);
  return moved;
}

void PtxRenderer::warpgroup_mma(const Stmt& s) {
  std::string left;
  if (s.operands.size() == 2) {
    left = descriptor(s.local, s.operands[0], s.tiles[0], descriptor_bits(s.tiles[0]));
  } else {
    std::vector<std::string> words;
    for (size_t i = 0; i + 1 < s.operands.size(); ++i)
      words.push_back(v_.in_register(s.operands[i]));
    left = braced(words);
  }
  const std::string right =
      descriptor(s.local, s.operands.back(), s.tiles[1], descriptor_bits(s.tiles[1]));
  const auto first = registers_.begin() + s.target;
  const std::string p = out_.fresh(File::kPred);
  out_.line("setp.ne.s32 {}, {}, 0;", p, s.is_new_sum ? 0 : 1);  // whether sums are added to
  out_.line("{} {}, {}, {}, {}{};", warpgroup_mma_name(s), braced({first, first + s.accumulators}),
            left, right, p, warpgroup_mma_flags(s));
}

void PtxRenderer::tensor(const Stmt& s) {
  switch (s.tensor) {
    case TensorOp::kAllocate: return allocate_tensor(s);
    case TensorOp::kMma: return tensor_mma(s);
    case TensorOp::kWait: return wait_tensor(s);
    case TensorOp::kLoad: return load_tensor(s);
    case TensorOp::kFree: return free_tensor(s);
  }
}

void PtxRenderer::only_first_sub_group(const std::string& end) {
  const std::string p = out_.fresh(File::kPred);
  out_.line("setp.lt.u32 {}, {}, {};", p, item_, target_.sub_group);
  out_.line("@!{} bra {};", p, end);
}

void PtxRenderer::allocate_tensor(const Stmt& s) {
  const Address at = address(s.begin);
  BM_CHECK(at.base == kNone);
  const auto byte = [&](int64_t more) {
    return bracket(local_addresses_[s.local], at.offset + more);
  };
  const std::string end = out_.fresh_label(), one = out_.fresh(File::kPred);
  tensor_memory_ = out_.fresh(File::kB32);
  only_first_sub_group(end);
  out_.line("{} {}, {};", kTensorAllocateName, byte(16), s.step);
  out_.line("{}", kTensorKeepName);
  out_.line("elect.sync _|{}, -1;", one);
  for (const int64_t barrier : {0, 8})
    out_.line("@{} {} {}, 1;", one, kMbarrierStart, byte(barrier));
  out_.line("{}", kMbarrierFence);
  out_.label(end);
  out_.line("{}", kTensorBefore);
  out_.line("bar.sync 0;");
  out_.line("{}", kTensorAfter);
  out_.line("ld.shared.u32 {}, {};", tensor_memory_, byte(16));
}

/// By one lane, which is any: all its products are in order, and the mbarrier learns of all of
/// them.
void PtxRenderer::tensor_mma(const Stmt& s) {
  const std::string barrier = local_address(s.local, s.begin), is_added = v_.operand(s.end);
  const std::string end = out_.fresh_label(), one = out_.fresh(File::kPred);
  only_first_sub_group(end);
  out_.line("elect.sync _|{}, -1;", one);
  out_.line("@!{} bra {};", one, end);
  out_.line("{}", kTensorAfter);
  addresses_.emplace_back();  // nobody else has these descriptors
  std::array<std::string, 2> tiles;
  for (size_t i = 0; i < tiles.size(); ++i)
    tiles[i] = descriptor(s.local, s.operands[i], s.tiles[i], tensor_tile_bits(s.tiles[i]));
  addresses_.pop_back();
  const std::string always = out_.fresh(File::kPred);
  out_.line("setp.ne.s32 {}, 1, 0;", always);
  for (int step = 0; step < kStepsOfLine; ++step) {
    for (size_t i = 0; i < tiles.size() && step > 0; ++i) {
      const std::string next = out_.fresh(File::kB64);
      out_.line("add.s64 {}, {}, {};", next, tiles[i], descriptor_step(s.tiles[i]));
      tiles[i] = next;
    }
    out_.line("{} [{}], {}, {}, {}, {};", tensor_mma_name(s), tensor_memory_, tiles[0], tiles[1],
              tensor_mma_descriptor(s), step == 0 ? is_added : always);
  }
  out_.line("{} {};", kTensorCommitName, barrier);
  out_.label(end);
}

void PtxRenderer::wait_tensor(const Stmt& s) {
  const std::string barrier = local_address(s.local, s.begin), parity = v_.low(s.value);
  const std::string again = out_.fresh_label(), is_there = out_.fresh(File::kPred);
  out_.label(again);
  out_.line("{} {}, {}, {};", kMbarrierTest, is_there, barrier, parity);
  out_.line("@!{} bra {};", is_there, again);
}

void PtxRenderer::load_tensor(const Stmt& s) {
  auto first = registers_.begin() + s.target;
  const std::string at = out_.fresh(File::kB32);
  out_.line("{}", kTensorAfter);
  out_.line("add.s32 {}, {}, {};", at, tensor_memory_, v_.low(s.value));
  for (int64_t i = 0; i < s.step; ++i, first += s.accumulators)
    out_.line("{} {}, {};", tensor_load_name(s), braced({first, first + s.accumulators}),
              bracket(at, i * kTensorLoadLanes << 16));
  out_.line("{}", kTensorLoadWait);
}

void PtxRenderer::free_tensor(const Stmt& s) {
  const std::string end = out_.fresh_label();
  out_.line("{}", kTensorBefore);
  out_.line("bar.sync 0;");
  only_first_sub_group(end);
  out_.line("{}", kTensorAfter);
  out_.line("{} {}, {};", kTensorFreeName, tensor_memory_, s.step);
  out_.label(end);
}

}  // namespace bm::compiler
