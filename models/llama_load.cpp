// Loading: names, shapes and formats of weights; what has no use; what fits in memory.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>

#include "models/embedding_head.h"
#include "models/llama.h"
#include "models/llama_blocks.h"
#include "models/llama_kept_weights.h"
#include "models/model_error.h"
#include "runtime/buffer.h"
#include "runtime/device.h"
#include "runtime/device_list.h"

namespace bm::models {
namespace {

constexpr const char *kEmbedding = "token_embd.weight", *kOutput = "output.weight",
                     *kFactors = "rope_freqs.weight", *kLongFactors = "rope_factors_long.weight",
                     *kShortFactors = "rope_factors_short.weight",
                     *kTokenTypes = "token_types.weight",
                     *kLayerEmbedding = "per_layer_token_embd.weight";

/// Stored type if kernels read it directly.
std::optional<DType> direct_dtype(GgmlType type) {
  switch (type) {
    case GgmlType::kF32: return DType::kF32;
    case GgmlType::kF16: return DType::kF16;
    case GgmlType::kBF16: return DType::kBF16;
    default: return std::nullopt;
  }
}

std::string dims_text(std::span<const uint64_t> dims) {
  std::string out = "[";
  for (uint64_t d : dims) out += fmt::format("{}{}", out.size() > 1 ? ", " : "", d);
  return out + "]";
}

}  // namespace

class LlamaLoader {
 public:
  LlamaLoader(std::shared_ptr<const GgufFile> file, const Llama::LoadOptions& options)
      : file_(std::move(file)), options_(options) {}

  Result<std::shared_ptr<const Llama>> run() {
    auto model = std::make_shared<Llama>();
    model_ = model.get();
    BM_TRY(look());
    const LlamaConfig& c = model_->config_;
    BM_TRY(check_memory());
    if (options_.keep_weights)
      kept_ = BM_TRY(KeptWeights::open(*devices_[0], *file_, std::move(items_[0])));
    is_loading_ = true;
    BM_TRY(load_all());
    if (kept_) {
      BM_TRY(kept_->finish());
      model_->attached_bytes_ = kept_->attached_bytes();
      model_->uploaded_bytes_ = kept_->uploaded_bytes();
    }
    if (c.alibi_bias > 0)
      for (Llama::Place& place : model_->places_) place.slopes = model_->make_slopes(place.device);
    return std::shared_ptr<const Llama>(std::move(model));
  }

  Result<std::vector<Llama::MemoryNeed>> measure(DType cache_type) {
    Llama model;
    model_ = &model;
    BM_TRY(look());
    const LlamaConfig& c = model.config_;
    std::vector<Llama::MemoryNeed> out;
    for (size_t i = 0; i < devices_.size(); ++i) {
      Llama::MemoryNeed need{.device = devices_[i]->name(), .context = model.context_};
      need.free = free_memory(*devices_[i]);
      for (const KeptWeights::Item& item : items_[i]) need.weights += item.bytes;
      need.per_position = model.cache_bytes(i, cache_type) + model.rope_bytes();
      uint64_t blocks = 0;
      for (uint32_t b = 0; b < c.block_count; ++b) {
        if (model.place_of_block_[b] != i) continue;
        ++blocks;
      }
      need.states = model.state_bytes(i);
      // What one block has of a piece of a prompt at once, and the logits.
      const uint64_t hidden =
          std::max<uint64_t>(c.feed_forward_length,
                             c.experts.used * c.experts.length + uint64_t{c.experts.shared_length});
      const uint64_t of_token = 3 * uint64_t{c.embedding_length} +
                                uint64_t{c.head_length} * (c.head_count + 2 * c.head_count_kv) +
                                2 * hidden;
      const uint64_t rows = c.is_causal ? Llama::kPromptPiece : model.context_;
      need.scratch = (blocks > 0 ? of_token * rows : 0) * sizeof(float) +
                     (i + 1 == devices_.size() ? c.vocab_size * sizeof(float) : 0);
      out.push_back(std::move(need));
    }
    return out;
  }

 private:
  /// Once without loading: what does not fit or is not understood is known before any work.
  Status look() {
    LlamaConfig& c = model_->config_;
    c = BM_TRY(LlamaConfig::from_gguf(*file_));
    BM_TRY(open_devices());
    model_->context_ =
        options_.context ? options_.context : std::min<uint32_t>(c.context_length, 4096);
    if (model_->context_ > c.context_length)
      return fail(Code::kInvalidArgument,
                  "context {} exceeds the {} positions the model was made for", model_->context_,
                  c.context_length);
    BM_TRY(divide_blocks());
    BM_TRY(load_all());
    return check_all_used();
  }

  std::shared_ptr<const GgufFile> file_;
  const Llama::LoadOptions& options_;
  Llama* model_ = nullptr;
  std::vector<runtime::Device*> devices_;  ///< in the order of model_->places_
  size_t at_ = 0;                          ///< the one that is loaded to
  bool is_here_ = true;                    ///< what is looked at belongs to this stage
  uint64_t done_ = 0, total_ = 0;
  bool is_loading_ = false;                            ///< false: tensors are only looked at
  std::set<std::string_view> used_;                    ///< names
  std::vector<std::vector<KeptWeights::Item>> items_;  ///< of a device, in the order of loading
  std::unique_ptr<KeptWeights> kept_;                  ///< nullptr: weights go with the process

  runtime::Device& device() const { return *devices_[at_]; }
  const std::string& device_name() const { return model_->places_[at_].device; }

  Status open_devices() {
    const auto names = runtime::device_list(options_.device);
    for (const std::string& name : names) {
      if (name.empty() && names.size() > 1)
        return fail(Code::kInvalidArgument, "\"{}\" has an empty name of a device",
                    options_.device);
      devices_.push_back(
          BM_TRY(name.empty() ? runtime::default_device() : runtime::open_device(name)));
      if (std::ranges::count(devices_, devices_.back()) > 1)
        return fail(Code::kInvalidArgument, "\"{}\" names {} twice", options_.device,
                    devices_.back()->name());
      model_->places_.push_back({.device = name, .slopes = {}});
    }
    items_.resize(devices_.size());
    if (options_.keep_weights && devices_.size() > 1)
      return fail(Code::kUnsupported,
                  "weights are kept on one device; \"{}\" names {} (--keep-weights)",
                  options_.device, devices_.size());
    return {};
  }

  /// Consecutive items to each of `parts`, one at least, so that sums of `bytes` are as `shares`.
  /// An item goes where its middle lies.
  static std::vector<size_t> divide(std::span<const double> bytes, std::span<const double> shares) {
    const double all = std::accumulate(bytes.begin(), bytes.end(), 1.0),
                 shares_sum = std::accumulate(shares.begin(), shares.end(), 1.0);
    std::vector<size_t> out;
    size_t part = 0;
    double done = 0, end = shares[0];
    for (size_t i = 0; i < bytes.size(); ++i) {
      const bool is_full = (done + bytes[i] / 2) / all >= end / shares_sum,
                 is_needed_later = bytes.size() - i < shares.size() - part;
      if (part + 1 < shares.size() && (is_full || is_needed_later) && !out.empty() &&
          out.back() == part)
        end += shares[++part];
      out.push_back(part);
      done += bytes[i];
    }
    return out;
  }

  /// Blocks of this stage, by the bytes of their tensors, and of each of its devices, by the memory
  /// that is free there too.
  Status divide_blocks() {
    const uint32_t blocks = model_->config_.block_count;
    std::vector<double> bytes(blocks);
    for (const GgufTensor& t : file_->tensors())
      for (uint32_t i = 0; i < blocks; ++i)
        if (t.name.starts_with(model_->config_.block_prefix(i)))
          bytes[i] += static_cast<double>(t.data.size());
    if (options_.stages > 1 && model_->config_.encoder_block_count > 0)
      return fail(Code::kUnsupported,
                  "{}: what this model reads of a text is read by all blocks that write, which "
                  "processes do not share; one process divides it over several devices",
                  model_->config_.architecture);
    if (options_.stages > 1 && !model_->config_.is_causal)
      return fail(Code::kUnsupported,
                  "{}: this model makes embeddings, which processes do not share; one process "
                  "divides it over several devices",
                  model_->config_.architecture);
    // Blocks that read keys and values of others are where those are, and so is all between; blocks
    // that several passes go through are together.
    size_t units = model_->config_.loop_length > 0 ? 1 : blocks;
    for (uint32_t i = 0; i < blocks; ++i)
      if (model_->config_.blocks[i].kv_block != i)
        units = std::min<size_t>(units, model_->config_.blocks[i].kv_block + 1);
    if (options_.stages > 1 && (units < blocks || model_->config_.layer_input_length > 0))
      return fail(Code::kUnsupported,
                  "{}: blocks of this model read more than what the block before gives, which "
                  "processes do not share; one process divides it over several devices",
                  model_->config_.architecture);
    if (blocks < options_.stages)
      return fail(Code::kInvalidArgument, "{} stages; the model has {} blocks", options_.stages,
                  blocks);
    const auto stages = divide(bytes, std::vector<double>(options_.stages, 1.0));
    for (uint32_t i = 1; i < blocks; ++i)
      if (stages[i] != stages[i - 1] && model_->is_indexed(i) && !model_->has_indexer(i))
        return fail(Code::kUnsupported,
                    "{}: block {} reads what an indexer before it has chosen, which processes do "
                    "not share; another number of stages, or a context of {} at most, does not "
                    "need it",
                    model_->config_.architecture, i, model_->config_.indexed_from);
    const auto mine = std::ranges::equal_range(stages, options_.stage);
    model_->first_block_ = static_cast<size_t>(mine.begin() - stages.begin());
    model_->end_block_ = static_cast<size_t>(mine.end() - stages.begin());
    const size_t parts = std::min(units, mine.size());
    if (parts < devices_.size())
      return fail(Code::kInvalidArgument, "\"{}\" names {} devices; the model has {} blocks{}",
                  options_.device, devices_.size(), parts,
                  options_.stages > 1 ? " in this stage"
                  : units < blocks    ? " that can be apart"
                                      : "");
    std::vector<double> room;
    for (runtime::Device* d : devices_) room.push_back(static_cast<double>(free_memory(*d)));
    model_->place_of_block_.assign(blocks, 0);
    std::vector<double> apart(bytes.begin() + static_cast<ptrdiff_t>(model_->first_block_),
                              bytes.begin() + static_cast<ptrdiff_t>(model_->end_block_));
    for (; apart.size() > parts; apart.pop_back()) apart[parts - 1] += apart.back();
    std::vector<size_t> places = divide(apart, room);
    places.resize(mine.size(), places.back());
    std::ranges::copy(
        places, model_->place_of_block_.begin() + static_cast<ptrdiff_t>(model_->first_block_));
    return {};
  }

