#include "firmware/amd/ucode.h"

#include <algorithm>

#include "firmware/amd/ucode_formats.h"

namespace bm::firmware::amd {
namespace {

constexpr uint64_t kBinaryBytes = 16;    // struct psp_fw_bin_desc
constexpr uint64_t kPptableBytes = 12;   // struct smc_soft_pptable_entry
constexpr uint32_t kMostPptables = 256;  // six is the most seen

bool is_inside_code(PartId id) {
  return id == PartId::kJumpTable || id == PartId::kCtxJumpTable || id == PartId::kCtlJumpTable;
}

std::string describe(const Part& part) {
  const bool is_typed = part.id == PartId::kPptable || part.id == PartId::kUnknown;
  return fmt::format("{}{}{}", part_name(part.id), part.is_aux ? " (aux)" : "",
                     is_typed ? fmt::format(" {}", part.type) : "");
}

/// One file on its way to a Ucode.
class Parser {
 public:
  Parser(Kind kind, const Image& file) : file_(file) {
    result_.kind = kind;
    result_.name = file.name();
  }

  Result<Ucode> run() {
    result_.header = BM_TRY(file_.at<CommonFirmwareHeader>(0, "common_firmware_header"));
    BM_TRY(check_header());
    const Format* const format = BM_TRY(find_format());
    BM_TRY(check_format(*format));
    for (const PartRow& row : format->parts) BM_TRY(add(row));
    if (format->list == PartList::kPptables)
      BM_TRY(add_pptables());
    else if (format->list != PartList::kNone)
      BM_TRY(add_binaries(*format));
    BM_TRY(check_overlaps());
    return std::move(result_);
  }

 private:
  const CommonFirmwareHeader& header() const { return result_.header; }

  /// What amdgpu_ucode_validate checks, and the offsets that it trusts.
  Status check_header() const {
    if (header().size_bytes > file_.size())
      return fail(Code::kCorrupt, "{}: cut off: it has {} bytes, size_bytes says {}", file_.name(),
                  file_.size(), header().size_bytes);
    if (header().size_bytes < file_.size())
      return fail(Code::kCorrupt, "{}: no {} file: it has {} bytes, size_bytes says {}",
                  file_.name(), kind_name(result_.kind), file_.size(), header().size_bytes);
    if (header().header_size_bytes < sizeof(CommonFirmwareHeader) ||
        header().header_size_bytes > file_.size())
      return fail(Code::kCorrupt, "{}: header_size_bytes is {}, at least {} and no more than {}",
                  file_.name(), header().header_size_bytes, sizeof(CommonFirmwareHeader),
                  file_.size());
    return {};
  }

  Result<const Format*> find_format() const {
    const uint32_t asked = header().header_version_major * 0x10000u + header().header_version_minor;
    uint32_t newest = 0, newest_of_major = 0;
    for (const Format& format : formats()) {
      if (format.kind != result_.kind) continue;
      const uint32_t version = format.major * 0x10000u + format.minor;
      if (version == asked) return &format;
      newest = std::max(newest, version);
      if (format.major == header().header_version_major) newest_of_major = version;
    }
    if (newest_of_major != 0) newest = newest_of_major;
    if (asked > newest)
      return fail(
          Code::kUnsupported,
          "{}: header version {}.{} at 0x8 is newer than {}.{}, the newest of {} files that is "
          "known here; take an older version of the package, or a newer Bellmetal",
          file_.name(), header().header_version_major, header().header_version_minor, newest >> 16,
          newest & 0xffff, kind_name(result_.kind));
    return fail(Code::kCorrupt, "{}: no {} file has header version {}.{} (at 0x8)", file_.name(),
                kind_name(result_.kind), header().header_version_major,
                header().header_version_minor);
  }

