#pragma once
// A PCI function behind a socket: the protocol that tinygrad's remote server speaks
// (github.com/tinygrad/tinygrad, extra/remote/serve.py and tinygrad/runtime/support/system.py,
// commit a9069c177a). A server owns the function and serves registers, configuration space and
// memory of its own machine that the device can reach; memory of this process is out of reach.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "drivers/transport/pci.h"
#include "drivers/transport/system.h"

namespace bm {

/// Which functions of a server are meant. The server compares `(its device & mask) == device`.
struct RemotePciProbe {
  uint16_t vendor = 0;
  uint8_t base_class = 0;  ///< upper byte of the class code; 0: any
  struct Match {
    uint32_t mask = 0, device = 0;  ///< both 0: any device
  };
  std::vector<Match> devices = {{}};
};

struct RemotePciOptions {
  std::string address;  ///< as StreamSocket::connect() takes it
  /// Absent: the function `index` as the server counts, which need not be able to probe.
  std::optional<RemotePciProbe> probe = std::nullopt;
  uint32_t index = 0;  ///< among those that match
  /// Servers size a BAR once, so resizable ones are given their largest size before that.
  bool is_resized = true;
  /// TIMEOUT: servers of this machine answer in microseconds, and one that has died has closed; but
  /// a model may run whole kernels before it answers, tinygrad's for a minute.
  std::chrono::milliseconds reply_limit{120'000};
  /// Of what opens the function, where nothing runs kernels yet. TIMEOUT: a server answers that in
  /// milliseconds, or has another client, whose end may be hours away.
  std::chrono::milliseconds open_limit{15'000};
  /// TIMEOUT: a reset or a resized BAR takes a second of the other kernel; 60 s cover a machine
  /// that asks a person for a password first.
  std::chrono::milliseconds reset_limit{60'000};
};

struct RemotePciName {
  std::string bus;  ///< as the server writes it, "0000:03:00.0"
  uint32_t id = 0;  ///< the server's number
};

/// What a server offers. Errors: as open_remote_pci().
Result<std::vector<RemotePciName>> probe_remote_pci(System& system,
                                                    const RemotePciOptions& options);

/// One function of a server. Thread: its windows, any.
///
/// Writes to registers leave at once and are not answered; writes to memory are collected until
/// HostView::publish(), a read or a register write, and keep their order among all windows. A
/// window of map_bar() sends every register access as a message of its own, so that the server
/// makes one access of that width of it; blocks are sent and asked for together. A window of
/// map_bar_memory() or dma_allocate() sends a block as one message. reset() is whatever the
/// server's kernel knows for the function. There are no interrupts. Freed memory is kept for the
/// next dma_allocate(), since the server gives none back before it ends.
///
/// Errors of opening: those of StreamSocket::connect(); kNotFound (nothing matches, or the server
/// has no such function); kCorrupt (an answer that cannot be); kIo (the server refuses, with its
/// reason). `system` outlives the function.
Result<std::unique_ptr<PciFunction>> open_remote_pci(System& system,
                                                     const RemotePciOptions& options);

}  // namespace bm
