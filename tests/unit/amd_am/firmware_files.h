#pragma once
// A folder with the firmware files of a chip, made of bytes that mean nothing: headers by
// amdgpu_ucode.h, every image with the mark and length that AMD's have ("$PS1" at byte 16, signed
// bytes at byte 20, 0x200 less than the whole).

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "firmware/amd/set.h"
#include "firmware/store.h"
#include "tests/unit/firmware_amd/blob.h"

namespace bm::test {

/// RS64 start address in bytes, as in every MEC file.
inline constexpr uint64_t kMecStart = 0x0007'0000'0000'3000;

class FirmwareFolder {
 public:
  FirmwareFolder() : is_temporary_(true) {
    std::string name = "/tmp/am-firmware-XXXXXX";
    path_ = mkdtemp(name.data());
  }
  /// A folder that is there already, and stays.
  explicit FirmwareFolder(std::string path) : path_(std::move(path)) {}
  ~FirmwareFolder() {
    if (is_temporary_) std::filesystem::remove_all(path_);
  }
  FirmwareFolder(const FirmwareFolder&) = delete;
  FirmwareFolder& operator=(const FirmwareFolder&) = delete;

  firmware::Search search() const { return {.folders = {path_}}; }
  const std::string& path() const { return path_; }

  /// What a chip of this name wants; false: there is none.
  bool write_chip(std::string_view chip) {
    const firmware::amd::ChipId ids[] = {
        {{9, 4, 3}, {13, 0, 6}, {13, 0, 6}, {4, 4, 2}, 0x74a1, 0},
        {{11, 0, 0}, {13, 0, 0}, {13, 0, 0}, {6, 0, 0}, 0x744c, 0},
        {{11, 0, 2}, {13, 0, 7}, {13, 0, 7}, {6, 0, 2}, 0x7480, 0},
        {{11, 0, 3}, {13, 0, 10}, {13, 0, 10}, {6, 0, 3}, 0x747e, 0},
        {{12, 0, 0}, {14, 0, 2}, {14, 0, 2}, {7, 0, 0}, 0x7590, 0},
        {{12, 0, 1}, {14, 0, 3}, {14, 0, 3}, {7, 0, 1}, 0x7550, 0}};
    for (const auto& id : ids) {
      const auto set = firmware::amd::firmware_set(id);
      if (!set || set->arch != chip) continue;
      write(*set);
      return true;
    }
    return false;
  }
  void write(const firmware::amd::FirmwareSet& set) {
    for (const auto& file : set.files)
      if (!file.is_optional)
        write(file.name, for_version(set.arch == "gfx942" ? make_cdna(file.kind)
                                                          : make(file.name, file.kind,
                                                                 set.arch.starts_with("gfx12")),
                                     file.name));
  }
  void write(const std::string& name, const firmware::amd::Blob& blob) {
    const std::filesystem::path at = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(at.parent_path());
    std::ofstream out(at, std::ios::binary);
    const auto bytes = blob.bytes();
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
  }

 private:
  using Blob = firmware::amd::Blob;
  using Kind = firmware::amd::Kind;
  static constexpr uint32_t kBody = 0x100;

  /// Appends an image; its offset in the file.
  static uint32_t image(Blob& blob, uint32_t bytes, uint8_t value) {
    const auto at = static_cast<uint32_t>(std::max<size_t>(blob.size(), kBody));
    blob.fill(at, bytes, value);
    blob.put<uint32_t>(at + 16, 0x31535024).put<uint32_t>(at + 20, bytes - 0x200);
    return at;
  }
  static Blob begin(uint16_t major, uint16_t minor, uint32_t header_bytes) {
    Blob blob;
    blob.put<uint32_t>(4, header_bytes)
        .put<uint16_t>(8, major)
        .put<uint16_t>(10, minor)
        .put<uint32_t>(16, 0x1234)
        .put<uint32_t>(24, kBody);
    blob.resize(kBody);
    return blob;
  }
  /// ip_version_major and ip_version_minor: the first two numbers of the name, as in AMD's files of
  /// these chips.
  static Blob for_version(Blob blob, const std::string& name) {
    const size_t major = name.find('_') + 1, minor = name.find('_', major) + 1;
    blob.put(12, static_cast<uint16_t>(std::stoi(name.substr(major))));
    return blob.put(14, static_cast<uint16_t>(std::stoi(name.substr(minor))));
  }
  static Blob whole(Blob& blob) {
    blob.put<uint32_t>(20, static_cast<uint32_t>(blob.size() - kBody));
    return firmware::amd::seal(blob);
  }

