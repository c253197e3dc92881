#include "drivers/nv/rm_ioctl/session.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <map>

#include "runtime/base/log.h"

namespace bm::nv {
namespace {

constexpr uint32_t kCapSysAdmin = 21;  // linux/capability.h

bool is_administrator(System& system) {
  std::string text;
  if (system.read_file("/proc/self/status", &text) < 0) return false;
  constexpr std::string_view kKey = "CapEff:\t";
  const size_t at = text.find(kKey);
  if (at == std::string::npos) return false;
  uint64_t capabilities = 0;
  const char* const first = text.data() + at + kKey.size();
  std::from_chars(first, text.data() + text.size(), capabilities, 16);
  return (capabilities >> kCapSysAdmin & 1) != 0;
}

std::pair<GpuUuid, GpuUuid> ordered(const GpuUuid& a, const GpuUuid& b) {
  return {std::min(a, b), std::max(a, b)};
}

}  // namespace

Result<std::shared_ptr<RmSession>> RmSession::open(System& system, uint64_t window,
                                                   const std::string& version) {
  std::shared_ptr<RmSession> session(new RmSession);
  session->transport_ = BM_TRY(IoctlTransport::open(system, version));
  session->client_ = BM_TRY(RmClient::create(*session->transport_));
  session->uvm_ = BM_TRY(UvmSpace::open(*session->transport_, session->client_->root()));
  session->addresses_ = BM_TRY(Addresses::create(system, window));
  static std::atomic<bool> has_warned{false};
  if (is_administrator(system) && !has_warned.exchange(true))
    log("nv", LogLevel::kWarning,
        "this process holds CAP_SYS_ADMIN, so the driver gives it privileged channels, which may "
        "touch any memory; run as an ordinary user");
  return session;
}

Result<std::shared_ptr<RmSession>> RmSession::share(System& system, uint64_t window,
                                                    const std::string& version) {
  // The table of drivers opens each GPU on its own, so what they share has to be found. Nothing is
  // kept alive here.
  static std::mutex mutex;
  static std::map<System*, std::weak_ptr<RmSession>> open_sessions;
  const std::lock_guard lock(mutex);
  std::weak_ptr<RmSession>& known = open_sessions[&system];
  if (std::shared_ptr<RmSession> session = known.lock()) return session;
  std::shared_ptr<RmSession> session = BM_TRY(open(system, window, version));
  known = session;
  return session;
}

Status RmSession::enable_peers(const GpuUuid& a, const GpuUuid& b) {
  const std::lock_guard lock(mutex_);
  const auto pair = ordered(a, b);
  if (peers_.contains(pair)) return {};
  if (!strangers_.contains(pair)) {
    const Status enabled = uvm_->enable_peer(a, b);
    if (enabled) {
      peers_.insert(pair);
      return {};
    }
    strangers_.insert(pair);
    log("nv", LogLevel::kInfo, "{}", enabled.error().message);
  }
  return fail(Code::kUnsupported, "{} and {} have no access to each other's memory", uuid_text(a),
              uuid_text(b));
}

void RmSession::add(const GpuUuid& gpu) {
  const std::lock_guard lock(mutex_);
  gpus_.insert(gpu);
}

void RmSession::remove(const GpuUuid& gpu) {
  const std::lock_guard lock(mutex_);
  gpus_.erase(gpu);
  // The driver forgets the pairs of a GPU when it is unregistered.
  const auto names = [&](const auto& pair) { return pair.first == gpu || pair.second == gpu; };
  std::erase_if(peers_, names);
  std::erase_if(strangers_, names);
}

bool RmSession::has(const GpuUuid& gpu) {
  const std::lock_guard lock(mutex_);
  return gpus_.contains(gpu);
}

}  // namespace bm::nv
