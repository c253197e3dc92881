#include "compiler/toolchain/cuda_library.h"

#include <dirent.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include "runtime/base/env.h"
#include "runtime/base/trust.h"

namespace bm::compiler {
namespace {

/// Endings of file names, newest toolkit first; the plain one is of the toolkit's development
/// files.
constexpr std::array kEndings = {".so.13", ".so.12", ".so"};

/// Names of `folder`'s entries, sorted; empty if it cannot be read.
std::vector<std::string> entries(const std::string& folder) {
  std::vector<std::string> out;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(folder.c_str()), closedir);
  if (!dir) return out;
  while (const dirent* e = readdir(dir.get()))
    if (e->d_name[0] != '.') out.emplace_back(e->d_name);
  std::sort(out.begin(), out.end());
  return out;
}

/// "<root>/lib/python3.x/{site,dist}-packages/nvidia/*/lib" of the environments a Python package
/// manager fills: the active one, the user's and the system's.
std::vector<std::string> python_folders() {
  std::vector<std::string> roots;
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"})
    if (const char* root = std::getenv(variable); root && *root) roots.emplace_back(root);
  if (const char* home = std::getenv("HOME"); home && *home)
    roots.push_back(std::string(home) + "/.local");
  roots.insert(roots.end(), {"/usr/local", "/usr"});
  std::vector<std::string> out;
  for (const std::string& root : roots)
    for (const std::string& version : entries(root + "/lib")) {
      if (!version.starts_with("python3")) continue;
      for (const char* kind : {"site-packages", "dist-packages"}) {
        const std::string nvidia = root + "/lib/" + version + "/" + kind + "/nvidia";
        for (const std::string& part : entries(nvidia)) out.push_back(nvidia + "/" + part + "/lib");
      }
    }
  return out;
}

}  // namespace

void* CudaLibrary::symbol(const std::string& name) const { return dlsym(handle, name.c_str()); }

std::vector<std::string> cuda_library_candidates(std::string_view name) {
  std::vector<std::string> folders, out;
  if (const std::string& root = settings().cuda_path; !root.empty())
    folders.insert(folders.end(), {root + "/lib64", root + "/lib", root});
  folders.emplace_back("/usr/local/cuda/lib64");
  for (const std::string& entry : entries("/usr/local"))
    if (entry.starts_with("cuda-")) folders.push_back("/usr/local/" + entry + "/lib64");
  const auto add = [&](const std::string& folder) {
    for (const char* ending : kEndings)
      out.push_back((folder.empty() ? "" : folder + "/") + "lib" + std::string(name) + ending);
  };
  for (const std::string& folder : folders) add(folder);
  add("");
  for (const std::string& folder : python_folders()) add(folder);
  return out;
}

Result<CudaLibrary> open_cuda_library(std::string_view name) {
  std::string tried, why;
  for (const std::string& path : cuda_library_candidates(name)) {
    const bool is_file = path.find('/') != std::string::npos;
    // Missing files are not worth the loader's time.
    if (is_file && access(path.c_str(), F_OK) != 0) {
      const std::string folder = path.substr(0, path.rfind('/'));
      if (tried.find(folder) == std::string::npos) tried += (tried.empty() ? "" : ", ") + folder;
      continue;
    }
    if (const Status trusted = check_library(path); !trusted) {
      why += fmt::format(" ({})", trusted.error().message);
      continue;
    }
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL))
      return CudaLibrary{.handle = handle, .path = path};
    const char* text = dlerror();
    if (is_file && text) why += std::string(" (") + text + ")";
  }
  return fail(Code::kNotFound,
              "lib{} of the CUDA toolkit not found{}; install the toolkit's {} package (12 or 13) "
              "or point CUDA_PATH at a toolkit; looked in {} and where the loader looks",
              name, why, name == "nvrtc" ? "cuda-nvrtc" : "libnvjitlink", tried);
}

}  // namespace bm::compiler
