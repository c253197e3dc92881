#include "tests/sim/amd/isa/opcodes.h"

#include <array>
#include <bit>
#include <vector>

namespace bm::sim::amd {
namespace {

constexpr OpcodeRow kRows[] = {
#include "tests/sim/amd/isa/opcode_rows.inc"
#include "tests/sim/amd/isa/opcode_rows_gfx10.inc"
#include "tests/sim/amd/isa/opcode_rows_gfx9.inc"
};

struct Range {
  uint16_t first, last;
};
struct OperandClass {
  char name;
  std::array<Range, 8> ranges;
};

// Operand classes: 0-105 SGPR, 106/107 VCC, 108-123 TTMP, 124 NULL, 125 M0, 126/127 EXEC, 128-208
// integers, 233/234/250 DPP, 235-239 apertures, 240-248 floats, 251-253 VCCZ/EXECZ/SCC,
// 255 literal, 256-511 VGPR.
constexpr OperandClass kClasses[] = {
    {'A', {{{0, 127}}}},
    {'B', {{{0, 208}, {235, 248}, {251, 253}, {255, 255}}}},
    {'C', {{{0, 106}, {108, 124}, {126, 126}}}},
    {'D', {{{0, 106}, {108, 124}, {126, 126}, {128, 208}, {235, 248}, {251, 253}, {255, 255}}}},
    {'E', {{{0, 127}, {235, 239}, {251, 253}}}},
    {'F', {{{0, 106}, {108, 124}, {126, 126}, {235, 239}, {251, 253}}}},
    {'G', {{{0, 255}}}},
    {'H', {{{0, 124}}}},
    {'I', {{{0, 63}}}},
    {'J', {{{0, 106}, {108, 124}}}},
    {'K', {{{0, 103}, {108, 124}}}},
    {'L', {{{0, 99}, {108, 119}, {124, 124}}}},
    {'M', {{{0, 91}, {108, 111}, {124, 124}}}},
    {'N', {{{0, 51}, {54, 62}}}},
    {'O', {{{0, 208}, {233, 248}, {251, 511}}}},
    {'P', {{{124, 124}, {235, 239}, {251, 254}, {256, 511}}}},
    {'Q', {{{0, 106}, {108, 124}, {126, 126}, {128, 208}, {235, 248}, {251, 253}, {255, 510}}}},
    {'R', {{{0, 208}, {235, 248}, {251, 511}}}},
    {'S', {{{0, 208}, {233, 248}, {250, 511}}}},
    {'T', {{{0, 208}, {233, 248}, {250, 383}}}},
    {'U', {{{124, 124}, {233, 239}, {251, 253}, {256, 511}}}},
    {'V', {{{0, 208}, {233, 248}, {251, 383}}}},
    {'W', {{{124, 124}, {235, 239}, {251, 253}, {256, 511}}}},
    {'X', {{{0, 208}, {235, 248}, {251, 383}}}},
    {'Y', {{{0, 125}, {235, 239}, {251, 253}}}},
    {'Z', {{{124, 124}, {233, 239}, {250, 253}, {256, 511}}}},
    {'a', {{{124, 124}, {235, 239}, {251, 253}, {256, 508}}}},
    {'b', {{{0, 208}, {235, 248}, {251, 255}}}},
    {'c', {{{124, 124}, {235, 239}, {251, 253}, {256, 504}}}},
    {'d', {{{124, 124}, {128, 208}, {235, 248}, {251, 253}, {255, 504}}}},
    {'e', {{{124, 124}, {235, 239}, {251, 253}, {256, 510}}}},
    {'f', {{{0, 103}, {124, 124}}}},
    {'g', {{{124, 124}, {128, 208}, {235, 248}, {251, 253}, {255, 508}}}},
    {'j', {{{0, 208}, {235, 248}, {251, 254}, {256, 511}}}},
    {'k', {{{256, 511}}}},
    {'m', {{{0, 208}, {235, 248}, {251, 253}}}},
    {'n', {{{0, 208}, {235, 248}, {251, 254}, {256, 511}}}},
    {'o', {{{0, 106}, {108, 124}, {126, 126}, {128, 208}, {235, 248}, {251, 253}, {256, 510}}}},
    {'p', {{{0, 106}, {108, 124}, {235, 239}, {251, 253}}}},
};

constexpr uint32_t kCodes = 1024, kSets = 5;

struct Lookup {
  // [set bit][format][code] → row + 1
  std::array<std::array<std::array<uint16_t, kCodes>, kFormats>, kSets> index{};
  std::array<std::array<bool, 512>, 128> classes{};

