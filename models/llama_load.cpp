// Loading: names, shapes and formats of weights; what has no use; what fits in memory.
#include <algorithm>
#include <set>

#include "models/llama.h"
#include "models/model_error.h"
#include "runtime/buffer.h"
#include "runtime/device.h"

namespace bm::models {
namespace {

constexpr const char *kEmbedding = "token_embd.weight", *kOutput = "output.weight",
                     *kFactors = "rope_freqs.weight";

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

std::string mib(uint64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / 1048576.0);
}

}  // namespace

class LlamaLoader {
 public:
  LlamaLoader(std::shared_ptr<const GgufFile> file, const Llama::LoadOptions& options)
      : file_(std::move(file)), options_(options) {}

  Result<std::shared_ptr<const Llama>> run() {
    auto model = std::make_shared<Llama>();
    model_ = model.get();
    LlamaConfig& c = model_->config_;
    c = BM_TRY(LlamaConfig::from_gguf(*file_));
    model_->device_ = options_.device;
    device_ = BM_TRY(options_.device.empty() ? runtime::default_device()
                                             : runtime::open_device(options_.device));
    model_->context_ =
        options_.context ? options_.context : std::min<uint32_t>(c.context_length, 4096);
    if (model_->context_ > c.context_length)
      return fail(Code::kInvalidArgument,
                  "context {} exceeds the {} positions the model was made for", model_->context_,
                  c.context_length);
    // Once without loading: what does not fit or is not understood is known before any work.
    BM_TRY(load_all());
    BM_TRY(check_all_used());
    BM_TRY(check_memory());
    is_loading_ = true;
    BM_TRY(load_all());
    model_->make_rope_tables(factors_);
    return std::shared_ptr<const Llama>(std::move(model));
  }

 private:
  std::shared_ptr<const GgufFile> file_;
  const Llama::LoadOptions& options_;
  Llama* model_ = nullptr;
  runtime::Device* device_ = nullptr;
  uint64_t done_ = 0, total_ = 0;
  bool is_loading_ = false;          ///< false: tensors are only looked at
  std::set<std::string_view> used_;  ///< names
  std::vector<float> factors_;       ///< of rope_freqs.weight

  bool can_use_in_place(const GgufTensor& t, DType dtype) const {
    const hal::Vendor vendor = device_->hal().arch().vendor;
    const bool is_host = vendor == hal::Vendor::kCpu || vendor == hal::Vendor::kRef;
    return is_host &&
           reinterpret_cast<uintptr_t>(t.data.data()) % static_cast<uintptr_t>(item_size(dtype)) ==
               0;
  }

  /// Whether the matrix is packed. CPUs read what lies in the order of their loops faster; GPUs
  /// keep what is in blocks, a quarter of the memory and of the bytes per token or less. Elsewhere
  /// int8 is multiplied no faster than float32.
  bool is_packed(const GgufTensor& t) const {
    // Rows that are only taken are best where they are.
    if (direct_dtype(t.type) && t.name == kEmbedding && file_->find_tensor(kOutput)) return false;
    const hal::Vendor vendor = device_->hal().arch().vendor;
    const bool is_gpu = vendor == hal::Vendor::kAmd || vendor == hal::Vendor::kNv;
    return options_.keep_blocks &&
           (vendor == hal::Vendor::kCpu || (is_gpu && !direct_dtype(t.type))) && t.rank == 2 &&
           Matrix::can_pack(t.type, t.dims[1], t.dims[0]);
  }

  uint64_t bytes_of(const GgufTensor& t) const {
    if (is_packed(t)) return Matrix::packed_bytes(t.type, t.dims[1], t.dims[0]);
    // Weights used in place count too: reading them from disk for every token is no way to run.
    return direct_dtype(t.type) ? t.data.size() : t.value_count * sizeof(float);
  }

  /// Refuses a model that cannot fit before a byte is allocated.
  Status check_memory() {
    const LlamaConfig& c = model_->config_;
    uint64_t needed = 0;
    for (const GgufTensor& t : file_->tensors()) {
      total_ += t.data.size();
      needed += bytes_of(t);
    }
    const uint64_t cache = uint64_t{2} * c.block_count * c.head_count_kv * model_->context_ *
                           c.head_length * sizeof(float);
    const hal::MemoryInfo memory = device_->hal().memory();
    const uint64_t available = memory.total > memory.used ? memory.total - memory.used : 0;
    if (needed + cache > available)
      return fail(Code::kOutOfMemory,
                  "the model needs {} for weights and {} for {} positions of keys and values; {} "
                  "has {} free of {}",
                  mib(needed), mib(cache), model_->context_, device_->name(), mib(available),
                  mib(memory.total));
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
    if (!is_loading_) return Tensor();
    Tensor out = make(t);
    report(t);
    return out;
  }

