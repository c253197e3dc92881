#include "tests/unit/sim_nv_chip/hand_boot.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/sim/nv/bytes.h"
#include "tests/unit/firmware_nvidia/nv_files.h"

namespace bm::sim::nv::card {
namespace {

namespace files = bm::firmware::nvidia;

constexpr uint64_t kMiB = 1 << 20, kPage = 4096;
constexpr uint32_t kGsp = 0x110000, kSec2 = 0x840000;

Blob blob(const files::Bytes& bytes) {
  const auto view = files::view(bytes);
  return Blob(view.begin(), view.end());
}

uint32_t sum_of(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  for (size_t at = 0; at + 8 <= bytes.size(); at += 8) sum ^= get<uint64_t>(bytes, at);
  return static_cast<uint32_t>(sum ^ sum >> 32);
}

std::vector<std::byte> words(std::initializer_list<uint32_t> all) {
  std::vector<std::byte> out(all.size() * 4);
  size_t at = 0;
  for (const uint32_t one : all) put<uint32_t>(out, 4 * at++, one);
  return out;
}

}  // namespace

FirmwareFiles noise_files(const CardRow& row) {
  FirmwareFiles out;
  auto gsp = files::gsp_parts();
  for (const char* const name :
       {".fwsignature_tu10x", ".fwsignature_ga100", ".fwsignature_gb10x", ".fwsignature_gb20x"})
    gsp.push_back({name, files::pattern(64, static_cast<uint32_t>(name[15] * 7 + name[16]))});
  // More than one page of the radix list's last level.
  gsp[0].bytes = files::pattern(0x1800 + 600 * kPage, 21);
  out.files["gsp"] = blob(files::gsp_file(gsp));
  out.files["bootloader"] = blob(files::riscv_file(files::riscv_descriptor()));
  if (row.boot == BootPath::kFsp) {
    out.files["fmc"] = blob(files::fmc_file(files::fmc_parts(row.key_bytes, row.signature_bytes)));
    return out;
  }
  files::HsFile load, unload, scrubber;
  unload.os_data_bytes = 0x80;
  scrubber.image_bytes = 0x500;
  scrubber.os_data_bytes = 0x200;
  scrubber.ucode_id = 13;
  if (row.boot == BootPath::kFalconLoader) load.signatures = unload.signatures = 1;
  // Each program its own noise.
  const auto file = [](const files::HsFile& one, uint8_t flip) {
    Blob out_of = blob(one.build());
    for (size_t i = get<uint32_t>(out_of, 16); i < out_of.size(); ++i) out_of[i] ^= std::byte{flip};
    return out_of;
  };
  out.files["booter_load"] = file(load, 0);
  out.files["booter_unload"] = file(unload, 0x5a);
  out.files["scrubber"] = file(scrubber, 0xa5);
  if (row.boot == BootPath::kFalconLoader) {
    // Descriptor: start tag, DMEM offset, code offset and size, data offset and size.
    files::Bytes loader;
    files::words(loader, 0, {0x10de, 1, 0x400, 24, 48, 0x300, 0xfd, 0, 0, 0x200, 0x200, 0x100});
    files::append(loader, files::pattern(0x300, 3));
    out.files["gen_bootloader"] = blob(loader);
  }
  return out;
}

CardOptions noise_card(const std::string& chip) {
  CardOptions options;
  options.chip = chip;
  options.firmware = noise_files(*find_card_row(chip));
  options.vram_bytes = options.bar1_bytes = 512 * kMiB;
  return options;
}

HandBoot::HandBoot(Card& card, Slip slip) : card_(card), row_(card.row()), slip_(slip) {
  const auto given = noise_files(row_).files;
  std::string why;
  const auto hs = [&](const char* name, HsProgram::Kind kind) {
    return given.contains(name) ? read_hs(kind, given.at(name), &why) : std::nullopt;
  };
  files_.booter_load = hs("booter_load", HsProgram::Kind::kBooterLoad);
  files_.booter_unload = hs("booter_unload", HsProgram::Kind::kBooterUnload);
  files_.scrubber = hs("scrubber", HsProgram::Kind::kScrubber);
  files_.bootloader = read_riscv(given.at("bootloader"), &why);
  files_.gsp = read_gsp(given.at("gsp"), row_.signature, &why);
  if (given.contains("fmc")) files_.fmc = read_fmc(given.at("fmc"), &why);
  if (given.contains("gen_bootloader"))
    files_.loader = read_loader(given.at("gen_bootloader"), &why);
  files_.fwsec = card.vbios().fwsec;
  card_.place_bars();
  card_.write_config(4, 2, is(Slip::kNoBusMaster) ? 2 : 6);
}

HandBoot::~HandBoot() {
  card_.write_config(4, 2, 2);
  for (const uint64_t bus : mapped_) card_.system_memory().unmap(bus);
}

HandBoot::Page HandBoot::system(uint64_t bytes, bool is_mapped) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  memory_.push_back(std::make_unique<std::byte[]>(bytes + kPage));
  std::byte* host = memory_.back().get();
  host += (kPage - reinterpret_cast<uintptr_t>(host) % kPage) % kPage;
  const Page page{next_bus_, host};
  if (is_mapped) {
    card_.system_memory().map(page.bus, {host, bytes, false});
    mapped_.push_back(page.bus);
  }
  next_bus_ += bytes + kPage;
  return page;
}

