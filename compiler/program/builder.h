#pragma once
// Builder: appends values to a Program. Every value lands in the outermost block where its sources
// exist, and equal values are one value. Operations of ir::Op get their documented meaning here
// (legalisation): results never depend on what the hardware does at the edges.

#include <array>
#include <bit>
#include <initializer_list>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "compiler/program/program.h"
#include "compiler/targets/target.h"

namespace bm::compiler {

class Builder {
 public:
  Builder(Program& program, const TargetInfo& target);

  Program& program() { return program_; }
  const TargetInfo& target() const { return target_; }
  Type type(ValueId v) const { return program_.values[v].type; }
  BlockId block_of(ValueId v) const { return program_.block_of[v]; }
  /// The deeper of two blocks on one path from the root.
  BlockId deeper(BlockId a, BlockId b) const;

  // Structure. A loop or condition is attached to its parent when closed, after everything hoisted
  // out of it has been appended there.
  struct Loop {
    BlockId body = kNone;
    ValueId index = kNone;
    LoopKind kind = LoopKind::kSerial;
  };
  Loop open_loop(BlockId parent, LoopKind kind = LoopKind::kSerial);
  void close_loop(const Loop& loop, ValueId begin, ValueId end, int64_t step);
  /// `end` kNone: there are never more groups than iterations.
  void close_groups(const Loop& loop, uint32_t axis, ValueId end);
  /// As Stmt says of kItem loops.
  void close_items(const Loop& loop, ValueId begin, ValueId end, int64_t trip_count);
  BlockId open_block(BlockId parent);
  void close_if(BlockId body, ValueId condition);
  uint32_t add_register(Type type);
  void assign(BlockId block, uint32_t reg, ValueId value);
  ValueId read(BlockId block, uint32_t reg);
  void store(BlockId block, int param, ValueId index, ValueId value, ValueId gate = kNone,
             bool is_streamed = false);
  uint32_t add_local(DType dtype, uint64_t count);
  void local_store(BlockId block, uint32_t array, ValueId index, ValueId value);
  /// Contiguous elements, up to 16 bytes, from a multiple of them all on.
  void local_store_together(BlockId block, uint32_t array, ValueId index,
                            std::vector<ValueId> values);
  ValueId local_load(BlockId block, uint32_t array, ValueId index, uint32_t lanes = 1);
  /// The 32-bit word from element `index` on, a multiple of as many as a word holds.
  ValueId local_words(BlockId block, uint32_t array, ValueId index);
  void barrier(BlockId block);
  /// See StmtKind::kCopy. `gate` kNone: always.
  void copy(BlockId block, CopyKind kind, int param, ValueId index, uint32_t array, ValueId byte,
            ValueId gate, uint32_t bytes = 16);
  /// CopyKind::kRoundTf32.
  void round_tf32(BlockId block, uint32_t array, ValueId byte, uint32_t bytes);
  void pipe(BlockId block, PipeOp op, uint32_t count = 0);
  /// kWgmmaWait for all, after which `accumulators` registers from `first` on may be read.
  void wait_wgmma(BlockId block, uint32_t first, uint32_t accumulators);
  /// See PipeOp::kSettle.
  void settle(BlockId block, uint32_t first, uint32_t accumulators);
  ValueId fragment(BlockId block, uint32_t array, ValueId byte, bool is_transposed);
  void warpgroup_mma(BlockId block, const MatrixInfo& info, uint32_t first_register,
                     uint32_t accumulators, uint32_t array, std::array<ValueId, 2> bytes,
                     std::array<TileLayout, 2> tiles);
  /// The same where sub-groups have their rows of A as `words` of mma.sync. `is_new_sum`: see Stmt.
  void warpgroup_mma(BlockId block, const MatrixInfo& info, uint32_t first_register,
                     uint32_t accumulators, uint32_t array, const std::array<ValueId, 4>& words,
                     ValueId byte, const TileLayout& tile, bool is_new_sum);
  // See TensorOp. `byte`, `barrier`: of local array `array`.
  void allocate_tensor(BlockId block, uint32_t array, ValueId byte, uint32_t columns);
  void tensor_mma(BlockId block, const MatrixInfo& info, uint32_t columns, uint32_t array,
                  std::array<ValueId, 2> bytes, std::array<TileLayout, 2> tiles, ValueId barrier,
                  ValueId is_added);
  void wait_tensor(BlockId block, uint32_t array, ValueId barrier, ValueId parity);
  void load_tensor(BlockId block, uint32_t first_register, uint32_t accumulators, uint32_t times,
                   ValueId at);
  void free_tensor(BlockId block, uint32_t columns);
  /// Contiguous elements, at an address that is a multiple of them all.
  void store_together(BlockId block, int param, ValueId index, std::vector<ValueId> values,
                      ValueId gate);
  /// The value that the lane `with` away (id ^ with) in the sub-group has.
  ValueId shuffle(BlockId block, ValueId value, uint32_t with);
  /// Two float32 as one word of 16-bit floats, `low` in its lower half.
  ValueId pack_half2(ValueId low, ValueId high, DType dtype);
  /// Four int8 codes, `word`, times the two float16 of word `scales` in turn, rounded to float16:
  /// two words. For targets that multiply matrices of float16.
  std::array<ValueId, 2> dequantise(ValueId word, ValueId scales);
  /// See ValueOp::kExp2.
  ValueId fast_exp2(ValueId value);
  /// See ValueOp::kRoundTf32.
  ValueId round_tf32(ValueId word);
  void matrix(BlockId block, const MatrixInfo& info, uint32_t first_register,
              std::vector<ValueId> operands);
  /// Prefetches an element that may lie outside the param; never faults.
  void prefetch(BlockId block, int param, ValueId index, bool is_second = false);
  void prefetch_local(BlockId block, uint32_t array, ValueId index);
  /// Values made while a floor is set belong to that block or a deeper one, never hoisted above it.
  BlockId set_floor(BlockId block);
  BlockId floor() const { return floor_; }
  ValueId call(BlockId block, uint32_t function, std::span<const ValueId> args);

