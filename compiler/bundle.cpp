#include "compiler/bundle.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/base/byte_reader.h"
#include "runtime/base/env.h"
#include "runtime/base/trust.h"

namespace bm::compiler {
namespace {

// Layout, little endian: magic, version, bytes of the head; in the head: vendor, texts of the
// architecture, number of kernels, then by key: key, place of its code object, size; XXH3-64 of
// everything up to there; code objects, which carry checksums of their own.
constexpr uint64_t kMagic = 0x454c444e55424d42;  // "BMBUNDLE"
/// Raise when code objects are called in another way, or laid out in another way here.
constexpr uint32_t kVersion = 2;
constexpr size_t kPrologue = sizeof kMagic + sizeof kVersion + sizeof(uint64_t);
constexpr uint64_t kMostText = 4096;
constexpr size_t kEntryBytes = 4 * sizeof(uint64_t);

class Writer {
 public:
  template <class T>
  void write(T value) {
    const auto* at = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), at, at + sizeof value);
  }
  void write_text(std::string_view text) {
    write(uint64_t{text.size()});
    const auto raw = std::as_bytes(std::span(text));
    bytes.insert(bytes.end(), raw.begin(), raw.end());
  }
  std::vector<std::byte> bytes;
};

Result<std::string> read_text(ByteReader& in) {
  const uint64_t size = BM_TRY(in.read<uint64_t>());
  if (size > kMostText) return fail(Code::kCorrupt, "text of {} bytes", size);
  return std::string(BM_TRY(in.text(size)));
}

/// The head, after its checksum has been found right.
Result<std::span<const std::byte>> checked_head(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  const auto magic = in.read<uint64_t>();
  if (!magic || *magic != kMagic) return fail(Code::kCorrupt, "not a bundle of kernels");
  const uint32_t version = BM_TRY(in.read<uint32_t>());
  if (version != kVersion)
    return fail(Code::kUnsupported,
                "made by another version of Bellmetal (format {}, this is {}): bake it again",
                version, kVersion);
  const uint64_t size = BM_TRY(in.read<uint64_t>());
  const std::span<const std::byte> head = BM_TRY(in.bytes(size));
  const uint64_t stored = BM_TRY(in.read<uint64_t>());
  if (XXH3_64bits(bytes.data(), kPrologue + head.size()) != stored)
    return fail(Code::kCorrupt, "checksum of the table does not match");
  return head;
}

}  // namespace

std::string missing_features(std::string_view wanted, std::string_view have) {
  std::string missing;
  const std::string all = "," + std::string(have) + ",";
  while (!wanted.empty()) {
    const std::string_view item = wanted.substr(0, wanted.find(','));
    wanted.remove_prefix(std::min(item.size() + 1, wanted.size()));
    if (item.starts_with('+') && all.find("," + std::string(item) + ",") == std::string::npos)
      missing += (missing.empty() ? "" : ", ") + std::string(item.substr(1));
  }
  return missing;
}

BundleKey bundle_key(const ir::KernelIr& kernel) {
  const std::string text = ir::serialize(kernel);
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {hash.high64, hash.low64};
}

Result<Bundle> Bundle::parse(std::span<const std::byte> bytes) {
  const std::span<const std::byte> head = BM_TRY(checked_head(bytes));
  Bundle b;
  b.bytes_ = bytes;
  ByteReader in(head);
  b.arch_.vendor = static_cast<hal::Vendor>(BM_TRY(in.read<uint8_t>()));
  b.arch_.name = BM_TRY(read_text(in));
  b.arch_.cpu = BM_TRY(read_text(in));
  b.arch_.features = BM_TRY(read_text(in));
  const uint64_t count = BM_TRY(in.read<uint64_t>());
  if (count > in.remaining() / kEntryBytes || count * kEntryBytes != in.remaining())
    return fail(Code::kCorrupt, "table of {} kernels in {} bytes", count, in.remaining());
  const uint64_t first = kPrologue + head.size() + sizeof(uint64_t);
  for (uint64_t i = 0; i < count; ++i) {
    Entry e;
    e.key.high = BM_TRY(in.read<uint64_t>());
    e.key.low = BM_TRY(in.read<uint64_t>());
    e.offset = BM_TRY(in.read<uint64_t>());
    e.size = BM_TRY(in.read<uint64_t>());
    if (e.offset < first || e.offset > bytes.size() || e.size > bytes.size() - e.offset)
      return fail(Code::kCorrupt, "cut short: kernel {} of {} ends at byte {} of {}", i, count,
                  e.offset + e.size, bytes.size());
    if (!b.entries_.empty() && !(b.entries_.back().key < e.key))
      return fail(Code::kCorrupt, "kernel {} of {} is out of order", i, count);
    b.entries_.push_back(e);
  }
  return b;
}

