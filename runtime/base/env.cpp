#include "runtime/base/env.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "runtime/base/check.h"
#include "runtime/base/settings_scope.h"

namespace bm {
namespace {

using Lookup = const char* (*)(const char* name);

struct Row {
  const char* name;
  const char* fallback;  ///< as `bellmetal env` prints it
  const char* help;
  Status (*set)(Settings& settings, std::string_view text);
  std::string (*get)(const Settings& settings);
};

template <class T>
Result<T> parse_number(std::string_view text, T least, T most) {
  T value{};
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || value < least || value > most)
    return fail(Code::kInvalidArgument, "'{}' is not a number in {}..{}", text, least, most);
  return value;
}

Result<bool> parse_bool(std::string_view text) {
  if (text == "1" || text == "true" || text == "on" || text == "yes") return true;
  if (text == "0" || text == "false" || text == "off" || text == "no" || text.empty()) return false;
  // Any other number switches on, as the seeds' variables do.
  if (parse_number<int64_t>(text, INT64_MIN, INT64_MAX)) return true;
  return fail(Code::kInvalidArgument, "'{}' is neither 0 nor 1", text);
}

// Setters and getters by member; one instantiation per variable keeps the table declarative.
template <auto Member, auto Least, auto Most>
Status set_number(Settings& settings, std::string_view text) {
  using T = std::remove_reference_t<decltype(settings.*Member)>;
  settings.*Member = BM_TRY(parse_number<T>(text, T{Least}, T{Most}));
  return {};
}
template <auto Member>
Status set_bool(Settings& settings, std::string_view text) {
  settings.*Member = BM_TRY(parse_bool(text));
  return {};
}
/// "amd=3,runtime=1" or "2": names or none, each with one digit.
Status set_log(Settings& settings, std::string_view text) {
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
    const std::string_view level = entry.substr(entry.find('=') + 1);  // all of it without '='
    if (entry.starts_with('=') || level.size() != 1 || level[0] < '0' || level[0] > '9')
      return fail(Code::kInvalidArgument, "'{}' is no level such as 2 or amd=3", entry);
  }
  settings.log = std::string(text);
  return {};
}
template <auto Member>
Status set_bytes(Settings& settings, std::string_view text) {
  settings.*Member = BM_TRY(parse_bytes(text));
  return {};
}
template <auto Member>
Status set_text(Settings& settings, std::string_view text) {
  settings.*Member = std::string(text);
  return {};
}
template <auto Member>
std::string get(const Settings& settings) {
  if constexpr (std::is_same_v<std::remove_cvref_t<decltype(settings.*Member)>, bool>)
    return settings.*Member ? "1" : "0";
  else
    return fmt::format("{}", settings.*Member);
}

Status set_seed(Settings& settings, std::string_view text) {
  settings.seed = BM_TRY(parse_number<uint64_t>(text, 0, UINT64_MAX));
  settings.has_seed = true;
  return {};
}
std::string get_seed(const Settings& settings) {
  return settings.has_seed ? fmt::format("{}", settings.seed) : "";
}
// https://no-color.org: any non-empty value, even "0".
Status set_no_color(Settings& settings, std::string_view text) {
  settings.no_color = !text.empty();
  return {};
}

Status set_nv_code(Settings& settings, std::string_view text) {
  if (!text.empty() && text != "ptx")
    return fail(Code::kInvalidArgument, "'{}' is neither empty nor 'ptx'", text);
  settings.nv_code = std::string(text);
  return {};
}
Status set_amd_queue(Settings& settings, std::string_view text) {
  if (!text.empty() && text != "pm4" && text != "aql")
    return fail(Code::kInvalidArgument, "'{}' is neither empty nor 'pm4' nor 'aql'", text);
  settings.amd_queue = std::string(text);
  return {};
}
template <auto Member>
Status set_address(Settings& settings, std::string_view text) {
  const bool is_hex = text.starts_with("0x");
  const std::string_view digits = is_hex ? text.substr(2) : text;
  uint64_t value = 0;
  const auto [end, problem] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, is_hex ? 16 : 10);
  if (problem != std::errc() || end != digits.data() + digits.size())
    return fail(Code::kInvalidArgument, "'{}' is not an address", text);
  settings.*Member = value;
  return {};
}