bool HandBoot::wait(uint32_t address, uint32_t mask, uint32_t value) {
  for (int i = 0; i < 100; ++i)
    if ((rd(address) & mask) == value) return true;
  return false;
}

void HandBoot::reset(uint32_t base, bool into_riscv) {
  if (is(Slip::kNoReset)) return;
  wr(base + 0x3c0, 1);
  rd(base + 0x3c0);
  wr(base + 0x3c0, 0);
  if (row_.boot == BootPath::kFalconLoader) {
    if (!is(Slip::kNoScrubWait)) wait(base + 0x10c, 6, 0);
    return;
  }
  if (!is(Slip::kNoScrubWait)) wait(base + 0xf4, 1 << 12, 0);
  if (into_riscv && is(Slip::kNoRiscv)) return;
  wr(base + 0x1668, into_riscv ? 1u << 4 | 1u << 8 : 0);
  if (!into_riscv) wait(base + 0x1668, 1, 1);
}

// s_dmaTransfer_GA102(), kgspExecuteHsFalcon_GA102().
bool HandBoot::run_dma(uint32_t base, const HsProgram& program, std::span<const std::byte> data) {
  const auto code_bytes = static_cast<uint32_t>((program.code.size() + 255) / 256 * 256);
  const auto data_bytes = static_cast<uint32_t>((data.size() + 255) / 256 * 256);
  const Page image = system(code_bytes + data_bytes);
  std::memcpy(image.host, program.code.data(), program.code.size());
  std::memcpy(image.host + code_bytes, data.data(), data.size());
  if (is(Slip::kCodeByte)) image.host[5] ^= std::byte{1};
  wr(base + 0x624, rd(base + 0x624) | 0x80);
  wr(base + 0x10c, 0);
  wr(base + 0x600, is(Slip::kDmaNotPhysical) ? 1 : 5);
  const auto transfer = [&](uint64_t from, uint32_t to, uint32_t offset, uint32_t bytes,
                            uint32_t command) {
    wait(base + 0x118, 1, 0);
    wr(base + 0x110, static_cast<uint32_t>(from >> 8));
    wr(base + 0x128, static_cast<uint32_t>(from >> 40) & 0x1ff);
    for (uint32_t at = 0; at < bytes; at += 256) {
      wr(base + 0x114, to + at);
      wr(base + 0x11c, offset + at + (is(Slip::kDmaMisaligned) && at == 0 ? 4 : 0));
      wr(base + 0x118, command | 6 << 8);
      wait(base + 0x118, 2, 2);
    }
  };
  transfer(image.bus - program.code_virtual, 0, program.code_virtual, code_bytes,
           1u << 4 | (is(Slip::kNotSecure) ? 0u : 1u << 2));
  transfer(image.bus + code_bytes, 0, 0, data_bytes, 0);
  wr(base + 0x1210, program.signature_at + (is(Slip::kParameterAddress) ? 16 : 0));
  wr(base + 0x119c, program.engine_mask << (is(Slip::kEngineMask) ? 1 : 0));
  wr(base + 0x1198, program.ucode_id + (is(Slip::kUcodeId) ? 1 : 0));
  wr(base + 0x1180, 1);
  wr(base + 0x104, program.code_virtual + (is(Slip::kBootVector) ? 0x100 : 0));
  wr(base + 0x100, 2);
  return wait(base + 0x100, 1 << 4, 1 << 4);
}

// s_imemCopyTo_TU102().
void HandBoot::imem(uint32_t base, uint32_t at, std::span<const std::byte> code, uint32_t tag,
                    bool secure) {
  wr(base + 0x180, (at + (is(Slip::kMiddleOfBlock) ? 8 : 0)) | 1u << 24 | (secure ? 1u << 28 : 0));
  for (size_t i = 0; i < code.size(); i += 4) {
    if (i % 256 == 0 && !is(Slip::kNoTag)) wr(base + 0x188, static_cast<uint32_t>((tag + i) >> 8));
    wr(base + 0x184, get<uint32_t>(code, i));
  }
}

// s_prepareHsFalconDirect().
bool HandBoot::run_pio(uint32_t base, const HsProgram& program, std::span<const std::byte> data) {
  wr(base + 0x624, rd(base + 0x624) | 0x80);
  wr(base + 0x10c, 0);
  imem(base, 0, program.front, 0, false);
  imem(base, static_cast<uint32_t>((program.front.size() + 255) / 256 * 256), program.code,
       program.code_virtual, true);
  wr(base + 0x1c0, 1u << 24);
  for (size_t i = 0; i < data.size(); i += 4) wr(base + 0x1c4, get<uint32_t>(data, i));
  wr(base + 0x104, 0);
  wr(base + 0x100, 2);
  return wait(base + 0x100, 1 << 4, 1 << 4);
}

