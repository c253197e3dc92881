// Filters and methods of strings.

#include <algorithm>

#include "models/chat/interpreter.h"
#include "models/chat/text.h"
#include "models/unicode.h"

namespace bm::models::jinja {
namespace {

using Bound = BoundArguments;
using In = Interpreter;

constexpr int64_t kMaxWidth = 100'000;  // of padding

enum class Side : uint8_t { kBoth, kLeft, kRight };

std::string_view strip(std::string_view text, const std::optional<std::string_view>& characters,
                       Side side) {
  const auto drops = [&](std::string_view c) {
    return characters ? characters->find(c) != std::string_view::npos
                      : leading_space(c) == c.size();
  };
  while (side != Side::kRight && !text.empty()) {
    const size_t length = byte_offset(text, 1);
    if (!drops(text.substr(0, length))) break;
    text.remove_prefix(length);
  }
  while (side != Side::kLeft && !text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
    if (!drops(text.substr(begin))) break;
    text = text.substr(0, begin);
  }
  return text;
}

Result<std::string> replace(In& in, std::string_view text, std::string_view from,
                            std::string_view to, int64_t count) {
  std::string out;
  size_t pos = 0;
  for (; count != 0; --count) {
    BM_TRY(in.spend(1 + to.size() / 16));
    if (out.size() > (64U << 20)) return in.error("this string would be too long");
    if (from.empty()) {
      out += to;
      if (pos >= text.size()) break;
      const size_t length = byte_offset(text.substr(pos), 1);
      out += text.substr(pos, length);
      pos += length;
      continue;
    }
    const size_t found = text.find(from, pos);
    if (found == std::string_view::npos) break;
    out += text.substr(pos, found - pos);
    out += to;
    pos = found + from.size();
  }
  out += text.substr(std::min(pos, text.size()));
  return out;
}

Result<Value> split(In& in, std::string_view text, const std::optional<std::string_view>& separator,
                    int64_t count) {
  std::vector<Value> out;
  const auto add = [&](std::string_view part) -> Status {
    out.push_back(BM_TRY(in.string(std::string(part))));
    return {};
  };
  if (separator) {
    if (separator->empty()) return in.error("split needs a separator that is not empty");
    for (; count != 0; --count) {
      const size_t found = text.find(*separator);
      if (found == std::string_view::npos) break;
      BM_TRY(add(text.substr(0, found)));
      text.remove_prefix(found + separator->size());
    }
    BM_TRY(add(text));
    return in.list(std::move(out));
  }
  for (;; --count) {
    text.remove_prefix(leading_space(text));
    if (text.empty()) break;
    if (count == 0) {
      BM_TRY(add(text));
      break;
    }
    size_t end = 0;
    while (end < text.size() &&
           leading_space(text.substr(end, byte_offset(text.substr(end), 1))) == 0)
      end += byte_offset(text.substr(end), 1);
    BM_TRY(add(text.substr(0, end)));
    text.remove_prefix(end);
  }
  return in.list(std::move(out));
}

Result<Value> split_right(In& in, std::string_view text,
                          const std::optional<std::string_view>& separator, int64_t count) {
  if (count < 0) return split(in, text, separator, count);
  std::vector<Value> out;
  const auto add = [&](std::string_view part) -> Status {
    out.push_back(BM_TRY(in.string(std::string(part))));
    return {};
  };
  if (separator && separator->empty())
    return in.error("rsplit needs a separator that is not empty");
  for (;; --count) {
    if (!separator) {
      text.remove_suffix(trailing_space(text));
      if (text.empty()) break;
    }
    if (count == 0) {
      BM_TRY(add(text));
      break;
    }
    if (separator) {
      const size_t found = text.rfind(*separator);
      if (found == std::string_view::npos) {
        BM_TRY(add(text));
        break;
      }
      BM_TRY(add(text.substr(found + separator->size())));
      text = text.substr(0, found);
      continue;
    }
    size_t begin = text.size();
    while (begin > 0 && trailing_space(text.substr(0, begin)) == 0) {
      do --begin;
      while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80);
    }
    BM_TRY(add(text.substr(begin)));
    text = text.substr(0, begin);
  }
  std::ranges::reverse(out);
  return in.list(std::move(out));
}

/// Lines as str.splitlines parts them: at more than newlines. They point into `text`.
std::vector<std::string_view> lines_of(std::string_view text, bool keeps_ends) {
  std::vector<std::string_view> out;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const CodePoint c = decode_utf8(text, pos);
    const bool is_end = (c.value >= 10 && c.value <= 13) || (c.value >= 0x1c && c.value <= 0x1e) ||
                        c.value == 0x85 || c.value == 0x2028 || c.value == 0x2029;
    if (!is_end) {
      pos += c.length;
      continue;
    }
    const size_t next =
        pos + (c.value == '\r' && text.substr(pos + 1).starts_with('\n') ? 2 : c.length);
    out.push_back(text.substr(begin, (keeps_ends ? next : pos) - begin));
    begin = pos = next;
  }
  if (begin < text.size()) out.push_back(text.substr(begin));
  return out;
}

