#pragma once
// A shared library that may or may not be installed.

#include <memory>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace bm::cli {

class Library {
 public:
  /// The first of `names` that can be loaded; `chosen`, when not empty, is the only one tried.
  /// Errors: kNotFound naming what was tried and `remedy`.
  static Result<std::shared_ptr<Library>> open(const std::string& chosen,
                                               const std::vector<std::string>& names,
                                               const std::string& remedy);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  const std::string& name() const { return name_; }
  bool has(const char* symbol) const;
  /// Errors: kNotFound naming library and symbol.
  template <class F>
  Status bind(F*& function, const char* symbol) const {
    void* found = BM_TRY(find(symbol));
    function = reinterpret_cast<F*>(found);
    return {};
  }

 private:
  Library(std::string name, void* handle) : name_(std::move(name)), handle_(handle) {}
  Result<void*> find(const char* symbol) const;
  std::string name_;
  void* handle_;
};

}  // namespace bm::cli
