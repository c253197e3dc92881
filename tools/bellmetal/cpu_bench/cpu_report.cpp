#include "tools/bellmetal/cpu_bench/cpu_report.h"

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "tools/bellmetal/output.h"

namespace bm::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kUnits = {Unit::kGflops, Unit::kGops,   Unit::kGbytes,
                               Unit::kTokens, Unit::kMillis, Unit::kMicros};

Json scores_json(const std::vector<Score>& scores) {
  Json list = Json::array();
  for (const Score& s : scores)
    list.push_back({{"name", s.name}, {"value", s.value}, {"spread", s.spread}});
  return list;
}

std::vector<Score> scores_from(const Json& list) {
  std::vector<Score> out;
  for (const Json& s : list) out.push_back({s.at("name"), s.at("value"), s.at("spread")});
  return out;
}

/// Null instead of 0, which says "nothing to compare with" here.
Json or_null(double value) { return value > 0 ? Json(value) : Json(nullptr); }

std::string number(double v) {
  if (v <= 0) return "-";
  return fmt::format("{:.{}f}", v, v >= 100 ? 0 : v >= 10 ? 1 : 2);
}

std::string score_list(const std::vector<Score>& scores, Unit unit) {
  std::vector<Score> sorted = scores;
  std::stable_sort(sorted.begin(), sorted.end(), [&](const Score& a, const Score& b) {
    return is_rate(unit) ? a.value > b.value : a.value < b.value;
  });
  std::string out;
  for (const Score& s : sorted)
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", s.name, number(s.value));
  return out.empty() ? "-" : out;
}

}  // namespace

Json to_json(const CpuRow& row) {
  const Outcome& o = row.outcome;
  Json out = {{"name", o.name}};
  if (o.threads > 0) out["threads"] = o.threads;
  if (!row.problem.empty()) {
    out["problem"] = row.problem;
    return out;
  }
  const Score* peer = o.best_peer();
  const auto met = o.is_met();
  out.update(Json{{"unit", unit_name(o.unit)},
                  {"ours", o.ours.value},
                  {"spread", o.ours.spread},
                  {"peers", scores_json(o.peers)},
                  {"bounds", scores_json(o.bounds)},
                  {"relative_error", o.error ? Json(*o.error) : Json(nullptr)},
                  {"busy_elsewhere", o.busy_elsewhere},
                  {"notes", o.notes},
                  {"goal_of_peer", o.goal.of_peer},
                  {"goal_of_bound", o.goal.of_bound},
                  {"goal_at_most", o.goal.at_most},
                  {"goal", o.goal.text(o.unit)},
                  {"is_met", met ? Json(*met) : Json(nullptr)},
                  {"ratio_to_bound", or_null(o.ratio_to(o.best_bound()))},
                  {"peer_name", peer ? peer->name : ""},
                  {"peer", peer ? Json(peer->value) : Json(nullptr)},
                  {"ratio", or_null(o.ratio_to(peer))}});
  return out;
}

Result<CpuRow> cpu_row_from_json(const Json& json) {
  CpuRow row;
  Outcome& o = row.outcome;
  try {
    o.name = json.at("name");
    o.threads = json.at("threads");
    if (json.contains("problem")) {
      row.problem = json["problem"];
      return row;
    }
    const std::string unit = json.at("unit");
    for (const Unit u : kUnits)
      if (unit == unit_name(u)) o.unit = u;
    o.ours = {"ours", json.at("ours"), json.at("spread")};
    o.peers = scores_from(json.at("peers"));
    o.bounds = scores_from(json.at("bounds"));
    if (!json.at("relative_error").is_null()) o.error = json["relative_error"].get<double>();
    o.busy_elsewhere = json.at("busy_elsewhere");
    o.notes = json.at("notes").get<std::vector<std::string>>();
    o.goal = {json.at("goal_of_peer"), json.at("goal_of_bound"), json.at("goal_at_most")};
  } catch (const Json::exception& e) {
    return fail(Code::kCorrupt, "a row of the measurement: {}", e.what());
  }
  return row;
}

std::string cpu_table(const std::vector<CpuRow>& rows) {
  using enum Table::Align;
  const bool has_threads =
      std::any_of(rows.begin(), rows.end(), [](const CpuRow& r) { return r.outcome.threads > 0; });
  std::vector<Table::Column> columns{{"WORK"}};
  if (has_threads) columns.push_back({"THREADS", kRight});
  columns.insert(columns.end(), {{"OURS", kRight},
                                 {"SPREAD", kRight},
                                 {"PEERS"},
                                 {"BOUND"},
                                 {"OF BOUND", kRight},
                                 {"GOAL"},
                                 {"MET"},
                                 {"RATIO", kRight}});
  Table table(std::move(columns));
  const auto add = [&](const Outcome& o, const std::vector<std::string>& rest) {
    std::vector<std::string> cells{o.name};
    if (has_threads) cells.push_back(fmt::format("{}", o.threads));
    cells.insert(cells.end(), rest.begin(), rest.end());
    table.add(std::move(cells));
  };
  for (const CpuRow& r : rows) {
    const Outcome& o = r.outcome;
    if (!r.problem.empty()) {
      add(o, {"-", "-", "-", "-", "-", "-", "no", "-"});
      continue;
    }
    const auto met = o.is_met();
    const double of_bound = o.ratio_to(o.best_bound()), ratio = o.ratio_to(o.best_peer());
    add(o, {fmt::format("{} {}", number(o.ours.value), unit_name(o.unit)),
            fmt::format("{:.0f} %", o.ours.spread * 100), score_list(o.peers, o.unit),
            score_list(o.bounds, o.unit), of_bound > 0 ? fmt::format("{:.2f}", of_bound) : "-",
            o.goal.text(o.unit), met ? (*met ? "yes" : "no") : "-",
            ratio > 0 ? fmt::format("{:.2f}", ratio) : "-"});
  }
  return table.text();
}

}  // namespace bm::cli