  bool can_use_in_place(const GgufTensor& t, DType dtype) const {
    const hal::Vendor vendor = device().hal().arch().vendor;
    const bool is_host = vendor == hal::Vendor::kCpu || vendor == hal::Vendor::kRef;
    return is_host &&
           reinterpret_cast<uintptr_t>(t.data.data()) % static_cast<uintptr_t>(item_size(dtype)) ==
               0;
  }

  /// NULL stands for a CPU or, where it runs work-groups, for a card of NVIDIA or AMD.
  bool is_for_gpu() const {
    const hal::Arch& arch = device().hal().arch();
    return arch.vendor == hal::Vendor::kAmd || arch.vendor == hal::Vendor::kNv ||
           (arch.vendor == hal::Vendor::kNull && arch.max_block > 1);
  }

  /// Tables that no vector is multiplied with.
  bool is_only_taken(const GgufTensor& t) const {
    return t.name == kLayerEmbedding ||
           (t.name == kEmbedding && file_->find_tensor(kOutput) != nullptr);
  }

  /// Whether the matrix is packed. CPUs read what lies in the order of their loops faster; GPUs
  /// keep what is in blocks, a quarter of the memory and of the bytes per token or less. Elsewhere
  /// int8 is multiplied no faster than float32.
  bool is_packed(const GgufTensor& t) const {
    const bool is_stack =
        t.rank == 3 && (t.name.ends_with("_exps.weight") || t.name.ends_with("_chexps.weight"));
    // Rows that are only taken are best where they are.
    if (direct_dtype(t.type) && is_only_taken(t)) return false;
    const hal::Vendor vendor = device().hal().arch().vendor;
    const bool is_cpu =
        vendor == hal::Vendor::kCpu || (vendor == hal::Vendor::kNull && !is_for_gpu());
    if (t.type == GgmlType::kF32 && !options_.packs_float32) return false;
    return options_.keep_blocks && (is_cpu || (is_for_gpu() && !direct_dtype(t.type))) &&
           (t.rank == 2 || (is_stack && t.dims[1] % kPackedRows == 0)) &&
           Matrix::can_pack(t.type, t.dims[1], t.dims[0]);
  }

  uint64_t bytes_of(const GgufTensor& t) const {
    if (is_packed(t))
      return Matrix::packed_bytes(t.type, t.dims[1] * (t.rank == 3 ? t.dims[2] : 1), t.dims[0]);
    return bytes_of_plain(t);
  }

  static uint64_t bytes_of_plain(const GgufTensor& t) {
    // Weights used in place count too: reading them from disk for every token is no way to run.
    return direct_dtype(t.type) ? t.data.size() : t.value_count * sizeof(float);
  }

  /// Refuses a model that cannot fit before a byte is allocated. Caches grow with use.
  Status check_memory() {
    const int64_t positions = std::min<int64_t>(model_->context_, KvCache::kFirstCapacity);
    uint64_t in_host_memory = 0;  // which all devices of the host share
    for (size_t i = 0; i < devices_.size(); ++i) {
      uint64_t needed = 0;
      for (const KeptWeights::Item& item : items_[i]) {
        total_ += item.tensor->data.size();
        needed += item.bytes;
      }
      const uint64_t cache = model_->cache_bytes(i, DType::kF16) * static_cast<uint64_t>(positions);
      const bool is_host = devices_[i]->hal().is_inline();
      const uint64_t free = free_memory(*devices_[i]);
      const uint64_t available = is_host ? free - std::min(free, in_host_memory) : free;
      if (needed + cache > available)
        return fail(Code::kOutOfMemory,
                    "{} has {} free of {}; the model needs {} there for weights and {} for the "
                    "first {} positions of keys and values",
                    devices_[i]->name(), mib(available), mib(devices_[i]->hal().memory().total),
                    mib(needed), mib(cache), positions);
      if (is_host) in_host_memory += needed + cache;
    }
    return {};
  }

  /// `dims` in the file's order (fastest first).
  Result<const GgufTensor*> find(const std::string& name, std::initializer_list<uint64_t> dims) {
    const GgufTensor& t = *BM_TRY(file_->tensor(name));
    const std::span<const uint64_t> have(t.dims.data(), t.rank), want(dims.begin(), dims.size());
    if (!std::equal(have.begin(), have.end(), want.begin(), want.end()))
      return fail(Code::kCorrupt, "tensor {} has dimensions {}, the hyper-parameters ask for {}",
                  name, dims_text(have), dims_text(want));
    used_.insert(t.name);
    return &t;
  }

  void report(const GgufTensor& t) {
    done_ += t.data.size();
    if (options_.progress) options_.progress(done_, total_);
  }

  Result<Tensor> load(const std::string& name, std::initializer_list<uint64_t> dims) {
    const GgufTensor& t = *BM_TRY(find(name, dims));
    if (!is_loading_) {
      if (is_here_) items_[at_].push_back({&t, bytes_of_plain(t), false});
      return Tensor();
    }
    Tensor out = make(t);
    report(t);
    return out;
  }

  Result<Matrix> load_matrix(const std::string& name, uint64_t columns, uint64_t rows) {
    return load_rows(*BM_TRY(find(name, {columns, rows})), columns, rows);
  }

  /// All experts' matrices [columns, rows, experts]; `experts`: 0 is their number.
  Result<Matrix> load_stack(const std::string& name, uint64_t columns, uint64_t rows,
                            uint64_t experts = 0) {
    if (experts == 0) experts = model_->config_.experts.count;
    return load_rows(*BM_TRY(find(name, {columns, rows, experts})), columns, rows * experts);
  }

  Matrix load_rows(const GgufTensor& t, uint64_t columns, uint64_t rows) {
    if (!is_loading_) {
      if (is_here_) items_[at_].push_back({&t, bytes_of(t), is_packed(t)});
      return Matrix();
    }
    Matrix out;
    if (is_packed(t)) {
      const bool is_there = kept_ && kept_->next();
      out = Matrix::pack(t.type, t.data, static_cast<int64_t>(rows), static_cast<int64_t>(columns),
                         device_name(), kept_.get(), is_there,
                         [this](std::span<const std::byte> part) { file_->release(part); });
    } else {
      out = Matrix(make(t));
      if (!is_only_taken(t)) model_->has_plain_matrices_ = true;
    }
    report(t);
    return out;
  }

  Tensor make(const GgufTensor& t) {
    Shape shape;
    for (uint64_t d : t.shape()) shape.push_back(static_cast<int64_t>(d));
    if (kept_) return make_kept(t, shape);
    if (const auto dtype = direct_dtype(t.type)) {
      if (!can_use_in_place(t, *dtype)) {
        Tensor out = Tensor::from_bytes(t.data, shape, *dtype, device_name());
        file_->release(t.data);
        return out;
      }
      // Kernels only read weights; the mapping lives as long as the tensor.
      void* pointer = const_cast<std::byte*>(t.data.data());
      return Tensor::from_blob(pointer, shape, *dtype, device_name(), [keep = file_] {});
    }
    Tensor out = Tensor::empty(shape, DType::kF32, device_name());
    if (std::byte* host = out.buffer().host()) {
      unwrap(dequantize_row(t.type, t.data,
                            {reinterpret_cast<float*>(host), static_cast<size_t>(t.value_count)}));
      file_->release(t.data);
      out.buffer().storage->note_write();
      return out;
    }
    std::vector<float> values(t.value_count);
    unwrap(dequantize_row(t.type, t.data, values));
    return Tensor::from(values, shape, device_name());
  }

  Tensor make_kept(const GgufTensor& t, const Shape& shape) {
    const bool is_there = kept_->next();
    const std::optional<DType> dtype = direct_dtype(t.type);
    Tensor out = kept_->make(shape, dtype.value_or(DType::kF32));
    if (is_there) return out;
    if (dtype) {
      unwrap(runtime::copy_in(out.buffer(), t.data));
      return out;
    }
    std::vector<float> values(t.value_count);
    unwrap(dequantize_row(t.type, t.data, values));
    unwrap(runtime::copy_in(out.buffer(), std::as_bytes(std::span(values))));
    return out;
  }