using S = Settings;
constexpr Row kRows[] = {
    {"DEV", "",
     "default device: [INTERFACE[:indices]+]DEVICE[:RENDERER[:ARCH]], several separated by ';'",
     set_text<&S::dev>, get<&S::dev>},
    {"DEBUG", "0",
     "0 quiet, 1 devices, 2 each kernel with times, 3 buffers, 4 source, 5 IR, 6 rewrites, 7 "
     "disassembly",
     set_number<&S::debug, 0, 7>, get<&S::debug>},
    {"JIT", "1",
     "0: never capture; 1: capture and replay as a graph; 2: capture, launch one by one",
     set_number<&S::jit, 0, 2>, get<&S::jit>},
    {"LRU", "1", "0: give freed memory back at once instead of keeping it for the next allocation",
     set_bool<&S::lru>, get<&S::lru>},
    {"BM_LOG", "",
     "log levels per component, e.g. 'amd=3,runtime=1' or '2' for all (0 error, 1 warning, 2 info, "
     "3 trace)",
     set_log, get<&S::log>},
    {"BM_THREADS", "0", "worker threads of the CPU device and the compiler; 0: one per usable core",
     set_number<&S::threads, 0u, 4096u>, get<&S::threads>},
    {"BM_PIN", "0", "1: each worker thread of the CPU device stays on one core", set_bool<&S::pin>,
     get<&S::pin>},
    {"BM_CACHE_DIR", "$XDG_CACHE_HOME/bellmetal or ~/.cache/bellmetal",
     "folder of compiled kernels and measurements", set_text<&S::cache_dir>, get<&S::cache_dir>},
    {"BM_CACHE", "1", "0: neither read nor write the cache folder", set_bool<&S::cache>,
     get<&S::cache>},
    {"BM_CHECKED", "0",
     "1: kernels of the CPU check every load and store against the size of its buffer; the first "
     "that leaves it, or reads workspace that nothing wrote, is reported and ends the "
     "process. Reading an output of a captured program that has run again since is an error",
     set_bool<&S::checked>, get<&S::checked>},
    {"BM_POISON", "0",
     "1: fresh device memory and workspace of CPU kernels are filled with ones, NaN of every "
     "float type, so that reads of what was never written show",
     set_bool<&S::poison>, get<&S::poison>},
    {"BM_TUNE", "0",
     "search for faster schedules of each new kernel, keeping the best N at every step; 0: use "
     "what "
     "is known",
     set_number<&S::tune, 0u, 64u>, get<&S::tune>},
    {"BM_TUNE_MS", "2000", "longest search for one kernel in milliseconds, begun steps included",
     set_number<&S::tune_ms, 1u, 3'600'000u>, get<&S::tune_ms>},
    {"BM_BUNDLE", "", "files of `bellmetal bake` to take kernels from, separated by ':'",
     set_text<&S::bundle>, get<&S::bundle>},
    {"BM_PLUGIN_DIR", "", "folder searched first for compiler components; absolute",
     set_text<&S::plugin_dir>, get<&S::plugin_dir>},
    {"BM_CLANG", "",
     "clang of the CLANG renderer: a name in PATH or a path; empty: the newest found",
     set_text<&S::clang>, get<&S::clang>},
    {"BM_MEMORY_CAP", "0", "most bytes one device may hold (K, M, G suffix); 0: no limit",
     set_bytes<&S::memory_cap>, get<&S::memory_cap>},
    {"BM_POOL_SOFT_CAP", "0",
     "idle memory is given back while a device holds more bytes than this; 0: no limit",
     set_bytes<&S::pool_soft_cap>, get<&S::pool_soft_cap>},
    {"BM_WAIT_TIMEOUT_MS", "30000", "a device without progress for so long counts as hung",
     set_number<&S::wait_timeout_ms, 1u, UINT32_MAX>, get<&S::wait_timeout_ms>},
    {"BM_CL_LIBRARY", "", "OpenCL loader to use in place of libOpenCL.so.1",
     set_text<&S::cl_library>, get<&S::cl_library>},
    {"BM_CL_SVM", "2",
     "shared virtual memory of OpenCL devices: 0 none (cl_mem), 1 coarse-grained, 2 all there is",
     set_number<&S::cl_svm, 0, 2>, get<&S::cl_svm>},
    {"BM_NV_CODE", "",
     "ptx: hand PTX text to DEV=NV as the program, for models of GPUs that execute PTX",
     set_nv_code, get<&S::nv_code>},
    {"BM_NV_LAUNCH", "",
     "launch descriptor of NVIDIA GPUs and the action that starts it, e.g. 4.0 or 3.0,9; empty: "
     "the chip's own",
     set_text<&S::nv_launch>, get<&S::nv_launch>},
    {"BM_NV_WGMMA", "1",
     "0: GEMM and attention on NVIDIA GPUs use mma.sync where wgmma or tcgen05 is there, too (to "
     "compare them)",
     set_bool<&S::nv_wgmma>, get<&S::nv_wgmma>},
    {"BM_NV_WINDOW", "0",
     "first GPU address of memory the CPU sees too (decimal or 0x…), 64 GiB below 2^40; 0: "
     "0x1000000000",
     set_address<&S::nv_window>, get<&S::nv_window>},
    {"BM_NV_VERSION", "",
     "release of the nvidia kernel driver to assume, e.g. 580.105.08; empty: what it says itself",
     set_text<&S::nv_version>, get<&S::nv_version>},
    {"BM_AMD_CUMODE", "1",
     "kernels for AMD run their work-groups on one compute unit; 0: on a pair of them, gfx10 and "
     "later",
     set_bool<&S::amd_cumode>, get<&S::amd_cumode>},
    {"BM_AMD_QUEUE", "",
     "packets of AMD compute queues: pm4 or aql; empty: aql on GPUs of several chiplets, else pm4",
     set_amd_queue, get<&S::amd_queue>},
    {"BM_AMD_PRIORITY", "7",
     "priority of AMD compute queues among those of all processes, 0 to 15 (high)",
     set_number<&S::amd_priority, 0u, 15u>, get<&S::amd_priority>},
    {"BM_AMD_WINDOW", "0",
     "first GPU address of memory of AMD GPUs (decimal or 0x…); 0: wherever the process has room",
     set_address<&S::amd_window>, get<&S::amd_window>},
    {"BM_AMD_DUMP", "", "folder that receives every code object loaded on an AMD GPU",
     set_text<&S::amd_dump>, get<&S::amd_dump>},
    {"BM_AMD_EXPERIMENTAL", "",
     "chips that DEV=AMD:PCI boots by way of trial, separated by ',': gfx942, which no card and no "
     "model but our own has judged; empty: none",
     set_text<&S::amd_experimental>, get<&S::amd_experimental>},
    {"BM_AMD_POWER_LIMIT", "0",
     "power limit in watts of AMD cards that we boot ourselves, given back when they are closed; "
     "at "
     "most the board's own; 0: as it is",
     set_number<&S::amd_power_limit, 0u, UINT32_MAX>, get<&S::amd_power_limit>},
    {"BM_FIRMWARE_DIR", "",
     "folders searched for firmware files before the system's, separated by ':'; absolute",
     set_text<&S::firmware_dir>, get<&S::firmware_dir>},
    {"BM_PCI", "",
     "PCI functions of DEV=AMD:PCI and DEV=NV:PCI, in the order of their units, separated by ',': "
     "0000:03:00.0, vfio:…, sysfs:…, remote:/path, remote:localhost:6667, vfio-user:/path; empty: "
     "every card "
     "that vfio-pci has",
     set_text<&S::pci>, get<&S::pci>},
    {"BM_UNSAFE_NOIOMMU", "0",
     "1: PCI functions that no IOMMU guards may be driven through VFIO; they reach all memory",
     set_bool<&S::unsafe_noiommu>, get<&S::unsafe_noiommu>},
    {"BM_KEEP_WEIGHTS", "0",
     "1: weights stay in the card's memory when the process ends, and are found there by the next "
     "(hot restart); needs DEV=AMD:PCI",
     set_bool<&S::keep_weights>, get<&S::keep_weights>},
    {"BM_CUDA_LIBRARY", "", "CUDA driver library to use in place of libcuda.so.1",
     set_text<&S::cuda_library>, get<&S::cuda_library>},
    {"CUDA_PATH", "", "CUDA toolkit whose nvrtc and nvJitLink are tried first",
     set_text<&S::cuda_path>, get<&S::cuda_path>},
    {"BM_PROFILE", "", "file that receives a Chrome trace of kernels and copies",
     set_text<&S::profile>, get<&S::profile>},
    {"BM_SEED", "", "seed of the random number generator; unset: drawn at start", set_seed,
     get_seed},
    {"NO_COLOR", "", "any value: no colours in output", set_no_color, get<&S::no_color>},
    {"ALLOW_TF32", "0", "1: float32 GEMM may round its operands to 11 bits (NVIDIA tensor cores)",
     set_bool<&S::allow_tf32>, get<&S::allow_tf32>},
    {"BM_ROUND_ACTIVATIONS", "1",
     "GPUs with matrix instructions: float32 activations are rounded to the type of 16-bit weights "
     "in linear layers of 8 rows or more; 0: products of float32",
     set_bool<&S::round_activations>, get<&S::round_activations>},
    {"NO_MEMORY_PLANNER", "0", "1: one allocation per intermediate buffer instead of shared arenas",
     set_bool<&S::no_memory_planner>, get<&S::no_memory_planner>},
    {"MAX_BUFFER_SIZE", "0", "largest single allocation in bytes (K, M, G suffix); 0: no limit",
     set_bytes<&S::max_buffer_size>, get<&S::max_buffer_size>},
};

