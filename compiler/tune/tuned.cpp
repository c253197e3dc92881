#include "compiler/tune/tuned.h"

#include <charconv>
#include <fstream>
#include <vector>

#include <fmt/format.h>

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

std::optional<TunedSchedule> find_tuned(const std::string& id) {
  const auto blob = DiskCache::instance().get(kCacheKind, id);
  if (!blob || !*blob) return std::nullopt;
  auto schedule = TunedSchedule::parse(as_text(**blob));
  if (!schedule || schedule->id != id) return std::nullopt;
  return std::move(*schedule);
}

void remember_tuned(const TunedSchedule& schedule) {
  const std::string line = schedule.line();
  // What cannot be stored is searched for again next time.
  (void)DiskCache::instance().put(kCacheKind, schedule.id, std::as_bytes(std::span(line)));
}

Result<size_t> export_tuned(const std::string& path) {
  std::ofstream file(path, std::ios::trunc);
  file << kHeader << '\n';
  size_t count = 0;
  for (const std::vector<std::byte>& blob : DiskCache::instance().all(kCacheKind)) {
    const auto schedule = TunedSchedule::parse(as_text(blob));
    if (!schedule) continue;
    file << schedule->line() << '\n';
    ++count;
  }
  file.flush();
  if (!file) return fail(Code::kIo, "{}: cannot be written", path);
  return count;
}

#else

std::optional<TunedSchedule> find_tuned(const std::string&) { return std::nullopt; }
void remember_tuned(const TunedSchedule&) {}
Result<size_t> export_tuned(const std::string& path) {
  return fail(Code::kUnsupported, "{}: this build has no cache to export from", path);
}

#endif

Result<size_t> import_tuned(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!file) return fail(Code::kIo, "{}: cannot be read", path);
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
