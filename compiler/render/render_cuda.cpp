// CUDA C++ for NVRTC; needs no header.
#include <algorithm>
#include <set>

#include "compiler/render/render.h"
#include "compiler/render/render_cpp_items.h"

namespace bm::compiler {
namespace {

class CudaRenderer final : public CppItems {
 public:
  explicit CudaRenderer(const Program& p)
      : CppItems(p, {"static __device__ __forceinline__ ", "uint2", "uint4"}) {}

  std::string run() {
    helpers();
    bfloat16_conversions();
    half_operations();
    nan_min_max();
    dots();
    for (size_t i = 0; i < p_.tables.size(); ++i) table(i);
    // Calls would need a stack.
    for (const Function& f : p_.functions) helper(f, names_.device, false);
    uint32_t alignment = 16;
    std::string addresses;
    for (size_t i = 0; i < p_.locals.size(); ++i) {
      alignment = std::max(alignment, p_.locals[i].alignment);
      if (p_.locals[i].dtype == DType::kU8)
        addresses += fmt::format(
            ";\n  const unsigned shared{0} = (unsigned)__cvta_generic_to_shared(local{0})", i);
    }
    kernel(fmt::format("extern \"C\" __global__ void __launch_bounds__({})\n", p_.block),
           fmt::format("__shared__ __align__({})", alignment),
           "int item = (int)threadIdx.x" + addresses);
    return std::move(out_);
  }

 private:
  static constexpr int kSubGroup = 32;

  std::string half_conversion(bool is_widening) const override {
    return is_widening ? "float f; asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(f) : \"h\"(a)); return f;"
                       : "unsigned short h; asm(\"cvt.rn.f16.f32 %0, %1;\" : \"=h\"(h) : "
                         "\"f\"(a)); return h;";
  }

  std::string float_to_bf16(const std::string& value) const override {
    return fmt::format("bm_float_to_bf16({})", value);
  }
  static std::string half_name(Op op, DType t) {
    return fmt::format("{}.rn.{}", ir::op_name(op), t == DType::kF16 ? "f16" : "bf16");
  }
  std::string half_arithmetic(Op op, DType t, const std::string& a,
                              const std::string& b) const override {
    return fmt::format("bm_{}_{}({}, {})", ir::op_name(op), t == DType::kF16 ? "half" : "bf16", a,
                       b);
  }
  /// An operation that says how it rounds is never fused with another.
  void half_operations() {
    for (const DType t : {DType::kF16, DType::kBF16})
      for (const Op op : {Op::kAdd, Op::kSub, Op::kMul})
        if (std::any_of(p_.values.begin(), p_.values.end(), [&](const Value& v) {
              return v.op == ValueOp::kAlu && v.alu == op && v.type.dtype == t;
            }))
          line(
              "{}unsigned short {} {{ unsigned short h; asm(\"{} %0, %1, %2;\" : \"=h\"(h) : "
              "\"h\"(a), \"h\"(b)); return h; }}",
              names_.device, half_arithmetic(op, t, "unsigned short a", "unsigned short b"),
              half_name(op, t));
  }
  void bfloat16_conversions() {
    if (std::any_of(p_.values.begin(), p_.values.end(), [](const Value& v) {
          return v.op == ValueOp::kConvert && v.type.dtype == DType::kBF16;
        }))
      line(
          "{}unsigned short bm_float_to_bf16(float a) {{ unsigned short h; asm(\"cvt.rn.bf16.f32 "
          "%0, %1;\" : \"=h\"(h) : \"f\"(a)); return h; }}",
          names_.device);
  }

  /// The toolkit's functions pass over NaN.
  void nan_min_max() {
    for (const std::string_view name : {"max", "min"})
      if (std::any_of(p_.values.begin(), p_.values.end(), [&](const Value& v) {
            return v.op == ValueOp::kAlu && v.alu == (name == "max" ? Op::kMax : Op::kMin);
          }))
        line(
            "{}float bm_{}(float a, float b) {{ float c; asm(\"{}.NaN.f32 %0, %1, %2;\" : "
            "\"=f\"(c) : \"f\"(a), \"f\"(b)); return c; }}",
            names_.device, name, name);
  }

