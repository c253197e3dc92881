#pragma once
// Which ranges of video memory the next process finds as they are: a table in boot memory, which a
// warm boot leaves alone and at the same place.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "drivers/amd/kept_video_memory.h"
#include "runtime/base/result.h"

namespace bm::amd::am {

/// The table as bytes: header, then records. A write that was cut off, another version and anything
/// else that is not a whole table are no table: nothing is kept then.
struct KeptTable {
  static constexpr uint64_t kBytes = 64 << 10;  ///< of boot memory
  static constexpr size_t kHeaderBytes = 40, kRecordBytes = 40;
  static constexpr size_t kMostRecords = (kBytes - kHeaderBytes) / kRecordBytes;
  static constexpr uint32_t kVersion = 1;

  uint64_t generation = 0;  ///< one more with every table written
  std::vector<KeptRecord> records;

  std::vector<std::byte> encode() const;
  /// Bytes of the whole table that a header begins; 0: no header, or one of a table that is empty.
  static uint64_t size_of(std::span<const std::byte> header);
  /// Errors: kCorrupt, saying what is wrong.
  static Result<KeptTable> decode(std::span<const std::byte> bytes);
};

}  // namespace bm::amd::am
