// Lowers many kernels for many targets and prints a line for each: what was drawn, the strategy and
// a hash of the program. Equal output before and after a change of the compiler's structure shows
// that no program has changed; the first line that differs names a kernel to look at.
//
// usage: lowered_programs [KERNELS] [--unordered] [--source] [--text SUBSTRING]
//   KERNELS    seeds of each generator of random kernels; 150 by default
//   --unordered  hashes that do not see in which order values of a block are computed, where that
//              makes no difference, which operand of a sum comes first, and values nobody uses
//   --source   hashes of what every backend of the target writes, a line each, in place of programs
//   --text     prints the whole programs of the lines that contain SUBSTRING as well
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "compiler/backends.h"
#include "compiler/lowering/lower.h"
#include "compiler/program/numbering.h"
#include "compiler/schedules/strategy.h"
#include "compiler/tune/knobs.h"
#include "tests/unit/compiler/dot_sums.h"
#include "tests/unit/compiler/kernels.h"
#include "tests/unit/compiler/products.h"
#include "tests/unit/compiler/random_kernel.h"

namespace bm::test {
namespace {

using compiler::Knobs;
using compiler::Program;

/// FNV-1a, 64 bits: the same on every machine.
uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

/// The statements and values, and what they do not say.
std::string text_of(const Program& program) {
  std::string text = to_string(program);
  for (const auto& local : program.locals)
    text +=
        fmt::format("local {} · {} at {}\n", dtype_name(local.dtype), local.count, local.alignment);
  for (const auto& reg : program.registers)
    text += fmt::format("register {} · {}\n", dtype_name(reg.dtype), reg.lanes);
  return text + fmt::format("{} {} {} {} {}\n", program.has_dynamic_shared, program.block,
                            program.max_groups[0], program.max_groups[1], program.max_groups[2]);
}

/// See --unordered.
class UnorderedHash {
 public:
  explicit UnorderedHash(const Program& p) : p_(p), values_(p.values.size()) {}

  uint64_t run() {
    // A value that is not the same everywhere in its block counts with what was done before it.
    std::vector<uint64_t> done(p_.values.size());
    for (const compiler::Block& block : p_.blocks) {
      uint64_t count = 0;
      for (const compiler::Stmt& s : block.stmts)
        if (s.kind == compiler::StmtKind::kLet)
          done[s.value] = count;
        else
          ++count;
    }
    for (compiler::ValueId v = 0; v < p_.values.size(); ++v) values_[v] = of_value(v, done[v]);
    std::string text = fmt::format("{} {} {}", p_.locals.size(), p_.registers.size(), p_.root);
    for (const compiler::Block& block : p_.blocks) {
      for (const compiler::Stmt& s : block.stmts)
        if (s.kind != compiler::StmtKind::kLet) text += of_statement(s);
      text += fmt::format("{{{}}}", block.parent);
    }
    return hash_of(text);
  }

 private:
  uint64_t at(compiler::ValueId v) const { return v == compiler::kNone ? 1 : values_[v]; }

  uint64_t of_value(compiler::ValueId id, uint64_t done) const {
    using enum compiler::ValueOp;
    const compiler::Value& v = p_.values[id];
    std::vector<uint64_t> args;
    for (const compiler::ValueId a : v.args) args.push_back(at(a));
    const bool is_sum = v.op == kAlu && !is_float(v.type.dtype) &&
                        (v.alu == ir::Op::kAdd || v.alu == ir::Op::kMul || v.alu == ir::Op::kAnd ||
                         v.alu == ir::Op::kOr || v.alu == ir::Op::kXor);
    if (is_sum) std::sort(args.begin(), args.end());
    const bool has_place = v.op == kRead || v.op == kLocalLoad || v.op == kFragment ||
                           v.op == kShuffle || v.op == kLoad || v.op == kWords ||
                           v.op == kUnalignedWords;
    return hash_of(fmt::format("{} {} {} {} {} {} {} {}", static_cast<int>(v.op),
                               static_cast<int>(v.alu), static_cast<int>(v.type.dtype),
                               v.type.lanes, v.imm, p_.block_of[id], has_place ? done : 0,
                               fmt::join(args, " ")));
  }

