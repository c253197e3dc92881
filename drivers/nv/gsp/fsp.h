#pragma once
// The foundation security processor of Hopper and Blackwell: one message tells it where the GSP's
// first program (FMC) and its arguments lie; it checks and starts it.
// Source: nouveau, nvkm/subdev/fsp/gh100.c; nova-core, fsp.rs, falcon/fsp.rs;
// open-gpu-kernel-modules 570.144, kern_fsp_gh100.c, kern_fsp_cot_payload.h, fsp_mctp_format.h.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "drivers/nv/gsp/bus.h"
#include "drivers/nv/gsp/generation.h"
#include "firmware/nvidia/gsp_image.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

/// NVDM_TYPE_COT and NVDM_TYPE_FSP_RESPONSE.
inline constexpr uint8_t kNvdmCot = 0x14, kNvdmResponse = 0x15;
/// Of the FSP's memory, channel 0.
inline constexpr uint32_t kFspMessageBytes = 1024;

struct CotAddresses {
  uint64_t fmc = 0, arguments = 0;  ///< in system memory
};
/// NVDM_PAYLOAD_COT. Errors: kCorrupt (parts of the FMC file that do not fit).
Result<std::vector<std::byte>> encode_cot(const Generation& generation,
                                          const firmware::nvidia::FmcImage& fmc,
                                          const CotAddresses& addresses);
/// One packet: MCTP header, NVDM header, payload, in whole words.
std::vector<uint32_t> encode_fsp_packet(uint8_t nvdm_type, std::span<const std::byte> payload);
/// Whether it answers a message of `nvdm_type`. Errors: kCorrupt (another form); kIo (the FSP's
/// error).
Status check_fsp_response(std::span<const uint32_t> packet, uint8_t nvdm_type);

class Fsp {
 public:
  explicit Fsp(Bus& bus) : bus_(bus) {}
  /// A message and the answer to it. Errors: kTimeout; those of check_fsp_response().
  Status send(uint8_t nvdm_type, std::span<const std::byte> payload);

 private:
  Bus& bus_;
};

}  // namespace bm::nv::gsp