  static Blob sos(bool is_gfx12) {
    // enum psp_fw_type: KDB, SYS, SOC, INTF, DBG, RAS, SOS, TOC, then SPL, and IPKEYMGR on gfx12.
    std::vector<uint32_t> types{3, 2, 7, 8, 9, 10, 1, 4, 5};
    if (is_gfx12) types.push_back(11);
    Blob blob = begin(2, 0, 36 + 16 * static_cast<uint32_t>(types.size()));
    blob.put<uint32_t>(32, static_cast<uint32_t>(types.size()));
    for (size_t i = 0; i < types.size(); ++i) {
      const uint32_t bytes = 0x800 + 0x10 * types[i];
      const uint32_t at = image(blob, bytes, static_cast<uint8_t>(types[i]));
      blob.words(36 + 16 * i, {types[i], 0x100, at - kBody, bytes});
    }
    return whole(blob);
  }
  /// smc_firmware_header_v2_1, as the files of SMU 13 and 14 have it, with one table for a board.
  static Blob smu() {
    Blob blob = begin(2, 1, 44);
    image(blob, 0x1000, 18);
    const auto table = static_cast<uint32_t>(blob.size());
    blob.fill(table, 0x100, 19);
    blob.words(32, {0x20000, 1, 44, 3005, table, 0x100});
    blob.put<uint32_t>(20, 0x1000);
    return firmware::amd::seal(blob);
  }
  static Blob sdma(bool is_gfx12) {
    if (is_gfx12) {
      Blob blob = begin(3, 0, 44);
      image(blob, 0x1000, 71);
      blob.words(32, {1, kBody, 0x1000});
      return whole(blob);
    }
    Blob blob = begin(2, 0, 64);
    image(blob, 0x1000, 71);
    const uint32_t control = image(blob, 0xc00, 72);
    blob.words(32, {1, 0x1000, 0, 0, control, 0xc00, 0, 0});
    return whole(blob);
  }
  static Blob processor(uint8_t value) {
    Blob blob = begin(2, 0, 60);
    image(blob, 0x2000, value);
    const uint32_t data = image(blob, 0x1000, static_cast<uint8_t>(value + 1));
    blob.words(32, {1, 0x2000, kBody, 0x1000, data, static_cast<uint32_t>(kMecStart),
                    static_cast<uint32_t>(kMecStart >> 32)});
    return whole(blob);
  }
  static Blob imu() {
    Blob blob = begin(1, 0, 48);
    image(blob, 0x1000, 68);
    const uint32_t data = image(blob, 0x1000, 69);
    blob.words(32, {0x1000, kBody, 0x1000, data});
    return whole(blob);
  }
  static Blob rlc(bool is_gfx12) {
    constexpr uint32_t kIram = 156, kProcessors = 172;
    Blob blob = begin(2, is_gfx12 ? 2 : 3, is_gfx12 ? 172 : 204);
    image(blob, 0x1000, 8);
    const uint32_t iram = image(blob, 0x800, 26);
    const uint32_t dram = image(blob, 0x800, 48);
    blob.words(kIram, {0x800, iram, 0x800, dram});
    if (!is_gfx12) {
      const uint32_t p = image(blob, 0x800, 25);
      const uint32_t v = image(blob, 0x800, 7);
      blob.words(kProcessors, {1, 1, 0x800, p, 1, 1, 0x800, v});
    }
    blob.put<uint32_t>(20, 0x1000);
    return firmware::amd::seal(blob);
  }

  // MI300X: a second set of SOS parts, tables for boards instead of power management firmware, a
  // MEC with its jump table, lists of the RLC.
  static Blob sos_cdna() {
    constexpr uint32_t kArray = 0x200, kAux = 0x10000000;
    const std::vector<uint32_t> types = {3, 2, 7, 8, 9, 10, 1, 6};
    Blob blob = begin(2, 1, 40 + 32 * static_cast<uint32_t>(types.size()));
    blob.resize(kArray);
    blob.words(32, {2 * static_cast<uint32_t>(types.size()), static_cast<uint32_t>(types.size())});
    blob.put<uint32_t>(24, kArray);
    for (size_t i = 0; i < 2 * types.size(); ++i) {
      const uint32_t type = types[i % types.size()], bytes = 0x800 + 0x10 * type;
      const bool is_aux = i >= types.size();
      const uint32_t at = image(blob, bytes, static_cast<uint8_t>(is_aux ? type + 64 : type));
      blob.words(40 + 16 * i, {type, is_aux ? kAux : 0x100, at - kArray, bytes});
    }
    blob.put<uint32_t>(20, static_cast<uint32_t>(blob.size() - kArray));
    return firmware::amd::seal(blob);
  }
  static Blob make_cdna(Kind kind) {
    switch (kind) {
      case Kind::kSos: return sos_cdna();
      case Kind::kSmu: {
        Blob blob = begin(2, 1, 44);
        const uint32_t at = image(blob, 0x480, 129);
        blob.words(32, {0, 2, 44, 0x50325341, at, 0x240, 0x50325358, at + 0x240, 0x240});
        return firmware::amd::seal(blob);
      }
      case Kind::kSdma: {
        Blob blob = begin(1, 0, 48);
        image(blob, 0x1000, 9);
        return whole(blob);
      }
      case Kind::kCp: {
        constexpr uint32_t kTable = 0x480;
        Blob blob = begin(1, 0, 44);
        image(blob, 0x2000, 4);
        blob.words(32, {1, (0x2000 - kTable) / 4, kTable / 4});
        return whole(blob);
      }
      case Kind::kRlc: {
        Blob blob = begin(2, 1, 156);
        image(blob, 0x1000, 8);
        const uint32_t control = image(blob, 0x340, 22), gpm = image(blob, 0x700, 20),
                       srm = image(blob, 0x1580, 21);
        blob.words(108, {1, 1, 0x340, control, 1, 1, 0x700, gpm, 1, 1, 0x1580, srm});
        blob.put<uint32_t>(20, 0x1000);
        return firmware::amd::seal(blob);
      }
      case Kind::kImu:
      case Kind::kTa:
      case Kind::kToc:
      case Kind::kMes: break;
    }
    return {};
  }

  static Blob make(const std::string& name, Kind kind, bool is_gfx12) {
    switch (kind) {
      case Kind::kSos: return sos(is_gfx12);
      case Kind::kSmu: return smu();
      case Kind::kSdma: return sdma(is_gfx12);
      case Kind::kCp: return processor(name.find("_mec") != std::string::npos ? 89 : 87);
      case Kind::kRlc: return rlc(is_gfx12);
      case Kind::kImu: return imu();
      case Kind::kTa:
      case Kind::kToc:
      case Kind::kMes: break;
    }
    return {};
  }

  std::string path_;
  bool is_temporary_ = false;
};

}  // namespace bm::test
