#include "compiler/tune/knobs.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

#include "compiler/analysis/cost.h"
#include "compiler/schedules/gemm_cpu/knobs.h"

namespace bm::compiler {
namespace {

/// Most copies of a body, and of lanes, that any choice may ask for.
constexpr int64_t kMostCopies = 32, kMostLanes = 64;

struct KnobRow {
  std::string_view name;  ///< "jam" stands for jam0, jam1, …
  int64_t least, most;
};
constexpr std::array kKnobs = {
    KnobRow{"axis", -1, 63},        KnobRow{"block", 1, 1024},       KnobRow{"blocks", 1, 4096},
    KnobRow{"ctiles", 1, 1024},     KnobRow{"depth", 8, 4096},       KnobRow{"items", 1, 64},
    KnobRow{"jam", 1, kMostCopies}, KnobRow{"lanes", 1, kMostLanes}, KnobRow{"plain", 0, 1},
    KnobRow{"rlanes", 0, 1},        KnobRow{"rtiles", 1, 1024},      KnobRow{"trows", 1, 16},
    KnobRow{"turned", 0, 1},        KnobRow{"tvectors", 1, 4},       KnobRow{"unroll", 1, 16}};

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool is_known(std::string_view name, int64_t value) {
  for (const KnobRow& row : kKnobs) {
    std::string_view rest = name;
    if (!rest.starts_with(row.name)) continue;
    rest.remove_prefix(row.name.size());
    const bool fits = row.name == "jam" ? number(rest).value_or(-1) >= 0 : rest.empty();
    if (fits) return value >= row.least && value <= row.most;
  }
  return false;
}

}  // namespace

std::optional<int64_t> Knobs::get(std::string_view name) const {
  const auto it = values.find(name);
  if (it == values.end()) return std::nullopt;
  return it->second;
}

std::string Knobs::text() const {
  std::string out;
  for (const auto& [name, value] : values)
    out += fmt::format("{}{}={}", out.empty() ? "" : " ", name, value);
  return out;
}

Result<Knobs> Knobs::parse(std::string_view text) {
  Knobs knobs;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    if (word.empty()) continue;
    const size_t equals = word.find('=');
    const auto value =
        equals == std::string_view::npos ? std::nullopt : number(word.substr(equals + 1));
    if (!value || !is_known(word.substr(0, equals), *value))
      return fail(Code::kInvalidArgument, "'{}' is no choice of a schedule", word);
    knobs.values[std::string(word.substr(0, equals))] = *value;
  }
  return knobs;
}

namespace {

class Neighbours {
 public:
  Neighbours(const ir::KernelIr& kernel, const TargetInfo& target, const Knobs& from)
      : kernel_(kernel), target_(target), from_(from) {}

  std::vector<Knobs> run() {
    if (target_.has_groups) {
      for (const int64_t block : {32, 64, 128, 256, 512, 1024})
        if (block <= int64_t{target_.max_block}) add({{"block", block}});
      for (const int64_t items : {1, 2, 4, 8}) add({{"items", items}});
      return std::move(out_);
    }
    add({{"plain", 1}});
    const Schedule s = make_schedule(kernel_, target_, 1, {.knobs = &from_});
    if (s.panels || !s.dots.empty()) {
      for (Knobs& k : tile_neighbours(s, target_, from_)) out_.push_back(std::move(k));
      return std::move(out_);
    }
    lanes();
    jams();
    const CostModel model(kernel_, target_, kMostLanes);
    if (!model.reduces().empty()) {
      for (const int64_t unroll : {1, 2, 4, 8}) add({{"unroll", unroll}});
      add({{"rlanes", 0}});
    }
    for (const int64_t blocks : {1, 2, 4, 8, 16, 32}) add({{"blocks", blocks}});
    return std::move(out_);
  }

 private:
  void lanes() {
    const CostModel model(kernel_, target_, kMostLanes);
    const int64_t full =
        std::max<int64_t>(target_.vector_bits / 8 / std::max<int64_t>(model.widest(), 1), 1);
    add({{"axis", -1}, {"lanes", 1}});
    for (size_t i = 0; i < kernel_.ranges.size(); ++i) {
      const double trips = CostModel::trips(kernel_.ranges[i]);
      for (const int64_t n : {full / 2, full, 2 * full, 4 * full})
        if (n > 1 && n <= kMostLanes && trips >= static_cast<double>(n))
          add({{"axis", static_cast<int64_t>(i)}, {"lanes", n}});
    }
  }

  void jams() {
    for (size_t i = 0; i < kernel_.ranges.size(); ++i) {
      const std::string name = fmt::format("jam{}", i);
      int64_t others = 1;
      for (const auto& [other, value] : from_.values)
        if (other.starts_with("jam") && other != name) others *= value;
      for (const int64_t jam : {1, 2, 3, 4, 6, 8, 12, 14, 16})
        if (jam * others <= kMostCopies &&
            CostModel::trips(kernel_.ranges[i]) >= static_cast<double>(jam))
          add({{name, jam}});
    }
  }

  void add(const std::vector<std::pair<std::string, int64_t>>& changes) {
    Knobs next = from_;
    for (const auto& [name, value] : changes) next.values[name] = value;
    if (next != from_) out_.push_back(std::move(next));
  }

  const ir::KernelIr& kernel_;
  const TargetInfo& target_;
  const Knobs& from_;
  std::vector<Knobs> out_;
};

}  // namespace

std::vector<Knobs> neighbours(const ir::KernelIr& kernel, const TargetInfo& target,
                              const Knobs& from) {
  return Neighbours(kernel, target, from).run();
}

}  // namespace bm::compiler
