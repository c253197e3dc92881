#include "drivers/cpu/cpu_info.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "drivers/cpu/x86_features.h"
#include "runtime/base/log.h"

namespace bm::cpu {
namespace {

/// First line of a small system file. Errors: kNotFound where this system has no such file;
/// kPermission; kIo, kOutOfMemory if it is there and cannot be read now.
Result<std::string> read_line(const std::string& path) {
  std::array<char, 4096> text{};
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ssize_t size = -1;
  if (file >= 0) do
      size = ::read(file, text.data(), text.size());
    while (size < 0 && errno == EINTR);
  const int error = errno;
  if (file >= 0) ::close(file);
  if (size < 0) {
    const bool is_absent = error == ENOENT || error == ENOTDIR || error == ENODEV;
    return fail(is_absent                           ? Code::kNotFound
                : error == EACCES || error == EPERM ? Code::kPermission
                : error == ENOMEM                   ? Code::kOutOfMemory
                                                    : Code::kIo,
                "{}: {}", path, std::strerror(error));
  }
  const std::string_view all(text.data(), static_cast<size_t>(size));
  return std::string(all.substr(0, all.find('\n')));
}

/// The same; nothing where there is no such file, or a sandbox hides it, which is told.
Result<std::optional<std::string>> find_line(const std::string& path) {
  auto line = read_line(path);
  if (line) return std::optional(std::move(*line));
  if (line.error().code == Code::kPermission)
    log("cpu", LogLevel::kWarning, "{}: taken for absent, so kernels are made for usual caches",
        line.error().message);
  else if (line.error().code != Code::kNotFound)
    return tl::unexpected(std::move(line.error()));
  return std::optional<std::string>();
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data()) return std::nullopt;
  return value;
}

uint32_t cores_of_time(int64_t quota, int64_t period) {
  if (quota <= 0 || period <= 0) return 0;
  return static_cast<uint32_t>(std::max<int64_t>((quota + period - 1) / period, 1));
}

/// Version 2 keeps limits per group: the tightest of our group and its parents counts.
uint32_t cgroup_v2_cores() {
  const auto line = read_line("/proc/self/cgroup");  // "0::/path"
  std::string_view path = "/";
  if (line && line->starts_with("0::")) path = std::string_view(*line).substr(3);
  if (!path.starts_with('/')) path = "/";  // every step below ends at a slash
  uint32_t cores = 0;
  for (;;) {
    const auto text = read_line(fmt::format("/sys/fs/cgroup{}/cpu.max", path));
    const uint32_t here = text ? cores_of_quota(*text) : 0;
    if (here != 0) cores = cores == 0 ? here : std::min(cores, here);
    if (path.size() <= 1) return cores;
    path = path.substr(0, std::max<size_t>(path.rfind('/'), 1));
  }
}

uint32_t cgroup_v1_cores() {
  for (const char* folder : {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"}) {
    const auto quota = read_line(fmt::format("{}/cpu.cfs_quota_us", folder));
    const auto period = read_line(fmt::format("{}/cpu.cfs_period_us", folder));
    if (quota && period)
      return cores_of_time(number(*quota).value_or(0), number(*period).value_or(0));
  }
  return 0;
}

#if defined(__aarch64__)
Result<hal::Arch> make_host_arch(std::span<const std::string_view> tokens) {
  if (!tokens.empty() && tokens[0] != "native")
    return fail(Code::kUnsupported, "processor '{}': only the baseline is generated on aarch64",
                tokens[0]);
  return hal::Arch{
      .vendor = hal::Vendor::kCpu, .name = "aarch64", .cpu = "generic", .features = "+neon"};
}
#else
Result<hal::Arch> make_host_arch(std::span<const std::string_view> tokens) {
  return x86::make_arch(x86::host_cpuid(), tokens);
}
#endif

}  // namespace

std::string_view host_arch_name() {
#if defined(__aarch64__)
  return "aarch64";
#else
  return "x86_64";
#endif
}

Result<hal::Arch> make_arch(std::string_view request) {
  const std::vector<std::string_view> parts = split(request, ',');
  std::span<const std::string_view> tokens(parts);
  if (!tokens.empty() && tokens[0] != "native") {
    if (tokens[0] != host_arch_name())
      return fail(Code::kInvalidArgument, "architecture '{}': this machine is {}", tokens[0],
                  host_arch_name());
    tokens = tokens.subspan(1);
  }
  hal::Arch arch = BM_TRY(make_host_arch(tokens));
  const CacheSizes caches = BM_TRY(cache_sizes());
  arch.l1_bytes = caches.first;
  arch.l2_bytes = caches.private_one;
  arch.llc_bytes = caches.last;
  return arch;
}

Result<hal::Arch> other_arch(std::string_view request) {
  const std::vector<std::string_view> parts = split(request, ',');
  std::span<const std::string_view> tokens(parts);
  if (!tokens.empty() && tokens[0] == "x86_64") tokens = tokens.subspan(1);
  if (tokens.empty() || !x86::cpu_level(tokens[0]))
    return fail(Code::kInvalidArgument,
                "'{}' names no processor (LLVM's names such as znver4, sapphirerapids, x86-64-v3)",
                request);
  // A machine that lacks nothing, so that only the request limits.
  constexpr uint64_t kAllState = 0xe7;
  return x86::make_arch(
      {.read = [](uint32_t, uint32_t, x86::Cpuid::Register) { return ~0u; }, .xcr0 = kAllState},
      tokens);
}

std::string cpu_model_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      if (const size_t colon = line.find(": "); colon != std::string::npos)
        return line.substr(colon + 2);
  return fmt::format("{} processor", host_arch_name());
}

