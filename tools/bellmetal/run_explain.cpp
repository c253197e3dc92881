// Kernels of an expression or a model: stages of their compilation, cost, and the roof over them.
#include <filesystem>

#include <nlohmann/json.hpp>

#include "compiler/analysis/static_roofline.h"
#include "compiler/compile.h"
#include "compiler/targets/card.h"
#include "compiler/targets/target.h"
#include "models/llama.h"
#include "runtime/device.h"
#include "tensor/exception.h"
#include "tools/bellmetal/explain.h"
#include "tools/bellmetal/expression.h"
#include "tools/bellmetal/options.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

using Json = nlohmann::ordered_json;

/// Part of a subject that is explained on its own: a model has three, a prompt, a later piece of a
/// longer one, and a decode step.
struct Part {
  std::string name;
  std::unique_ptr<Recorded> recorded;
  std::vector<std::shared_ptr<void>> keeps;  ///< what the recorded launches use
  std::vector<Tensor> unwritten = {};        ///< inputs to be written before a launch
};

Result<std::vector<Part>> parts_of_model(const ExplainOptions& options) {
  constexpr int64_t kPrompt = 512, kPosition = 512, kLater = 3584;
  auto file =
      std::make_shared<const models::GgufFile>(BM_TRY(models::GgufFile::open(options.subject)));
  const auto model = BM_TRY(models::Llama::load(file, {.device = options.device, .progress = {}}));
  std::vector<Part> out;
  struct Step {
    int64_t count, position;
  };
  const int64_t capacity = std::max<int64_t>(model->context(), 2);
  const int64_t prompt = std::min<int64_t>(kPrompt, capacity / 2);
  for (const auto& [count, at] : {Step{prompt, 0}, Step{prompt, kLater}, Step{1, kPosition}}) {
    struct State {
      std::shared_ptr<const models::Llama> model;
      models::KvCache cache;
      Tensor tokens, logits;
    };
    auto state =
        std::make_shared<State>(State{model, model->make_cache(capacity, DType::kF16), {}, {}});
    state->tokens =
        Tensor::from(std::vector<int32_t>(static_cast<size_t>(count)), {count}, model->device());
    const Var position("position", 0, capacity - count);
    position.set(std::min(at, position.max()));
    auto recorded = BM_TRY(Recorded::record([&] {
      state->logits = model->forward(state->tokens, count, position, state->cache);
      state->logits.realize();
    }));
    const std::string behind =
        count > 1 && at > 0 ? fmt::format(" behind {}", position.value()) : "";
    out.push_back(
        {fmt::format("{} of {} tokens{}", count > 1 ? "prompt" : "decode step", count, behind),
         std::move(recorded),
         {state}});
  }
  return out;
}

Result<std::vector<Part>> parts_of_expression(const ExplainOptions& options) {
  // Made under the recording: what was lazy before a capture is not the capture's to store.
  auto tensor = std::make_shared<Tensor>();
  Status parsed;
  std::vector<Tensor> inputs;
  auto recorded = BM_TRY(Recorded::record([&] {
    auto made = parse_expression(options.subject, options.device, &inputs);
    if (!made) {
      parsed = tl::unexpected(std::move(made.error()));
      return;
    }
    *tensor = std::move(*made);
    tensor->realize();
  }));
  BM_TRY(parsed);
  std::vector<Part> out;
  out.push_back({options.subject, std::move(recorded), {tensor}, std::move(inputs)});
  return out;
}

bool wants(const ExplainOptions& options, const std::string& stage) {
  return options.stages.empty() ||
         std::find(options.stages.begin(), options.stages.end(), stage) != options.stages.end();
}

/// {stage, text} in order.
using Stages = std::vector<std::pair<std::string, std::string>>;

struct Line {
  std::string part;
  const ExplainedKernel* kernel = nullptr;
  double measured = 0;  ///< seconds of one launch; 0: not measured
  std::optional<Roof> roof;
  Stages stages;
  std::optional<compiler::Explained> code;          ///< for GPUs
  std::optional<compiler::StaticRoof> static_roof;  ///< where the card has a row

  double of_roof() const {
    if (static_roof) return static_roof->of_roof;
    return measured > 0 && roof ? roof->seconds / measured : 0;
  }
  double predicted() const { return static_roof ? static_roof->seconds : roof ? roof->seconds : 0; }
  std::string bound_by() const {
    if (static_roof) return static_roof->bound_by;
    return !roof ? "" : roof->is_memory ? "memory" : "arithmetic";
  }
};

