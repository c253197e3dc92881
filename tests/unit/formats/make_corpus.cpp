// Writes the seed files of the fuzz corpora: small valid files and one broken file per class of
// defect.
//   make_format_corpus DIR

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "models/safetensors.h"
#include "tests/unit/formats/vocab_builder.h"

namespace {

using namespace bm::models;
using test::Bytes;
using test::GgufBuilder;
using test::zeros;

class Corpus {
 public:
  explicit Corpus(std::filesystem::path folder) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
  }
  void add(const char* name, const std::vector<std::byte>& bytes) const {
    std::ofstream out(folder_ / name, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
  }

 private:
  std::filesystem::path folder_;
};

void write_gguf(const Corpus& corpus) {
  GgufBuilder all, overlap, overflow, strings, nested, split, quants;
  all.scalar<uint8_t>("u8", 0, 1).i32("i32", -1).f32("f32", 1).boolean("bool", true).text("s", "x");
  all.strings("strings", {"a", "b"}).f32s("floats", {1, 2}).u32("general.alignment", 32);
  all.tensor("w", {4, 2}, 0, zeros(32)).tensor("v", {32}, 2, zeros(18));
  corpus.add("all_types", all.build());
  quants.tensor("q4k", {256}, 12, zeros(144)).tensor("q6k", {256}, 14, zeros(210));
  quants.tensor("q5_1", {32}, 7, zeros(24)).tensor("f64", {2}, 28, zeros(16));
  corpus.add("quants", quants.build());
  overlap.tensor("a", {16}, 0, zeros(64)).tensor_at("b", {1}, 0, 32);
  corpus.add("overlap", overlap.build());
  overflow.tensor_at("w", {uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0);
  corpus.add("dims_overflow", overflow.build());
  strings.entry("k", 9).put<uint32_t>(8).put(UINT64_MAX);
  corpus.add("string_count", strings.build());
  Bytes& out = nested.entry("k", 9);
  for (int i = 0; i < 3; ++i) out.put<uint32_t>(9).put<uint64_t>(1);
  out.put<uint32_t>(4).put<uint64_t>(1).put<uint32_t>(7);
  corpus.add("nested", nested.build());
  split.u16("split.no", 0).u16("split.count", 2).i32("split.tensors.count", 1);
  corpus.add("shard", split.tensor("w", {1}, 0, zeros(4)).build());
}

void write_safetensors_files(const Corpus& corpus) {
  const auto data = zeros(8);
  const SafeTensor good[] = {{"a", SafeDtype::kF32, {2}, 0, data},
                             {"b", SafeDtype::kU8, {8}, 0, data}};
  corpus.add("good", encode_safetensors(good, {{"format", "pt"}}).value());
  const auto file = [](std::string_view header, size_t n) {
    return Bytes().text(header).append(zeros(n)).data();
  };
  corpus.add("gap", file(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2));
  corpus.add(
      "wrap",
      file(R"({"a":{"dtype":"F64","shape":[2305843009213693953],"data_offsets":[0,8]}})", 8));
  corpus.add("twice", file(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}})", 0));
  corpus.add("nul", file(std::string("{}\0\0", 4), 0));
  corpus.add("long_header", Bytes().put(UINT64_MAX).raw("{}").data());
  const std::string_view index = R"({"metadata":{"n":1},"weight_map":{"a":"m-1.safetensors"}})";
  corpus.add("index", Bytes().raw(index).data());
}

/// A tokenizer input: two bytes of length of the text, the text, the model file.
std::vector<std::byte> with_text(std::string_view text, const std::vector<std::byte>& model) {
  return Bytes().put(static_cast<uint16_t>(text.size())).raw(text).append(model).data();
}

void write_tokenizers(const Corpus& corpus) {
  const auto spm = test::spm_tokens({{"▁", -9}, {"he", -1}, {"ll", -2}, {"<x>", 0, 4}});
  corpus.add("spm", with_text("hello <x>\xC3\xA9", test::tokenizer_file("llama", spm).build()));
  corpus.add(
      "spm_small",
      with_text(
          "aab",
          test::tokenizer_file(
              "llama",
              {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}, {"a", -1}, {"aa", -2}, {"▁a", -3}})
              .build()));
  const auto unigram = test::tokenizer_file(
      "t5", {{"<pad>", 0, 3}, {"</s>", 0, 3}, {"<unk>", 0, 2}, {"▁", -3}, {"a", -3}, {"ab", -4}});
  corpus.add("unigram", with_text("ab abc", unigram.build()));
  for (const char* pre : {"default", "gpt-2", "qwen2", "gpt-4o", "deepseek-v3", "falcon"}) {
    // An unknown token makes up for the missing bytes and keeps the file small.
    GgufBuilder b =
        test::tokenizer_file("gpt2", {{"h"}, {"e"}, {"he"}, {"<unk>", 0, 2}, {"<e>", 0, 3}});
    b.text("tokenizer.ggml.pre", pre).strings("tokenizer.ggml.merges", {"h e"});
    b.u32("tokenizer.ggml.unknown_token_id", 3);
    corpus.add((std::string("bpe_") + pre).c_str(),
               with_text("he'S 1234 <e>\n\n !? AbC", b.build()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: make_format_corpus DIR\n", stderr);
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  write_gguf(Corpus(folder / "gguf"));
  write_safetensors_files(Corpus(folder / "safetensors"));
  write_tokenizers(Corpus(folder / "tokenizer"));
  return 0;
}
