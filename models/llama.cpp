#include "models/llama.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "models/model_error.h"
#include "runtime/device.h"
#include "tensor/rounded_activations.h"

namespace bm::models {
namespace {

/// Tokens whose attention is worth matrix instructions, as rows of linear layers are.
constexpr int64_t kLeastPrompt = 8;

/// Source: "Deriving Activation Functions Using Integration" (Huang, Schlag, 2024), section 3, and
/// op_xielu() of ggml.
Tensor xielu(const Tensor& x, const BlockConfig::Xielu& p) {
  const Tensor above = x * x * static_cast<double>(p.alpha_p);
  const Tensor least = x.clip(std::nullopt, static_cast<double>(p.eps));
  const Tensor below = (least.exp() - 1.0 - x) * static_cast<double>(p.alpha_n);
  return (x > 0.0).where(above, below) + x * static_cast<double>(p.beta);
}

/// Source: llama.cpp, ggml_swiglu_oai() and its constants in build_moe_ffn().
Tensor clamped_swiglu(const Tensor& gate, const Tensor& up) {
  constexpr double kSteepness = 1.702, kLimit = 7;
  const Tensor g = gate.clip(std::nullopt, kLimit);
  return g * (g * kSteepness).sigmoid() * (up.clip(-kLimit, kLimit) + 1.0);
}

Tensor situ(const Tensor& gate, const Tensor& up, const SituConfig& c) {
  const auto capped = [](const Tensor& x, double cap) { return (x * (1 / cap)).tanh() * cap; };
  const Tensor first = capped(gate, static_cast<double>(c.beta)) * gate.sigmoid();
  return first * (c.linear_beta > 0 ? capped(up, static_cast<double>(c.linear_beta)) : up);
}

/// Of [..., group, count, keys], each head of a group with one more score, which no key has. Taken
/// off by the largest: nothing overflows.
Tensor softmax_with_sinks(const Tensor& scores, const Tensor& sinks) {
  const Tensor largest = scores.max({-1}, true).maximum(sinks).contiguous();
  const Tensor powers = (scores - largest).exp();
  return powers / (powers.sum({-1}, true) + (sinks - largest).exp());
}

/// Smoothly within ±cap; 0: as it is.
Tensor soft_capped(const Tensor& x, float cap) {
  if (cap == 0.0F) return x;
  const double c = static_cast<double>(cap);
  return (x * (1 / c)).tanh() * c;
}

/// Frequency of pair `i` of `rotated` components. Source of YaRN: ggml, rope_yarn() and
/// ggml_rope_yarn_corr_dims().
double frequency_of(const RopeConfig& rope, size_t i, double rotated, double factor) {
  const double base = static_cast<double>(rope.base);
  const double plain = std::pow(base, -2.0 * static_cast<double>(i) / rotated) / factor;
  const double scaled = plain / static_cast<double>(rope.scale);
  if (!rope.is_yarn) return scaled;
  const auto pair_of = [&](float turns) {
    constexpr double kTwoPi = 6.283185307179586;
    return rotated * std::log(rope.original_context / (static_cast<double>(turns) * kTwoPi)) /
           (2 * std::log(base));
  };
  const double fast = pair_of(rope.beta_fast), slow = pair_of(rope.beta_slow);
  const double first = std::max(0.0, rope.is_untruncated ? fast : std::floor(fast));
  const double last = std::min(rotated - 1, rope.is_untruncated ? slow : std::ceil(slow));
  const double at = (static_cast<double>(i) - first) / std::max(0.001, last - first);
  const double share = (1 - std::clamp(at, 0.0, 1.0)) * static_cast<double>(rope.extrapolation);
  return scaled * (1 - share) + plain * share;
}

}  // namespace

namespace {

/// A position of one block, keys first: heads and their length; no heads: there is nothing.
std::array<std::pair<int64_t, int64_t>, 2> cached_vectors(const LlamaConfig& c, size_t block) {
  if (!c.has_own_kv(block) || block < c.encoder_block_count) return {};
  if (c.latent.rank > 0) return {{{1, int64_t{c.latent.rank} + c.rope_length}, {0, 0}}};
  const HeadKind& kind = c.heads_of(block);
  return {{{kind.count_kv, kind.length}, {kind.count_kv, kind.length}}};
}

}  // namespace

uint64_t Llama::cache_bytes(size_t device, DType type) const {
  uint64_t out = 0;
  for (size_t i = first_block_; i < end_block_; ++i) {
    if (place_of_block_[i] != device) continue;
    for (const auto& [heads, length] : cached_vectors(config_, i))
      if (heads > 0) out += KvRows::bytes_per_position(heads, length, type);
    if (has_indexer(i)) out += KvRows::bytes_per_position(1, config_.indexer.length, type);
  }
  return out;
}

uint64_t Llama::state_bytes(size_t device) const {
  const RecurrentConfig& r = config_.recurrent;
  const uint64_t of_block =
      r.kernel == 0 ? 0
                    : (uint64_t{r.channels} * (r.kernel - 1) + r.inner() * r.keys) * sizeof(float);
  uint64_t out = 0;
  for (size_t i = first_block_; i < end_block_; ++i)
    if (place_of_block_[i] == device && config_.blocks[i].is_recurrent) out += of_block;
  // An encoded text is of a fixed size too.
  for (size_t i = config_.encoder_block_count; i < end_block_; ++i)
    for (const auto& [heads, length] : cached_vectors(config_, i))
      if (config_.encoder_block_count > 0 && place_of_block_[i] == device)
        out += context_ * KvRows::bytes_per_position(heads, length, DType::kF16);
  return out;
}

KvCache Llama::make_cache(int64_t capacity, DType type) const {
  KvCache cache;
  cache.type = type;
  cache.capacity = capacity;
  for (auto* list : {&cache.keys, &cache.values}) list->resize(config_.block_count);
  for (auto* list : {&cache.inputs, &cache.states}) list->resize(config_.block_count);
  for (size_t i = first_block_; i < end_block_; ++i) {
    const std::string& device = place(i).device;
    if (config_.blocks[i].is_recurrent) {
      const RecurrentConfig& r = config_.recurrent;
      const auto zeros = [&](const Shape& s) {
        return Tensor::zeros(s, DType::kF32, device).contiguous().realize();
      };
      cache.inputs[i] = zeros({r.channels, r.kernel - 1});
      if (r.heads > 0) cache.states[i] = zeros({r.heads, r.length, r.keys});
    }
    const auto vectors = cached_vectors(config_, i);
    const auto rows = [&](size_t which) {
      const auto& [heads, length] = vectors[which];
      return heads > 0 ? KvRows(capacity, heads, length, type, device) : KvRows();
    };
    cache.keys[i] = rows(0);
    cache.values[i] = rows(1);
    cache.index_keys.resize(config_.block_count);
    if (has_indexer(i))
      cache.index_keys[i] = KvRows(capacity, 1, config_.indexer.length, type, device);
    if (config_.encoder_block_count == 0 || i < config_.encoder_block_count) continue;
    for (auto* list : {&cache.cross_keys, &cache.cross_values}) {
      const auto& [heads, length] = vectors[list == &cache.cross_keys ? 0 : 1];
      list->resize(config_.block_count);
      (*list)[i] = KvRows(context_, heads, length, type, device);
    }
  }
  cache.rope = make_rope_tables(capacity);
  return cache;
}

void Llama::grow(KvCache& cache, int64_t capacity, int64_t used) const {
  for (size_t d = 0; d < device_count(); ++d) {
    // A block's old memory goes when it is copied.
    const uint64_t each = cache_bytes(d, cache.type), had = static_cast<uint64_t>(cache.capacity),
                   copied = had * each / std::max<uint64_t>(1, end_block_ - first_block_),
                   needed = (static_cast<uint64_t>(capacity) - had) * each + copied;
    const std::string& name = places_[d].device;
    runtime::Device& device =
        *unwrap(name.empty() ? runtime::default_device() : runtime::open_device(name));
    const uint64_t free = free_memory(device);
    if (needed <= free) continue;
    raise(Code::kOutOfMemory,
          "keys and values of {} positions need {} more on {}, which has {} free: {} fit; there is "
          "room for {} now",
          capacity, mib(needed), device.name(), mib(free),
          had + (free > copied ? (free - copied) / each : 0), had);
  }
  std::vector<RopeTables> rope = make_rope_tables(capacity);
  for (auto* list : {&cache.keys, &cache.values, &cache.index_keys})
    for (KvRows& rows : *list)
      if (rows.is_valid()) rows.grow(capacity, used);
  cache.rope = std::move(rope);
  cache.capacity = capacity;
}

bool Llama::has_local_rope() const {
  return config_.local_rope != config_.rope &&
         std::any_of(config_.blocks.begin(), config_.blocks.end(),
                     [](const BlockConfig& b) { return b.is_local; });
}

/// Of pairs side by side the whole head is rotated, by nothing where it is not rotated; halves of a
/// part of a head are cut out.
uint64_t Llama::rope_width(const RopeConfig& rope) const {
  const bool is_interleaved = config_.rope_style == RopeStyle::kInterleaved;
  return is_interleaved && config_.latent.rank == 0 ? config_.head_length : rope.length;
}

uint64_t Llama::rope_bytes() const {
  if (config_.rope_style == RopeStyle::kNone) return 0;
  const uint64_t width =
      rope_width(config_.rope) + (has_local_rope() ? rope_width(config_.local_rope) : 0);
  return 2 * width * sizeof(float);
}

std::vector<RopeTables> Llama::make_rope_tables(int64_t length) const {
  std::vector<RopeTables> out(places_.size());
  if (config_.rope_style == RopeStyle::kNone) return out;
  for (size_t i = 0; i < places_.size(); ++i) {
    out[i].all = make_rope_table(config_.rope, length, places_[i].device);
    out[i].local = has_local_rope() ? make_rope_table(config_.local_rope, length, places_[i].device)
                                    : out[i].all;
  }
  return out;
}

RopeTable Llama::make_rope_table(const RopeConfig& rope, int64_t length,
                                 const std::string& device) const {
  const bool is_interleaved = config_.rope_style == RopeStyle::kInterleaved;
  const size_t rotated = rope.length / 2, width = rope_width(rope);
  const auto rows = static_cast<size_t>(length);
  const std::span<const float> factors =
      rope.has_factors ? std::span<const float>(rope_factors_) : std::span<const float>();
  std::vector<float> cosines(rows * width, 1.0F), sines(rows * width, 0.0F);
  const double magnitude = static_cast<double>(rope.magnitude);
  for (size_t i = 0; i < rotated; ++i) {
    const double frequency =
        frequency_of(rope, i, rope.length, factors.empty() ? 1.0 : static_cast<double>(factors[i]));
    const size_t first = is_interleaved ? 2 * i : i;
    const size_t second = is_interleaved ? 2 * i + 1 : i + rotated;
    for (size_t p = 0; p < rows; ++p) {
      const double angle = static_cast<double>(p) * frequency;
      cosines[p * width + first] = cosines[p * width + second] =
          static_cast<float>(magnitude * std::cos(angle));
      // (a, b) → (a·cos − b·sin, b·cos + a·sin): the partner's factor carries the sign.
      sines[p * width + first] = static_cast<float>(-magnitude * std::sin(angle));
      sines[p * width + second] = static_cast<float>(magnitude * std::sin(angle));
    }
  }
  const Shape shape{length, 1, static_cast<int64_t>(width)};
  return {Tensor::from(cosines, shape, device), Tensor::from(sines, shape, device)};
}

/// Source: "Train short, test long" (Press and others, 2021); for numbers of heads that are no
/// power of two ggml_soft_max_ext() of ggml.
Tensor Llama::make_slopes(const std::string& device) const {
  const int64_t heads = config_.head_count, kv_heads = config_.head_count_kv;
  int64_t power = 1;
  while (2 * power <= heads) power *= 2;
  const double bias = static_cast<double>(config_.alibi_bias);
  std::vector<float> slopes;
  for (int64_t h = 0; h < heads; ++h)
    slopes.push_back(static_cast<float>(
        h < power ? std::exp2(-bias / static_cast<double>(power) * static_cast<double>(h + 1))
                  : std::exp2(-bias / 2 / static_cast<double>(power) *
                              static_cast<double>(2 * (h - power) + 1))));
  return Tensor::from(slopes, {kv_heads, heads / kv_heads, 1, 1}, device);
}

Tensor Llama::norm(const Tensor& x, const Norm& n) const {
  if (!n.is_used) return x;
  const auto numbers = [](const Tensor& t) { return t.is_valid() ? t.cast(DType::kF32) : t; };
  const double epsilon = n.epsilon > 0 ? n.epsilon : static_cast<double>(config_.norm_epsilon);
  if (config_.norm == NormKind::kLayer)
    return x.layer_norm(numbers(n.weight), numbers(n.bias), epsilon);
  if (n.groups > 1) {
    const int64_t width = x.size(-1).constant();
    return x.reshape({x.size(0), n.groups, width / n.groups})
               .rms_norm({}, epsilon)
               .reshape({x.size(0), width}) *
           numbers(n.weight);
  }
  const Tensor out = x.rms_norm(numbers(n.weight), epsilon);
  return n.bias.is_valid() ? out + numbers(n.bias) : out;
}

/// Rotary positions of x [count, heads, head length], or of what latent attention rotates.
Tensor Llama::rotate(size_t block, const Tensor& x, const RopeRows& rope) const {
  const RopeTables& tables = rope.tables[place_of_block_[block]];
  const RopeTable& table = config_.blocks[block].is_local ? tables.local : tables.all;
  const bool is_interleaved = config_.rope_style == RopeStyle::kInterleaved;
  const int64_t length = x.size(2).constant(),
                width = is_interleaved ? length : rope_of(block).length;
  const SymInt count = x.size(0), heads = x.size(1);
  const Tensor part = width == length ? x : x.slice(2, {0, width});
  const Shape pairs =
      is_interleaved ? Shape{count, heads, width / 2, 2} : Shape{count, heads, 2, width / 2};
  const Tensor partner = part.reshape(pairs).flip({is_interleaved ? 3 : 2}).reshape(part.shape());
  const Tensor rotated =
      part * rope.rows(table.cosines, width) + partner * rope.rows(table.sines, width);
  if (width == length) return rotated;
  const std::array whole{rotated, x.slice(2, {width, length})};
  return Tensor::cat(whole, 2);
}

// Source: transformers, modeling_deberta_v2.py, DisentangledSelfAttention: what a key says of a
// distance is looked up by the distance from it, which numbers the same.
Tensor Llama::relative_scores(size_t block, const Tensor& queries, const Tensor& keys,
                              const SymInt& count) const {
  const Block& b = blocks_[block];
  const int64_t heads = config_.heads_of(block).count, width = config_.heads_of(block).length;
  const Tensor at = Tensor::arange(count, DType::kI64, place(block).device);
  const Tensor distance = at.unsqueeze(1) - at.unsqueeze(0);  // [query, key]
  const Tensor number = b.relative_numbers.take(distance + int64_t{context_ - 1})
                            .unsqueeze(0)
                            .expand({heads, count, count})
                            .contiguous();
  Tensor out;
  if (b.relative_keys.is_valid())
    out = queries.reshape({count, heads, width})
              .permute({1, 0, 2})
              .matmul(b.relative_keys)
              .contiguous()
              .gather(2, number);
  if (b.relative_queries.is_valid()) {
    const Tensor of_key = b.relative_queries.matmul(keys.transpose()).contiguous();
    const Tensor chosen = of_key.gather(1, number);
    out = out.is_valid() ? out + chosen : chosen;
  }
  return (out * static_cast<double>(config_.attention_scale)).unsqueeze(1);
}

/// Scores [kv, group, count, keys] of keys that a query may not see become −infinity, and those of
/// others fall with distance where the architecture has ALiBi.
Tensor Llama::mask_scores(size_t block, const Tensor& scores, const SymInt& count,
                          const SymInt& position) const {
  const BlockConfig& config = config_.blocks[block];
  const auto& [device, slopes] = place(block);
  const bool is_chunked = config.chunk != 0 && config.chunk < context_;
  const bool has_window = is_chunked || (config.window != 0 && config.window < context_);
  if (const Tensor& bias = blocks_[block].distance_bias; bias.is_valid()) {
    const Tensor at = positions(block, count, position);
    const Tensor keys = Tensor::arange(position + count, DType::kI64, device);
    const Tensor distance = keys.unsqueeze(0) - at.unsqueeze(1);
    const Tensor of_pair = bias.take(distance + int64_t{context_ - 1});
    const Tensor out = scores + of_pair.permute({2, 0, 1}).unsqueeze(1);
    if (!config_.is_causal_in(block) || count.is(1)) return out;
    return (distance <= 0).where(out, -std::numeric_limits<double>::infinity());
  }
  if ((count.is(1) || !config_.is_causal) && !has_window && !slopes.is_valid()) return scores;
  const Tensor query_at = positions(block, count, position).unsqueeze(1);
  const Tensor key_at = Tensor::arange(position + count, DType::kI64, device).unsqueeze(0);
  Tensor out = scores;
  if (!config_.is_causal) {
    const Tensor distance = (key_at - query_at).cast(DType::kF32).abs();
    if (slopes.is_valid()) out = out - slopes * distance;
    // Half a window on either side.
    if (!has_window) return out;
    return (distance <= static_cast<double>(config.window / 2))
        .where(out, -std::numeric_limits<double>::infinity());
  }
  if (slopes.is_valid()) out = out + slopes * (key_at - query_at).cast(DType::kF32);
  Tensor is_visible = key_at <= query_at;
  if (is_chunked) {
    const int64_t chunk = config.chunk;
    is_visible = is_visible & (key_at >= query_at.floor_div(chunk) * chunk);
  } else if (has_window) {
    is_visible = is_visible & (key_at > query_at - int64_t{config.window});
  }
  if (count.is(1) && !has_window) return out;
  return is_visible.where(out, -std::numeric_limits<double>::infinity());
}

Llama::Heads Llama::project_heads(size_t block, const Tensor& x, const SymInt& count,
                                  const RopeRows& rows,
                                  const std::function<Tensor()>& positions) const {
  const Block& b = blocks_[block];
  const BlockConfig& config = config_.blocks[block];
  const HeadKind& kind = config_.heads_of(block);
  const int64_t heads = kind.count, kv_heads = kind.count_kv, width = kind.length,
                value_width = kind.value_length;
  const QuantisedActivations in(x);
  const Tensor all = b.qkv.matrix.is_valid() ? project(in, b.qkv).contiguous() : Tensor();
  const auto take = [&](const Projection& p, int64_t first, int64_t n) {
    Tensor t = all.is_valid() ? all.slice(1, {first, first + n}) : project(in, p);
    if (config_.qkv_limit > 0)
      t = t.clip(-static_cast<double>(config_.qkv_limit), static_cast<double>(config_.qkv_limit));
    return t;
  };
  const auto normed = [&](const Tensor& t, const Norm& n, int64_t h) {
    const bool is_whole =
        n.weight.is_valid() && n.weight.elements() != width && n.weight.shape().size() == 1;
    return is_whole ? norm(t, n).reshape({count, h, width}) : norm(t.reshape({count, h, width}), n);
  };
  // Stored: a rotation reads every number twice. Parts of one matrix are.
  const auto stored = [&](const Tensor& t) { return b.has_joined_heads ? t : t.contiguous(); };
  const bool is_late = config_.row->has(kLateHeadNorms);
  const Norm none;
  Heads out;
  Tensor query = all.is_valid() || !config_.row->has(kDeltaNet)
                     ? stored(take(b.query, 0, heads * width))
                     : project(in, b.query).contiguous().reshape({count, heads, 2 * width});
  if (config_.row->has(kDeltaNet)) {
    out.gate = query.slice(2, {width, 2 * width}).reshape({count, heads * width}).sigmoid();
    query = query.slice(2, {0, width}).contiguous();
  }
  const bool has_kv = config_.has_own_kv(block);
  out.query = normed(query, is_late ? none : b.query_norm, heads);
  if (has_kv) {
    const Tensor key = stored(take(b.key, heads * width, kv_heads * width));
    out.key = normed(key, is_late ? none : b.key_norm, kv_heads);
    // Without a matrix of their own, values are what keys are made of.
    const bool has_values = all.is_valid() || b.value.matrix.is_valid();
    const int64_t first = (heads + kv_heads) * width;
    out.value = (has_values ? take(b.value, first, kv_heads * value_width) : key)
                    .reshape({count, kv_heads, value_width});
    if (value_width < width) out.value = out.value.pad({{0, 0}, {0, 0}, {0, width - value_width}});
    if (config_.row->has(kValueNorm))
      out.value = out.value.rms_norm({}, static_cast<double>(config_.norm_epsilon));
  }
  if (config_.rope_style != RopeStyle::kNone && config.is_rotated) {
    out.query = rotate(block, out.query, rows);
    if (has_kv) out.key = rotate(block, out.key, rows);
    if (config_.has_l2_norm) {
      out.query = out.query.rms_norm({}, static_cast<double>(config_.norm_epsilon));
      out.key = out.key.rms_norm({}, static_cast<double>(config_.norm_epsilon));
    }
  }
  if (config_.temperature_scale != 0.0F && (!config.is_rotated || config_.row->has(kTemperature)))
    out.query = out.query * temperature(positions());
  if (b.attention_gate.matrix.is_valid())
    out.gate = gate_attention(block, in, count, heads * value_width);
  if (is_late) {
    out.query = norm(out.query, b.query_norm);
    out.key = norm(out.key, b.key_norm);
  }
  return out;
}

Tensor Llama::gate_attention(size_t block, const QuantisedActivations& in, const SymInt& count,
                             int64_t values) const {
  const Tensor scores = project(in, blocks_[block].attention_gate);
  const bool is_soft = config_.row->has(kSoftplusGate);
  const double sharpness = static_cast<double>(config_.gate_sharpness);
  const Tensor soft =
      sharpness == 1 ? scores.softplus() : (scores * sharpness).softplus() * (1 / sharpness);
  const Tensor gate = (is_soft ? soft : scores.sigmoid()).contiguous();
  const int64_t parts = gate.size(1).constant();
  return gate.reshape({count, parts, 1})
      .expand({count, parts, values / parts})
      .reshape({count, values});
}

Tensor Llama::temperature(const Tensor& positions) const {
  const Tensor number = positions + int64_t{config_.temperature_offset};
  const Tensor grown =
      (number.floor_div(int64_t{config_.temperature_length}) + 1).cast(DType::kF32).log();
  return (grown * static_cast<double>(config_.temperature_scale) + 1.0).unsqueeze(1).unsqueeze(2);
}

/// Codes of int8 become float16 with their scales: 19 bits of a product are rounded to 11.
DType Llama::factor_type(DType kept) { return kept == DType::kI8 ? DType::kF16 : kept; }

bool Llama::rounds_attention(const Tensor& queries, DType kept, const SymInt& count) {
  return count.max() >= kLeastPrompt && rounded_type(queries, factor_type(kept)).has_value();
}

// Matrix instructions want both factors of a product in one type, as linear layers do: then a
// prompt is one kernel of attention (compiler/schedules/attention). Source: llama.cpp, ggml-cuda's
// fattn-mma-f16.cuh, which rounds queries and weights to float16 too.
Tensor Llama::mix(size_t block, const Tensor& queries, const Tensor& keys, const Tensor& values,
                  DType kept, const SymInt& count, const SymInt& position,
                  const Tensor& chosen) const {
  const HeadKind& kind = config_.heads_of(block);
  const int64_t kv_heads = kind.count_kv, width = kind.length, group = kind.count / kv_heads;
  const bool is_rounded = rounds_attention(queries, kept, count);
  const DType type = factor_type(kept);
  // Where no kernel of attention takes codes, what they become here is stored.
  const auto factor = [&](const Tensor& t) {
    return is_rounded && type != kept ? t.cast(type).cast(DType::kF32) : t;
  };
  // [kv, group, count, width] · [kv, 1, width, end] → scores of every position so far.
  const Tensor grouped = (is_rounded ? rounded_activations(queries, type) : queries)
                             .reshape({count, kv_heads, group, width})
                             .permute({1, 2, 0, 3});
  Tensor scores = grouped.matmul(factor(keys).unsqueeze(1).transpose()) *
                  static_cast<double>(config_.attention_scale);
  scores = soft_capped(scores, config_.attention_softcap);
  if (config_.relative.span > 0) scores = scores + relative_scores(block, queries, keys, count);
  scores = mask_scores(block, scores, count, position);
  if (chosen.is_valid())
    scores = chosen.unsqueeze(1).where(scores, -std::numeric_limits<double>::infinity());
  const Tensor shares = shares_of(block, scores, {kv_heads, group, 1, 1});
  return (is_rounded ? shares.cast(type) : shares)
      .matmul(factor(values).unsqueeze(1))
      .permute({2, 0, 1, 3});
}

Tensor Llama::shares_of(size_t block, const Tensor& scores, const Shape& axes) const {
  const Tensor& sinks = blocks_[block].sinks;
  return sinks.is_valid() ? softmax_with_sinks(scores, sinks.cast(DType::kF32).reshape(axes))
                          : scores.softmax(-1);
}

Tensor Llama::project_output(size_t block, const Tensor& joined) const {
  const Block& b = blocks_[block];
  const Tensor out = project(QuantisedActivations(norm(joined, b.attention_sub_norm)), b.output);
  return config_.value_scale == 1.0F ? out : out * static_cast<double>(config_.value_scale);
}

Tensor Llama::project(const QuantisedActivations& in, const Projection& p) {
  Tensor out = p.matrix.linear(in);
  if (p.scale.is_valid()) out = out * p.scale.cast(DType::kF32);
  return p.bias.is_valid() ? out + p.bias.cast(DType::kF32) : out;
}

Tensor Llama::activate(size_t block, const Tensor& x) const {
  switch (config_.activation) {
    case Activation::kGelu: return x.gelu();
    case Activation::kExactGelu: return x.gelu(false);
    case Activation::kReluSquared: return x.relu() * x.relu();
    case Activation::kRelu: return x.relu();
    case Activation::kXielu: return xielu(x.contiguous(), config_.blocks[block].xielu);
    default: return x.silu();
  }
}

Tensor Llama::join_values(size_t block, const Tensor& mixed, const SymInt& count) const {
  const HeadKind& kind = config_.heads_of(block);
  const int64_t heads = kind.count, width = kind.length, values = kind.value_length;
  if (values == width) return mixed.reshape({count, heads * width});
  return mixed.reshape({count, heads, width})
      .slice(2, {0, values})
      .reshape({count, heads * values});
}

Tensor Llama::after_block(size_t block, const Tensor& x) const {
  const bool is_between = config_.loop_length > 0 && (block + 1) % config_.loop_length == 0 &&
                          block + 1 < config_.block_count;
  return is_between && config_.has_loop_norm ? norm(x, output_norm_).contiguous() : x;
}

Tensor Llama::activated(size_t block, const Tensor& gate, const Tensor& up, float limit) const {
  if (limit > 0) {
    const double most = static_cast<double>(limit);
    // Before the activation. Source: llama.cpp, src/llama-graph.cpp, and what its library gives.
    if (config_.architecture == "maple" || config_.architecture == "hy_v4")
      return activate(block, gate.clip(std::nullopt, most)) * up.clip(-most, most);
    return activate(block, gate).clip(std::nullopt, most) * up.clip(-most, most);
  }
  if (config_.activation == Activation::kSitu) return situ(gate, up, config_.situ);
  return config_.activation == Activation::kClampedSwiglu ? clamped_swiglu(gate, up)
                                                          : activate(block, gate) * up;
}

Tensor Llama::gated(size_t block, const QuantisedActivations& in, const Projection& gate,
                    const Projection& up, const Projection& down) const {
  const double sparsity = static_cast<double>(config_.blocks[block].sparsity);
  Tensor scores = project(in, gate);
  if (sparsity > 0) {
    scores = scores.contiguous();
    scores = (scores - (scores.mean({-1}, true) + scores.std({-1}, true) * sparsity)).relu();
  }
  const Tensor product = activated(block, scores, project(in, up), config_.blocks[block].limit);
  return project(QuantisedActivations(product), down);
}

Tensor Llama::positions(size_t block, const SymInt& count, const SymInt& first) const {
  const std::string& at = place(block).device;
  return Tensor::arange(count, DType::kI64, at) + Tensor::value_of(first, at);
}

Tensor Llama::attend(size_t block, const Tensor& x, const SymInt& count, const SymInt& position,
                     KvCache& cache) const {
  const BlockConfig& config = config_.blocks[block];
  if (config_.latent.rank > 0 && config.has_attention)
    return attend_latent(block, x, count, position, cache);
  if (config.is_linear) return project_output(block, x);
  if (!config.is_recurrent) return attend_heads(block, x, count, position, cache);
  if (!config.has_attention) return attend_recurrent(block, x, count, position, cache);
  const Tensor in = x.contiguous();
  return attend_heads(block, in, count, position, cache) +
         attend_recurrent(block, in, count, position, cache);
}

Llama::RopeRows Llama::rope_rows(const KvCache& cache, const SymInt& count,
                                 const SymInt& position) {
  return {cache.rope, [count, position](const Tensor& table, int64_t width) {
            return table.shrink({{position, position + count}, {0, 1}, {0, width}});
          }};
}

Tensor Llama::attend_heads(size_t block, const Tensor& x, const SymInt& count,
                           const SymInt& position, KvCache& cache) const {
  const size_t source = config_.blocks[block].kv_block;
  KvRows &keys = cache.keys[source], &values = cache.values[source];
  const Heads h = project_heads(block, x, count, rope_rows(cache, count, position),
                                [&] { return positions(block, count, position); });
  const Tensor chosen = chosen_of(block, x, {}, count, position, cache);
  if (source == block) {
    keys.store(position, count, h.key);
    values.store(position, count, h.value);
  }
  const SymInt end = position + count;
  const Tensor mixed =
      join_values(block,
                  mix(block, h.query, keys.load(end).permute({1, 0, 2}),
                      values.load(end).permute({1, 0, 2}), keys.type(), count, position, chosen),
                  count);
  return project_output(block, h.gate.is_valid() ? mixed * h.gate : mixed);
}

/// Without a cache: every token sees all others.
Tensor Llama::attend_all(size_t block, const Tensor& x, const SymInt& count,
                         std::span<const RopeTables> rope) const {
  const Heads h = project_heads(
      block, x, count,
      {rope, [&](const Tensor& table,
                 int64_t width) { return table.shrink({{0, count}, {0, 1}, {0, width}}); }},
      [&] { return Tensor::arange(count, DType::kI64, place(block).device); });
  const Tensor keys = h.key.permute({1, 0, 2}).contiguous(),
               values = h.value.permute({1, 0, 2}).contiguous();
  return project_output(
      block, join_values(block, mix(block, h.query, keys, values, DType::kF32, count, 0), count));
}

Tensor Llama::attend_cross(size_t block, const Tensor& x, const SymInt& count,
                           const KvCache& cache) const {
  const Cross& cross = blocks_[block].cross;
  const HeadKind& kind = config_.heads_of(block);
  const int64_t kv_heads = kind.count_kv, width = kind.length, group = kind.count / kv_heads;
  const auto past = [&](const KvRows& rows) {
    return rows.load(cache.encoded).permute({1, 0, 2}).unsqueeze(1);
  };
  const Tensor queries = project(QuantisedActivations(norm(x, cross.norm)), cross.query)
                             .contiguous()
                             .reshape({count, kv_heads, group, width})
                             .permute({1, 2, 0, 3});
  const Tensor scores = queries.matmul(past(cache.cross_keys[block]).transpose()) *
                        static_cast<double>(config_.attention_scale);
  const Tensor mixed = scores.softmax(-1).matmul(past(cache.cross_values[block]));
  return project(
      QuantisedActivations(join_values(block, mixed.permute({2, 0, 1, 3}).contiguous(), count)),
      cross.output);
}

Tensor Llama::feed_forward(size_t block, const Tensor& x) const {
  const Block& b = blocks_[block];
  if (!b.experts.down.is_valid()) return dense_feed_forward(block, x);
  const bool has_both = config_.row->has(kDenseToo) && b.up.matrix.is_valid();
  if (!has_both) return mix_experts(block, x);
  const Tensor in = x.contiguous();
  return (dense_feed_forward(block, in) + mix_experts(block, in)) * std::sqrt(0.5);
}

Tensor Llama::dense_feed_forward(size_t block, const Tensor& x) const {
  const Block& b = blocks_[block];
  const QuantisedActivations in(x);
  Tensor hidden;
  switch (b.feed_forward) {
    case FeedForward::kGated: {
      if (!b.feed_forward_sub_norm.is_used) return gated(block, in, b.gate, b.up, b.down);
      const Tensor scores = project(in, b.gate);
      hidden = activated(block, scores, project(in, b.up), 0).contiguous();
      hidden = norm(hidden, b.feed_forward_sub_norm);
      break;
    }
    case FeedForward::kPlain: hidden = activate(block, project(in, b.up)); break;
    case FeedForward::kFused: {
      const int64_t length = config_.blocks[block].feed_forward_length;
      const Tensor both = project(in, b.up).contiguous();
      hidden = activate(block, both.slice(1, {0, length})) * both.slice(1, {length, 2 * length});
      break;
    }
  }
  return project(QuantisedActivations(hidden), b.down);
}

Tensor Llama::bring(size_t block, const Tensor& x) const {
  const bool is_here =
      block == first_block_ || place_of_block_[block] == place_of_block_[block - 1];
  return is_here ? x : x.contiguous().to(place(block).device);
}

bool Llama::has_mixer(size_t block) const {
  const BlockConfig& config = config_.blocks[block];
  return config.has_attention || config.is_recurrent || config.is_linear;
}

Tensor Llama::feed_forward_of_sum(size_t block, const Tensor& sum, const Tensor& x,
                                  const Tensor& in) const {
  const Block& b = blocks_[block];
  if (config_.row->has(kExpertsBesideDense) && config_.blocks[block].has_experts) {
    const Experts& e = b.experts;
    const Tensor dense =
        norm(dense_feed_forward(block, norm(sum, b.feed_forward_norm)), e.dense_after);
    const double scale = 1 / std::sqrt(static_cast<double>(config_.embedding_length));
    const Tensor routed = sum.rms_norm({}, static_cast<double>(config_.norm_epsilon)) * scale *
                          e.input_scale.cast(DType::kF32);
    const Tensor mixed = norm(mix_experts(block, norm(sum, e.before), routed), e.after);
    return norm(dense + mixed, b.feed_forward_post_norm);
  }
  if (config_.row->has(kExpertsOfInput) && config_.blocks[block].has_experts)
    return dense_feed_forward(block, norm(sum, b.feed_forward_norm)) +
           mix_experts(block, norm(x, b.experts.before));
  if (config_.row->has(kEarlyRouter) && config_.blocks[block].has_experts)
    return mix_experts(block, norm(sum, b.feed_forward_norm), x);
  Tensor read = config_.is_parallel ? in : norm(sum, b.feed_forward_norm);
  if (config_.is_parallel && b.feed_forward_norm.is_used) read = norm(x, b.feed_forward_norm);
  return norm(feed_forward(block, read), b.feed_forward_post_norm);
}

Tensor Llama::run_block(size_t block, const Tensor& x, const Tensor& inputs,
                        const std::function<Tensor(const Tensor&)>& attention) const {
  const Block& b = blocks_[block];
  if (config_.altup.count > 0) return run_altup_block(block, x, inputs, attention);
  if (config_.hyper.count > 0) return run_hyper_block(block, x, attention);
  if (config_.kept_every > 0) return run_keeping_block(block, x, attention);
  const auto scaled = [&](const Tensor& t) {
    return config_.residual_scale == 1.0F ? t : t * static_cast<double>(config_.residual_scale);
  };
  if (config_.row->has(kNormsAfterSums)) {
    Tensor sum = norm(x + attention(x), b.attention_post_norm).contiguous();
    if (b.second_post_norm.is_used) sum = norm(sum + x, b.second_post_norm).contiguous();
    return norm(sum + feed_forward(block, sum), b.feed_forward_post_norm).contiguous();
  }
  const Tensor in = norm(x, b.attention_norm);
  if (!config_.blocks[block].has_feed_forward)
    return has_mixer(block) ? x + scaled(attention(in)) : x;
  if (!has_mixer(block)) return x + scaled(feed_forward(block, norm(in, b.feed_forward_norm)));
  const Tensor attention_in =
      b.second_attention_norm.is_used ? norm(x, b.second_attention_norm) : in;
  const Tensor sum = x + scaled(norm(attention(attention_in), b.attention_post_norm));
  Tensor out = sum + scaled(feed_forward_of_sum(block, sum, x, in));
  if (inputs.is_valid()) {
    out = out.contiguous();
    out = out + layer_input(block, out, inputs);
  }
  return b.scale.is_valid() ? out * b.scale.cast(DType::kF32) : out;
}

/// x [m, embedding length] → [m, vocabulary].
Tensor Llama::project_logits(const Tensor& x) const {
  const QuantisedActivations in(norm(x, output_norm_));
  Tensor logits = output_.matrix.linear(in);
  if (output_.scale.is_valid()) logits = logits * output_.scale.cast(DType::kF32);
  if (output_.bias.is_valid()) logits = logits + output_.bias.cast(DType::kF32);
  if (config_.logit_scale != 1.0F) logits = logits * static_cast<double>(config_.logit_scale);
  logits = soft_capped(logits, config_.logit_softcap);
  // A number still: whoever asks for logits takes infinities for damage.
  return suppressed_.is_valid() ? (suppressed_ > 0.0).where(-1e30, logits) : logits;
}

Tensor Llama::embed(const Tensor& tokens, const std::function<Tensor(const Tensor& table)>& rows,
                    const Tensor& kinds) const {
  Tensor x = embedding_.take(tokens);
  if (config_.embedding_scale != 1.0F) x = x * static_cast<double>(config_.embedding_scale);
  if (token_types_.is_valid()) x = x + token_types_.take(kinds).cast(DType::kF32);
  if (positions_.is_valid()) x = x + rows(positions_).cast(DType::kF32);
  return norm(x, embedding_norm_);
}

Tensor Llama::encode(const Tensor& tokens, const Tensor& kinds, const SymInt& count,
                     std::span<const RopeTables> rope) const {
  const auto rows = [&](const Tensor& table) {
    return table.shrink({{0, count}, {0, config_.embedding_length}});
  };
  Tensor x = embed(tokens.shrink({{0, count}}), rows, kinds.shrink({{0, count}}));
  Tensor inputs = layer_inputs(tokens.shrink({{0, count}}), x);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (inputs.is_valid()) inputs = bring(i, inputs);
    x = run_block(i, bring(i, x), inputs,
                  [&](const Tensor& in) { return attend_all(i, in, count, rope); });
  }
  const Tensor out = norm(x, output_norm_).contiguous();
  return output_.matrix.is_valid() ? project(QuantisedActivations(out), output_).contiguous() : out;
}