Stages stages_of(const compiler::Explained& e, const ExplainOptions& options) {
  const std::vector<std::string> names = explain_stages();
  const std::string* texts[] = {&e.ir, &e.schedule, &e.lowered, &e.source, &e.assembly};
  Stages out;
  for (size_t i = 0; i < names.size(); ++i)
    if (wants(options, names[i])) out.emplace_back(names[i], *texts[i]);
  return out;
}

/// Whether kernels are machine code of a GPU, or would be: its resources are worth a table.
bool stands_for_gpu(const hal::Arch& arch) {
  return compiler::is_cuda(arch) || compiler::is_amd(arch);
}

Result<std::vector<Line>> lines_of(std::vector<Part>& parts, runtime::Device& device,
                                   const ExplainOptions& options, bool has_stages) {
  const hal::Arch& arch = device.hal().arch();
  Roofline roofline(arch.vendor == hal::Vendor::kCpu ? arch.units : 1);
  const bool is_gpu = stands_for_gpu(arch);
  const compiler::CardInfo* card = compiler::find_card(arch.name);
  std::vector<Line> out;
  for (Part& part : parts)
    for (const ExplainedKernel& k : part.recorded->kernels()) {
      if (k.call.name.find(options.kernel) == std::string::npos) continue;
      Line line{
          .part = part.name, .kernel = &k, .roof = {}, .stages = {}, .code = {}, .static_roof = {}};
      // Launches on NULL take no time, and say nothing.
      if (options.is_measured && arch.vendor != hal::Vendor::kNull) {
        for (Tensor& input : std::exchange(part.unwritten, {})) input.assign(0);
        line.measured = BM_TRY(part.recorded->measure(k));
        if (arch.vendor == hal::Vendor::kCpu) line.roof = roofline.roof(k.flops, k.bytes);
      }
      const ir::KernelIr* ir = part.recorded->ir(k);
      if (ir && (has_stages || is_gpu)) {
        auto explained =
            BM_TRY(compiler::explain(*ir, arch, device.renderer(), part.recorded->variables(k)));
        if (has_stages) line.stages = stages_of(explained, options);
        if (is_gpu && card)
          line.static_roof =
              compiler::static_roof(explained.count, *card, arch.units, k.flops, k.bytes);
        if (is_gpu) line.code = std::move(explained);
      }
      out.push_back(std::move(line));
    }
  return out;
}

Json json_of_line(const Line& l) {
  Json out = {{"part", l.part},
              {"kernel", l.kernel->call.name},
              {"launches", l.kernel->launches},
              {"flops", l.kernel->flops},
              {"bytes", l.kernel->bytes},
              {"predicted_us", l.predicted() > 0 ? Json(l.predicted() * 1e6) : Json(nullptr)},
              {"bound_by", l.bound_by().empty() ? Json(nullptr) : Json(l.bound_by())},
              {"measured_us", l.measured > 0 ? Json(l.measured * 1e6) : Json(nullptr)},
              {"of_roof", l.of_roof() > 0 ? Json(l.of_roof()) : Json(nullptr)}};
  if (l.code) {
    const compiler::Explained& e = *l.code;
    const auto& r = e.resources;
    out["block"] = e.block;
    out["groups"] = e.count.groups;
    out["registers"] = r ? Json(r->registers) : Json(nullptr);
    out["scalar_registers"] = r ? Json(r->scalar_registers) : Json(nullptr);
    out["shared_bytes"] = e.shared_bytes;
    out["spill_bytes"] = r ? Json(r->stack_bytes) : Json(nullptr);
    out["code_bytes"] = r ? Json(r->code_bytes) : Json(nullptr);
    out["waves"] = e.occupancy ? Json(e.occupancy->waves) : Json(nullptr);
    out["max_waves"] = e.occupancy ? Json(e.occupancy->max_waves) : Json(nullptr);
    out["issue_slots"] = e.count.groups * e.count.sub_groups * e.count.sub_group_slots;
    out["matrix_flops"] = e.count.groups * e.count.sub_groups * e.count.mma_ops;
  }
  for (const auto& [stage, text] : l.stages) out[stage] = text;
  return out;
}

