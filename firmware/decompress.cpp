#include "firmware/decompress.h"

#include <lzma.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <memory>

#include "runtime/base/bits.h"

namespace bm::firmware {
namespace {

// xz -9 needs 65 MiB, zstd --ultra -22 a window of 128 MiB; more than twice that is an attack.
constexpr uint64_t kXzMemory = 256_MiB;
constexpr int kZstdWindowLog = 27;
constexpr size_t kChunk = 64 << 10;

Status append(std::vector<std::byte>* out, std::span<const std::byte> piece, uint64_t limit) {
  if (piece.size() > limit - out->size())
    return fail(Code::kCorrupt, "more than {} bytes come out of it", limit);
  out->insert(out->end(), piece.begin(), piece.end());
  return {};
}

Result<std::vector<std::byte>> unpack_xz(std::span<const std::byte> packed, uint64_t limit) {
  lzma_stream stream = LZMA_STREAM_INIT;
  const std::unique_ptr<lzma_stream, decltype(&lzma_end)> owner(&stream, lzma_end);
  if (lzma_stream_decoder(&stream, kXzMemory, LZMA_TELL_UNSUPPORTED_CHECK) != LZMA_OK)
    return fail(Code::kOutOfMemory, "no memory for the xz decoder");
  stream.next_in = reinterpret_cast<const uint8_t*>(packed.data());
  stream.avail_in = packed.size();
  std::vector<std::byte> out;
  std::array<std::byte, kChunk> chunk;
  for (;;) {
    stream.next_out = reinterpret_cast<uint8_t*>(chunk.data());
    stream.avail_out = chunk.size();
    const lzma_ret status = lzma_code(&stream, LZMA_FINISH);
    BM_TRY(append(&out, std::span(chunk).first(chunk.size() - stream.avail_out), limit));
    if (status == LZMA_STREAM_END) break;
    if (status == LZMA_MEM_ERROR) return fail(Code::kOutOfMemory, "no memory for the xz decoder");
    if (status == LZMA_BUF_ERROR)
      return fail(Code::kCorrupt, "the xz stream is cut off after {} bytes", packed.size());
    if (status != LZMA_OK)
      return fail(Code::kCorrupt, "the xz stream is damaged near byte {} (liblzma {})",
                  stream.total_in, static_cast<int>(status));
  }
  if (stream.avail_in != 0)
    return fail(Code::kCorrupt, "{} bytes behind the xz stream", stream.avail_in);
  return out;
}

Result<std::vector<std::byte>> unpack_zstd(std::span<const std::byte> packed, uint64_t limit) {
  const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> decoder(ZSTD_createDCtx(),
                                                                     ZSTD_freeDCtx);
  if (decoder == nullptr ||
      ZSTD_isError(ZSTD_DCtx_setParameter(decoder.get(), ZSTD_d_windowLogMax, kZstdWindowLog)))
    return fail(Code::kOutOfMemory, "no memory for the zstd decoder");
  ZSTD_inBuffer in = {packed.data(), packed.size(), 0};
  std::vector<std::byte> out;
  std::array<std::byte, kChunk> chunk;
  size_t wanted = 1;  // 0: a frame has ended
  // Also when all input is taken: the decoder may hold output back.
  for (bool is_full = true; in.pos < in.size || (wanted != 0 && is_full);) {
    ZSTD_outBuffer to = {chunk.data(), chunk.size(), 0};
    wanted = ZSTD_decompressStream(decoder.get(), &to, &in);
    if (ZSTD_isError(wanted))
      return fail(Code::kCorrupt, "the zstd frame is damaged near byte {} ({})", in.pos,
                  ZSTD_getErrorName(wanted));
    BM_TRY(append(&out, std::span(chunk).first(to.pos), limit));
    is_full = to.pos == to.size;
  }
  if (wanted != 0)
    return fail(Code::kCorrupt, "the zstd frame is cut off after {} bytes", packed.size());
  return out;
}

}  // namespace

std::string_view suffix(Compression compression) {
  switch (compression) {
    case Compression::kNone: return "";
    case Compression::kZstd: return ".zst";
    case Compression::kXz: return ".xz";
  }
  __builtin_unreachable();
}

Result<std::vector<std::byte>> decompress(std::span<const std::byte> packed,
                                          Compression compression, uint64_t limit_bytes) {
  switch (compression) {
    case Compression::kNone: {
      std::vector<std::byte> out;
      BM_TRY(append(&out, packed, limit_bytes));
      return out;
    }
    case Compression::kZstd: return unpack_zstd(packed, limit_bytes);
    case Compression::kXz: return unpack_xz(packed, limit_bytes);
  }
  __builtin_unreachable();
}

uint32_t crc32(std::span<const std::byte> bytes) {
  return lzma_crc32(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), 0);
}

}  // namespace bm::firmware