  Status load_optional(Tensor& into, const std::string& name,
                       std::initializer_list<uint64_t> dims) {
    if (file_->find_tensor(name)) into = BM_TRY(load(name, dims));
    return {};
  }

  /// What a tensor without a use here would have changed cannot be known.
  Status check_all_used() const {
    for (const GgufTensor& t : file_->tensors())
      if (!used_.contains(t.name) && !is_idle(t.name))
        return fail(Code::kUnsupported,
                    "tensor {} has no use in a model of architecture {} here: without it the text "
                    "would be wrong",
                    quote_name(t.name), model_->config_.architecture);
    return {};
  }

  /// Tables of frequencies that early converters kept in every block; rope.freq_base says the same.
  /// Source: llama.cpp, gguf-py/gguf/constants.py, MODEL_TENSOR_SKIP. And blocks that guess.
  bool is_idle(std::string_view name) const {
    const LlamaConfig& c = model_->config_;
    if (!c.is_causal && name == kOutput) return true;
    if (is_embedding_head(name)) return true;  // of who pools hidden states
    // Of activations that are quantised to 4 bits: here they have more. Source: llama.cpp, gguf-py,
    // and its CPU backend, which does not read them.
    if (name.ends_with(".input_scale")) return true;
    // The share that the first block's values would have of themselves.
    if (c.row->has(kRwkv7) && name.starts_with("blk.0.time_mix_v") && name.size() > 16 &&
        name[16] <= '2')
      return true;
    for (uint32_t i = 0; i < c.draft_block_count; ++i)
      if (name.starts_with(fmt::format("blk.{}.", c.block_count + i))) return true;
    for (uint32_t i = 0; i < c.block_count; ++i) {
      const std::string p = fmt::format("blk.{}.", i);
      if (name == p + "attn_rot_embd.weight") return true;
      // What is read of an encoded text has no distances. Source: transformers, modeling_t5.py,
      // T5LayerCrossAttention.
      if (name == c.block_prefix(i) + "cross_attn_rel_b.weight") return true;
      if (c.row->has(kIndexed) && name.starts_with(p + "indexer.")) return true;
      // Blocks that read the keys and values of others were trained with some of their own.
      if (c.blocks[i].kv_block == i) continue;
      for (const char* unused : {"attn_k.weight", "attn_v.weight", "attn_k_norm.weight"})
        if (name == p + unused) return true;
    }
    return false;
  }

  /// Frequencies of Llama 3 and of LongRoPE, which has two sets: for texts that fit what the model
  /// was first trained for, and for longer ones.
  Status load_factors() {
    const LlamaConfig& c = model_->config_;
    const bool is_long = model_->context_ > c.rope.original_context;
    for (const char* name : {kFactors, kLongFactors, kShortFactors}) {
      if (!file_->find_tensor(name) || (name != kFactors && !c.rope.is_longrope)) continue;
      // Blocks that are rotated without factors may rotate more.
      const bool is_longer = !c.local_rope.has_factors && c.local_rope.length > c.rope_length;
      const uint32_t pairs = (is_longer ? c.local_rope.length : c.rope_length) / 2;
      const GgufTensor& t = *BM_TRY(find(name, {pairs}));
      if (name != kFactors && (name == kLongFactors) != is_long) continue;
      model_->rope_factors_.resize(pairs);
      BM_TRY(dequantize_row(t.type, t.data, model_->rope_factors_));
      for (const float factor : model_->rope_factors_)
        if (!(factor > 0) || !std::isfinite(factor))
          return fail(Code::kCorrupt, "tensor {} has a factor of {}", name, factor);
    }
    return {};
  }

  enum class Need : uint8_t { kYes, kIfThere };

  /// `name` without ".weight" and ".bias". Of several axes: a gain for every element.
  Result<Llama::Norm> load_norm(const std::string& name, std::initializer_list<uint64_t> dims,
                                Need need) {
    const LlamaConfig& c = model_->config_;
    Llama::Norm norm;
    if (c.row->has(kNormsWithoutGain)) {
      norm.is_used = need == Need::kYes;
      return norm;
    }
    // The converters of Falcon-H1 and PLaMo 3 leave the suffix out. Source: llama.cpp,
    // src/models/falcon-h1.cpp.
    const bool has_suffix = file_->find_tensor(name + ".weight") || !file_->find_tensor(name);
    const std::string weight = has_suffix ? name + ".weight" : name;
    if (need == Need::kIfThere && !file_->find_tensor(weight)) return norm;
    norm.is_used = true;
    norm.weight = BM_TRY(load(weight, dims));
    // Norms of heads are of each by itself.
    if (dims.size() == 1 && *dims.begin() == c.embedding_length && !name.ends_with("_q_norm") &&
        !name.ends_with("_k_norm"))
      norm.groups = c.norm_groups;
    // PhiMoE was trained with means taken off; its files are run without. Source: llama.cpp,
    // phi3.cpp.
    if (c.norm == NormKind::kLayer || c.architecture == "phimoe")
      BM_TRY(load_optional(norm.bias, name + ".bias", dims));
    return norm;
  }

  Result<Llama::Projection> load_projection(const std::string& name, uint64_t columns,
                                            uint64_t rows) {
    Llama::Projection p;
    p.matrix = BM_TRY(load_matrix(name + ".weight", columns, rows));
    BM_TRY(load_optional(p.bias, name + ".bias", {rows}));
    // Of numbers of 4 bits. Gemma 4 has something else by the name that its router's would have.
    if (!name.ends_with("ffn_gate_inp")) BM_TRY(load_optional(p.scale, name + ".scale", {1}));
    return p;
  }

  /// Of each head alone, by one gain for all or one for each; or of all heads together.
  Result<Llama::Norm> load_head_norm(const std::string& name, uint64_t heads, uint64_t length) {
    const GgufTensor* t = file_->find_tensor(name + ".weight");
    if (t != nullptr && t->rank == 2) return load_norm(name, {length, heads}, Need::kIfThere);
    const bool is_whole = t != nullptr && t->rank == 1 && t->dims[0] == heads * length;
    Llama::Norm norm =
        BM_TRY(load_norm(name, {is_whole ? heads * length : length}, Need::kIfThere));
    // Gains of every head, one after the other, in files of K2 Horizon.
    if (model_->config_.architecture == "k2-horizon" && is_whole && is_loading_)
      norm.weight =
          norm.weight.reshape({static_cast<int64_t>(heads), static_cast<int64_t>(length)});
    return norm;
  }

  /// Distances share numbers by buckets: half of those of a direction are of one distance each, the
  /// others grow like powers up to 128. Where tokens see only those before them there is one
  /// direction. Blocks without a tensor have the first one's. Source: transformers, modeling_t5.py,
  /// _relative_position_bucket().
  Status load_distance_bias(uint32_t block, const std::string& p, Llama::Block* b) {
    const LlamaConfig& c = model_->config_;
    const uint32_t buckets = c.distance_buckets, heads = c.head_count;
    if (buckets == 0) return {};
    const bool has_own = file_->find_tensor(p + "attn_rel_b.weight") != nullptr;
    const bool is_causal = c.is_causal_in(block);
    const uint32_t first = is_causal ? c.encoder_block_count : 0;
    const std::string name = (has_own ? p : c.block_prefix(first)) + "attn_rel_b.weight";
    const GgufTensor& t = *BM_TRY(find(name, {heads, buckets}));
    if (!is_loading_) return {};
    std::vector<float> learned(t.value_count), each;
    BM_TRY(dequantize_row(t.type, t.data, learned));
    const int64_t farthest = int64_t{model_->context_} - 1,
                  half = is_causal ? buckets : buckets / 2, exact = half / 2;
    for (int64_t d = -farthest; d <= farthest; ++d) {
      const int64_t distance = std::abs(d);
      int64_t bucket = distance;
      if (distance >= exact) {
        const double share = std::log(static_cast<double>(distance) / static_cast<double>(exact)) /
                             std::log(128.0 / static_cast<double>(exact));
        const auto further = static_cast<int64_t>(share * static_cast<double>(half - exact));
        bucket = std::min(half - 1, exact + further);
      }
      if (d > 0) bucket = is_causal ? 0 : bucket + half;
      const auto row = learned.begin() + bucket * heads;
      each.insert(each.end(), row, row + heads);
    }
    b->distance_bias = Tensor::from(each, {2 * farthest + 1, int64_t{heads}}, device_name());
    return {};
  }

  static constexpr std::array kHeadMatrices = {"attn_q", "attn_k", "attn_v"};

  /// Whether what makes queries, keys and values is one matrix on the device: one launch for a
  /// token instead of three. Kept weights are looked for by the file's tensors.
  bool can_join_heads(const std::string& p) const {
    // Rows of gates lie among those of queries there.
    if (model_->config_.row->has(kDeltaNet) || model_->config_.row->has(kSubNorms)) return false;
    if (!is_for_gpu() || options_.keep_weights) return false;
    const GgufTensor* first = file_->find_tensor(p + kHeadMatrices[0] + ".weight");
    return std::ranges::all_of(kHeadMatrices, [&](const char* name) {
      const GgufTensor* t = file_->find_tensor(p + name + ".weight");
      return first && t && t->rank == 2 && t->type == first->type &&
             !file_->find_tensor(p + name + ".bias") && !file_->find_tensor(p + name + ".scale") &&
             is_packed(*t) == is_packed(*first) && (is_packed(*t) || direct_dtype(t->type));
    });
  }

