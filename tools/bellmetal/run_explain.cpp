// Kernels of an expression or a model: stages of their compilation, cost, and the roof over them.
#include <filesystem>

#include <nlohmann/json.hpp>

#include "compiler/compile.h"
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

/// Part of a subject that is explained on its own: a model has two.
struct Part {
  std::string name;
  std::unique_ptr<Recorded> recorded;
  std::vector<std::shared_ptr<void>> keeps;  ///< what the recorded launches use
};

Result<std::vector<Part>> parts_of_model(const ExplainOptions& options) {
  constexpr int64_t kPrompt = 128, kPosition = 128;
  auto file =
      std::make_shared<const models::GgufFile>(BM_TRY(models::GgufFile::open(options.subject)));
  const auto model =
      BM_TRY(models::Llama::load(file, {.device = options.device, .context = 512, .progress = {}}));
  std::vector<Part> out;
  for (const bool is_prompt : {true, false}) {
    struct State {
      std::shared_ptr<const models::Llama> model;
      models::KvCache cache;
      Tensor tokens, logits;
    };
    auto state = std::make_shared<State>(State{model, model->make_cache(), {}, {}});
    const int64_t count = is_prompt ? std::min<int64_t>(kPrompt, model->context() / 2) : 1;
    state->tokens =
        Tensor::from(std::vector<int32_t>(static_cast<size_t>(count)), {count}, model->device());
    const Var position("position", 0, int64_t{model->context()} - count);
    position.set(is_prompt ? 0 : std::min(kPosition, position.max()));
    auto recorded = BM_TRY(Recorded::record([&] {
      state->logits = model->forward(state->tokens, count, position, state->cache);
      state->logits.realize();
    }));
    out.push_back({fmt::format("{} of {} tokens", is_prompt ? "prompt" : "decode step", count),
                   std::move(recorded),
                   {state}});
  }
  return out;
}

Result<std::vector<Part>> parts_of_expression(const ExplainOptions& options) {
  // Made under the recording: what was lazy before a capture is not the capture's to store.
  auto tensor = std::make_shared<Tensor>();
  Status parsed;
  auto recorded = BM_TRY(Recorded::record([&] {
    auto made = parse_expression(options.subject, options.device);
    if (!made) {
      parsed = tl::unexpected(std::move(made.error()));
      return;
    }
    *tensor = std::move(*made);
    tensor->realize();
  }));
  BM_TRY(parsed);
  std::vector<Part> out;
  out.push_back({options.subject, std::move(recorded), {tensor}});
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

  double of_roof() const { return measured > 0 && roof ? roof->seconds / measured : 0; }
};

Result<Stages> stages_of(const ir::KernelIr& kernel, runtime::Device& device,
                         const ExplainOptions& options) {
  const compiler::Explained e =
      BM_TRY(compiler::explain(kernel, device.hal().arch(), device.renderer()));
  const std::vector<std::string> names = explain_stages();
  const std::string* texts[] = {&e.ir, &e.schedule, &e.lowered, &e.source, &e.assembly};
  Stages out;
  for (size_t i = 0; i < names.size(); ++i)
    if (wants(options, names[i])) out.emplace_back(names[i], *texts[i]);
  return out;
}

Result<std::vector<Line>> lines_of(const std::vector<Part>& parts, runtime::Device& device,
                                   const ExplainOptions& options, bool has_stages) {
  const hal::Arch& arch = device.hal().arch();
  Roofline roofline(arch.units);
  std::vector<Line> out;
  for (const Part& part : parts)
    for (const ExplainedKernel& k : part.recorded->kernels()) {
      if (k.call.name.find(options.kernel) == std::string::npos) continue;
      Line line{.part = part.name, .kernel = &k, .roof = {}, .stages = {}};
      if (options.is_measured) {
        line.measured = BM_TRY(part.recorded->measure(k));
        if (arch.vendor == hal::Vendor::kCpu) line.roof = roofline.roof(k.flops, k.bytes);
      }
      const ir::KernelIr* ir = part.recorded->ir(k);
      if (has_stages && ir) line.stages = BM_TRY(stages_of(*ir, device, options));
      out.push_back(std::move(line));
    }
  return out;
}

Json json_of(const Line& l) {
  Json out = {
      {"part", l.part},
      {"kernel", l.kernel->call.name},
      {"launches", l.kernel->launches},
      {"flops", l.kernel->flops},
      {"bytes", l.kernel->bytes},
      {"predicted_us", l.roof ? Json(l.roof->seconds * 1e6) : Json(nullptr)},
      {"bound_by", !l.roof ? Json(nullptr) : Json(l.roof->is_memory ? "memory" : "arithmetic")},
      {"measured_us", l.measured > 0 ? Json(l.measured * 1e6) : Json(nullptr)},
      {"of_roof", l.of_roof() > 0 ? Json(l.of_roof()) : Json(nullptr)}};
  for (const auto& [stage, text] : l.stages) out[stage] = text;
  return out;
}

std::string table_of(const std::vector<Line>& lines) {
  using enum Table::Align;
  Table table({{"PART"},
               {"KERNEL"},
               {"LAUNCHES", kRight},
               {"MFLOP", kRight},
               {"MB", kRight},
               {"FLOP/BYTE", kRight},
               {"PREDICTED", kRight},
               {"BOUND BY"},
               {"MEASURED", kRight},
               {"OF ROOF", kRight}});
  for (const Line& l : lines) {
    const ExplainedKernel& k = *l.kernel;
    table.add({l.part, k.call.name, fmt::format("{}", k.launches),
               fmt::format("{:.3f}", k.flops * 1e-6), fmt::format("{:.3f}", k.bytes * 1e-6),
               k.bytes > 0 ? fmt::format("{:.2f}", k.flops / k.bytes) : "-",
               l.roof ? fmt::format("{:.1f} us", l.roof->seconds * 1e6) : "-",
               !l.roof             ? "-"
               : l.roof->is_memory ? "memory"
                                   : "arithmetic",
               l.measured > 0 ? fmt::format("{:.1f} us", l.measured * 1e6) : "-",
               l.of_roof() > 0 ? fmt::format("{:.2f}", l.of_roof()) : "-"});
  }
  return table.text();
}

int explain(const ExplainOptions& options, runtime::Device& device) {
  const bool is_model = options.subject.ends_with(".gguf");
  // A model has too many kernels to show each unasked.
  const bool has_stages = !is_model || !options.kernel.empty() || !options.stages.empty();
  const auto parts = is_model ? parts_of_model(options) : parts_of_expression(options);
  if (!parts) {
    const Error& e = parts.error();
    return is_model ? report(e, file_exit_code(e.code), options.json)
                    : report(e, kUsage, options.json);
  }
  const auto lines = lines_of(*parts, device, options, has_stages);
  if (!lines) return report(lines.error(), options.json);
  if (lines->empty())
    return report(
        Error{Code::kInvalidArgument, fmt::format("{} has no kernel whose name holds \"{}\"",
                                                  options.subject, options.kernel)},
        kUsage, options.json);
  if (options.json) {
    Json list = Json::array();
    for (const Line& l : *lines) list.push_back(json_of(l));
    print_json({{"device", device.name()}, {"subject", options.subject}, {"kernels", list}});
    return kOk;
  }
  fmt::print("{}", table_of(*lines));
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