uint32_t cores_of_quota(std::string_view cpu_max) {
  const auto parts = split(cpu_max, ' ');
  if (parts.size() < 2 || parts[0] == "max") return 0;
  return cores_of_time(number(parts[0]).value_or(0), number(parts[1]).value_or(0));
}

uint32_t usable_cores() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  // A mask of more than CPU_SETSIZE cores is refused with EINVAL: count what the system has
  // instead.
  uint32_t cores = sched_getaffinity(0, sizeof usable, &usable) == 0
                       ? static_cast<uint32_t>(CPU_COUNT(&usable))
                       : static_cast<uint32_t>(std::max<long>(sysconf(_SC_NPROCESSORS_ONLN), 1));
  for (uint32_t quota : {cgroup_v2_cores(), cgroup_v1_cores()})
    if (quota != 0) cores = std::min(cores, quota);
  return std::max<uint32_t>(cores, 1);
}

CacheSizes processor_caches() {
#if defined(__aarch64__)
  return {};
#else
  const x86::Caches caches = x86::detect_caches(x86::host_cpuid());
  return {.first = caches.l1_bytes, .private_one = caches.l2_bytes};
#endif
}

Result<CacheSizes> cache_sizes(const std::string& folder, const CacheSizes& processor) {
  const auto siblings = BM_TRY(find_line(folder + "/topology/thread_siblings_list"));
  CacheSizes sizes;
  for (int index = 0; index < 8; ++index) {
    const std::string cache = fmt::format("{}/cache/index{}/", folder, index);
    const auto size = BM_TRY(find_line(cache + "size"));
    const auto shared = BM_TRY(find_line(cache + "shared_cpu_list"));
    if (!size || !shared) break;
    const auto type = BM_TRY(find_line(cache + "type"));
    const auto level = BM_TRY(find_line(cache + "level"));
    if (type && *type == "Instruction") continue;
    const uint64_t unit = size->ends_with('M') ? 1 << 20 : size->ends_with('K') ? 1 << 10 : 1;
    const uint64_t bytes = static_cast<uint64_t>(number(*size).value_or(0)) * unit;
    if (level && *level == "1") sizes.first = std::max(sizes.first, bytes);
    sizes.last = std::max(sizes.last, bytes);
    const bool is_private = number(*shared) && shared->find_first_of(",-") == std::string::npos;
    if (is_private || (siblings && *shared == *siblings))
      sizes.private_one = std::max(sizes.private_one, bytes);
  }
  const hal::Arch usual;
  if (sizes.first == 0) sizes.first = processor.first;
  if (sizes.first == 0) sizes.first = usual.l1_bytes;
  if (sizes.private_one == 0) sizes.private_one = processor.private_one;
  if (sizes.private_one == 0) sizes.private_one = usual.l2_bytes;
  if (sizes.last == 0) sizes.last = std::max(usual.llc_bytes, sizes.private_one);
  return sizes;
}

}  // namespace bm::cpu
