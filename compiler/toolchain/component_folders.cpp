#include "compiler/toolchain/component_folders.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>

#include "runtime/base/env.h"
#include "runtime/base/trust.h"

namespace bm::compiler {
namespace {

/// The program's file; empty when the system does not tell.
std::string executable() {
  std::array<char, PATH_MAX> path{};
  const ssize_t n = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (n > 0) return {path.data(), static_cast<size_t>(n)};
  // Without /proc there is the name it was started by. A relative one says where it lay seen from a
  // folder that is not known any more.
  const auto* name = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
  if (name == nullptr || *name != '/' || ::realpath(name, path.data()) == nullptr) return {};
  return path.data();
}

/// The program or shared library that holds this code.
struct Holder {
  link_map* map = nullptr;
  std::string file;  ///< empty or absolute
};

Holder holder() {
  Holder found;
  Dl_info info{};
  void* map = nullptr;
  const auto* here = reinterpret_cast<const void*>(&holder);
  if (::dladdr1(here, &info, &map, RTLD_DL_LINKMAP) == 0) return {nullptr, executable()};
  found.map = static_cast<link_map*>(map);
  // The linker gives the program itself no name, and libraries the one they were asked for by.
  const std::string_view name = found.map->l_name != nullptr ? found.map->l_name : "";
  if (name.empty())
    found.file = executable();
  else if (name.starts_with('/'))
    found.file = name;
  return found;
}

/// Folders of the linker's search for `map`: DT_RUNPATH, LD_LIBRARY_PATH, the system's.
std::vector<std::string> linker_folders(link_map* map) {
  Dl_serinfo size{};
  if (map == nullptr || ::dlinfo(map, RTLD_DI_SERINFOSIZE, &size) != 0) return {};
  std::vector<std::max_align_t> memory(size.dls_size / sizeof(std::max_align_t) + 1);
  auto* info = reinterpret_cast<Dl_serinfo*>(memory.data());
  if (::dlinfo(map, RTLD_DI_SERINFOSIZE, info) != 0 || ::dlinfo(map, RTLD_DI_SERINFO, info) != 0)
    return {};
  std::vector<std::string> out;
  for (unsigned i = 0; i < info->dls_cnt; ++i) out.emplace_back(info->dls_serpath[i].dls_name);
  return out;
}

}  // namespace

Result<std::vector<ComponentFolder>> component_folders() {
  std::vector<ComponentFolder> out;
  const auto add = [&](std::string path) {
    const auto is_same = [&](const ComponentFolder& f) { return f.path == path; };
    if (path.starts_with('/') && std::none_of(out.begin(), out.end(), is_same))
      out.push_back({std::move(path), false});
  };
  if (const std::string& named = settings().plugin_dir; !named.empty()) {
    if (!named.starts_with('/'))
      return fail(
          Code::kInvalidArgument,
          "BM_PLUGIN_DIR \"{}\" is relative: what lies there is executed, so name the folder "
          "by its absolute path",
          named);
    out.push_back({named, true});
  }
  const Holder self = holder();
  if (const size_t slash = self.file.rfind('/'); slash != std::string::npos) {
    const std::string folder = self.file.substr(0, slash);
    add(folder);
    add(folder + "/../" BM_INSTALL_LIBDIR);
    add(folder + "/../lib");
  }
  for (std::string& folder : linker_folders(self.map)) add(std::move(folder));
  add(BM_INSTALL_FULL_LIBDIR);
  return out;
}

Result<std::string> trusted_component(const std::string& path) {
  TrustOptions options;
  struct stat program{};
  // Its owner can change what runs here anyway.
  if (const std::string self = holder().file; !self.empty() && ::stat(self.c_str(), &program) == 0)
    options.also = program.st_uid;
  return BM_TRY(open_trusted(path, options)).path;
}

}  // namespace bm::compiler
