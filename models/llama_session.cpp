#include "models/llama_session.h"

#include "runtime/buffer.h"
#include "tensor/jit.h"

namespace bm::models {
namespace {

constexpr uint32_t kChunk = Llama::kPromptPiece;

template <class F>
Status guarded_feed(F&& body) {
  try {
    body();
  } catch (const Exception& e) {
    return tl::unexpected<Error>(e.error());
  } catch (const std::exception&) {
    return tl::unexpected<Error>(error_of_exception("computing tokens"));
  }
  return {};
}

}  // namespace

struct LlamaSession::Impl {
  using Step = std::function<Tensor(const Tensor&)>;
  /// What is captured for a cache of one capacity.
  struct Programs {
    Programs(const Llama& model, KvCache& cache, uint32_t chunk)
        : chunk_count("count", 1, chunk),
          chunk_position("position", 0, std::max<int64_t>(cache.capacity - chunk, 0)),
          step_position("position", 0, cache.capacity - 1),
          run_chunk([this, &model, &cache](const Tensor& t) {
            return model.forward(t, chunk_count, chunk_position, cache);
          }),
          run_step([this, &model, &cache](const Tensor& t) {
            return model.forward(t, 1, step_position, cache);
          }) {}
    Var chunk_count, chunk_position, step_position;
    Jit<Step> run_chunk, run_step;
  };

  std::shared_ptr<const Llama> model;
  NextStage next;
  uint32_t chunk;  ///< most tokens of a prompt computed at once
  KvCache cache;
  uint32_t position = 0;
  std::vector<float> logits, hidden;
  Tensor chunk_in, step_in;  ///< tokens, or hidden states of the stage before
  std::unique_ptr<Programs> programs;
  Var encoded;  ///< tokens of the text that was encoded
  bool is_encoded = false;
  Tensor text_in;                          ///< its tokens
  std::unique_ptr<Jit<Step>> run_encoder;  ///< of models without: nothing

  Impl(std::shared_ptr<const Llama> m, Options o)
      : model(std::move(m)),
        next(std::move(o.next)),
        chunk(model->most_piece()),
        cache(model->make_cache(std::min(largest(), KvCache::kFirstCapacity), o.cache_type)),
        logits(model->config().vocab_size),
        chunk_in(make_input(chunk)),
        step_in(make_input(1)),
        programs(std::make_unique<Programs>(*model, cache, chunk)),
        encoded("encoded", 1, model->context()) {
    if (model->config().encoder_block_count == 0) return;
    cache.encoded = encoded;
    text_in = make_input(model->context());
    run_encoder = std::make_unique<Jit<Step>>(
        [this](const Tensor& t) { return model->encode_prompt(t, cache); });
  }

  void encode(std::span<const int32_t> text) {
    encoded.set(static_cast<int64_t>(text.size()));
    write(text_in, text);
    run_encoder->capture(text_in);
    is_encoded = true;
    position = 0;
  }

  /// A chunk that begins at the last position fits.
  int64_t largest() const { return int64_t{model->context()} + chunk; }

  /// Memory for `positions`: twice what there was, or just enough where that is too much.
  void reserve(int64_t positions) {
    if (positions <= cache.capacity) return;
    const auto grow = [&](int64_t capacity) {
      model->grow(cache, std::min(largest(), std::max(positions, capacity)), position);
    };
    programs.reset();  // which hold the old memory
    const auto remake = [&] { programs = std::make_unique<Programs>(*model, cache, chunk); };
    try {
      try {
        grow(2 * cache.capacity);
      } catch (const Exception& e) {
        if (e.error().code != Code::kOutOfMemory) throw;
        grow((positions + kChunk - 1) / kChunk * kChunk);
      }
    } catch (...) {
      remake();
      throw;
    }
    remake();
  }

  Tensor make_input(int64_t rows) const {
    if (model->is_first_stage())
      return Tensor::from(std::vector<int32_t>(static_cast<size_t>(rows)), {rows}, model->device());
    const auto width = static_cast<int64_t>(model->config().stream_length());
    return Tensor::zeros({rows, width}, DType::kF32, model->device()).contiguous().realize();
  }

  template <class T>
  static void write(const Tensor& into, std::span<const T> values) {
    runtime::Buffer dst = into.buffer();
    dst.size = values.size_bytes();
    unwrap(runtime::copy_in(dst, std::as_bytes(values)));
  }

  static void read(std::span<float> values, const Tensor& t) {
    runtime::Buffer src = t.buffer();
    src.size = values.size_bytes();
    unwrap(runtime::copy_out(std::as_writable_bytes(values), src));
  }