  Lookup() {
    for (size_t i = 0; i < std::size(kRows); ++i)
      for (uint32_t set = 0; set < kSets; ++set)
        if (kRows[i].sets >> set & 1)
          index[set][static_cast<size_t>(kRows[i].format)][kRows[i].code] =
              static_cast<uint16_t>(i + 1);
    for (const OperandClass& row : kClasses)
      for (const Range& range : row.ranges)
        for (uint32_t code = range.first; range.last && code <= range.last; ++code)
          classes[static_cast<size_t>(row.name)][code] = true;
    for (uint32_t code = 256; code < 512; ++code) classes['v'][code] = true;
    for (uint32_t code = 256; code < 384; ++code) classes['l'][code] = true;
    for (uint32_t code = 0; code < 128; ++code) classes['s'][code] = true;
  }
};

const Lookup& lookup() {
  static const Lookup instance;
  return instance;
}

struct Chip {
  std::string_view name;
  Isa isa;
};
constexpr Chip kChips[] = {
    {"gfx940", Isa::kGfx9},    {"gfx941", Isa::kGfx9},   {"gfx942", Isa::kGfx9},
    {"gfx1030", Isa::kGfx10},  {"gfx1031", Isa::kGfx10}, {"gfx1032", Isa::kGfx10},
    {"gfx1033", Isa::kGfx10},  {"gfx1034", Isa::kGfx10}, {"gfx1035", Isa::kGfx10},
    {"gfx1036", Isa::kGfx10},  {"gfx1100", Isa::kGfx11}, {"gfx1101", Isa::kGfx11},
    {"gfx1102", Isa::kGfx11},  {"gfx1103", Isa::kGfx11}, {"gfx1150", Isa::kGfx115},
    {"gfx1151", Isa::kGfx115}, {"gfx1200", Isa::kGfx12}, {"gfx1201", Isa::kGfx12},
};

constexpr std::string_view kFormatNames[] = {
    "SOP2",  "SOPK",      "SOP1",   "SOPC",   "SOPP", "SMEM", "VOP1",    "VOP2",   "VOPC",  "VOP3",
    "VOP3P", "VOP3P-MAI", "VOPD.X", "VOPD.Y", "DS",   "FLAT", "SCRATCH", "GLOBAL", "BUFFER"};
static_assert(std::size(kFormatNames) == kFormats);

}  // namespace

std::optional<Isa> isa_of(std::string_view chip) {
  for (const Chip& row : kChips)
    if (row.name == chip) return row.isa;
  return std::nullopt;
}

std::string_view format_name(Format format) { return kFormatNames[static_cast<size_t>(format)]; }

std::span<const OpcodeRow> opcode_rows() { return kRows; }

const OpcodeRow* find_row(Isa isa, Format format, uint32_t code) {
  if (code >= kCodes) return nullptr;
  const auto set = static_cast<uint32_t>(std::countr_zero(static_cast<uint8_t>(isa)));
  const uint16_t row = lookup().index[set][static_cast<size_t>(format)][code];
  return row ? &kRows[row - 1] : nullptr;
}

bool class_allows(char operand_class, uint32_t code) {
  return code < 512 && lookup().classes[static_cast<size_t>(operand_class) & 127][code];
}

uint32_t width_dwords(char width) {
  switch (width) {
    case '-': return 0;
    case 'h':
    case 'i': return 1;
    case 'g': return 16;
    case 'w': return 32;
    default: return static_cast<uint32_t>(width - '0');
  }
}

}  // namespace bm::sim::amd
