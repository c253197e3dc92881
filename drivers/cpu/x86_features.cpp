#include "drivers/cpu/x86_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <vector>

namespace bm::cpu::x86 {
namespace {

using R = Cpuid::Register;

/// Register state that must be saved by the system before an extension may be used. Source: Intel
/// SDM 1, 13.
constexpr uint64_t kStateNone = 0, kStateAvx = 0x6, kStateAvx512 = 0xe6;
/// AMX tiles also need permission by arch_prctl, which the runtime never asks for: always absent.
constexpr uint64_t kStateNever = std::numeric_limits<uint64_t>::max();

struct Feature {
  std::string_view name;  ///< LLVM's
  uint32_t leaf, subleaf;
  R reg;
  uint32_t bit;
  uint64_t state;
  std::string_view needs;  ///< rows above that LLVM enables with it, space separated
  uint32_t level;          ///< x86-64-vN that includes it; 5: none
};

// Source: Intel SDM 2A, CPUID; AMD APM 3, appendix E; names: LLVM 19, X86TargetParser.def;
// levels: x86-64 psABI 1.0, table 3.1.
constexpr std::array kFeatures{
    Feature{"sse3", 1, 0, R::kEcx, 0, kStateNone, "", 2},
    Feature{"pclmul", 1, 0, R::kEcx, 1, kStateNone, "", 5},
    Feature{"ssse3", 1, 0, R::kEcx, 9, kStateNone, "sse3", 2},
    Feature{"cx16", 1, 0, R::kEcx, 13, kStateNone, "", 2},
    Feature{"sse4.1", 1, 0, R::kEcx, 19, kStateNone, "ssse3", 2},
    Feature{"sse4.2", 1, 0, R::kEcx, 20, kStateNone, "sse4.1", 2},
    Feature{"movbe", 1, 0, R::kEcx, 22, kStateNone, "", 3},
    Feature{"popcnt", 1, 0, R::kEcx, 23, kStateNone, "", 2},
    Feature{"aes", 1, 0, R::kEcx, 25, kStateNone, "", 5},
    Feature{"avx", 1, 0, R::kEcx, 28, kStateAvx, "sse4.2", 3},
    Feature{"f16c", 1, 0, R::kEcx, 29, kStateAvx, "avx", 3},
    Feature{"fma", 1, 0, R::kEcx, 12, kStateAvx, "avx", 3},
    Feature{"rdrnd", 1, 0, R::kEcx, 30, kStateNone, "", 5},
    Feature{"sahf", 0x80000001, 0, R::kEcx, 0, kStateNone, "", 2},
    Feature{"lzcnt", 0x80000001, 0, R::kEcx, 5, kStateNone, "", 3},
    Feature{"sse4a", 0x80000001, 0, R::kEcx, 6, kStateNone, "sse3", 5},
    Feature{"prfchw", 0x80000001, 0, R::kEcx, 8, kStateNone, "", 5},
    Feature{"fma4", 0x80000001, 0, R::kEcx, 16, kStateAvx, "avx sse4a", 5},
    Feature{"xop", 0x80000001, 0, R::kEcx, 11, kStateAvx, "fma4", 5},
    Feature{"tbm", 0x80000001, 0, R::kEcx, 21, kStateNone, "", 5},
    Feature{"bmi", 7, 0, R::kEbx, 3, kStateNone, "", 3},
    Feature{"avx2", 7, 0, R::kEbx, 5, kStateAvx, "avx", 3},
    Feature{"bmi2", 7, 0, R::kEbx, 8, kStateNone, "", 3},
    Feature{"rdseed", 7, 0, R::kEbx, 18, kStateNone, "", 5},
    Feature{"adx", 7, 0, R::kEbx, 19, kStateNone, "", 5},
    Feature{"sha", 7, 0, R::kEbx, 29, kStateNone, "sse3", 5},
    Feature{"gfni", 7, 0, R::kEcx, 8, kStateNone, "sse3", 5},
    Feature{"vaes", 7, 0, R::kEcx, 9, kStateAvx, "avx2 aes", 5},
    Feature{"vpclmulqdq", 7, 0, R::kEcx, 10, kStateAvx, "avx pclmul", 5},
    Feature{"avxvnni", 7, 1, R::kEax, 4, kStateAvx, "avx2", 5},
    Feature{"avxifma", 7, 1, R::kEax, 23, kStateAvx, "avx2", 5},
    Feature{"avxvnniint8", 7, 1, R::kEdx, 4, kStateAvx, "avx2", 5},
    Feature{"avxneconvert", 7, 1, R::kEdx, 5, kStateAvx, "avx2", 5},
    Feature{"avxvnniint16", 7, 1, R::kEdx, 10, kStateAvx, "avx2", 5},
    Feature{"avx512f", 7, 0, R::kEbx, 16, kStateAvx512, "avx2 fma f16c", 4},
    Feature{"avx512dq", 7, 0, R::kEbx, 17, kStateAvx512, "avx512f", 4},
    Feature{"avx512ifma", 7, 0, R::kEbx, 21, kStateAvx512, "avx512f", 5},
    Feature{"avx512cd", 7, 0, R::kEbx, 28, kStateAvx512, "avx512f", 4},
    Feature{"avx512bw", 7, 0, R::kEbx, 30, kStateAvx512, "avx512f", 4},
    Feature{"avx512vl", 7, 0, R::kEbx, 31, kStateAvx512, "avx512f", 4},
    Feature{"avx512vbmi", 7, 0, R::kEcx, 1, kStateAvx512, "avx512bw", 5},
    Feature{"avx512vbmi2", 7, 0, R::kEcx, 6, kStateAvx512, "avx512bw", 5},
    Feature{"avx512vnni", 7, 0, R::kEcx, 11, kStateAvx512, "avx512f", 5},
    Feature{"avx512bitalg", 7, 0, R::kEcx, 12, kStateAvx512, "avx512bw", 5},
    Feature{"avx512vpopcntdq", 7, 0, R::kEcx, 14, kStateAvx512, "avx512f", 5},
    Feature{"avx512vp2intersect", 7, 0, R::kEdx, 8, kStateAvx512, "avx512f", 5},
    Feature{"avx512fp16", 7, 0, R::kEdx, 23, kStateAvx512, "avx512bw", 5},
    Feature{"avx512bf16", 7, 1, R::kEax, 5, kStateAvx512, "avx512bw", 5},
    Feature{"amx-tile", 7, 0, R::kEdx, 24, kStateNever, "", 5},
    Feature{"amx-int8", 7, 0, R::kEdx, 25, kStateNever, "amx-tile", 5},
    Feature{"amx-bf16", 7, 0, R::kEdx, 22, kStateNever, "amx-tile", 5},
};
static_assert(kFeatures.size() <= 64);

constexpr size_t kNoRow = kFeatures.size();
constexpr size_t row_of(std::string_view name) {
  for (size_t i = 0; i < kFeatures.size(); ++i)
    if (kFeatures[i].name == name) return i;
  return kNoRow;
}
constexpr FeatureSet bit(size_t row) { return FeatureSet{1} << row; }

/// What each row directly builds on. A misspelt name or a base below its user does not compile.
constexpr std::array<FeatureSet, kFeatures.size()> kNeeds = [] {
  std::array<FeatureSet, kFeatures.size()> needs{};
  for (size_t i = 0; i < kFeatures.size(); ++i) {
    std::string_view names = kFeatures[i].needs;
    while (!names.empty()) {
      const size_t end = std::min(names.find(' '), names.size());
      const size_t row = row_of(names.substr(0, end));
      if (row >= i) std::abort();
      needs[i] |= bit(row);
      names.remove_prefix(std::min(end + 1, names.size()));
    }
  }
  return needs;
}();

enum class Maker : uint8_t { kIntel, kAmd };

struct CpuRow {
  std::string_view name;  ///< LLVM's
  Maker maker;
  uint32_t family, first_model, last_model;
  uint32_t level;
};

// Families and models. Source: LLVM 19, Host.cpp, getIntelProcessorTypeAndSubtype and
// getAMDProcessorTypeAndSubtype.
constexpr CpuRow kCpus[] = {
    {"znver1", Maker::kAmd, 0x17, 0x00, 0x2f, 3},
    {"znver2", Maker::kAmd, 0x17, 0x30, 0xff, 3},
    {"znver3", Maker::kAmd, 0x19, 0x00, 0x0f, 3},
    {"znver4", Maker::kAmd, 0x19, 0x10, 0x1f, 4},
    {"znver3", Maker::kAmd, 0x19, 0x20, 0x5f, 3},
    {"znver4", Maker::kAmd, 0x19, 0x60, 0xff, 4},
    {"znver5", Maker::kAmd, 0x1a, 0x00, 0xff, 4},
    {"haswell", Maker::kIntel, 6, 0x3c, 0x3c, 3},
    {"haswell", Maker::kIntel, 6, 0x3f, 0x3f, 3},
    {"haswell", Maker::kIntel, 6, 0x45, 0x46, 3},
    {"broadwell", Maker::kIntel, 6, 0x3d, 0x3d, 3},
    {"broadwell", Maker::kIntel, 6, 0x47, 0x47, 3},
    {"broadwell", Maker::kIntel, 6, 0x4f, 0x4f, 3},
    {"broadwell", Maker::kIntel, 6, 0x56, 0x56, 3},
    {"skylake", Maker::kIntel, 6, 0x4e, 0x4e, 3},
    {"skylake", Maker::kIntel, 6, 0x5e, 0x5e, 3},
    {"skylake", Maker::kIntel, 6, 0x8e, 0x8e, 3},
    {"skylake", Maker::kIntel, 6, 0x9e, 0x9e, 3},
    {"skylake", Maker::kIntel, 6, 0xa5, 0xa6, 3},
    {"skylake-avx512", Maker::kIntel, 6, 0x55, 0x55, 4},
    // No model of their own; they can be named.
    {"cascadelake", Maker::kIntel, 6, 1, 0, 4},
    {"cooperlake", Maker::kIntel, 6, 1, 0, 4},
    {"emeraldrapids", Maker::kIntel, 6, 1, 0, 4},
    {"rocketlake", Maker::kIntel, 6, 0xa7, 0xa7, 4},
    {"icelake-server", Maker::kIntel, 6, 0x6a, 0x6a, 4},
    {"icelake-server", Maker::kIntel, 6, 0x6c, 0x6c, 4},
    {"icelake-client", Maker::kIntel, 6, 0x7d, 0x7e, 4},
    {"tigerlake", Maker::kIntel, 6, 0x8c, 0x8d, 4},
    {"sapphirerapids", Maker::kIntel, 6, 0x8f, 0x8f, 4},
    {"sapphirerapids", Maker::kIntel, 6, 0xcf, 0xcf, 4},
    {"graniterapids", Maker::kIntel, 6, 0xad, 0xae, 4},
    {"alderlake", Maker::kIntel, 6, 0x97, 0x97, 3},
    {"alderlake", Maker::kIntel, 6, 0x9a, 0x9a, 3},
    {"raptorlake", Maker::kIntel, 6, 0xb7, 0xb7, 3},
    {"raptorlake", Maker::kIntel, 6, 0xba, 0xba, 3},
    {"raptorlake", Maker::kIntel, 6, 0xbf, 0xbf, 3},
    {"meteorlake", Maker::kIntel, 6, 0xaa, 0xaa, 3},
    {"meteorlake", Maker::kIntel, 6, 0xac, 0xac, 3},
};
/// What a processor has beyond its level: that of another row, and `more`, space separated. Source:
/// LLVM 19, X86TargetParser.cpp; checked against the macros that clang defines for -march.
struct BeyondRow {
  std::string_view cpu, like, more;
};
constexpr BeyondRow kBeyond[] = {
    {"haswell", "", "pclmul rdrnd"},
    {"broadwell", "haswell", "adx prfchw rdseed"},
    {"skylake", "broadwell", "aes"},
    {"skylake-avx512", "skylake", ""},
    {"cascadelake", "skylake", "avx512vnni"},
    {"cooperlake", "cascadelake", "avx512bf16"},
    {"icelake-client", "skylake",
     "sha gfni vaes vpclmulqdq avx512ifma avx512vbmi avx512vbmi2 avx512vnni avx512bitalg "
     "avx512vpopcntdq"},
    {"icelake-server", "icelake-client", ""},
    {"rocketlake", "icelake-client", ""},
    {"tigerlake", "icelake-client", "avx512vp2intersect"},
    {"sapphirerapids", "icelake-client", "avxvnni avx512fp16 avx512bf16"},
    {"emeraldrapids", "sapphirerapids", ""},
    {"graniterapids", "sapphirerapids", ""},
    {"alderlake", "skylake", "sha gfni vaes vpclmulqdq avxvnni"},
    {"raptorlake", "alderlake", ""},
    {"meteorlake", "alderlake", ""},
    {"znver1", "", "pclmul aes rdrnd sse4a prfchw rdseed adx sha"},
    {"znver2", "znver1", ""},
    {"znver3", "znver1", "vaes vpclmulqdq"},
    {"znver4", "znver3",
     "gfni avx512ifma avx512vbmi avx512vbmi2 avx512vnni avx512bitalg avx512vpopcntdq avx512bf16"},
    {"znver5", "znver4", "avxvnni avx512vp2intersect"},
};

FeatureSet beyond_level(std::string_view cpu) {
  FeatureSet set = 0;
  for (const BeyondRow& row : kBeyond) {
    if (row.cpu != cpu) continue;
    set = row.like.empty() ? 0 : beyond_level(row.like);
    std::string_view names = row.more;
    while (!names.empty()) {
      const size_t end = std::min(names.find(' '), names.size());
      set |= bit(row_of(names.substr(0, end)));
      names.remove_prefix(std::min(end + 1, names.size()));
    }
  }
  return set;
}

constexpr std::array<std::string_view, 4> kLevels{"x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"};

uint32_t level_of(FeatureSet present) {
  uint32_t level = 1;
  while (level < kLevels.size() && (level_features(level + 1) & ~present) == 0) ++level;
  return level;
}

std::string names_of(FeatureSet set) {
  std::string text;
  for (size_t i = 0; i < kFeatures.size(); ++i)
    if ((set & bit(i)) != 0) text += (text.empty() ? "" : ", ") + std::string(kFeatures[i].name);
  return text;
}

auto lacks(std::string_view what, FeatureSet missing) {
  return fail(Code::kUnsupported, "{} needs {}, which this machine lacks", what, names_of(missing));
}

/// Features a requested processor is compiled for: its level, which the machine must have, and of
/// what LLVM gives the processor beyond it what the machine has.
Result<FeatureSet> features_of_cpu(std::string_view cpu, std::string_view native,
                                   FeatureSet present) {
  // A level stands for itself even where it is the best name this machine has.
  const bool is_level = std::find(kLevels.begin(), kLevels.end(), cpu) != kLevels.end();
  if (cpu == "native" || (cpu == native && !is_level)) return present;
  const auto level = cpu_level(cpu);
  if (!level)
    return fail(Code::kInvalidArgument,
                "unknown processor or feature '{}' (processors: LLVM names such as znver4, "
                "sapphirerapids, x86-64-v3; features such as avx2, -avx512f)",
                cpu);
  const FeatureSet wanted = level_features(*level);
  if ((wanted & ~present) != 0) return lacks(cpu, wanted & ~present);
  return close_over_needs(wanted | (beyond_level(cpu) & present));
}

Status change_feature(std::string_view token, FeatureSet present, FeatureSet& set) {
  const bool removes = token.starts_with('-');
  const std::string_view name = removes || token.starts_with('+') ? token.substr(1) : token;
  const auto feature = feature_bit(name);
  if (!feature) return fail(Code::kInvalidArgument, "unknown feature '{}'", token);
  if (removes) {
    set = close_over_needs(set & ~*feature);
    return {};
  }
  const FeatureSet wanted = with_needs(*feature);
  if ((wanted & ~present) != 0) return lacks(name, wanted & ~present);
  set |= wanted;
  return {};
}

#if defined(__x86_64__)
uint32_t read_host(uint32_t leaf, uint32_t subleaf, R reg) {
  std::array<uint32_t, 4> registers{};
  if (__get_cpuid_count(leaf, subleaf, &registers[0], &registers[1], &registers[2],
                        &registers[3]) == 0)
    return 0;
  return registers[reg];
}

uint64_t read_xcr0() {
  constexpr uint32_t kHasXgetbv = 1u << 27;
  if ((read_host(1, 0, R::kEcx) & kHasXgetbv) == 0) return 0;
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}
#else
uint32_t read_host(uint32_t, uint32_t, R) { return 0; }
uint64_t read_xcr0() { return 0; }
#endif

}  // namespace

Cpuid host_cpuid() { return {.read = read_host, .xcr0 = read_xcr0()}; }

FeatureSet detect_features(const Cpuid& cpuid) {
  FeatureSet set = 0;
  for (size_t i = 0; i < kFeatures.size(); ++i) {
    const Feature& f = kFeatures[i];
    if (f.state == kStateNever || (cpuid.xcr0 & f.state) != f.state) continue;
    // Subleaf 1 of leaf 7 exists only if subleaf 0 says so.
    if (f.leaf == 7 && f.subleaf > cpuid.read(7, 0, R::kEax)) continue;
    if ((cpuid.read(f.leaf, f.subleaf, f.reg) >> f.bit & 1) != 0) set |= bit(i);
  }
  return close_over_needs(set);
}

std::optional<FeatureSet> feature_bit(std::string_view name) {
  const size_t row = row_of(name);
  if (row == kNoRow) return std::nullopt;
  return bit(row);
}

FeatureSet close_over_needs(FeatureSet set) {
  // Bases come first in the table, so one pass is enough.
  for (size_t i = 0; i < kFeatures.size(); ++i)
    if ((kNeeds[i] & ~set) != 0) set &= ~bit(i);
  return set;
}

FeatureSet with_needs(FeatureSet set) {
  for (size_t i = kFeatures.size(); i-- > 0;)
    if ((set & bit(i)) != 0) set |= kNeeds[i];
  return set;
}

std::string feature_text(FeatureSet set) {
  std::string text;
  for (size_t i = 0; i < kFeatures.size(); ++i) {
    if (i != 0) text += ',';
    text += (set & bit(i)) != 0 ? '+' : '-';
    text += kFeatures[i].name;
  }
  return text;
}

uint32_t vector_bits(FeatureSet set) {
  // Half of AVX-512 is no use to code generation: level 4 is what every real processor has.
  if ((level_features(4) & ~set) == 0) return 512;
  return (set & bit(row_of("avx"))) != 0 ? 256 : 128;
}

FeatureSet level_features(uint32_t level) {
  FeatureSet set = 0;
  for (size_t i = 0; i < kFeatures.size(); ++i)
    if (kFeatures[i].level <= level) set |= bit(i);
  return set;
}

std::optional<uint32_t> cpu_level(std::string_view cpu) {
  for (uint32_t i = 0; i < kLevels.size(); ++i)
    if (kLevels[i] == cpu) return i + 1;
  for (const CpuRow& row : kCpus)
    if (row.name == cpu) return row.level;
  return std::nullopt;
}

Caches detect_caches(const Cpuid& cpuid) {
  constexpr uint32_t kData = 1, kUnified = 3, kMostCaches = 16;
  Caches caches;
  for (const uint32_t leaf : {4u, 0x8000001du}) {
    uint32_t threads = 0;  // of a core: those that share its first level
    for (uint32_t i = 0; i < kMostCaches; ++i) {
      const uint32_t a = cpuid.read(leaf, i, R::kEax), b = cpuid.read(leaf, i, R::kEbx);
      const uint32_t type = a & 0x1f, level = a >> 5 & 7, sharing = a >> 14 & 0xfff;
      if (type == 0) break;
      if (type != kData && type != kUnified) continue;
      const uint64_t bytes = uint64_t{(b >> 22) + 1} * ((b >> 12 & 0x3ff) + 1) * ((b & 0xfff) + 1) *
                             (uint64_t{cpuid.read(leaf, i, R::kEcx)} + 1);
      if (level == 1) {
        caches.l1_bytes = std::max(caches.l1_bytes, bytes);
        threads = sharing;
      }
      if (sharing <= threads) caches.l2_bytes = std::max(caches.l2_bytes, bytes);
    }
    if (caches.l1_bytes != 0) return caches;
  }
  if (cpuid.read(0x80000000, 0, R::kEax) < 0x80000006) return caches;
  caches.l1_bytes = uint64_t{cpuid.read(0x80000005, 0, R::kEcx) >> 24} << 10;
  caches.l2_bytes = uint64_t{cpuid.read(0x80000006, 0, R::kEcx) >> 16} << 10;
  return caches;
}

std::string detect_cpu(const Cpuid& cpuid, FeatureSet present) {
  const uint32_t level = level_of(present);
  const uint32_t version = cpuid.read(1, 0, R::kEax), maker = cpuid.read(0, 0, R::kEcx);
  constexpr uint32_t kCamd = 0x444d4163, kNtel = 0x6c65746e;  // last letters of the maker's name
  uint32_t family = version >> 8 & 0xf, model = version >> 4 & 0xf;
  if (family == 6 || family == 0xf) model |= (version >> 16 & 0xf) << 4;
  if (family == 0xf) family += version >> 20 & 0xff;
  for (const CpuRow& row : kCpus) {
    const bool same_maker = maker == (row.maker == Maker::kAmd ? kCamd : kNtel);
    if (same_maker && family == row.family && model >= row.first_model && model <= row.last_model &&
        level >= row.level)
      return std::string(row.name);
  }
  return std::string(kLevels[level - 1]);
}

Result<hal::Arch> make_arch(const Cpuid& cpuid, std::span<const std::string_view> tokens) {
  const FeatureSet present = detect_features(cpuid);
  hal::Arch arch{.vendor = hal::Vendor::kCpu,
                 .name = "x86_64",
                 .cpu = detect_cpu(cpuid, present),
                 .features = {}};
  FeatureSet set = present;
  const auto is_feature = [](std::string_view token) {
    return token.starts_with('-') || token.starts_with('+') || feature_bit(token).has_value();
  };
  if (!tokens.empty() && !is_feature(tokens[0])) {
    set = BM_TRY(features_of_cpu(tokens[0], arch.cpu, present));
    if (tokens[0] != "native") arch.cpu = tokens[0];
    tokens = tokens.subspan(1);
  }
  for (std::string_view token : tokens) BM_TRY(change_feature(token, present, set));
  arch.features = feature_text(set);
  arch.vector_bits = vector_bits(set);
  return arch;
}

}  // namespace bm::cpu::x86