  std::string group_number(uint32_t axis) const override {
    return fmt::format("blockIdx.{}", "xyz"[axis]);
  }
  std::string reinterpret(DType to, DType from, const std::string& a) const override {
    const std::string_view t = type_name(to);
    if (from == DType::kF32) return fmt::format("({})__float_as_uint({})", t, a);
    if (to == DType::kF32)
      return fmt::format("__uint_as_float({}{})", from == DType::kU32 ? "" : "(unsigned)", a);
    if (from == DType::kF64) return fmt::format("({})__double_as_longlong({})", t, a);
    if (to == DType::kF64) return fmt::format("__longlong_as_double((long){})", a);
    return fmt::format("({}){}", t, a);
  }
  std::string function(std::string_view name, DType t) const override {
    const bool is_f32 = t == DType::kF32;
    if (name == "max" || name == "min") return name == "max" ? "bm_max" : "bm_min";
    if (name == "sqrt") return is_f32 ? "__fsqrt_rn" : "__dsqrt_rn";
    if (name == "fma") return is_f32 ? "__fmaf_rn" : "__fma_rn";
    return is_f32 ? "truncf" : "trunc";
  }
  void barrier() override { line("__syncthreads();"); }

  /// The toolkit's function has no operands of different signs.
  void dots() {
    std::set<DotKind> wanted;
    for (const Value& v : p_.values)
      if (v.op == ValueOp::kDot && wanted.insert(static_cast<DotKind>(v.imm)).second) {
        line("{}int {}(int sum, unsigned a, unsigned b) {{", names_.device, dot_name(v));
        line("  int out;");
        line("  asm(\"{} %0, %1, %2, %3;\" : \"=r\"(out) : \"r\"(a), \"r\"(b), \"r\"(sum));",
             dp4a_name(v));
        line("  return out;");
        line("}}");
      }
  }
  static std::string_view dot_name(const Value& v) {
    return static_cast<DotKind>(v.imm) == DotKind::kS8S8 ? "bm_dot_s8s8" : "bm_dot_u8s8";
  }
  std::string dot(const Value& v) override {
    return fmt::format("{}({})", dot_name(v), arguments(v));
  }

  /// Put together from elements.
  void fill_words(uint32_t lanes, DType t) override {
    const int64_t size = item_size(t), per_word = 4 / size;
    for (uint32_t l = 0; l < lanes; ++l) {
      std::string word;
      for (int64_t i = 0; i < per_word; ++i) {
        const auto at = static_cast<int64_t>(l) * per_word + i;
        const std::string bits = t == DType::kF32
                                     ? fmt::format("__float_as_uint(p[{}])", at)
                                     : fmt::format("((unsigned)(p[{}] & {}) << {})", at,
                                                   (1 << (8 * size)) - 1, 8 * size * i);
        word += (word.empty() ? "" : " | ") + bits;
      }
      line("  w{}{} = {};", lanes > 1 ? "." : "", lanes > 1 ? std::string(1, "xyzw"[l]) : "", word);
    }
  }

  void matrix(const Stmt& s) override {
    const bool is_float_sum = is_float(s.matrix);
    const size_t a = mma_left_words(s), sums = s.accumulators;
    const auto list = [](size_t first, size_t count) {
      std::string out;
      for (size_t i = first; i < first + count; ++i)
        out += fmt::format("{}%{}", out.empty() ? "" : ", ", i);
      return "{" + out + "}";
    };
    std::string text =
        fmt::format("asm volatile(\"{} {}, {}, {}, {};\" : ", mma_name(s), list(0, sums),
                    list(sums, a), list(sums + a, s.operands.size() - a), list(0, sums));
    for (uint32_t r = 0; r < sums; ++r)
      text += fmt::format("{}\"+{}\"(r{})", r ? ", " : "", is_float_sum ? "f" : "r", s.target + r);
    text += " : ";
    for (size_t i = 0; i < s.operands.size(); ++i)
      text += fmt::format("{}\"r\"({})", i ? ", " : "", ref(s.operands[i]));
    line("{});", text);
  }

  // Asynchronous copies and warpgroup MMAs.

  std::string shared_address(uint32_t array, ValueId byte) {
    return fmt::format("shared{} + (unsigned)({})", array, ref(byte));
  }

  void beside(const Stmt& s) override {
    switch (s.kind) {
      case StmtKind::kCopy: return copy(s);
      case StmtKind::kWarpgroupMma: return warpgroup_mma(s);
      case StmtKind::kTensor: return tensor(s);
      default: return pipe(s);
    }
  }

