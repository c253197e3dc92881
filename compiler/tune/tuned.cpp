#include "compiler/tune/tuned.h"

#include <charconv>
#include <map>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/mapping.h"
#include "runtime/base/output_file.h"
#include "runtime/base/trust.h"
#ifdef BM_HAS_DISK_CACHE
#include "compiler/cache/disk_cache.h"
#endif

namespace bm::compiler {
namespace {

constexpr std::string_view kHeader = "bellmetal tuned schedules 1";
constexpr size_t kMostLine = 4096;

std::string_view take_word(std::string_view* text) {
  const std::string_view word = text->substr(0, text->find(' '));
  text->remove_prefix(std::min(word.size() + 1, text->size()));
  return word;
}

bool is_id(std::string_view id) {
  return id.size() == 32 && id.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

Result<uint64_t> nanoseconds(std::string_view text) {
  uint64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size())
    return fail(Code::kInvalidArgument, "'{}' is no number of nanoseconds", text);
  return value;
}

#ifdef BM_HAS_DISK_CACHE
constexpr std::string_view kCacheKind = "tuned";

std::string as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
#endif

}  // namespace

std::string TunedSchedule::line() const {
  const std::string text = knobs.text();
  return fmt::format("{} {} {} {} {}{}{}", id, kernel, target, before_ns, after_ns,
                     text.empty() ? "" : " ", text);
}

Result<TunedSchedule> TunedSchedule::parse(std::string_view line) {
  TunedSchedule s;
  s.id = take_word(&line);
  s.kernel = take_word(&line);
  s.target = take_word(&line);
  if (!is_id(s.id) || s.kernel.empty() || s.target.empty())
    return fail(Code::kInvalidArgument, "no tuned schedule: '{}' is no id", s.id);
  s.before_ns = BM_TRY(nanoseconds(take_word(&line)));
  s.after_ns = BM_TRY(nanoseconds(take_word(&line)));
  s.knobs = BM_TRY(Knobs::parse(line));
  return s;
}

#ifdef BM_HAS_DISK_CACHE

namespace {

std::optional<TunedSchedule> find_in(DiskCache& cache, const std::string& id) {
  const auto blob = cache.get(kCacheKind, id);
  if (!blob || !*blob) return std::nullopt;
  auto schedule = TunedSchedule::parse(as_text(**blob));
  if (!schedule || schedule->id != id) return std::nullopt;
  return std::move(*schedule);
}

}  // namespace

std::optional<TunedSchedule> find_tuned(const std::string& id) {
  DiskCache& own = DiskCache::tuned();
  if (own.has_contents())
    if (auto schedule = find_in(own, id)) return schedule;
  // Until results had a file of their own they lay among the kernels: those move at first use.
  auto schedule = find_in(DiskCache::instance(), id);
  if (schedule) remember_tuned(*schedule);
  return schedule;
}

void remember_tuned(const TunedSchedule& schedule) {
  const std::string line = schedule.line();
  // What cannot be stored is searched for again next time.
  (void)DiskCache::tuned().put(kCacheKind, schedule.id, std::as_bytes(std::span(line)));
}

Result<size_t> export_tuned(const std::string& path) {
  std::map<std::string, std::string> lines;  // by id
  for (DiskCache* cache : {&DiskCache::tuned(), &DiskCache::instance()}) {
    if (!cache->has_contents()) continue;
    for (const std::vector<std::byte>& blob : BM_TRY(cache->all(kCacheKind)))
      if (const auto schedule = TunedSchedule::parse(as_text(blob)))
        lines.try_emplace(schedule->id, schedule->line());
  }
  std::string text = std::string(kHeader) + '\n';
  for (const auto& [id, line] : lines) text += line + '\n';
  BM_TRY(replace_file(path, std::as_bytes(std::span(text)), {.is_code = true}));
  return lines.size();
}

#else

std::optional<TunedSchedule> find_tuned(const std::string&) { return std::nullopt; }
void remember_tuned(const TunedSchedule&) {}
Result<size_t> export_tuned(const std::string& path) {
  return fail(Code::kUnsupported, "{}: this build has no cache to export from", path);
}

#endif

Result<size_t> import_tuned(const std::string& path) {
  // Choices become code.
  const std::string whole = BM_TRY(absolute_path(path));
  const TrustedFile trusted = BM_TRY(open_trusted(whole));
  const Mapping mapped = BM_TRY(Mapping::of(trusted.fd.get(), path));
  const auto* text = reinterpret_cast<const char*>(mapped.bytes().data());
  std::istringstream file(std::string(text, mapped.bytes().size()));
  std::string line;
  if (!std::getline(file, line) || line != kHeader)
    return fail(Code::kInvalidArgument, "{}: the first line is not '{}'", path, kHeader);
  std::vector<TunedSchedule> schedules;
  for (size_t number = 2; std::getline(file, line); ++number) {
    if (line.empty()) continue;
    auto schedule = line.size() > kMostLine
                        ? Result<TunedSchedule>(fail(Code::kInvalidArgument, "line too long"))
                        : TunedSchedule::parse(line);
    if (!schedule)
      return tl::unexpected(std::move(schedule.error()).within(fmt::format("{}:{}", path, number)));
    schedules.push_back(std::move(*schedule));
  }
  for (const TunedSchedule& s : schedules) remember_tuned(s);
  return schedules.size();
}

}  // namespace bm::compiler
