#pragma once
// `bellmetal gpu firmware` for NVIDIA's chips, which are named: no card is opened.

#include <string>
#include <string_view>

#include "tools/bellmetal/bringup/bringup.h"

namespace bm::cli {

/// "ga104", "GB203"; not "", nor AMD's "gfx1201".
bool is_nvidia_chip(std::string_view chip);

/// Each prints and returns the exit code, as the commands that they are part of.
int list_nvidia_firmware(const FirmwareOptions& options);
int check_nvidia_firmware(const FirmwareOptions& options);

/// Packages and suites of the versions of a file that are known, newest last.
std::string packages_of(std::string_view file_name);

}  // namespace bm::cli
