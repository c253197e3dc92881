// Installed drivers of OpenCL by the files that the ICD loader reads (cl_khr_icd, "Loading Vendor
// ICDs"), for listings that must not load them.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include <fmt/ranges.h>

#include "drivers/cl/info.h"

namespace bm::cl {
namespace {

// Each name one or more libraries or other folders (libOpenCL(7) of ocl-icd; the README of the
// Khronos loader): only the loader itself knows what comes of them.
constexpr const char* kOverrides[] = {"OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH", "OCL_ICD_FILENAMES"};
constexpr size_t kMaxNameBytes = 4096;

/// Library that an .icd file names on its first line; "" when it names none.
std::string library_in(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line(kMaxNameBytes, '\0');
  in.read(line.data(), static_cast<std::streamsize>(line.size()));
  line.resize(static_cast<size_t>(in.gcount()));
  line.resize(std::min(line.size(), line.find_first_of(std::string_view("\r\n\0", 3))));
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

}  // namespace

Result<std::string> installed_icds(const std::string& folder) {
  for (const char* name : kOverrides)
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0')
      return std::string();
  std::error_code error;
  std::vector<std::string> found, missing;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::filesystem::path& path = entry->path();
    if (path.extension() != ".icd") continue;
    const std::string library = library_in(path);
    const bool is_there = !library.empty() && (library.find('/') == std::string::npos ||
                                               access(library.c_str(), R_OK) == 0);
    (is_there ? found : missing)
        .push_back(fmt::format("{} ({})", path.filename().string(),
                               library.empty() ? "names no library" : library));
  }
  std::sort(found.begin(), found.end());
  std::sort(missing.begin(), missing.end());
  if (!found.empty()) return fmt::format("installed: {}", fmt::join(found, ", "));
  if (!missing.empty())
    return fail(Code::kNotFound, "{} is missing what it names: {}; install the driver again",
                folder, fmt::join(missing, ", "));
  return fail(
      Code::kNotFound,
      "no OpenCL platform (no .icd file in {}): install pocl-opencl-icd or the vendor's ICD",
      folder);
}

}  // namespace bm::cl