  Status check_format(const Format& format) {
    header_bytes_ = format.header_bytes;
    // Some RLC files name less in header_size_bytes than their version has; the array lies behind
    // all.
    if (header().ucode_array_offset_bytes < format.header_bytes ||
        header().ucode_array_offset_bytes > file_.size())
      return fail(
          Code::kCorrupt,
          "{}: ucode_array_offset_bytes is {:#x}, not between the header's end ({:#x}) and the "
          "file's ({:#x})",
          file_.name(), header().ucode_array_offset_bytes, format.header_bytes, file_.size());
    if (has_crc(header(), result_.kind))
      BM_TRY(file_.check_crc32(sizeof(CommonFirmwareHeader), header().crc32));
    result_.feature_version = BM_TRY(field(format.feature_at));
    result_.ucode_start_address = BM_TRY(address(format.ucode_start_at));
    result_.data_start_address = BM_TRY(address(format.data_start_at));
    return {};
  }

  Result<uint32_t> field(FieldAt at) const {
    if (at == 0) return 0u;
    return file_.at<uint32_t>(at, "field of the header");
  }
  Result<uint64_t> address(FieldAt at) const {
    const uint64_t low = BM_TRY(field(at));
    if (at == 0 || result_.kind == Kind::kSmu) return low;
    const uint64_t high = BM_TRY(field(static_cast<FieldAt>(at + 4)));
    return high << 32 | low;
  }

  Status add(const PartRow& row) {
    Part part{.id = row.id, .is_aux = row.is_aux};
    part.version = BM_TRY(field(row.version_at));
    part.feature_version = BM_TRY(field(row.feature_at));
    const uint64_t base = BM_TRY(field(row.base_at));
    const uint64_t offset = BM_TRY(field(row.offset_at));
    const uint64_t size = BM_TRY(field(row.size_at));
    return add(std::move(part), base + offset * row.unit, size * row.unit);
  }

  /// Parts without bytes are not there: their offsets are not looked at.
  Status add(Part part, uint64_t offset, uint64_t size) {
    if (size == 0) return {};
    part.offset = offset;
    part.bytes = BM_TRY(file_.section(offset, size, describe(part)));
    if (offset < header_bytes_)
      return fail(Code::kCorrupt, "{}: {} at {:#x} lies in the header", file_.name(),
                  describe(part), offset);
    if (part.id != PartId::kUnknown && result_.find(part.id, part.is_aux, part.type) != nullptr)
      return fail(Code::kCorrupt, "{}: two parts {}, the second at {:#x}", file_.name(),
                  describe(part), offset);
    result_.parts.push_back(std::move(part));
    return {};
  }

  /// struct psp_fw_bin_desc {fw_type, fw_version, offset_bytes, size_bytes} behind the header;
  /// offsets count from the ucode array (parse_sos_bin_descriptor, parse_ta_bin_descriptor).
  Status add_binaries(const Format& format) {
    const uint32_t count = BM_TRY(file_.at<uint32_t>(32, "number of parts"));
    if (count > (header().ucode_array_offset_bytes - format.header_bytes) / kBinaryBytes)
      return fail(Code::kCorrupt,
                  "{}: {} parts at 0x20, the list would reach over the array at {:#x}",
                  file_.name(), count, header().ucode_array_offset_bytes);
    uint32_t first_aux = count;
    if (format.list == PartList::kBinariesAux) {
      first_aux = BM_TRY(file_.at<uint32_t>(36, "psp_aux_fw_bin_index"));
      if (first_aux > count)
        return fail(Code::kCorrupt, "{}: psp_aux_fw_bin_index at 0x24 is {} of {} parts",
                    file_.name(), first_aux, count);
    }
    for (uint32_t i = 0; i < count; ++i) {
      const auto words =
          BM_TRY(file_.table<uint32_t>(format.header_bytes + i * kBinaryBytes, 4, "list of parts"));
      const PartId id = part_of_type(result_.kind, words[0]);
      BM_TRY(add({.id = id,
                  .is_aux = i >= first_aux,
                  .type = id == PartId::kUnknown ? words[0] : 0,
                  .version = words[1]},
                 uint64_t{header().ucode_array_offset_bytes} + words[2], words[3]));
    }
    return {};
  }

