#include "tools/bellmetal/split_model.h"

#include <cstring>

#include "models/gguf.h"
#include "tools/bellmetal/exit_code.h"
#include "tools/bellmetal/text_model.h"

namespace bm::cli {
namespace {

enum class Kind : uint32_t {
  kLoaded,  ///< to rank 0: the blocks are there
  kPiece,   ///< to the next rank: hidden states
  kLogits,  ///< to rank 0, of a last piece
  kError,   ///< to rank 0: code and text
  kLeave,   ///< from rank 0
};

/// In front of every message. All ranks are of one build on processors of one byte order.
struct Header {
  Kind kind = Kind::kLoaded;
  uint32_t position = 0, count = 0, is_last = 0;
  uint32_t code = 0;  ///< of kError
};

std::vector<std::byte> message(const Header& header, std::span<const std::byte> body = {}) {
  std::vector<std::byte> out(sizeof header + body.size());
  std::memcpy(out.data(), &header, sizeof header);
  if (!body.empty()) std::memcpy(out.data() + sizeof header, body.data(), body.size());
  return out;
}

Result<Header> header_of(const MpiWorld::Message& m) {
  Header out;
  if (m.bytes.size() < sizeof out || (m.bytes.size() - sizeof out) % sizeof(float) != 0)
    return fail(Code::kCorrupt, "a message of {} bytes from rank {}", m.bytes.size(), m.source);
  std::memcpy(&out, m.bytes.data(), sizeof out);
  return out;
}

std::span<const std::byte> body_of(const MpiWorld::Message& m) {
  return std::span(m.bytes).subspan(sizeof(Header));
}

Status send_error(MpiWorld& world, const Error& error) {
  std::string text = error.message;
  text.resize((text.size() + sizeof(float) - 1) / sizeof(float) * sizeof(float), ' ');
  return world.send(0, message({.kind = Kind::kError, .code = static_cast<uint32_t>(error.code)},
                               std::as_bytes(std::span(text))));
}

Status send_piece(MpiWorld& world, const models::StagePiece& piece, std::span<const float> hidden) {
  return world.send(world.rank() + 1, message({.kind = Kind::kPiece,
                                               .position = piece.position,
                                               .count = piece.count,
                                               .is_last = piece.is_last ? 1U : 0U},
                                              std::as_bytes(hidden)));
}

/// The blocks of one rank that is not the first.
class Stage {
 public:
  Stage(MpiWorld& world, const ModelOptions& options) : world_(world), options_(options) {}

  Status load() {
    auto file =
        std::make_shared<const models::GgufFile>(BM_TRY(models::GgufFile::open(options_.path)));
    auto model = BM_TRY(models::Llama::load(std::move(file), {.device = options_.device,
                                                              .stage = world_.rank(),
                                                              .stages = world_.size(),
                                                              .context = options_.context,
                                                              .progress = {}}));
    try {
      session_ = std::make_unique<models::LlamaSession>(
          std::move(model),
          models::LlamaSession::Options{
              .cache_type = cache_dtype(options_.cache_type),
              .next = [this](const models::StagePiece& piece, std::span<const float> hidden,
                             std::span<float> /*logits*/) {
                return send_piece(world_, piece, hidden);
              }});
    } catch (const Exception& e) {
      return tl::unexpected<Error>(e.error());
    }
    return world_.send(0, message({.kind = Kind::kLoaded}));
  }

  Status compute(const MpiWorld::Message& m, const Header& header) {
    const std::span<const std::byte> body = body_of(m);
    hidden_.resize(body.size() / sizeof(float));
    std::memcpy(hidden_.data(), body.data(), body.size());
    BM_TRY(session_->feed_hidden({header.position, header.count, header.is_last != 0}, hidden_));
    if (world_.rank() + 1 < world_.size() || header.is_last == 0) return {};
    return world_.send(0, message({.kind = Kind::kLogits}, std::as_bytes(session_->logits())));
  }

 private:
  MpiWorld& world_;
  const ModelOptions& options_;
  std::unique_ptr<models::LlamaSession> session_;
  std::vector<float> hidden_;
};

}  // namespace

SplitModel::~SplitModel() {
  for (uint32_t rank = 1; rank < world_.size() && !is_broken_; ++rank)
    is_broken_ = !world_.send(rank, message({.kind = Kind::kLeave}));
  if (is_broken_) world_.give_up(kFailure);
}

/// What somebody has to tell rank 0.
Result<MpiWorld::Message> SplitModel::answer(const std::string& who) {
  auto m = world_.receive(who);
  if (!m) {
    is_broken_ = true;
    return m;
  }
  const Header header = BM_TRY(header_of(*m));
  if (header.kind != Kind::kError) return m;
  const std::span<const std::byte> text = body_of(*m);
  std::string said(reinterpret_cast<const char*>(text.data()), text.size());
  said.erase(said.find_last_not_of(' ') + 1);
  return fail(static_cast<Code>(header.code), "rank {} of {}: {}", m->source, world_.size(), said);
}

Status SplitModel::wait_loaded() {
  for (uint32_t i = 1; i < world_.size(); ++i)
    BM_TRY(answer(fmt::format("one of {} other ranks, which load the model,", world_.size() - 1)));
  return {};
}

models::LlamaSession::NextStage SplitModel::next_stage() {
  return [this](const models::StagePiece& piece, std::span<const float> hidden,
                std::span<float> logits) -> Status {
    if (Status sent = send_piece(world_, piece, hidden); !sent) {
      is_broken_ = true;
      return sent;
    }
    if (!piece.is_last) return {};
    const MpiWorld::Message m =
        BM_TRY(answer(fmt::format("rank {} of {}", world_.size() - 1, world_.size())));
    const std::span<const std::byte> body = body_of(m);
    if (body.size() != logits.size_bytes())
      return fail(Code::kCorrupt, "rank {} answers with {} bytes of logits, not {}", m.source,
                  body.size(), logits.size_bytes());
    std::memcpy(logits.data(), body.data(), body.size());
    return {};
  };
}

int run_stage(MpiWorld& world, const ModelOptions& options) {
  int code = kOk;
  const auto told = [&](const Status& status, bool is_file) {
    if (status) return;
    code = is_file ? file_exit_code(status.error().code) : exit_code(status.error().code);
    if (!send_error(world, status.error())) world.give_up(code);
  };
  Stage stage(world, options);
  told(stage.load(), true);
  for (;;) {
    const auto m = world.receive("rank 0");
    const auto header = m ? header_of(*m) : Result<Header>(tl::unexpected<Error>(m.error()));
    if (!header) {
      code = exit_code(header.error().code);
      world.give_up(code);
      return code;
    }
    if (header->kind == Kind::kLeave) return code;
    // After an error pieces are taken, so that nobody waits for them to be.
    if (code == kOk) told(stage.compute(*m, *header), false);
  }
}

}  // namespace bm::cli