// s_prepareHsFalconWithLoader().
bool HandBoot::run_loader(const HsProgram& program, std::span<const std::byte> data) {
  const Page code = system(program.front.size() + program.code.size());
  std::memcpy(code.host, program.front.data(), program.front.size());
  std::memcpy(code.host + program.front.size(), program.code.data(), program.code.size());
  if (is(Slip::kCodeByte)) code.host[5] ^= std::byte{1};
  const Page data_page = system(data.size());
  std::memcpy(data_page.host, data.data(), data.size());
  wr(kGsp + 0x624, rd(kGsp + 0x624) | 0x80);
  wr(kGsp + 0x10c, 0);
  wr(kGsp + 0x610, 5);
  const uint32_t descriptor[21] = {0,
                                   0,
                                   0,
                                   0,
                                   0,
                                   0,
                                   0,
                                   0,
                                   is(Slip::kLoaderContext) ? 3u : 4u,
                                   static_cast<uint32_t>(code.bus),
                                   static_cast<uint32_t>(code.bus >> 32),
                                   0,
                                   static_cast<uint32_t>(program.front.size()),
                                   program.code_virtual,
                                   static_cast<uint32_t>(program.code.size()),
                                   0,
                                   static_cast<uint32_t>(data_page.bus),
                                   static_cast<uint32_t>(data_page.bus >> 32),
                                   static_cast<uint32_t>(data.size()),
                                   0,
                                   0};
  wr(kGsp + 0x1c0, 1u << 24);
  for (const uint32_t word : descriptor) wr(kGsp + 0x1c4, word);
  const uint32_t blocks = rd(kGsp + 0x108) & 0x1ff;
  const auto bytes = static_cast<uint32_t>(files_.loader->code.size());
  imem(kGsp, (blocks - (bytes + 255) / 256) * 256, files_.loader->code,
       files_.loader->start_tag << 8, false);
  wr(kGsp + 0x104, files_.loader->start_tag << 8);
  wr(kGsp + 0x100, 2);
  return wait(kGsp + 0x100, 1 << 4, 1 << 4);
}

bool HandBoot::run_fwsec(uint32_t command) {
  const HsProgram& program = *files_.fwsec;
  Blob data = program.data;
  const uint32_t input = get<uint32_t>(data, program.mapper_at + 8);
  put<uint32_t>(data, program.mapper_at + 44, command);
  const uint64_t frts = is(Slip::kFrtsBeyond) ? card_.vram().size() : frts_;
  const auto buffer = words({1, 24, 0, 0, 0, 2, 1, 20, static_cast<uint32_t>(frts >> 12),
                             is(Slip::kFrtsSize) ? 0x80u : 0x100u, 2});
  std::ranges::copy(buffer, data.begin() + input);
  if (program.signature_bytes != 0 && !is(Slip::kNoSignature)) {
    const Blob* const one = program.signature_for(is(Slip::kOldSignature) ? 0 : kFuse);
    std::ranges::copy(*one, data.begin() + program.signature_at);
  }
  return row_.boot == BootPath::kFalconDma ? run_dma(kGsp, program, data)
                                           : run_loader(program, data);
}

bool HandBoot::run_booter(const HsProgram& program, uint64_t mailbox) {
  Blob data = program.data;
  std::ranges::copy(*program.signature_for(kFuse), data.begin() + program.signature_at);
  reset(kSec2, false);
  wr(kSec2 + 0x40, static_cast<uint32_t>(mailbox));
  wr(kSec2 + 0x44, static_cast<uint32_t>(mailbox >> 32));
  const bool has_run = row_.boot == BootPath::kFalconDma ? run_dma(kSec2, program, data)
                                                         : run_pio(kSec2, program, data);
  return has_run && (program.kind == HsProgram::Kind::kScrubber || rd(kSec2 + 0x40) == 0);
}