  /// A piece of tokens or hidden states.
  template <class T>
  void run(std::span<const T> in, uint32_t count, bool is_last) {
    const bool is_chunk = count > 1;
    reserve(int64_t{position} + (is_chunk ? chunk : 1));
    Programs& p = *programs;
    if (is_chunk) {
      p.chunk_count.set(count);
      p.chunk_position.set(position);
    } else {
      p.step_position.set(position);
    }
    write(is_chunk ? chunk_in : step_in, in);
    // capture() on first use: the plain first call would compile and run the same kernels twice.
    const Tensor& out = is_chunk ? p.run_chunk.capture(chunk_in) : p.run_step.capture(step_in);
    const StagePiece piece{position, count, is_last};
    position += count;
    if (model->is_last_stage()) {
      if (is_last) read(logits, out);
      return;
    }
    hidden.resize(size_t{count} * model->config().stream_length());
    read(hidden, out);
    unwrap(next(piece, hidden, logits));
  }

  void feed(std::span<const int32_t> tokens) {
    while (!tokens.empty()) {
      const size_t n = std::min<size_t>(tokens.size(), chunk);
      run(tokens.first(n), static_cast<uint32_t>(n), n == tokens.size());
      tokens = tokens.subspan(n);
    }
  }
};

LlamaSession::LlamaSession(std::shared_ptr<const Llama> model)
    : LlamaSession(std::move(model), Options()) {}
LlamaSession::LlamaSession(std::shared_ptr<const Llama> model, Options options)
    : impl_(std::make_unique<Impl>(std::move(model), std::move(options))) {}
LlamaSession::~LlamaSession() = default;

bool LlamaSession::has_encoder() const { return impl_->run_encoder != nullptr; }
const int32_t& LlamaSession::start_token() const { return impl_->model->config().start_token; }
std::span<const float> LlamaSession::logits() const { return impl_->logits; }
uint32_t LlamaSession::position() const { return impl_->position; }
uint32_t LlamaSession::room() const { return impl_->model->context() - impl_->position; }
uint32_t LlamaSession::capacity() const {
  return static_cast<uint32_t>(std::min<int64_t>(impl_->cache.capacity, impl_->model->context()));
}
void LlamaSession::reset() { impl_->position = 0; }

Status LlamaSession::reserve(uint32_t positions) {
  if (positions > impl_->model->context())
    return fail(Code::kInvalidArgument, "{} positions exceed the context of {}", positions,
                impl_->model->context());
  return guarded_feed([&] { impl_->reserve(int64_t{positions} + impl_->chunk); });
}

namespace {

Status check_tokens(const Llama& model, std::span<const int32_t> tokens) {
  for (const int32_t t : tokens)
    if (t < 0 || static_cast<uint32_t>(t) >= model.config().vocab_size)
      return fail(Code::kInvalidArgument, "token {} is outside the vocabulary of {}", t,
                  model.config().vocab_size);
  return {};
}

}  // namespace

Status LlamaSession::encode(std::span<const int32_t> tokens) {
  const Llama& model = *impl_->model;
  if (!impl_->run_encoder)
    return fail(Code::kUnsupported, "{}: this model has no encoder", model.config().architecture);
  if (tokens.empty() || tokens.size() > model.context())
    return fail(Code::kInvalidArgument, "{} tokens: this model encodes 1 to {} at once",
                tokens.size(), model.context());
  BM_TRY(check_tokens(model, tokens));
  return guarded_feed([&] { impl_->encode(tokens); });
}

Status LlamaSession::feed(std::span<const int32_t> tokens) {
  if (!impl_->model->config().is_causal)
    return fail(Code::kUnsupported,
                "{}: this model makes embeddings and writes no text; `bellmetal serve` answers "
                "/v1/embeddings with it",
                impl_->model->config().architecture);
  if (tokens.empty()) return fail(Code::kInvalidArgument, "no tokens to feed");
  if (tokens.size() > room())
    return fail(Code::kInvalidArgument, "{} tokens do not fit: {} of the {} positions are left",
                tokens.size(), room(), impl_->model->context());
  BM_TRY(check_tokens(*impl_->model, tokens));
  if (impl_->run_encoder && !impl_->is_encoded)
    return fail(Code::kInvalidArgument, "{}: a text is encoded before another is written",
                impl_->model->config().architecture);
  return guarded_feed([&] { impl_->feed(tokens); });
}

uint32_t LlamaSession::max_piece() { return kChunk; }

Status LlamaSession::feed_hidden(const StagePiece& piece, std::span<const float> hidden) {
  const size_t width = impl_->model->config().stream_length();
  if (piece.count == 0 || piece.count > impl_->chunk || piece.position > impl_->model->context() ||
      piece.count > impl_->model->context() - piece.position)
    return fail(Code::kInvalidArgument, "{} tokens at position {} of {} do not fit", piece.count,
                piece.position, impl_->model->context());
  if (hidden.size() != piece.count * width)
    return fail(Code::kInvalidArgument, "{} hidden states for {} tokens of {}", hidden.size(),
                piece.count, width);
  impl_->position = piece.position;
  return guarded_feed([&] { impl_->run(hidden, piece.count, piece.is_last); });
}

}  // namespace bm::models
