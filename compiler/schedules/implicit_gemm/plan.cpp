// Implicit GEMM: which loops are rows, columns and K, how each operand is gathered, and tiles.
#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "compiler/schedules/gemm_gpu/contraction.h"
#include "compiler/schedules/gemm_gpu/knobs.h"
#include "compiler/schedules/implicit_gemm/implicit_gemm.h"

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

/// Values behind the product that a work-item computes; more make too much code.
constexpr double kMostImplicitEpilogue = 1200;
/// Registers besides accumulators and fragments.
constexpr double kImplicitRegisters = 48;
/// Rows, columns and bytes of K below which fragments come straight from memory, if they can.
constexpr int64_t kLeastRowsForTiles = 64, kLeastLineBytes = 128;
/// The same for products that matrix instructions could not do otherwise.
constexpr int64_t kLeastRowsAtAll = 16, kLeastBytesAtAll = 64;
/// Stages of one loop of K may have so many steps for each that there is: the rest are zeros.
constexpr double kMostPadding = 1.34;
constexpr int64_t kMostBands = 8;
// Rough cycles of a compute unit. Sources: as of the other plans for matrix instructions; AMD RDNA3
// ISA guide: 512 operations of 16-bit WMMA a cycle.
constexpr double kTileCycles = 8;       ///< 16 by 16 results, 32 bytes of K
constexpr double kBanksCycles = 1;      ///< 128 bytes of shared memory
constexpr double kCacheCycles = 2;      ///< 128 bytes from the cache of all units
constexpr double kWaitCycles = 800;     ///< from asking for a stage until it is there
constexpr double kBarrierCycles = 40;   ///< of a group, each stage
constexpr double kGroupCycles = 1500;   ///< start and end of a group
constexpr double kStoreCycles = 0.125;  ///< of one result
constexpr double kIssueCycles = 0.25;   ///< of one instruction of a sub-group
constexpr double kChunkInstructions = 6, kRowInstructions = 12, kElementInstructions = 24;
/// Elements and chunks put together from them: the same, and with conditions for each of them.
constexpr double kGatedInstructions = 40;

struct ImplicitTile {
  uint32_t warps_m, warps_n, rows, columns;  ///< the latter two of a sub-group
};
constexpr std::array kImplicitTiles = {
    ImplicitTile{4, 2, 64, 64}, ImplicitTile{2, 4, 64, 64}, ImplicitTile{2, 4, 64, 32},
    ImplicitTile{4, 2, 32, 64}, ImplicitTile{2, 2, 64, 64}, ImplicitTile{2, 2, 64, 32},
    ImplicitTile{2, 2, 32, 64}, ImplicitTile{2, 2, 32, 32}, ImplicitTile{4, 1, 32, 32},
    ImplicitTile{1, 4, 32, 32}, ImplicitTile{2, 2, 32, 16}, ImplicitTile{2, 2, 16, 32},
    ImplicitTile{2, 2, 16, 16}};

int64_t product_of(const std::vector<const Node*>& loops) {
  int64_t n = 1;
  for (const Node* r : loops) n *= r->src[0]->imm;
  return n;
}

/// A load, perhaps with a gate, perhaps widened to the type of the sum; else nullptr. Padding by
/// zeros is a choice between the two, which the gate makes already.
const Node* gathered_factor(const Node* n, DType sum) {
  if (n->op == Op::kCast && n->dtype == sum) n = n->src[0];
  if (n->op == Op::kSelect && n->src[2]->is_const() && n->src[2]->imm == 0 &&
      n->src[1]->op == Op::kLoad && n->src[1]->src.size() > 1 && n->src[1]->src[1] == n->src[0])
    n = n->src[1];
  return n->op == Op::kLoad ? n : nullptr;
}

class ImplicitScheduler : GemmPlanner {
 public:
  using GemmPlanner::GemmPlanner;

  std::optional<Schedule> run() {
    if (!find_factors()) return std::nullopt;
    for (const MatrixInfo& info : target_.matrix) {
      if (info.sub_groups != 1 || info.in != loads_[0]->dtype || info.sum != reduce_->dtype)
        continue;
      for (const size_t side : {0u, 1u}) consider(info, loads_[side], loads_[1 - side]);
    }
    return best_ ? finish() : std::nullopt;
  }

