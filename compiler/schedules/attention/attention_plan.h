#pragma once
// AttentionPlan: Σ over keys of softmax(f(q·k))·v for many queries, in tiles of queries × keys with
// a running maximum and sum, so that no row of logits is ever whole.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compiler/targets/target.h"
#include "compiler/ir/kernel.h"
#include "compiler/schedules/schedule.h"

namespace bm::compiler {

class Emitter;
struct DecodeAttentionPlan;
struct Rewritten;

/// What the kernel is made of. All nodes belong to `kernel`, whose queries are one loop.
struct AttentionParts {
  std::shared_ptr<ir::KernelIr> kernel;
  std::vector<const ir::Node*> batch;  ///< output loops that keys or values vary along
  const ir::Node* row = nullptr;       ///< output loop over queries
  const ir::Node* column = nullptr;    ///< output loop over the elements of a result
  const ir::Node* key = nullptr;       ///< loop over the keys
  const ir::Node* head_dim = nullptr;  ///< loop of the products q·k
  const ir::Node *query = nullptr, *keys = nullptr, *values = nullptr;  ///< factors
  const ir::Node* product = nullptr;                                    ///< q·k
  const ir::Node* logit = nullptr;                                      ///< f(q·k)
  const ir::Node* row_max = nullptr;  ///< row max: maximum of the logits
  const ir::Node* row_sum = nullptr;  ///< row sum: Σ of the numerators
  const ir::Node* pv =
      nullptr;  ///< P·V: Σ of numerator · value; the stores are made of this and row_sum
  DType weight = DType::kF32;       ///< that numerators, divided by their sum, are rounded to
  const ir::Node* scale = nullptr;  ///< the numerator is 2^((logit - row max)·scale); nullptr: 1
  /// Keys from this one on are masked for the query and those before it; nullptr: none are.
  const ir::Node* causal_bound = nullptr;
  const ir::Node* unmasked_logit = nullptr;  ///< of a key that is not masked
  /// Where loads of the logit vary with the query: the same for queries that may not exist.
  const ir::Node *edge_row = nullptr, *edge_logit = nullptr, *edge_product = nullptr;
};

/// A key or value as it is in memory, along its elements.
struct AttentionLine {
  const ir::Node* load = nullptr;   ///< nullptr: it is something else
  const ir::Node* scale = nullptr;  ///< of int8 codes: what each is multiplied by
};
/// Loads may be of an index that is looked up (page tables). `codes`: so many have one scale, from
/// any multiple of as many on.
AttentionLine find_attention_line(const ir::Node* n, const ir::Node* along, int64_t codes);

/// Lanes run along the queries. A block of queries belongs to one thread, which packs them
/// transposed (head dimension × queries) and then, block by block of keys, packs keys and values,
/// multiplies, replaces logits by exponentials of their distance from the row max so far, and adds
/// up values.
struct AttentionPlan {
  AttentionParts parts;
  uint32_t lanes = 1, vectors = 1;         ///< queries of a query tile: vectors·lanes
  uint32_t key_tile = 1, column_tile = 1;  ///< rows of the register tiles of both products
  int64_t row_block = 1, key_block = 1;    ///< multiples of the query tile, of the key tile
  bool is_transposed_in_registers =
      false;               ///< queries lie so that squares can be transposed in registers
  bool has_loads = false;  ///< logits read something for every query and key
  uint32_t query_tile() const { return vectors * lanes; }
};

/// The same by groups of work-items and matrix instructions on registers: a sub-group has 16
/// queries, whose row max, row sum and result it keeps in registers. Keys and values go through
/// local memory, `key_block` of them at a time, while the next ones are on their way. Logits are
/// left by the first product where the second wants an operand: they never leave the registers.
///
/// Instructions whose results lie along rows (mma.sync) multiply queries by keys and weights by
/// values; those whose results lie along columns (WMMA, MFMA: is_transposed) keys by queries and
/// values by weights, so that a work-item has logits of one query only.
struct GroupAttentionPlan {
  static constexpr int64_t kRows = 16;  ///< queries of a sub-group
  static constexpr int64_t kLineBytes = 128;
  static constexpr int64_t kCodes = 16;  ///< int8 codes of 16 bytes, with one scale
  /// Elements of a query that stay in registers; longer ones are read again for every block of
  /// keys.
  static constexpr int64_t kMostKept = 128;
  int64_t key_block = 64;  ///< a power of two
  uint32_t stages = 2;     ///< blocks of keys in shared memory
  AttentionParts parts;    ///< logits are in the unit that `scale` belongs to
  MatrixInfo logit_info, value_info;
  /// Warpgroup MMA: keys and values are multiplied where they lie in shared memory, by four
  /// sub-groups together; what these have in registers is laid out as for mma.sync.
  bool has_warpgroups = false;
  const ir::Node *query = nullptr, *keys = nullptr, *values = nullptr;  ///< loads
  /// Of int8 codes: the float16 that kCodes of them are multiplied by on their way to shared
  /// memory, where they are float16; nullptr: nothing.
  const ir::Node *key_scale = nullptr, *value_scale = nullptr;
  double scale = 1;  ///< the numerator is 2^((logit - row max)·scale)
  uint32_t sub_group = 32, sub_groups = 4;
  bool has_loads = false;  ///< logits read something for every query or key
  /// Axis 0 of the grid goes through the heads instead of the blocks of queries, and these come in
  /// the order longest … middle, shortest … middle: the first and second half share compute units.
  bool is_paired = false;
  std::shared_ptr<const DecodeAttentionPlan> decode;  ///< not nullptr: nothing else counts
  int64_t rows() const { return kRows * sub_groups; }
  bool is_transposed() const { return logit_info.row_step != 0; }
  bool keeps_queries() const { return parts.head_dim->src[0]->imm <= kMostKept; }
  bool has_codes() const { return key_scale != nullptr || value_scale != nullptr; }
  /// Of a factor in shared memory.
  static DType staged_type(const ir::Node* load) {
    return load->dtype == DType::kI8 ? DType::kF16 : load->dtype;
  }
  /// Lines of 128 bytes that a row of a factor takes, one per panel.
  static int64_t panels(const ir::Node* load, const ir::Node* along) {
    return (along->src[0]->imm * item_size(staged_type(load)) + kLineBytes - 1) / kLineBytes;
  }
  int64_t keys_bytes() const {
    if (is_transposed()) return wave_panels() * key_block * kWaveLine;
    return panels(keys, parts.head_dim) * key_block * kLineBytes;
  }
  int64_t stage_bytes() const {
    if (is_transposed()) return keys_bytes() + parts.column->src[0]->imm * kWaveLine;
    return keys_bytes() + panels(values, parts.column) * key_block * kLineBytes;
  }
  int64_t query_bytes() const {
    if (is_transposed()) return wave_panels() * rows() * kWaveLine;
    return panels(query, parts.head_dim) * rows() * kLineBytes;
  }
  /// Queries that are kept in registers are in shared memory before the second stage is.
  int64_t local_bytes() const {
    if (!keeps_queries()) return stages * stage_bytes() + query_bytes();
    if (is_transposed()) return stages * stage_bytes();
    return stage_bytes() + (query_bytes() > stage_bytes() ? query_bytes() : stage_bytes());
  }
  /// is_transposed: lines of 64 bytes along K (ChunkStage), of keys and of elements of the results.
  static constexpr int64_t kWaveLine = 64, kWaveKeys = 32;
  int64_t wave_panels() const { return (parts.head_dim->src[0]->imm + 31) / 32; }
};

/// Decoding: few queries for each set of keys, which memory bounds. A group of work-items has the
/// queries of a few heads that share keys; a team of lanes of it takes a key, a chunk of 16 bytes
/// (eight codes) of it each, then the value in the same way, with a row max, row sum and result of
/// its own. What the teams have is joined in shared memory. Plans are of kernels by split_attention
/// (split.h): the keys are one part of them all, and beside the result its log-sum-exp is stored.
struct DecodeAttentionPlan {
  AttentionParts parts;                               ///< row nullptr: one query
  const ir::Node *keys = nullptr, *values = nullptr;  ///< loads
  /// Of int8 codes: what those of a chunk are multiplied by; nullptr: nothing.
  const ir::Node *key_scale = nullptr, *value_scale = nullptr;
  double scale = 1;                           ///< the numerator is 2^((logit - row max)·scale)
  int64_t rows = 1;                           ///< queries of a group
  uint32_t team = 32;                         ///< lanes of a key; a power of two
  uint32_t key_chunks = 1, value_chunks = 1;  ///< of a lane
  uint32_t unroll = 4;                        ///< keys of a team that are on their way at once
  uint32_t sub_group = 32, block = 128;

