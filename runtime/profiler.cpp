#include "runtime/profiler.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <unordered_map>

#include "runtime/base/env.h"
#include "runtime/base/output_file.h"

namespace bm::runtime {

struct Profiler::ThreadLog {
  mutable std::mutex mutex;  // only contended while a trace is being written
  std::vector<ProfileRange> ranges;
};

namespace {

/// `text` as the inside of a JSON string. Names are ASCII; anything else becomes '?'.
std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else {
      out += c >= ' ' && c <= '~' ? c : '?';
    }
  }
  return out;
}

double microseconds(int64_t ns, int64_t origin_ns) {
  return static_cast<double>(ns - origin_ns) * 1e-3;
}

/// Rows of a trace. Viewers take ranges of one row for nested calls: those that overlap, as on a
/// device that runs several kernels at a time, need rows of their own.
struct Rows {
  std::map<std::pair<std::string, size_t>, size_t> numbers;  ///< by name and place among its rows
  std::vector<size_t> of;                                    ///< by range
};

/// `ranges` are sorted by their begin. Each takes the first row of its name that is free.
Rows number_rows(const std::vector<ProfileRange>& ranges) {
  std::map<std::string, std::vector<int64_t>> ends;  // by name, of the last range of each row
  std::vector<size_t> places;
  Rows rows;
  for (const ProfileRange& range : ranges) {
    std::vector<int64_t>& busy = ends[range.row];
    size_t place = 0;
    while (place < busy.size() && busy[place] > range.begin_ns) ++place;
    if (place == busy.size()) busy.push_back(range.end_ns);
    busy[place] = std::max(busy[place], range.end_ns);
    places.push_back(place);
    rows.numbers.emplace(std::pair(range.row, place), 0);
  }
  size_t next = 1;
  for (auto& [row, number] : rows.numbers) number = next++;
  for (size_t i = 0; i < ranges.size(); ++i)
    rows.of.push_back(rows.numbers.at({ranges[i].row, places[i]}));
  return rows;
}

std::string range_event(const ProfileRange& range, size_t row, int64_t origin_ns) {
  const int64_t duration_ns = std::max<int64_t>(range.end_ns - range.begin_ns, 0);
  std::string args;
  if (duration_ns > 0 && range.flops > 0)
    args += fmt::format("\"GFLOPS\":{:.3f}", range.flops / static_cast<double>(duration_ns));
  if (duration_ns > 0 && range.bytes > 0) {
    args += fmt::format("{}\"GB/s\":{:.3f}", args.empty() ? "" : ",",
                        range.bytes / static_cast<double>(duration_ns));
  }
  return fmt::format(
      R"({{"ph":"X","name":"{}","cat":"{}","pid":1,"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{{}}}}})",
      escape(range.name), range.category, row, microseconds(range.begin_ns, origin_ns),
      static_cast<double>(duration_ns) * 1e-3, args);
}

/// One end of an arrow: "s" leaves the earlier range at its end, "f" enters the later one at its
/// begin.
std::string flow_event(const char* phase, uint64_t flow, size_t row, double at_us) {
  return fmt::format(
      R"({{"ph":"{}","name":"dependency","cat":"dependency","id":{},"pid":1,"tid":{},"ts":{:.3f}{}}})",
      phase, flow, row, at_us, phase[0] == 'f' ? R"(,"bp":"e")" : "");
}

}  // namespace

int64_t host_time_ns() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

int64_t ClockMap::to_host_ns(uint64_t ticks) const {
  // Split so that neither the multiplication overflows nor precision is lost for long uptimes.
  const uint64_t seconds = ticks / ticks_per_second, rest = ticks % ticks_per_second;
  const auto fraction_ns = static_cast<double>(rest) * 1e9 / static_cast<double>(ticks_per_second);
  return static_cast<int64_t>(seconds * 1'000'000'000) + static_cast<int64_t>(fraction_ns) +
         offset_ns;
}

Profiler::Profiler(std::string path)
    : serial_([] {
        static std::atomic<uint64_t> next{1};
        return next.fetch_add(1);
      }()) {
  if (!path.empty()) start(std::move(path));
}

Profiler::~Profiler() = default;

void Profiler::start(std::string path) {
  const std::lock_guard lock(mutex_);
  path_ = std::move(path);
  is_on_.store(true, std::memory_order_relaxed);
}

void Profiler::stop() { is_on_.store(false, std::memory_order_relaxed); }

Profiler::ThreadLog& Profiler::this_thread_log() {
  struct Cache {
    uint64_t serial = 0;
    std::shared_ptr<ThreadLog>
        log;  // shared with logs_: a thread may end before the trace is written
  };
  thread_local Cache cache;
  if (cache.serial != serial_) {
    cache = {serial_, std::make_shared<ThreadLog>()};
    const std::lock_guard lock(mutex_);
    logs_.push_back(cache.log);
  }
  return *cache.log;
}

void Profiler::record(ProfileRange range) {
  if (!is_on()) return;
  ThreadLog& log = this_thread_log();
  const std::lock_guard lock(log.mutex);
  log.ranges.push_back(std::move(range));
}

std::string Profiler::to_json() const {
  std::vector<ProfileRange> ranges;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& log : logs_) {
      const std::lock_guard log_lock(log->mutex);
      ranges.insert(ranges.end(), log->ranges.begin(), log->ranges.end());
    }
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
  const Rows rows = number_rows(ranges);
  std::unordered_map<uint64_t, size_t> by_id;
  for (size_t i = 0; i < ranges.size(); ++i)
    if (ranges[i].id != 0) by_id.emplace(ranges[i].id, i);

  const int64_t origin_ns = ranges.empty() ? 0 : ranges.front().begin_ns;
  std::string out = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";
  out += R"({"ph":"M","name":"process_name","pid":1,"args":{"name":"bellmetal"}})";
  for (const auto& [row, number] : rows.numbers) {
    const auto& [name, place] = row;
    out += fmt::format(
        ",\n{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":{},"
        "\"args\":{{\"name\":\"{}\"}}}}",
        number, escape(place == 0 ? name : fmt::format("{} #{}", name, place + 1)));
  }
  uint64_t flow = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const ProfileRange& range = ranges[i];
    const size_t row = rows.of[i];
    out += ",\n" + range_event(range, row, origin_ns);
    for (const uint64_t id : range.after) {
      const auto source = by_id.find(id);
      if (source == by_id.end()) continue;
      ++flow;
      const ProfileRange& from = ranges[source->second];
      out += ",\n" +
             flow_event("s", flow, rows.of[source->second], microseconds(from.end_ns, origin_ns));
      out += ",\n" + flow_event("f", flow, row, microseconds(range.begin_ns, origin_ns));
    }
  }
  return out + "\n]}\n";
}

Status Profiler::write() const {
  std::string path;
  {
    const std::lock_guard lock(mutex_);
    path = path_;
  }
  const std::string text = to_json();
  Status written = replace_file(path, std::as_bytes(std::span(text)));
  if (!written)
    return tl::unexpected<Error>(std::move(written.error()).within("cannot write the trace"));
  return {};
}

Profiler& profiler() {
  // Process-wide and never destroyed: threads may still record while static objects are torn down.
  static Profiler* const instance = [] {
    const std::string path = settings().profile;
    auto* made = new Profiler(path);
    if (!path.empty()) {
      std::atexit([] {
        if (const Status written = profiler().write(); !written)
          std::fprintf(stderr, "bellmetal: %s\n", written.error().message.c_str());
      });
    }
    return made;
  }();
  return *instance;
}

}  // namespace bm::runtime