  /// All of a chunk at once: its words one by one would meet in the same banks.
  void round_tf32(const Stmt& s) {
    const bool is_one = s.step == 4;
    const std::string_view type = is_one ? "unsigned" : "uint4";
    std::string text = fmt::format("{{ {0}& at = *({0}*)(local{1} + {2}); {0} x = at;", type,
                                   s.target, ref(s.value));
    for (const std::string_view word : {".x", ".y", ".z", ".w"}) {
      const std::string own = fmt::format("x{}", is_one ? "" : word);
      text += fmt::format(" asm(\"{0} %0, %1;\" : \"=r\"({1}) : \"f\"(__uint_as_float({1})));",
                          kRoundTf32Name, own);
      if (is_one) break;
    }
    line("{} at = x; }}", text);
  }

  void copy(const Stmt& s) {
    if (s.copy == CopyKind::kRoundTf32) return round_tf32(s);
    const std::string from = fmt::format("p{} + {}", s.param, ref(s.begin));
    if (s.copy != CopyKind::kAsync) {
      const std::string words = s.copy == CopyKind::kWords
                                    ? fmt::format("*(const uint4*)({})", from)
                                    : fmt::format("bm_words4({})", from);
      const std::string to = fmt::format("*(uint4*)(local{} + {})", s.target, ref(s.value));
      if (s.end == kNone) return line("{} = {};", to, words);
      line("if ({}) {} = {};", ref(s.end), to, words);
      return line("else {} = uint4{{0, 0, 0, 0}};", to);
    }
    const std::string bytes =
        s.end == kNone ? "" : fmt::format(", \"r\"({} ? {} : 0)", ref(s.end), s.step);
    line(
        "asm volatile(\"{} [%0], [%1], {}{};\" :: \"r\"({}), \"l\"({}){} "
        ": \"memory\");",
        async_copy_name(s), s.step, s.end == kNone ? "" : ", %2", shared_address(s.target, s.value),
        from, bytes);
  }

  void fragment(ValueId id) override {
    const Value& v = p_.at(id);
    line("unsigned v{0}_0, v{0}_1, v{0}_2, v{0}_3;", id);
    line(
        "asm volatile(\"ldmatrix.sync.aligned.m8n8.x4{0}.shared.b16 {{%0, %1, %2, %3}}, [%4];\" : "
        "\"=r\"(v{1}_0), \"=r\"(v{1}_1), \"=r\"(v{1}_2), \"=r\"(v{1}_3) : \"r\"({2}) : "
        "\"memory\");",
        v.imm % 2 ? ".trans" : "", id, shared_address(static_cast<uint32_t>(v.imm / 2), v.args[0]));
  }

  void sub_group(ValueId id) override {
    const Value& v = p_.at(id);
    line("{} v{};", value_type(id), id);
    if (v.op == ValueOp::kPackHalf2)
      return line("asm(\"{} %0, %1, %2;\" : \"=r\"(v{}) : \"f\"({}), \"f\"({}));",
                  pack_half2_name(v), id, ref(v.args[1]), ref(v.args[0]));
    if (v.op == ValueOp::kDequantise2)
      return line("asm(\"{}\" : \"=r\"(v{}) : \"r\"({}), \"r\"({}));",
                  dequantise2_asm("%0", "%1", "%2", v), id, ref(v.args[0]), ref(v.args[1]));
    if (v.op == ValueOp::kExp2)
      return line("asm(\"{} %0, %1;\" : \"=f\"(v{}) : \"f\"({}));", kExp2Name, id, ref(v.args[0]));
    if (v.op == ValueOp::kRoundTf32)
      return line("asm(\"{} %0, %1;\" : \"=r\"(v{}) : \"r\"({}));", kRoundTf32Name, id,
                  ref(v.args[0]));
    const std::string_view kind = is_float(v.type.dtype) ? "f" : "r";
    line("asm volatile(\"{}\" : \"={}\"(v{}) : \"{}\"({}));", shuffle_text("%0", "%1", v), kind, id,
         kind, ref(v.args[0]));
  }

  /// Registers as operands that are read and written.
  std::string changed(uint32_t first, uint32_t count) const {
    std::string out;
    for (uint32_t r = first; r < first + count; ++r)
      out += fmt::format("{}\"+{}\"(r{})", out.empty() ? "" : ", ",
                         is_float(p_.registers[r].dtype) ? "f" : "r", r);
    return out;
  }

  /// Waiting for wgmma changes accumulators, which the text does not name.
  void pipe(const Stmt& s) {
    line("asm volatile(\"{}\" : {} :: \"memory\");", pipe_text(s),
         changed(s.target, s.accumulators));
  }