 private:
  bool find_factors() {
    if (model_.reduces().size() != 1) return false;
    reduce_ = model_.reduces()[0];
    const Node* product = reduce_->src[0];
    if (reduce_->reduce_op() != ir::ReduceOp::kSum || product->op != Op::kMul) return false;
    for (size_t i = 0; i < 2; ++i) {
      loads_[i] = gathered_factor(product->src[i], reduce_->dtype);
      // What stands for elements that are not there is read from the start.
      if (!loads_[i] || kernel_.params[static_cast<size_t>(loads_[i]->imm)].elements < 16)
        return false;
    }
    return loads_[0]->dtype == loads_[1]->dtype &&
           std::all_of(reduce_->src.begin() + 1, reduce_->src.end(), is_known);
  }

  static bool is_known(const Node* range) {
    return range->src[0]->is_const() && range->src[0]->imm > 0;
  }

  int64_t stride(const Node* load, const Node* range) {
    return model_.strides(range, 0).stride(load->src[0]).value_or(0);
  }
  bool varies(const Node* load, const Node* range) const { return model_.depends(load, range); }
  bool has_fixed_gate(const Node* load, const Node* range) const {
    return load->src.size() < 2 || !model_.depends(load->src[1], range);
  }

  /// Output loops of one side, one that is contiguous in the results or in memory last.
  bool merge(ImplicitOperand* own, const Node* other) {
    own->along.clear();
    for (const Node* r : kernel_.ranges)
      if (varies(own->load, r) && !varies(other, r)) {
        if (!is_known(r)) return false;
        own->along.push_back(r);
      }
    if (own->along.empty()) return false;
    const auto is_stored_along = [&](const Node* r) {
      return model_.strides(r, 0).stride(kernel_.stores[0].index) == 1;
    };
    auto last = std::ranges::find_if(own->along, is_stored_along);
    if (last == own->along.end())
      last = std::ranges::find_if(own->along,
                                  [&](const Node* r) { return stride(own->load, r) == 1; });
    if (last != own->along.end()) std::rotate(last, last + 1, own->along.end());
    return product_of(own->along) < INT32_MAX;
  }

  /// Sixteen bytes from every address that is read are adjacent.
  bool has_chunks(const Node* load, const Node* range) {
    return stride(load, range) == 1 && has_fixed_gate(load, range);
  }
  /// They start at multiples of 16 bytes, or the target does not care.
  bool are_aligned(const Node* load, const Node* range, int64_t count) const {
    return target_.has_unaligned_words ||
           is_row(ir::linear(load->src[0]), range, static_cast<uint32_t>(count));
  }

  void choose_gather(const ImplicitPlan& p, ImplicitOperand* o) {
    const Node *k = p.k.back(), *row = o->along.back();
    const auto is_whole = [&](const Node* range) {
      return range->src[0]->imm % p.per_chunk() == 0;
    };
    o->is_deep = stride(o->load, k) == 1;
    o->is_unaligned = false;
    if (has_chunks(o->load, k) && (is_whole(k) || p.has_tail())) {
      o->gather = Gather::kChunks;
      o->is_unaligned = !are_aligned(o->load, k, p.per_chunk());
    } else if (p.item_bytes() == 2 && has_chunks(o->load, row) && is_whole(row) &&
               are_aligned(o->load, row, p.per_chunk()))
      o->gather = Gather::kRows;
    else
      o->gather = Gather::kElements;
  }

  void consider(const MatrixInfo& info, const Node* left, const Node* right) {
    ImplicitPlan p;
    p.reduce = reduce_;
    p.info = info;
    p.sub_group = target_.sub_group;
    p.left.load = left;
    p.right.load = right;
    if (!merge(&p.left, right) || !merge(&p.right, left)) return;
    const std::vector<const Node*> loops(reduce_->src.begin() + 1, reduce_->src.end());
    if (!is_large_enough(p, product_of(loops)) || product_of(loops) >= INT32_MAX) return;
    for (const Node* last : loops) {
      p.k = loops;
      std::erase(p.k, last);
      p.k.push_back(last);
      for (const bool is_flat : {false, true}) {
        p.is_flat = is_flat;
        const auto steps = static_cast<double>(p.stages() * p.stage_k());
        const bool is_padded = steps > kMostPadding * static_cast<double>(product_of(loops));
        if (is_flat ? loops.size() == 1 : is_padded && loops.size() > 1) continue;
        choose_gather(p, &p.left);
        choose_gather(p, &p.right);
        consider_tiles(p);
      }
    }
  }

