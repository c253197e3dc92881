#include "models/llama_session.h"

#include "runtime/buffer.h"
#include "tensor/jit.h"

namespace bm::models {
namespace {

constexpr uint32_t kChunk = 128;  ///< most tokens of a prompt computed at once

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
  std::shared_ptr<const Llama> model;
  NextStage next;
  KvCache cache;
  uint32_t position = 0;
  std::vector<float> logits, hidden;

  uint32_t chunk;  ///< 0: the context is too short for chunks
  Var chunk_count, chunk_position, step_position;
  Tensor chunk_in, step_in;  ///< tokens, or hidden states of the stage before

  using Step = std::function<Tensor(const Tensor&)>;
  Jit<Step> run_chunk, run_step;

  Impl(std::shared_ptr<const Llama> m, NextStage n)
      : model(std::move(m)),
        next(std::move(n)),
        cache(model->make_cache()),
        logits(model->config().vocab_size),
        // States go from token to token.
        chunk(model->config().recurrent.kernel > 0 ? 0 : std::min(kChunk, model->context() / 2)),
        chunk_count("count", 1, std::max<int64_t>(chunk, 1)),
        chunk_position("position", 0, std::max<int64_t>(int64_t{model->context()} - chunk, 0)),
        step_position("position", 0, int64_t{model->context()} - 1),
        chunk_in(make_input(std::max<uint32_t>(chunk, 1))),
        step_in(make_input(1)),
        run_chunk([this](const Tensor& t) {
          return model->forward(t, chunk_count, chunk_position, cache);
        }),
        run_step([this](const Tensor& t) { return model->forward(t, 1, step_position, cache); }) {}

  Tensor make_input(int64_t rows) const {
    if (model->is_first_stage())
      return Tensor::from(std::vector<int32_t>(static_cast<size_t>(rows)), {rows}, model->device());
    const int64_t width = model->config().embedding_length;
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

  bool fits_chunk(size_t count) const {
    return chunk > 1 && count > 1 && position + chunk <= model->context();
  }

  /// A piece that fits a program, of tokens or hidden states.
  template <class T>
  void run(std::span<const T> in, uint32_t count, bool is_last) {
    const bool is_chunk = fits_chunk(count);
    if (is_chunk) {
      chunk_count.set(count);
      chunk_position.set(position);
    } else {
      step_position.set(position);
    }
    write(is_chunk ? chunk_in : step_in, in);
    // capture() on first use: the plain first call would compile and run the same kernels twice.
    const Tensor& out = is_chunk ? run_chunk.capture(chunk_in) : run_step.capture(step_in);
    const StagePiece piece{position, count, is_last};
    position += count;
    if (model->is_last_stage()) {
      if (is_last) read(logits, out);
      return;
    }
    hidden.resize(size_t{count} * model->config().embedding_length);
    read(hidden, out);
    unwrap(next(piece, hidden, logits));
  }

  void feed(std::span<const int32_t> tokens) {
    while (!tokens.empty()) {
      const size_t n = fits_chunk(tokens.size()) ? std::min<size_t>(tokens.size(), chunk) : 1;
      run(tokens.first(n), static_cast<uint32_t>(n), n == tokens.size());
      tokens = tokens.subspan(n);
    }
  }
};

LlamaSession::LlamaSession(std::shared_ptr<const Llama> model, NextStage next)
    : impl_(std::make_unique<Impl>(std::move(model), std::move(next))) {}
LlamaSession::~LlamaSession() = default;

std::span<const float> LlamaSession::logits() const { return impl_->logits; }
uint32_t LlamaSession::position() const { return impl_->position; }
uint32_t LlamaSession::room() const { return impl_->model->context() - impl_->position; }
void LlamaSession::reset() { impl_->position = 0; }

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
  for (int32_t t : tokens)
    if (t < 0 || static_cast<uint32_t>(t) >= impl_->model->config().vocab_size)
      return fail(Code::kInvalidArgument, "token {} is outside the vocabulary of {}", t,
                  impl_->model->config().vocab_size);
  return guarded_feed([&] { impl_->feed(tokens); });
}

uint32_t LlamaSession::max_piece() { return kChunk; }

Status LlamaSession::feed_hidden(const StagePiece& piece, std::span<const float> hidden) {
  const size_t width = impl_->model->config().embedding_length;
  if (piece.count == 0 || piece.count > kChunk || piece.position > impl_->model->context() ||
      piece.count > impl_->model->context() - piece.position)
    return fail(Code::kInvalidArgument, "{} tokens at position {} of {} do not fit", piece.count,
                piece.position, impl_->model->context());
  if (hidden.size() != piece.count * width)
    return fail(Code::kInvalidArgument, "{} hidden states for {} tokens of {}", hidden.size(),
                piece.count, width);
  impl_->position = piece.position;
  return guarded_feed([&] {
    if (piece.count == 1 || impl_->fits_chunk(piece.count))
      return impl_->run(hidden, piece.count, piece.is_last);
    raise(Code::kInvalidArgument, "{} tokens at position {} do not fit a piece of this stage",
          piece.count, piece.position);
  });
}

}  // namespace bm::models
