// The files are written by make_elf_corpus.py and also feed the fuzzer.

#include "runtime/base/elf.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace bm::elf {
namespace {

std::vector<std::byte> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

std::vector<std::byte> corpus(const std::string& name) {
  return read_file("tests/fuzz/corpus/elf/" + name + ".elf");
}

/// First error of the file or one of its relocation tables.
Error first_error(std::span<const std::byte> bytes) {
  const auto file = File::parse(bytes);
  if (!file) return file.error();
  for (const Section& section : file->sections()) {
    if (section.type != kRela) continue;
    const auto relocations = file->relocations(section);
    if (!relocations) return relocations.error();
  }
  return {Code::kInternal, "no error"};
}

TEST(Elf, ReadsSectionsSymbolsAndRelocations) {
  const auto bytes = corpus("good");
  const auto file = File::parse(bytes);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->type(), FileType::kRelocatable);
  EXPECT_EQ(file->machine(), kMachineX86_64);
  ASSERT_EQ(file->sections().size(), 6u);
  const Section* text = file->find_section(".text");
  ASSERT_NE(text, nullptr);
  EXPECT_TRUE(text->has(kExec));
  EXPECT_EQ(text->alignment, 16u);
  EXPECT_EQ(text->bytes.size(), 8u);
  ASSERT_EQ(file->symbols().size(), 3u);
  const Symbol* kernel = file->find_symbol("kernel");
  ASSERT_NE(kernel, nullptr);
  EXPECT_EQ(kernel->type, SymbolType::kFunction);
  EXPECT_EQ(kernel->section, 1);
  EXPECT_EQ(file->find_symbol("sinf"), nullptr) << "undefined symbols are not found";
  const auto relocations = file->relocations(*file->find_section(".rela.text"));
  ASSERT_TRUE(relocations);
  ASSERT_EQ(relocations->size(), 1u);
  EXPECT_EQ(relocations->front().offset, 1u);
  EXPECT_EQ(relocations->front().type, 4u);
  EXPECT_EQ(relocations->front().addend, -4);
  EXPECT_EQ(file->symbols()[relocations->front().symbol].name, "sinf");
}

TEST(Elf, ReadsMemoryOfAnyAlignment) {
  auto bytes = corpus("good");
  bytes.insert(bytes.begin(), std::byte{0});
  const auto file = File::parse(std::span(bytes).subspan(1));
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_NE(file->find_symbol("kernel"), nullptr);
}

TEST(Elf, ReadsAnExecutableOfThisSystem) {
  const auto bytes = read_file("/proc/self/exe");
  const auto file = File::parse(bytes);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_FALSE(file->segments().empty());
  EXPECT_NE(file->find_section(".text"), nullptr);
}

TEST(Elf, RefusesEveryPrefixOfAFileWithoutCrashing) {
  const auto bytes = corpus("good");
  for (size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(File::parse(std::span(bytes).first(length))) << length;
}

struct Malformed {
  const char* file;
  Code code;
  const char* message;  ///< part of it
};
class MalformedElf : public testing::TestWithParam<Malformed> {};

TEST_P(MalformedElf, IsRefusedWithTheReason) {
  const auto bytes = corpus(GetParam().file);
  const Error error = first_error(bytes);
  EXPECT_EQ(error.code, GetParam().code) << error.message;
  EXPECT_NE(error.message.find(GetParam().message), std::string::npos) << error.message;
}

INSTANTIATE_TEST_SUITE_P(
    Corpus, MalformedElf,
    testing::Values(
        Malformed{"empty", Code::kCorrupt, "truncated"},
        Malformed{"header_truncated", Code::kCorrupt, "truncated"},
        Malformed{"class_32", Code::kUnsupported, "class 1"},
        Malformed{"section_table_past_end", Code::kCorrupt, "offset 0x10000000000 is past the end"},
        Malformed{"section_table_unaligned", Code::kCorrupt, "unaligned offset 0x44"},
        Malformed{"section_table_over_header", Code::kCorrupt, "e_shstrndx"},
        Malformed{"section_table_truncated", Code::kCorrupt, "run past the end"},
        Malformed{"section_entry_wrong", Code::kCorrupt, "e_shentsize 40"},
        Malformed{"section_count_huge", Code::kCorrupt, "65279 sections"},
        Malformed{"section_size_overflow", Code::kCorrupt,
                  "0x40+0xfffffffffffffff8 run past the end"},
        Malformed{"section_past_end", Code::kCorrupt, "0x100000+0x8 run past the end"},
        Malformed{"section_overlap", Code::kCorrupt, "overlaps '.text'"},
        Malformed{"section_over_header", Code::kCorrupt, "overlaps"},
        Malformed{"section_alignment_odd", Code::kCorrupt, "alignment 24"},
        Malformed{"name_section_missing", Code::kCorrupt, "e_shstrndx 77"},
        Malformed{"string_unterminated", Code::kCorrupt, "symbol 2 at offset 0xb0 has no end"},
        Malformed{"string_past_end", Code::kCorrupt, "starts at 0x1f4"},
        Malformed{"symbol_section_out_of_range", Code::kCorrupt, "in section 99 of 6"},
        Malformed{"symbol_value_out_of_range", Code::kCorrupt, "value 0x8000000000000000"},
        Malformed{"symbol_table_cut", Code::kCorrupt, "ends inside an entry"},
        Malformed{"symbol_table_unaligned", Code::kCorrupt, "symbol table at offset 0x64"},
        Malformed{"symbol_strings_wrong", Code::kCorrupt, "not a string table"},
        Malformed{"relocation_symbol_out_of_range", Code::kCorrupt, "uses symbol 3 of 3"},
        Malformed{"relocation_outside_section", Code::kCorrupt,
                  "patches 0x8, outside section '.text'"},
        Malformed{"relocation_target_out_of_range", Code::kCorrupt, "applies to section 99 of 6"},
        Malformed{"relocation_entry_wrong", Code::kCorrupt, "entries of 16 bytes, not 24"}),
    [](const auto& row) { return std::string(row.param.file); });

}  // namespace
}  // namespace bm::elf
