#pragma once
// AttentionPlan: Σ over keys of softmax(f(q·k))·v for many queries, in tiles of queries × keys with
// a running maximum and sum, so that no row of scores is ever whole.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "compiler/targets/target.h"
#include "compiler/ir/kernel.h"
#include "compiler/schedules/schedule.h"

namespace bm::compiler {

class Emitter;
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
  const ir::Node* score = nullptr;                                      ///< f(q·k)
  const ir::Node* total = nullptr;                                      ///< Σ of the powers
  const ir::Node* mix = nullptr;    ///< Σ of power · value; the stores are made of this and total
  DType weight = DType::kF32;       ///< that powers, divided by their sum, are rounded to
  const ir::Node* scale = nullptr;  ///< the power is 2^((score - maximum)·scale); nullptr: 1
  /// Keys from this one on are hidden from the query and those before it; nullptr: none are.
  const ir::Node* hidden_from = nullptr;
  const ir::Node* seen_score = nullptr;  ///< of a key that is not hidden
  /// Where loads of the score vary with the query: the same for queries that may not exist.
  const ir::Node *edge_row = nullptr, *edge_score = nullptr, *edge_product = nullptr;
};

/// Lanes run along the queries. A block of queries belongs to one thread, which packs them
/// transposed (head dimension × queries) and then, block by block of keys, packs keys and values,
/// multiplies, replaces logits by powers of their distance from the maximum so far, and adds up
/// values.
struct AttentionPlan {
  AttentionParts parts;
  uint32_t lanes = 1, vectors = 1;         ///< queries of a query tile: vectors·lanes
  uint32_t key_tile = 1, column_tile = 1;  ///< rows of the register tiles of both products
  int64_t row_block = 1, key_block = 1;    ///< multiples of the query tile, of the key tile
  bool is_transposed_in_registers =
      false;               ///< queries lie so that squares can be transposed in registers
  bool has_loads = false;  ///< scores read something for every query and key
  uint32_t query_tile() const { return vectors * lanes; }
};

/// The same by groups of work-items and matrix instructions on registers (mma.sync): a sub-group
/// has 16 queries, whose fragments, maxima, sums and results it keeps in registers. Keys and values
/// go through local memory, `kKeys` of them at a time, while the next ones are on their way. Scores
/// are left by the first product where the second wants its left operand: they never leave the
/// registers.
struct GroupAttentionPlan {
  static constexpr int64_t kRows = 16;    ///< queries of a sub-group
  static constexpr int64_t kKeys = 64;    ///< of a block
  static constexpr uint32_t kStages = 2;  ///< blocks of keys in local memory
  static constexpr int64_t kLineBytes = 128;
  AttentionParts parts;  ///< scores are in the unit that `scale` belongs to
  MatrixInfo score_info, value_info;
  const ir::Node *query = nullptr, *keys = nullptr, *values = nullptr;  ///< loads
  double scale = 1;  ///< the power is 2^((score - maximum)·scale)
  uint32_t sub_group = 32, sub_groups = 4;
  bool has_loads = false;  ///< scores read something for every query or key
  /// Axis 0 of the grid goes through the heads instead of the blocks of queries, and these come in
  /// the order longest … middle, shortest … middle: the first and second half share compute units.
  bool is_paired = false;
  int64_t rows() const { return kRows * sub_groups; }
  /// Lines of 128 bytes that a row of a factor takes, one per panel.
  static int64_t panels(const ir::Node* load, const ir::Node* along) {
    return (along->src[0]->imm * item_size(load->dtype) + kLineBytes - 1) / kLineBytes;
  }
  int64_t keys_bytes() const { return panels(keys, parts.head_dim) * kKeys * kLineBytes; }
  int64_t stage_bytes() const {
    return keys_bytes() + panels(values, parts.column) * kKeys * kLineBytes;
  }
  /// Queries are there before the second stage is.
  int64_t local_bytes() const {
    const int64_t queries = panels(query, parts.head_dim) * rows() * kLineBytes;
    return stage_bytes() + (queries > stage_bytes() ? queries : stage_bytes());
  }
};

/// Finds attention in a kernel whatever its loops, masks and types; nothing: it is something else.
std::optional<AttentionParts> find_attention_parts(const ir::KernelIr& kernel);

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

}  // namespace bm::compiler