  Result<Matrix> load_matrix(const std::string& name, uint64_t columns, uint64_t rows) {
    const GgufTensor& t = *BM_TRY(find(name, {columns, rows}));
    if (!is_loading_) return Matrix();
    Matrix out = is_packed(t) ? Matrix::pack(t.type, t.data, static_cast<int64_t>(rows),
                                             static_cast<int64_t>(columns), options_.device)
                              : Matrix(make(t));
    report(t);
    return out;
  }

  Tensor make(const GgufTensor& t) {
    Shape shape;
    for (uint64_t d : t.shape()) shape.push_back(static_cast<int64_t>(d));
    if (const auto dtype = direct_dtype(t.type)) {
      if (!can_use_in_place(t, *dtype))
        return Tensor::from_bytes(t.data, shape, *dtype, options_.device);
      // Kernels only read weights; the mapping lives as long as the tensor.
      void* pointer = const_cast<std::byte*>(t.data.data());
      return Tensor::from_blob(pointer, shape, *dtype, options_.device, [keep = file_] {});
    }
    Tensor out = Tensor::empty(shape, DType::kF32, options_.device);
    if (std::byte* host = out.buffer().host()) {
      unwrap(dequantize_row(t.type, t.data,
                            {reinterpret_cast<float*>(host), static_cast<size_t>(t.value_count)}));
      out.buffer().storage->note_write();
      return out;
    }
    std::vector<float> values(t.value_count);
    unwrap(dequantize_row(t.type, t.data, values));
    return Tensor::from(values, shape, options_.device);
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
  /// Source: llama.cpp, gguf-py/gguf/constants.py, MODEL_TENSOR_SKIP.
  bool is_idle(std::string_view name) const {
    for (uint32_t i = 0; i < model_->config_.block_count; ++i)
      if (name == fmt::format("blk.{}.attn_rot_embd.weight", i)) return true;
    return false;
  }

  Status load_factors() {
    const uint64_t count = model_->config_.rope_length / 2;
    if (!file_->find_tensor(kFactors)) return {};
    const GgufTensor& t = *BM_TRY(find(kFactors, {count}));
    factors_.resize(count);
    return dequantize_row(t.type, t.data, factors_);
  }

  Status load_all() {
    const LlamaConfig& c = model_->config_;
    BM_TRY(load_factors());
    const uint64_t width = c.embedding_length, hidden = c.feed_forward_length;
    const uint64_t q = uint64_t{c.head_count} * c.head_length,
                   kv = uint64_t{c.head_count_kv} * c.head_length;
    model_->embedding_ = BM_TRY(load_matrix(kEmbedding, width, c.vocab_size));
    model_->output_norm_ = BM_TRY(load("output_norm.weight", {width}));
    if (file_->find_tensor(kOutput))
      model_->output_ = BM_TRY(load_matrix(kOutput, width, c.vocab_size));
    BM_TRY(load_optional(model_->output_bias_, "output.bias", {c.vocab_size}));
    model_->blocks_.clear();
    for (uint32_t i = 0; i < c.block_count; ++i) {
      const std::string p = fmt::format("blk.{}.", i);
      Llama::Block b;
      b.attention_norm = BM_TRY(load(p + "attn_norm.weight", {width}));
      b.query = BM_TRY(load_matrix(p + "attn_q.weight", width, q));
      b.key = BM_TRY(load_matrix(p + "attn_k.weight", width, kv));
      b.value = BM_TRY(load_matrix(p + "attn_v.weight", width, kv));
      b.output = BM_TRY(load_matrix(p + "attn_output.weight", q, width));
      BM_TRY(load_optional(b.query_bias, p + "attn_q.bias", {q}));
      BM_TRY(load_optional(b.key_bias, p + "attn_k.bias", {kv}));
      BM_TRY(load_optional(b.value_bias, p + "attn_v.bias", {kv}));
      BM_TRY(load_optional(b.output_bias, p + "attn_output.bias", {width}));
      BM_TRY(load_optional(b.query_norm, p + "attn_q_norm.weight", {c.head_length}));
      BM_TRY(load_optional(b.key_norm, p + "attn_k_norm.weight", {c.head_length}));
      b.feed_forward_norm = BM_TRY(load(p + "ffn_norm.weight", {width}));
      b.gate = BM_TRY(load_matrix(p + "ffn_gate.weight", width, hidden));
      b.up = BM_TRY(load_matrix(p + "ffn_up.weight", width, hidden));
      b.down = BM_TRY(load_matrix(p + "ffn_down.weight", hidden, width));
      BM_TRY(load_optional(b.gate_bias, p + "ffn_gate.bias", {hidden}));
      BM_TRY(load_optional(b.up_bias, p + "ffn_up.bias", {hidden}));
      BM_TRY(load_optional(b.down_bias, p + "ffn_down.bias", {width}));
      model_->blocks_.push_back(std::move(b));
    }
    return {};
  }
};

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
