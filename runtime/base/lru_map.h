#pragma once
// A map that forgets what was not asked for longest, up to a limit.

#include <cstddef>
#include <functional>
#include <list>
#include <unordered_map>
#include <utility>
#include <vector>

namespace bm {

/// Not thread-safe. Values are shared pointers: one that is held elsewhere too is not dropped, as
/// its memory would stay and a second copy be made; it counts as just used instead.
template <class Key, class Value, class Hash = std::hash<Key>>
class LruMap {
 public:
  explicit LruMap(size_t limit) : limit_(limit) {}

  /// The value, now the most recently used one; a null value where there is none.
  Value find(const Key& key) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return {};
    order_.splice(order_.begin(), order_, found->second.place);
    return found->second.value;
  }

  /// The value that is there already, else `value`. What had to go for it is appended to `dropped`.
  Value add(const Key& key, Value value, std::vector<Value>* dropped) {
    if (Value known = find(key)) return known;
    order_.push_front(key);
    entries_.emplace(key, Entry{value, order_.begin()});
    shrink(dropped);
    return value;
  }

  void set_limit(size_t limit, std::vector<Value>* dropped) {
    limit_ = limit;
    shrink(dropped);
  }
  size_t size() const { return entries_.size(); }
  void clear() {
    entries_.clear();
    order_.clear();
  }

 private:
  struct Entry {
    Value value;
    typename std::list<Key>::iterator place;
  };

  void shrink(std::vector<Value>* dropped) {
    // Each entry is looked at once: the limit gives way to values in use.
    for (size_t left = entries_.size(); left > 0 && entries_.size() > limit_; --left) {
      const auto oldest = entries_.find(order_.back());
      if (oldest->second.value.use_count() > 1) {
        order_.splice(order_.begin(), order_, oldest->second.place);
        continue;
      }
      dropped->push_back(std::move(oldest->second.value));
      entries_.erase(oldest);
      order_.pop_back();
    }
  }

  size_t limit_;
  std::list<Key> order_;  ///< most recently used first
  std::unordered_map<Key, Entry, Hash> entries_;
};

}  // namespace bm
