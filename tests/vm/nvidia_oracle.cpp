// Asks NVIDIA's kernel driver what needs no working GPU, one line an answer. Run in a guest on the
// real modules and on the simulated driver (--fake), the answers must be the same text.
#include <fcntl.h>
#include <sys/mman.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/nv/rm_ioctl/rm.h"
#include "drivers/transport/system.h"
#include "tests/sim/nv/bytes.h"
#include "tests/sim/nv/fake_system.h"

namespace {

using namespace bm;
using namespace bm::sim::nv;

constexpr uint64_t kHigh = 0x7e0000000000;  ///< free in every process

class Oracle {
 public:
  explicit Oracle(System& system) : system_(system) {}

  void run() {
    ctl_ = system_.open("/dev/nvidiactl", O_RDWR);
    say("open nvidiactl", ctl_ >= 0 ? 0 : ctl_, 0);
    gpu_ = system_.open("/dev/nvidia0", O_RDWR);
    say("open nvidia0 without firmware", gpu_, 0);
    transport();
    clients();
    controls();
    objects();
    unified();
    client();
  }

 private:
  static void say(std::string_view what, int result, uint32_t status) {
    std::printf("ask: %.*s: %d %#x\n", static_cast<int>(what.size()), what.data(), result, status);
    std::fflush(stdout);
  }
  static unsigned long escape(uint32_t number, size_t size) {
    return 3ul << 30 | size << 16 | 'F' << 8 | number;
  }
  int call(uint32_t number, std::vector<std::byte>& data) {
    return system_.ioctl(ctl_, escape(number, data.size()), data.data());
  }
  /// Makes the call, then reads the status out of it.
  void ask(std::string_view what, uint32_t number, std::vector<std::byte>& data, size_t status) {
    const int result = call(number, data);
    say(what, result, get(data, status));
  }
  static std::vector<std::byte> words(std::initializer_list<uint32_t> values, size_t bytes) {
    std::vector<std::byte> out(bytes);
    size_t at = 0;
    for (const uint32_t value : values) put<uint32_t>(out, 4 * at++, value);
    return out;
  }
  uint32_t alloc(std::string_view what, uint32_t root, uint32_t parent, uint32_t handle,
                 uint32_t object_class, const void* params = nullptr) {
    auto data = words({root, parent, handle, object_class}, 48);
    put<uint64_t>(data, 16, reinterpret_cast<uint64_t>(params));
    ask(what, 0x2b, data, 40);
    return get(data, 8);
  }
  void control(std::string_view what, uint32_t client, uint32_t object, uint32_t command,
               void* params, uint32_t size) {
    auto data = words({client, object, command, 0}, 32);
    put<uint64_t>(data, 16, reinterpret_cast<uint64_t>(params));
    put<uint32_t>(data, 24, size);
    ask(what, 0x2a, data, 28);
  }
  void free(std::string_view what, uint32_t client, uint32_t handle) {
    auto data = words({client, 0, handle, 0}, 16);
    ask(what, 0x29, data, 12);
  }

  void transport() {
    std::vector<std::byte> version(72);
    version[0] = std::byte{'2'};
    ask("version, asked", 210, version, 4);
    version[0] = std::byte{0};
    ask("version, the same", 210, version, 4);
    version[8] = std::byte{'9'};
    ask("version, another", 210, version, 4);
    std::vector<std::byte> small(64);
    say("version, wrong size", call(210, small), 0);
    std::vector<std::byte> cards(72 * 32);
    const int listed = call(200, cards);
    say("card info", listed, get(cards, 0) & 0xff);
    std::vector<std::byte> none(8);
    say("card info, no room", call(200, none), 0);
    std::vector<std::byte> odd(20);
    say("allocation of a wrong size", call(0x2b, odd), 0);
    say("control of a wrong size", call(0x2a, odd), 0);
    say("free of a wrong size", call(0x29, odd), 0);
    say("mapping of a wrong size", call(0x4e, odd), 0);
    say("unknown escape", call(0x01, odd), 0);
    auto memory = words({0, 0, 0, 0x71}, 56);
    say("memory through the control file", call(0x27, memory), 0);
    auto registered = words({static_cast<uint32_t>(ctl_)}, 4);
    say("file registered with itself", call(201, registered), 0);
    void* out = nullptr;
    say("map of nothing", system_.mmap(nullptr, 4096, PROT_READ, MAP_SHARED, ctl_, 0, &out), 0);
    struct {
      uint32_t command, size;
      uint64_t address;
    } xfer{0x2a, 20, reinterpret_cast<uint64_t>(odd.data())};
    say("control of a wrong size by transfer", system_.ioctl(ctl_, escape(211, 16), &xfer), 0);
  }

