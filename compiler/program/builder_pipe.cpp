// Asynchronous copies and warpgroup MMA: what a multistage pipeline is built of.
#include "compiler/program/builder.h"

namespace bm::compiler {

void Builder::copy(BlockId block, CopyKind kind, int param, ValueId at, uint32_t array,
                   ValueId byte, ValueId gate, uint32_t bytes) {
  Stmt s{.kind = StmtKind::kCopy,
         .value = byte,
         .begin = at,
         .end = gate,
         .step = bytes,
         .target = array};
  s.copy = kind;
  s.param = static_cast<uint32_t>(param);
  program_.blocks[block].stmts.push_back(std::move(s));
}

void Builder::round_tf32(BlockId block, uint32_t array, ValueId byte, uint32_t bytes) {
  copy(block, CopyKind::kRoundTf32, 0, kNone, array, byte, kNone, bytes);
}

void Builder::pipe(BlockId block, PipeOp op, uint32_t count) {
  Stmt s{.kind = StmtKind::kPipe, .step = count};
  s.pipe = op;
  s.accumulators = 0;
  program_.blocks[block].stmts.push_back(std::move(s));
}

void Builder::wait_wgmma(BlockId block, uint32_t first, uint32_t accumulators) {
  Stmt s{.kind = StmtKind::kPipe, .step = 0, .target = first};
  s.pipe = PipeOp::kWgmmaWait;
  s.accumulators = accumulators;
  program_.blocks[block].stmts.push_back(std::move(s));
}

void Builder::settle(BlockId block, uint32_t first, uint32_t accumulators) {
  Stmt s{.kind = StmtKind::kPipe, .target = first};
  s.pipe = PipeOp::kSettle;
  s.accumulators = accumulators;
  program_.blocks[block].stmts.push_back(std::move(s));
}

ValueId Builder::fragment(BlockId block, uint32_t array, ValueId byte, bool is_transposed) {
  return append({.op = ValueOp::kFragment,
                 .alu = Op::kConst,
                 .type = {DType::kU32, 4},
                 .imm = 2 * int64_t{array} + (is_transposed ? 1 : 0),
                 .args = {byte}},
                block);
}

ValueId Builder::shuffle(BlockId block, ValueId value, uint32_t with) {
  return append({.op = ValueOp::kShuffle,
                 .alu = Op::kConst,
                 .type = type(value),
                 .imm = with,
                 .args = {value}},
                block);
}

ValueId Builder::fast_exp2(ValueId value) {
  return intern(
      {.op = ValueOp::kExp2, .alu = Op::kConst, .type = type(value), .imm = 0, .args = {value}});
}

ValueId Builder::pack_half2(ValueId low, ValueId high, DType dtype) {
  if (!target_.has_pack_half2) {
    const auto bits = [&](ValueId v) {
      return convert(bitcast(convert(v, dtype), DType::kU16), DType::kU32);
    };
    return bit_or(bits(low), shl(bits(high), 16));
  }
  return intern({.op = ValueOp::kPackHalf2,
                 .alu = Op::kConst,
                 .type = {DType::kU32, 1},
                 .imm = static_cast<int64_t>(dtype),
                 .args = {low, high}});
}

std::array<ValueId, 2> Builder::dequantise(ValueId word, ValueId scales) {
  const ValueId unsigned_codes = bit_xor(word, like_int(word, 0x80808080));
  std::array<ValueId, 2> out = {};
  for (size_t half = 0; half < out.size(); ++half)
    out[half] = intern({.op = ValueOp::kDequantise2,
                        .alu = Op::kConst,
                        .type = {DType::kU32, 1},
                        .imm = static_cast<int64_t>(half),
                        .args = {unsigned_codes, scales}});
  return out;
}

ValueId Builder::round_tf32(ValueId word) {
  return intern({.op = ValueOp::kRoundTf32,
                 .alu = Op::kConst,
                 .type = {DType::kU32, 1},
                 .imm = 0,
                 .args = {word}});
}

void Builder::warpgroup_mma(BlockId block, const MatrixInfo& info, uint32_t first_register,
                            uint32_t accumulators, uint32_t array, std::array<ValueId, 2> bytes,
                            std::array<TileLayout, 2> tiles) {
  Stmt s{.kind = StmtKind::kWarpgroupMma, .target = first_register};
  s.matrix = info.in;
  s.accumulators = accumulators;
  s.local = array;
  s.tiles = tiles;
  s.operands = {bytes[0], bytes[1]};
  program_.blocks[block].stmts.push_back(std::move(s));
}

void Builder::warpgroup_mma(BlockId block, const MatrixInfo& info, uint32_t first_register,
                            uint32_t accumulators, uint32_t array,
                            const std::array<ValueId, 4>& words, ValueId byte,
                            const TileLayout& tile, bool is_new_sum) {
  Stmt s{.kind = StmtKind::kWarpgroupMma, .target = first_register};
  s.matrix = info.in;
  s.accumulators = accumulators;
  s.is_new_sum = is_new_sum;
  s.local = array;
  s.tiles[1] = tile;
  s.operands.assign(words.begin(), words.end());
  s.operands.push_back(byte);
  program_.blocks[block].stmts.push_back(std::move(s));
}

void Builder::allocate_tensor(BlockId block, uint32_t array, ValueId byte, uint32_t columns) {
  Stmt s{.kind = StmtKind::kTensor, .begin = byte, .step = columns};
  s.tensor = TensorOp::kAllocate;
  s.local = array;
  program_.blocks[block].stmts.push_back(std::move(s));
}

void Builder::tensor_mma(BlockId block, const MatrixInfo& info, uint32_t columns, uint32_t array,
                         std::array<ValueId, 2> bytes, std::array<TileLayout, 2> tiles,
                         ValueId barrier, ValueId is_added) {
  Stmt s{.kind = StmtKind::kTensor, .begin = barrier, .end = is_added};
  s.tensor = TensorOp::kMma;
  s.matrix = info.in;
  s.accumulators = columns;
  s.local = array;
  s.tiles = tiles;
  s.operands = {bytes[0], bytes[1]};
  program_.blocks[block].stmts.push_back(std::move(s));
}

void Builder::wait_tensor(BlockId block, uint32_t array, ValueId barrier, ValueId parity) {
  Stmt s{.kind = StmtKind::kTensor, .value = parity, .begin = barrier};
  s.tensor = TensorOp::kWait;
  s.local = array;
  program_.blocks[block].stmts.push_back(std::move(s));
}

void Builder::load_tensor(BlockId block, uint32_t first_register, uint32_t accumulators,
                          uint32_t times, ValueId at) {
  Stmt s{.kind = StmtKind::kTensor, .value = at, .step = times, .target = first_register};
  s.tensor = TensorOp::kLoad;
  s.accumulators = accumulators;
  program_.blocks[block].stmts.push_back(std::move(s));
}

void Builder::free_tensor(BlockId block, uint32_t columns) {
  Stmt s{.kind = StmtKind::kTensor, .step = columns};
  s.tensor = TensorOp::kFree;
  program_.blocks[block].stmts.push_back(std::move(s));
}

void Builder::store_together(BlockId block, int param, ValueId at, std::vector<ValueId> values,
                             ValueId gate) {
  Stmt s{.kind = StmtKind::kStore,
         .value = values.front(),
         .begin = at,
         .end = gate,
         .target = static_cast<uint32_t>(param)};
  s.operands.assign(values.begin() + 1, values.end());
  program_.blocks[block].stmts.push_back(std::move(s));
}

}  // namespace bm::compiler
