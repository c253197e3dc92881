#include "drivers/nv/methods/qmd.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace bm::nv {
namespace {

#include "drivers/nv/methods/qmd.gen.inc"

constexpr std::string_view kKeyNames[] = {"MajorVersion",
                                          "MinorVersion",
                                          "Type",
                                          "GroupId",
                                          "GridX",
                                          "GridY",
                                          "GridZ",
                                          "BlockX",
                                          "BlockY",
                                          "BlockZ",
                                          "Registers",
                                          "Barriers",
                                          "Program",
                                          "SharedBytes",
                                          "MinSharedConfig",
                                          "MaxSharedConfig",
                                          "TargetSharedConfig",
                                          "LocalLowBytes",
                                          "LocalHighBytes",
                                          "SassVersion",
                                          "GlobalCaching",
                                          "NoCallLimit",
                                          "SamplerIndex",
                                          "InvalidateTextureHeaders",
                                          "InvalidateSamplers",
                                          "InvalidateTextureData",
                                          "InvalidateShaderData",
                                          "InvalidateInstructions",
                                          "InvalidateConstants",
                                          "Membar",
                                          "BankValid",
                                          "BankInvalidate",
                                          "BankAddress",
                                          "BankBytes",
                                          "PrefetchAddress",
                                          "PrefetchSize",
                                          "ReleaseEnable",
                                          "ReleaseSize",
                                          "ReleaseMembar",
                                          "ReleasePayload64",
                                          "ReleaseAddress",
                                          "ReleasePayload",
                                          "DependentEnable",
                                          "DependentIsGrid",
                                          "DependentAction",
                                          "DependentPrefetch",
                                          "DependentPointer",
                                          "ClusterX",
                                          "ClusterY",
                                          "ClusterZ"};
static_assert(std::size(kKeyNames) == kQmdKeys);

// QMD_TYPE: GRID_CTA, GRID_GPC_CGA.
constexpr uint32_t kTypeGrid = 2, kTypeClusters = 3;
/// Group that is not linked to others; what the vendor's own launches use.
constexpr uint32_t kNoGroup = 0x3f;
constexpr uint32_t kMembarSystem = 1;      // CWD_MEMBAR_TYPE_L1_SYSMEMBAR
constexpr uint32_t kReleaseTwoWords = 2;   // RELEASE_STRUCTURE_SIZE_SEMAPHORE_TWO_WORDS
constexpr uint32_t kActionSchedule = 1;    // DEPENDENT_QMD_ACTION_QMD_SCHEDULE
constexpr uint64_t kMostPrefetch = 0x1ff;  // width of PROGRAM_PREFETCH_SIZE, units of 256 bytes

struct VersionNumber {
  uint32_t major, minor;
};
constexpr VersionNumber number_of(QmdVersion version) {
  switch (version) {
    case QmdVersion::k2_3: return {2, 3};
    case QmdVersion::k3_0: return {3, 0};
    case QmdVersion::k4_0: return {4, 0};
    case QmdVersion::k5_0: return {5, 0};
  }
  __builtin_unreachable();
}

void put(std::span<uint32_t> words, uint32_t low, uint32_t bits, uint64_t value) {
  while (bits > 0) {
    const uint32_t at = low % 32, here = std::min(bits, 32 - at);
    const uint32_t mask = here == 32 ? UINT32_MAX : ((1u << here) - 1) << at;
    uint32_t& word = words[low / 32];
    word = (word & ~mask) | (static_cast<uint32_t>(value) << at & mask);
    value >>= here;
    low += here;
    bits -= here;
  }
}

uint64_t take(std::span<const uint32_t> words, uint32_t low, uint32_t bits) {
  uint64_t value = 0;
  for (uint32_t i = 0; i < bits; ++i) {
    const uint32_t bit = low + i;
    value |= uint64_t{words[bit / 32] >> (bit % 32) & 1} << i;
  }
  return value;
}

/// Configurations are counted in steps of 4 KiB, from 1.
constexpr uint32_t config_code(uint32_t kib) { return kib / 4 + 1; }

void encode_caches(Qmd& qmd) {
  qmd.with(QmdKey::kInvalidateTextureHeaders, 1)
      .with(QmdKey::kInvalidateSamplers, 1)
      .with(QmdKey::kInvalidateTextureData, 1)
      .with(QmdKey::kInvalidateShaderData, 1)
      .with_if(QmdKey::kGlobalCaching, 1)
      .with(QmdKey::kMembar, kMembarSystem);
}

void encode_resources(Qmd& qmd, const LaunchShape& shape) {
  qmd.with(QmdKey::kRegisters, shape.registers)
      .with(QmdKey::kBarriers, shape.barriers)
      .with(QmdKey::kSharedBytes, shape.shared_bytes)
      .with(QmdKey::kMinSharedConfig, config_code(shape.min_shared_config_kib))
      .with(QmdKey::kTargetSharedConfig, config_code(shape.shared_config_kib))
      .with(QmdKey::kMaxSharedConfig, config_code(shape.max_shared_config_kib))
      .with(QmdKey::kLocalHighBytes, shape.local_bytes);
}

}  // namespace

const QmdFormat& qmd_format(QmdVersion version) {
  switch (version) {
    case QmdVersion::k2_3: return kQmd2_3;
    case QmdVersion::k3_0: return kQmd3_0;
    case QmdVersion::k4_0: return kQmd4_0;
    case QmdVersion::k5_0: return kQmd5_0;
  }
  __builtin_unreachable();
}

