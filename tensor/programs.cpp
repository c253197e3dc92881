#include "tensor/programs.h"

#include <atomic>
#include <mutex>
#include <optional>
#include <unordered_map>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "compiler/cache/disk_cache.h"
#include "compiler/compile.h"
#include "compiler/compile_all.h"
#include "runtime/base/env.h"
#include "runtime/base/log.h"
#include "runtime/base/lru_map.h"
#include "runtime/base/out_of_memory.h"
#include "runtime/base/settings_scope.h"
#include "runtime/base/thread.h"
#include "runtime/stream.h"
#include "tensor/tune_kernel.h"

namespace bm {
namespace {

/// Loads a kernel; text that the device's own compiler turns into code is compiled once per device,
/// driver version and source, and kept with the other compiled kernels.
Result<ProgramPtr> load_on(hal::Device& device, const hal::CodeObject& code) {
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

/// The same; a device that is lost meanwhile tells its first cause.
Result<ProgramPtr> load_reporting(runtime::Device& device, const hal::CodeObject& code) {
  Result<ProgramPtr> loaded = load_on(device.hal(), code);
  if (loaded || !is_device_error(loaded.error().code)) return loaded;
  const std::string what = fmt::format("loading kernel '{}'", code.entry);
  return tl::unexpected<Error>(device.first_cause(std::move(loaded.error()).within(what)));
}

/// 128 bits of hash over device, renderer and kernel: equal keys are taken as equal kernels, as the
/// disk cache does, and a process with thousands of kernels does not keep their texts.
struct ProgramKey {
  uint64_t low = 0, high = 0;
  bool operator==(const ProgramKey&) const = default;
};
struct ProgramKeyHash {
  size_t operator()(const ProgramKey& key) const { return static_cast<size_t>(key.low); }
};

ProgramKey key_of(const WantedKernel& w) {
  const std::string text =
      w.device->name() + '\0' + w.device->renderer() + '\0' + ir::serialize(*w.kernel);
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {hash.low64, hash.high64};
}

/// A program and the device it was loaded on, to know when its last launch is through.
struct Loaded {
  ProgramPtr program;
  runtime::Device* device = nullptr;

  explicit operator bool() const { return program != nullptr; }
  long use_count() const { return program.use_count(); }
};

/// Programs of the process by device, renderer and kernel, the least recently used of which go.
class Programs {
 public:
  static Programs& instance() {
    static Programs& programs = *new Programs;  // lives as long as the devices: never destroyed
    return programs;
  }
  ProgramPtr find(const ProgramKey& key) {
    const std::lock_guard guard(mutex_);
    return programs_.find(key).program;
  }
  /// The one that is there already, if another thread was faster.
  ProgramPtr add(const ProgramKey& key, Loaded loaded) {
    std::vector<ProgramPtr> gone;  // destroyed without the lock
    const std::lock_guard guard(mutex_);
    std::vector<Loaded> dropped;
    ProgramPtr kept = programs_.add(key, std::move(loaded), &dropped).program;
    retire(std::move(dropped), gone);
    return kept;
  }
  void set_limit(size_t most) {
    std::vector<ProgramPtr> gone;
    const std::lock_guard guard(mutex_);
    std::vector<Loaded> dropped;
    programs_.set_limit(most, &dropped);
    retire(std::move(dropped), gone);
  }
  size_t size() {
    const std::lock_guard guard(mutex_);
    return programs_.size();
  }

 private:
  struct Retired {
    ProgramPtr program;
    runtime::Point last;  ///< of its device when it was dropped: its launches are before that
  };

  /// Nobody can launch what nobody holds, but the device may still run it.
  void retire(std::vector<Loaded> dropped, std::vector<ProgramPtr>& gone) {
    for (Loaded& loaded : dropped) {
      runtime::Point last;
      if (!loaded.device->hal().is_inline()) {
        runtime::Timeline& timeline = loaded.device->stream().timeline();
        last = {&timeline, timeline.last()};
      }
      retired_.push_back({std::move(loaded.program), last});
    }
    std::erase_if(retired_, [&](Retired& r) {
      if (!runtime::reached(r.last)) return false;
      gone.push_back(std::move(r.program));
      return true;
    });
  }

  std::mutex mutex_;
  LruMap<ProgramKey, Loaded, ProgramKeyHash> programs_{kMostPrograms};
  std::vector<Retired> retired_;
};

struct Job {
  const ir::KernelIr* kernel;
  const hal::Arch* arch;
  std::string_view renderer;
  size_t wanted = 0;  ///< position among those asked for
  std::optional<Result<hal::CodeObject>> code = {};

  void compile() {
    code = guard_memory("compiling a kernel",
                        [&] { return compiler::compile(*kernel, *arch, renderer); });
  }
  bool is_for_same(const Job& other) const {
    return arch == other.arch && renderer == other.renderer;
  }
};

/// Jobs for one device.
void compile_together(std::span<Job> jobs) {
  if (jobs.size() == 1) return jobs[0].compile();
  std::vector<const ir::KernelIr*> kernels;
  for (const Job& job : jobs) kernels.push_back(job.kernel);
  using Codes = std::vector<Result<hal::CodeObject>>;
  Result<Codes> codes = guard_memory("compiling kernels", [&]() -> Result<Codes> {
    return compiler::compile_all(kernels, *jobs[0].arch, jobs[0].renderer);
  });
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (codes)
      jobs[i].code = std::move((*codes)[i]);
    else
      jobs[i].code = tl::unexpected<Error>(codes.error());
  }
}

size_t compile_threads(size_t jobs) {
  return std::min<size_t>(worker_threads(settings().threads), jobs);
}

/// What one thread compiles at a time: as many as share a start of the compiler, and no more than
/// leave work for every thread.
std::vector<std::span<Job>> parts_of(std::span<Job> jobs) {
  const size_t threads = std::max<size_t>(1, compile_threads(jobs.size()));
  const size_t share = (jobs.size() + threads - 1) / threads;
  std::vector<std::span<Job>> parts;
  while (!jobs.empty()) {
    const Job& first = jobs[0];
    const size_t most = std::min(compiler::most_together(*first.arch, first.renderer), share);
    size_t count = 1;
    while (count < std::min(most, jobs.size()) && jobs[count].is_for_same(first)) ++count;
    parts.push_back(jobs.first(count));
    jobs = jobs.subspan(count);
  }
  return parts;
}

void compile_all(std::span<Job> jobs) {
  std::atomic<size_t> next{0};
  const Settings& mine = settings();
  const std::vector<std::span<Job>> parts = parts_of(jobs);
  const auto work = [&] {
    for (size_t i = next.fetch_add(1); i < parts.size(); i = next.fetch_add(1))
      compile_together(parts[i]);
  };
  // Joined on every way out: a job that throws here must not leave others at work on `jobs`.
  std::vector<Thread> helpers;
  const size_t threads = compile_threads(parts.size());
  helpers.reserve(threads);
  for (size_t i = 1; i < threads; ++i) {
    auto helper = Thread::start([&] {
      const ScopedSettings same(mine);
      work();
    });
    if (!helper) {
      // Fewer threads are only slower.
      log("tensor", LogLevel::kInfo, "compiling with {} threads: {}", i, helper.error().message);
      break;
    }
    helpers.push_back(std::move(*helper));
  }
  work();
}

// Of this thread, as captures are.
thread_local KernelRecorder* current_recorder = nullptr;

}  // namespace

Result<std::vector<ProgramPtr>> programs_for(std::span<const WantedKernel> wanted) {
  return guard_memory("compiling kernels", [&]() -> Result<std::vector<ProgramPtr>> {
    Programs& known = Programs::instance();
    std::vector<ProgramKey> keys;
    std::vector<Job> jobs;
    std::unordered_map<ProgramKey, ProgramPtr, ProgramKeyHash> made;
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
          keys[job.wanted], {BM_TRY(load_reporting(*wanted[job.wanted].device, **job.code)),
                             wanted[job.wanted].device});
    }
    std::vector<ProgramPtr> programs;
    for (const ProgramKey& key : keys) programs.push_back(made.at(key));
    if (KernelRecorder* recorder = KernelRecorder::current())
      for (size_t i = 0; i < wanted.size(); ++i) recorder->add(programs[i], wanted[i].kernel);
    return programs;
  });
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

void KernelRecorder::add(const ProgramPtr& program, const KernelPtr& kernel) {
  if (!programs_.emplace(program.get(), kernel).second) return;
  kernels_.push_back(kernel);
  held_.push_back(program);
}

void limit_programs(size_t most) { Programs::instance().set_limit(most); }
size_t programs_kept() { return Programs::instance().size(); }

}  // namespace bm