  /// smu_v13_0_set_pptable_v2_1: {id, ppt_offset_bytes, ppt_size_bytes}, from the file's start.
  Status add_pptables() {
    const uint32_t count = BM_TRY(file_.at<uint32_t>(36, "pptable_count"));
    if (count > kMostPptables)
      return fail(Code::kCorrupt, "{}: {} pptables at 0x24, no file has more than {}", file_.name(),
                  count, kMostPptables);
    const uint64_t at = BM_TRY(file_.at<uint32_t>(40, "pptable_entry_offset"));
    const auto words = BM_TRY(
        file_.table<uint32_t>(at, uint64_t{count} * (kPptableBytes / 4), "list of pptables"));
    for (size_t i = 0; i < words.size(); i += 3)
      BM_TRY(add({.id = PartId::kPptable, .type = words[i]}, words[i + 1], words[i + 2]));
    return {};
  }

  Status check_overlaps() const {
    std::vector<const Part*> order;
    for (const Part& part : result_.parts)
      if (!is_inside_code(part.id)) order.push_back(&part);
    std::ranges::sort(order, {}, &Part::offset);
    for (size_t i = 1; i < order.size(); ++i)
      if (order[i]->offset - order[i - 1]->offset < order[i - 1]->bytes.size())
        return fail(Code::kCorrupt, "{}: {} at {:#x} begins inside {} ({:#x} bytes at {:#x})",
                    file_.name(), describe(*order[i]), order[i]->offset, describe(*order[i - 1]),
                    order[i - 1]->bytes.size(), order[i - 1]->offset);
    return check_jump_tables();
  }

  Status check_jump_tables() const {
    constexpr std::pair<PartId, PartId> kTables[] = {{PartId::kJumpTable, PartId::kUcode},
                                                     {PartId::kCtxJumpTable, PartId::kCtxUcode},
                                                     {PartId::kCtlJumpTable, PartId::kCtlUcode}};
    for (const auto& [table_id, code_id] : kTables) {
      const Part* const table = result_.find(table_id);
      const Part* const code = result_.find(code_id);
      if (table == nullptr) continue;
      if (code == nullptr || table->offset < code->offset ||
          table->offset + table->bytes.size() > code->offset + code->bytes.size())
        return fail(Code::kCorrupt, "{}: {} ({:#x} bytes at {:#x}) is not inside {}", file_.name(),
                    describe(*table), table->bytes.size(), table->offset, part_name(code_id));
    }
    return {};
  }

  const Image& file_;
  uint64_t header_bytes_ = 0;  // with the kind's own fields
  Ucode result_;
};

}  // namespace

const Part* Ucode::find(PartId id, bool is_aux, uint32_t type) const {
  const auto found = std::ranges::find_if(parts, [&](const Part& part) {
    return part.id == id && part.is_aux == is_aux && part.type == type;
  });
  return found == parts.end() ? nullptr : &*found;
}

Result<std::span<const std::byte>> Ucode::need(PartId id, bool is_aux, uint32_t type) const {
  if (const Part* const part = find(id, is_aux, type)) return part->bytes;
  return fail(Code::kUnsupported,
              "{}: version {:#x} has no {}; take another version of its package", name,
              header.ucode_version, describe({.id = id, .is_aux = is_aux, .type = type}));
}

Result<Ucode> parse(Kind kind, const Image& file) {
  Result<Ucode> result = Parser(kind, file).run();
  if (!result && result.error().code == Code::kCorrupt)
    result.error().message += "; install its package again";
  return result;
}

Result<std::span<const std::byte>> code_before_jump_table(const Ucode& ucode) {
  const std::span<const std::byte> code = BM_TRY(ucode.need(PartId::kUcode));
  const Part* const table = ucode.find(PartId::kJumpTable);
  if (table == nullptr) return code;
  if (table->bytes.data() + table->bytes.size() != code.data() + code.size())
    return fail(Code::kCorrupt,
                "{}: jt at {:#x} is not the end of its ucode; install its package again",
                ucode.name, table->offset);
  return code.first(code.size() - table->bytes.size());
}

}  // namespace bm::firmware::amd
