#pragma once
// A modelled card, one of whose accesses goes wrong on the way.

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tests/sim/pci/function.h"

namespace bm::nv::gsp::test {

enum class Fault { kOnes, kWrong, kDropped, kTransport };
inline constexpr Fault kFaults[] = {Fault::kOnes, Fault::kWrong, Fault::kDropped,
                                    Fault::kTransport};

/// Which access goes wrong, and how many there were. Blocks of video memory count as one.
struct Planted {
  Fault fault = Fault::kOnes;
  uint64_t nth = 0;           ///< 0: none
  bool is_in_memory = false;  ///< BAR 1 is counted, else BAR 0
  uint64_t count = 0;
};

class FaultyWindow final : public RemoteWindow {
 public:
  /// `is_counted`: the fault may be here. `planted` outlives it.
  FaultyWindow(Mmio inner, HostView memory, Planted& planted, bool is_counted)
      : inner_(inner), memory_(memory), planted_(planted), is_counted_(is_counted) {}
  uint64_t size() const override { return inner_.size(); }
  uint64_t read(uint64_t offset, uint32_t width) override {
    uint64_t value = width == 8 ? inner_.read64(offset) : inner_.read32(offset);
    if (!is_hit()) return value;
    spoil(std::as_writable_bytes(std::span(&value, 1)).first(width));
    return value;
  }
  void write(uint64_t offset, uint32_t width, uint64_t value) override {
    if (is_hit()) {
      if (planted_.fault == Fault::kTransport) break_transport();
      if (planted_.fault != Fault::kWrong) return;
      value ^= 0x10101010;
    }
    if (width == 8)
      inner_.write64(offset, value);
    else
      inner_.write32(offset, static_cast<uint32_t>(value));
  }
  void read_block(uint64_t offset, std::span<std::byte> to) override {
    memory_.copy_out(offset, to);
    if (is_hit()) spoil(to.first(4));
  }
  void write_block(uint64_t offset, std::span<const std::byte> from) override {
    if (is_hit()) {
      if (planted_.fault == Fault::kTransport) break_transport();
      if (planted_.fault != Fault::kWrong) return;
      std::vector<std::byte> spoilt(from.begin(), from.end());
      for (std::byte& one : std::span(spoilt).first(4)) one ^= std::byte{0x10};
      memory_.copy_in(offset, spoilt);
      return;
    }
    memory_.copy_in(offset, from);
  }
  void flush() override {}
  Status status() const override { return status_; }

 private:
  bool is_hit() { return is_counted_ && ++planted_.count == planted_.nth; }
  void break_transport() { status_ = fail(Code::kIo, "planted: the transport fails"); }
  void spoil(std::span<std::byte> bytes) {
    for (std::byte& one : bytes) switch (planted_.fault) {
        case Fault::kOnes: one = std::byte{0xff}; break;
        case Fault::kWrong: one ^= std::byte{0x10}; break;
        case Fault::kDropped: one = std::byte{0}; break;
        case Fault::kTransport:
          break_transport();
          one = std::byte{0xff};
          break;
      }
  }
  Mmio inner_;
  HostView memory_;
  Planted& planted_;
  const bool is_counted_;
  Status status_;
};

class FaultyFunction final : public sim::CardFunction {
 public:
  /// `planted` outlives it.
  FaultyFunction(std::shared_ptr<sim::PciCard> card, Planted& planted)
      : CardFunction(std::move(card)), planted_(planted) {}
  Result<Mmio> map_bar(uint32_t index) override { return Mmio::remote(*BM_TRY(window(index))); }
  Result<HostView> map_bar_memory(uint32_t index, bool) override {
    return HostView::remote(*BM_TRY(window(index)));
  }
  Status status() const override {
    for (const auto& window : windows_) BM_TRY(window->status());
    return CardFunction::status();
  }

 private:
  Result<RemoteWindow*> window(uint32_t index) {
    const Mmio inner = BM_TRY(CardFunction::map_bar(index));
    const HostView memory = BM_TRY(CardFunction::map_bar_memory(index, false));
    windows_.push_back(std::make_unique<FaultyWindow>(inner, memory, planted_,
                                                      index == (planted_.is_in_memory ? 1u : 0u)));
    return windows_.back().get();
  }
  Planted& planted_;
  std::vector<std::unique_ptr<FaultyWindow>> windows_;
};

}  // namespace bm::nv::gsp::test
