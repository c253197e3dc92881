#pragma once
// Who may have written what this process will execute: one rule for the kernel cache, bundles,
// saved captures, tuned schedules, the LLVM component, vendor libraries named by settings, and
// compilers.

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/base/scoped_fd.h"

namespace bm {

/// The rule. A file is trusted when it is a regular file that belongs to root or to the effective
/// user and that neither its group nor others can write, and when nobody else can change what its
/// path names:
///  - the path is absolute: what a relative one names depends on the current folder;
///  - every folder in which a component of the path is looked up belongs to root (or to the owner
///  of
///    /, who stands for root where a user namespace does not map it) or to the effective user, and
///    is writable by its owner only;
///  - a sticky folder such as /tmp is good enough on the way to a folder of ours: others cannot
///    rename or remove what is not theirs. It is not good enough as the folder of the file itself:
///    others may plant names beside it (a database's journal, a library it depends on) and, where
///    fs.protected_hardlinks is 0, hard links to other files of ours.
/// A POSIX ACL that lets anybody else write shows in the group bits of the mode (acl(5)), so the
/// rule covers it. Folders of a umask 0002 are refused although their group may have one member:
/// who is in a group today is known to the name service only, and who will be is not.
///
/// Because only root and the user can change any of these folders, a path that passed stays what it
/// was: it may be given to functions that open by name (dlopen, sqlite3_open).
struct TrustOptions {
  uid_t user = geteuid();
  /// Somebody else who already decides what runs here: the owner of the running program, for the
  /// parts installed with it.
  std::optional<uid_t> also = std::nullopt;
};

/// Of a file whose contents are executed, opened for reading.
struct TrustedFile {
  ScopedFd fd;
  std::string path;  ///< without symbolic links
};

/// Opens a file of ours. A symbolic link as the last component is refused, those before it are
/// followed as long as the folders they lead through are trusted.
/// Errors: kInvalidArgument (relative, symbolic link, no regular file); kPermission naming owner or
/// mode and the remedy; kNotFound; kIo.
Result<TrustedFile> open_trusted(const std::string& path, const TrustOptions& options = {});

/// The same rule for an existing folder in which we open files by name. Result: its path without
/// symbolic links.
Result<std::string> trusted_folder(const std::string& path, const TrustOptions& options = {});

/// The same rule for a program or library of somebody else's package, where the last component is
/// often a symbolic link: links are followed. Result: the path without them.
Result<std::string> trusted_target(const std::string& path, const TrustOptions& options = {});

/// The same rule for what is about to be given to dlopen(). A bare name is the loader's to find, in
/// the folders it also takes this program's own libraries from; a path is checked as
/// trusted_target() does. Errors: those of trusted_target.
Status check_library(const std::string& name);

/// What the user of a command or the caller of a function named, seen from the current folder.
/// Never for what comes from a setting: those outlive the folder they were made in.
/// Errors: kNotFound when the current folder is gone.
Result<std::string> absolute_path(std::string_view name);

}  // namespace bm
