#include "compiler/program/builder.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/check.h"
#include "runtime/base/half.h"
#include "runtime/base/half_f64.h"

namespace bm::compiler {
namespace {

double round_constant(DType t, double v) {
  switch (t) {
    case DType::kF16: return static_cast<double>(f16_to_f32(f64_to_f16(v)));
    case DType::kBF16: return static_cast<double>(bf16_to_f32(f64_to_bf16(v)));
    case DType::kF32: return static_cast<double>(static_cast<float>(v));
    default: return v;
  }
}

int64_t wrap_constant(DType t, int64_t v) {
  if (is_bool(t)) return v != 0;
  const int bits = static_cast<int>(item_size(t)) * 8;
  if (bits == 64) return v;
  const auto shifted = static_cast<uint64_t>(v) << (64 - bits);
  return is_signed(t) ? static_cast<int64_t>(shifted) >> (64 - bits)
                      : static_cast<int64_t>(shifted >> (64 - bits));
}

}  // namespace

Builder::Builder(Program& program, const TargetInfo& target) : program_(program), target_(target) {
  program_.blocks.push_back({});
  root_ = program_.root = 0;
  if (target.has_groups) return;
  program_.block_begin = argument({DType::kU64, 1}, -2);
  program_.block_end = argument({DType::kU64, 1}, -1);
}

BlockId Builder::deeper(BlockId a, BlockId b) const {
  return program_.blocks[a].depth >= program_.blocks[b].depth ? a : b;
}

ValueId Builder::append(Value value, BlockId block) {
  const auto id = static_cast<ValueId>(program_.values.size());
  program_.values.push_back(std::move(value));
  program_.block_of.push_back(block);
  program_.blocks[block].stmts.push_back({.kind = StmtKind::kLet, .value = id});
  return id;
}

ValueId Builder::intern(Value v) {
  const bool is_leaf = v.args.empty();
  const BlockId floor = is_leaf || floor_ == kNone ? kNone : floor_;
  Key key{static_cast<uint8_t>(v.op),
          static_cast<uint8_t>(v.alu),
          static_cast<uint8_t>(v.type.dtype),
          v.type.lanes,
          v.imm,
          is_leaf ? root_ : floor,
          v.args};
  if (const auto it = known_.find(key); it != known_.end()) return it->second;
  BlockId block = root_;
  for (ValueId a : v.args) block = deeper(block, program_.block_of[a]);
  if (floor != kNone) block = deeper(block, floor);
  const ValueId id = append(std::move(v), block);
  known_.emplace(std::move(key), id);
  return id;
}

BlockId Builder::open_block(BlockId parent) {
  program_.blocks.push_back(
      {.parent = parent, .depth = program_.blocks[parent].depth + 1, .stmts = {}});
  return static_cast<BlockId>(program_.blocks.size() - 1);
}

Builder::Loop Builder::open_loop(BlockId parent, LoopKind kind) {
  const BlockId body = open_block(parent);
  const auto id = static_cast<ValueId>(program_.values.size());
  program_.values.push_back({.op = ValueOp::kIndex,
                             .alu = Op::kConst,
                             .type = {DType::kI64, 1},
                             .imm = body,
                             .args = {}});
  program_.block_of.push_back(body);
  return {body, id, kind};
}

void Builder::close_loop(const Loop& loop, ValueId begin, ValueId end, int64_t step) {
  program_.blocks[program_.blocks[loop.body].parent].stmts.push_back({.kind = StmtKind::kLoop,
                                                                      .loop = loop.kind,
                                                                      .value = loop.index,
                                                                      .begin = begin,
                                                                      .end = end,
                                                                      .step = step,
                                                                      .body = loop.body});
}

void Builder::close_groups(const Loop& loop, uint32_t axis, ValueId end) {
  const ValueId begin = index(0);
  program_.blocks[program_.blocks[loop.body].parent].stmts.push_back({.kind = StmtKind::kLoop,
                                                                      .loop = LoopKind::kGroup,
                                                                      .value = loop.index,
                                                                      .begin = begin,
                                                                      .end = end,
                                                                      .axis = axis,
                                                                      .body = loop.body});
}

void Builder::close_items(const Loop& loop, ValueId begin, ValueId end, int64_t trip_count) {
  program_.blocks[program_.blocks[loop.body].parent].stmts.push_back({.kind = StmtKind::kLoop,
                                                                      .loop = LoopKind::kItem,
                                                                      .value = loop.index,
                                                                      .begin = begin,
                                                                      .end = end,
                                                                      .trip_count = trip_count,
                                                                      .body = loop.body});
}

uint32_t Builder::add_local(DType dtype, uint64_t count) {
  program_.locals.push_back({dtype, count});
  return static_cast<uint32_t>(program_.locals.size() - 1);
}

void Builder::local_store(BlockId block, uint32_t array, ValueId at, ValueId value) {
  program_.blocks[block].stmts.push_back(
      {.kind = StmtKind::kLocalStore, .value = value, .begin = at, .target = array});
}

void Builder::local_store_together(BlockId block, uint32_t array, ValueId at,
                                   std::vector<ValueId> values) {
  Stmt s{.kind = StmtKind::kLocalStore, .value = values.front(), .begin = at, .target = array};
  s.operands.assign(values.begin() + 1, values.end());
  program_.blocks[block].stmts.push_back(std::move(s));
}

ValueId Builder::local_load(BlockId block, uint32_t array, ValueId at, uint32_t lanes) {
  return append({.op = ValueOp::kLocalLoad,
                 .alu = Op::kConst,
                 .type = {program_.locals[array].dtype, lanes},
                 .imm = array,
                 .args = {at}},
                block);
}

ValueId Builder::local_words(BlockId block, uint32_t array, ValueId at) {
  return append({.op = ValueOp::kLocalLoad,
                 .alu = Op::kConst,
                 .type = {DType::kU32, 1},
                 .imm = array,
                 .args = {at}},
                block);
}

void Builder::barrier(BlockId block) {
  program_.blocks[block].stmts.push_back({.kind = StmtKind::kBarrier});
}

void Builder::matrix(BlockId block, const MatrixInfo& info, uint32_t first_register,
                     std::vector<ValueId> operands) {
  Stmt s{.kind = StmtKind::kMma, .target = first_register};
  s.matrix = info.in;
  s.has_signed_right = info.has_signed_right;
  s.accumulators = info.accumulators;
  s.operands = std::move(operands);
  program_.blocks[block].stmts.push_back(std::move(s));
}

void Builder::close_if(BlockId body, ValueId condition) {
  program_.blocks[program_.blocks[body].parent].stmts.push_back(
      {.kind = StmtKind::kIf, .value = condition, .body = body});
}

uint32_t Builder::add_register(Type type) {
  program_.registers.push_back(type);
  program_.register_block.push_back(root_);
  return static_cast<uint32_t>(program_.registers.size() - 1);
}

void Builder::assign(BlockId block, uint32_t reg, ValueId value) {
  program_.blocks[block].stmts.push_back(
      {.kind = StmtKind::kAssign, .value = value, .target = reg});
}

ValueId Builder::read(BlockId block, uint32_t reg) {
  return append({.op = ValueOp::kRead,
                 .alu = Op::kConst,
                 .type = program_.registers[reg],
                 .imm = reg,
                 .args = {}},
                block);
}

void Builder::store(BlockId block, int param, ValueId at, ValueId value, ValueId gate,
                    bool is_streamed) {
  program_.blocks[block].stmts.push_back(
      {.kind = StmtKind::kStore,
       .value = value,
       .begin = at,
       .end = gate,
       .target = static_cast<uint32_t>(param),
       .is_streamed = is_streamed && gate == kNone && type(value).lanes > 1});
}

void Builder::prefetch(BlockId block, int param, ValueId at, bool is_second) {
  program_.blocks[block].stmts.push_back({.kind = StmtKind::kPrefetch,
                                          .begin = at,
                                          .target = static_cast<uint32_t>(param),
                                          .is_streamed = is_second});
}

void Builder::prefetch_local(BlockId block, uint32_t array, ValueId at) {
  program_.blocks[block].stmts.push_back(
      {.kind = StmtKind::kPrefetch, .begin = at, .target = array, .is_local = true});
}

BlockId Builder::set_floor(BlockId block) { return std::exchange(floor_, block); }

ValueId Builder::call(BlockId block, uint32_t function, std::span<const ValueId> args) {
  const Function& f = program_.functions[function];
  const Type result = program_.values[f.result].type;
  return append({.op = ValueOp::kCall,
                 .alu = Op::kConst,
                 .type = result,
                 .imm = function,
                 .args = {args.begin(), args.end()}},
                block);
}

ValueId Builder::constant(Type t, int64_t value) {
  if (is_float(t.dtype)) return constant_f(t, static_cast<double>(value));
  return intern({.op = ValueOp::kConst,
                 .alu = Op::kConst,
                 .type = t,
                 .imm = wrap_constant(t.dtype, value),
                 .args = {}});
}

ValueId Builder::constant_f(Type t, double value) {
  if (!is_float(t.dtype)) return constant(t, static_cast<int64_t>(value));
  return intern({.op = ValueOp::kConst,
                 .alu = Op::kConst,
                 .type = t,
                 .imm = std::bit_cast<int64_t>(round_constant(t.dtype, value)),
                 .args = {}});
}

ValueId Builder::variable(int number) {
  return intern({.op = ValueOp::kVar,
                 .alu = Op::kConst,
                 .type = {DType::kI64, 1},
                 .imm = number,
                 .args = {}});
}

ValueId Builder::argument(Type t, int number) {
  return intern(
      {.op = ValueOp::kArgument, .alu = Op::kConst, .type = t, .imm = number, .args = {}});
}

ValueId Builder::item() {
  return intern(
      {.op = ValueOp::kItem, .alu = Op::kConst, .type = {DType::kI64, 1}, .imm = 0, .args = {}});
}

ValueId Builder::iota(uint32_t lanes, int64_t stride) {
  return intern({.op = ValueOp::kIota,
                 .alu = Op::kConst,
                 .type = {DType::kI64, lanes},
                 .imm = stride,
                 .args = {}});
}

ValueId Builder::splat(ValueId scalar, uint32_t lanes) {
  const Value& v = program_.values[scalar];
  if (lanes == 1 || v.type.lanes == lanes) return scalar;
  const DType dtype = v.type.dtype;
  if (v.op == ValueOp::kConst)
    return intern({.op = ValueOp::kConst,
                   .alu = Op::kConst,
                   .type = {dtype, lanes},
                   .imm = v.imm,
                   .args = {}});
  return intern({.op = ValueOp::kSplat,
                 .alu = Op::kConst,
                 .type = {dtype, lanes},
                 .imm = 0,
                 .args = {scalar}});
}

ValueId Builder::extract(ValueId vector, uint32_t lane) {
  const Value& v = program_.values[vector];
  if (v.type.lanes == 1) return vector;
  const DType dtype = v.type.dtype;
  if (v.op == ValueOp::kSplat) return v.args[0];
  if (v.op == ValueOp::kBuild) return v.args[lane];
  if (v.op == ValueOp::kConst)
    return intern(
        {.op = ValueOp::kConst, .alu = Op::kConst, .type = {dtype, 1}, .imm = v.imm, .args = {}});
  return intern({.op = ValueOp::kExtract,
                 .alu = Op::kConst,
                 .type = {dtype, 1},
                 .imm = lane,
                 .args = {vector}});
}

ValueId Builder::insert(ValueId vector, uint32_t lane, ValueId scalar) {
  return intern({.op = ValueOp::kInsert,
                 .alu = Op::kConst,
                 .type = type(vector),
                 .imm = lane,
                 .args = {vector, scalar}});
}

ValueId Builder::build(std::span<const ValueId> scalars) {
  if (scalars.size() == 1) return scalars[0];
  return intern({.op = ValueOp::kBuild,
                 .alu = Op::kConst,
                 .type = {type(scalars[0]).dtype, static_cast<uint32_t>(scalars.size())},
                 .imm = 0,
                 .args = {scalars.begin(), scalars.end()}});
}

ValueId Builder::half(ValueId vector, int which) {
  return intern({.op = ValueOp::kHalf,
                 .alu = Op::kConst,
                 .type = {type(vector).dtype, type(vector).lanes / 2},
                 .imm = which,
                 .args = {vector}});
}

ValueId Builder::reverse(ValueId vector) {
  return intern({.op = ValueOp::kReverse,
                 .alu = Op::kConst,
                 .type = type(vector),
                 .imm = 0,
                 .args = {vector}});
}

ValueId Builder::concat_shift(ValueId a, ValueId b, uint32_t lanes) {
  return intern({.op = ValueOp::kConcatShift,
                 .alu = Op::kConst,
                 .type = type(a),
                 .imm = lanes,
                 .args = {a, b}});
}

ValueId Builder::interleave(ValueId a, ValueId b, int which) {
  return intern({.op = ValueOp::kInterleave,
                 .alu = Op::kConst,
                 .type = type(a),
                 .imm = which,
                 .args = {a, b}});
}

ValueId Builder::deinterleave(ValueId a, ValueId b, int which) {
  return intern({.op = ValueOp::kDeinterleave,
                 .alu = Op::kConst,
                 .type = type(a),
                 .imm = which,
                 .args = {a, b}});
}

bool Builder::can_scale(Type t) const {
  const auto bits = t.lanes * static_cast<uint32_t>(item_size(t.dtype)) * 8;
  return target_.has_scaling && is_float(t.dtype) && !is_half_like(t.dtype) && bits >= 128 &&
         bits <= target_.vector_bits;
}

ValueId Builder::scale(ValueId a, ValueId b) {
  return intern(
      {.op = ValueOp::kLdexp, .alu = Op::kConst, .type = type(a), .imm = 0, .args = {a, b}});
}

bool Builder::can_look_up(Type t) const {
  const uint32_t bits = 32 * t.lanes;
  return t.dtype == DType::kU32 && bits >= 128 && bits <= target_.byte_lookup_bits;
}

ValueId Builder::lookup(ValueId bytes, const std::array<uint8_t, 16>& table) {
  std::vector<uint64_t> words(2);
  for (size_t i = 0; i < table.size(); ++i) words[i / 8] |= uint64_t{table[i]} << 8 * (i % 8);
  auto at = std::ranges::find(program_.tables, words);
  if (at == program_.tables.end()) at = program_.tables.insert(at, std::move(words));
  return intern({.op = ValueOp::kLookup,
                 .alu = Op::kConst,
                 .type = type(bytes),
                 .imm = at - program_.tables.begin(),
                 .args = {bytes}});
}

ValueId Builder::any(ValueId mask) {
  if (type(mask).lanes == 1) return mask;
  return intern({.op = ValueOp::kAny,
                 .alu = Op::kConst,
                 .type = {DType::kBool, 1},
                 .imm = 0,
                 .args = {mask}});
}

ValueId Builder::load(int param, DType dtype, uint32_t lanes, ValueId at, ValueId gate) {
  Value v{
      .op = ValueOp::kLoad, .alu = Op::kConst, .type = {dtype, lanes}, .imm = param, .args = {at}};
  if (gate != kNone) {
    const Value& g = program_.values[gate];
    if (g.op == ValueOp::kConst && g.imm == 0) return constant_f({dtype, lanes}, 0);
    if (g.op != ValueOp::kConst) v.args.push_back(gate);
  }
  return intern(std::move(v));
}

ValueId Builder::words(int param, uint32_t count, ValueId at, bool is_aligned) {
  return intern({.op = is_aligned ? ValueOp::kWords : ValueOp::kUnalignedWords,
                 .alu = Op::kConst,
                 .type = {DType::kU32, count},
                 .imm = param,
                 .args = {at}});
}

ValueId Builder::is_aligned(int param) {
  return intern({.op = ValueOp::kIsAligned,
                 .alu = Op::kConst,
                 .type = {DType::kBool, 1},
                 .imm = param,
                 .args = {}});
}

ValueId Builder::table(uint32_t number, ValueId at) {
  return intern({.op = ValueOp::kTable,
                 .alu = Op::kConst,
                 .type = {DType::kU64, 1},
                 .imm = number,
                 .args = {at}});
}

ValueId Builder::raw(Op op, DType dtype, std::initializer_list<ValueId> args) {
  const std::span<const ValueId> a(args.begin(), args.size());
  const uint32_t lanes = type(a.back()).lanes;
  // Index arithmetic: neutral elements and constants; floats are left alone.
  if (dtype == DType::kI64 && a.size() == 2) {
    const Value x = program_.values[a[0]], y = program_.values[a[1]];
    const bool has_x = x.op == ValueOp::kConst, has_y = y.op == ValueOp::kConst;
    const auto ux = static_cast<uint64_t>(x.imm), uy = static_cast<uint64_t>(y.imm);
    if (op == Op::kAdd) {
      if (has_x && has_y) return constant({dtype, lanes}, static_cast<int64_t>(ux + uy));
      if (has_x && x.imm == 0) return a[1];
      if (has_y && y.imm == 0) return a[0];
    } else if (op == Op::kSub) {
      if (has_x && has_y) return constant({dtype, lanes}, static_cast<int64_t>(ux - uy));
      if (has_y && y.imm == 0) return a[0];
    } else if (op == Op::kMul) {
      if (has_x && has_y) return constant({dtype, lanes}, static_cast<int64_t>(ux * uy));
      if (has_x && x.imm == 1) return a[1];
      if (has_y && y.imm == 1) return a[0];
    }
  }
  if (op == Op::kBitcast && type(a[0]).dtype == dtype) return a[0];
  if (op == Op::kSelect && a[1] == a[2]) return a[1];
  return intern({.op = ValueOp::kAlu,
                 .alu = op,
                 .type = {dtype, lanes},
                 .imm = 0,
                 .args = {a.begin(), a.end()}});
}

ValueId Builder::convert(ValueId a, DType dtype) {
  const Value& v = program_.values[a];
  if (v.type.dtype == dtype) return a;
  return intern({.op = ValueOp::kConvert,
                 .alu = Op::kConst,
                 .type = {dtype, v.type.lanes},
                 .imm = 0,
                 .args = {a}});
}

}  // namespace bm::compiler