  // Leaves and lanes.
  ValueId constant(Type type, int64_t value);
  ValueId constant_f(Type type, double value);
  ValueId index(int64_t value) { return constant({DType::kI64, 1}, value); }
  ValueId variable(int number);
  ValueId argument(Type type, int number);
  ValueId item();
  ValueId iota(uint32_t lanes, int64_t stride);
  ValueId splat(ValueId scalar, uint32_t lanes);
  ValueId extract(ValueId vector, uint32_t lane);
  ValueId insert(ValueId vector, uint32_t lane, ValueId scalar);
  ValueId build(std::span<const ValueId> scalars);
  ValueId half(ValueId vector, int which);
  ValueId reverse(ValueId vector);
  ValueId concat_shift(ValueId a, ValueId b, uint32_t lanes);
  ValueId interleave(ValueId a, ValueId b, int which);
  ValueId deinterleave(ValueId a, ValueId b, int which);
  ValueId any(ValueId mask);
  ValueId load(int param, DType dtype, uint32_t lanes, ValueId index, ValueId gate = kNone);
  /// `is_aligned`: the address is known to be a multiple of 4·count bytes.
  ValueId words(int param, uint32_t count, ValueId index, bool is_aligned);
  ValueId is_aligned(int param);
  ValueId table(uint32_t number, ValueId index);

  // Machine operations (as ValueOp::kAlu and kConvert say), same lanes everywhere.
  ValueId raw(Op op, DType dtype, std::initializer_list<ValueId> args);
  ValueId convert(ValueId a, DType dtype);

  /// `acc` plus the products of the elements in words `a` and `b` (uint32), lane by lane; by the
  /// target's instruction where there is one for these lanes.
  ValueId dot(DotKind kind, ValueId acc, ValueId a, ValueId b);

  /// a·2^b in one rounding, b whole; only where can_scale says so.
  ValueId scale(ValueId a, ValueId b);
  bool can_scale(Type t) const;

  /// Every byte of the words `bytes`, all below 16, becomes that entry; only where can_look_up says
  /// so.
  ValueId lookup(ValueId bytes, const std::array<uint8_t, 16>& table);
  bool can_look_up(Type t) const;

  // Operations of ir::Op with their full meaning.
  ValueId alu(Op op, DType dtype, std::span<const ValueId> args);
  ValueId cast(ValueId a, DType dtype);
  ValueId reduce_step(ir::ReduceOp op, ValueId accumulator, ValueId value);
  /// What a reduction starts with: it leaves the other operand of a step as it is.
  ValueId neutral(ir::ReduceOp op, Type type);

