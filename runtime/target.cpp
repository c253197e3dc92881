#include "runtime/target.h"

#include <algorithm>
#include <optional>

#include <fmt/ranges.h>

namespace bm::runtime {
namespace {

// Locale-free on purpose: names are ASCII and a Turkish locale must not change what "cli" means.
constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
constexpr char to_upper(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}
constexpr bool is_letter(char c) { return to_upper(c) >= 'A' && to_upper(c) <= 'Z'; }

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_digit);
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

/// Text up to `separator`; `rest` becomes what follows it, or nullopt when there is none.
std::string_view cut(std::string_view text, char separator, std::optional<std::string_view>& rest) {
  const size_t at = text.find(separator);
  rest = at == text.npos ? std::nullopt : std::optional(text.substr(at + 1));
  return text.substr(0, at);
}

Result<std::string> parse_name(std::string_view what, std::string_view name,
                               std::string_view whole) {
  if (name.empty())
    return fail(Code::kInvalidArgument, "target \"{}\" has no {} name", whole, what);
  const bool ok = is_letter(name.front()) && std::all_of(name.begin(), name.end(), [](char c) {
                    return is_letter(c) || is_digit(c) || c == '_';
                  });
  if (!ok) {
    return fail(
        Code::kInvalidArgument,
        "\"{}\" in target \"{}\" is not a {} name: letters, digits and '_' only, letter first",
        name, whole, what);
  }
  return upper_case(name);
}

Result<uint32_t> parse_number(std::string_view text, std::string_view whole) {
  if (!is_number(text))
    return fail(Code::kInvalidArgument, "\"{}\" in target \"{}\" is not a unit number", text,
                whole);
  uint32_t value = 0;
  for (const char c : text) {
    value = value * 10 + static_cast<uint32_t>(c - '0');
    if (value >= kMaxUnits) {
      return fail(Code::kInvalidArgument, "unit {} in target \"{}\" is above the limit of {}", text,
                  whole, kMaxUnits - 1);
    }
  }
  return value;
}

/// "0-3", "0,2", "0-1,4".
Result<std::vector<uint32_t>> parse_indices(std::string_view text, std::string_view whole) {
  std::vector<uint32_t> indices;
  std::optional<std::string_view> rest = text;
  while (rest) {
    const std::string_view item = cut(*rest, ',', rest);
    std::optional<std::string_view> last_text;
    const uint32_t first = BM_TRY(parse_number(cut(item, '-', last_text), whole));
    const uint32_t last = last_text ? BM_TRY(parse_number(*last_text, whole)) : first;
    if (last < first) {
      return fail(Code::kInvalidArgument, "range \"{}\" in target \"{}\" runs backwards", item,
                  whole);
    }
    for (uint32_t index = first; index <= last; ++index) {
      if (std::find(indices.begin(), indices.end(), index) != indices.end())
        return fail(Code::kInvalidArgument, "unit {} is named twice in target \"{}\"", index,
                    whole);
      indices.push_back(index);
    }
  }
  return indices;
}

/// Where the interface part ends: the first '+' with at most one colon before it. An arch may hold
/// '+' too ("gfx90a:sramecc+"), but at least two colons come before an arch.
size_t interface_end(std::string_view text) {
  const size_t plus = text.find('+');
  if (plus == text.npos) return text.npos;
  return std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(plus), ':') <= 1
             ? plus
             : text.npos;
}

Status check_known(std::string_view device, std::span<const std::string_view> known) {
  if (known.empty()) return {};
  for (const std::string_view name : known)
    if (upper_case(name) == device) return {};
  std::string help = did_you_mean(device, known);
  if (help.empty()) help = fmt::format(" (there are: {})", fmt::join(known, " "));
  return fail(Code::kInvalidArgument, "unknown device \"{}\"{}", device, help);
}