/// Of GPUs: what the code asks of a compute unit.
std::vector<std::string> resources_of(const Line& l) {
  if (!l.code) return {"-", "-", "-", "-", "-"};
  const compiler::Explained& e = *l.code;
  return {fmt::format("{:.0f}x{}", e.count.groups, e.block),
          e.resources ? fmt::format("{}", e.resources->registers) : "-",
          fmt::format("{}", e.shared_bytes),
          e.resources ? fmt::format("{}", e.resources->stack_bytes) : "-",
          e.occupancy ? fmt::format("{}/{}", e.occupancy->waves, e.occupancy->max_waves) : "-"};
}

std::string table_of(const std::vector<Line>& lines, bool is_gpu) {
  using enum Table::Align;
  std::vector<Table::Column> columns = {{"PART"},          {"KERNEL"},     {"LAUNCHES", kRight},
                                        {"MFLOP", kRight}, {"MB", kRight}, {"FLOP/BYTE", kRight}};
  if (is_gpu)
    for (const char* title : {"GROUPS", "REGISTERS", "SHARED", "SPILLS", "WAVES"})
      columns.push_back({title, kRight});
  columns.insert(columns.end(),
                 {{"PREDICTED", kRight}, {"BOUND BY"}, {"MEASURED", kRight}, {"OF ROOF", kRight}});
  Table table(columns);
  for (const Line& l : lines) {
    const ExplainedKernel& k = *l.kernel;
    std::vector<std::string> row = {l.part,
                                    k.call.name,
                                    fmt::format("{}", k.launches),
                                    fmt::format("{:.3f}", k.flops * 1e-6),
                                    fmt::format("{:.3f}", k.bytes * 1e-6),
                                    k.bytes > 0 ? fmt::format("{:.2f}", k.flops / k.bytes) : "-"};
    if (is_gpu)
      for (std::string& cell : resources_of(l)) row.push_back(std::move(cell));
    row.push_back(l.predicted() > 0 ? fmt::format("{:.1f} us", l.predicted() * 1e6) : "-");
    row.push_back(l.bound_by().empty() ? "-" : l.bound_by());
    row.push_back(l.measured > 0 ? fmt::format("{:.1f} us", l.measured * 1e6) : "-");
    row.push_back(l.of_roof() > 0 ? fmt::format("{:.2f}", l.of_roof()) : "-");
    table.add(std::move(row));
  }
  return table.text();
}

int explain(const ExplainOptions& options, runtime::Device& device) {
  const bool is_model = options.subject.ends_with(".gguf");
  // A model has too many kernels to show each unasked.
  const bool has_stages = !is_model || !options.kernel.empty() || !options.stages.empty();
  auto parts = is_model ? parts_of_model(options) : parts_of_expression(options);
  if (!parts) {
    const Error& e = parts.error();
    return is_model ? report(e, file_exit_code(e.code), options.json) : report(e, options.json);
  }
  const auto lines = lines_of(*parts, device, options, has_stages);
  if (!lines) return report(lines.error(), options.json);
  if (lines->empty())
    return report(
        Error{Code::kInvalidArgument,
              options.kernel.empty()
                  ? fmt::format("{} computes nothing, so no kernel runs: apply a function or an "
                                "operator to its inputs",
                                options.subject)
                  : fmt::format("{} has no kernel whose name holds \"{}\"", options.subject,
                                options.kernel)},
        kUsage, options.json);
  if (options.json) {
    Json list = Json::array();
    for (const Line& l : *lines) list.push_back(json_of_line(l));
    print_json({{"device", device.name()}, {"subject", options.subject}, {"kernels", list}});
    return kOk;
  }
  fmt::print("{}", table_of(*lines, stands_for_gpu(device.hal().arch())));
  for (const Line& l : *lines)
    for (const auto& [stage, text] : l.stages)
      fmt::print("\n== {}: {}\n{}{}", l.kernel->call.name, stage, text,
                 text.ends_with('\n') ? "" : "\n");
  return kOk;
}

}  // namespace

int run_explain(const ExplainOptions& options) {
  auto device =
      options.device.empty() ? runtime::default_device() : runtime::open_device(options.device);
  if (!device) return report(device.error(), options.json);
  if ((*device)->renderer().empty())
    return report(Error{Code::kUnsupported,
                        fmt::format("{} runs no compiled kernels: there is nothing to explain",
                                    (*device)->name())},
                  options.json);
  try {
    return explain(options, **device);
  } catch (const Exception& e) {
    return report(e.error(), options.json);
  }
}

}  // namespace bm::cli