  bool is_large_enough(const ImplicitPlan& p, int64_t k) const {
    const int64_t least = std::min(p.left.extent(), p.right.extent());
    const int64_t bytes = k * p.item_bytes();
    if (least >= kLeastRowsForTiles && bytes >= kLeastLineBytes) return true;
    ScheduleLimits limits = limits_;
    return least >= kLeastRowsAtAll && bytes >= kLeastBytesAtAll &&
           !make_matrix_schedule(kernel_, target_, static_cast<uint32_t>(units_), limits);
  }

  void consider_tiles(ImplicitPlan& p) {
    for (const ImplicitTile& tile : kImplicitTiles) {
      p.warps_m = tile.warps_m;
      p.warps_n = tile.warps_n;
      p.left.slots = tile.rows / p.info.slot;
      p.right.slots = tile.columns / p.info.slot;
      consider_tile(p);
    }
  }

  /// Everybody takes as many chunks of 16 bytes, or of eight rows by two steps of K.
  static bool has_share(const ImplicitPlan& p, const ImplicitOperand& o, int64_t rows) {
    const int64_t chunks = ImplicitPlan::kLineBytes / 16;
    return rows * (o.gather == Gather::kRows ? chunks / 2 : chunks) % p.items() == 0;
  }

  void consider_tile(const ImplicitPlan& p) {
    const int64_t bytes = p.stage_words() * 4 * ImplicitPlan::kStages;
    if (p.left.slots == 0 || p.right.slots == 0 || p.left.slots % p.info.a_slots != 0 ||
        p.accumulators() > std::min(kMaxAccumulators, limits_.max_accumulators) ||
        p.items() > target_.max_block || !has_share(p, p.left, p.block_m()) ||
        !has_share(p, p.right, p.block_n()) || bytes > target_.shared_memory_bytes ||
        registers(p) > 250 ||
        (model_.output_nodes() + 1) * p.accumulators() > kMostImplicitEpilogue)
      return;
    const double cost = time(p) * asked_factor(limits_.knobs, {.m = p.block_m(),
                                                               .n = p.block_n(),
                                                               .stages = ImplicitPlan::kStages});
    if (best_ && cost >= least_ * 0.99) return;
    best_ = p;
    least_ = cost;
  }

  /// Of a work-item: accumulators, fragments of one instruction's K, and what is on its way.
  static double registers(const ImplicitPlan& p) {
    const double fragments =
        static_cast<double>(p.left.slots + p.right.slots) * std::max(p.info.words(), 4u);
    // What lies at no multiple of 16 bytes is made of two words for each; two single elements of a
    // word have an address and a gate.
    const auto words = [](const ImplicitOperand& o, int64_t rows) {
      const int each = o.gather == Gather::kElements ? 5 : o.is_unaligned ? 2 : 1;
      return static_cast<double>(rows * ImplicitPlan::kLineBytes / 4 * each);
    };
    const double staged =
        (words(p.left, p.block_m()) + words(p.right, p.block_n())) / static_cast<double>(p.items());
    return p.accumulators() + fragments + staged + kImplicitRegisters / 2;
  }

  static double instructions(const ImplicitPlan& p, const ImplicitOperand& o) {
    if (o.gather == Gather::kRows) return kRowInstructions;
    if (o.gather == Gather::kChunks && !o.is_unaligned) return kChunkInstructions;
    const bool has_conditions =
        o.load->src.size() > 1 || p.is_flat || (p.k_extent() % p.stage_k() != 0 && !p.has_tail());
    return has_conditions ? kGatedInstructions : kElementInstructions;
  }

  /// Cycles of one stage of a group that has the compute unit for itself.
  static double busy(const ImplicitPlan& p) {
    const auto down = static_cast<double>(p.block_m()), across = static_cast<double>(p.block_n());
    const double half = static_cast<double>(ImplicitPlan::kLineBytes) / 128;
    const double products = down / 16 * across / 16 * (ImplicitPlan::kLineBytes / 32.0);
    const double reads = p.info.parts == 1 ? 2 : 1;  // the same read by two halves of a wave
    const double read =
        p.warps_m * p.warps_n * static_cast<double>(p.left_rows() + p.right_rows()) * reads;
    const double chunks = ImplicitPlan::kLineBytes / 16.0 / p.sub_group;
    const double staged =
        (down * instructions(p, p.left) + across * instructions(p, p.right)) * chunks;
    return std::max({products * kTileCycles + staged * kIssueCycles,
                     (read + down + across) * half * kBanksCycles,
                     (down + across) * half * kCacheCycles});
  }