Tensor Llama::encode_prompt(const Tensor& tokens, KvCache& cache) const {
  const SymInt& count = cache.encoded;
  const size_t decoder = config_.encoder_block_count;
  Tensor x = embed(tokens.shrink({{0, count}}), [](const Tensor& table) { return table; });
  for (size_t i = 0; i < decoder; ++i)
    x = run_block(i, bring(i, x), {},
                  [&](const Tensor& in) { return attend_all(i, in, count, cache.rope); });
  const Tensor out = norm(x, encoder_norm_).contiguous();
  Tensor at = out;
  for (size_t i = decoder; i < end_block_; ++i) {
    at = bring(i, at);
    const Cross& cross = blocks_[i].cross;
    const HeadKind& kind = config_.heads_of(i);
    const QuantisedActivations read(at);
    const auto store = [&](KvRows& rows, const Projection& made) {
      rows.store(0, count,
                 project(read, made).contiguous().reshape({count, kind.count_kv, kind.length}));
    };
    store(cache.cross_keys[i], cross.key);
    store(cache.cross_values[i], cross.value);
  }
  return out;
}

Tensor Llama::forward(const Tensor& in, const SymInt& count, const SymInt& position,
                      KvCache& cache) const {
  Tensor x, inputs;
  if (is_first_stage()) {
    const Tensor tokens = in.shrink({{0, count}});
    x = embed(tokens, [&](const Tensor& table) {
      // By number: the cache may be for more positions than the table.
      return table.take(Tensor::arange(count, DType::kI64, device()) +
                        Tensor::value_of(position, device()));
    });
    inputs = layer_inputs(tokens, x);
    x = widen(x);
  } else {
    x = in.shrink({{0, count}, {0, static_cast<int64_t>(config_.stream_length())}});
  }
  const size_t decoder = config_.encoder_block_count;
  // Tokens go in where the encoder's first block is.
  if (decoder > 0 && place_of_block_[decoder - 1] != 0)
    x = x.contiguous().to(place(decoder - 1).device);
  for (size_t i = std::max(first_block_, decoder); i < end_block_; ++i) {
    if (inputs.is_valid()) inputs = bring(i, inputs);
    x = bring(i, x);
    x = is_rwkv() ? run_rwkv_block(i, x, rwkv_steps(i, count, position, cache))
                  : run_block(i, x, inputs, [&](const Tensor& y) {
                      const Tensor own = attend(i, y, count, position, cache);
                      if (decoder == 0) return own;
                      const Tensor stored = own.contiguous();
                      return stored + attend_cross(i, (x + stored).contiguous(), count, cache);
                    });
    x = after_block(i, x);
  }
  cache.chosen = {};
  if (!is_last_stage()) return x.contiguous();
  const auto width = static_cast<int64_t>(config_.stream_length());
  const Tensor last = narrow(x.shrink({{count - 1, count}, {0, width}}));
  return project_logits(last).reshape({config_.vocab_size}).contiguous();
}

}  // namespace bm::models