  Result<Matrix> load_joined_heads(const std::string& p, uint64_t columns,
                                   std::array<uint64_t, kHeadMatrices.size()> rows) {
    std::vector<std::byte> data;
    const GgufTensor* t = nullptr;
    uint64_t all = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      t = BM_TRY(find(p + kHeadMatrices[i] + ".weight", {columns, rows[i]}));
      all += rows[i];
      if (!is_loading_) {
        if (is_here_) items_[at_].push_back({t, bytes_of(*t), is_packed(*t)});
        continue;
      }
      data.insert(data.end(), t->data.begin(), t->data.end());
      file_->release(t->data);
      report(*t);
    }
    if (!is_loading_) return Matrix();
    const auto m = static_cast<int64_t>(all), n = static_cast<int64_t>(columns);
    if (is_packed(*t)) return Matrix::pack(t->type, data, m, n, device_name(), nullptr, false);
    return Matrix(Tensor::from_bytes(data, {m, n}, *direct_dtype(t->type), device_name()));
  }

  Status load_attention(uint32_t block, const std::string& p, Llama::Block* b) {
    const LlamaConfig& c = model_->config_;
    const HeadKind& kind = c.heads_of(block);
    const uint64_t width = c.embedding_length, q = uint64_t{kind.count} * kind.length,
                   kv = uint64_t{kind.count_kv} * kind.length,
                   values = uint64_t{kind.count_kv} * kind.value_length,
                   results = uint64_t{kind.count} * kind.value_length;
    if (model_->has_indexer(block)) BM_TRY(load_indexer(p, &b->index));
    if (c.row->has(kSinks) && c.latent.rank > 0)
      b->sinks = BM_TRY(load(p + "attn_sinks.weight", {c.head_count}));
    if (c.latent.rank > 0) return load_latent_attention(p, b);
    if (c.row->has(kSinks)) b->sinks = BM_TRY(load(p + "attn_sinks.weight", {kind.count}));
    BM_TRY(load_distance_bias(block, p, b));
    if (c.encoder_block_count > 0 && block >= c.encoder_block_count) {
      const std::string cross = p + "cross_attn_";
      b->cross.norm = BM_TRY(load_norm(cross + "norm", {width}, Need::kYes));
      b->cross.query = BM_TRY(load_projection(cross + "q", width, q));
      b->cross.key = BM_TRY(load_projection(cross + "k", width, kv));
      b->cross.value = BM_TRY(load_projection(cross + "v", width, values));
      b->cross.output = BM_TRY(load_projection(cross + "o", results, width));
    }
    if (c.row->has(kMayHaveSinks))
      BM_TRY(load_optional(b->sinks, p + "attn_sinks.weight", {kind.count}));
    const bool has_kv = c.has_own_kv(block);
    if (!has_kv) {
      b->query = BM_TRY(load_projection(p + "attn_q", width, q));
    } else if (file_->find_tensor(p + "attn_qkv.weight")) {
      b->qkv = BM_TRY(load_projection(p + "attn_qkv", width, q + kv + values));
    } else if (can_join_heads(p)) {
      b->qkv.matrix = BM_TRY(load_joined_heads(p, width, {q, kv, values}));
      b->has_joined_heads = true;
    } else {
      b->query = BM_TRY(load_projection(p + "attn_q", width, c.row->has(kDeltaNet) ? 2 * q : q));
      b->key = BM_TRY(load_projection(p + "attn_k", width, kv));
      // Values may be made of what keys are made of.
      if (!c.row->has(kValueNorm) || file_->find_tensor(p + "attn_v.weight"))
        b->value = BM_TRY(load_projection(p + "attn_v", width, values));
    }
    const char* const output = c.row->has(kDistanceBias) ? "attn_o" : "attn_output";
    b->output = BM_TRY(load_projection(p + output, results, width));
    const bool may_lack_gate = c.architecture == "k2-horizon";
    if (c.row->has(kGatedAttention) &&
        (!may_lack_gate || file_->find_tensor(p + "attn_gate.weight")))
      b->attention_gate = BM_TRY(load_gate(p, kind.count, results));
    if (c.row->has(kSubNorms))
      b->attention_sub_norm = BM_TRY(load_norm(p + "attn_sub_norm", {q}, Need::kYes));
    b->query_norm = BM_TRY(load_head_norm(p + "attn_q_norm", kind.count, kind.length));
    if (has_kv) b->key_norm = BM_TRY(load_head_norm(p + "attn_k_norm", kind.count_kv, kind.length));
    return c.relative.span > 0 ? load_distances(kind, b) : Status{};
  }

  /// What every block makes of the distances' embeddings, once and for all texts. Source:
  /// transformers, modeling_deberta_v2.py, make_log_bucket_position().
  Status load_distances(const HeadKind& kind, Llama::Block* b) {
    const LlamaConfig& c = model_->config_;
    const RelativeConfig& r = c.relative;
    const uint64_t width = c.embedding_length, all = 2 * uint64_t{r.span};
    const GgufTensor& t = *BM_TRY(find("rel_embd.weight", {width, all}));
    std::array<std::vector<float>, 2> norm;
    for (size_t i = 0; i < 2; ++i) {
      const std::string name = i == 0 ? "rel_embd_norm.weight" : "rel_embd_norm.bias";
      if (file_->find_tensor(name) == nullptr) continue;
      const GgufTensor& part = *BM_TRY(find(name, {width}));
      norm[i].resize(width);
      BM_TRY(dequantize_row(part.type, part.data, norm[i]));
    }
    if (!is_loading_) return {};
    std::vector<float> rows(t.value_count);
    BM_TRY(dequantize_row(t.type, t.data, rows));
    const auto m = static_cast<int64_t>(all), n = static_cast<int64_t>(width),
               heads = int64_t{kind.count}, length = int64_t{kind.length};
    Tensor embedded = Tensor::from(rows, {m, n}, device_name());
    if (!norm[0].empty()) {
      const Tensor gain = Tensor::from(norm[0], {n}, device_name());
      const Tensor shift = norm[1].empty() ? Tensor() : Tensor::from(norm[1], {n}, device_name());
      embedded = embedded.layer_norm(gain, shift, static_cast<double>(c.norm_epsilon));
    }
    const QuantisedActivations read(embedded.contiguous());
    const Tensor joined =
        b->qkv.matrix.is_valid() ? Llama::project(read, b->qkv).contiguous() : Tensor();
    const auto made = [&](const Llama::Projection& own, int64_t part) {
      const int64_t first = part * heads * length;
      const Tensor out = joined.is_valid() ? joined.slice(1, {first, first + heads * length})
                                           : Llama::project(read, own);
      return out.reshape({m, heads, length});
    };
    if (r.of_query) b->relative_keys = made(b->key, 1).permute({1, 2, 0}).contiguous().realize();
    if (r.of_key) b->relative_queries = made(b->query, 0).permute({1, 0, 2}).contiguous().realize();
    std::vector<int64_t> numbers;
    const int64_t farthest = int64_t{model_->context_} - 1, span = r.span, exact = span / 2;
    for (int64_t d = -farthest; d <= farthest; ++d) {
      const int64_t distance = std::abs(d);
      int64_t bucket = distance;
      if (r.limit > 0 && distance > exact) {  // in float32, as those that trained it
        const float whole = std::log(static_cast<float>(r.limit - 1) / static_cast<float>(exact));
        const float share =
            std::log(static_cast<float>(distance) / static_cast<float>(exact)) / whole;
        bucket = exact + static_cast<int64_t>(std::ceil(share * static_cast<float>(exact - 1)));
      }
      numbers.push_back(std::clamp<int64_t>((d < 0 ? -bucket : bucket) + span, 0, 2 * span - 1));
    }
    b->relative_numbers = Tensor::from(numbers, {2 * farthest + 1}, device_name());
    return {};
  }

  /// Of texts that are read as a whole its tensors have no use.
  Status load_indexer(const std::string& p, Llama::Index* x) {
    const LlamaConfig& c = model_->config_;
    const uint64_t width = c.embedding_length, length = c.indexer.length,
                   queries = c.indexer.heads * length;
    const std::string name = p + "indexer.";
    if (c.latent.rank == 0) {
      x->query = BM_TRY(load_projection(name + "q_proj", width, queries));
      x->key = BM_TRY(load_projection(name + "k_proj", width, length));
      x->query_norm = BM_TRY(load_norm(name + "q_norm", {length}, Need::kYes));
      x->key_norm = BM_TRY(load_norm(name + "k_norm", {length}, Need::kYes));
      return {};
    }
    x->query = BM_TRY(load_projection(name + "attn_q_b", c.latent.query_rank, queries));
    x->key = BM_TRY(load_projection(name + "attn_k", width, length));
    x->weights = BM_TRY(load_projection(name + "proj", width, c.indexer.heads));
    x->key_norm = BM_TRY(load_norm(name + "k_norm", {length}, Need::kYes));
    x->key_norm.bias = BM_TRY(load(name + "k_norm.bias", {length}));
    // Source: llama.cpp, src/models/hy-v4.cpp, load_arch_hparams().
    if (c.architecture == "hy_v4") x->key_norm.epsilon = static_cast<double>(c.norm_epsilon);
    return {};
  }

