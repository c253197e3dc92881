// Mixture of experts: every token takes a few of many feed-forwards.
//
// A pair of a token and one of its experts is multiplied with that expert's matrices, which its
// number finds in the stack: what no token chose is neither read nor computed. A token at a time,
// weights are read once. In a prompt every pair reads its expert anew: tokens sorted by expert
// would need as many kernels, or as large ones, as an expert has tokens, and that is known on the
// device alone; the host would have to wait in every block, and captured programs could not hold
// it.
#include <limits>

#include "models/llama.h"

namespace bm::models {
namespace {

/// Numbers of the k largest of each line [m, n] → [m, k].
Tensor best(const Tensor& scores, int64_t k) { return scores.topk(k, 1).second.contiguous(); }

/// Scores [m, n] of all but the best groups become −infinity. Source: modeling_deepseek.py of
/// DeepSeek-V3 (topk_method noaux_tc: a group counts what its two best have) and of DeepSeek-V2
/// (group_limited_greedy: its best).
Tensor within_groups(const Tensor& scores, int64_t groups, int64_t used, bool counts_two) {
  const SymInt m = scores.size(0);
  const int64_t n = scores.size(1).constant(), each = n / groups;
  const Tensor parts = scores.reshape({m, groups, each}).contiguous();
  const Tensor of_group = counts_two ? parts.topk(2, 2).first.sum({2}) : parts.max({2});
  const Tensor chosen = best(of_group.contiguous(), used);
  const Tensor number =
      Tensor::arange(groups, DType::kI64, scores.device().name()).reshape({1, groups, 1});
  const Tensor is_in = (number == chosen.unsqueeze(1)).any({2}).unsqueeze(2);
  return is_in.expand({m, groups, each})
      .where(parts, -std::numeric_limits<double>::infinity())
      .reshape({m, n})
      .contiguous();
}

}  // namespace

std::pair<Tensor, Tensor> Llama::route(const Block& b, const QuantisedActivations& x) const {
  const ExpertConfig& e = config_.experts;
  const int64_t used = e.used;
  Tensor logits = project(x, b.experts.router).contiguous();
  if (e.softcap != 0.0F) {
    const double cap = static_cast<double>(e.softcap);
    logits = ((logits * (1 / cap)).tanh() * cap).contiguous();
  }
  Tensor scores = logits;
  if (e.gating == Gating::kSoftmax) scores = logits.softmax(1).contiguous();
  if (e.gating == Gating::kSigmoid) scores = logits.sigmoid().contiguous();
  Tensor ranks = config_.row->has(kWeightedInputs) ? logits : scores;
  const bool is_biased = b.experts.router_bias.is_valid();
  if (is_biased) ranks = (ranks + b.experts.router_bias.cast(DType::kF32)).contiguous();
  if (e.groups_used < e.groups) ranks = within_groups(ranks, e.groups, e.groups_used, is_biased);
  const Tensor chosen = best(ranks, used);
  Tensor weights = scores.gather(1, chosen).contiguous();
  if (e.gating == Gating::kSoftmaxOfSelected) weights = weights.softmax(1);
  // The least sum is llama.cpp's, the smallest normal number of float16.
  if (e.is_normalised) weights = weights / weights.sum({1}, true).maximum(6.103515625e-5);
  if (e.scale != 1.0F) weights = weights * static_cast<double>(e.scale);
  if (b.experts.scales.is_valid())
    weights = weights * b.experts.scales.cast(DType::kF32).take(chosen);
  return {chosen, weights.contiguous()};
}

// Of two experts that share one it is computed twice. Source: inclusionAI's modeling_grove_moe.py.
// llama.cpp's grovemoe.cpp gives these what the experts have given to read, and takes the weights
// of the experts whose numbers are those of the groups.
Tensor Llama::mix_adjugates(size_t block, const QuantisedActivations& of_pair, const Tensor& chosen,
                            const Tensor& weights) const {
  const ExpertConfig& e = config_.experts;
  const Experts& w = blocks_[block].experts;
  const int64_t each = e.adjugate.each, groups = e.count / each, used = e.used;
  const SymInt m = chosen.size(0);
  const Tensor group = chosen.floor_div(each).reshape({m * used}).cast(DType::kU32).contiguous();
  const Tensor up = w.adjugate_up.linear(of_pair, group, groups).contiguous();
  const Tensor gate = w.adjugate_gate.linear(of_pair, group, groups).contiguous();
  const QuantisedActivations hidden(activated(block, gate, up, 0).contiguous());
  const Tensor out = w.adjugate_down.linear(hidden, group, groups)
                         .reshape({m, used, int64_t{config_.embedding_length}})
                         .contiguous();
  return (out * weights.unsqueeze(2)).sum({1}) * static_cast<double>(e.adjugate.scale);
}

Tensor Llama::mix_experts(size_t block, const Tensor& x, const Tensor& routed) const {
  const Block& b = blocks_[block];
  const ExpertConfig& e = config_.experts;
  const Experts& w = b.experts;
  const SymInt m = x.size(0);
  const int64_t count = e.count, used = e.used,
                width = e.latent > 0 ? e.latent : config_.embedding_length;
  const QuantisedActivations in(x.contiguous());
  const auto [chosen, weights] =
      routed.is_valid() ? route(b, QuantisedActivations(routed.contiguous())) : route(b, in);
  const SymInt pairs = m * used;
  const Tensor expert = chosen.reshape({pairs}).cast(DType::kU32).contiguous();
  const auto biased = [&](const Tensor& product, const Tensor& scale, const Tensor& bias) {
    const Tensor t = scale.is_valid()
                         ? product * scale.take(expert).cast(DType::kF32).reshape({pairs, 1})
                         : product;
    return bias.is_valid() ? t + bias.take(expert).cast(DType::kF32) : t;
  };
  const float limit = config_.blocks[block].expert_limit;
  const bool weighs_inputs = config_.row->has(kWeightedInputs);
  const QuantisedActivations read =
      e.latent > 0 ? QuantisedActivations(project(in, w.latent_in).contiguous()) : in;
  const QuantisedActivations weighted(
      weighs_inputs ? (x.unsqueeze(1) * weights.unsqueeze(2)).reshape({pairs, width}) : Tensor());
  const QuantisedActivations repeated = read.repeat(used);
  const QuantisedActivations& of_pair = weighs_inputs ? weighted : repeated;
  const auto hidden_of_pairs = [&] {
    if (w.gate_up.is_valid()) {
      const int64_t length = e.length;
      const Tensor both =
          biased(w.gate_up.linear(of_pair, expert, count), w.up_scale, {}).contiguous();
      return activated(block, both.slice(1, {0, length}), both.slice(1, {length, 2 * length}),
                       limit);
    }
    // Stored: two products in one kernel are computed slower than one after the other.
    const Tensor up =
        biased(w.up.linear(of_pair, expert, count), w.up_scale, w.up_bias).contiguous();
    if (!w.gate.is_valid()) return activate(block, up);
    const Tensor gate =
        biased(w.gate.linear(of_pair, expert, count), w.gate_scale, w.gate_bias).contiguous();
    return activated(block, gate, up, limit);
  };
  const QuantisedActivations hidden(hidden_of_pairs().contiguous());
  Tensor out = biased(w.down.linear(hidden, expert, count), w.down_scale, w.down_bias)
                   .reshape({m, used, width});
  if (!weighs_inputs) out = out.contiguous() * weights.unsqueeze(2);
  out = out.sum({1});
  if (w.sum_bias.is_valid()) out = out + w.sum_bias.cast(DType::kF32);
  if (w.adjugate_up.is_valid()) out = out + mix_adjugates(block, of_pair, chosen, weights);
  // Source: "LatentMoE" (NVIDIA, 2026); llama.cpp, src/models/nemotron-h.cpp, kimi-k3.cpp.
  if (e.latent > 0)
    out = project(QuantisedActivations(norm(out.contiguous(), w.latent_norm).contiguous()),
                  w.latent_out);
  if (!w.shared_up.matrix.is_valid()) return out;
  Tensor shared;
  if (w.shared_gate.matrix.is_valid()) {
    shared = gated(block, in, w.shared_gate, w.shared_up, w.shared_down);
  } else {
    Tensor hidden_of_shared = project(in, w.shared_up);
    const int64_t length = e.shared_length;
    if (hidden_of_shared.size(1).constant() == 2 * length) {  // of gate and up together
      const Tensor both = hidden_of_shared.contiguous();
      hidden_of_shared =
          activated(block, both.slice(1, {0, length}), both.slice(1, {length, 2 * length}), 0);
    } else {
      hidden_of_shared = activate(block, hidden_of_shared);
    }
    shared = project(QuantisedActivations(hidden_of_shared.contiguous()), w.shared_down);
  }
  if (w.shared_router.is_valid()) shared = shared * w.shared_router.linear(in).sigmoid();
  return config_.row->has(kHalvedExperts) ? (out + shared) * 0.5 : out + shared;
}

}  // namespace bm::models
