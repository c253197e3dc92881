#include "drivers/cpu/cpu_info.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "drivers/cpu/x86_features.h"

namespace bm::cpu {
namespace {

using x86::Cpuid;

bool has(const std::string& features, const std::string& item) {
  return ("," + features + ",").find("," + item + ",") != std::string::npos;
}

/// A Zen 5 server; `masked` features are hidden by a hypervisor.
template <bool kHasAvx512, bool kIsVersion5 = true>
uint32_t zen(uint32_t leaf, uint32_t subleaf, Cpuid::Register reg) {
  if (leaf == 0 && reg == Cpuid::kEcx) return 0x444d4163;
  if (leaf == 1 && reg == Cpuid::kEax) return kIsVersion5 ? 0x00b00f21 : 0x00a60f12;
  if (leaf == 1 && reg == Cpuid::kEcx) return 0x7ed8320b;
  if (leaf == 7 && subleaf == 0) {
    constexpr uint32_t kAvx512 = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;
    if (reg == Cpuid::kEax) return 1;
    if (reg == Cpuid::kEbx) return 0x128 | (kHasAvx512 ? kAvx512 : 0);
  }
  if (leaf == 7 && subleaf == 1 && reg == Cpuid::kEax) return kHasAvx512 ? 1u << 5 : 0;
  if (leaf == 0x80000001 && reg == Cpuid::kEcx) return 0x21;
  return 0;
}
constexpr uint64_t kAllState = 0xe7, kAvxState = 0x7;

Result<hal::Arch> arch_of(const Cpuid& cpuid, std::vector<std::string_view> tokens) {
  return x86::make_arch(cpuid, tokens);
}

TEST(CpuInfo, NamesAKnownProcessor) {
  const auto arch = arch_of({zen<true>, kAllState}, {});
  ASSERT_TRUE(arch);
  EXPECT_EQ(arch->name, "x86_64");
  EXPECT_EQ(arch->cpu, "znver5");
  EXPECT_EQ(arch->vector_bits, 512u);
  EXPECT_TRUE(has(arch->features, "+avx512f"));
  EXPECT_TRUE(has(arch->features, "+avx512bf16"));
  EXPECT_TRUE(has(arch->features, "-avx512fp16")) << "what the name implies but is not there";
}

TEST(CpuInfo, CrippledProcessorIsALevel) {
  const auto arch = arch_of({zen<false>, kAllState}, {});
  ASSERT_TRUE(arch);
  EXPECT_EQ(arch->cpu, "x86-64-v3");
  EXPECT_EQ(arch->vector_bits, 256u);
  EXPECT_TRUE(has(arch->features, "-avx512f"));
}

TEST(CpuInfo, RegistersTheSystemDoesNotSaveAreNotClaimed) {
  const auto avx_only = arch_of({zen<true>, kAvxState}, {});
  ASSERT_TRUE(avx_only);
  EXPECT_TRUE(has(avx_only->features, "-avx512f"));
  EXPECT_TRUE(has(avx_only->features, "-avx512bf16"));
  EXPECT_TRUE(has(avx_only->features, "+avx2"));
  const auto none = arch_of({zen<true>, 0}, {});
  ASSERT_TRUE(none);
  EXPECT_EQ(none->cpu, "x86-64-v2");
  EXPECT_EQ(none->vector_bits, 128u);
}

TEST(CpuInfo, RequestNarrows) {
  const Cpuid machine{zen<true>, kAllState};
  const auto zen2 = arch_of(machine, {"znver2"});
  ASSERT_TRUE(zen2);
  EXPECT_EQ(zen2->cpu, "znver2");
  EXPECT_TRUE(has(zen2->features, "-avx512f"));
  EXPECT_EQ(zen2->vector_bits, 256u);
  const auto without = arch_of(machine, {"-avx512f"});
  ASSERT_TRUE(without);
  EXPECT_EQ(without->cpu, "znver5");
  EXPECT_TRUE(has(without->features, "-avx512vl")) << "what builds on it goes too";
  EXPECT_TRUE(has(without->features, "+avx2"));
  const auto mixed = arch_of(machine, {"znver2", "avx512f", "-avx2"});
  ASSERT_TRUE(mixed);
  EXPECT_TRUE(has(mixed->features, "-avx512f"));
  const auto no_fma = arch_of(machine, {"-fma"});
  ASSERT_TRUE(no_fma);
  EXPECT_TRUE(has(no_fma->features, "-avx512f")) << "LLVM would enable fma again with it";
}

TEST(CpuInfo, RequestBeyondTheMachineIsRefused) {
  const Cpuid machine{zen<false>, kAllState};
  const auto feature = arch_of(machine, {"avx512f"});
  ASSERT_FALSE(feature);
  EXPECT_EQ(feature.error().code, Code::kUnsupported);
  EXPECT_NE(feature.error().message.find("avx512f"), std::string::npos);
  const auto cpu = arch_of(machine, {"znver4"});
  ASSERT_FALSE(cpu);
  EXPECT_EQ(cpu.error().code, Code::kUnsupported);
  EXPECT_FALSE(arch_of(machine, {"amx-tile"}));
  const auto unknown = arch_of(machine, {"pentium9"});
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, Code::kInvalidArgument);
  EXPECT_FALSE(arch_of(machine, {"znver2", "+flux"}));
}

TEST(CpuInfo, AMachineThatIsNotHereCanBeNamed) {
  const auto zen5 = other_arch("znver5,avx512bf16");
  ASSERT_TRUE(zen5) << zen5.error().message;
  EXPECT_EQ(zen5->cpu, "znver5");
  EXPECT_TRUE(has(zen5->features, "+avx512bf16"));
  EXPECT_TRUE(has(zen5->features, "-avx512fp16"));
  EXPECT_EQ(zen5->vector_bits, 512u);
  const auto old = other_arch("x86_64,x86-64-v2");
  ASSERT_TRUE(old);
  EXPECT_EQ(old->vector_bits, 128u);
  for (const char* bad : {"", "native", "x86_64", "pentium9", "znver5,flux", "-avx"})
    EXPECT_FALSE(other_arch(bad)) << bad;
}

/// What a name stands for, as clang has it.
TEST(CpuInfo, NamedProcessorsHaveTheFeaturesThatClangGivesThem) {
  const std::pair<const char*, const char*> macros[] = {{"pclmul", "PCLMUL"},
                                                        {"aes", "AES"},
                                                        {"rdrnd", "RDRND"},
                                                        {"sse4a", "SSE4A"},
                                                        {"prfchw", "PRFCHW"},
                                                        {"rdseed", "RDSEED"},
                                                        {"adx", "ADX"},
                                                        {"sha", "SHA"},
                                                        {"gfni", "GFNI"},
                                                        {"vaes", "VAES"},
                                                        {"vpclmulqdq", "VPCLMULQDQ"},
                                                        {"avxvnni", "AVXVNNI"},
                                                        {"avx2", "AVX2"},
                                                        {"avx512vl", "AVX512VL"},
                                                        {"fma", "FMA"},
                                                        {"f16c", "F16C"},
                                                        {"avx512ifma", "AVX512IFMA"},
                                                        {"avx512vbmi", "AVX512VBMI"},
                                                        {"avx512vnni", "AVX512VNNI"},
                                                        {"avx512bf16", "AVX512BF16"},
                                                        {"avx512fp16", "AVX512FP16"},
                                                        {"avx512vpopcntdq", "AVX512VPOPCNTDQ"}};
  for (const char* cpu :
       {"x86-64",         "x86-64-v2",      "x86-64-v3",      "x86-64-v4",   "haswell",
        "broadwell",      "skylake",        "skylake-avx512", "cascadelake", "cooperlake",
        "icelake-client", "icelake-server", "rocketlake",     "tigerlake",   "sapphirerapids",
        "emeraldrapids",  "graniterapids",  "alderlake",      "raptorlake",  "meteorlake",
        "znver1",         "znver2",         "znver3",         "znver4",      "znver5"}) {
    const auto arch = other_arch(cpu);
    ASSERT_TRUE(arch) << arch.error().message;
    const std::string command =
        std::string("clang-19 --target=x86_64-linux-gnu -E -dM -x c /dev/null -march=") + cpu +
        " 2>/dev/null";
    std::FILE* pipe = popen(command.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    std::string text;
    char chunk[4096];
    for (size_t n; (n = std::fread(chunk, 1, sizeof chunk, pipe)) > 0;) text.append(chunk, n);
    if (pclose(pipe) != 0) GTEST_SKIP() << "there is no clang-19";
    for (const auto& [feature, macro] : macros) {
      const bool is_there = text.find(std::string(" __") + macro + "__ ") != std::string::npos;
      EXPECT_TRUE(has(arch->features, (is_there ? "+" : "-") + std::string(feature)))
          << cpu << " " << feature;
    }
  }
}

TEST(CpuInfo, OtherArchitecturesAreRefused) {
  EXPECT_FALSE(make_arch("gfx1100"));
  EXPECT_TRUE(make_arch(""));
  EXPECT_TRUE(make_arch("native"));
  EXPECT_TRUE(make_arch(host_arch_name()));
}

TEST(CpuInfo, QuotaRoundsUp) {
  EXPECT_EQ(cores_of_quota("max 100000"), 0u);
  EXPECT_EQ(cores_of_quota("200000 100000"), 2u);
  EXPECT_EQ(cores_of_quota("150000 100000"), 2u);
  EXPECT_EQ(cores_of_quota("1000 100000"), 1u);
  EXPECT_EQ(cores_of_quota(""), 0u);
  EXPECT_EQ(cores_of_quota("x y"), 0u);
  EXPECT_GE(usable_cores(), 1u);
  EXPECT_FALSE(cpu_model_name().empty());
}

/// A core's folder as sysfs has it: {level, type, size, cores that share it}.
std::string write_core(const std::string& name, std::vector<std::array<const char*, 4>> caches) {
  const std::string folder = testing::TempDir() + name;
  const auto write = [&](const std::string& file, const char* text) {
    const std::filesystem::path path = folder + "/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << '\n';
  };
  write("topology/thread_siblings_list", "0,4");
  for (size_t i = 0; i < caches.size(); ++i) {
    const std::string at = fmt::format("cache/index{}/", i);
    static constexpr std::array kFiles = {"level", "type", "size", "shared_cpu_list"};
    for (size_t k = 0; k < kFiles.size(); ++k) write(at + kFiles[k], caches[i][k]);
  }
  return folder;
}

TEST(CpuInfo, CachesAreWhatTheSystemSays) {
  const CacheSizes sizes = *cache_sizes(write_core("core", {{"1", "Data", "48K", "0,4"},
                                                            {"1", "Instruction", "64K", "0,4"},
                                                            {"2", "Unified", "2M", "0,4"},
                                                            {"3", "Unified", "32M", "0-7"}}));
  EXPECT_EQ(sizes.first, 48u << 10);
  EXPECT_EQ(sizes.private_one, 2u << 20);
  EXPECT_EQ(sizes.last, 32u << 20);
  const CacheSizes shared = *cache_sizes(
      write_core("core2", {{"1", "Data", "32K", "0"}, {"2", "Unified", "4096K", "0-3"}}));
  EXPECT_EQ(shared.private_one, 32u << 10);
  EXPECT_EQ(shared.last, 4u << 20);
  const CacheSizes told = *cache_sizes("/nowhere", {.first = 48 << 10, .private_one = 3 << 20});
  EXPECT_EQ(told.first, 48u << 10);
  EXPECT_EQ(told.private_one, 3u << 20);
  const CacheSizes unknown = *cache_sizes("/nowhere", {});
  EXPECT_EQ(unknown.first, hal::Arch{}.l1_bytes);
  EXPECT_EQ(unknown.private_one, hal::Arch{}.l2_bytes);
  EXPECT_EQ(unknown.last, hal::Arch{}.llc_bytes);
  EXPECT_GE(cache_sizes()->first, 4096u);
}

TEST(CpuInfo, CachesThatCannotBeReadAreAnErrorNotAGuess) {
  const std::string folder = write_core("core3", {});
  std::filesystem::create_directories(folder + "/cache/index0/size");  // read() says EISDIR
  const auto sizes = cache_sizes(folder);
  ASSERT_FALSE(sizes);
  EXPECT_EQ(sizes.error().code, Code::kIo);
  EXPECT_NE(sizes.error().message.find("index0/size"), std::string::npos);
}

/// One cache as leaves 4 and 8000001Dh tell it.
uint32_t cache_word(Cpuid::Register reg, uint32_t type, uint32_t level, uint32_t threads,
                    uint32_t ways, uint32_t sets) {
  if (reg == Cpuid::kEax) return type | level << 5 | (threads - 1) << 14;
  if (reg == Cpuid::kEbx) return 63 | (ways - 1) << 22;
  return reg == Cpuid::kEcx ? sets - 1 : 0;
}

/// Sapphire Rapids with two threads a core (leaf 4), or Zen 4 (8000001Dh).
template <uint32_t kLeaf>
uint32_t server_caches(uint32_t leaf, uint32_t i, Cpuid::Register reg) {
  if (leaf != kLeaf) return 0;
  const bool is_intel = kLeaf == 4;
  switch (i) {
    case 0: return cache_word(reg, 1, 1, 2, is_intel ? 12 : 8, 64);
    case 1: return cache_word(reg, 2, 1, 2, 8, 64);  // instructions
    case 2: return cache_word(reg, 3, 2, 2, is_intel ? 16 : 8, 2048);
    case 3: return cache_word(reg, 3, 3, 128, 15, 114688);
    default: return 0;
  }
}

/// Zen 5 below a hypervisor that hides both leaves (Firecracker, November 2026).
uint32_t old_leaves(uint32_t leaf, uint32_t, Cpuid::Register reg) {
  if (leaf == 0x80000000 && reg == Cpuid::kEax) return 0x80000021;
  if (leaf == 0x80000005 && reg == Cpuid::kEcx) return 0x300c0140;
  if (leaf == 0x80000006 && reg == Cpuid::kEcx) return 0x04006140;
  return 0;
}

TEST(CpuInfo, CachesAreWhatTheProcessorSays) {
  x86::Caches caches = x86::detect_caches({.read = server_caches<4>});
  EXPECT_EQ(caches.l1_bytes, 48u << 10);
  EXPECT_EQ(caches.l2_bytes, 2u << 20);
  caches = x86::detect_caches({.read = server_caches<0x8000001d>});
  EXPECT_EQ(caches.l1_bytes, 32u << 10);
  EXPECT_EQ(caches.l2_bytes, 1u << 20);
  caches = x86::detect_caches({.read = old_leaves});
  EXPECT_EQ(caches.l1_bytes, 48u << 10);
  EXPECT_EQ(caches.l2_bytes, 1u << 20);
  caches = x86::detect_caches({.read = [](uint32_t, uint32_t, Cpuid::Register) { return 0u; }});
  EXPECT_EQ(caches.l1_bytes + caches.l2_bytes, 0u);
  // Whatever answers, the loop ends.
  x86::detect_caches({.read = [](uint32_t, uint32_t, Cpuid::Register) { return ~0u; }});
}

TEST(CpuInfo, AgreesWithTheCLibraryOnTheFirstCache) {
  const long bytes = sysconf(_SC_LEVEL1_DCACHE_SIZE);
  if (bytes <= 0) GTEST_SKIP() << "the C library does not know the cache";
  EXPECT_EQ(cache_sizes()->first, static_cast<uint64_t>(bytes));
}

#if defined(__x86_64__)
TEST(CpuInfo, AgreesWithTheCompilersAndTheKernelsView) {
  const auto arch = make_arch("");
  ASSERT_TRUE(arch);
  EXPECT_EQ(has(arch->features, "+avx2"), __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ(has(arch->features, "+fma"), __builtin_cpu_supports("fma") != 0);
  EXPECT_EQ(has(arch->features, "+avx512f"), __builtin_cpu_supports("avx512f") != 0);
  EXPECT_EQ(has(arch->features, "+avx512vl"), __builtin_cpu_supports("avx512vl") != 0);
  EXPECT_EQ(has(arch->features, "+avx512bf16"), __builtin_cpu_supports("avx512bf16") != 0);
  EXPECT_EQ(has(arch->features, "+gfni"), __builtin_cpu_supports("gfni") != 0);
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("flags")) continue;
    line += ' ';
    for (const char* flag : {"f16c", "movbe", "bmi2", "adx", "avx512_vnni", "avx512_vpopcntdq"}) {
      std::string llvm = flag;
      if (const size_t at = llvm.find('_'); at != std::string::npos) llvm.erase(at, 1);
      EXPECT_EQ(has(arch->features, "+" + llvm),
                line.find(" " + std::string(flag) + " ") != std::string::npos)
          << flag;
    }
    return;
  }
}
#endif

}  // namespace
}  // namespace bm::cpu
