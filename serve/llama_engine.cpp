#include "serve/llama_engine.h"

#include "models/llama_encoder.h"
#include "runtime/device.h"
#include "runtime/device_list.h"
#include "serve/model_file.h"

namespace bm::serve {
namespace {

using models::Llama;
using models::LlamaBatch;
using models::LlamaEncoder;

class LlamaEngine final : public Engine {
 public:
  LlamaEngine(std::shared_ptr<const models::GgufFile> file, LlamaEngineOptions options,
              size_t vocabulary)
      : file_(std::move(file)),
        options_(std::move(options)),
        mark_(mark_of(options_.path)),
        vocabulary_(vocabulary) {}

  void unload() override {
    batch_.reset();
    encoder_.reset();
  }

  Status load() override {
    unload();
    if (const auto now = mark_of(options_.path); mark_ && now && mark_->is_overwritten(*now))
      return fail(Code::kCorrupt,
                  "{} was written over while it was in use: SIGHUP or a new start loads what it is "
                  "now; files replaced by renaming stay what they were for those that have them",
                  options_.path);
    auto model = BM_TRY(Llama::load(file_, {.device = options_.device,
                                            .context = options_.context,
                                            .progress = {},
                                            .packs_float32 = true}));
    if (vocabulary_ > model->config().vocab_size)
      return fail(Code::kCorrupt, "the tokenizer has {} tokens, token_embd.weight only {}",
                  vocabulary_, model->config().vocab_size);
    writes_text_ = model->config().is_causal;
    if (!writes_text_) {
      context_ = model->context();
      encoder_ = BM_TRY(LlamaEncoder::create(std::move(model)));
      return {};
    }
    batch_ = BM_TRY(LlamaBatch::create(std::move(model), options_.batch));
    page_count_ = batch_->page_count();
    context_ = batch_->model().context();
    has_states_ = batch_->has_states();
    takes_pieces_ = batch_->takes_pieces();
    if (Status done = warm_up(); !done) {
      unload();
      return done;
    }
    return {};
  }

  /// An encoder sees a text as a whole: it is one piece, whatever its length.
  uint32_t page_length() const override {
    return writes_text_ ? LlamaBatch::kPageLength : context_;
  }
  uint32_t page_count() const override { return writes_text_ ? page_count_ : most_sequences(); }
  bool writes_text() const override { return writes_text_; }
  bool has_states() const override { return has_states_; }
  bool takes_pieces() const override { return takes_pieces_; }
  uint32_t most_sequences() const override { return options_.batch.sequences; }
  uint32_t context() const override { return context_; }

  Status run(std::span<const BatchItem> items) override {
    if (!batch_) return fail(Code::kDeviceLost, "the model is not loaded");
    return batch_->run(items);
  }

  std::span<const float> logits(size_t item) const override {
    return batch_->logits(item).first(vocabulary_);
  }

  Status embed(const BatchItem& piece) override {
    if (encoder_) return encoder_->encode(piece.tokens, piece.second);
    if (!batch_) return fail(Code::kDeviceLost, "the model is not loaded");
    return batch_->embed(piece);
  }
  std::span<const float> hidden() const override {
    return encoder_ ? encoder_->hidden() : batch_->hidden();
  }

  bool is_prepared() const override { return !batch_ || batch_->is_prepared(); }
  Status prepare() override { return batch_->prepare(); }

  Status recover() override {
    unload();  // its memory goes with the device
    const auto names = runtime::device_list(options_.device);
    for (const std::string& name : names) {
      runtime::Device* device =
          BM_TRY(name.empty() ? runtime::default_device() : runtime::open_device(name));
      // Of several, those that others may use go on.
      if (names.size() == 1 || !device->lost()) BM_TRY(device->recover());
    }
    return load();
  }

 private:
  /// The programs that the first request needs: a prompt alone, and one sequence alone.
  Status warm_up() {
    const int32_t token = 0;
    const uint32_t page = 1;
    const BatchItem prompt{{&token, 1}, 0, {&page, 1}, true};
    const BatchItem single{{&token, 1}, 0, {&page, 1}, false};
    if (takes_pieces_) BM_TRY(batch_->run({&prompt, 1}));
    return batch_->run({&single, 1});
  }

  std::shared_ptr<const models::GgufFile> file_;
  LlamaEngineOptions options_;
  std::optional<FileMark> mark_;
  size_t vocabulary_;
  uint32_t page_count_ = 0, context_ = 0;
  bool writes_text_ = true, has_states_ = false, takes_pieces_ = true;
  std::unique_ptr<LlamaBatch> batch_;
  std::unique_ptr<LlamaEncoder> encoder_;  ///< instead, for models that make embeddings alone
};

}  // namespace

Result<std::unique_ptr<Engine>> make_llama_engine(std::shared_ptr<const models::GgufFile> file,
                                                  const LlamaEngineOptions& options,
                                                  size_t vocabulary) {
  auto engine = std::make_unique<LlamaEngine>(std::move(file), options, vocabulary);
  BM_TRY(engine->load());
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace bm::serve