  void clients() {
    alloc("class nobody knows", 0, 0, 0, 0x12345);
    root_ = alloc("client", 0, 0, 0, 0x41);
    alloc("object of no client", 0xdead, 0xdead, 0xcf000001, 0x5);
    std::array<uint32_t, 14> device{};
    alloc("device of no GPU", root_, root_, 0xcf000001, 0x80, device.data());
    alloc("device without parameters", root_, root_, 0xcf000001, 0x80);
    alloc("subdevice under a client", root_, root_, 0xcf000001, 0x2080, device.data());
    alloc("subdevice under nothing", root_, 0xcf000009, 0xcf000001, 0x2080, device.data());
    free("nothing", root_, 0xcf000001);
    const int other = system_.open("/dev/nvidiactl", O_RDWR);
    std::swap(ctl_, const_cast<int&>(other));
    control("another file's client", root_, root_, 0x201, nullptr, 0);
    std::swap(ctl_, const_cast<int&>(other));
    system_.close(other);
  }

  void controls() {
    std::array<uint32_t, 96> ids{};
    control("attached ids", root_, root_, 0x201, ids.data(), 128);
    control("attached ids, too short", root_, root_, 0x201, ids.data(), 124);
    control("attached ids, no pointer", root_, root_, 0x201, nullptr, 128);
    control("probed ids", root_, root_, 0x214, ids.data(), 256);
    control("command nobody knows", root_, root_, 0x2ffff, nullptr, 0);
    control("command of no client", 0xdead, root_, 0x201, ids.data(), 128);
    control("command on nothing", root_, 0xcf000001, 0x201, ids.data(), 128);
    std::array<uint32_t, 8> info{0x100};
    control("id info of a GPU that is not open", root_, root_, 0x205, info.data(), 32);
    control("token on a client", root_, root_, 0xc36f0108, ids.data(), 4);
  }

  void objects() {
    auto map = words({root_, 0xcf000001, 0xcf000002}, 56);
    put<uint32_t>(map, 48, ~0u);
    ask("mapping of nothing", 0x4e, map, 40);
    auto event = words({root_, 0, static_cast<uint32_t>(ctl_), 0}, 16);
    ask("event", 206, event, 12);
    event = words({root_, 0, static_cast<uint32_t>(ctl_), 0}, 16);
    ask("event again", 206, event, 12);
    std::array<std::byte, 16> record{};
    std::vector<std::byte> taken(16);
    put<uint64_t>(taken, 0, reinterpret_cast<uint64_t>(record.data()));
    ask("event data, none", 0x52, taken, 12);
    event = words({root_, 0, static_cast<uint32_t>(ctl_), 0}, 16);
    ask("event freed", 207, event, 12);
    event = words({root_, 0, static_cast<uint32_t>(ctl_), 0}, 16);
    ask("event freed again", 207, event, 12);
    free("client freed", root_, root_);
    free("client freed again", root_, root_);
  }