// kgspCalculateFbLayout_TU102(), _GH100().
void HandBoot::make_meta(bool is_sizes_only) {
  const Blob& image = files_.gsp->image;
  const uint64_t pages = (image.size() + kPage - 1) / kPage, lists = (pages + 511) / 512;
  const Page loader = system(files_.bootloader->image.size());
  std::ranges::copy(files_.bootloader->image, loader.host);
  if (is(Slip::kLoaderContent)) loader.host[9] ^= std::byte{4};
  const Page signature = system(kPage);
  std::ranges::copy(files_.gsp->signature, signature.host);
  if (is(Slip::kSignatureOfOther)) signature.host[0] ^= std::byte{0xff};
  const Page radix = system((2 + lists + pages) * kPage);
  const std::span<std::byte> all(radix.host, (2 + lists + pages) * kPage);
  put<uint64_t>(all, 0, radix.bus + kPage);
  for (uint64_t i = 0; i < lists; ++i)
    put<uint64_t>(all, kPage + 8 * i, radix.bus + (2 + i) * kPage);
  for (uint64_t i = 0; i < pages; ++i)
    put<uint64_t>(all, 2 * kPage + 8 * i, radix.bus + (2 + lists + i) * kPage);
  std::memcpy(radix.host + (2 + lists) * kPage, image.data(), image.size());
  if (is(Slip::kRadixShort)) put<uint64_t>(all, 2 * kPage + 8 * (pages - 1), 0);
  if (is(Slip::kRadixContent)) radix.host[(2 + lists) * kPage + 77] ^= std::byte{1};

  meta_ = system(kPage, !is(Slip::kMetaNotMapped));
  const std::span<std::byte> meta(meta_.host, 256);
  const auto word = [&](size_t at, uint64_t value) { put<uint64_t>(meta, at, value); };
  word(0, is(Slip::kMetaMagic) ? 1 : 0xdc3aae21371a60b3);
  word(8, 1);
  word(16, radix.bus);
  word(24, image.size() + (is(Slip::kMetaImageBytes) ? 1 : 0));
  word(32, loader.bus);
  word(40, files_.bootloader->image.size());
  word(48, files_.bootloader->code);
  word(56, files_.bootloader->data);
  word(64, files_.bootloader->manifest);
  word(72, signature.bus);
  word(80, kPage);
  const uint64_t heap_bytes = (is(Slip::kMetaHeap) ? 4 : 128) * kMiB;
  const uint64_t non_wpr = (row_.non_wpr_heap + kMiB - 1) / kMiB * kMiB;
  word(104, is_sizes_only ? row_.non_wpr_heap : non_wpr);
  word(128, heap_bytes);
  word(160, row_.frts_bytes);
  const uint64_t size = card_.vram().size();
  if (is_sizes_only) {
    word(192, 128 * 1024);
    if (is(Slip::kMetaOffsets)) word(152, size - 2 * kMiB);
    return;
  }
  const uint64_t vga = size - kMiB, frts = frts_ - (is(Slip::kMetaFrts) ? 0x20000 : 0);
  const uint64_t boot = (frts - files_.bootloader->image.size()) / kPage * kPage;
  const uint64_t firmware = (boot - image.size()) / 0x10000 * 0x10000;
  const uint64_t heap = (firmware - heap_bytes) / kMiB * kMiB, start = heap - kMiB;
  word(88, start - non_wpr);
  word(96, start - non_wpr);
  word(112, start);
  word(120, heap + (is(Slip::kMetaOverlap) ? 2 * kMiB : 0));
  word(136, firmware - (is(Slip::kMetaMisaligned) ? 0x1000 : 0));
  word(144, boot);
  word(152, frts);
  word(168, frts + row_.frts_bytes);
  word(176, size);
  word(184, vga);
  word(192, kMiB);
}

// GspMsgQueuesInit(), kgspSetupLibosInitArgs_IMPL().
void HandBoot::make_queues() {
  constexpr uint64_t kQueue = 0x40000, kList = 0x1000;
  constexpr uint32_t kPages = (kList + 2 * kQueue) / kPage;
  queues_ = system(kList + 2 * kQueue);
  const std::span<std::byte> all(queues_.host, kList + 2 * kQueue);
  for (uint64_t i = 0; i < kPages; ++i) put<uint64_t>(all, 8 * i, queues_.bus + i * kPage);
  if (is(Slip::kPageList)) put<uint64_t>(all, 0, queues_.bus + kPage);
  const uint32_t count = kQueue / kPage - 1;
  const uint32_t header[] = {0,      static_cast<uint32_t>(kQueue),
                             0x1000, count + (is(Slip::kQueueHeader) ? 1 : 0),
                             0,      1,
                             32,     0x1000};
  for (size_t i = 0; i < std::size(header); ++i) put<uint32_t>(all, kList + 4 * i, header[i]);
  const Page arguments = system(kPage);
  const std::span<std::byte> a(arguments.host, 72);
  put<uint64_t>(a, 0, queues_.bus);
  put<uint32_t>(a, 8, kPages);
  put<uint64_t>(a, 16, kList);
  put<uint64_t>(a, 24, kList + kQueue);
  libos_ = system(kPage);
  const std::span<std::byte> l(libos_.host, kPage);
  size_t at = 0;
  const auto region = [&](const std::string& name, uint64_t where, uint64_t bytes) {
    uint64_t id = 0;
    for (const char one : name) id = id << 8 | static_cast<uint8_t>(one);
    put<uint64_t>(l, at, id);
    put<uint64_t>(l, at + 8, where);
    put<uint64_t>(l, at + 16, bytes);
    put<uint8_t>(l, at + 24, 1);
    put<uint8_t>(l, at + 25, 1);
    at += 32;
  };
  for (const char* const name : {"LOGINIT", "LOGINTR", "LOGRM", "LOGMNOC", "LOGKRNL"})
    region(name, system(0x10000).bus, 0x10000);
  if (!is(Slip::kNoRmArguments)) region("RMARGS", arguments.bus, 0x1000);
  if (!is(Slip::kNoSystemInfo)) send(rpc::kSetSystemInfo, std::vector<std::byte>(928));
  send(rpc::kSetRegistry, words({8, 0}));
}