  /// Cycles of the whole kernel.
  double time(const ImplicitPlan& p) {
    double groups = static_cast<double>(p.grid_m() * p.grid_n());
    for (const Node* r : kernel_.ranges)
      if (!std::ranges::count(p.left.along, r) && !std::ranges::count(p.right.along, r))
        groups *= CostModel::trip_count(r);
    const PipeInfo& room = target_.pipe;
    const double bytes = static_cast<double>(p.stage_words()) * 4 * ImplicitPlan::kStages;
    const double memory = std::max<double>(room.cu_memory_bytes, target_.shared_memory_bytes);
    double resident =
        std::floor(std::min({memory / bytes, room.cu_registers / (registers(p) * p.items()),
                             static_cast<double>(room.cu_items) / p.items()}));
    resident = std::clamp(resident, 1.0, std::max(1.0, std::ceil(groups / units_)));
    const double stage = std::max(resident * (busy(p) + kBarrierCycles), kWaitCycles);
    const auto results = static_cast<double>(p.block_m() * p.block_n());
    double t = std::ceil(groups / (units_ * resident)) *
               (static_cast<double>(p.stages()) * stage + kGroupCycles +
                resident * results * kStoreCycles);
    if (model_.strides(p.right.along.back(), 0).stride(kernel_.stores[0].index) != 1) t *= 1.2;
    return t;
  }

  std::optional<Schedule> finish() {
    ImplicitPlan& p = *best_;
    const int64_t rows = p.grid_m(), columns = p.grid_n();
    for (p.band = kMostBands; rows % p.band != 0;) p.band /= 2;
    Schedule s;
    s.grid[0].constant = rows * columns;
    double most = static_cast<double>(rows) * static_cast<double>(columns);
    size_t symbolic = 0;
    // Constants first: at most one extent is known at launch only.
    for (const bool is_const : {true, false})
      for (const Node* r : kernel_.ranges) {
        if (std::ranges::count(p.left.along, r) || std::ranges::count(p.right.along, r) ||
            r->src[0]->is_const() != is_const)
          continue;
        symbolic += !is_const;
        if (symbolic > 1 || !multiply(&s.grid[0], r->src[0], 1)) return std::nullopt;
        most *= static_cast<double>(std::max<int64_t>(r->src[0]->hi, 1));
        s.loops.push_back({.range = r});
      }
    if (most > static_cast<double>(target_.max_groups[0])) return std::nullopt;
    s.grid_loops = static_cast<uint32_t>(s.loops.size());
    s.block = p.items();
    s.work_per_block = static_cast<uint64_t>(p.block_m() * p.block_n() * p.stages() * p.stage_k());
    s.plan = std::make_shared<const ImplicitPlan>(p);
    return s;
  }

  const Node* reduce_ = nullptr;
  const Node* loads_[2] = {};
  std::optional<ImplicitPlan> best_;
  double least_ = 0;
};

std::string gather_text(const ImplicitOperand& o) {
  return fmt::format("{} ({})", o.extent(),
                     o.is_unaligned                ? "16 bytes along K at any address"
                     : o.gather == Gather::kChunks ? "16 bytes along K"
                     : o.gather == Gather::kRows   ? "16 bytes across K, transposed"
                                                   : "single elements");
}

}  // namespace

int64_t ImplicitOperand::extent() const { return product_of(along); }
int64_t ImplicitPlan::k_extent() const { return is_flat ? product_of(k) : k.back()->src[0]->imm; }
int64_t ImplicitPlan::stages() const {
  return is_flat ? stages_per_k() : stages_per_k() * (product_of(k) / k.back()->src[0]->imm);
}

std::optional<Schedule> make_implicit_schedule(const ir::KernelIr& kernel, const TargetInfo& target,
                                               uint32_t units, const ScheduleLimits& limits) {
  if (target.matrix.empty() || !limits.has_tiles) return std::nullopt;
  return ImplicitScheduler(kernel, target, units, limits).run();
}

std::string describe_implicit(const Schedule& schedule) {
  const ImplicitPlan& p = *schedule.implicit();
  return fmt::format(
      "implicit GEMM by MMA: tiles of {} × {} in shared memory, {} × {} sub-groups with tiles of "
      "{} × {}, {} stages of {} steps; M {}, N {}, K {} loop{}{}\n",
      p.block_m(), p.block_n(), p.warps_m, p.warps_n, p.left_rows(), p.right_rows(), p.stages(),
      p.stage_k(), gather_text(p.left), gather_text(p.right), p.k.size(),
      p.k.size() == 1 ? "" : "s", p.is_flat ? ", merged" : "");
}

}  // namespace bm::compiler
