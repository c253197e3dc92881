// Machine code of named example computations, stage by stage.
#include <functional>

#include <nlohmann/json.hpp>

#include "compiler/compile.h"
#include "runtime/device.h"
#include "tensor/fusion.h"
#include "tensor/lower.h"
#include "tensor/tensor.h"
#include "tools/bellmetal/options.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

struct Example {
  const char* name;
  const char* what;
  Tensor (*make)(std::string_view device);
};

Tensor input(const Shape& shape, std::string_view device, DType dtype = DType::kF32) {
  return Tensor::empty(shape, dtype, device);
}

constexpr Example kExamples[] = {
    {"add", "a + b, 1,048,576 float32",
     [](std::string_view d) { return input({1 << 20}, d) + input({1 << 20}, d); }},
    {"gelu", "gelu(x), 1,048,576 float32",
     [](std::string_view d) { return input({1 << 20}, d).gelu(); }},
    {"sum", "row sums of 1024 x 1024",
     [](std::string_view d) { return input({1024, 1024}, d).sum({1}); }},
    {"colsum", "column sums of 1024 x 1024",
     [](std::string_view d) { return input({1024, 1024}, d).sum({0}); }},
    {"matmul", "512 x 512 x 512 float32",
     [](std::string_view d) { return input({512, 512}, d).matmul(input({512, 512}, d)); }},
    {"gemv", "4096 x 4096 float16 weights times a vector",
     [](std::string_view d) {
       return input({1, 4096}, d).linear(input({4096, 4096}, d, DType::kF16).cast(DType::kF32));
     }},
    {"softmax", "softmax of 128 rows of 1024",
     [](std::string_view d) { return input({128, 1024}, d).softmax(); }},
    {"transpose", "transpose of 1024 x 1024",
     [](std::string_view d) { return input({1024, 1024}, d).transpose().contiguous(); }},
};

struct Listing {
  std::string example, kernel;
  compiler::Explained text;
};

Result<std::vector<Listing>> explain(const Example& example, runtime::Device& device,
                                     std::string_view name) {
  const Tensor t = example.make(name);
  const NodePtr root = t.node();
  const FusionPlan plan = plan_fusion({&root, 1});
  std::vector<Listing> out;
  for (const NodePtr& n : plan.order) {
    if (!plan.stored.count(n.get())) continue;
    const LoweredKernel kernel =
        BM_TRY(lower(*n, nullptr, [&](const Node* x) { return plan.stored.count(x) != 0; }));
    out.push_back({example.name, kernel.ir.name,
                   BM_TRY(compiler::explain(kernel.ir, device.hal().arch(), device.renderer()))});
  }
  return out;
}

int list_examples(bool as_json) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  Table table({{"NAME"}, {"WHAT"}});
  for (const Example& e : kExamples) {
    rows.push_back({{"name", e.name}, {"what", e.what}});
    table.add({e.name, e.what});
  }
  if (as_json)
    print_json({{"kernels", rows}});
  else
    fmt::print("{}", table.text());
  return kOk;
}

}  // namespace

int run_disasm(const DisasmOptions& options) {
  if (options.kernel.empty()) return list_examples(options.json);
  auto device =
      options.device.empty() ? runtime::default_device() : runtime::open_device(options.device);
  if (!device) return report(device.error(), options.json);
  if ((*device)->renderer().empty())
    return report(Error{Code::kUnsupported,
                        fmt::format("{} runs no compiled kernels: there is nothing to disassemble",
                                    (*device)->name())},
                  options.json);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  bool is_found = false;
  for (const Example& e : kExamples) {
    if (std::string_view(e.name).find(options.kernel) == std::string_view::npos) continue;
    is_found = true;
    Result<std::vector<Listing>> listings;
    try {
      listings = explain(e, **device, options.device);
    } catch (const Exception& x) {
      return report(x.error(), options.json);
    }
    if (!listings) return report(listings.error(), options.json);
    for (const Listing& l : *listings) {
      if (options.json) {
        rows.push_back({{"example", l.example},
                        {"kernel", l.kernel},
                        {"ir", l.text.ir},
                        {"lowered", l.text.lowered},
                        {"source", l.text.source},
                        {"assembly", l.text.assembly}});
      } else {
        fmt::print("; {}: kernel {}\n{}\n", l.example, l.kernel, l.text.assembly);
      }
    }
  }
  if (!is_found)
    return report(
        Error{Code::kInvalidArgument,
              fmt::format("no kernel is called \"{}\"; `bellmetal disasm` lists the names",
                          options.kernel)},
        options.json);
  if (options.json) print_json({{"device", (*device)->name()}, {"kernels", rows}});
  return kOk;
}

}  // namespace bm::cli