  /// Rows `from` … of every head of a tensor [heads · rows, columns].
  static Tensor rows_of_heads(const Tensor& t, int64_t heads, int64_t from, int64_t to) {
    const int64_t rows = t.size(0).constant() / heads;
    return t.reshape({heads, rows, t.size(1)}).slice(1, {from, to});
  }

  /// Older files keep what makes keys and values in one matrix, newer ones apart and the first
  /// transposed. They become plain elements either way: they are multiplied head by head.
  Status load_latent_attention(const std::string& p, Llama::Block* b) {
    const LlamaConfig& c = model_->config_;
    const LatentConfig& l = c.latent;
    const uint64_t width = c.embedding_length, heads = c.head_count,
                   plain = c.head_length - c.rope_length, rank = l.rank;
    if (l.query_rank > 0) {
      b->latent.query_down = BM_TRY(load_projection(p + "attn_q_a", width, l.query_rank));
      b->latent.query_norm = BM_TRY(load_norm(p + "attn_q_a_norm", {l.query_rank}, Need::kYes));
      b->query = BM_TRY(load_projection(p + "attn_q_b", l.query_rank, heads * c.head_length));
    } else {
      b->query = BM_TRY(load_projection(p + "attn_q", width, heads * c.head_length));
    }
    b->latent.key_down = BM_TRY(load_projection(p + "attn_kv_a_mqa", width, rank + c.rope_length));
    b->latent.key_norm = BM_TRY(load_norm(p + "attn_kv_a_norm", {rank}, Need::kYes));
    if (file_->find_tensor(p + "attn_kv_b.weight")) {
      const uint64_t rows = plain + l.value_length;
      const Tensor both = BM_TRY(load(p + "attn_kv_b.weight", {rank, heads * rows}));
      if (is_loading_) {
        const auto part = [&](uint64_t from, uint64_t to) {
          return rows_of_heads(both, static_cast<int64_t>(heads), static_cast<int64_t>(from),
                               static_cast<int64_t>(to));
        };
        b->latent.key_up = part(0, plain);
        b->latent.value_up = part(plain, rows);
      }
    } else {
      const Tensor keys = BM_TRY(load(p + "attn_k_b.weight", {plain, rank, heads}));
      if (is_loading_) b->latent.key_up = keys.transpose();
      b->latent.value_up = BM_TRY(load(p + "attn_v_b.weight", {rank, l.value_length, heads}));
    }
    b->output = BM_TRY(load_projection(p + "attn_output", heads * l.value_length, width));
    const bool may_lack_gate = c.architecture == "kimi-k3";
    if (c.row->has(kGatedAttention) &&
        (!may_lack_gate || file_->find_tensor(p + "attn_gate.weight")))
      b->attention_gate = BM_TRY(load_gate(p, heads, heads * l.value_length));
    return {};
  }

  /// Of every result of attention, or of every head.
  Result<Llama::Projection> load_gate(const std::string& p, uint64_t heads, uint64_t results) {
    const GgufTensor& gate = *BM_TRY(file_->tensor(p + "attn_gate.weight"));
    const bool is_of_heads = gate.rank == 2 && gate.dims[1] == heads;
    return load_projection(p + "attn_gate", model_->config_.embedding_length,
                           is_of_heads ? heads : results);
  }

  Status load_recurrent(const std::string& p, Llama::Recurrent* r) {
    const LlamaConfig& c = model_->config_;
    const RecurrentConfig& rc = c.recurrent;
    const uint64_t width = c.embedding_length, inner = rc.inner();
    if (c.row->has(kMamba) || c.row->has(kMamba2)) return load_mamba(p, r);
    if (c.row->has(kShortConvolution)) {
      r->in = BM_TRY(load_projection(p + "shortconv.in_proj", width, 3 * width));
      r->convolution = BM_TRY(load(p + "shortconv.conv.weight", {rc.kernel, width}));
      r->out = BM_TRY(load_projection(p + "shortconv.out_proj", width, width));
      return {};
    }
    if (file_->find_tensor(p + "ssm_in.weight"))
      return fail(Code::kUnsupported,
                  "tensor {}ssm_in.weight: early files of this architecture are not supported; "
                  "convert the model anew",
                  p);
    r->in = BM_TRY(load_projection(p + "attn_qkv", width, rc.channels));
    r->gate = BM_TRY(load_projection(p + "attn_gate", width, inner));
    r->convolution = BM_TRY(load(p + "ssm_conv1d.weight", {rc.kernel, rc.channels}));
    r->step = BM_TRY(load(p + "ssm_dt.bias", {rc.heads}));
    r->rate = BM_TRY(load(p + "ssm_a", {rc.heads}));
    if (file_->find_tensor(p + "ssm_ba.weight")) {
      r->beta_alpha = BM_TRY(load_projection(p + "ssm_ba", width, uint64_t{2} * rc.heads));
    } else {
      r->beta = BM_TRY(load_projection(p + "ssm_beta", width, rc.heads));
      r->alpha = BM_TRY(load_projection(p + "ssm_alpha", width, rc.heads));
    }
    r->norm = BM_TRY(load_norm(p + "ssm_norm", {rc.length}, Need::kYes));
    r->out = BM_TRY(load_projection(p + "ssm_out", inner, width));
    return {};
  }

  Status load_mamba(const std::string& p, Llama::Recurrent* r) {
    const LlamaConfig& c = model_->config_;
    const RecurrentConfig& rc = c.recurrent;
    const uint64_t width = c.embedding_length, inner = rc.inner(), keys = rc.keys, heads = rc.heads,
                   rank = rc.step_rank;
    const bool is_first = c.row->has(kMamba);
    r->in =
        BM_TRY(load_projection(p + "ssm_in", width, inner + rc.channels + (is_first ? 0 : heads)));
    r->convolution = BM_TRY(load(p + "ssm_conv1d.weight", {rc.kernel, rc.channels}));
    BM_TRY(load_optional(r->convolution_bias, p + "ssm_conv1d.bias", {rc.channels}));
    r->out = BM_TRY(load_projection(p + "ssm_out", inner, width));
    if (is_first) {
      r->parameters = BM_TRY(load_projection(p + "ssm_x", inner, rank + 2 * keys));
      r->steps = BM_TRY(load_projection(p + "ssm_dt", rank, inner));
      r->steps_norm = BM_TRY(load_norm(p + "ssm_dt_norm", {rank}, Need::kIfThere));
      r->keys_norm = BM_TRY(load_norm(p + "ssm_b_norm", {keys}, Need::kIfThere));
      r->queries_norm = BM_TRY(load_norm(p + "ssm_c_norm", {keys}, Need::kIfThere));
      r->rate = BM_TRY(load(p + "ssm_a", {keys, inner}));
      r->skip = BM_TRY(load(p + "ssm_d", {inner}));
      return {};
    }
    r->step = BM_TRY(load(p + "ssm_dt.bias", {heads}));
    r->rate = BM_TRY(load(p + "ssm_a", {1, heads}));
    r->skip = BM_TRY(load(p + "ssm_d", {1, heads}));
    const bool may_lack = c.row->has(kBesideAttention);
    r->norm = BM_TRY(load_norm(p + "ssm_norm", {inner / rc.groups, rc.groups},
                               may_lack ? Need::kIfThere : Need::kYes));
    return {};
  }

  /// Numbers that files keep with axes of one behind the first, or between the two.
  Result<Tensor> load_numbers(const std::string& name, uint64_t length, uint64_t rows = 1) {
    const GgufTensor& t = *BM_TRY(file_->tensor(name));
    if (t.rank == 0 || t.dims[0] != length || t.value_count != length * rows)
      return fail(Code::kCorrupt, "tensor {} has dimensions {}, the hyper-parameters ask for {}",
                  name, dims_text(std::span(t.dims.data(), t.rank)), length * rows);
    used_.insert(t.name);
    if (!is_loading_) {
      if (is_here_) items_[at_].push_back({&t, bytes_of_plain(t), false});
      return Tensor();
    }
    const Tensor out = make(t);
    report(t);
    return rows == 1 ? out.reshape({static_cast<int64_t>(length)})
                     : out.reshape({static_cast<int64_t>(rows), static_cast<int64_t>(length)});
  }

  /// Components of a product of two matrices, as the first one has them.
  Result<uint64_t> rank_of(const std::string& name) const {
    const GgufTensor& t = *BM_TRY(file_->tensor(name + ".weight"));
    return t.rank == 2 ? t.dims[1] : 0;
  }

  Status load_pair(const std::string& in_name, const std::string& out_name, Llama::Projection* in,
                   Llama::Projection* out) {
    const uint64_t width = model_->config_.embedding_length, rank = BM_TRY(rank_of(in_name));
    *in = BM_TRY(load_projection(in_name, width, rank));
    *out = BM_TRY(load_projection(out_name, rank, width));
    return {};
  }

  /// Shares of the token before, of several things in one tensor.
  Status load_shares(const std::string& name, uint64_t count, std::vector<Tensor>* out) {
    const uint64_t width = model_->config_.embedding_length;
    Tensor all = BM_TRY(load_numbers(name, width, count));
    if (!is_loading_) return {};
    all = all.reshape({static_cast<int64_t>(count), static_cast<int64_t>(width)});
    for (int64_t i = 0; i < static_cast<int64_t>(count); ++i)
      out->push_back(all.slice(0, {i, i + 1})
                         .reshape({static_cast<int64_t>(width)})
                         .cast(DType::kF32)
                         .contiguous());
    return {};
  }

