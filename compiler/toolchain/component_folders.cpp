#include "compiler/toolchain/component_folders.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "runtime/base/env.h"

namespace bm::compiler {
namespace {

std::string executable() {
  std::array<char, 4096> path{};
  const ssize_t n = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  return n > 0 ? std::string(path.data(), static_cast<size_t>(n)) : std::string();
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

Status check_component(const std::string& path) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0)
    return fail(code_from_errno(errno), "{}: {}", path, errno_text(errno));
  struct stat program {};
  const std::string self = holder().file;
  const bool is_program_known = !self.empty() && ::stat(self.c_str(), &program) == 0;
  const bool has_trusted_owner = file.st_uid == 0 || file.st_uid == ::geteuid() ||
                                 (is_program_known && file.st_uid == program.st_uid);
  if (!has_trusted_owner)
    return fail(Code::kPermission,
                "{} belongs to user {}, who is neither root nor you nor the owner of the program",
                path, file.st_uid);
  if ((file.st_mode & S_IWOTH) != 0)
    return fail(Code::kPermission, "{} is writable by everyone (mode {:o}); chmod o-w it", path,
                file.st_mode & 07777);
  return {};
}

}  // namespace bm::compiler
