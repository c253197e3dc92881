#include "models/llama_encoder.h"

#include "runtime/buffer.h"
#include "tensor/jit.h"

namespace bm::models {

struct LlamaEncoder::Impl {
  std::shared_ptr<const Llama> model;
  Var count;
  Tensor tokens, kinds;
  std::vector<int32_t> kinds_kept;  ///< what `kinds` holds
  std::vector<RopeTables> rope;
  std::vector<float> hidden;
  using Step = std::function<Tensor(const Tensor&, const Tensor&)>;
  Jit<Step> run;

  explicit Impl(std::shared_ptr<const Llama> m)
      : model(std::move(m)),
        count("count", 1, model->context()),
        tokens(Tensor::from(std::vector<int32_t>(model->context()), {int64_t{model->context()}},
                            model->device())),
        kinds(Tensor::from(std::vector<int32_t>(model->context()), {int64_t{model->context()}},
                           model->device())),
        kinds_kept(model->context()),
        rope(model->make_rope_tables(model->context())),
        run([this](const Tensor& t, const Tensor& k) { return model->encode(t, k, count, rope); }) {
  }

  void encode(std::span<const int32_t> text, size_t second) {
    count.set(static_cast<int64_t>(text.size()));
    const auto copy = [](std::span<const int32_t> from, const Tensor& into) {
      runtime::Buffer to = into.buffer();
      to.size = from.size_bytes();
      unwrap(runtime::copy_in(to, std::as_bytes(from)));
    };
    copy(text, tokens);
    std::vector<int32_t> wanted(model->context());
    if (model->token_kinds() > 1 && second < text.size())
      std::fill(wanted.begin() + static_cast<ptrdiff_t>(second), wanted.end(), 1);
    if (wanted != kinds_kept) copy(wanted, kinds);
    kinds_kept = std::move(wanted);
    const Tensor& out = run.capture(tokens, kinds);
    hidden.resize(text.size() * model->config().output_length);
    runtime::Buffer from = out.buffer();
    from.size = hidden.size() * sizeof(float);
    unwrap(runtime::copy_out(std::as_writable_bytes(std::span(hidden)), from));
  }
};

LlamaEncoder::LlamaEncoder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LlamaEncoder::~LlamaEncoder() = default;

Result<std::unique_ptr<LlamaEncoder>> LlamaEncoder::create(std::shared_ptr<const Llama> model) {
  if (model->config().is_causal)
    return fail(Code::kUnsupported, "{}: tokens of this model see only those before them",
                model->config().architecture);
  try {
    return std::unique_ptr<LlamaEncoder>(
        new LlamaEncoder(std::make_unique<Impl>(std::move(model))));
  } catch (const Exception& e) {
    return tl::unexpected<Error>(e.error());
  } catch (const std::exception&) {
    return tl::unexpected<Error>(error_of_exception("making an encoder"));
  }
}

const Llama& LlamaEncoder::model() const { return *impl_->model; }
std::span<const float> LlamaEncoder::hidden() const { return impl_->hidden; }

Status LlamaEncoder::encode(std::span<const int32_t> tokens, size_t second) {
  const Llama& model = *impl_->model;
  if (tokens.empty() || tokens.size() > model.context())
    return fail(Code::kInvalidArgument, "{} tokens: this model encodes 1 to {} at once",
                tokens.size(), model.context());
  for (const int32_t t : tokens)
    if (t < 0 || static_cast<uint32_t>(t) >= model.config().vocab_size)
      return fail(Code::kInvalidArgument, "token {} is outside the vocabulary of {}", t,
                  model.config().vocab_size);
  try {
    impl_->encode(tokens, second);
  } catch (const Exception& e) {
    return tl::unexpected<Error>(e.error());
  } catch (const std::exception&) {
    return tl::unexpected<Error>(error_of_exception("encoding a text"));
  }
  return {};
}

}  // namespace bm::models
