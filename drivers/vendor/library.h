#pragma once
// Vendors' libraries start threads and cannot be unloaded: each is loaded once, for the process.

#include <map>
#include <mutex>
#include <string>

#include "runtime/base/result.h"

namespace bm::vendor {

/// The functions of library `name`, by `open(name)` the first time; a failure is tried again.
/// `Api`: a shared pointer. Thread: safe. Errors: those of `open`.
template <class Api>
Result<Api> load_once(const std::string& name, Result<Api> (*open)(const std::string& name)) {
  struct Loaded {
    std::mutex mutex;
    std::map<std::string, Api> by_name;
  };
  static auto* const loaded = new Loaded;
  const std::lock_guard lock(loaded->mutex);
  Api& slot = loaded->by_name[name];
  if (slot == nullptr) slot = BM_TRY(open(name));
  return slot;
}

}  // namespace bm::vendor
