#pragma once
// An NVIDIA card that this process alone owns, from its BARs and firmware files to a resource
// manager that answers, and back: stages P1 to P11 of a boot, and P17, its end. What is asked of
// the resource manager afterwards goes through rpc().

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/nv/gsp/boot_arguments.h"
#include "drivers/nv/gsp/boot_memory.h"
#include "drivers/nv/gsp/bus.h"
#include "drivers/nv/gsp/falcon.h"
#include "drivers/nv/gsp/generation.h"
#include "drivers/nv/gsp/message_queue.h"
#include "drivers/nv/gsp/protected_memory.h"
#include "drivers/transport/pci.h"
#include "firmware/nvidia/falcon.h"
#include "firmware/nvidia/fwsec.h"
#include "firmware/nvidia/gsp_image.h"
#include "firmware/nvidia/riscv.h"
#include "firmware/nvidia/rom.h"
#include "firmware/nvidia/set.h"
#include "firmware/store.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

struct Options {
  firmware::Search firmware;
  Clock* clock = nullptr;                   ///< nullptr: the machine's
  StageWatcher* watcher = nullptr;          ///< of stages; outlives the card
  const std::atomic<bool>* stop = nullptr;  ///< Ctrl-C: waits end with kCancelled
};

/// What a card says of itself before anything runs on it. Only reads.
struct CardFacts {
  uint32_t boot0 = 0, boot42 = 0;
  uint32_t architecture = 0, implementation = 0;
  std::string_view chip;  ///< "ga104"
  const Generation* generation = nullptr;
};
/// Errors: kDeviceLost (all ones); kUnsupported (no row, or a chip without firmware files).
Result<CardFacts> identify(Bus& bus);
/// Whether the program in its ROM is through.
bool is_rom_done(Bus& bus, const Generation& generation);
/// Of video memory, as the card has been set up by its ROM. Errors: kCorrupt.
Result<uint64_t> read_memory_bytes(Bus& bus, const Generation& generation);
/// The end of a GSP's protected memory; 0: none is set up.
uint64_t protected_memory_end(Bus& bus);

class GspCard {
 public:
  /// Boots the card behind `function`. Errors name the stage with its number, what was seen there
  /// and the stages before it: kUnsupported, kNotFound (firmware, with package), kDeviceLost,
  /// kTimeout, kIo, kCorrupt, kCancelled.
  static Result<std::unique_ptr<GspCard>> open(std::unique_ptr<PciFunction> function,
                                               const Options& options);
  /// As leave().
  ~GspCard();

  GspRpc& rpc() { return *queue_; }
  Bus& bus() { return bus_; }
  PciFunction& function() { return *function_; }
  /// Memory of the host that the card reaches.
  BootMemory& host_memory() { return *memory_; }
  const Generation& generation() const { return *facts_.generation; }
  const CardFacts& facts() const { return facts_; }
  uint64_t video_bytes() const { return video_bytes_; }
  const StageLog& stages() const { return bus_.stages; }
  bool was_reset() const { return was_reset_; }
  /// Of the firmware: "570.144".
  std::string_view firmware_version() const { return image_.version; }

  /// Stage P17: the resource manager unloads, the protected memory goes, and the next start needs
  /// no reset. Nothing of the card's is touched afterwards. Errors: what did not end; the next
  /// start resets the card then.
  Status leave();

 private:
  GspCard(std::unique_ptr<PciFunction> function, const Options& options, Clock& clock)
      : function_(std::move(function)), options_(options), bus_(*function_, clock, options.stop) {
    bus_.stages.set_watcher(options_.watcher);
  }
  struct Step {
    const char* name;
    Status (GspCard::*work)();
  };
  Status boot();
  // Stages, in order.
  Status take();
  Status check_bus();
  Status identify_card();
  Status clear_stale();
  Status wait_rom();
  Status clear_fsp_queue();
  Status read_memory();
  Status load_files();
  Status prepare_protected();
  Status make_boot_arguments();
  Status start_gsp();
  Status start_resource_manager();

  Status reset_function();
  Status read_rom();
  void set_flush_page(uint64_t address);
  uint64_t vga_workspace();
  Status run_fwsec(firmware::nvidia::FwsecCommand command);
  Status run_fwsec_pio(const firmware::nvidia::PreparedFwsec& ready, std::string_view what);
  Status run_fwsec_dma(const firmware::nvidia::PreparedFwsec& ready, std::string_view what);
  Result<uint32_t> read_fuse(uint32_t engine_mask, uint32_t ucode_id);
  Result<Mailboxes> run_signed(const firmware::nvidia::HsUcode& ucode,
                               std::optional<uint64_t> mailboxes, std::string_view what);
  Status place_image();
  Status scrub();
  Status start_with_booter();
  Status start_with_fsp();
  Status unload();
  Status unload_with_booter();
  Status unload_with_fsp();

  std::unique_ptr<PciFunction> function_;
  const Options options_;
  Bus bus_;
  CardFacts facts_;
  uint64_t video_bytes_ = 0;

  std::vector<firmware::File> files_;
  std::vector<std::byte> rom_bytes_;
  std::optional<firmware::nvidia::Rom> rom_;
  std::optional<firmware::nvidia::Fwsec> fwsec_;
  std::optional<firmware::nvidia::HsUcode> booter_load_, booter_unload_, scrubber_;
  std::optional<firmware::nvidia::FalconBootLoader> falcon_loader_;
  std::optional<firmware::nvidia::FmcImage> fmc_;
  firmware::nvidia::RiscvUcode loader_;
  firmware::nvidia::GspImage image_;
  std::span<const std::byte> signature_;

  std::unique_ptr<BootMemory> memory_;
  std::optional<Falcon> gsp_, sec2_;
  std::optional<ProtectedLayout> layout_;
  BootBlock flush_page_, image_block_, image_table_, loader_block_, signature_block_, meta_,
      fmc_block_;
  BootArguments arguments_;
  std::unique_ptr<MessageQueue> queue_;
  bool was_reset_ = false, has_asked_fsp_ = false, is_up_ = false, has_left_ = false;
};

}  // namespace bm::nv::gsp
