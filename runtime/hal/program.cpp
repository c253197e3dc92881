#include "runtime/hal/program.h"

#include <cstring>
#include <type_traits>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/base/byte_reader.h"

namespace bm::hal {
namespace {

// Layout: magic, version, fields in the order of serialize(), XXH3-64 of all bytes before it.
// Integers are little endian and unaligned; texts and the image have a length in front.
constexpr uint32_t kMagic = 0x4f434d42;  // "BMCO"
constexpr uint32_t kVersion = 3;
constexpr size_t kChecksumBytes = sizeof(uint64_t);
constexpr uint64_t kMaxTextBytes = 4096;
constexpr uint64_t kMaxTerms = 1024;

class Writer {
 public:
  template <class T>
  void write(T value) {
    static_assert(std::is_integral_v<T>);
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(bytes_.data() + at, &value, sizeof value);
  }
  void write_bytes(std::span<const std::byte> data) {
    write(uint64_t{data.size()});
    bytes_.insert(bytes_.end(), data.begin(), data.end());
  }
  void write_text(std::string_view text) { write_bytes(std::as_bytes(std::span(text))); }

  std::vector<std::byte> finish() && {
    write(uint64_t{XXH3_64bits(bytes_.data(), bytes_.size())});
    return std::move(bytes_);
  }

 private:
  std::vector<std::byte> bytes_;
};

void write_dim(Writer& out, const DimExpr& dim) {
  out.write(dim.constant);
  out.write(dim.divisor);
  out.write(uint64_t{dim.terms.size()});
  for (const DimExpr::Term& term : dim.terms) {
    out.write(term.var);
    out.write(term.coefficient);
  }
}

Result<DimExpr> read_dim(ByteReader& in, uint32_t num_vars) {
  DimExpr dim;
  dim.constant = BM_TRY(in.read<int64_t>());
  dim.divisor = BM_TRY(in.read<int64_t>());
  if (dim.divisor < 1) return fail(Code::kCorrupt, "grid divisor {}", dim.divisor);
  const uint64_t num_terms = BM_TRY(in.read<uint64_t>());
  if (num_terms > kMaxTerms) return fail(Code::kCorrupt, "{} terms in a grid dimension", num_terms);
  for (uint64_t i = 0; i < num_terms; ++i) {
    DimExpr::Term term;
    term.var = BM_TRY(in.read<uint32_t>());
    term.coefficient = BM_TRY(in.read<int64_t>());
    if (term.var >= num_vars) {
      return fail(Code::kCorrupt, "grid uses variable {} of {}", term.var, num_vars);
    }
    dim.terms.push_back(term);
  }
  return dim;
}

Result<std::string> read_text(ByteReader& in) {
  const uint64_t size = BM_TRY(in.read<uint64_t>());
  if (size > kMaxTextBytes) return fail(Code::kCorrupt, "name of {} bytes", size);
  return std::string(BM_TRY(in.text(size)));
}

Result<std::span<const std::byte>> checked_body(std::span<const std::byte> bytes) {
  if (bytes.size() < kChecksumBytes) {
    return fail(Code::kCorrupt, "{} bytes are too few for a code object", bytes.size());
  }
  const auto body = bytes.first(bytes.size() - kChecksumBytes);
  uint64_t stored = 0;
  std::memcpy(&stored, bytes.data() + body.size(), sizeof stored);
  if (XXH3_64bits(body.data(), body.size()) != stored) {
    return fail(Code::kCorrupt, "checksum of the code object does not match");
  }
  return body;
}

Result<CodeObject> read_code_object(ByteReader& in) {
  const uint32_t magic = BM_TRY(in.read<uint32_t>());
  const uint32_t version = BM_TRY(in.read<uint32_t>());
  if (magic != kMagic || version != kVersion) {
    return fail(Code::kCorrupt, "magic {:#x}, version {}: not a code object of version {}", magic,
                version, kVersion);
  }
  CodeObject code;
  code.entry = BM_TRY(read_text(in));
  code.arch = BM_TRY(read_text(in));
  code.num_buffers = BM_TRY(in.read<uint32_t>());
  code.num_vars = BM_TRY(in.read<uint32_t>());
  for (DimExpr& dim : code.grid) dim = BM_TRY(read_dim(in, code.num_vars));
  code.block.x = BM_TRY(in.read<uint32_t>());
  code.block.y = BM_TRY(in.read<uint32_t>());
  code.block.z = BM_TRY(in.read<uint32_t>());
  code.shared_memory_bytes = BM_TRY(in.read<uint32_t>());
  code.launch_memory_bytes = BM_TRY(in.read<uint32_t>());
  code.scratch_bytes = BM_TRY(in.read<uint64_t>());
  code.work_per_block = BM_TRY(in.read<uint64_t>());
  const uint64_t image_bytes = BM_TRY(in.read<uint64_t>());
  const auto image = BM_TRY(in.bytes(image_bytes));
  code.image.assign(image.begin(), image.end());
  if (in.remaining() != 0) {
    return fail(Code::kCorrupt, "{} bytes after the code object", in.remaining());
  }
  return code;
}

}  // namespace

std::vector<std::byte> CodeObject::serialize() const {
  Writer out;
  out.write(kMagic);
  out.write(kVersion);
  out.write_text(entry);
  out.write_text(arch);
  out.write(num_buffers);
  out.write(num_vars);
  for (const DimExpr& dim : grid) write_dim(out, dim);
  out.write(block.x);
  out.write(block.y);
  out.write(block.z);
  out.write(shared_memory_bytes);
  out.write(launch_memory_bytes);
  out.write(scratch_bytes);
  out.write(work_per_block);
  out.write_bytes(image);
  return std::move(out).finish();
}

Result<CodeObject> CodeObject::deserialize(std::span<const std::byte> bytes) {
  ByteReader in(BM_TRY(checked_body(bytes)));
  return read_code_object(in);
}

}  // namespace bm::hal
