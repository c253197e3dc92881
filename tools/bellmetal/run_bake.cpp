#include <array>
#include <chrono>
#include <optional>

#include <nlohmann/json.hpp>

#include "compiler/bundle.h"
#include "drivers/cpu/cpu_info.h"
#include "models/gguf.h"
#include "models/llama_batch.h"
#include "models/llama_session.h"
#include "runtime/base/env.h"
#include "runtime/base/output_file.h"
#include "runtime/device.h"
#include "tensor/programs.h"
#include "tools/bellmetal/options.h"
#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

using Clock = std::chrono::steady_clock;

/// What to compile for, and a device that asks for the kernels.
struct Target {
  hal::Arch arch;
  std::string renderer, device;
};

/// "sm_90" of "PTX:sm_90".
std::string_view name_of(std::string_view request) {
  const size_t colon = request.find(':');
  return colon == request.npos ? request : request.substr(colon + 1);
}

Result<Target> find_target(const std::string& request) {
  const bool is_nv = name_of(request).starts_with("sm_");
  const bool is_amd = name_of(request).starts_with("gfx");
  if (is_nv || is_amd) {
    // NULL stands for the largest card of the kind; the number of its units only weighs choices.
    const bool has_renderer = name_of(request).size() != request.size();
    const std::string name = (has_renderer ? "NULL:" : "NULL::") + request;
    runtime::Device* device = BM_TRY(runtime::open_device(name));
    hal::Arch arch = device->hal().arch();
    arch.vendor = is_nv ? hal::Vendor::kNv : hal::Vendor::kAmd;
    return Target{std::move(arch), has_renderer ? device->renderer() : "", name};
  }
  if (request.empty() || request == "native" || request.starts_with("native,")) {
    runtime::Device* device = BM_TRY(runtime::open_device("CPU::" + request));
    return Target{device->hal().arch(), "LLVM", "CPU::" + request};
  }
  // Models ask every CPU for the same kernels.
  return Target{BM_TRY(cpu::other_arch(request)), "LLVM", "CPU"};
}

/// What a server computes: prompts, and up to eight sequences together.
Status feed_batch(std::shared_ptr<const models::Llama> model) {
  auto batch = models::LlamaBatch::create(std::move(model), {});
  // Latent attention is not computed in batches.
  if (!batch && batch.error().code == Code::kUnsupported) return {};
  if (!batch) return tl::unexpected<Error>(batch.error());
  const int32_t token = 0;
  const uint32_t page = 1;
  for (const bool is_prompt : {true, false}) {
    const models::BatchItem item{{&token, 1}, 0, {&page, 1}, is_prompt};
    BM_TRY((*batch)->run({&item, 1}));
  }
  while (!(*batch)->is_prepared()) BM_TRY((*batch)->prepare());
  return {};
}

/// Loads the model and computes what sessions and servers capture.
Result<std::vector<KernelPtr>> record_kernels(std::shared_ptr<const models::GgufFile> file,
                                              const std::string& device) {
  const KernelRecorder recorder;
  models::Llama::LoadOptions load;
  load.device = device;
  const auto model = BM_TRY(models::Llama::load(file, load));
  models::LlamaSession session(model);
  // For every size that the cache grows to.
  for (bool is_last = false;;) {
    session.reset();
    if (model->config().encoder_block_count > 0) BM_TRY(session.encode(std::array<int32_t, 2>{}));
    BM_TRY(session.feed(std::array<int32_t, 2>{}));
    BM_TRY(session.feed(std::array<int32_t, 1>{}));
    if (is_last) break;
    is_last = session.capacity() == model->context();
    BM_TRY(session.reserve(is_last ? model->context() : session.capacity() + 1));
  }
  // As servers load it.
  load.packs_float32 = true;
  std::shared_ptr<const models::Llama> served = model;
  if (model->has_plain_matrices()) served = BM_TRY(models::Llama::load(std::move(file), load));
  BM_TRY(feed_batch(std::move(served)));
  return recorder.kernels();
}

Status bake(const BakeOptions& options, std::shared_ptr<const models::GgufFile> model,
            const std::string& output) {
  const Clock::time_point start = Clock::now();
  // What is baked now must not come from an older file.
  const ScopedSetting no_bundle("BM_BUNDLE", "");
  const Target target = BM_TRY(find_target(options.arch));
  const std::vector<KernelPtr> kernels = BM_TRY(record_kernels(std::move(model), target.device));
  const std::vector<hal::CodeObject> codes =
      BM_TRY(compile_kernels(kernels, target.arch, target.renderer));
  std::vector<std::pair<compiler::BundleKey, hal::CodeObject>> entries;
  for (size_t i = 0; i < kernels.size(); ++i)
    entries.emplace_back(compiler::bundle_key(*kernels[i]), codes[i]);
  const std::vector<std::byte> bytes = compiler::write_bundle(target.arch, entries);
  BM_TRY(replace_file(output, bytes, {.is_code = true}));
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const std::string arch = target.arch.cpu.empty() ? target.arch.name : target.arch.cpu;
  if (options.json)
    print_json({{"file", output},
                {"arch", arch},
                {"kernels", kernels.size()},
                {"bytes", bytes.size()},
                {"seconds", seconds}});
  else
    fmt::print("{}: {} kernels for {}, {}, {:.2f} s\n", output, kernels.size(), arch,
               human_bytes(bytes.size()), seconds);
  return {};
}

}  // namespace

int run_bake(const BakeOptions& options) {
  std::optional<ScopedSetting> threads;
  if (options.threads > 0) threads.emplace("BM_THREADS", std::to_string(options.threads));
  const std::string output = options.output.empty() ? options.model + ".bundle" : options.output;
  auto model = models::GgufFile::open(options.model);
  if (!model) return report_file(model.error(), options.model, options.json);
  // What cannot be written is known before the work; no draft lies about during it.
  if (const auto probe = OutputFile::create(output); !probe)
    return report_file(probe.error(), output, options.json);
  try {
    const Status done =
        bake(options, std::make_shared<const models::GgufFile>(std::move(*model)), output);
    if (!done) return report(done.error(), options.json);
  } catch (const Exception& e) {
    return report(e.error(), options.json);
  }
  return kOk;
}

}  // namespace bm::cli