  static constexpr int64_t kCodes = 8;  ///< int8 codes of a chunk, with one scale

  int64_t head_dim() const { return parts.head_dim->src[0]->imm; }
  int64_t columns() const { return parts.column->src[0]->imm; }
  uint32_t teams() const { return block / team; }
  uint32_t sub_groups() const { return block / sub_group; }
  /// Of int8 codes eight bytes: sixteen would take twice the registers for queries and results.
  static int64_t chunk_items(const ir::Node* load) {
    return load->dtype == DType::kI8 ? kCodes : 16 / item_size(load->dtype);
  }
  /// Partial results, row max and row sum for each query, of every sub-group.
  int64_t shared_bytes() const { return sub_groups() * rows * (columns() + 2) * 4; }
};

/// Finds attention in a kernel whatever its loops, masks and types; nothing: it is something else.
/// The first store is the result; others are left as they are. `may_lack_rows`: parts without a row
/// are those of one query.
std::optional<AttentionParts> find_attention_parts(const ir::KernelIr& kernel,
                                                   bool may_lack_rows = false);

/// For kernels that split_attention makes.
std::optional<Schedule> make_decode_attention_schedule(const ir::KernelIr& kernel,
                                                       const TargetInfo& target, uint32_t units,
                                                       ScheduleLimits limits = {});
void lower_decode_attention(Emitter& e);
std::string describe_decode_attention(const Schedule& schedule);
std::vector<Knobs> decode_attention_candidates(const ir::KernelIr& kernel, const TargetInfo& target,
                                               const Schedule& schedule, const Knobs& from);

/// For attention of enough queries per set of keys. Targets without work-groups.
std::optional<Schedule> make_attention_schedule(const ir::KernelIr& kernel,
                                                const TargetInfo& target, uint32_t units,
                                                ScheduleLimits limits);

/// The same for targets with work-groups and the instructions that a GroupAttentionPlan is made of.
std::optional<Schedule> make_group_attention_schedule(const ir::KernelIr& kernel,
                                                      const TargetInfo& target, uint32_t units,
                                                      ScheduleLimits limits = {});

/// The kernel whose loops and expressions the parts name.
Rewritten rewritten(const AttentionParts& parts);
/// Lower schedules with an AttentionPlan, with a GroupAttentionPlan.
void lower_tiled_attention(Emitter& e);
void lower_flash_attention(Emitter& e);
/// Of those, plans that are transposed.
void lower_wave_attention(Emitter& e);

}  // namespace bm::compiler
