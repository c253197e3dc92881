#include "drivers/nv/gsp/fsp.h"

#include <cstring>

#include "drivers/nv/abi/gsp.h"
#include "drivers/nv/gsp/protected_memory.h"

namespace bm::nv::gsp {
namespace {

using abi::gsp::FspCot;
using abi::gsp::Gsp;

// One packet: start and end of message (SOM, EOM), end points and sequence 0.
constexpr uint32_t kSinglePacket = 0xc0000000;
// PCI vendor-defined message of NVIDIA's.
constexpr uint32_t kVendorMessage = 0x10de7e;
constexpr uint32_t kEmemWrite = 1u << 24, kEmemRead = 1u << 25;
constexpr size_t kResponseWords = 5;  // two headers, task, type, error
// TIMEOUT: the FSP takes a message in milliseconds; nouveau waits 1 to 2 s, nova-core 2 s. Five
// cover a slow board.
constexpr uint64_t kFspUs = 5'000'000;

}  // namespace

Result<std::vector<std::byte>> encode_cot(const Generation& generation,
                                          const firmware::nvidia::FmcImage& fmc,
                                          const CotAddresses& addresses) {
  Gsp<FspCot> cot;
  cot.set(FspCot::version, generation.cot_version)
      .set(FspCot::size, FspCot::kBytes)
      .set(FspCot::gspFmcSysmemOffset, addresses.fmc)
      .set(FspCot::frtsVidmemOffset, frts_from_end(generation))
      .set(FspCot::frtsVidmemSize, generation.frts_bytes)
      .set(FspCot::gspBootArgsSysmemOffset, addresses.arguments);
  struct Part {
    const abi::FieldPlace& field;
    std::span<const std::byte> bytes;
    std::string_view name;
  };
  for (const Part& part : {Part{FspCot::hash384, fmc.hash, "hash"},
                           Part{FspCot::publicKey, fmc.public_key, "publickey"},
                           Part{FspCot::signature, fmc.signature, "signature"}}) {
    if (part.bytes.size() > size_t{part.field.count} * part.field.stride)
      return fail(Code::kCorrupt, "the FMC's {} has {} bytes, and the FSP's message room for {}",
                  part.name, part.bytes.size(), part.field.count * part.field.stride);
    cot.set_bytes(part.field, part.bytes);
  }
  return std::vector<std::byte>(cot.bytes().begin(), cot.bytes().end());
}

std::vector<uint32_t> encode_fsp_packet(uint8_t nvdm_type, std::span<const std::byte> payload) {
  std::vector<uint32_t> words(2 + (payload.size() + 3) / 4);
  words[0] = kSinglePacket;
  words[1] = uint32_t{nvdm_type} << 24 | kVendorMessage;
  if (!payload.empty()) std::memcpy(words.data() + 2, payload.data(), payload.size());
  return words;
}

Status check_fsp_response(std::span<const uint32_t> packet, uint8_t nvdm_type) {
  if (packet.size() < kResponseWords)
    return fail(Code::kCorrupt, "the FSP answers with {} words, and an answer has {}",
                packet.size(), kResponseWords);
  if ((packet[0] & kSinglePacket) != kSinglePacket ||
      packet[1] != (uint32_t{kNvdmResponse} << 24 | kVendorMessage))
    return fail(Code::kCorrupt, "the FSP answers with headers {:#x} and {:#x}", packet[0],
                packet[1]);
  if (packet[3] != nvdm_type)
    return fail(Code::kCorrupt, "the FSP answers message {:#x}, and {:#x} was sent", packet[3],
                nvdm_type);
  if (packet[4] != 0)
    return fail(Code::kIo,
                "the FSP refuses message {:#x} with error {:#x} (task {:#x}): a file of another "
                "chip, or its signature is not what the board takes",
                nvdm_type, packet[4], packet[2]);
  return {};
}

Status Fsp::send(uint8_t nvdm_type, std::span<const std::byte> payload) {
  const std::vector<uint32_t> packet = encode_fsp_packet(nvdm_type, payload);
  if (packet.size() * 4 > kFspMessageBytes)
    return fail(Code::kInvalidArgument, "a message of {} bytes, and the FSP takes {}",
                packet.size() * 4, kFspMessageBytes);
  uint32_t head = 0, tail = 0;
  const bool is_free = BM_TRY(bus_.poll(kFspUs, [&] {
    head = bus_.read(reg::kFspQueueHead);
    tail = bus_.read(reg::kFspQueueTail);
    return head == tail;
  }));
  if (!is_free)
    return fail(Code::kTimeout,
                "the FSP has not taken an earlier message: {} is {:#x}, {} is {:#x}",
                reg::kFspQueueHead.name, head, reg::kFspQueueTail.name, tail);
  bus_.write(reg::kFspEmemControl, kEmemWrite);
  bus_.write_port(reg::kFspEmemData, packet);
  // The tail is the last word; the head is written last: it tells.
  bus_.write(reg::kFspQueueTail, static_cast<uint32_t>((packet.size() - 1) * 4));
  bus_.write(reg::kFspQueueHead, 0);
  const bool has_answer = BM_TRY(bus_.poll(kFspUs, [&] {
    head = bus_.read(reg::kFspMessageHead);
    tail = bus_.read(reg::kFspMessageTail);
    return head != tail;
  }));
  if (!has_answer)
    return fail(Code::kTimeout, "the FSP does not answer message {:#x}: {} and {} are {:#x}",
                nvdm_type, reg::kFspMessageHead.name, reg::kFspMessageTail.name, head);
  const uint32_t bytes = tail - head + 4;
  if (bytes % 4 != 0 || bytes > kFspMessageBytes)
    return fail(Code::kCorrupt, "the FSP's answer lies from {:#x} to {:#x}", head, tail);
  std::vector<uint32_t> answer(bytes / 4);
  bus_.write(reg::kFspEmemControl, kEmemRead);
  for (uint32_t& word : answer) word = bus_.read(reg::kFspEmemData);
  bus_.write(reg::kFspMessageTail, 0);
  bus_.write(reg::kFspMessageHead, 0);
  BM_TRY(bus_.status());
  return check_fsp_response(answer, nvdm_type);
}

}  // namespace bm::nv::gsp