  // Shorthands for expansions; scalar doubles become constants of the other operand's type.
  ValueId like(ValueId v, double value) { return constant_f(type(v), value); }
  ValueId like_int(ValueId v, int64_t value) { return constant(type(v), value); }
  ValueId add(ValueId a, ValueId b) { return raw(Op::kAdd, type(a).dtype, {a, b}); }
  ValueId sub(ValueId a, ValueId b) { return raw(Op::kSub, type(a).dtype, {a, b}); }
  ValueId mul(ValueId a, ValueId b) { return raw(Op::kMul, type(a).dtype, {a, b}); }
  ValueId bit_and(ValueId a, ValueId b) { return raw(Op::kAnd, type(a).dtype, {a, b}); }
  ValueId bit_or(ValueId a, ValueId b) { return raw(Op::kOr, type(a).dtype, {a, b}); }
  ValueId bit_xor(ValueId a, ValueId b) { return raw(Op::kXor, type(a).dtype, {a, b}); }
  ValueId shl(ValueId a, int64_t n) { return raw(Op::kShl, type(a).dtype, {a, like_int(a, n)}); }
  ValueId shr(ValueId a, int64_t n) { return raw(Op::kShr, type(a).dtype, {a, like_int(a, n)}); }
  ValueId lt(ValueId a, ValueId b) { return raw(Op::kLt, DType::kBool, {a, b}); }
  ValueId eq(ValueId a, ValueId b) { return raw(Op::kEq, DType::kBool, {a, b}); }
  ValueId ne(ValueId a, ValueId b) { return raw(Op::kNe, DType::kBool, {a, b}); }
  ValueId select(ValueId c, ValueId a, ValueId b) {
    return raw(Op::kSelect, type(a).dtype, {c, a, b});
  }
  ValueId bitcast(ValueId a, DType t) { return raw(Op::kBitcast, t, {a}); }
  ValueId neg(ValueId a);
  ValueId negated(ValueId condition) { return raw(Op::kNot, DType::kBool, {condition}); }
  /// 2^(x·scale) of float32, at most 2^60, or of NaN; scale in [2^-60, 2^60]. By exp2's
  /// polynomial, from fewer operations, and with its bits where scale is 1: the product is not
  /// rounded.
  ValueId exp2_of_distance(ValueId x, double scale);
  /// a·b + c in one rounding, whatever the hardware (slow without FMA).
  ValueId fma(ValueId a, ValueId b, ValueId c);
  /// a·b + c for sums and polynomials: fused where the hardware has it.
  ValueId mad(ValueId a, ValueId b, ValueId c);
  ValueId mad(ValueId a, ValueId b, double c) { return mad(a, b, like(a, c)); }

 private:
  ValueId append(Value value, BlockId block);
  ValueId intern(Value value);
  ValueId binary_bool(Op op, ValueId a, ValueId b);
  ValueId int_alu(Op op, DType dtype, std::span<const ValueId> args);
  ValueId float_alu(Op op, DType dtype, std::span<const ValueId> args);
  ValueId shift(Op op, DType dtype, ValueId a, ValueId b);
  ValueId int_divide(Op op, DType dtype, ValueId a, ValueId b);
  ValueId is_beyond(Op op, ValueId a, ValueId b);
  ValueId truncate(ValueId a);
  struct Pair {
    ValueId high, low;
  };
  Pair two_sum(ValueId a, ValueId b);
  ValueId add_to_odd(ValueId a, ValueId b);
  ValueId fma_f32_without_hardware(ValueId a, ValueId b, ValueId c);
  ValueId fma_f64_without_hardware(ValueId a, ValueId b, ValueId c);
  ValueId float_to_int(ValueId a, DType dtype);
  ValueId widen_half(ValueId a);
  ValueId widen_f16_in_integers(ValueId bits);
  ValueId narrow_half(ValueId a, DType dtype);

  ValueId plain_dot(DotKind kind, ValueId acc, ValueId a, ValueId b);

  // math.cpp: polynomial expansions; math_slow.cpp: helper functions.
  ValueId exp2(ValueId x);
  ValueId log2(ValueId x);
  ValueId sine(ValueId x);
  ValueId sine_f64(ValueId x, bool is_single);
  ValueId fmod(ValueId x, ValueId y);
  uint32_t large_sine_function();
  uint32_t fmod_function(DType dtype);
  ValueId sine_f32(ValueId x);
  /// Replaces lanes of `value` where `mask` is set by `function` of the same lanes of `args`.
  ValueId patch_lanes(ValueId value, ValueId mask, uint32_t function,
                      std::span<const ValueId> args);
  struct Reduced {
    ValueId high, low, quadrant;
  };
  ValueId sine_from(const Reduced& r, bool is_single);

  using Key =
      std::tuple<uint8_t, uint8_t, uint8_t, uint32_t, int64_t, BlockId, std::vector<ValueId>>;
  Program& program_;
  TargetInfo target_;
  std::map<Key, ValueId> known_;
  BlockId floor_ = kNone;
  BlockId root_ = kNone;  // of the function being built
  uint32_t large_sine_ = kNone, fmod_ = kNone, two_over_pi_ = kNone;
};

}  // namespace bm::compiler
