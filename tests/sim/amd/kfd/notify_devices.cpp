#include "tests/sim/amd/kfd/notify_devices.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "tests/sim/amd/kfd/sysfs.h"
#include "tests/sim/notify/give_up.h"

namespace bm::sim::amd {

/// One process that has nodes open.
struct AmdDevices::Client {
  Client(Machine& machine, pid_t the_pid)
      : pid(the_pid), process(machine, notify::open_process(the_pid)) {}
  const pid_t pid;
  Process process;
  uint32_t open_nodes = 0;
};

struct AmdDevices::AmdNode final : notify::Node {
  File file;
  std::shared_ptr<Client> client;
};

namespace {

PrivateFolder make_folder() {
  auto folder = PrivateFolder::create("sim-amd");
  if (folder) return std::move(*folder);
  sim::give_up(folder.error().message);
}

}  // namespace

AmdDevices::AmdDevices(Machine& machine) : machine_(machine), folder_(make_folder()) {
  for (const auto& [path, text] : machine.sysfs) {
    const std::filesystem::path file = folder_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    if (!(std::ofstream(file) << text)) sim::give_up_errno(file.c_str());
  }
}

AmdDevices::~AmdDevices() { finish(); }

bool AmdDevices::owns(const std::string& path) const {
  return path == "/dev/kfd" || path.starts_with("/dev/dri/renderD") ||
         path.starts_with("/sys/devices/virtual/kfd") || path.starts_with("/sys/class/kfd") ||
         path.starts_with("/sys/class/drm/renderD");
}

std::shared_ptr<AmdDevices::Client> AmdDevices::client(pid_t process) {
  std::erase_if(clients_, [](const auto& entry) {
    return entry.second->open_nodes == 0 && kill(entry.first, 0) != 0 && errno == ESRCH;
  });
  std::shared_ptr<Client>& client = clients_[process];
  if (client == nullptr) client = std::make_shared<Client>(machine_, process);
  return client;
}

/// What a node maps is a file, so that the program's mmap is the kernel's own: doorbells, or the
/// memory of that GPU.
int AmdDevices::open(pid_t process, const std::string& path, int flags, ScopedFd* fd,
                     std::shared_ptr<notify::Node>* node) {
  if (path.starts_with("/sys/")) {
    fd->reset(::open((folder_.path() + path).c_str(), flags | O_CLOEXEC));
    return fd->is_open() ? 0 : -errno;
  }
  auto made = std::make_shared<AmdNode>();
  if (const int refused = open_node(machine_, path, &made->file); refused != 0) return refused;
  made->client = client(process);
  Process& kernel = made->client->process;
  const int source = made->file.kind == File::Kind::kKfd
                         ? kernel.doorbell_descriptor()
                         : kernel.memory().descriptor(gpu_id_of(made->file.gpu));
  fd->reset(::open(fmt::format("/proc/self/fd/{}", source).c_str(), O_RDWR | O_CLOEXEC));
  if (!fd->is_open()) return -errno;
  ++made->client->open_nodes;
  *node = std::move(made);
  return 0;
}

void AmdDevices::close(const std::shared_ptr<notify::Node>& node) {
  Client& client = *static_cast<AmdNode&>(*node).client;
  // A process that lives may open the nodes again, and the kernel still knows it then.
  if (--client.open_nodes == 0 && kill(client.pid, 0) != 0) client.process.close();
}

int AmdDevices::ioctl(notify::Server& server, const notify::Ioctl& call, notify::Replace*) {
  const auto& node = static_cast<AmdNode&>(*call.node);
  if (node.file.kind != File::Kind::kKfd) return -ENOTTY;
  if (node.client->process.may_block(call.request, call.argument)) {
    wait_apart(server, call, node.client);
    return notify::kLater;
  }
  const Caller caller{[&](int fd) -> const File* {
                        const auto named = server.node_of(call.process, fd);
                        return named == nullptr ? nullptr : &static_cast<AmdNode&>(*named).file;
                      },
                      [&](int source, File) {
                        const int given = server.give(call.id, source);
                        ::close(source);
                        return given;
                      }};
  return node.client->process.call(call.request, call.argument, caller);
}

void AmdDevices::wait_apart(notify::Server& server, const notify::Ioctl& call,
                            std::shared_ptr<Client> client) {
  collect(false);
  auto is_over = std::make_shared<std::atomic<bool>>(false);
  std::thread thread([&server, id = call.id, request = call.request, argument = call.argument,
                      client = std::move(client), is_over]() mutable {
    server.answer(id, client->process.call(request, argument, {}));
    client.reset();
    is_over->store(true);
  });
  waiters_.push_back({std::move(thread), std::move(is_over)});
}

void AmdDevices::collect(bool all) {
  for (auto at = waiters_.begin(); at != waiters_.end();) {
    if (!all && !at->is_over->load()) {
      ++at;
      continue;
    }
    at->thread.join();
    at = waiters_.erase(at);
  }
}

void AmdDevices::finish() {
  for (const auto& [pid, client] : clients_) client->process.close();
  collect(true);
}

}  // namespace bm::sim::amd