std::string default_cache_dir(Lookup lookup) {
  if (const char* base = lookup("XDG_CACHE_HOME"); base != nullptr && *base == '/')
    return std::string(base) + "/bellmetal";
  if (const char* home = lookup("HOME"); home != nullptr && *home != '\0')
    return std::string(home) + "/.cache/bellmetal";
  return {};
}

const char* lookup_environment(const char* name) { return std::getenv(name); }

Status apply(Settings& settings, const Row& row, std::string_view text) {
  // An empty value means "not set" for everything but text, as shells cannot unset in one line.
  if (text.empty()) return {};
  const Status status = row.set(settings, text);
  if (!status) return tl::unexpected<Error>(Error(status.error()).within(row.name));
  return {};
}

struct Snapshot {
  Settings settings;
  std::vector<std::string> problems;  ///< parallel to kRows; empty text: accepted
};

Snapshot read_environment() {
  Snapshot snapshot;
  snapshot.settings.cache_dir = default_cache_dir(lookup_environment);
  for (const Row& row : kRows) {
    const char* text = lookup_environment(row.name);
    const Status status = text ? apply(snapshot.settings, row, text) : Status{};
    snapshot.problems.push_back(status ? "" : status.error().message);
    if (!status) fmt::print(stderr, "bellmetal: ignored {}\n", status.error().message);
  }
  return snapshot;
}