  Status load_rwkv(uint32_t block, const std::string& p, Llama::Block* b) {
    const LlamaConfig& c = model_->config_;
    const RecurrentConfig& rc = c.recurrent;
    const uint64_t width = c.embedding_length, kv = uint64_t{rc.groups} * rc.length;
    const std::string mix = p + "time_mix_";
    Llama::Rwkv& w = b->rwkv;
    w.query = BM_TRY(load_projection(mix + "receptance", width, width));
    w.key = BM_TRY(load_projection(mix + "key", width, kv));
    w.value = BM_TRY(load_projection(mix + "value", width, kv));
    w.output = BM_TRY(load_projection(mix + "output", width, width));
    if (c.row->has(kChannelMix) || file_->find_tensor(mix + "ln.weight")) {
      b->recurrent.norm.is_used = true;
      b->recurrent.norm.weight = BM_TRY(load(mix + "ln.weight", {width}));
      b->recurrent.norm.bias = BM_TRY(load(mix + "ln.bias", {width}));
    }
    BM_TRY(c.row->has(kRwkv7) ? load_rwkv7(block, mix, &w) : load_rwkv6(mix, b));
    if (!c.row->has(kChannelMix)) return {};
    const std::string channel = p + "channel_mix_";
    const uint64_t hidden = c.blocks[block].feed_forward_length;
    w.key_share = BM_TRY(load_numbers(channel + "lerp_k.weight", width));
    w.channel_key = BM_TRY(load_projection(channel + "key", width, hidden));
    w.channel_value = BM_TRY(load_projection(channel + "value", hidden, width));
    if (c.row->has(kRwkv7)) return {};
    w.receptance_share = BM_TRY(load_numbers(channel + "lerp_r.weight", width));
    w.receptance = BM_TRY(load_projection(channel + "receptance", width, width));
    return {};
  }

  Status load_key_decay(const std::string& p, Llama::Block* b) {
    const LlamaConfig& c = model_->config_;
    const RecurrentConfig& rc = c.recurrent;
    const uint64_t width = c.embedding_length, inner = rc.inner();
    Llama::Recurrent& r = b->recurrent;
    b->query = BM_TRY(load_projection(p + "attn_q", width, inner));
    b->key = BM_TRY(load_projection(p + "attn_k", width, inner));
    b->value = BM_TRY(load_projection(p + "attn_v", width, inner));
    std::vector<Tensor> taps;
    for (const char* name : {"q", "k", "v"})
      taps.push_back(
          BM_TRY(load_numbers(fmt::format("{}ssm_conv1d_{}.weight", p, name), rc.kernel, inner)));
    if (is_loading_) r.convolution = Tensor::cat(taps, 0).contiguous().realize();
    r.step = BM_TRY(load(p + "ssm_dt.bias", {inner}));
    const GgufTensor* rates = file_->find_tensor(p + "ssm_a");
    const bool is_vector = rates != nullptr && rates->rank == 1;
    r.rate = BM_TRY(is_vector ? load_numbers(p + "ssm_a", rc.heads)
                              : load_numbers(p + "ssm_a", 1, rc.heads));
    // Of low rank, or one matrix alone.
    const auto load_two = [&](const std::string& name, Llama::Projection* in,
                              Llama::Projection* out) -> Status {
      const bool is_low_rank = file_->find_tensor(p + name + "_b.weight") != nullptr,
                 is_alone = file_->find_tensor(p + name + ".weight") != nullptr;
      const std::string first = p + name + (is_alone ? "" : "_a");
      const uint64_t rank = is_low_rank ? BM_TRY(rank_of(first)) : inner;
      *in = BM_TRY(load_projection(first, width, rank));
      if (is_low_rank) *out = BM_TRY(load_projection(p + name + "_b", rank, inner));
      return {};
    };
    BM_TRY(load_two("ssm_f", &r.parameters, &r.steps));
    r.beta = BM_TRY(load_projection(p + "ssm_beta", width, rc.heads));
    BM_TRY(load_two("ssm_g", &r.gate_in, &r.gate));
    r.norm = BM_TRY(load_norm(p + "ssm_norm", {rc.length}, Need::kYes));
    r.out = BM_TRY(load_projection(p + "attn_output", inner, width));
    return {};
  }

  Status load_rwkv6(const std::string& mix, Llama::Block* b) {
    const RecurrentConfig& rc = model_->config_.recurrent;
    const uint64_t width = model_->config_.embedding_length;
    Llama::Rwkv& w = b->rwkv;
    w.gate = BM_TRY(load_projection(mix + "gate", width, width));
    w.share = BM_TRY(load_numbers(mix + "lerp_x.weight", width));
    // Older files have the five apart.
    if (file_->find_tensor(mix + "lerp_fused.weight")) {
      BM_TRY(load_shares(mix + "lerp_fused.weight", 5, &w.shares));
    } else {
      for (const char* name : {"w", "k", "v", "r", "g"})
        BM_TRY(load_shares(fmt::format("{}lerp_{}.weight", mix, name), 1, &w.shares));
    }
    const uint64_t rank = BM_TRY(rank_of(mix + "w1")) / 5;
    w.shares_in = BM_TRY(load_projection(mix + "w1", width, 5 * rank));
    w.shares_out = BM_TRY(load(mix + "w2.weight", {rank, width, 5}));
    w.decay = BM_TRY(load_numbers(mix + "decay.weight", width));
    BM_TRY(load_pair(mix + "decay_w1", mix + "decay_w2", &w.decay_in, &w.decay_out));
    if (rc.has_bonus)
      b->recurrent.bonus = BM_TRY(load(mix + "first.weight", {rc.length, rc.heads}));
    return {};
  }

  Status load_rwkv7(uint32_t block, const std::string& mix, Llama::Rwkv* w) {
    const uint64_t width = model_->config_.embedding_length;
    const auto vector = [&](const char* name) {
      return load_numbers(mix + name + ".weight", width);
    };
    const bool has_gate = file_->find_tensor(mix + "g1.weight") != nullptr;
    BM_TRY(load_shares(mix + "lerp_fused.weight", has_gate ? 6 : 5, &w->shares));
    if (has_gate) BM_TRY(load_pair(mix + "g1", mix + "g2", &w->gate_in, &w->gate_out));
    w->decay = BM_TRY(vector("w0"));
    BM_TRY(load_pair(mix + "w1", mix + "w2", &w->decay_in, &w->decay_out));
    w->rate = BM_TRY(vector("a0"));
    BM_TRY(load_pair(mix + "a1", mix + "a2", &w->rate_in, &w->rate_out));
    // Of the first block nobody reads them.
    if (block > 0) {
      w->first = BM_TRY(vector("v0"));
      BM_TRY(load_pair(mix + "v1", mix + "v2", &w->first_in, &w->first_out));
    }
    w->removed_key = BM_TRY(vector("k_k"));
    w->rate_key = BM_TRY(vector("k_a"));
    w->own = BM_TRY(vector("r_k"));
    return {};
  }

  Status load_norms(uint32_t block, const std::string& p, Llama::Block* b) {
    LlamaConfig& c = model_->config_;
    const uint64_t width = c.embedding_length;
    const char* const after_attention = "post_attention_norm";
    if (c.row->has(kNormsAfterSums)) {
      b->attention_post_norm = BM_TRY(load_norm(p + "attn_output_norm", {width}, Need::kYes));
      b->second_post_norm = BM_TRY(load_norm(p + "attn_norm_2", {width}, Need::kIfThere));
      b->feed_forward_post_norm = BM_TRY(load_norm(p + "layer_output_norm", {width}, Need::kYes));
      return {};
    }
    // The embeddings of ModernBERT are normalised already when its first block reads them.
    const bool may_lack_norm = c.row->has(kEmbeddingNorm) && c.row->has(kNoLogits);
    const bool has_mixer = model_->has_mixer(block) || !c.row->has(kMayLackAttention);
    if (!c.row->has(kNoPreNorms) && has_mixer)
      b->attention_norm =
          BM_TRY(load_norm(p + "attn_norm", {width}, may_lack_norm ? Need::kIfThere : Need::kYes));
    if (c.row->has(kSecondAttentionNorm))
      b->second_attention_norm = BM_TRY(load_norm(p + "attn_norm_2", {width}, Need::kIfThere));
    if (c.row->has(kPostNorms)) {
      // Grok has names of its own, of which early files have the second.
      const bool is_grok = c.architecture == "grok",
                 is_late = is_grok && file_->find_tensor(p + "layer_output_norm.weight") != nullptr;
      b->attention_post_norm = BM_TRY(
          load_norm(p + (is_grok ? "attn_output_norm" : after_attention), {width}, Need::kYes));
      b->feed_forward_post_norm = BM_TRY(
          load_norm(p + (is_late ? "layer_output_norm" : "post_ffw_norm"), {width}, Need::kYes));
      // A number of its own, in no key. Source: llama.cpp, src/models/muse-glimmer.cpp.
      if (c.architecture == "muse-glimmer")
        b->attention_post_norm.epsilon = b->feed_forward_post_norm.epsilon = 1e-8;
    }
    if (c.row->has(kNoPreNorms) || c.row->has(kParallelBlock)) return {};
    // Of a block that is one of several things the norm goes by the name of attention's.
    if (!c.blocks[block].has_feed_forward || (has_mixer && !model_->has_mixer(block))) return {};
    const std::string name = p + (c.row->has(kLateFeedForwardNorm)   ? after_attention
                                  : c.row->has(kAttentionOutputNorm) ? "attn_output_norm"
                                  : c.row->has(kChannelMix)          ? "attn_norm_2"
                                                                     : "ffn_norm");
    const bool may_lack = c.row->has(kMayLackFeedForwardNorm);
    b->feed_forward_norm = BM_TRY(load_norm(name, {width}, may_lack ? Need::kIfThere : Need::kYes));
    if (may_lack) c.is_parallel = !b->feed_forward_norm.is_used;
    return {};
  }