std::string_view qmd_version_text(QmdVersion version) {
  switch (version) {
    case QmdVersion::k2_3: return "2.3";
    case QmdVersion::k3_0: return "3.0";
    case QmdVersion::k4_0: return "4.0";
    case QmdVersion::k5_0: return "5.0";
  }
  __builtin_unreachable();
}

std::string_view qmd_key_name(QmdKey key) { return kKeyNames[static_cast<size_t>(key)]; }

Qmd& Qmd::with(QmdKey key, uint64_t value, uint32_t instance) {
  const QmdField& field = format_[key];
  if (!field.exists() || !field.fits(value)) [[unlikely]]
    check_failed(fmt::format("{:#x} fits field {} of a launch descriptor with {} words", value,
                             qmd_key_name(key), format_.dwords)
                     .c_str(),
                 __FILE__, __LINE__);
  const uint64_t stored = value >> field.shift;
  const uint32_t at = instance * field.stride;
  put(words_, field.low + at, field.bits, stored);
  if (field.upper_bits != 0)
    put(words_, field.upper_low + at, field.upper_bits, stored >> field.bits);
  return *this;
}

uint64_t Qmd::get(QmdKey key, uint32_t instance) const {
  const QmdField& field = format_[key];
  const uint32_t at = instance * field.stride;
  uint64_t stored = take(words_, field.low + at, field.bits);
  if (field.upper_bits != 0)
    stored |= take(words_, field.upper_low + at, field.upper_bits) << field.bits;
  return stored << field.shift;
}

void encode_qmd(QmdVersion version, const LaunchShape& shape, std::span<uint32_t> words) {
  const QmdFormat& format = qmd_format(version);
  BM_CHECK(words.size() == format.dwords);
  std::ranges::fill(words, 0u);
  Qmd qmd(format, words);
  const VersionNumber number = number_of(version);
  qmd.with(QmdKey::kMajorVersion, number.major)
      .with(QmdKey::kMinorVersion, number.minor)
      .with_if(QmdKey::kType, shape.has_cluster ? kTypeClusters : kTypeGrid)
      .with(QmdKey::kGroupId, kNoGroup)
      .with(QmdKey::kNoCallLimit, 1)
      .with(QmdKey::kSamplerIndex, 1)
      .with(QmdKey::kSassVersion, shape.sass_version)
      .with(QmdKey::kGridX, shape.grid.x)
      .with(QmdKey::kGridY, shape.grid.y)
      .with(QmdKey::kGridZ, shape.grid.z)
      .with(QmdKey::kBlockX, shape.block.x)
      .with(QmdKey::kBlockY, shape.block.y)
      .with(QmdKey::kBlockZ, shape.block.z)
      .with(QmdKey::kProgram, shape.program)
      .with(QmdKey::kPrefetchAddress, shape.program & ~(kQmdAlignment - 1))
      .with(QmdKey::kPrefetchSize, std::min(shape.program_bytes >> 8, kMostPrefetch));
  if (shape.has_cluster)
    qmd.with(QmdKey::kClusterX, shape.cluster.x)
        .with(QmdKey::kClusterY, shape.cluster.y)
        .with(QmdKey::kClusterZ, shape.cluster.z);
  encode_caches(qmd);
  encode_resources(qmd, shape);
  for (uint32_t bank = 0; bank < shape.banks.size(); ++bank) {
    if (shape.banks[bank].bytes == 0) continue;
    qmd.with(QmdKey::kBankValid, 1, bank)
        .with(QmdKey::kBankInvalidate, 1, bank)
        .with(QmdKey::kBankAddress, shape.banks[bank].address, bank)
        .with(QmdKey::kBankBytes, shape.banks[bank].bytes, bank);
  }
}

bool has_exact_release(QmdVersion version) {
  return qmd_format(version)[QmdKey::kReleasePayload64].exists();
}

void add_release(QmdVersion version, std::span<uint32_t> words, uint32_t index, uint64_t address,
                 uint64_t value) {
  Qmd qmd(qmd_format(version), words);
  qmd.with(QmdKey::kReleaseEnable, 1, index)
      .with(QmdKey::kReleaseSize, kReleaseTwoWords, index)
      .with(QmdKey::kReleaseMembar, 1, index)
      .with(QmdKey::kReleasePayload64, 1, index)
      .with(QmdKey::kReleaseAddress, address, index)
      .with(QmdKey::kReleasePayload, value, index);
}

void link_qmd(QmdVersion version, std::span<uint32_t> words, uint64_t next) {
  Qmd qmd(qmd_format(version), words);
  qmd.with(QmdKey::kDependentEnable, 1)
      .with_if(QmdKey::kDependentIsGrid, 1)
      .with_if(QmdKey::kDependentAction, kActionSchedule)
      .with_if(QmdKey::kDependentPrefetch, 1)
      .with(QmdKey::kDependentPointer, next);
}

uint32_t sass_version(uint32_t sm) {
  // Blackwell's second line counts on from the first: 0xa0 for sm_100, 0xa4 for sm_120.
  constexpr uint32_t kSm120 = 120, kSass120 = 0xa4;
  if (sm >= kSm120) return kSass120 + (sm - kSm120);
  return sm / 10 << 4 | sm % 10;
}

}  // namespace bm::nv
