#pragma once
// Kernels compiled ahead of time, in one file: a start from it needs no compiler.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/ir/kernel.h"
#include "runtime/base/mapping.h"
#include "runtime/base/result.h"
#include "runtime/hal/arch.h"
#include "runtime/hal/program.h"

namespace bm::compiler {

/// What stands for a kernel in bundles: its structure; neither name nor target.
struct BundleKey {
  uint64_t high = 0, low = 0;
  auto operator<=>(const BundleKey&) const = default;
};
BundleKey bundle_key(const ir::KernelIr& kernel);

/// The '+name' items of the feature list `wanted` that `have` lacks, as text; empty: none.
std::string missing_features(std::string_view wanted, std::string_view have);

/// A parsed bundle. What it holds is executed: take one only from whom you would take a program.
class Bundle {
 public:
  /// `path` is absolute. Errors: those of open_trusted (others could have written it) and of
  /// Mapping::of; those of parse, naming the file.
  static Result<Bundle> open(const std::string& path);
  /// `bytes` must outlive the bundle. Errors: kCorrupt (damaged or cut short); kUnsupported (made
  /// by another version).
  static Result<Bundle> parse(std::span<const std::byte> bytes);

  /// Whether its kernels run on `arch`. Errors: kUnsupported naming what differs.
  Status fits(const hal::Arch& arch) const;
  /// Nothing: not in here. Errors: kCorrupt.
  Result<std::optional<hal::CodeObject>> find(const BundleKey& key) const;
  size_t size() const { return entries_.size(); }
  const hal::Arch& arch() const { return arch_; }  ///< vendor, name, cpu and features only

 private:
  struct Entry {
    BundleKey key;
    uint64_t offset = 0, size = 0;
  };
  std::string path_ = "bundle";
  Mapping file_;
  std::span<const std::byte> bytes_;
  hal::Arch arch_;
  std::vector<Entry> entries_;  // by key
};

/// The file's bytes. Equal keys count once.
std::vector<std::byte> write_bundle(const hal::Arch& arch,
                                    std::span<const std::pair<BundleKey, hal::CodeObject>> kernels);

/// Whether the files are there; several separated by ':'. Errors: as opening them would give, which
/// nothing does before the first kernel is wanted; kInvalidArgument for what is no regular file.
Status check_bundle_files(std::string_view paths);
/// The kernel from the files of BM_BUNDLE, which are opened once. Nothing: in none of them.
/// Errors: of opening a file; kUnsupported when none fits `arch`.
Result<std::optional<hal::CodeObject>> find_in_bundles(const ir::KernelIr& kernel,
                                                       const hal::Arch& arch);

}  // namespace bm::compiler