  void warpgroup_mma(const Stmt& s) {
    const bool is_tile = s.operands.size() == 2;
    const auto list = [](size_t first, size_t count) {
      std::string out;
      for (size_t i = first; i < first + count; ++i)
        out += fmt::format("{}%{}", i == first ? "{" : ", ", i);
      return out + "}";
    };
    const auto descriptor = [&](ValueId byte, const TileLayout& tile) {
      return fmt::format("\"l\"((unsigned long)(({}) >> {}) | {}ul)", shared_address(s.local, byte),
                         kDescriptorShift, descriptor_bits(tile));
    };
    std::string given;
    if (is_tile) given = descriptor(s.operands[0], s.tiles[0]);
    for (size_t i = 0; !is_tile && i + 1 < s.operands.size(); ++i)
      given += fmt::format("{}\"r\"({})", i ? ", " : "", ref(s.operands[i]));
    const size_t words = s.operands.size() - 1;
    line(
        "asm volatile(\"{{ .reg .pred p; setp.ne.s32 p, {}, 0; {} {}, {}, %{}, p{}; }}\" : {} : "
        "{}, "
        "{} : \"memory\");",
        s.is_new_sum ? 0 : 1, warpgroup_mma_name(s), list(0, s.accumulators),
        is_tile ? fmt::format("%{}", s.accumulators) : list(s.accumulators, words),
        s.accumulators + words, warpgroup_mma_flags(s), changed(s.target, s.accumulators), given,
        descriptor(s.operands.back(), s.tiles[1]));
  }

  // Tensor memory.

  void tensor(const Stmt& s) {
    switch (s.tensor) {
      case TensorOp::kAllocate: return allocate_tensor(s);
      case TensorOp::kMma: return tensor_mma(s);
      case TensorOp::kWait:
        return line(
            "asm volatile(\"{{ .reg .pred there; again: {} there, [%0], %1; @!there bra again; "
            "}}\" :: \"r\"({}), \"r\"((unsigned)({})) : \"memory\");",
            kMbarrierTest, shared_address(s.local, s.begin), ref(s.value));
      case TensorOp::kLoad: return load_tensor(s);
      case TensorOp::kFree:
        line("asm volatile(\"{}\" ::: \"memory\");", kTensorBefore);
        line("__syncthreads();");
        return line(
            "if (item < {}) asm volatile(\"{} {} %0, {};\" :: \"r\"(tensor_memory) : \"memory\");",
            kSubGroup, kTensorAfter, kTensorFreeName, s.step);
    }
  }

  void allocate_tensor(const Stmt& s) {
    const std::string at = shared_address(s.local, s.begin);
    line("unsigned tensor_memory;");
    line(
        "if (item < {0}) asm volatile(\"{{ .reg .pred one; {1} [%0+16], {2}; {3} elect.sync "
        "_|one, -1; @one {4} [%0], 1; @one {4} [%0+8], 1; {5} }}\" :: \"r\"({6}) : \"memory\");",
        kSubGroup, kTensorAllocateName, s.step, kTensorKeepName, kMbarrierStart, kMbarrierFence,
        at);
    line("asm volatile(\"{}\" ::: \"memory\");", kTensorBefore);
    line("__syncthreads();");
    line(
        "asm volatile(\"{} ld.shared.u32 %0, [%1+16];\" : \"=r\"(tensor_memory) : \"r\"({}) : "
        "\"memory\");",
        kTensorAfter, at);
  }

  void tensor_mma(const Stmt& s) {
    std::string steps;
    for (int step = 0; step < kStepsOfLine; ++step) {
      if (step > 0)
        steps += fmt::format("add.s64 a, a, {}; add.s64 b, b, {}; ", descriptor_step(s.tiles[0]),
                             descriptor_step(s.tiles[1]));
      steps += fmt::format("@one {} [%0], a, b, {}, added; ", tensor_mma_name(s),
                           tensor_mma_descriptor(s));
      if (step == 0) steps += "setp.ne.s32 added, 1, 0; ";
    }
    const auto tile = [&](size_t i) {
      return fmt::format("\"l\"((unsigned long)(({}) >> {}) | {}ul)",
                         shared_address(s.local, s.operands[i]), kDescriptorShift,
                         tensor_tile_bits(s.tiles[i]));
    };
    line(
        "if (item < {}) asm volatile(\"{{ .reg .pred one, added; .reg .b64 a, b; {} mov.b64 a, %1; "
        "mov.b64 b, %2; setp.ne.s32 added, %3, 0; elect.sync _|one, -1; {}@one {} [%4]; }}\" :: "
        "\"r\"(tensor_memory), {}, {}, \"r\"((int)({})), \"r\"({}) : \"memory\");",
        kSubGroup, kTensorAfter, steps, kTensorCommitName, tile(0), tile(1), ref(s.end),
        shared_address(s.local, s.begin));
  }