  Status load_experts(const std::string& p, Llama::Block* b) {
    const LlamaConfig& c = model_->config_;
    const ExpertConfig& e = c.experts;
    const uint64_t all = c.embedding_length, width = e.latent > 0 ? e.latent : all;
    Llama::Experts& x = b->experts;
    if (file_->find_tensor(p + "ffn_gate.0.weight"))
      return fail(Code::kUnsupported,
                  "tensor {}ffn_gate.0.weight: files with a tensor for every expert are not "
                  "supported; convert the model anew",
                  p);
    x.router = BM_TRY(load_projection(p + "ffn_gate_inp", all, e.count));
    if (e.latent > 0) {
      const std::string few = p + (c.architecture == "kimi-k3" ? "ffn_routed_" : "ffn_latent_");
      x.latent_in = BM_TRY(load_projection(few + "down", all, width));
      x.latent_out = BM_TRY(load_projection(few + "up", width, all));
      x.latent_norm = BM_TRY(load_norm(few + "norm", {width}, Need::kIfThere));
    }
    // The converter of Hy3 leaves the suffix out.
    const bool has_suffix = file_->find_tensor(p + "exp_probs_b") == nullptr;
    BM_TRY(load_optional(x.router_bias, p + (has_suffix ? "exp_probs_b.bias" : "exp_probs_b"),
                         {e.count}));
    if (c.row->has(kExpertsOfInput))
      x.before = BM_TRY(load_norm(p + "ffn_norm_exps", {width}, Need::kYes));
    if (c.row->has(kExpertsBesideDense)) {
      x.input_scale = BM_TRY(load(p + "ffn_gate_inp.scale", {width}));
      BM_TRY(load_optional(x.scales, p + "ffn_down_exps.scale", {e.count}));
      x.before = BM_TRY(load_norm(p + "pre_ffw_norm_2", {width}, Need::kYes));
      x.after = BM_TRY(load_norm(p + "post_ffw_norm_2", {width}, Need::kYes));
      x.dense_after = BM_TRY(load_norm(p + "post_ffw_norm_1", {width}, Need::kYes));
    }
    if (file_->find_tensor(p + "ffn_gate_up_exps.weight")) {
      x.gate_up = BM_TRY(load_stack(p + "ffn_gate_up_exps.weight", width, uint64_t{2} * e.length));
    } else {
      if (c.row->feed_forward == FeedForward::kGated)
        x.gate = BM_TRY(load_stack(p + "ffn_gate_exps.weight", width, e.length));
      x.up = BM_TRY(load_stack(p + "ffn_up_exps.weight", width, e.length));
    }
    x.down = BM_TRY(load_stack(p + "ffn_down_exps.weight", e.length, width));
    BM_TRY(load_optional(x.gate_bias, p + "ffn_gate_exps.bias", {e.length, e.count}));
    BM_TRY(load_optional(x.up_bias, p + "ffn_up_exps.bias", {e.length, e.count}));
    BM_TRY(load_optional(x.down_bias, p + "ffn_down_exps.bias", {width, e.count}));
    // Nomic's, of folders: llama.cpp's converter leaves it out.
    BM_TRY(load_optional(x.sum_bias, p + "bellmetal.ffn_exps.bias", {width}));
    // Numbers of 4 bits may have a scale of the whole matrix. Source: llama.cpp, build_moe_ffn().
    const bool is_fused_gate = file_->find_tensor(p + "ffn_gate_up_exps.weight") != nullptr;
    BM_TRY(load_optional(x.gate_scale, p + "ffn_gate_exps.scale", {e.count}));
    BM_TRY(load_optional(x.up_scale,
                         p + (is_fused_gate ? "ffn_gate_up_exps.scale" : "ffn_up_exps.scale"),
                         {e.count}));
    if (!c.row->has(kExpertsBesideDense))
      BM_TRY(load_optional(x.down_scale, p + "ffn_down_exps.scale", {e.count}));
    if (e.adjugate.each > 0) {
      const uint64_t length = e.adjugate.length, count = e.count / e.adjugate.each;
      x.adjugate_gate = BM_TRY(load_stack(p + "ffn_gate_chexps.weight", width, length, count));
      x.adjugate_up = BM_TRY(load_stack(p + "ffn_up_chexps.weight", width, length, count));
      x.adjugate_down = BM_TRY(load_stack(p + "ffn_down_chexps.weight", length, width, count));
    }
    if (e.shared_length == 0) return {};
    // Some files have gate and up in one matrix.
    const GgufTensor* up = file_->find_tensor(p + "ffn_up_shexp.weight");
    const bool is_fused = c.architecture == "granite_swa" && up != nullptr && up->rank == 2 &&
                          up->dims[1] == uint64_t{2} * e.shared_length;
    if (c.row->feed_forward == FeedForward::kGated && !is_fused)
      x.shared_gate = BM_TRY(load_projection(p + "ffn_gate_shexp", all, e.shared_length));
    x.shared_up = BM_TRY(
        load_projection(p + "ffn_up_shexp", all, (is_fused ? 2 : 1) * uint64_t{e.shared_length}));
    x.shared_down = BM_TRY(load_projection(p + "ffn_down_shexp", e.shared_length, all));
    if (!c.row->has(kGatedSharedExpert)) return {};
    const Tensor row = BM_TRY(load(p + "ffn_gate_inp_shexp.weight", {all}));
    if (is_loading_) x.shared_router = Matrix(row.reshape({1, static_cast<int64_t>(all)}));
    return {};
  }

  Status load_feed_forward(uint32_t block, const std::string& p, Llama::Block* b) {
    const LlamaConfig& c = model_->config_;
    if (!c.blocks[block].has_feed_forward || c.row->has(kChannelMix)) return {};
    if (c.blocks[block].has_experts) BM_TRY(load_experts(p, b));
    const bool has_both =
        c.row->has(kExpertsBesideDense) || c.row->has(kExpertsOfInput) ||
        (c.row->has(kDenseToo) && file_->find_tensor(p + "ffn_up.weight") != nullptr);
    if (c.blocks[block].has_experts && !has_both) return {};
    const uint64_t width = c.embedding_length, hidden = c.blocks[block].feed_forward_length;
    b->feed_forward = c.row->feed_forward;
    if (c.row->has(kTensorsTellFeedForward) && !file_->find_tensor(p + "ffn_gate.weight")) {
      const GgufTensor* up = file_->find_tensor(p + "ffn_up.weight");
      b->feed_forward = up != nullptr && up->rank == 2 && up->dims[1] == 2 * hidden
                            ? FeedForward::kFused
                            : FeedForward::kPlain;
    }
    const bool is_fused = b->feed_forward == FeedForward::kFused;
    if (b->feed_forward == FeedForward::kGated)
      b->gate = BM_TRY(load_projection(p + "ffn_gate", width, hidden));
    b->up = BM_TRY(load_projection(p + "ffn_up", width, is_fused ? 2 * hidden : hidden));
    b->down = BM_TRY(load_projection(p + "ffn_down", hidden, width));
    if (c.row->has(kSubNorms))
      b->feed_forward_sub_norm = BM_TRY(load_norm(p + "ffn_sub_norm", {hidden}, Need::kYes));
    return {};
  }

  /// Encoders tell the parts of a pair of texts apart; a text alone is all of the first kind.
  Status load_token_types() {
    const LlamaConfig& c = model_->config_;
    const GgufTensor* t = c.row->has(kNoLogits) ? file_->find_tensor(kTokenTypes) : nullptr;
    if (t == nullptr) return {};
    const uint64_t width = c.embedding_length;
    if (t->rank != 2 || t->dims[0] != width || t->dims[1] == 0)
      return fail(Code::kCorrupt, "tensor {} has dimensions {}", kTokenTypes,
                  dims_text(std::span(t->dims.data(), t->rank)));
    model_->token_types_ = BM_TRY(load(kTokenTypes, {width, t->dims[1]}));
    model_->token_kinds_ = static_cast<uint32_t>(std::min<uint64_t>(t->dims[1], UINT32_MAX));
    return {};
  }