Result<Target> parse_one(std::string_view whole, std::span<const std::string_view> known) {
  Target target;
  for (const char c : whole) {
    if (static_cast<unsigned char>(c) <= ' ' || c == 0x7f) {
      return fail(Code::kInvalidArgument, "target \"{}\" holds a blank or control character",
                  whole);
    }
  }
  std::string_view text = whole;
  if (const size_t plus = interface_end(text); plus != text.npos) {
    std::optional<std::string_view> indices;
    target.interface =
        BM_TRY(parse_name("interface", cut(text.substr(0, plus), ':', indices), whole));
    if (indices) target.indices = BM_TRY(parse_indices(*indices, whole));
    text.remove_prefix(plus + 1);
  }
  std::optional<std::string_view> rest;
  target.device = BM_TRY(parse_name("device", cut(text, ':', rest), whole));
  BM_TRY(check_known(target.device, known));
  if (!rest) return target;
  std::string_view part = cut(*rest, ':', rest);
  if (!part.empty() && is_digit(part.front())) {
    target.unit = BM_TRY(parse_number(part, whole));
    if (!rest) return target;
    part = cut(*rest, ':', rest);
  }
  if (!part.empty()) target.renderer = BM_TRY(parse_name("renderer", part, whole));
  if (rest) {
    // Devices without interfaces may leave that field empty: "NULL:PTX::sm_90", "NULL:::sm_90".
    if (rest->starts_with(':')) rest->remove_prefix(1);
    target.arch = *rest;
  }
  return target;
}

std::string print_indices(const std::vector<uint32_t>& indices) {
  std::string out;
  for (size_t i = 0; i < indices.size();) {
    size_t end = i + 1;
    while (end < indices.size() && indices[end] == indices[end - 1] + 1) ++end;
    out += fmt::format("{}{}", out.empty() ? "" : ",", indices[i]);
    if (end - i > 1) out += fmt::format("-{}", indices[end - 1]);
    i = end;
  }
  return out;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replace = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replace, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string upper_case(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), to_upper);
  return out;
}

std::vector<std::string_view> split_words(std::string_view list) {
  std::vector<std::string_view> words;
  while (!list.empty()) {
    const size_t end = std::min(list.find(' '), list.size());
    if (end > 0) words.push_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return words;
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates) {
  constexpr size_t kLongestWord = 64;  // bounds the table for hostile input
  if (word.size() > kLongestWord) return "";
  const std::string wanted = upper_case(word);
  std::string_view best;
  size_t best_distance = std::max<size_t>(2, word.size() / 2) + 1;
  for (const std::string_view candidate : candidates) {
    const size_t distance = edit_distance(wanted, upper_case(candidate));
    // A distance as long as the word shares nothing with it.
    if (distance < best_distance && distance < std::max(word.size(), candidate.size())) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best.empty() ? "" : fmt::format(", did you mean \"{}\"?", best);
}

Result<std::vector<Target>> parse_targets(std::string_view text,
                                          std::span<const std::string_view> known_devices) {
  std::vector<Target> targets;
  std::optional<std::string_view> rest = text;
  while (rest) {
    const std::string_view part = trim(cut(*rest, ';', rest));
    if (part.empty()) return fail(Code::kInvalidArgument, "empty target in \"{}\"", text);
    targets.push_back(BM_TRY(parse_one(part, known_devices)));
  }
  return targets;
}

Result<Target> parse_target(std::string_view text,
                            std::span<const std::string_view> known_devices) {
  auto targets = BM_TRY(parse_targets(text, known_devices));
  if (targets.size() != 1)
    return fail(Code::kInvalidArgument, "\"{}\" names {} targets, expected one", text,
                targets.size());
  return std::move(targets.front());
}

std::string to_string(const Target& target) {
  std::string out;
  if (!target.interface.empty()) {
    out = target.interface;
    if (!target.indices.empty()) out += ":" + print_indices(target.indices);
    out += '+';
  }
  out += target.device;
  if (target.unit != 0) out += fmt::format(":{}", target.unit);
  if (!target.renderer.empty() || !target.arch.empty()) out += ":" + target.renderer;
  if (!target.arch.empty()) out += ":" + target.arch;
  return out;
}

}  // namespace bm::runtime
