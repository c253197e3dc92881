#include "firmware/nvidia/container.h"

namespace bm::firmware::nvidia {
namespace {

constexpr uint32_t kMagic = 0x10de;  // NVIDIA's PCI vendor id

}  // namespace

Result<Container> parse_container(const Image& file) {
  Container container{.header = BM_TRY(file.at<BinHeader>(0, "nvfw_bin_hdr")), .data = {}};
  const BinHeader& header = container.header;
  if (header.magic != kMagic)
    return fail(Code::kCorrupt, "{}: bin_magic at 0x0 is {:#x}, not {:#x}", file.name(),
                header.magic, kMagic);
  if (header.version != 1)
    return fail(Code::kUnsupported, "{}: bin_ver at 0x4 is {}, only 1 is known; take {}",
                file.name(), header.version, "another version of the package");
  if (header.header_offset < sizeof(BinHeader) || header.data_offset < sizeof(BinHeader))
    return fail(Code::kCorrupt, "{}: header at {:#x} and data at {:#x} lie over nvfw_bin_hdr",
                file.name(), header.header_offset, header.data_offset);
  if (header.data_size == 0) return fail(Code::kCorrupt, "{}: data_size at 0x14 is 0", file.name());
  BM_TRY(file.section(header.header_offset, 0, "header"));
  container.data = BM_TRY(file.section(header.data_offset, header.data_size, "data"));
  return container;
}

}  // namespace bm::firmware::nvidia