  Status load_all() {
    const LlamaConfig& c = model_->config_;
    BM_TRY(load_factors());
    // What is not of this stage is looked at, and not loaded.
    if (at(0, model_->is_first_stage())) BM_TRY(load_input());
    model_->blocks_.assign(c.block_count, {});
    for (uint32_t i = 0; i < c.block_count; ++i) {
      const bool is_mine = i >= model_->first_block_ && i < model_->end_block_;
      if (!at(model_->place_of_block_[i], is_mine)) continue;
      if (c.loop_length > 0 && i >= c.loop_length) {
        model_->blocks_[i] = model_->blocks_[i % c.loop_length];
        continue;
      }
      const std::string p = c.block_prefix(i);
      Llama::Block b;
      BM_TRY(load_norms(i, p, &b));
      if (model_->is_rwkv())
        BM_TRY(load_rwkv(i, p, &b));
      else if (c.blocks[i].is_recurrent && c.row->has(kKeyDecay))
        BM_TRY(load_key_decay(p, &b));
      else if (c.blocks[i].is_recurrent)
        BM_TRY(load_recurrent(p, &b.recurrent));
      if (c.blocks[i].has_attention) BM_TRY(load_attention(i, p, &b));
      if (c.blocks[i].is_linear)
        b.output =
            BM_TRY(load_projection(p + "attn_output", c.embedding_length, c.embedding_length));
      BM_TRY(load_feed_forward(i, p, &b));
      BM_TRY(load_layer_input(p, &b));
      if (c.altup.count > 0) BM_TRY(load_altup(p, &b));
      BM_TRY(load_hyper(p + "hc_attn_", 2, &b.attention_hyper));
      BM_TRY(load_hyper(p + "hc_ffn_", 2, &b.feed_forward_hyper));
      BM_TRY(load_scorer(p + "attn_res_score.weight", &b.attention_scorer));
      BM_TRY(load_scorer(p + "ffn_res_score.weight", &b.feed_forward_scorer));
      if (c.row->has(kLayerInputs))
        BM_TRY(load_optional(b.scale, p + "layer_output_scale.weight", {1}));
      if (i + 1 == c.encoder_block_count)
        model_->encoder_norm_ =
            BM_TRY(load_norm("enc.output_norm", {c.embedding_length}, Need::kYes));
      model_->blocks_[i] = std::move(b);
    }
    if (at(devices_.size() - 1, model_->is_last_stage())) BM_TRY(load_output());
    return {};
  }

  /// Where what comes next belongs; false: it need not be looked at.
  bool at(size_t device, bool is_here) {
    at_ = device;
    is_here_ = is_here;
    return is_here || !is_loading_;
  }

  Status load_input() {
    const LlamaConfig& c = model_->config_;
    const uint64_t width = c.embedding_length;
    model_->embedding_ = BM_TRY(load_matrix(kEmbedding, width, c.vocab_size));
    if (c.row->has(kEmbeddingNorm))
      model_->embedding_norm_ = BM_TRY(load_norm("token_embd_norm", {width}, Need::kYes));
    if (c.architecture == "muse-glimmer") model_->embedding_norm_.is_used = true;  // without a gain
    if (c.row->has(kPositionTable))
      model_->positions_ = BM_TRY(load("position_embd.weight", {width, c.context_length}));
    BM_TRY(load_layer_inputs());
    return load_token_types();
  }

  /// What all blocks share of their own inputs, and of the vectors of a token.
  Status load_layer_inputs() {
    const LlamaConfig& c = model_->config_;
    const uint64_t width = c.embedding_length,
                   length = uint64_t{c.layer_input_length} * c.block_count;
    if (length > 0) {
      if (c.is_causal)
        model_->layer_embedding_ = BM_TRY(load_matrix(kLayerEmbedding, length, c.vocab_size));
      model_->layer_projection_ = BM_TRY(load_projection("per_layer_model_proj", width, length));
      model_->layer_norm_ =
          BM_TRY(load_norm("per_layer_proj_norm", {c.layer_input_length}, Need::kYes));
    }
    return load_each("altup_proj.weight", &model_->altup_in_);
  }

  /// A matrix for each vector of a token but the first; none where there is one vector.
  Status load_each(const char* name, std::vector<Matrix>* out) {
    const LlamaConfig& c = model_->config_;
    if (c.altup.count == 0) return {};
    const uint64_t width = c.embedding_length, others = c.altup.count - 1;
    const Tensor all = BM_TRY(load(name, {width, width, others}));
    if (!is_loading_) return {};
    const auto n = static_cast<int64_t>(width);
    for (int64_t i = 0; i < static_cast<int64_t>(others); ++i)
      out->emplace_back(all.slice(0, {i, i + 1}).reshape({n, n}));
    return {};
  }

  Status load_layer_input(const std::string& p, Llama::Block* b) {
    const LlamaConfig& c = model_->config_;
    const uint64_t width = c.embedding_length, length = c.layer_input_length;
    if (length == 0) return {};
    b->layer_input.gate = BM_TRY(load_projection(p + "inp_gate", width, length));
    b->layer_input.out = BM_TRY(load_projection(p + "proj", length, width));
    b->layer_input.norm = BM_TRY(load_norm(p + "post_norm", {width}, Need::kYes));
    return {};
  }

  /// `kinds`: of weights; those that are read by, and those that are added by.
  Status load_hyper(const std::string& name, uint64_t kinds, Llama::Hyper* h) {
    const LlamaConfig& c = model_->config_;
    const uint64_t count = c.hyper.count;
    if (count == 0) return {};
    h->mix = BM_TRY(load_projection(name + "fn", count * c.embedding_length, kinds * count));
    h->base = BM_TRY(load(name + "base.weight", {kinds * count}));
    h->scale = BM_TRY(load(name + "scale.weight", {kinds}));
    return {};
  }

  Status load_scorer(const std::string& name, Tensor* out) {
    const LlamaConfig& c = model_->config_;
    if (c.kept_every > 0) *out = BM_TRY(load(name, {c.embedding_length}));
    return {};
  }

  Status load_altup(const std::string& p, Llama::Block* b) {
    const LlamaConfig& c = model_->config_;
    const uint64_t width = c.embedding_length, count = c.altup.count;
    Llama::Altup& a = b->altup;
    a.router_norm = BM_TRY(load_norm(p + "altup_router_norm", {width}, Need::kYes));
    a.router = BM_TRY(load_projection(p + "altup_router", width, count));
    a.predict = BM_TRY(load_projection(p + "altup_predict_coef", count, count * count));
    a.correct = BM_TRY(load_projection(p + "altup_correct_coef", count, count));
    a.correct_scale = BM_TRY(load(p + "altup_correct_scale.weight", {width}));
    const GgufTensor* in = BM_TRY(file_->tensor(p + "laurel_l.weight"));
    const uint64_t rank = in->rank == 2 ? in->dims[1] : 0;
    a.laurel_in = BM_TRY(load_projection(p + "laurel_l", width, rank));
    a.laurel_out = BM_TRY(load_projection(p + "laurel_r", rank, width));
    a.laurel_norm = BM_TRY(load_norm(p + "laurel_post_norm", {width}, Need::kYes));
    return {};
  }

  Status load_output() {
    const LlamaConfig& c = model_->config_;
    const uint64_t width = c.embedding_length;
    // LFM2 calls what stands before the logits the embeddings' norm; older files do not.
    const bool is_neo = c.architecture == "neo-bert" || c.row->has(kDistanceBias);
    const bool is_lfm = c.row->has(kShortConvolution) && !file_->find_tensor("output_norm.weight");
    const char* const output_norm = c.encoder_block_count > 0 ? "dec.output_norm"
                                    : is_neo                  ? "enc.output_norm"
                                    : is_lfm                  ? "token_embd_norm"
                                                              : "output_norm";
    if (!c.row->has(kNormsAfterSums))
      model_->output_norm_ = BM_TRY(load_norm(output_norm, {width}, Need::kYes));
    BM_TRY(load_each("altup_unembd_proj.weight", &model_->altup_out_));
    BM_TRY(load_hyper("output_hc_", 1, &model_->output_hyper_));
    BM_TRY(load_scorer("output_res_score.weight", &model_->output_scorer_));
    if (c.is_causal) BM_TRY(load_output_matrix());
    // What its hidden states become at last goes by the name of what makes logits.
    if (c.architecture == "gemma-embedding2")
      model_->output_.matrix = BM_TRY(load_matrix(kOutput, width, c.output_length));
    if (is_loading_ && c.is_causal && !c.suppressed.empty()) {
      std::vector<float> is_suppressed(c.vocab_size);
      for (const int32_t token : c.suppressed) is_suppressed[static_cast<size_t>(token)] = 1;
      model_->suppressed_ = Tensor::from(is_suppressed, {int64_t{c.vocab_size}}, device_name());
    }
    if (c.is_causal) BM_TRY(load_optional(model_->output_.scale, "output.scale", {1}));
    return load_optional(model_->output_.bias, "output.bias", {c.vocab_size});
  }

  Status load_output_matrix() {
    const LlamaConfig& c = model_->config_;
    const bool has_output = file_->find_tensor(kOutput) != nullptr,
               has_embedding = at_ == 0 && model_->is_first_stage();
    if (has_output || !has_embedding)
      model_->output_.matrix =
          BM_TRY(load_matrix(has_output ? kOutput : kEmbedding, c.embedding_length, c.vocab_size));
    else
      model_->output_.matrix = model_->embedding_;
    return {};
  }
};

Result<std::vector<Llama::MemoryNeed>> Llama::memory_need(std::shared_ptr<const GgufFile> file,
                                                          const LoadOptions& options,
                                                          DType cache_type) {
  try {
    return LlamaLoader(std::move(file), options).measure(cache_type);
  } catch (const Exception& e) {
    return tl::unexpected<Error>(e.error());
  } catch (const std::exception&) {
    return tl::unexpected<Error>(error_of_exception("looking at the model"));
  }
}

Result<std::shared_ptr<const Llama>> Llama::load(std::shared_ptr<const GgufFile> file,
                                                 const LoadOptions& options) {
  try {
    return LlamaLoader(std::move(file), options).run();
  } catch (const Exception& e) {
    return tl::unexpected<Error>(e.error());
  } catch (const std::exception&) {
    return tl::unexpected<Error>(error_of_exception("loading the model"));
  }
}

}  // namespace bm::models
