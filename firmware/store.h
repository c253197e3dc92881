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
};

/// The folders of BM_FIRMWARE_DIR, then those that Linux searches (drivers/base/firmware_loader/
/// main.c, fw_path) and /usr/lib/firmware.
Search default_search();

struct File {
  std::string path;  ///< as found, with its suffix
  std::vector<std::byte> bytes;
  /// The version it is; nullptr: none of the manifest's, as every update is at first. Whether such
  /// a file is any good is for its parser (header, check sum) and the card (signature) to say.
  const Row* row = nullptr;
};

/// Loads `name` as it is, or unpacks NAME.zst or NAME.xz. A dangling link is as good as no file.
/// Errors: kNotFound naming package and suites; kCorrupt (empty, damaged, another known file);
/// kPermission (unreadable, or writable by others: firmware is executed, runtime/base/trust.h);
/// kIo; kInvalidArgument (a name that leads out of the folders).
Result<File> load(std::string_view name, const Search& search);

/// What is wrong with `names`, one line a package and one a file that is there and no good; empty
/// when all of them load.
std::vector<std::string> check(std::span<const std::string_view> names, const Search& search);

}  // namespace bm::firmware