std::string pad(std::string_view text, int64_t left, int64_t right, std::string_view fill) {
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (int64_t i = 0; i < right; ++i) out += fill;
  return out;
}
std::string center(std::string_view text, int64_t length, int64_t width, std::string_view fill) {
  const int64_t missing = std::max<int64_t>(width - length, 0);
  // Python gives the odd place to the left when the width is odd.
  const int64_t left = missing / 2 + (missing & width & 1);
  return pad(text, left, missing - left, fill);
}

Result<int64_t> width_of(In& in, const Value& value) {
  const int64_t width = BM_TRY(in.integer(value, "width"));
  if (width > kMaxWidth) return in.error("a width is at most {}", kMaxWidth);
  return width;
}
Result<std::optional<std::string_view>> optional_text(In& in, const Value* value,
                                                      std::string_view what) {
  if (value == nullptr || value->is_none()) return std::nullopt;
  return BM_TRY(in.string_of(*value, what));
}

// Filters take anything and work on its text.

template <std::string (*function)(std::string_view)>
Result<Value> filter_text(In& in, const Value& self, const Bound&) {
  return in.string(function(BM_TRY(in.text(self))));
}

/// Each word in title case, words being parted by white space, - and opening brackets.
std::string filter_title(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const auto is_gap = [&](size_t pos) {
      return std::string_view("-({[<").find(text[pos]) != std::string_view::npos ||
             leading_space(text.substr(pos, byte_offset(text.substr(pos), 1))) > 0;
    };
    const bool starts_with_gap = is_gap(0);
    size_t end = 0;
    while (end < text.size() && is_gap(end) == starts_with_gap)
      end += byte_offset(text.substr(end), 1);
    const std::string_view word = text.substr(0, end);
    const size_t first = byte_offset(word, 1);
    out += upper(word.substr(0, first)) + lower(word.substr(first));
    text.remove_prefix(end);
  }
  return out;
}

