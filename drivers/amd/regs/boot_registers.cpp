#include "drivers/amd/regs/boot_registers.h"

#include <algorithm>
#include <array>

namespace bm::amd::am {
namespace {

struct VersionRow {
  Block block;
  uint8_t major, minor, revision;
  BlockTable table;
};

constexpr BlockTable kGc11{kGc1100, kGc1100Fields};
constexpr BlockTable kGc11_3{kGc1103, kGc1103Fields};
constexpr BlockTable kGc12{kGc1200, kGc1200Fields};
constexpr BlockTable kMm3{kMmhub300, kMmhub300Fields};
constexpr BlockTable kMm3_2{kMmhub302, kMmhub302Fields};
constexpr BlockTable kMm4{kMmhub410, kMmhub410Fields};
constexpr BlockTable kOss6{kOsssys600, kOsssys600Fields};
constexpr BlockTable kOss7{kOsssys700, kOsssys700Fields};
constexpr BlockTable kNbio4{kNbio430, kNbio430Fields};
constexpr BlockTable kNbif6{kNbif631, kNbif631Fields};
constexpr BlockTable kMp13{kMp1300, kMp1300Fields};
constexpr BlockTable kMp14{kMp1402, kMp1402Fields};
constexpr BlockTable kSmuMailbox{kMp1110, kMp1110Fields};
constexpr BlockTable kHdp6{kHdp600, kHdp600Fields};
constexpr BlockTable kGc9{kGc943, kGc943Fields};
constexpr BlockTable kMm1_8{kMmhub180, kMmhub180Fields};
constexpr BlockTable kOss4{kOsssys442, kOsssys442Fields};
constexpr BlockTable kNbio7_9{kNbio790, kNbio790Fields};
constexpr BlockTable kMp13_6{kMp1306, kMp1306Fields};
constexpr BlockTable kSdma4{kSdma442, kSdma442Fields};
constexpr BlockTable kHdp4{kHdp442, kHdp442Fields};
constexpr BlockTable kHdp7{kHdp700, kHdp700Fields};

// The blocks of Navi31, Navi32, Navi33, Navi44, Navi48 and MI300X.
constexpr VersionRow kVersions[] = {
    {Block::kGc, 11, 0, 0, kGc11},        {Block::kGc, 11, 0, 2, kGc11},
    {Block::kGc, 11, 0, 3, kGc11_3},      {Block::kGc, 12, 0, 0, kGc12},
    {Block::kGc, 12, 0, 1, kGc12},        {Block::kMmhub, 3, 0, 0, kMm3},
    {Block::kMmhub, 3, 0, 2, kMm3_2},     {Block::kMmhub, 3, 0, 3, kMm3},
    {Block::kMmhub, 4, 1, 0, kMm4},       {Block::kOsssys, 6, 0, 0, kOss6},
    {Block::kOsssys, 6, 0, 1, kOss6},     {Block::kOsssys, 6, 0, 2, kOss6},
    {Block::kOsssys, 7, 0, 0, kOss7},     {Block::kBus, 4, 3, 0, kNbio4},
    {Block::kBus, 4, 3, 1, kNbio4},       {Block::kBus, 6, 3, 1, kNbif6},
    {Block::kPsp, 13, 0, 0, kMp13},       {Block::kPsp, 13, 0, 7, kMp13},
    {Block::kPsp, 13, 0, 10, kMp13},      {Block::kPsp, 14, 0, 2, kMp14},
    {Block::kPsp, 14, 0, 3, kMp14},       {Block::kSmu, 13, 0, 0, kSmuMailbox},
    {Block::kSmu, 13, 0, 7, kSmuMailbox}, {Block::kSmu, 13, 0, 10, kSmuMailbox},
    {Block::kSmu, 14, 0, 2, kSmuMailbox}, {Block::kSmu, 14, 0, 3, kSmuMailbox},
    {Block::kHdp, 6, 0, 0, kHdp6},        {Block::kHdp, 6, 0, 1, kHdp6},
    {Block::kHdp, 7, 0, 0, kHdp7},        {Block::kGc, 9, 4, 3, kGc9},
    {Block::kMmhub, 1, 8, 0, kMm1_8},     {Block::kOsssys, 4, 4, 2, kOss4},
    {Block::kBus, 7, 9, 0, kNbio7_9},     {Block::kPsp, 13, 0, 6, kMp13_6},
    {Block::kSmu, 13, 0, 6, kSmuMailbox}, {Block::kHdp, 4, 4, 2, kHdp4},
    {Block::kSdma, 4, 4, 2, kSdma4},
};

}  // namespace

std::string_view block_name(Block block) {
  switch (block) {
    case Block::kGc: return "GC";
    case Block::kMmhub: return "MMHUB";
    case Block::kOsssys: return "OSSSYS";
    case Block::kBus: return "NBIF";
    case Block::kPsp: return "MP0";
    case Block::kSmu: return "MP1";
    case Block::kHdp: return "HDP";
    case Block::kSdma: return "SDMA";
  }
  __builtin_unreachable();
}

const BootRegister* BlockTable::find(Reg reg) const {
  const auto at = std::ranges::find(registers, reg, &BootRegister::reg);
  return at == registers.end() ? nullptr : &*at;
}

const RegisterField* BlockTable::find(Field field) const {
  const BootRegister* row = find(register_of(field));
  if (row == nullptr) return nullptr;
  const auto mine = fields_of(*row);
  const auto at = std::ranges::find(mine, field, &FieldAt::field);
  return at == mine.end() ? nullptr : &at->bits;
}

std::string BlockTable::decode(const BootRegister& row, uint32_t value) const {
  std::string text;
  for (const FieldAt& at : fields_of(row))
    if (const uint32_t bits = at.bits.get(value); bits != 0)
      text += fmt::format("{}{}={:#x}", text.empty() ? "" : " ", field_name(at.field), bits);
  return text;
}

Reg register_of(Field field) { return kFieldNames[static_cast<size_t>(field)].reg; }
std::string_view field_name(Field field) { return kFieldNames[static_cast<size_t>(field)].name; }

Result<BlockTable> block_table(Block block, uint32_t major, uint32_t minor, uint32_t revision) {
  for (const VersionRow& row : kVersions)
    if (row.block == block && row.major == major && row.minor == minor && row.revision == revision)
      return row.table;
  return fail(Code::kUnsupported,
              "block {} {}.{}.{}: no register table (add its version to tools/regdb/used.txt and "
              "drivers/amd/regs/boot_registers.cpp)",
              block_name(block), major, minor, revision);
}

}  // namespace bm::amd::am
