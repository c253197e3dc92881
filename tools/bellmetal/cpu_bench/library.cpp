#include "tools/bellmetal/cpu_bench/library.h"

#include <dlfcn.h>

namespace bm::cli {

Result<std::shared_ptr<Library>> Library::open(const std::string& chosen,
                                               const std::vector<std::string>& names,
                                               const std::string& remedy) {
  std::string tried;
  for (const std::string& name : chosen.empty() ? names : std::vector<std::string>{chosen}) {
    if (void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL))
      return std::shared_ptr<Library>(new Library(name, handle));
    tried += (tried.empty() ? "" : ", ") + name;
  }
  return fail(Code::kNotFound, "{} could not be loaded; {}", tried, remedy);
}

// Worker threads of these libraries may still run when the program ends: they stay loaded.
Library::~Library() = default;

bool Library::has(const char* symbol) const { return ::dlsym(handle_, symbol) != nullptr; }

Result<void*> Library::find(const char* symbol) const {
  if (void* found = ::dlsym(handle_, symbol)) return found;
  return fail(Code::kNotFound, "{} has no {}", name_, symbol);
}

}  // namespace bm::cli