  std::string of_statement(const compiler::Stmt& s) const {
    std::vector<uint64_t> operands;
    for (const compiler::ValueId v : s.operands) operands.push_back(at(v));
    std::string text =
        fmt::format("({} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {})",
                    static_cast<int>(s.kind), static_cast<int>(s.loop), at(s.value), at(s.begin),
                    at(s.end), s.step, s.trip_count, s.axis, s.target, s.is_streamed, s.is_local,
                    s.body, static_cast<int>(s.matrix), s.accumulators, static_cast<int>(s.copy),
                    static_cast<int>(s.pipe), s.param, s.local, fmt::join(operands, " "));
    for (const compiler::TileLayout& t : s.tiles)
      text += fmt::format("[{} {}]", t.is_transposed, t.panel_bytes);
    return text;
  }

  const Program& p_;
  std::vector<uint64_t> values_;
};

hal::Arch cpu(const char* name, uint32_t bits) {
  hal::Arch arch;
  arch.name = "x86_64";
  arch.cpu = name;
  arch.vector_bits = bits;
  arch.units = 4;
  return arch;
}

hal::Arch gpu(hal::Vendor vendor, const char* name, uint32_t units, uint32_t local_kib) {
  hal::Arch arch;
  arch.vendor = vendor;
  arch.name = name;
  arch.units = units;
  arch.max_block = vendor == hal::Vendor::kOpenCl ? 256 : 1024;
  arch.shared_memory_bytes = local_kib << 10;
  return arch;
}

const std::vector<hal::Arch>& targets() {
  using enum hal::Vendor;
  static const std::vector<hal::Arch> all = {cpu("", 128),
                                             cpu("x86-64-v3", 256),
                                             cpu("sapphirerapids", 512),
                                             cpu("znver4", 512),
                                             gpu(kNv, "sm_75", 4, 48),
                                             gpu(kNv, "sm_80", 4, 48),
                                             gpu(kNv, "sm_90", 132, 48),
                                             gpu(kNv, "sm_90", 4, 48),
                                             gpu(kNv, "sm_120", 4, 48),
                                             gpu(kAmd, "gfx942", 4, 64),
                                             gpu(kAmd, "gfx1100", 4, 64),
                                             gpu(kAmd, "gfx1201", 4, 64),
                                             gpu(kOpenCl, "opencl_c_1.2", 4, 32)};
  return all;
}

class Printer {
 public:
  Printer(const char* wanted, bool is_unordered, bool has_source)
      : wanted_(wanted), is_unordered_(is_unordered), has_source_(has_source) {}

  /// For every target, with the schedule of its choice and with one that knobs were drawn for.
  void add(const std::string& name, const ir::KernelIr& kernel, uint64_t seed) {
    for (const hal::Arch& arch : targets()) {
      if (!has_source_) add(name, kernel, seed, arch, nullptr);
      for (const compiler::Backend& row : compiler::backends())
        if (has_source_ && row.family == compiler::family_of(arch))
          add(name, kernel, seed, arch, &row);
    }
  }

 private:
  void add(const std::string& name, const ir::KernelIr& kernel, uint64_t seed,
           const hal::Arch& arch, const compiler::Backend* backend) {
    const compiler::TargetInfo target =
        backend ? compiler::target_of(arch, *backend) : compiler::target_info(arch);
    print(name, kernel, arch, target, {}, backend);
    std::mt19937_64 random(seed * 977 + 13);
    Knobs knobs;
    if (random() % 4 == 0) knobs.values["transposed"] = 1;
    for (uint64_t steps = 1 + random() % 3; steps-- > 0;) {
      const auto next = compiler::tuning_candidates(kernel, target, knobs, arch.units);
      if (!next.empty()) knobs = next[random() % next.size()];
    }
    if (!knobs.values.empty()) print(name, kernel, arch, target, knobs, backend);
  }

  void print(const std::string& name, const ir::KernelIr& kernel, const hal::Arch& arch,
             const compiler::TargetInfo& target, const Knobs& knobs,
             const compiler::Backend* backend) {
    compiler::ScheduleLimits limits;
    limits.knobs = &knobs;
    const compiler::Schedule schedule = make_schedule(kernel, target, arch.units, limits);
    auto program = lower(kernel, schedule, target);
    std::string text = program ? "" : program.error().message;
    if (program) {
      number_values(*program);
      text = backend ? backend->render(*program, target) : text_of(*program);
    }
    std::string line = fmt::format("{} {}{}·{} [{}] {}", name, arch.name, arch.cpu, arch.units,
                                   knobs.text(), strategy_of(schedule).name);
    if (backend) line += fmt::format(" {}", backend->name);
    const bool is_free = is_unordered_ && program && !backend;
    fmt::print("{} {:016x}\n", line, is_free ? UnorderedHash(*program).run() : hash_of(text));
    if (wanted_ && line.find(wanted_) != std::string::npos) fmt::print("{}\n", text);
  }

