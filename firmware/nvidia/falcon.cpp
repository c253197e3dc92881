#include "firmware/nvidia/falcon.h"

#include <algorithm>
#include <bit>

#include "firmware/nvidia/container.h"

namespace bm::firmware::nvidia {
namespace {

/// struct nvfw_hs_header_v2; all offsets from the start of the file. Four of them lead to single
/// numbers.
struct HsHeader {
  uint32_t sig_prod_offset, sig_prod_size;
  uint32_t patch_loc;
  uint32_t patch_sig;
  uint32_t meta_data_offset, meta_data_size;
  uint32_t num_sig;
  uint32_t header_offset, header_size;
};
static_assert(sizeof(HsHeader) == 36);

/// fuse_ver, engine_id, ucode_id: what meta_data_offset leads to.
struct HsMeta {
  uint32_t fuse_version, engine_id_mask, ucode_id;
};
static_assert(sizeof(HsMeta) == 12);

/// struct nvfw_hs_load_header_v2, then num_apps of the second; offsets in the image.
struct LoadHeader {
  Range os_code, os_data;
  uint32_t num_apps;
};
struct LoadApp {
  Range code, data;
};
static_assert(sizeof(LoadHeader) == 20 && sizeof(LoadApp) == 16);

/// RM_FLCN_BL_DESC.
struct BootLoaderDesc {
  uint32_t start_tag, dmem_load_offset;
  Range code, data;
};
static_assert(sizeof(BootLoaderDesc) == 24);

constexpr uint32_t kMostUcodeIds = 16;      // registers an engine has
constexpr uint32_t kMostStartTag = 0xffff;  // NV_PFALCON_FALCON_IMEMT_TAG, 15:0

Status check_inside(const Image& file, uint64_t image_bytes, Range range, std::string_view what) {
  if (range.size > image_bytes || range.offset > image_bytes - range.size)
    return fail(Code::kCorrupt, "{}: {} ({:#x} bytes at {:#x}) is not inside its image of {:#x}",
                file.name(), what, range.size, range.offset, image_bytes);
  return {};
}

Status read_signatures(const Image& file, const HsHeader& header, HsUcode& ucode) {
  const uint32_t count = BM_TRY(file.at<uint32_t>(header.num_sig, "num_sig"));
  const uint32_t first = BM_TRY(file.at<uint32_t>(header.patch_sig, "patch_sig"));
  ucode.signature_at = BM_TRY(file.at<uint32_t>(header.patch_loc, "patch_loc"));
  // The vendor's module refuses it, too: nobody has said what it would mean.
  if (first != 0)
    return fail(Code::kUnsupported, "{}: patch_sig at {:#x} is {}, only 0 is known", file.name(),
                header.patch_sig, first);
  if (count == 0 || header.sig_prod_size == 0 || header.sig_prod_size % count != 0)
    return fail(Code::kCorrupt, "{}: {} signatures (at {:#x}) in {:#x} bytes", file.name(), count,
                header.num_sig, header.sig_prod_size);
  const auto all = BM_TRY(file.section(header.sig_prod_offset, header.sig_prod_size, "signatures"));
  const uint32_t each = header.sig_prod_size / count;
  for (uint32_t i = 0; i < count; ++i)
    ucode.signatures.push_back(all.subspan(size_t{i} * each, each));
  return check_inside(file, ucode.image.size(), {ucode.signature_at, each}, "signature");
}

Status read_meta(const Image& file, const HsHeader& header, HsUcode& ucode) {
  if (header.meta_data_size != sizeof(HsMeta))
    return fail(Code::kUnsupported, "{}: meta_data_size is {}, only {} is known", file.name(),
                header.meta_data_size, sizeof(HsMeta));
  const auto meta = BM_TRY(file.at<HsMeta>(header.meta_data_offset, "meta data"));
  if (meta.ucode_id == 0 || meta.ucode_id > kMostUcodeIds)
    return fail(Code::kUnsupported, "{}: ucode_id is {}, fuses have 1 to {}", file.name(),
                meta.ucode_id, kMostUcodeIds);
  ucode.fuse_version = meta.fuse_version;
  ucode.engine_id_mask = meta.engine_id_mask;
  ucode.ucode_id = meta.ucode_id;
  return {};
}

Status read_load_header(const Image& file, const HsHeader& header, HsUcode& ucode) {
  const Image part = BM_TRY(file.part(header.header_offset, header.header_size, "load header"));
  const auto load = BM_TRY(part.at<LoadHeader>(0, "nvfw_hs_load_header_v2"));
  if (load.num_apps == 0) return fail(Code::kCorrupt, "{}: num_apps is 0", part.name());
  const auto apps = BM_TRY(part.table<LoadApp>(sizeof load, load.num_apps, "apps"));
  const uint64_t bytes = ucode.image.size();
  ucode.os_code = load.os_code;
  ucode.os_data = load.os_data;
  BM_TRY(check_inside(file, bytes, load.os_code, "os_code"));
  BM_TRY(check_inside(file, bytes, load.os_data, "os_data"));
  for (const LoadApp& app : apps) {
    BM_TRY(check_inside(file, bytes, app.code, "app code"));
    // Files have the code's end here with size 0.
    if (app.data.size != 0) BM_TRY(check_inside(file, bytes, app.data, "app data"));
    ucode.apps.push_back({.code = app.code, .data = app.data});
  }
  // The boot ROM finds the signature in data memory.
  const uint64_t end = uint64_t{ucode.signature_at} + ucode.signatures.front().size();
  if (ucode.signature_at < load.os_data.offset ||
      end > uint64_t{load.os_data.offset} + load.os_data.size)
    return fail(Code::kCorrupt, "{}: signature at {:#x} is not inside os_data ({:#x} at {:#x})",
                file.name(), ucode.signature_at, load.os_data.size, load.os_data.offset);
  return {};
}

}  // namespace

Result<HsUcode> parse_hs_ucode(const Image& file) {
  const Container container = BM_TRY(parse_container(file));
  const auto header = BM_TRY(file.at<HsHeader>(container.header.header_offset, "hs header"));
  HsUcode ucode;
  ucode.name = file.name();
  ucode.image = container.data;
  BM_TRY(read_signatures(file, header, ucode));
  BM_TRY(read_meta(file, header, ucode));
  BM_TRY(read_load_header(file, header, ucode));
  return ucode;
}

uint32_t fuse_version(uint32_t fuse_register) {
  return static_cast<uint32_t>(std::bit_width(fuse_register));
}

Result<size_t> signature_index(const HsUcode& ucode, uint32_t fuse_register) {
  const size_t count = ucode.signatures.size();
  if (count == 1) return size_t{0};
  // Counted down from fuse_ver by nouveau (ga100_flcn_fw_signature) and from the number of
  // signatures by the vendor's module: the same in every file that there is.
  if (ucode.fuse_version != count - 1)
    return fail(Code::kUnsupported, "{}: {} signatures up to fuse version {}", ucode.name, count,
                ucode.fuse_version);
  const uint32_t version = fuse_version(fuse_register);
  if (version > ucode.fuse_version)
    return fail(Code::kUnsupported,
                "{}: the card's fuses want version {}, its signatures end with {}; take a newer "
                "version of its package",
                ucode.name, version, ucode.fuse_version);
  return size_t{ucode.fuse_version - version};
}

Result<std::vector<std::byte>> signed_image(const HsUcode& ucode, uint32_t fuse_register) {
  const size_t index = BM_TRY(signature_index(ucode, fuse_register));
  std::vector<std::byte> image(ucode.image.begin(), ucode.image.end());
  std::ranges::copy(ucode.signatures[index], image.begin() + ucode.signature_at);
  return image;
}

Result<FalconBootLoader> parse_falcon_boot_loader(const Image& file) {
  const Container container = BM_TRY(parse_container(file));
  const auto desc =
      BM_TRY(file.at<BootLoaderDesc>(container.header.header_offset, "RM_FLCN_BL_DESC"));
  const uint64_t bytes = container.data.size();
  BM_TRY(check_inside(file, bytes, desc.code, "code"));
  BM_TRY(check_inside(file, bytes, desc.data, "data"));
  if (desc.code.size == 0) return fail(Code::kCorrupt, "{}: no code", file.name());
  if (desc.start_tag > kMostStartTag)
    return fail(Code::kCorrupt, "{}: start tag {:#x}, falcons know up to {:#x}", file.name(),
                desc.start_tag, kMostStartTag);
  return FalconBootLoader{.start_tag = desc.start_tag,
                          .descriptor_at = desc.dmem_load_offset,
                          .code = container.data.subspan(desc.code.offset, desc.code.size),
                          .data = container.data.subspan(desc.data.offset, desc.data.size)};
}

}  // namespace bm::firmware::nvidia
