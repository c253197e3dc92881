#pragma once
// Finds firmware files, unpacks and recognises them, and says which are missing and what to do.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "firmware/manifest.h"
#include "runtime/base/result.h"

namespace bm::firmware {

struct Search {
  std::vector<std::string> folders;  ///< absolute; the first that has the file counts
  /// Take files that no row of the manifest describes. A version that nobody tried may hang a card.
  bool allows_unknown = false;
};

/// The folders of BM_FIRMWARE_DIR, then those that Linux searches (drivers/base/firmware_loader/
/// main.c, fw_path) and /usr/lib/firmware.
Search default_search();

struct File {
  std::string path;  ///< as found, with its suffix
  std::vector<std::byte> bytes;
  const Row* row = nullptr;  ///< the version it is; nullptr: unknown
};

/// Loads `name` as it is, or unpacks NAME.zst or NAME.xz. A dangling link is as good as no file.
/// Errors: kNotFound naming package and suites; kCorrupt (empty, damaged, cut off: the size of a
/// known version is told); kUnsupported (a version that is not in the manifest); kPermission
/// (unreadable, or writable by others: firmware is executed, runtime/base/trust.h); kIo;
/// kInvalidArgument (a name that leads out of the folders).
Result<File> load(std::string_view name, const Search& search);

/// What is wrong with `names`, one line a package and one a file that is there and no good; empty
/// when all of them load.
std::vector<std::string> check(std::span<const std::string_view> names, const Search& search);

}  // namespace bm::firmware
