// What does not depend on kernels being fast: compiling them and starting them.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include <nlohmann/json.hpp>

#include "models/llama_session.h"
#include "runtime/base/env.h"
#include "runtime/base/private_folder.h"
#include "tools/bellmetal/cpu_bench/cases.h"
#include "tools/bellmetal/cpu_bench/llama_bench.h"
#include "tools/bellmetal/cpu_bench/random_llama.h"

namespace bm::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Result<Contest> make_replay_case(World& w) {
  const Tensor x = w.random({16}, 1), y = w.random({16}, 2);
  auto replay = make_replay(
      [](const std::vector<Tensor>& in) {
        Tensor t = in[0];
        for (int i = 0; i < 100; ++i) t = (t + in[1]).contiguous();
        return t;
      },
      {x, y});
  Contest c;
  c.unit = Unit::kMicros;
  c.ours = contender("ours", [replay] { replay->run(); });
  c.check = [replay, x, y]() -> Result<double> {
    std::vector<float> want = x.data<float>();
    const std::vector<float> step = y.data<float>();
    for (int i = 0; i < 100; ++i)
      for (size_t j = 0; j < want.size(); ++j) want[j] += step[j];
    return relative_error(replay->values(), want);
  };
  c.goal = {.of_peer = 0, .of_bound = 0, .at_most = 20};
  return c;
}

/// A model of the size of the table, or a tiny one; as many kernels either way: layers share
/// theirs.
Result<std::shared_ptr<TemporaryFile>> write_model(World& w) {
  std::shared_ptr<TemporaryFile> file = BM_TRY(TemporaryFile::create(/*is_large=*/true));
  RandomLlama model;
  model.format = models::GgmlType::kQ8_0;
  if (w.is_tiny()) {
    model.layers = 1;
    model.vocabulary = 320;
  }
  BM_TRY(write_random_llama([&](std::span<const std::byte> bytes) { return file->write(bytes); },
                            model));
  return file;
}

/// Seconds that making the programs of `model` takes in a process of its own without a cache.
/// `more`: further settings of it.
Contender first_use(World& w, const std::shared_ptr<TemporaryFile>& model, std::string device,
                    const std::string& more) {
  const std::string command = fmt::format(
      "BM_CACHE=0 BM_THREADS={} {} /proc/{}/exe bench cpu --compile-of '{}' --device '{}'",
      w.threads(), more, ::getpid(), model->path(), device);
  return {.name = "ours",
          .seconds =
              [command, model](int) {
                const auto json =
                    nlohmann::json::parse(unwrap(run_command(command)), nullptr, false);
                if (!json.is_object() || !json.contains("compile_seconds"))
                  raise(Code::kInternal, "{}: no time", command);
                return json["compile_seconds"].get<double>();
              },
          .is_whole = true};
}

Result<Contest> make_compile_case(World& w) {
  Contest c;
  c.unit = Unit::kMillis;
  c.ours = first_use(w, BM_TRY(write_model(w)), w.device(), "");
  c.goal = {.of_peer = 0, .of_bound = 0, .at_most = 3000};
  return c;
}

/// The same from a bundle. What is not in it would be asked of a compiler that is not there.
Result<Contest> make_bundle_case(World& w) {
  const auto model = BM_TRY(write_model(w));
  // Bundles are taken from folders that nobody else can write only.
  const auto folder =
      std::make_shared<PrivateFolder>(BM_TRY(PrivateFolder::create("bellmetal-bench")));
  const std::string bundle = folder->path() + "/bundle";
  BM_TRY(run_command(fmt::format("DEV= BM_THREADS={} /proc/{}/exe bake '{}' -o '{}' >/dev/null",
                                 w.threads(), ::getpid(), model->path(), bundle)));
  Contest c;
  c.unit = Unit::kMillis;
  c.ours =
      first_use(w, model, "CPU:CLANG", fmt::format("BM_BUNDLE='{}' BM_CLANG=/nowhere", bundle));
  c.check = [folder]() -> Result<double> { return 0.0; };  // keeps the file
  c.goal = {.of_peer = 0, .of_bound = 0, .at_most = 200};
  return c;
}

}  // namespace

Result<double> compile_seconds(const std::string& model, const std::string& device) {
  auto file = std::make_shared<const models::GgufFile>(BM_TRY(models::GgufFile::open(model)));
  const auto llama =
      BM_TRY(models::Llama::load(file, {.device = device, .context = 0, .progress = {}}));
  models::LlamaSession session(llama);
  const std::vector<int32_t> prompt(128, 5);
  const auto all = [&] {
    session.reset();
    unwrap(session.feed(prompt));
    for (int i = 0; i < 3; ++i) unwrap(session.feed({prompt.data(), 1}));
  };
  try {
    const double first = seconds_of(all);
    // The least of several: on a busy machine a single one may take longer than the first did.
    double later = seconds_of(all);
    for (int i = 0; i < 4; ++i) later = std::min(later, seconds_of(all));
    return std::max(first - later, 0.0);
  } catch (const Exception& e) {
    return tl::unexpected(e.error());
  }
}

std::vector<Case> runtime_cases() {
  return {{"cold compile of a llama model's kernels", make_compile_case},
          {"the same kernels from a bundle", make_bundle_case},
          {"replay of 100 kernels of 16 floats", make_replay_case}};
}

}  // namespace bm::cli
