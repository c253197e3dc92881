#pragma once
// Where the parts of an installation that are loaded at run time may lie.

#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace bm::compiler {

/// A place to look at for a component. What is found there is executed.
struct ComponentFolder {
  std::string path;  ///< absolute
  bool is_named;  ///< by the user (BM_PLUGIN_DIR): what is refused there is looked for nowhere else
};

/// In the order to be tried: BM_PLUGIN_DIR; beside the program or library that holds this code, and
/// the library folder of the same prefix; the folders in which the dynamic linker searches for it
/// (a program made with find_package(bellmetal) or pkg-config names its prefix there); the prefix
/// this build was configured for. Errors: kInvalidArgument when BM_PLUGIN_DIR is not absolute: what
/// a relative path means changes with the current folder.
Result<std::vector<ComponentFolder>> component_folders();

/// The path to load a component by. Refuses a file that others than root, this user and the owner
/// of the program could have put there. Errors: those of open_trusted.
Result<std::string> trusted_component(const std::string& path);

}  // namespace bm::compiler