// GspMsgQueueSendCommand().
void HandBoot::send(uint32_t function, std::span<const std::byte> payload) {
  const std::span<std::byte> queue(queues_.host + 0x1000, 0x40000);
  const uint32_t count = get<uint32_t>(queue, 12), at = get<uint32_t>(queue, 16);
  const size_t bytes = 80 + payload.size();
  const auto elements = static_cast<uint32_t>((bytes + kPage - 1) / kPage);
  std::vector<std::byte> message(elements * kPage);
  put<uint32_t>(message, 36, sequence_ + (is(Slip::kSequence) ? 1 : 0));
  put<uint32_t>(message, 40, elements + (is(Slip::kElements) ? 1 : 0));
  const uint32_t header[] = {3u << 24,
                             is(Slip::kRpcSignature) ? 1u : 0x43505256u,
                             static_cast<uint32_t>(32 + payload.size()),
                             function,
                             ~0u,
                             ~0u};
  for (size_t i = 0; i < std::size(header); ++i) put<uint32_t>(message, 48 + 4 * i, header[i]);
  std::ranges::copy(payload, message.begin() + 80);
  put<uint32_t>(
      message, 32,
      sum_of(std::span(message).first((bytes + 7) / 8 * 8)) ^ (is(Slip::kChecksum) ? 1 : 0));
  ++sequence_;
  for (uint32_t i = 0; i < elements; ++i)
    std::memcpy(&queue[0x1000 + (at + i) % count * kPage], &message[i * kPage], kPage);
  put<uint32_t>(queue, 16, (at + elements) % count);
  wr(0x110c00, 0);
}