// The process snapshot: a constant once made, so sharing it between threads needs no lock.
const Snapshot& process_snapshot() {
  static const Snapshot snapshot = read_environment();
  return snapshot;
}

// Innermost ScopedSetting of this thread, or the process snapshot once it was asked for: every
// replay asks. Thread-local by design: a scope on one thread must never change what another thread
// sees.
const Settings*& scoped_settings() {
  thread_local const Settings* current = nullptr;
  return current;
}

}  // namespace

const Settings& settings() {
  const Settings*& current = scoped_settings();
  if (current == nullptr) [[unlikely]]
    current = &process_snapshot().settings;
  return *current;
}

ScopedSetting::ScopedSetting(std::string_view name, std::string_view value)
    : mine_(std::make_unique<Settings>(settings())), previous_(scoped_settings()) {
  const Row* row = std::find_if(std::begin(kRows), std::end(kRows),
                                [&](const Row& r) { return r.name == name; });
  BM_CHECK(row != std::end(kRows));
  const Status status = row->set(*mine_, value);
  BM_CHECK(status.has_value());
  scoped_settings() = mine_.get();
}

ScopedSetting::~ScopedSetting() {
  BM_CHECK(scoped_settings() == mine_.get());
  scoped_settings() = previous_;
}

ScopedSettings::ScopedSettings(const Settings& same) : mine_(same), previous_(scoped_settings()) {
  scoped_settings() = &mine_;
}

ScopedSettings::~ScopedSettings() {
  BM_CHECK(scoped_settings() == &mine_);
  scoped_settings() = previous_;
}

std::vector<EnvValue> all_env() {
  std::vector<EnvValue> values;
  const Snapshot& snapshot = process_snapshot();
  for (size_t i = 0; i < std::size(kRows); ++i) {
    const Row& row = kRows[i];
    const char* text = lookup_environment(row.name);
    const std::string value = row.get(settings());
    const bool is_scoped = value != row.get(snapshot.settings);
    const bool is_set = text && *text && snapshot.problems[i].empty();
    values.push_back({.name = row.name,
                      .value = value,
                      .fallback = row.fallback,
                      .help = row.help,
                      .source = is_scoped ? "scope"
                                : is_set  ? "environment"
                                          : "default",
                      .problem = snapshot.problems[i]});
  }
  return values;
}

Result<uint64_t> parse_bytes(std::string_view text) {
  double number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string suffix(end, text.data() + text.size());
  for (char& c : suffix) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  if (suffix.ends_with("ib"))
    suffix.resize(suffix.size() - 2);
  else if (suffix.ends_with('b'))
    suffix.pop_back();
  const size_t power = suffix.empty() ? 0 : std::string_view("kmgt").find(suffix) + 1;
  if (problem != std::errc() || suffix.size() > 1 || (!suffix.empty() && power == 0))
    return fail(Code::kInvalidArgument, "'{}' is not a size such as 512M or 2G", text);
  const double bytes = std::ldexp(number, static_cast<int>(10 * power));
  if (!(bytes >= 0) || bytes >= 0x1p64)
    return fail(Code::kInvalidArgument, "size '{}' is out of range", text);
  return static_cast<uint64_t>(bytes);
}

Result<Settings> parse_settings(Lookup lookup) {
  Settings settings;
  settings.cache_dir = default_cache_dir(lookup);
  for (const Row& row : kRows)
    if (const char* text = lookup(row.name)) BM_TRY(apply(settings, row, text));
  return settings;
}

}  // namespace bm
