#pragma once
// A modelled card, files for it in a folder, and the two joined: what boots in tests.

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "drivers/nv/gsp/card.h"
#include "tests/sim/nv/chip/card.h"
#include "tests/sim/pci/function.h"
#include "tests/unit/firmware_nvidia/nv_files.h"
#include "tests/unit/nv_gsp/fake_gsp.h"

namespace bm::nv::gsp::test {

inline const char* const kChips[] = {"tu102", "ga100", "ga102", "ad102", "gh100", "gb100", "gb202"};

/// The files of a chip, small ones, in a folder of this process; the same for the model.
class Files {
 public:
  explicit Files(const std::string& chip);
  ~Files() { std::filesystem::remove_all(folder_); }
  firmware::Search search() const { return {.folders = {folder_}}; }
  const sim::nv::card::FirmwareFiles& files() const { return files_; }

 private:
  std::string folder_;
  sim::nv::card::FirmwareFiles files_;
};

inline firmware::nvidia::Bytes make_file(firmware::nvidia::Kind kind, const std::string& chip) {
  using namespace firmware::nvidia;
  const bool is_pio = chip == "tu102" || chip == "ga100";
  const auto hs = [&](uint32_t seed) {
    HsFile file{.signatures = is_pio ? 1u : 2u};
    Bytes bytes = file.build();
    // Programs differ from each other, signatures do not.
    for (size_t at = bytes.size() - file.image_bytes; at < bytes.size(); ++at)
      bytes[at] = static_cast<uint8_t>(bytes[at] ^ seed);
    return bytes;
  };
  switch (kind) {
    case Kind::kBooterLoad: return hs(0x11);
    case Kind::kBooterUnload: return hs(0x22);
    case Kind::kScrubber: return hs(0x33);
    case Kind::kFalconBootLoader: return gen_bootloader_file();
    case Kind::kBootLoader: return riscv_file(riscv_descriptor());
    case Kind::kFmc: return chip == "gh100" ? fmc_file(fmc_parts(384, 384)) : fmc_file(fmc_parts());
    case Kind::kGsp: {
      std::vector<Part> parts = {{".fwimage", pattern(300'000, 21)},
                                 {".fwversion", version_section("570.144")}};
      uint32_t seed = 50;
      for (const char* const family :
           {"tu10x", "ga100", "ga10x", "ad10x", "gh100", "gb10x", "gb20x"})
        parts.push_back({std::string(".fwsignature_") + family, pattern(1000, ++seed)});
      return gsp_file(parts);
    }
  }
  return {};
}

inline Files::Files(const std::string& chip) {
  std::string form = (std::filesystem::temp_directory_path() / "bm-nv-gsp-XXXXXX").string();
  folder_ = ::mkdtemp(form.data());
  const auto set = firmware::nvidia::firmware_set(chip);
  for (const auto& wanted : set->files) {
    const auto bytes = make_file(wanted.kind, chip);
    const std::filesystem::path path = std::filesystem::path(folder_) / wanted.name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<long>(bytes.size()));
    std::filesystem::permissions(
        path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    const auto view = firmware::nvidia::view(bytes);
    files_.files[std::string(firmware::nvidia::kind_name(wanted.kind))] = {view.begin(),
                                                                           view.end()};
  }
}

struct CardRig {
  explicit CardRig(const std::string& chip, sim::nv::card::CardOptions options = {}) : files(chip) {
    options.chip = chip;
    options.firmware = files.files();
    card = std::make_shared<sim::nv::card::Card>(std::move(options));
  }
  Result<std::unique_ptr<GspCard>> open(std::unique_ptr<PciFunction> function = nullptr) {
    if (!function) function = std::make_unique<sim::CardFunction>(card);
    return GspCard::open(std::move(function),
                         {.firmware = files.search(), .clock = &clock, .stop = &stop});
  }
  /// What the card has against its driver, a line each.
  std::string violations() const {
    std::string text;
    for (const std::string& one : card->violations()) text += one + "\n";
    return text;
  }
  FastClock clock;
  std::atomic<bool> stop{false};
  Files files;
  std::shared_ptr<sim::nv::card::Card> card;
};

}  // namespace bm::nv::gsp::test