Result<Bundle> Bundle::open(const std::string& path) {
  const TrustedFile trusted = BM_TRY(open_trusted(path));
  Mapping file = BM_TRY(Mapping::of(trusted.fd.get(), path));
  auto bundle = parse(file.bytes());
  if (!bundle) return tl::unexpected(std::move(bundle.error()).within(path));
  bundle->path_ = path;
  bundle->file_ = std::move(file);
  return bundle;
}

Status Bundle::fits(const hal::Arch& arch) const {
  if (arch_.vendor != arch.vendor || arch_.name != arch.name)
    return fail(Code::kUnsupported, "{}: made for {}, this device is {}", path_, arch_.name,
                arch.name);
  const std::string missing = missing_features(arch_.features, arch.features);
  if (!missing.empty())
    return fail(Code::kUnsupported, "{}: made for {}, this device ({}) lacks {}", path_, arch_.cpu,
                arch.cpu, missing);
  return {};
}

Result<std::optional<hal::CodeObject>> Bundle::find(const BundleKey& key) const {
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), key,
                                   [](const Entry& e, const BundleKey& k) { return e.key < k; });
  if (at == entries_.end() || at->key != key) return std::nullopt;
  auto code = hal::CodeObject::deserialize(bytes_.subspan(at->offset, at->size));
  if (!code) return tl::unexpected(std::move(code.error()).within(path_));
  return std::move(*code);
}

std::vector<std::byte> write_bundle(
    const hal::Arch& arch, std::span<const std::pair<BundleKey, hal::CodeObject>> kernels) {
  std::map<BundleKey, std::vector<std::byte>> blobs;
  for (const auto& [key, code] : kernels) blobs.emplace(key, code.serialize());
  Writer head;
  head.write(static_cast<uint8_t>(arch.vendor));
  head.write_text(arch.name);
  head.write_text(arch.cpu);
  head.write_text(arch.features);
  head.write(uint64_t{blobs.size()});
  uint64_t at = kPrologue + head.bytes.size() + blobs.size() * kEntryBytes + sizeof(uint64_t);
  for (const auto& [key, blob] : blobs) {
    for (const uint64_t word : {key.high, key.low, at, uint64_t{blob.size()}}) head.write(word);
    at += blob.size();
  }
  Writer out;
  out.write(kMagic);
  out.write(kVersion);
  out.write(uint64_t{head.bytes.size()});
  out.bytes.insert(out.bytes.end(), head.bytes.begin(), head.bytes.end());
  out.write(uint64_t{XXH3_64bits(out.bytes.data(), out.bytes.size())});
  for (const auto& [key, blob] : blobs) out.bytes.insert(out.bytes.end(), blob.begin(), blob.end());
  return std::move(out.bytes);
}

namespace {

using OpenBundle = std::shared_ptr<const Result<Bundle>>;

/// Opened once per path and kept, failures too.
OpenBundle opened(const std::string& path) {
  struct Files {
    std::mutex mutex;
    std::map<std::string, OpenBundle> bundles;
  };
  static Files& files = *new Files;  // programs may be compiled while the process ends
  const std::lock_guard guard(files.mutex);
  OpenBundle& bundle = files.bundles[path];
  if (!bundle) bundle = std::make_shared<const Result<Bundle>>(Bundle::open(path));
  return bundle;
}

}  // namespace

Status check_bundle_files(std::string_view paths) {
  // They are opened when the first kernel is wanted, whose errors are not the files' alone.
  while (!paths.empty()) {
    const std::string path(paths.substr(0, paths.find(':')));
    paths.remove_prefix(std::min(path.size() + 1, paths.size()));
    if (path.empty()) continue;
    struct stat info{};
    if (::stat(path.c_str(), &info) != 0)
      return fail(code_from_errno(errno), "{}: {}", path, errno_text(errno));
    if (!S_ISREG(info.st_mode))
      return fail(Code::kInvalidArgument, "{} is not a regular file", path);
  }
  return {};
}

Result<std::optional<hal::CodeObject>> find_in_bundles(const ir::KernelIr& kernel,
                                                       const hal::Arch& arch) {
  std::string_view paths = settings().bundle;
  if (paths.empty()) return std::nullopt;
  const BundleKey key = bundle_key(kernel);
  Status unfit;
  bool has_fitting = false;
  while (!paths.empty()) {
    const std::string path(paths.substr(0, paths.find(':')));
    paths.remove_prefix(std::min(path.size() + 1, paths.size()));
    if (path.empty()) continue;
    const OpenBundle bundle = opened(path);
    if (!*bundle) return tl::unexpected(bundle->error());
    if (Status fits = (*bundle)->fits(arch); !fits) {
      if (unfit) unfit = std::move(fits);
      continue;
    }
    has_fitting = true;
    auto code = BM_TRY((*bundle)->find(key));
    if (code) return code;
  }
  if (!has_fitting && !unfit) return tl::unexpected(std::move(unfit.error()));
  return std::nullopt;
}

}  // namespace bm::compiler
