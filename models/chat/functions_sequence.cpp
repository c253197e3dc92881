// Filters of lists and dicts, and the methods of these.

#include <algorithm>

#include "models/chat/interpreter.h"
#include "models/chat/text.h"

namespace bm::models::jinja {
namespace {

using Bound = BoundArguments;
using In = Interpreter;

Result<Value> generator(In& in, std::vector<Value> items) {
  return in.list(std::move(items), SequenceType::kGenerator);
}
bool flag(const Value* value) { return value != nullptr && is_truthy(*value); }

Result<Value> filter_length(In& in, const Value& self, const Bound&) {
  return Value::of(BM_TRY(in.length(self)));
}
Result<Value> filter_list(In& in, const Value& self, const Bound&) {
  return in.list(BM_TRY(in.items(self)));
}

Result<Value> filter_first(In& in, const Value& self, const Bound&) {
  if (self.is_sequence() && self.sequence->type == SequenceType::kGenerator) {
    Sequence& sequence = *self.sequence;
    if (sequence.next < sequence.items.size()) return sequence.items[sequence.next++];
    return in.undefined("first of nothing");
  }
  const std::vector<Value> all = BM_TRY(in.items(self));
  return all.empty() ? in.undefined("first of nothing") : all.front();
}
bool is_reversible(const Value& value) {
  return !(value.is_sequence() && value.sequence->type == SequenceType::kGenerator);
}
Result<Value> filter_last(In& in, const Value& self, const Bound&) {
  if (!is_reversible(self))
    return in.error("last needs a list, not what a filter gives; |list makes one");
  const std::vector<Value> all = BM_TRY(in.items(self));
  return all.empty() ? in.undefined("last of nothing") : all.back();
}
Result<Value> filter_reverse(In& in, const Value& self, const Bound&) {
  std::vector<Value> all = BM_TRY(in.items(self));
  std::ranges::reverse(all);
  if (!self.is_string()) return generator(in, std::move(all));
  std::string out;
  for (const Value& part : all) out += part.text();
  return in.string(std::move(out));
}

Result<Value> filter_join(In& in, const Value& self, const Bound& args) {
  const std::string separator = args[0] != nullptr ? BM_TRY(in.text(*args[0])) : "";
  std::string out;
  bool is_first = true;
  for (const Value& value : BM_TRY(in.items(self))) {
    if (!std::exchange(is_first, false)) out += separator;
    BM_TRY(in.spend(1 + separator.size() / 16));
    const Value part = args.given(1) != nullptr ? BM_TRY(in.path(value, *args[1])) : value;
    BM_TRY(in.append_text(out, part));
    if (out.size() > (64U << 20)) return in.error("this string would be too long");
  }
  return in.string(std::move(out));
}

Result<Value> filter_items(In& in, const Value& self, const Bound&) {
  if (self.is_undefined()) return generator(in, {});
  if (!self.is_dict()) return in.error("items needs a dict, not {}", type_name(self));
  std::vector<Value> out;
  for (const auto& [key, value] : self.dict->entries)
    out.push_back(BM_TRY(in.list({key, value}, SequenceType::kTuple)));
  return generator(in, std::move(out));
}

/// What values are compared by: lower case unless asked for otherwise.
Result<Value> sort_key(In& in, const Value& value, bool is_case_sensitive) {
  if (is_case_sensitive || !value.is_string()) return value;
  return in.string(lower(value.text()));
}

struct Keyed {
  std::vector<Value> keys;
  Value value;
};

/// Stable, by Python's order; the first failure of a comparison is returned.
Status sort_keyed(In& in, std::vector<Keyed>& all, bool is_reversed) {
  Status status;
  const auto before = [&](const Keyed& a, const Keyed& b) {
    for (size_t i = 0; status && i < a.keys.size(); ++i) {
      if (i + 1 < a.keys.size() && equals(a.keys[i], b.keys[i], in.budget())) continue;
      const auto is_less =
          is_reversed ? in.less(b.keys[i], a.keys[i]) : in.less(a.keys[i], b.keys[i]);
      if (is_less) return *is_less;
      status = tl::unexpected(is_less.error());
    }
    return false;
  };
  // A merge that asks for each pair once keeps going, in any order, when a comparison has failed.
  std::vector<Keyed> buffer(all.size());
  for (size_t width = 1; status && width < all.size(); width *= 2) {
    for (size_t begin = 0; begin < all.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, all.size());
      const size_t end = std::min(begin + 2 * width, all.size());
      size_t left = begin;
      size_t right = middle;
      for (size_t out = begin; out < end; ++out) {
        const bool takes_right = left == middle || (right < end && before(all[right], all[left]));
        buffer[out] = std::move(all[takes_right ? right++ : left++]);
      }
    }
    all.swap(buffer);
  }
  return status;
}

Result<Value> filter_sort(In& in, const Value& self, const Bound& args) {
  const bool is_case_sensitive = flag(args[1]);
  std::vector<Value> paths;
  if (args.given(2) != nullptr) {
    if (args[2]->is_string()) {
      const std::string_view names = args[2]->text();
      for (size_t begin = 0; begin <= names.size();) {
        const size_t end = std::min(names.find(',', begin), names.size());
        paths.push_back(BM_TRY(in.string(std::string(names.substr(begin, end - begin)))));
        begin = end + 1;
      }
    } else {
      paths.push_back(*args[2]);
    }
  }
  std::vector<Keyed> all;
  for (const Value& value : BM_TRY(in.items(self))) {
    Keyed keyed{.keys = {}, .value = value};
    for (const Value& path : paths) {
      const Value part = BM_TRY(in.path(value, path));
      keyed.keys.push_back(BM_TRY(sort_key(in, part, is_case_sensitive)));
    }
    if (paths.empty()) keyed.keys.push_back(BM_TRY(sort_key(in, value, is_case_sensitive)));
    all.push_back(std::move(keyed));
  }
  BM_TRY(sort_keyed(in, all, flag(args[0])));
  std::vector<Value> out;
  for (const Keyed& keyed : all) out.push_back(keyed.value);
  return in.list(std::move(out));
}

Result<Value> filter_dictsort(In& in, const Value& self, const Bound& args) {
  if (!self.is_dict()) return in.error("dictsort needs a dict, not {}", type_name(self));
  const std::string_view by = args[1] != nullptr ? BM_TRY(in.string_of(*args[1], "by")) : "key";
  if (by != "key" && by != "value") return in.error("by is key or value");
  std::vector<Keyed> all;
  for (const auto& [key, value] : self.dict->entries) {
    const Value pair = BM_TRY(in.list({key, value}, SequenceType::kTuple));
    all.push_back({{BM_TRY(sort_key(in, by == "key" ? key : value, flag(args[0])))}, pair});
  }
  BM_TRY(sort_keyed(in, all, flag(args[2])));
  std::vector<Value> out;
  for (const Keyed& keyed : all) out.push_back(keyed.value);
  return in.list(std::move(out));
}

Result<Value> filter_unique(In& in, const Value& self, const Bound& args) {
  const Value seen = in.heap().dict();
  std::vector<Value> out;
  for (const Value& value : BM_TRY(in.items(self))) {
    const Value part = args.given(1) != nullptr ? BM_TRY(in.path(value, *args[1])) : value;
    const Value key = BM_TRY(sort_key(in, part, flag(args[0])));
    if (!is_hashable(key)) return in.unsupported("unique of values of type {}", type_name(key));
    if (seen.dict->find(key) != nullptr) continue;
    in.heap().charge(4 * sizeof(Value));
    seen.dict->set(key, value);
    out.push_back(value);
  }
  return generator(in, std::move(out));
}

template <bool wants_greatest>
Result<Value> filter_extreme(In& in, const Value& self, const Bound& args) {
  std::optional<Value> best;
  Value best_key;
  for (const Value& value : BM_TRY(in.items(self))) {
    const Value part = args.given(1) != nullptr ? BM_TRY(in.path(value, *args[1])) : value;
    const Value key = BM_TRY(sort_key(in, part, flag(args[0])));
    const bool is_better =
        !best || BM_TRY(wants_greatest ? in.less(best_key, key) : in.less(key, best_key));
    if (!is_better) continue;
    best = value;
    best_key = key;
  }
  return best ? *best : in.undefined("there is nothing to choose from");
}

Result<Value> filter_sum(In& in, const Value& self, const Bound& args) {
  Value total = args[1] != nullptr ? *args[1] : Value::of(int64_t{0});
  if (total.is_string()) return in.error("sum does not join strings");
  for (const Value& value : BM_TRY(in.items(self))) {
    const Value part = args.given(0) != nullptr ? BM_TRY(in.path(value, *args[0])) : value;
    total = BM_TRY(in.add(total, part));
  }
  return total;
}

Result<Value> filter_batch(In& in, const Value& self, const Bound& args) {
  const int64_t count = BM_TRY(in.integer(*args[0], "linecount"));
  if (count > 100'000) return in.error("linecount is at most 100000");
  std::vector<Value> out;
  std::vector<Value> row;
  for (const Value& value : BM_TRY(in.items(self))) {
    if (static_cast<int64_t>(row.size()) == count) {
      out.push_back(BM_TRY(in.list(std::move(row))));
      row.clear();
    }
    row.push_back(value);
  }
  if (!row.empty()) {
    while (args.given(1) != nullptr && static_cast<int64_t>(row.size()) < count)
      row.push_back(*args[1]);
    out.push_back(BM_TRY(in.list(std::move(row))));
  }
  return generator(in, std::move(out));
}

Result<Value> filter_slice(In& in, const Value& self, const Bound& args) {
  const std::vector<Value> all = BM_TRY(in.items(self));
  const int64_t slices = BM_TRY(in.integer(*args[0], "slices"));
  if (slices == 0) return in.error("slices is 0");
  if (slices > 100'000) return in.error("slices is at most 100000");
  const auto count = static_cast<int64_t>(all.size());
  std::vector<Value> out;
  int64_t begin = 0;
  for (int64_t i = 0; i < slices; ++i) {
    const bool is_long = i < count % slices;
    const int64_t end = begin + count / slices + (is_long ? 1 : 0);
    std::vector<Value> row(all.begin() + begin, all.begin() + end);
    if (args.given(1) != nullptr && !is_long) row.push_back(*args[1]);
    out.push_back(BM_TRY(in.list(std::move(row))));
    begin = end;
  }
  return generator(in, std::move(out));
}

/// Arguments from `first` on.
Arguments rest_of(const Arguments& all, size_t first) {
  Arguments out;
  for (size_t i = first; i < all.positional.size(); ++i)
    out.positional.push_back(all.positional[i]);
  out.named = all.named;
  return out;
}

Result<Value> filter_map(In& in, const Value& self, const Bound& args) {
  // Jinja looks at neither arguments nor type of what is false, none included.
  if (!is_truthy(self)) return generator(in, {});
  std::vector<Value> out;
  const std::vector<Value> all = BM_TRY(in.items(self));
  if (args.all->positional.empty()) {
    const Value* attribute = nullptr;
    const Value* fallback = nullptr;
    for (const auto& [name, value] : args.all->named) {
      if (name == "attribute")
        attribute = &value;
      else if (name == "default")
        fallback = &value;
      else
        return in.error("map has no argument {}", quote_name(name));
    }
    if (attribute == nullptr) return in.error("map needs the name of a filter, or attribute=");
    if (fallback != nullptr && fallback->is_none()) fallback = nullptr;
    for (const Value& value : all) out.push_back(BM_TRY(in.path(value, *attribute, fallback)));
    return generator(in, std::move(out));
  }
  const std::string_view name =
      BM_TRY(in.string_of(args.all->positional[0], "the name of a filter"));
  const FunctionRow* const row = find_filter(name);
  if (row == nullptr) return in.unsupported("the filter {} is not supported", quote_name(name));
  const Arguments rest = rest_of(*args.all, 1);
  for (const Value& value : all) out.push_back(BM_TRY(in.apply(*row, value, rest)));
  return generator(in, std::move(out));
}

/// select, reject and their twins for attributes.
template <bool keeps, bool has_attribute>
Result<Value> filter_select(In& in, const Value& self, const Bound& args) {
  if (!is_truthy(self)) return generator(in, {});
  const auto& given = args.all->positional;
  constexpr size_t kTest = has_attribute ? 1 : 0;
  if (given.size() < kTest) return in.error("the name of an attribute is missing");
  const FunctionRow* row = nullptr;
  if (given.size() > kTest) {
    const std::string_view name = BM_TRY(in.string_of(given[kTest], "the name of a test"));
    row = find_test(name);
    if (row == nullptr) return in.unsupported("the test {} is not supported", quote_name(name));
  }
  const Arguments rest = rest_of(*args.all, kTest + 1);
  std::vector<Value> out;
  for (const Value& value : BM_TRY(in.items(self))) {
    const Value part = has_attribute ? BM_TRY(in.path(value, given[0])) : value;
    const Value holds = row != nullptr ? BM_TRY(in.apply(*row, part, rest)) : part;
    if (is_truthy(holds) == keeps) out.push_back(value);
  }
  return generator(in, std::move(out));
}

Result<Value> dict_items(In& in, const Value& self, const Bound&) {
  std::vector<Value> out;
  for (const auto& [key, value] : self.dict->entries)
    out.push_back(BM_TRY(in.list({key, value}, SequenceType::kTuple)));
  return in.list(std::move(out), SequenceType::kItems);
}
Result<Value> dict_keys(In& in, const Value& self, const Bound&) {
  return in.list(BM_TRY(in.items(self)), SequenceType::kKeys);
}
Result<Value> dict_values(In& in, const Value& self, const Bound&) {
  std::vector<Value> out;
  for (const auto& [key, value] : self.dict->entries) out.push_back(value);
  return in.list(std::move(out), SequenceType::kValues);
}
Result<Value> dict_get(In&, const Value& self, const Bound& args) {
  if (const Value* const value = self.dict->find(*args[0])) return *value;
  return args[1] != nullptr ? *args[1] : Value::none();
}
Result<Value> dict_copy(In& in, const Value& self, const Bound&) {
  const Value out = in.heap().dict();
  *out.dict = *self.dict;
  in.heap().charge(self.dict->entries.size() * 4 * sizeof(Value));
  BM_TRY(in.spend(self.dict->entries.size()));
  return out;
}

Result<Value> list_count(In& in, const Value& self, const Bound& args) {
  int64_t count = 0;
  for (const Value& value : BM_TRY(in.items(self)))
    count += equals(value, *args[0], in.budget()) ? 1 : 0;
  return Value::of(count);
}
Result<Value> list_index(In& in, const Value& self, const Bound& args) {
  const std::vector<Value> all = BM_TRY(in.items(self));
  for (size_t i = 0; i < all.size(); ++i)
    if (equals(all[i], *args[0], in.budget())) return Value::of(static_cast<int64_t>(i));
  return in.error("the list does not hold this value");
}
Result<Value> list_copy(In& in, const Value& self, const Bound&) {
  return in.list(BM_TRY(in.items(self)));
}

Result<Value> loop_cycle(In& in, const Value& self, const Bound& args) {
  const auto& all = args.all->positional;
  if (all.empty()) return in.error("loop.cycle needs values");
  return all[self.loop->index % all.size()];
}
Result<Value> loop_changed(In& in, const Value& self, const Bound& args) {
  Sequence* const now = in.heap().sequence(args.all->positional, SequenceType::kTuple);
  Sequence* const last = std::exchange(self.loop->last_changed, now);
  if (last == nullptr || last->items.size() != now->items.size()) return Value::of(true);
  for (size_t i = 0; i < now->items.size(); ++i)
    if (!equals(last->items[i], now->items[i], in.budget())) return Value::of(true);
  return Value::of(false);
}

}  // namespace

const FunctionTable& sequence_filters() {
  static const FunctionTable table = {
      {"length", {}, 0, filter_length},
      {"count", {}, 0, filter_length},
      {"list", {}, 0, filter_list},
      {"first", {}, 0, filter_first},
      {"last", {}, 0, filter_last},
      {"reverse", {}, 0, filter_reverse},
      {"join", {"d", "attribute"}, 0, filter_join},
      {"items", {}, 0, filter_items},
      {"sort", {"reverse", "case_sensitive", "attribute"}, 0, filter_sort},
      {"dictsort", {"case_sensitive", "by", "reverse"}, 0, filter_dictsort},
      {"unique", {"case_sensitive", "attribute"}, 0, filter_unique},
      {"min", {"case_sensitive", "attribute"}, 0, filter_extreme<false>},
      {"max", {"case_sensitive", "attribute"}, 0, filter_extreme<true>},
      {"sum", {"attribute", "start"}, 0, filter_sum},
      {"batch", {"linecount", "fill_with"}, 1, filter_batch},
      {"slice", {"slices", "fill_with"}, 1, filter_slice},
      {"map", {}, 0, filter_map, true},
      {"select", {}, 0, filter_select<true, false>, true},
      {"reject", {}, 0, filter_select<false, false>, true},
      {"selectattr", {}, 0, filter_select<true, true>, true},
      {"rejectattr", {}, 0, filter_select<false, true>, true},
  };
  return table;
}

const FunctionTable& other_methods() {
  static const FunctionTable table = {
      {"dict.items", {}, 0, dict_items},       {"dict.keys", {}, 0, dict_keys},
      {"dict.values", {}, 0, dict_values},     {"dict.get", {"", ""}, 1, dict_get},
      {"dict.copy", {}, 0, dict_copy},         {"list.count", {""}, 1, list_count},
      {"list.index", {""}, 1, list_index},     {"list.copy", {}, 0, list_copy},
      {"loop.cycle", {}, 0, loop_cycle, true}, {"loop.changed", {}, 0, loop_changed, true},
  };
  return table;
}

}  // namespace bm::models::jinja
