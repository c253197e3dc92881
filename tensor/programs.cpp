#include "tensor/programs.h"

#include <atomic>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "compiler/cache/disk_cache.h"
#include "compiler/compile.h"
#include "runtime/base/env.h"
#include "runtime/base/settings_scope.h"
#include "tensor/tune_kernel.h"

namespace bm {
namespace {

/// Loads a kernel; text that the device's own compiler turns into code is compiled once per device,
/// driver version and source, and kept with the other compiled kernels.
Result<ProgramPtr> load_program(hal::Device& device, const hal::CodeObject& code) {
  if (device.arch().vendor != hal::Vendor::kOpenCl) return BM_TRY(device.load(code));
  compiler::DiskCache& cache = compiler::DiskCache::instance();
  const std::string key =
      device.arch().key() + '\0' + device.description() + '\0' +
      std::string(reinterpret_cast<const char*>(code.image.data()), code.image.size());
  auto stored = cache.get("native", key);
  if (stored && stored->has_value()) {
    hal::CodeObject native = code;
    native.image = std::move(**stored);
    if (auto program = device.load(native)) return ProgramPtr(std::move(*program));
  }
  ProgramPtr program = BM_TRY(device.load(code));
  if (const auto image = program->native_image()) BM_TRY(cache.put("native", key, *image));
  return program;
}

/// Programs of the process by device, renderer and kernel.
class Programs {
 public:
  static Programs& instance() {
    static Programs& programs = *new Programs;  // lives as long as the devices: never destroyed
    return programs;
  }
  ProgramPtr find(const std::string& key) {
    const std::lock_guard guard(mutex_);
    const auto it = programs_.find(key);
    return it == programs_.end() ? nullptr : it->second;
  }
  /// The one that is there already, if another thread was faster.
  ProgramPtr add(const std::string& key, ProgramPtr program) {
    const std::lock_guard guard(mutex_);
    return programs_.emplace(key, std::move(program)).first->second;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, ProgramPtr> programs_;
};

std::string key_of(const WantedKernel& w) {
  return w.device->name() + '\0' + w.device->renderer() + '\0' + ir::serialize(*w.kernel);
}

struct Job {
  const ir::KernelIr* kernel;
  const hal::Arch* arch;
  std::string_view renderer;
  size_t wanted = 0;  ///< place among those asked for
  std::optional<Result<hal::CodeObject>> code = {};

  void compile() { code = compiler::compile(*kernel, *arch, renderer); }
};

size_t compile_threads(size_t jobs) {
  const size_t most = settings().threads != 0
                          ? settings().threads
                          : std::max<size_t>(std::thread::hardware_concurrency(), 1);
  return std::min(most, jobs);
}

void compile_all(std::span<Job> jobs) {
  std::atomic<size_t> next{0};
  const Settings& mine = settings();
  const auto work = [&] {
    for (size_t i = next.fetch_add(1); i < jobs.size(); i = next.fetch_add(1)) jobs[i].compile();
  };
  std::vector<std::thread> helpers;
  for (size_t i = 1; i < compile_threads(jobs.size()); ++i)
    helpers.emplace_back([&] {
      const ScopedSettings same(mine);
      work();
    });
  work();
  for (std::thread& helper : helpers) helper.join();
}

// Of this thread, as captures are.
thread_local KernelRecorder* current_recorder = nullptr;

}  // namespace

Result<std::vector<ProgramPtr>> programs_for(std::span<const WantedKernel> wanted) {
  Programs& known = Programs::instance();
  std::vector<std::string> keys;
  std::vector<Job> jobs;
  std::unordered_map<std::string_view, ProgramPtr> made;
  for (const WantedKernel& w : wanted) keys.push_back(key_of(w));
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (made.count(keys[i])) continue;
    ProgramPtr program = known.find(keys[i]);
    runtime::Device& device = *wanted[i].device;
    if (!program)
      jobs.push_back({.kernel = wanted[i].kernel.get(),
                      .arch = &device.hal().arch(),
                      .renderer = device.renderer(),
                      .wanted = i});
    made[keys[i]] = std::move(program);
  }
  if (settings().tune > 0)
    for (Job& job : jobs) {
      BM_TRY(tune_kernel(*wanted[job.wanted].device, *job.kernel));
      job.compile();
    }
  else
    compile_all(jobs);
  for (Job& job : jobs) {
    if (!*job.code) return tl::unexpected(std::move(job.code->error()));
    made[keys[job.wanted]] = known.add(
        keys[job.wanted], BM_TRY(load_program(wanted[job.wanted].device->hal(), **job.code)));
  }
  std::vector<ProgramPtr> programs;
  for (const std::string& key : keys) programs.push_back(made.at(key));
  if (KernelRecorder* recorder = KernelRecorder::current())
    for (size_t i = 0; i < wanted.size(); ++i) recorder->add(programs[i].get(), wanted[i].kernel);
  return programs;
}

Result<std::vector<hal::CodeObject>> compile_kernels(std::span<const KernelPtr> kernels,
                                                     const hal::Arch& arch,
                                                     std::string_view renderer) {
  std::vector<Job> jobs;
  for (const KernelPtr& k : kernels)
    jobs.push_back({.kernel = k.get(), .arch = &arch, .renderer = renderer});
  compile_all(jobs);
  std::vector<hal::CodeObject> codes;
  for (Job& job : jobs) codes.push_back(BM_TRY(std::move(*job.code)));
  return codes;
}

KernelRecorder::KernelRecorder() : outer_(current_recorder) { current_recorder = this; }
KernelRecorder::~KernelRecorder() { current_recorder = outer_; }
KernelRecorder* KernelRecorder::current() { return current_recorder; }

void KernelRecorder::add(const hal::Program* program, const KernelPtr& kernel) {
  if (programs_.emplace(program, kernel).second) kernels_.push_back(kernel);
}

}  // namespace bm
