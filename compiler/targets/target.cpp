#include "compiler/targets/target.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "runtime/base/env.h"

namespace bm::compiler {
namespace {

/// '+' or '-' as the comma separated list says of `name`; 0 if it does not.
char sign_of(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    const std::string_view item = list.substr(0, comma);
    if (item.size() > 1 && item.substr(1) == name) return item[0];
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
  }
  return 0;
}

/// Levels of the x86-64 psABI; 0 when the name says nothing.
int x86_level(std::string_view cpu) {
  if (cpu.starts_with("x86-64-v")) return cpu.size() > 8 ? cpu[8] - '0' : 1;
  struct Row {
    std::string_view prefix;
    int level;
  };
  // Longest names first where one is a prefix of another. Source: x86-64 psABI 1.0, 3.1.1.
  static constexpr std::array kRows = {
      Row{"znver4", 4},         Row{"znver5", 4},        Row{"znver", 3},
      Row{"skylake-avx512", 4}, Row{"cascadelake", 4},   Row{"cooperlake", 4},
      Row{"icelake", 4},        Row{"tigerlake", 4},     Row{"sapphirerapids", 4},
      Row{"emeraldrapids", 4},  Row{"graniterapids", 4}, Row{"rocketlake", 4},
      Row{"haswell", 3},        Row{"broadwell", 3},     Row{"skylake", 3},
      Row{"alderlake", 3},      Row{"raptorlake", 3},    Row{"meteorlake", 3}};
  for (const Row& row : kRows)
    if (cpu.starts_with(row.prefix)) return row.level;
  return 0;
}

/// Dot products, widest first. Source: Intel SDM 2C, VPDPBUSD, VDPBF16PS and (V)PMADDWD.
struct X86DotRow {
  DotInfo info;
  std::string_view needs, also;  ///< features
  int level;                     ///< of the psABI that has them; 5: none
};
constexpr std::array kX86DotRows = {
    X86DotRow{{DotKind::kU8S8, 512}, "avx512vnni", "", 5},
    X86DotRow{{DotKind::kU8S8, 256}, "avx512vnni", "avx512vl", 5},
    X86DotRow{{DotKind::kU8S8, 256}, "avxvnni", "", 5},
    X86DotRow{{DotKind::kU8S8, 128}, "avx512vnni", "avx512vl", 5},
    X86DotRow{{DotKind::kU8S8, 128}, "avxvnni", "", 5},
    X86DotRow{{DotKind::kS16S16, 512}, "avx512bw", "", 4},
    X86DotRow{{DotKind::kS16S16, 256}, "avx2", "", 3},
    X86DotRow{{DotKind::kS16S16, 128}, "sse2", "", 0},
    X86DotRow{{DotKind::kBF16BF16, 512}, "avx512bf16", "", 5},
    X86DotRow{{DotKind::kBF16BF16, 256}, "avx512bf16", "avx512vl", 5},
    X86DotRow{{DotKind::kBF16BF16, 128}, "avx512bf16", "avx512vl", 5}};

/// Whether the instruction takes less time than what it stands for. VDPBF16PS takes four times as
/// long as VFMADD231PS on Intel's cores (seen on Emerald Rapids, November 2026), and does twice as
/// many products; AMD's Zen 4 and 5 do it at full speed. Whose core it is, a virtual machine
/// may hide; SSE4A, which only AMD has, tells. Where nothing tells, products are done in float32.
/// Source: AMD APM 3, CPUID Fn8000_0001_ECX; Software Optimization Guide for the AMD Zen4
/// Microarchitecture, instruction latencies.
bool is_worth_it(DotKind kind, std::string_view cpu, bool has_sse4a) {
  return kind != DotKind::kBF16BF16 || has_sse4a || cpu.starts_with("znver");
}

/// Sizes of the machine's caches.
void set_caches(const hal::Arch& arch, TargetInfo* info) {
  info->l1_bytes = arch.l1_bytes;
  info->l2_bytes = std::max(arch.l2_bytes, arch.l1_bytes);
  info->llc_bytes = std::max(arch.llc_bytes, info->l2_bytes);
}

/// Private caches from which on plain stores cost more than they save: a line that is written whole
/// need not be read first. Seen on Emerald Rapids (2 MiB, November 2026): 16 against 30 GB/s from 4
/// to 128 MiB; the rest is kept for readers that follow soon.
constexpr uint64_t kStreamCaches = 8;

TargetInfo x86_info(const hal::Arch& arch) {
  const int level = x86_level(arch.cpu);
  const std::string_view f = arch.features;
  const auto has = [&](std::string_view name, int from_level) {
    const char sign = sign_of(f, name);
    return sign == '+' || (sign == 0 && level >= from_level);
  };
  TargetInfo info;
  set_caches(arch, &info);
  info.triple = "x86_64-unknown-linux-gnu";
  info.cpu = arch.cpu.empty() ? "x86-64" : arch.cpu;
  info.features = arch.features;
  info.has_fma = has("fma", 3);
  info.has_f16c = has("f16c", 3);
  info.row_bytes = arch.l2_bytes / 4;
  info.stream_bytes = kStreamCaches * arch.l2_bytes;
  info.has_round = has("sse4.1", 2) || has("avx", 3);
  const bool has_avx512 = has("avx512f", 4);
  info.vector_registers = has_avx512 ? 32 : 16;
  info.has_masks = has_avx512;
  info.has_scaling = has_avx512 && has("avx512vl", 4);  // Source: Intel SDM 2C, VSCALEFPS
  // Wider vectors than the registers would only spill.
  const uint32_t widest = has_avx512 ? 512 : has("avx", 3) ? 256 : 128;
  info.vector_bits = std::min(arch.vector_bits, widest);
  // Source: Intel SDM 2B, PSHUFB.
  const uint32_t lookup = has("avx512bw", 4) ? 512
                          : has("avx2", 3)   ? 256
                          : has("ssse3", 2)  ? 128
                                             : 0;
  info.byte_lookup_bits = std::min(info.vector_bits, lookup);
  for (const X86DotRow& row : kX86DotRows)
    if (row.info.bits <= info.vector_bits && has(row.needs, row.level) &&
        (row.also.empty() || has(row.also, 4)) &&
        is_worth_it(row.info.kind, info.cpu, has("sse4a", 5)))
      info.dots.push_back(row.info);
  if (info.vector_bits >= 512) {
    if (!info.features.empty()) info.features += ',';
    info.features += "-prefer-256-bit";
  }
  return info;
}

/// An API that takes source text. fma() is one rounding on every device, of float32 in software
/// where CL_FP_FMA is missing: products and sums of float64 take fewer instructions there.
/// Subnormal float32 may be flushed. Source: OpenCL C 3.0, 7.2 and 7.5.3; OpenCL API 3.0,
/// CL_DEVICE_SINGLE_FP_CONFIG.
TargetInfo api_info(const hal::Arch& arch) {
  TargetInfo info;
  info.vector_registers = 64;  // scalars of one work-item that stay cheap on every GPU
  info.has_round = true;
  info.has_fma = !arch.features.ends_with(" -fma") || !arch.has_f64;
  info.has_f16c = arch.has_f16;
  info.has_f64 = arch.has_f64;
  info.keeps_subnormals = false;
  info.has_groups = true;
  info.max_block = std::max(arch.max_block, 1u);
  info.shared_memory_bytes = arch.shared_memory_bytes;
  return info;
}

/// Number of "sm_90" and "sm_90a"; 0 for other names.
int compute_capability(std::string_view name) {
  int number = 0;
  if (!name.starts_with("sm_")) return 0;
  for (const char c : name.substr(3)) {
    if (c < '0' || c > '9') break;
    number = number * 10 + (c - '0');
  }
  return number;
}

/// Shapes of mma.sync and the first cards that have them. Source: PTX ISA 9.0, "mma".
struct MatrixRow {
  int from_capability;
  MatrixInfo info;
  bool is_rounding;  ///< operands lose digits
};
constexpr std::array kMatrixRows = {MatrixRow{80, {DType::kF16, DType::kF32, 8}, false},
                                    MatrixRow{80, {DType::kBF16, DType::kF32, 8}, false},
                                    MatrixRow{80, {DType::kI8, DType::kI32, 8}, false},
                                    MatrixRow{80, {DType::kU8, DType::kI32, 8}, false},
                                    MatrixRow{80, {DType::kF32, DType::kF32, 8}, true},
                                    MatrixRow{75, {DType::kF16, DType::kF32, 4}, false}};

/// The same of quantised blocks: 16 rows by K = 32 bytes, and 16 for formats that scale as few; the
/// first cards with int8 have 8 rows by 16. Source: PTX ISA 9.0, "mma", target ISA notes.
constexpr int kFirstQuantised = 75, kFirstSixteenRows = 80;
std::vector<MatrixInfo> quantised_rows(int capability) {
  std::vector<MatrixInfo> rows;
  for (const uint32_t k_words : {8u, 4u})
    for (const DType in : {DType::kI8, DType::kU8}) {
      MatrixInfo row{.in = in, .sum = DType::kI32, .k_words = k_words};
      row.has_signed_right = in == DType::kU8;
      if (capability < kFirstSixteenRows) {
        if (k_words != 4) continue;
        row.a_slots = 1;
        row.accumulators = 2;
      }
      rows.push_back(row);
    }
  return rows;
}

/// wgmma.mma_async, which one generation has: 64 rows by up to 256 columns for four warps. Source:
/// PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
struct WarpgroupMmaRow {
  std::string_view name, cpu;
  DType in, sum;
  bool is_rounding = false;  ///< operands lose digits
};
constexpr std::array kWarpgroupMmaRows = {
    WarpgroupMmaRow{"sm_90", "sm_90a", DType::kF16, DType::kF32},
    WarpgroupMmaRow{"sm_90", "sm_90a", DType::kBF16, DType::kF32},
    WarpgroupMmaRow{"sm_90", "sm_90a", DType::kF32, DType::kF32, true},
    WarpgroupMmaRow{"sm_90", "sm_90a", DType::kI8, DType::kI32},
    WarpgroupMmaRow{"sm_90", "sm_90a", DType::kU8, DType::kI32}};

/// Shared memory of a block that asks for it at launch and of a multiprocessor, and threads and
/// blocks of the latter. Source: CUDA C++ Programming Guide 13.0, "Compute Capabilities",
/// cuda_occupancy.h of CUDA 13.0, and cp.async in PTX ISA 9.0.
struct PipeRow {
  int capability;
  uint32_t group_kib, unit_kib, cu_items, cu_groups;
  bool has_async_copies;
};
constexpr std::array kPipeRows = {
    PipeRow{75, 64, 64, 1024, 16, false},   PipeRow{80, 163, 164, 2048, 32, true},
    PipeRow{86, 99, 100, 1536, 16, true},   PipeRow{87, 163, 164, 1536, 16, true},
    PipeRow{88, 99, 100, 1536, 16, true},   PipeRow{89, 99, 100, 1536, 24, true},
    PipeRow{90, 227, 228, 2048, 32, true},  PipeRow{100, 227, 228, 2048, 32, true},
    PipeRow{103, 227, 228, 2048, 32, true}, PipeRow{110, 227, 228, 1536, 24, true},
    PipeRow{120, 99, 100, 1536, 24, true},  PipeRow{121, 99, 100, 1536, 24, true}};
/// From compute capability 8.0 on the system has 1 KiB of every block's share.
constexpr uint32_t kReservedBytes = 1024;

PipeInfo pipe_info(int capability) {
  for (const PipeRow& row : kPipeRows)
    if (row.capability == capability)
      return {.has_async_copies = row.has_async_copies,
              .group_memory_bytes = row.group_kib << 10,
              .cu_memory_bytes = row.unit_kib << 10,
              .reserved_bytes = row.has_async_copies ? kReservedBytes : 0,
              .cu_items = row.cu_items,
              .cu_groups = row.cu_groups};
  return {};
}

/// tcgen05.mma, likewise. Source: PTX ISA 9.0, "TensorCore 5th Generation Instructions".
constexpr std::array kTensorMemoryRows = {
    WarpgroupMmaRow{"sm_100", "sm_100a", DType::kF16, DType::kF32},
    WarpgroupMmaRow{"sm_100", "sm_100a", DType::kBF16, DType::kF32},
    WarpgroupMmaRow{"sm_100", "sm_100a", DType::kF32, DType::kF32, true},
    WarpgroupMmaRow{"sm_103", "sm_103a", DType::kF16, DType::kF32},
    WarpgroupMmaRow{"sm_103", "sm_103a", DType::kBF16, DType::kF32},
    WarpgroupMmaRow{"sm_103", "sm_103a", DType::kF32, DType::kF32, true},
    WarpgroupMmaRow{"sm_110", "sm_110a", DType::kF16, DType::kF32},
    WarpgroupMmaRow{"sm_110", "sm_110a", DType::kBF16, DType::kF32},
    WarpgroupMmaRow{"sm_110", "sm_110a", DType::kF32, DType::kF32, true}};

/// `arch` as it is named with or without what only this generation has.
void add_group_matrices(const hal::Arch& arch, TargetInfo* info) {
  for (const WarpgroupMmaRow& row : kTensorMemoryRows) {
    if (arch.name != row.name && arch.name != row.cpu) continue;
    if (row.is_rounding && !settings().allow_tf32) continue;
    info->specific_cpu = row.cpu;
    info->tensor_memory.push_back({.in = row.in, .sum = row.sum, .has_tensor_memory = true});
  }
  for (const WarpgroupMmaRow& row : kWarpgroupMmaRows) {
    if (arch.name != row.name && arch.name != row.cpu) continue;
    if (row.is_rounding && !settings().allow_tf32) continue;
    info->specific_cpu = row.cpu;
    info->matrix.push_back(
        {.in = row.in, .sum = row.sum, .k_words = 8, .sub_groups = 4, .b_slots = 32});
  }
}

/// First cards that round to bfloat16 themselves. Source: PTX ISA 9.0, "cvt".
constexpr int kFirstBf16Round = 80;

/// First cards that add and multiply bfloat16; all of them do float16. Source: PTX ISA 9.0, "Half
/// Precision Floating-Point Instructions".
constexpr int kFirstBf16Arithmetic = 90;

/// First cards whose max and min give NaN if an operand is. Source: PTX ISA 9.0, "max".
constexpr int kFirstNanMinMax = 80;

/// First cards that convert two float32 to two 16-bit floats at once. Source: PTX ISA 9.0, "cvt".
constexpr int kFirstPackHalf2 = 80;

/// First cards with dp4a, whose operands say whether they have signs. Source: PTX ISA 9.0, "dp4a".
constexpr int kFirstDots = 61;

/// Everything rounds as IEEE 754 says and keeps subnormals unless told otherwise. Source: CUDA C++
/// Programming Guide 13.0, "Compute Capabilities".
TargetInfo cuda_info(const hal::Arch& arch) {
  TargetInfo info = api_info(arch);
  info.has_f16c = info.has_f64 = info.keeps_subnormals = true;
  info.has_shuffles = info.has_segments = info.has_wide_stores = true;
  info.max_block = arch.max_block > 1 ? arch.max_block : 1024;
  info.shared_memory_bytes = arch.shared_memory_bytes ? arch.shared_memory_bytes : 48 << 10;
  info.max_groups = {INT32_MAX, 65535, 65535};
  info.cpu = arch.name;
  const int capability = compute_capability(arch.name);
  for (const MatrixRow& row : kMatrixRows)
    if (capability >= row.from_capability && (!row.is_rounding || settings().allow_tf32))
      info.matrix.push_back(row.info);
  if (capability >= kFirstQuantised) info.quantised = quantised_rows(capability);
  info.has_bf16_round = capability >= kFirstBf16Round;
  info.has_f16_arithmetic = true;
  info.has_bf16_arithmetic = capability >= kFirstBf16Arithmetic;
  info.has_nan_min_max = capability >= kFirstNanMinMax;
  info.has_pack_half2 = capability >= kFirstPackHalf2;
  info.pipe = pipe_info(capability);
  info.has_exp2 = true;
  if (settings().nv_wgmma) add_group_matrices(arch, &info);
  if (capability >= kFirstDots) info.dots = {{DotKind::kU8S8, 32}, {DotKind::kS8S8, 32}};
  return info;
}

}  // namespace

bool is_cuda(const hal::Arch& arch) {
  return arch.vendor == hal::Vendor::kNv ||
         (arch.vendor == hal::Vendor::kNull && arch.name.starts_with("sm_"));
}

TargetInfo target_info(const hal::Arch& arch) {
  if (is_cuda(arch)) return cuda_info(arch);
  if (is_amd(arch)) return amd_info(arch, api_info(arch));
  if (arch.vendor == hal::Vendor::kOpenCl) return api_info(arch);
  if (arch.name == "x86_64" || arch.name.empty()) return x86_info(arch);
  TargetInfo info;
  set_caches(arch, &info);
  info.triple = arch.name + "-unknown-linux-gnu";
  info.cpu = arch.cpu.empty() ? "generic" : arch.cpu;
  info.features = arch.features;
  info.vector_bits = arch.vector_bits;
  const bool is_arm = arch.name == "aarch64";
  info.vector_registers = is_arm ? 32 : 16;
  info.row_bytes = arch.l2_bytes / 4;
  info.has_fma = info.has_f16c = info.has_round = is_arm;
  return info;
}

}  // namespace bm::compiler