  /// One statement: nobody sees the registers before they are there.
  void load_tensor(const Stmt& s) {
    const auto all = static_cast<uint32_t>(s.step) * s.accumulators;
    std::string loads, registers;
    for (uint32_t r = 0; r < all; ++r)
      registers +=
          fmt::format("{}\"={}\"(r{})", r ? ", " : "",
                      is_float(p_.registers[s.target + r].dtype) ? "f" : "r", s.target + r);
    for (uint32_t i = 0; i < s.step; ++i) {
      std::string list;
      for (uint32_t r = 0; r < s.accumulators; ++r)
        list += fmt::format("{}%{}", r ? ", " : "", i * s.accumulators + r);
      loads += fmt::format("{} {{{}}}, [%{}+{}]; ", tensor_load_name(s), list, all,
                           i * kTensorLoadLanes << 16);
    }
    line("asm volatile(\"{} {}{}\" : {} : \"r\"(tensor_memory + (unsigned)({})) : \"memory\");",
         kTensorAfter, loads, kTensorLoadWait, registers, ref(s.value));
  }

  /// Contiguous elements in one store.
  void store(const Stmt& s) override {
    if (s.operands.empty()) return WorkItemC::store(s);
    std::vector<std::string> each{ref(s.value)};
    for (const ValueId v : s.operands) each.push_back(ref(v));
    const std::string when = s.end == kNone ? "" : fmt::format("if ({}) ", ref(s.end));
    const DType t = p_.type(s.value).dtype;
    const auto size = static_cast<size_t>(item_size(t));
    // CUDA's vector types have the names of OpenCL's scalars. They have four elements at most.
    std::string name(opencl_type_name(t));
    if (size < 4 && each.size() * size % 4 == 0 && each.size() > 2) {
      each = packed(each, size);
      name = "uint";
    }
    const std::string type = fmt::format("{}{}", name, each.size());
    std::string values;
    for (const std::string& one : each) values += (values.empty() ? "" : ", ") + one;
    line("{}*({}*)(p{} + {}) = {}{{{}}};", when, type, s.target, ref(s.begin), type, values);
  }

  /// Elements of `size` bytes as words.
  static std::vector<std::string> packed(const std::vector<std::string>& each, size_t size) {
    std::vector<std::string> words;
    const std::string_view plain = size == 1 ? "unsigned char" : "unsigned short";
    for (size_t i = 0; i < each.size(); ++i) {
      const size_t shift = 8 * (i * size % 4);
      const std::string part = fmt::format("(unsigned)({}){}", plain, each[i]);
      if (shift == 0)
        words.push_back(part);
      else
        words.back() += fmt::format(" | {} << {}", part, shift);
    }
    return words;
  }

  void local_store(const Stmt& s) override {
    if (s.operands.empty()) return WorkItemC::local_store(s);
    std::string values = ref(s.value);
    for (const ValueId v : s.operands) values += ", " + ref(v);
    const std::string type =
        fmt::format("{}{}", opencl_type_name(p_.type(s.value).dtype), s.operands.size() + 1);
    line("*({}*)(local{} + {}) = {}{{{}}};", type, s.target, ref(s.begin), type, values);
  }

  /// A table is short: its entries are chosen among, so that the kernel needs no data of its own.
  void table(size_t number) {
    line("{}unsigned long {}_table{}(long i) {{", names_.device, p_.name, number);
    const std::vector<uint64_t>& words = p_.tables[number];
    line("  unsigned long w = {}ul;", words[0]);
    for (size_t i = 1; i < words.size(); ++i) line("  w = i == {} ? {}ul : w;", i, words[i]);
    line("  return w;");
    line("}}");
  }
  std::string entry(size_t table, const std::string& index) const override {
    return fmt::format("{}_table{}({})", p_.name, table, index);
  }
};

}  // namespace

std::string render_cuda(const Program& program) { return CudaRenderer(program).run(); }

}  // namespace bm::compiler