  const char* wanted_;
  bool is_unordered_, has_source_;
};

void run(uint64_t count, Printer& out) {
  for (uint64_t seed = 1; seed <= count; ++seed) {
    out.add(fmt::format("kernel {}", seed), random_kernel(seed).kernel, seed);
    out.add(fmt::format("{} {}", pattern_name(seed), seed), random_pattern(seed).kernel, seed);
    out.add(fmt::format("attention {}", seed), random_attention(seed).kernel, seed);
    out.add(fmt::format("tiled attention {}", seed), random_tiled_attention(seed).kernel, seed);
    for (const Factors f : {Factors::kAny, Factors::kBF16, Factors::kBytes})
      out.add(fmt::format("panels {} {}", static_cast<int>(f), seed), random_panels(seed, f).kernel,
              seed);
  }
  const std::vector<ir::KernelIr> fixed = corpus();
  for (size_t i = 0; i < fixed.size(); ++i) out.add(fmt::format("corpus {}", i), fixed[i], i);
  for (const int64_t n : {31, 64, 128, 500, 512, 2048})
    for (const int64_t k : {32, 64, 100, 512, 1024})
      for (const DType t : {DType::kF16, DType::kBF16, DType::kF32}) {
        const auto name = fmt::format("product {} {} {}", n, k, dtype_name(t));
        const auto seed = static_cast<uint64_t>(n * k);
        out.add(name, matmul_kernel(n, n, k, t), seed);
        out.add(name + " transposed", matmul_kernel(n, n, k, t, true), seed);
        if (t == DType::kF32) continue;
        const bool is_odd = k % 64 != 0;
        out.add(name + " mma",
                product_kernel({.in = t,
                                .m = n,
                                .n = n,
                                .k = k,
                                .batches = is_odd ? 2 : 1,
                                .is_left_transposed = is_odd,
                                .is_right_deep = !is_odd,
                                .has_epilogue = is_odd}),
                seed);
      }
  for (const Bytes code : {Bytes::kWhole, Bytes::kLow, Bytes::kHigh, Bytes::kMixed})
    for (const bool is_packed : {false, true})
      for (const int64_t rows : {16, 256})
        for (const int64_t vectors : {1, 3, 64})
          out.add(fmt::format("dots {} {} {} {}", static_cast<int>(code), is_packed, rows, vectors),
                  dot_sum_kernel({.vectors = vectors,
                                  .rows = rows,
                                  .blocks = 64,
                                  .code = code,
                                  .is_packed = is_packed}),
                  static_cast<uint64_t>(rows + vectors));
  for (const DType t : {DType::kF64, DType::kF32, DType::kF16, DType::kU8})
    for (const int64_t n : {64, 500, 2048})
      out.add(fmt::format("transposition {} {}", dtype_name(t), n), transpose_kernel(n, n, t), 5);
  if (const auto decode = decode_attention_kernel(gpu(hal::Vendor::kNv, "sm_80", 132, 48)))
    out.add("decode attention", *decode, 7);
  for (const int64_t columns : {37, 1000, 5000, 65'536})
    out.add(fmt::format("softmax {}", columns), softmax_kernel(64, columns), 6);
}

}  // namespace
}  // namespace bm::test

int main(int argc, char** argv) {
  uint64_t count = 150;
  const char* wanted = nullptr;
  bool is_unordered = false, has_source = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--text") == 0 && i + 1 < argc)
      wanted = argv[++i];
    else if (std::strcmp(argv[i], "--unordered") == 0)
      is_unordered = true;
    else if (std::strcmp(argv[i], "--source") == 0)
      has_source = true;
    else
      count = std::strtoull(argv[i], nullptr, 10);
  }
  bm::test::Printer out(wanted, is_unordered, has_source);
  bm::test::run(count, out);
  return 0;
}
