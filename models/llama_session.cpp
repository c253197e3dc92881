#include "models/llama_session.h"

#include "runtime/buffer.h"
#include "tensor/jit.h"

namespace bm::models {
namespace {

constexpr uint32_t kChunk = 128;  ///< most tokens of a prompt computed at once

}  // namespace

struct LlamaSession::Impl {
  std::shared_ptr<const Llama> model;
  KvCache cache;
  uint32_t position = 0;
  std::vector<float> logits;

  uint32_t chunk;  ///< 0: the context is too short for chunks
  Var chunk_count, chunk_position, step_position;
  Tensor chunk_tokens, step_token;

  using Step = std::function<Tensor(const Tensor&)>;
  Jit<Step> run_chunk, run_step;

  explicit Impl(std::shared_ptr<const Llama> m)
      : model(std::move(m)),
        cache(model->make_cache()),
        logits(model->config().vocab_size),
        // States go from token to token.
        chunk(model->config().recurrent.kernel > 0 ? 0 : std::min(kChunk, model->context() / 2)),
        chunk_count("count", 1, std::max<int64_t>(chunk, 1)),
        chunk_position("position", 0, std::max<int64_t>(int64_t{model->context()} - chunk, 0)),
        step_position("position", 0, int64_t{model->context()} - 1),
        chunk_tokens(Tensor::from(std::vector<int32_t>(std::max<uint32_t>(chunk, 1)),
                                  {std::max<int64_t>(chunk, 1)}, model->device())),
        step_token(Tensor::from(std::vector<int32_t>(1), {1}, model->device())),
        run_chunk([this](const Tensor& t) {
          return model->forward(t, chunk_count, chunk_position, cache);
        }),
        run_step([this](const Tensor& t) { return model->forward(t, 1, step_position, cache); }) {}

  void write_tokens(Tensor& into, std::span<const int32_t> tokens) {
    runtime::Buffer dst = into.buffer();
    dst.size = tokens.size_bytes();
    unwrap(runtime::copy_in(dst, std::as_bytes(tokens)));
  }

  void read_logits(const Tensor& t) {
    runtime::Buffer src = t.buffer();
    src.size = logits.size() * sizeof(float);
    unwrap(runtime::copy_out(std::as_writable_bytes(std::span(logits)), src));
  }

  void feed(std::span<const int32_t> tokens) {
    while (!tokens.empty()) {
      size_t n = 1;
      const bool fits_chunk =
          chunk > 1 && tokens.size() > 1 && position + chunk <= model->context();
      if (fits_chunk) {
        n = std::min<size_t>(tokens.size(), chunk);
        chunk_count.set(static_cast<int64_t>(n));
        chunk_position.set(position);
        write_tokens(chunk_tokens, tokens.first(n));
      } else {
        step_position.set(position);
        write_tokens(step_token, tokens.first(1));
      }
      // capture() on first use: the plain first call would compile and run the same kernels twice.
      const Tensor& out =
          fits_chunk ? run_chunk.capture(chunk_tokens) : run_step.capture(step_token);
      position += static_cast<uint32_t>(n);
      tokens = tokens.subspan(n);
      if (tokens.empty()) read_logits(out);
    }
  }
};

LlamaSession::LlamaSession(std::shared_ptr<const Llama> model)
    : impl_(std::make_unique<Impl>(std::move(model))) {}
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
  try {
    impl_->feed(tokens);
  } catch (const Exception& e) {
    return tl::unexpected<Error>(e.error());
  } catch (const std::exception&) {
    return tl::unexpected<Error>(error_of_exception("computing tokens"));
  }
  return {};
}

}  // namespace bm::models