bool HandBoot::receive(uint32_t function, std::vector<std::byte>* payload, uint32_t* result) {
  const std::span<std::byte> queue(queues_.host + 0x41000, 0x40000);
  const uint32_t count = get<uint32_t>(queue, 12);
  for (int i = 0; i < 200 && count != 0; ++i) {
    while (status_read_ != get<uint32_t>(queue, 16)) {
      const auto element = queue.subspan(0x1000 + status_read_ * kPage);
      const uint32_t elements = get<uint32_t>(element, 40);
      std::vector<std::byte> message(elements * kPage);
      for (uint32_t k = 0; k < elements; ++k)
        std::memcpy(&message[k * kPage], &queue[0x1000 + (status_read_ + k) % count * kPage],
                    kPage);
      status_read_ = (status_read_ + elements) % count;
      put<uint32_t>(std::span(queues_.host + 0x1000, 64), 32, status_read_);
      if (get<uint32_t>(message, 60) == rpc::kRunCpuSequencer &&
          !run_sequencer(std::span(message).subspan(80)))
        return false;
      if (get<uint32_t>(message, 60) != function) continue;
      if (result != nullptr) *result = get<uint32_t>(message, 64);
      payload->assign(message.begin() + 80, message.begin() + 48 + get<uint32_t>(message, 56));
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

// kgspExecuteSequencerBuffer_IMPL(), kgspExecuteSequencerCommand_TU102().
bool HandBoot::run_sequencer(std::span<const std::byte> payload) {
  const uint32_t end = get<uint32_t>(payload, 4);
  uint32_t at = 0;
  const auto next = [&] { return get<uint32_t>(payload, 40 + 4 * at++); };
  while (at < end) {
    switch (next()) {
      case 0: {
        const uint32_t address = next();
        wr(address, next());
        break;
      }
      case 1: {
        const uint32_t address = next();
        uint32_t mask = next(), value = next();
        if (is(Slip::kModifyExchanged)) std::swap(mask, value);
        wr(address, (rd(address) & ~mask) | (value & mask));
        break;
      }
      case 2: {
        const uint32_t address = next(), mask = next(), value = next();
        at += 2;
        if (!wait(address, mask, value)) return false;
        break;
      }
      case 3: next(); break;
      case 4:
        rd(next());
        next();
        break;
      case 5:
        reset(kGsp, false);
        wr(kGsp + 0x10c, 0);
        break;
      case 8:
        reset(kGsp, true);
        wr(kGsp + 0x40, static_cast<uint32_t>(libos_.bus) + (is(Slip::kResumeArguments) ? 64 : 0));
        wr(kGsp + 0x44, static_cast<uint32_t>(libos_.bus >> 32));
        wr(kSec2 + 0x100, 2);
        if (!wait(0x1180f8, 1 << 26, 1 << 26) || rd(kSec2 + 0x40) != 0) return false;
        break;
      default: return false;
    }
  }
  return true;
}

std::vector<std::byte> HandBoot::call(uint32_t function, std::span<const std::byte> payload,
                                      uint32_t* result) {
  std::vector<std::byte> out;
  send(function, payload);
  receive(function, &out, result);
  return out;
}

// kfspSendPacket_GH100(), kfspPrepareBootCommands_GH100(), kgspSetupGspFmcArgs_GH100().
bool HandBoot::run_fsp() {
  const FmcImage& fmc = *files_.fmc;
  const Page image = system(fmc.image.size()), parameters = system(kPage);
  std::ranges::copy(fmc.image, image.host);
  const std::span<std::byte> p(parameters.host, 80);
  put<uint32_t>(p, 8, is(Slip::kFmcTarget) ? 0 : 1);
  put<uint32_t>(p, 12, 256);
  put<uint64_t>(p, 16, meta_.bus);
  put<uint8_t>(p, 36, 1);
  put<uint32_t>(p, 40, 1);
  put<uint64_t>(p, 48, libos_.bus);
  std::vector<std::byte> message(8 + 860);
  put<uint32_t>(message, 0, is(Slip::kFspHeader) ? 1u << 31 : 3u << 30);
  put<uint32_t>(message, 4, 0x7e | 0x10de << 8 | 0x14u << 24);
  const std::span<std::byte> cot(message.data() + 8, 860);
  put<uint16_t>(cot, 0, static_cast<uint16_t>(row_.cot_version + (is(Slip::kCotVersion) ? 1 : 0)));
  put<uint16_t>(cot, 2, 860);
  put<uint64_t>(cot, 4, image.bus);
  put<uint64_t>(cot, 24, 32 * kMiB);
  put<uint32_t>(cot, 32, row_.frts_bytes);
  std::ranges::copy(fmc.hash, cot.begin() + 36);
  std::ranges::copy(fmc.key, cot.begin() + 84);
  std::ranges::copy(fmc.signature, cot.begin() + 468);
  if (is(Slip::kCotHash)) cot[40] ^= std::byte{1};
  if (is(Slip::kCotKey)) cot[84 + row_.key_bytes - 1] ^= std::byte{1};
  put<uint64_t>(cot, 852, parameters.bus);
  wr(0x8f2ac0, 1u << 24);
  for (size_t i = 0; i < message.size(); i += 4) wr(0x8f2ac4, get<uint32_t>(message, i));
  wr(0x8f2c04, static_cast<uint32_t>(message.size() - 4));
  wr(0x8f2c00, 0);
  if (rd(0x8f2c80) == rd(0x8f2c84)) return false;
  wr(0x8f2ac0, 1u << 25);
  std::array<uint32_t, 5> answer{};
  for (uint32_t& one : answer) one = rd(0x8f2ac4);
  wr(0x8f2c84, rd(0x8f2c80));
  if (answer[3] != 0x14 || answer[4] != 0) return false;
  for (int i = 0; i < 10 && (rd(kGsp + 0x100) & 0xffff0000) == 0xbadf0000; ++i) {}
  return wait(kGsp + 0xf4, 1 << 13, 0) && rd(kGsp + 0x40) == 0;
}

bool HandBoot::boot() {
  frts_ = card_.vram().size() - 2 * kMiB;
  if (is(Slip::kUndocumentedRegister)) wr(0x123450, 1);
  if (is(Slip::kReadOnlyRegister)) wr(0x0, 1);
  if (is(Slip::kBar1Virtual)) wr(0x1704, 1u << 31);
  const uint32_t rom = row_.i2cs_scratch != 0 ? row_.i2cs_scratch : 0x118234;
  if (!is(Slip::kNoRomWait) && !is(Slip::kFspTooEarly) && !wait(rom, 0xff, 0xff)) return false;
  make_meta(row_.boot == BootPath::kFsp);
  make_queues();
  if (row_.boot == BootPath::kFsp) {
    if (!run_fsp()) return false;
  } else {
    if (row_.frts_bytes != 0 && !is(Slip::kNoFwsec)) {
      reset(kGsp, false);
      if (!run_fwsec(0x15) || rd(0x1fa828) == 0) return false;
    }
    reset(kGsp, true);
    wr(kGsp + 0x40, static_cast<uint32_t>(libos_.bus));
    wr(kGsp + 0x44, static_cast<uint32_t>(libos_.bus >> 32));
    if (row_.scrub_handoff != 0 && rd(row_.scrub_handoff) >> 29 < 3 && !is(Slip::kNoScrubber) &&
        !run_booter(*files_.scrubber, 0))
      return false;
    if (!run_booter(*files_.booter_load, meta_.bus)) return false;
  }
  wr(kGsp + 0x80, files_.bootloader->app_version);
  std::vector<std::byte> unused;
  return receive(rpc::kInitDone, &unused, nullptr);
}

uint32_t HandBoot::allocate(uint32_t parent, uint32_t handle, uint32_t number,
                            std::vector<std::byte> params) {
  auto message =
      words({client_, parent, handle, number, 0, static_cast<uint32_t>(params.size()), 0, 0});
  message.insert(message.end(), params.begin(), params.end());
  const auto answer = call(rpc::kAlloc, message);
  return answer.size() < 20 ? ~0u : get<uint32_t>(answer, 16);
}

uint32_t HandBoot::control(uint32_t handle, uint32_t command, std::vector<std::byte> params,
                           std::vector<std::byte>* out) {
  auto message = words({client_, handle, command, 0, static_cast<uint32_t>(params.size()), 0});
  message.insert(message.end(), params.begin(), params.end());
  const auto answer = call(rpc::kControl, message);
  if (answer.size() < 24) return ~0u;
  if (out != nullptr) out->assign(answer.begin() + 24, answer.end());
  return get<uint32_t>(answer, 12);
}

/// An entry of the lowest level; the tables lie from 2 MiB on in video memory, the root at 1 MiB.
void HandBoot::map_page(uint64_t address, uint64_t entry) {
  const bool is_v3 = row_.mmu == MmuVersion::k3;
  const std::vector<uint32_t> shifts =
      is_v3 ? std::vector<uint32_t>{56, 47, 38, 29, 21} : std::vector<uint32_t>{47, 38, 29, 21};
  uint64_t table = kMiB;
  const auto directory = [&](uint64_t to) {
    return is_v3 ? to | 2 << 3 | 1 << 1 : to >> 4 | 1 << 5 | 1 << 1;
  };
  for (size_t i = 0; i < shifts.size(); ++i) {
    const bool is_dual = i + 1 == shifts.size();
    const uint64_t index = address >> shifts[i] & (is_dual ? 255 : 511);
    const uint64_t at = table + (is_dual ? index * 16 + 8 : index * 8);
    uint64_t there = card_.read(1, at, 8);
    if (there == 0) {
      const std::vector<std::byte> zeros(kPage);
      card_.write_block(1, next_table_, zeros);
      // NO_ATS lies in a dual entry's lower half.
      there = directory(next_table_) & (is_dual && !is_v3 ? ~uint64_t{1 << 5} : ~uint64_t{0});
      card_.write(1, at, 8, there);
      if (is_dual) card_.write(1, at - 8, 8, 0);
      next_table_ += kPage;
    }
    table = is_v3 ? there & 0xf'ffff'ffff'f000 : (there & ~uint64_t{0xff}) << 4;
  }
  card_.write(1, table + (address >> 12 & 511) * 8, 8, entry);
}

bool HandBoot::make_channel() {
  const bool is_v3 = row_.mmu == MmuVersion::k3;
  const Chip& chip = *find_chip(row_.name);
  const std::vector<std::byte> zeros(kPage);
  card_.write_block(1, kMiB, zeros);
  const auto video = [&](uint64_t at) {
    return is_v3 ? at | 1u << 3 | 6u << 8 | 1 : at >> 4 | uint64_t{6} << 56 | 1;
  };
  const auto system_page = [&](uint64_t at) { return video(at) | 2 << 1; };
  ring_at_ = 0x10'0000'0000;
  data_at_ = ring_at_ + kPage;
  const uint64_t ring = 16 * kMiB, data = 16 * kMiB + kPage;
  card_.write_block(1, ring, zeros);
  card_.write_block(1, data, zeros);
  map_page(ring_at_, video(ring));
  const Page there = system(kPage, !is(Slip::kPageNotMapped));
  uint64_t entry = video(data);
  if (is(Slip::kReservedBits)) entry |= is_v3 ? uint64_t{1} << 55 : uint64_t{1} << 34;
  if (is(Slip::kPeer)) entry |= 1 << 1;
  if (is(Slip::kPageNotMapped)) entry = system_page(there.bus);
  if (is(Slip::kPageProtected)) entry = video(card_.vram().size() - 40 * kMiB);
  map_page(data_at_, entry);
  if (!is(Slip::kNoInvalidate)) wr(0xb830b0, 1u << 31 | 1 << 6 | 3);

  const uint32_t device = object_ + 1, subdevice = object_ + 2, space = object_ + 3,
                 group = object_ + 4, share = object_ + 5, channel = object_ + 6,
                 compute = object_ + 7;
  const auto zero = [](size_t bytes) { return std::vector<std::byte>(bytes); };
  if (allocate(0, client_, 0, zero(120)) != 0) return false;
  if (allocate(client_, device, 0x80, zero(is(Slip::kClassBytes) ? 52 : 56)) != 0) return false;
  if (allocate(is(Slip::kParent) ? client_ : device, subdevice, 0x2080, zero(4)) != 0) return false;
  if (allocate(device, is(Slip::kHandleTwice) ? subdevice : space, 0x90f1, zero(48)) != 0)
    return false;
  if (!is(Slip::kNoPageDirectory)) {
    auto directory = words({client_, device, ~0u, 0});
    directory.resize(48);
    put<uint64_t>(directory, 16, kMiB);
    put<uint32_t>(directory, 24, is_v3 ? 2 : 4);
    put<uint32_t>(directory, 28, 8);
    put<uint32_t>(directory, 32, space);
    uint32_t result = ~0u;
    call(rpc::kSetPageDirectory, directory, &result);
    if (result != 0) return false;
  }
  if (allocate(device, group, 0xa06c, words({0, 0, space, 1, 0})) != 0) return false;
  if (allocate(group, share, 0x9067, words({space, 0, 0})) != 0) return false;
  auto params = zero(368);
  put<uint64_t>(params, 8, ring_at_);
  put<uint32_t>(params, 16, 32);
  put<uint32_t>(params, 24, share);
  const auto memory = [&](size_t at, uint64_t base, uint64_t bytes) {
    put<uint64_t>(params, at, base);
    put<uint64_t>(params, at + 8, bytes);
    put<uint32_t>(params, at + 16, 2);
  };
  userd_at_ = 20 * kMiB;
  uint64_t instance = 24 * kMiB;
  if (is(Slip::kInstanceBeyond)) instance = card_.vram().size();
  if (is(Slip::kInstanceProtected)) instance = card_.vram().size() - 40 * kMiB;
  card_.write_block(1, userd_at_, zeros);
  memory(144, instance, 4096);
  memory(168, userd_at_, 512);
  const Page other_userd = system(kPage, true);
  if (is(Slip::kUserdUnmapped)) {
    constexpr uint32_t kSystemMemory = 1;  // ADDR_SYSMEM
    memory(168, other_userd.bus, 512);
    put<uint32_t>(params, 168 + 16, kSystemMemory);
  }
  memory(192, instance, 512);
  memory(216, is(Slip::kInstanceTwice) ? instance : 28 * kMiB, 0x5000);
  uint32_t number = chip.name == "tu102" ? 0xc46f : 0xc56f;
  if (row_.name == "gh100") number = 0xc86f;
  if (is_v3 && row_.name != "gh100") number = 0xc96f;
  if (allocate(group, channel, is(Slip::kClassOfOther) ? (is_v3 ? 0xc36f : 0xc96f) : number,
               params) != 0)
    return false;
  auto promoted = zero(560);
  put<uint32_t>(promoted, 0, 1);
  put<uint32_t>(promoted, 12, client_);
  put<uint32_t>(promoted, 16, channel);
  put<uint32_t>(promoted, 40, 1);
  put<uint64_t>(promoted, 48, 64 * kMiB);
  put<uint64_t>(promoted, 64, is(Slip::kBufferSmall) ? 4096 : 4 * kMiB);
  if (control(subdevice, 0x2080012b, promoted) != 0) return false;
  if (allocate(channel, compute, chip.compute_class, {}) != 0) return false;
  std::vector<std::byte> token;
  if (control(channel, 0xc36f0108, zero(is(Slip::kControlBytes) ? 8 : 4), &token) != 0)
    return false;
  if (is(Slip::kUserdUnmapped)) card_.before_unmap(other_userd.bus, kPage);
  token_ = get<uint32_t>(token, 0) | (chip.token == TokenForm::kRunlistChannelRing ? 1u << 30 : 0);
  return control(group, 0xa06c0101, {std::byte{1}, std::byte{0}}) == 0;
}

// NVC56F_SEM_ADDR_LO … SEM_EXECUTE: release of 32 bits.
bool HandBoot::release() {
  if (is(Slip::kWriteProtected)) card_.write(1, card_.vram().size() - 40 * kMiB, 4, 1);
  const uint64_t ring = 16 * kMiB, push = data_at_ + 0x100, target = data_at_ + 0x800;
  const uint32_t value = 0x1000 + gp_put_;
  const auto code = words({1u << 29 | 5u << 16 | 0x5c / 4, static_cast<uint32_t>(target),
                           static_cast<uint32_t>(target >> 32), value, 0, 1});
  card_.write_block(1, ring + kPage + 0x100, code);
  card_.write(1, ring + gp_put_ * 8ull, 8, (push & 0xff'ffff'fffc) | uint64_t{6} << 42);
  ++gp_put_;
  card_.write(1, userd_at_ + 0x8c, 4, gp_put_);
  wr(0xbb0090, is(Slip::kForeignToken) ? token_ + 5 : token_);
  for (int i = 0; i < 500; ++i) {
    if (card_.read(1, ring + kPage + 0x800, 4) == value) return true;
    if (!card_.violations().empty() && slip_ != Slip::kNone && i > 50) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

bool HandBoot::unload() {
  if (call(rpc::kUnloading, words({0, 0})).size() != 8) return false;
  if (row_.boot == BootPath::kFsp) return !card_.is_gsp_running();
  if (row_.frts_bytes != 0) {
    reset(kGsp, false);
    if (!run_fwsec(0x19)) return false;
  }
  return run_booter(*files_.booter_unload, 0xff'0000'00ff) && rd(0x1fa828) == 0;
}

}  // namespace bm::sim::nv::card