Result<Value> filter_trim(In& in, const Value& self, const Bound& args) {
  const std::string text = BM_TRY(in.text(self));
  const auto characters = BM_TRY(optional_text(in, args[0], "chars"));
  return in.string(std::string(strip(text, characters, Side::kBoth)));
}
Result<Value> filter_replace(In& in, const Value& self, const Bound& args) {
  const int64_t count = args.given(2) != nullptr ? BM_TRY(in.integer(*args[2], "count")) : -1;
  const std::string from = BM_TRY(in.text(*args[0]));
  const std::string to = BM_TRY(in.text(*args[1]));
  const std::string text = BM_TRY(in.text(self));
  return in.string(BM_TRY(replace(in, text, from, to, count)));
}
Result<Value> filter_center(In& in, const Value& self, const Bound& args) {
  const int64_t width = args[0] != nullptr ? BM_TRY(width_of(in, *args[0])) : 80;
  const std::string text = BM_TRY(in.text(self));
  return in.string(center(text, count_code_points(text), width, " "));
}
Result<Value> filter_format(In& in, const Value& self, const Bound& args) {
  const std::string format = BM_TRY(in.text(self));
  if (args.all->named.empty())
    return in.format_percent(format, BM_TRY(in.list(args.all->positional, SequenceType::kTuple)));
  if (!args.all->positional.empty())
    return in.error("format takes values with names or without, not both");
  const Value values = in.heap().dict();
  for (const auto& [name, value] : args.all->named)
    values.dict->set(BM_TRY(in.string(std::string(name))), value);
  return in.format_percent(format, values);
}
Result<Value> filter_indent(In& in, const Value& self, const Bound& args) {
  const std::string text = std::string(BM_TRY(in.string_of(self, "what is indented"))) + '\n';
  std::string step(4, ' ');
  if (args[0] != nullptr)
    step =
        args[0]->is_string()
            ? std::string(args[0]->text())
            : std::string(static_cast<size_t>(std::max<int64_t>(BM_TRY(width_of(in, *args[0])), 0)),
                          ' ');
  const bool has_first = args[1] != nullptr && is_truthy(*args[1]);
  const bool has_blank = args[2] != nullptr && is_truthy(*args[2]);
  std::string out = has_first ? step : "";
  bool is_first = true;
  for (const std::string_view line : lines_of(text, false)) {
    if (!std::exchange(is_first, false)) {
      out += '\n';
      if (has_blank || !line.empty()) out += step;
    }
    out += line;
    BM_TRY(in.spend(1 + step.size() / 16));
    if (out.size() > (64U << 20)) return in.error("this string would be too long");
  }
  return in.string(std::move(out));
}
Result<Value> filter_truncate(In& in, const Value& self, const Bound& args) {
  const int64_t length = args[0] != nullptr ? BM_TRY(in.integer(*args[0], "length")) : 255;
  const std::string_view end = args[2] != nullptr ? BM_TRY(in.string_of(*args[2], "end")) : "...";
  const int64_t leeway = args.given(3) != nullptr ? BM_TRY(in.integer(*args[3], "leeway")) : 5;
  const int64_t kept = length - count_code_points(end);
  if (kept < 0 || leeway < 0)
    return in.error("length is shorter than what marks the end, or leeway is negative");
  // Anything with a length is let through while it is short.
  if (BM_TRY(in.length(self)) <= length + leeway) return self;
  const std::string text(BM_TRY(in.string_of(self, "what is truncated")));
  std::string_view out = std::string_view(text).substr(0, byte_offset(text, kept));
  const bool cuts_words = args[1] != nullptr && is_truthy(*args[1]);
  if (const size_t space = out.rfind(' '); !cuts_words && space != std::string_view::npos)
    out = out.substr(0, space);
  return in.string(std::string(out) + std::string(end));
}
Result<Value> filter_wordcount(In& in, const Value& self, const Bound&) {
  int64_t count = 0;
  bool is_in_word = false;
  for (const char32_t c : code_points(BM_TRY(in.text(self)))) {
    std::string one = from_code_points({c});
    const bool is_word = c == '_' || is_all(one, TextClass::kAlnum);
    count += is_word && !is_in_word ? 1 : 0;
    is_in_word = is_word;
  }
  return Value::of(count);
}
Result<Value> filter_urlencode(In& in, const Value& self, const Bound&) {
  if (!self.is_string() && (self.is_dict() || self.is_sequence()))
    return in.unsupported("urlencode of several values");
  std::string out;
  for (const char c : BM_TRY(in.text(self))) {
    const bool is_plain = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') ||
                          std::string_view("_.-~/").find(c) != std::string_view::npos;
    out += is_plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return in.string(std::move(out));
}

// Methods of str.

template <std::string (*function)(std::string_view)>
Result<Value> method_text(In& in, const Value& self, const Bound&) {
  return in.string(function(self.text()));
}
template <TextClass what>
Result<Value> method_is(In&, const Value& self, const Bound&) {
  return Value::of(is_all(self.text(), what));
}
template <Side side>
Result<Value> method_strip(In& in, const Value& self, const Bound& args) {
  return in.string(
      std::string(strip(self.text(), BM_TRY(optional_text(in, args[0], "chars")), side)));
}
template <bool is_right>
Result<Value> method_split(In& in, const Value& self, const Bound& args) {
  const auto separator = BM_TRY(optional_text(in, args[0], "sep"));
  const int64_t count = args[1] != nullptr ? BM_TRY(in.integer(*args[1], "maxsplit")) : -1;
  return is_right ? split_right(in, self.text(), separator, count)
                  : split(in, self.text(), separator, count);
}
Result<Value> method_splitlines(In& in, const Value& self, const Bound& args) {
  const bool keeps_ends = args[0] != nullptr && is_truthy(*args[0]);
  std::vector<Value> out;
  for (const std::string_view line : lines_of(self.text(), keeps_ends))
    out.push_back(BM_TRY(in.string(std::string(line))));
  return in.list(std::move(out));
}

/// text[start:end] of arguments 1 and 2; nothing when start lies behind the end.
Result<std::optional<std::string_view>> part_of(In& in, const Value& self, const Bound& args) {
  const int64_t count = self.string->length;
  int64_t start = args.given(1) != nullptr ? BM_TRY(in.integer(*args[1], "start")) : 0;
  int64_t end = args.given(2) != nullptr ? BM_TRY(in.integer(*args[2], "end")) : count;
  if (start < 0) start = std::max<int64_t>(start + count, 0);
  if (end < 0) end = std::max<int64_t>(end + count, 0);
  end = std::min(end, count);
  if (start > end) return std::nullopt;
  const size_t begin = byte_offset(self.text(), start);
  return self.text().substr(begin, byte_offset(self.text().substr(begin), end - start));
}
template <bool is_start>
Result<Value> method_affix(In& in, const Value& self, const Bound& args) {
  const auto part = BM_TRY(part_of(in, self, args));
  std::vector<Value> wanted{*args[0]};
  if (args[0]->is_sequence() && args[0]->sequence->type == SequenceType::kTuple)
    wanted = args[0]->sequence->items;
  for (const Value& affix : wanted) {
    const std::string_view text = BM_TRY(in.string_of(affix, "what is looked for"));
    if (part && (is_start ? part->starts_with(text) : part->ends_with(text)))
      return Value::of(true);
  }
  return Value::of(false);
}
template <bool is_right, bool must_exist>
Result<Value> method_find(In& in, const Value& self, const Bound& args) {
  const std::string_view wanted = BM_TRY(in.string_of(*args[0], "what is looked for"));
  const auto part = BM_TRY(part_of(in, self, args));
  size_t found = std::string_view::npos;
  if (part) found = is_right ? part->rfind(wanted) : part->find(wanted);
  if (found == std::string_view::npos) {
    if (must_exist) return in.error("{} is not in this string", quote_name(wanted));
    return Value::of(int64_t{-1});
  }
  const auto offset = static_cast<size_t>(part->data() - self.text().data()) + found;
  return Value::of(count_code_points(self.text().substr(0, offset)));
}
Result<Value> method_count(In& in, const Value& self, const Bound& args) {
  const std::string_view wanted = BM_TRY(in.string_of(*args[0], "what is counted"));
  const auto part = BM_TRY(part_of(in, self, args));
  if (!part) return Value::of(int64_t{0});
  if (wanted.empty()) return Value::of(count_code_points(*part) + 1);
  int64_t count = 0;
  for (size_t pos = part->find(wanted); pos != std::string_view::npos;
       pos = part->find(wanted, pos + wanted.size()))
    ++count;
  return Value::of(count);
}
Result<Value> method_replace(In& in, const Value& self, const Bound& args) {
  const std::string_view from = BM_TRY(in.string_of(*args[0], "what is replaced"));
  const std::string_view to = BM_TRY(in.string_of(*args[1], "what replaces it"));
  const int64_t count = args[2] != nullptr ? BM_TRY(in.integer(*args[2], "count")) : -1;
  return in.string(BM_TRY(replace(in, self.text(), from, to, count)));
}
Result<Value> method_join(In& in, const Value& self, const Bound& args) {
  std::string out;
  bool is_first = true;
  for (const Value& value : BM_TRY(in.items(*args[0]))) {
    if (!std::exchange(is_first, false)) out += self.text();
    out += BM_TRY(in.string_of(value, "what is joined"));
    BM_TRY(in.spend(1 + self.text().size() / 16));
    if (out.size() > (64U << 20)) return in.error("this string would be too long");
  }
  return in.string(std::move(out));
}
template <Side side>
Result<Value> method_pad(In& in, const Value& self, const Bound& args) {
  const int64_t width = BM_TRY(width_of(in, *args[0]));
  const std::string_view fill =
      args[1] != nullptr ? BM_TRY(in.string_of(*args[1], "fillchar")) : " ";
  if (count_code_points(fill) != 1)
    return in.error("what a string is filled up with is one character");
  const int64_t length = self.string->length;
  const int64_t missing = std::max<int64_t>(width - length, 0);
  if (side == Side::kBoth) return in.string(center(self.text(), length, width, fill));
  return in.string(pad(self.text(), side == Side::kRight ? missing : 0,
                       side == Side::kLeft ? missing : 0, fill));
}
Result<Value> method_zfill(In& in, const Value& self, const Bound& args) {
  const int64_t width = BM_TRY(width_of(in, *args[0]));
  const bool has_sign = self.text().starts_with('-') || self.text().starts_with('+');
  const std::string_view digits = self.text().substr(has_sign ? 1 : 0);
  return in.string(std::string(self.text().substr(0, has_sign ? 1 : 0)) +
                   pad(digits, std::max<int64_t>(width - self.string->length, 0), 0, "0"));
}
template <bool is_right>
Result<Value> method_partition(In& in, const Value& self, const Bound& args) {
  const std::string_view separator = BM_TRY(in.string_of(*args[0], "a separator"));
  if (separator.empty()) return in.error("the separator is empty");
  const std::string_view text = self.text();
  const size_t found = is_right ? text.rfind(separator) : text.find(separator);
  std::array<std::string_view, 3> parts{text, "", ""};
  if (found != std::string_view::npos)
    parts = {text.substr(0, found), separator, text.substr(found + separator.size())};
  else if (is_right)
    parts = {"", "", text};
  std::vector<Value> out;
  for (const std::string_view part : parts) out.push_back(BM_TRY(in.string(std::string(part))));
  return in.list(std::move(out), SequenceType::kTuple);
}
template <bool is_prefix>
Result<Value> method_remove(In& in, const Value& self, const Bound& args) {
  const std::string_view affix = BM_TRY(in.string_of(*args[0], "what is removed"));
  std::string_view text = self.text();
  if (is_prefix && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (!is_prefix && text.ends_with(affix)) text.remove_suffix(affix.size());
  return in.string(std::string(text));
}

/// str.format with plain fields: {}, {0} and {name}.
Result<Value> method_format(In& in, const Value& self, const Bound& args) {
  const std::string_view text = self.text();
  std::string out;
  size_t automatic = 0;
  for (size_t pos = 0; pos < text.size(); ++pos) {
    const char c = text[pos];
    if ((c == '{' || c == '}') && pos + 1 < text.size() && text[pos + 1] == c) {
      out += c;
      ++pos;
      continue;
    }
    if (c == '}') return in.error("a single }} in a format");
    if (c != '{') {
      out += c;
      continue;
    }
    const size_t end = text.find('}', pos);
    if (end == std::string_view::npos) return in.error("a field of this format has no end");
    const std::string_view field = text.substr(pos + 1, end - pos - 1);
    pos = end;
    if (field.find_first_of(".[:!{") != std::string_view::npos)
      return in.unsupported("fields with attributes or format, such as {}, are not supported",
                            quote_name(field));
    const Value* value = nullptr;
    const bool is_number =
        field.find_first_not_of("0123456789") == std::string_view::npos && field.size() < 6;
    if (is_number) {
      const size_t index = field.empty() ? automatic++ : std::stoul(std::string(field));
      if (index < args.all->positional.size()) value = &args.all->positional[index];
    }
    for (const auto& [name, named] : args.all->named)
      if (name == field) value = &named;
    if (value == nullptr) return in.error("the format has no value for {}", quote_name(field));
    BM_TRY(in.append_text(out, *value));
  }
  return in.string(std::move(out));
}

}  // namespace

const FunctionTable& text_filters() {
  static const FunctionTable table = {
      {"upper", {}, 0, filter_text<upper>},
      {"lower", {}, 0, filter_text<lower>},
      {"capitalize", {}, 0, filter_text<capitalize>},
      {"title", {}, 0, filter_text<filter_title>},
      {"e", {}, 0, filter_text<escape_html>},
      {"escape", {}, 0, filter_text<escape_html>},
      {"forceescape", {}, 0, filter_text<escape_html>},
      {"trim", {"chars"}, 0, filter_trim},
      {"replace", {"old", "new", "count"}, 2, filter_replace},
      {"center", {"width"}, 0, filter_center},
      {"format", {}, 0, filter_format, true},
      {"indent", {"width", "first", "blank"}, 0, filter_indent},
      {"truncate", {"length", "killwords", "end", "leeway"}, 0, filter_truncate},
      {"wordcount", {}, 0, filter_wordcount},
      {"urlencode", {}, 0, filter_urlencode},
  };
  return table;
}

const FunctionTable& string_methods() {
  static const FunctionTable table = {
      {"strip", {""}, 0, method_strip<Side::kBoth>},
      {"lstrip", {""}, 0, method_strip<Side::kLeft>},
      {"rstrip", {""}, 0, method_strip<Side::kRight>},
      {"split", {"sep", "maxsplit"}, 0, method_split<false>},
      {"rsplit", {"sep", "maxsplit"}, 0, method_split<true>},
      {"splitlines", {"keepends"}, 0, method_splitlines},
      {"startswith", {"", "", ""}, 1, method_affix<true>},
      {"endswith", {"", "", ""}, 1, method_affix<false>},
      {"replace", {"", "", ""}, 2, method_replace},
      {"upper", {}, 0, method_text<upper>},
      {"lower", {}, 0, method_text<lower>},
      {"title", {}, 0, method_text<title>},
      {"capitalize", {}, 0, method_text<capitalize>},
      {"swapcase", {}, 0, method_text<swap_case>},
      {"find", {"", "", ""}, 1, method_find<false, false>},
      {"rfind", {"", "", ""}, 1, method_find<true, false>},
      {"index", {"", "", ""}, 1, method_find<false, true>},
      {"rindex", {"", "", ""}, 1, method_find<true, true>},
      {"count", {"", "", ""}, 1, method_count},
      {"join", {""}, 1, method_join},
      {"format", {}, 0, method_format, true},
      {"isalpha", {}, 0, method_is<TextClass::kAlpha>},
      {"isdigit", {}, 0, method_is<TextClass::kDigit>},
      {"isdecimal", {}, 0, method_is<TextClass::kDecimal>},
      {"isnumeric", {}, 0, method_is<TextClass::kNumeric>},
      {"isalnum", {}, 0, method_is<TextClass::kAlnum>},
      {"isspace", {}, 0, method_is<TextClass::kSpace>},
      {"isupper", {}, 0, method_is<TextClass::kUpper>},
      {"islower", {}, 0, method_is<TextClass::kLower>},
      {"ljust", {"", ""}, 1, method_pad<Side::kLeft>},
      {"rjust", {"", ""}, 1, method_pad<Side::kRight>},
      {"center", {"", ""}, 1, method_pad<Side::kBoth>},
      {"zfill", {""}, 1, method_zfill},
      {"partition", {""}, 1, method_partition<false>},
      {"rpartition", {""}, 1, method_partition<true>},
      {"removeprefix", {""}, 1, method_remove<true>},
      {"removesuffix", {""}, 1, method_remove<false>},
  };
  return table;
}

}  // namespace bm::models::jinja