  void uvm(std::string_view what, int fd, unsigned long number, std::vector<std::byte> data,
           size_t status) {
    put<uint32_t>(data, status, 0x5a5a);
    const int result = system_.ioctl(fd, number, data.data());
    say(what, result, get(data, status));
  }
  static std::vector<std::byte> range(uint64_t base, uint64_t size, size_t bytes = 24) {
    std::vector<std::byte> out(bytes);
    put<uint64_t>(out, 0, base);
    put<uint64_t>(out, 8, size);
    return out;
  }

  void unified() {
    const int fd = system_.open("/dev/nvidia-uvm", O_RDWR);
    say("open nvidia-uvm", fd >= 0 ? 0 : fd, 0);
    constexpr uint64_t k2M = 2 << 20;
    uvm("range before initialisation", fd, 73, range(kHigh, k2M), 16);
    uvm("initialise", fd, 0x30000001, words({1}, 16), 8);
    uvm("initialise again", fd, 0x30000001, words({1}, 16), 8);
    uvm("initialise otherwise", fd, 0x30000001, words({0}, 16), 8);
    uvm("range", fd, 73, range(kHigh, k2M), 16);
    uvm("range that overlaps", fd, 73, range(kHigh + 4096, k2M), 16);
    uvm("range that touches", fd, 73, range(kHigh + k2M, k2M), 16);
    uvm("range at zero", fd, 73, range(0, k2M), 16);
    uvm("range without size", fd, 73, range(kHigh + 8 * k2M, 0), 16);
    uvm("range out of step", fd, 73, range(kHigh + 8 * k2M + 512, k2M), 16);
    uvm("half of a range freed", fd, 34, range(kHigh, k2M / 2), 16);
    uvm("nothing freed", fd, 34, range(kHigh + 32 * k2M, k2M), 16);
    uvm("GPU nobody knows", fd, 37, std::vector<std::byte>(40), 36);
    uvm("GPU that is not there, unregistered", fd, 38, std::vector<std::byte>(20), 16);
    uvm("address space of no GPU", fd, 25, std::vector<std::byte>(32), 28);
    uvm("channel of no GPU", fd, 27, std::vector<std::byte>(56), 48);
    uvm("channel that is not there, unregistered", fd, 28, std::vector<std::byte>(28), 24);
    auto map = range(kHigh, k2M, 1200);
    uvm("mapping for no GPU", fd, 33, map, 1196);
    put<uint64_t>(map, 1176, 1);
    uvm("mapping for a GPU nobody knows", fd, 33, map, 1196);
    put<uint64_t>(map, 1176, 33);
    uvm("mapping for too many GPUs", fd, 33, map, 1196);
    put<uint64_t>(map, 8, 4 * k2M);
    put<uint64_t>(map, 1176, 1);
    uvm("mapping beyond its range", fd, 33, map, 1196);
    uvm("range freed", fd, 34, range(kHigh, k2M), 16);
    uvm("range freed again", fd, 34, range(kHigh, k2M), 16);
    say("unknown request", system_.ioctl(fd, 200, map.data()), 0);
    system_.close(fd);
  }

  /// Our own client as far as it gets: what it says must be the same too.
  void client() {
    const auto cards = nv::count_rm(system_);
    std::printf("ask: cards: %s\n",
                cards ? std::to_string(*cards).c_str() : cards.error().message.c_str());
    const auto gpu = nv::open_rm(system_, {});
    std::printf("ask: client opened: %s\n", gpu ? "yes" : gpu.error().message.c_str());
  }

  System& system_;
  int ctl_ = -1, gpu_ = -1;
  uint32_t root_ = 0;
};

}  // namespace

int main(int count, char** words) {
  std::unique_ptr<FakeNvSystem> fake;
  if (count > 1 && std::string_view(words[1]) == "--fake")
    fake = FakeNvSystem::create({.chip = "ga102", .release = "535", .is_bootable = false});
  Oracle(fake != nullptr ? *fake : real_system()).run();
}
