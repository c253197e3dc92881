// OpenCL C 1.2 and later.
#include "compiler/render/render.h"
#include "compiler/render/render_work_items.h"
#include "runtime/base/check.h"

namespace bm::compiler {
namespace {

class OpenClRenderer final : public WorkItemC {
 public:
  explicit OpenClRenderer(const Program& p) : WorkItemC(p) {}

  std::string run() {
    pragmas();
    for (size_t i = 0; i < p_.tables.size(); ++i)
      line("__constant ulong {}_table{}[] = {{{}}};", p_.name, i, table_items(i));
    // Prototypes: compilers warn of functions without one.
    for (const Function& f : p_.functions) helper(f, "", true);
    kernel(fmt::format("__kernel __attribute__((reqd_work_group_size({}, 1, 1)))\nvoid ", p_.block),
           "__local", "long item = (long)get_local_id(0)");
    return std::move(out_);
  }

 private:
  std::string_view type_name(DType t) const override { return opencl_type_name(t); }

  std::string pointer(size_t param) const override {
    return fmt::format("__global {}{}* restrict", p_.params[param].is_written ? "" : "const ",
                       type_name(p_.params[param].dtype));
  }
  std::string group_number(uint32_t axis) const override {
    return fmt::format("get_group_id({})", axis);
  }
  std::string half_to_float(const std::string& bits) const override {
    return fmt::format("convert_float(as_half({}))", bits);
  }
  std::string float_to_half(const std::string& value) const override {
    return fmt::format("as_ushort(convert_half_rte({}))", value);
  }
  std::string reinterpret(DType to, DType, const std::string& a) const override {
    return fmt::format("as_{}({})", type_name(to), a);
  }
  std::string function(std::string_view name, DType) const override { return std::string(name); }
  std::string words(const Value&) override { no_products(); }
  std::string dot(const Value&) override { no_products(); }
  void matrix(const Stmt&) override { no_products(); }
  [[noreturn]] static void no_products() { check_failed("OpenCL has no MMA", __FILE__, __LINE__); }
  void barrier() override { line("barrier(CLK_LOCAL_MEM_FENCE);"); }

  bool uses(DType t) const {
    for (const Value& v : p_.values)
      if (v.type.dtype == t) return true;
    for (const ir::Param& p : p_.params)
      if (p.dtype == t) return true;
    return false;
  }

  void pragmas() {
    if (uses(DType::kF64)) {
      // An extension before OpenCL C 1.2, an option since.
      line("#ifdef cl_khr_fp64");
      line("#pragma OPENCL EXTENSION cl_khr_fp64 : enable");
      line("#endif");
    }
    bool converts_half = false;
    for (const Value& v : p_.values)
      converts_half = converts_half || (v.op == ValueOp::kConvert && is_half(v));
    if (converts_half) line("#pragma OPENCL EXTENSION cl_khr_fp16 : enable");
    line("#pragma OPENCL FP_CONTRACT OFF");
  }

  bool is_half(const Value& v) const {
    return v.type.dtype == DType::kF16 || p_.type(v.args[0]).dtype == DType::kF16;
  }
};

}  // namespace

std::string render_opencl(const Program& program) { return OpenClRenderer(program).run(); }

}  // namespace bm::compiler
