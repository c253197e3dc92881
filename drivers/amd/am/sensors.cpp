// Sensors and power limit of a GPU that this process owns, and of a card that was left in order.

#include <bit>

#include "drivers/amd/am/gpu.h"
#include "runtime/base/log.h"

namespace bm::amd::am {

Result<Sensors> AmGpu::read_sensors() {
  const auto& mp1 = card_.id.mp1;
  const MetricsRow* const row = find_metrics_row(mp1.major, mp1.minor, mp1.revision);
  if (row == nullptr)
    return fail(Code::kUnsupported, "the metrics table of SMU {}.{}.{} is not known here",
                mp1.major, mp1.minor, mp1.revision);
  return smu_->read_sensors(*row, static_cast<uint32_t>(std::countr_zero(card_.xcc_mask)));
}

Result<Sensors> AmGpu::sensors() {
  const std::lock_guard lock(mutex_);
  if (!is_up_)
    return fail(Code::kDeviceLost, "the card was reset or closed: open the device again");
  BM_TRY(bus_.status());
  return read_sensors();
}

Result<Sensors> AmGpu::sensors_of_idle_card(std::unique_ptr<PciFunction> function,
                                            const Options& options) {
  Clock& clock = options.clock != nullptr ? *options.clock : real_clock();
  AmGpu card(std::move(function), options, clock);
  BM_TRY(card.map_bars());
  BM_TRY(card.read_discovery());
  // Where an earlier process had the table: layouts are the same, or the mark differs.
  BM_TRY(card.lay_out());
  if (!card.is_left_in_order()) {
    BM_TRY(card.bus_.status());
    return fail(Code::kUnsupported,
                "the card is not as a process of this release leaves it, so nobody can say where "
                "its firmware puts tables: boot it once (bellmetal gpu boot)");
  }
  return card.read_sensors();
}

Status AmGpu::set_power_limit() {
  own_power_limit_w_ = BM_TRY(smu_->power_limit());
  const Status done = smu_->set_power_limit(options_.power_limit_w, *own_power_limit_w_);
  // Nothing was sent.
  if (!done && done.error().code == Code::kInvalidArgument) own_power_limit_w_.reset();
  BM_TRY(done);
  bus_.stages.note(fmt::format("{} W, {} W before", options_.power_limit_w, *own_power_limit_w_));
  return {};
}

Status AmGpu::restore_power_limit() {
  if (!own_power_limit_w_) return {};
  return smu_->set_power_limit(*own_power_limit_w_, *own_power_limit_w_);
}

}  // namespace bm::amd::am
