#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/gguf.h"
#include "models/hugging_face.h"
#include "models/tokenizer.h"
#include "runtime/base/result.h"
#include "tools/bellmetal/options.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

// What Tokenizer::encode() takes at most.
constexpr size_t kMaxTextBytes = 64u << 20;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

/// The whole of `path`, or of stdin for "-". Errors: kNotFound, kPermission, kIo;
/// kInvalidArgument when it is too long.
Result<std::string> read_text(const std::string& path) {
  std::unique_ptr<std::FILE, CloseFile> opened;
  std::FILE* file = stdin;
  if (path != "-") {
    opened.reset(std::fopen(path.c_str(), "rbe"));
    file = opened.get();
    if (file == nullptr)
      return fail(errno == ENOENT   ? Code::kNotFound
                  : errno == EACCES ? Code::kPermission
                                    : Code::kIo,
                  "{}: {}", path, errno_text(errno));
  }
  std::string text;
  std::array<char, 1 << 16> buffer;
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), file)) {
    text.append(buffer.data(), n);
    if (text.size() > kMaxTextBytes)
      return fail(Code::kInvalidArgument, "{}: more than {} bytes of text", path, kMaxTextBytes);
  }
  if (std::ferror(file) != 0) return fail(Code::kIo, "{}: {}", path, errno_text(errno));
  return text;
}

/// `bytes` for one cell: control characters and what is not UTF-8 as escapes.
std::string visible(std::string_view bytes) {
  // JSON's escapes; a part of a character becomes U+FFFD.
  return nlohmann::json(std::string(bytes))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// "100,259", as --ids prints them; nothing is no ids.
Result<std::vector<int32_t>> parse_ids(std::string_view text) {
  std::vector<int32_t> out;
  while (!text.empty()) {
    const std::string_view id = text.substr(0, text.find(','));
    int32_t value = 0;
    const auto [rest, error] = std::from_chars(id.data(), id.data() + id.size(), value);
    if (error != std::errc() || rest != id.data() + id.size())
      return fail(Code::kInvalidArgument, "--decode: \"{}\" is no token id", id);
    out.push_back(value);
    if (id.size() + 1 == text.size())
      return fail(Code::kInvalidArgument, "--decode: \"\" is no token id");
    text.remove_prefix(std::min(text.size(), id.size() + 1));
  }
  return out;
}

int print_text(const models::Tokenizer& tokenizer, const TokenizeOptions& options) {
  const auto ids = parse_ids(*options.decode);
  if (!ids) return report(ids.error(), options.json);
  for (const int32_t id : *ids)
    if (id < 0 || static_cast<size_t>(id) >= tokenizer.size())
      return report(Error{Code::kInvalidArgument,
                          fmt::format("token id {} in a vocabulary of {}", id, tokenizer.size())},
                    kUsage, options.json);
  const std::string text = tokenizer.decode(*ids, {.render_special = true});
  if (options.json)
    print_json({{"text", text}});
  else
    fmt::print("{}\n", text);
  return kOk;
}

int print_tokens(const models::Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                 const TokenizeOptions& options) {
  if (options.is_ids_only && !options.json) {
    fmt::print("{}\n", fmt::join(ids, ","));
    return kOk;
  }
  if (options.json) {
    auto tokens = nlohmann::ordered_json::array();
    for (const int32_t id : ids) {
      if (options.is_ids_only)
        tokens.push_back(id);
      else
        tokens.push_back(
            {{"id", id}, {"piece", tokenizer.piece(id)}, {"special", tokenizer.is_special(id)}});
    }
    print_json({{"model", tokenizer.model()},
                {"pre", tokenizer.pre()},
                {"count", ids.size()},
                {"tokens", tokens}});
    return kOk;
  }
  Table table({{"ID", Table::Align::kRight}, {"PIECE"}, {""}});
  for (const int32_t id : ids)
    table.add({std::to_string(id), visible(tokenizer.piece(id)),
               tokenizer.is_special(id) ? "special" : ""});
  fmt::print("{}", table.text());
  print_error(fmt::format("{} tokens\n", ids.size()));
  return kOk;
}

}  // namespace

int run_tokenize(const TokenizeOptions& options) {
  if (!options.text && options.file.empty() && !options.decode)
    return report(Error{Code::kInvalidArgument, "a TEXT, --file or --decode is needed"}, kUsage,
                  options.json);
  const auto file = models::is_folder(options.model)
                        ? models::open_hugging_face_tokenizer(options.model)
                        : models::GgufFile::open(options.model);
  if (!file) return report_file(file.error(), options.model, options.json);
  const auto tokenizer = models::Tokenizer::from_gguf(*file);
  if (!tokenizer) return report_file(tokenizer.error(), options.model, options.json);
  if (options.decode) return print_text(**tokenizer, options);
  auto text = options.file.empty() ? Result<std::string>(*options.text) : read_text(options.file);
  if (!text) return report_file(text.error(), options.file, options.json);
  models::EncodeOptions encode{.parse_special = options.parse_special};
  if (!options.has_ends) encode.add_bos = encode.add_eos = false;
  const auto ids = (*tokenizer)->encode(*text, encode);
  if (!ids) return report(ids.error(), options.json);
  return print_tokens(**tokenizer, *ids, options);
}

}  // namespace bm::cli
