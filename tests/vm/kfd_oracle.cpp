// Asks the amdgpu driver's compute interface what needs no GPU, one line an answer, through our own
// version, topology and event code. Run in a guest on the real module and on the model (--fake),
// the answers must be the same text.
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "drivers/amd/kfd/abi.h"
#include "drivers/amd/kfd/gpu.h"
#include "drivers/amd/kfd/session.h"
#include "drivers/amd/kfd/topology.h"
#include "drivers/transport/system.h"
#include "tests/sim/amd/kfd/fake_kfd.h"

namespace {

using namespace bm;
using namespace bm::amd::kfd;
using namespace std::chrono_literals;

constexpr uint32_t kNoGpu = 0x1234;

void say(std::string_view what, const std::string& answer) {
  std::printf("ask: %.*s: %s\n", static_cast<int>(what.size()), what.data(), answer.c_str());
  std::fflush(stdout);
}

class Oracle {
 public:
  explicit Oracle(System& system) : system_(system) {}

  /// False: there is no driver to ask.
  bool run() {
    auto opened = Session::open(system_, 0);
    if (!opened) {
      std::printf("no session: %s\n", opened.error().message.c_str());
      return false;
    }
    session_ = std::move(*opened);
    std::printf("minor: %u\n", session_->minor());
    topology();
    absent_gpus();
    events();
    waits();
    return true;
  }

 private:
  template <class Call>
  int ask(std::string_view what, Call& arguments, unsigned long request = Call::kRequest) {
    const int result = session_->try_call(request, &arguments);
    say(what, result < 0 ? errno_text(-result) : "done");
    return result;
  }

  void topology() {
    const auto nodes = read_nodes(system_);
    say("GPU nodes", nodes ? std::to_string(nodes->size()) : nodes.error().message);
    const auto count = count_gpus(system_);
    say("GPUs", count ? std::to_string(*count) : count.error().message);
    const auto gpu = open_gpu(system_, {});
    say("opening the first", gpu ? "opened" : gpu.error().message);
  }

  /// What the kernel says to calls for a GPU that is not there.
  void absent_gpus() {
    AcquireVm acquire{0, kNoGpu};
    ask("ACQUIRE_VM", acquire);
    AllocMemory memory{};
    memory.va = 0x7000'0000'0000;
    memory.bytes = 4096;
    memory.gpu_id = kNoGpu;
    memory.flags = kAllocVram | kAllocWritable;
    ask("ALLOC_MEMORY_OF_GPU", memory);
    FreeMemory free{uint64_t{kNoGpu} << 32 | 1};
    ask("FREE_MEMORY_OF_GPU", free);
    uint32_t id = kNoGpu;
    MapMemory map{free.handle, reinterpret_cast<uint64_t>(&id), 1, 0};
    ask("MAP_MEMORY_TO_GPU", map);
    say("mapped", std::to_string(map.succeeded));
    ask("UNMAP_MEMORY_FROM_GPU", map, MapMemory::kUnmapRequest);
    MapMemory none{free.handle, reinterpret_cast<uint64_t>(&id), 0, 0};
    ask("MAP_MEMORY_TO_GPU of no GPUs", none);
    CreateQueue queue{};
    queue.gpu_id = kNoGpu;
    queue.ring_bytes = 4096;
    queue.percentage = 100;
    ask("CREATE_QUEUE", queue);
    DestroyQueue destroy{77, 0};
    ask("DESTROY_QUEUE", destroy);
    AvailableMemory available{0, kNoGpu, 0};
    ask("AVAILABLE_MEMORY", available);
    SmiEvents log{kNoGpu, 0};
    ask("SMI_EVENTS", log);
    CreateEvent page{};
    page.page_offset = free.handle;
    ask("CREATE_EVENT with a page of no GPU", page);
    struct Unknown {
      uint64_t nothing;
    } unknown{};
    ask("a call nobody knows", unknown, request(kReadWrite, 8, 0x7f));
    ask("a call of another type", unknown, 0xc0084c01);
  }

  void events() {
    const auto first = session_->create_event(kEventSignal, true);
    const auto second = session_->create_event(kEventSignal, false);
    const auto memory = session_->create_event(kEventMemory, true);
    const auto hardware = session_->create_event(kEventHardware, false);
    for (const auto* event : {&first, &second, &memory, &hardware})
      say("CREATE_EVENT", *event ? fmt::format("id {:#x}, slot {}", (*event)->id, (*event)->slot)
                                 : event->error().message);
    CreateEvent other{};
    other.type = kEventSignal;
    ask("CREATE_EVENT once more", other);
    say("offset of its page", fmt::format("{:#x}", other.page_offset));
    DestroyEvent destroy{other.event_id, 0};
    ask("DESTROY_EVENT", destroy);
    ask("DESTROY_EVENT again", destroy);
    ask("CREATE_EVENT in its place", other);
    say("its id", std::to_string(other.event_id));
    if (first && second && memory) {
      resets_ = *first;
      stays_ = *second;
      memory_ = *memory;
    }
  }

  void wait(std::string_view what, std::initializer_list<Event> events, bool all,
            uint32_t timeout_ms) {
    std::array<EventData, 3> records{};
    uint32_t count = 0;
    for (const Event& event : events) records[count++].event_id = event.id;
    WaitEvents wait{reinterpret_cast<uint64_t>(records.data()), count, all ? 1u : 0u, timeout_ms,
                    0};
    const int result = session_->try_call(WaitEvents::kRequest, &wait);
    say(what, fmt::format("{}, result {}", result < 0 ? errno_text(-result) : "done", wait.result));
  }
  void set(std::string_view what, const Event& event) {
    SetEvent set{event.id, 0};
    ask(what, set);
  }

  void waits() {
    wait("nothing was set", {resets_, memory_}, false, 20);
    wait("looking only", {resets_, memory_}, false, 0);
    set("SET_EVENT", resets_);
    wait("one of two was set", {memory_, resets_}, false, 1000);
    wait("it reset itself", {resets_}, false, 0);
    set("SET_EVENT of one that stays", stays_);
    wait("it is set", {stays_}, false, 1000);
    wait("and stays so", {stays_}, false, 0);
    wait("one of both is not enough", {stays_, resets_}, true, 20);
    set("SET_EVENT of the other", resets_);
    wait("both are", {stays_, resets_}, true, 1000);
    set("SET_EVENT of a memory event", memory_);
    wait("an event that is none", {Event{99, 0}}, false, 0);
    std::thread later([this] {
      std::this_thread::sleep_for(30ms);
      set("SET_EVENT from another thread", resets_);
      std::this_thread::sleep_for(200ms);
    });
    const auto start = std::chrono::steady_clock::now();
    std::array<EventData, 1> record{};
    record[0].event_id = resets_.id;
    WaitEvents woken{reinterpret_cast<uint64_t>(record.data()), 1, 0, 5000, 0};
    const int result = session_->try_call(WaitEvents::kRequest, &woken);
    const auto took = std::chrono::steady_clock::now() - start;
    later.join();
    say("woken by it",
        fmt::format("{}, result {}, {}", result, woken.result, took < 3s ? "soon" : "too late"));
  }

  System& system_;
  std::shared_ptr<Session> session_;
  Event resets_, stays_, memory_;
};

}  // namespace

int main(int count, char** words) {
  std::unique_ptr<sim::amd::FakeKfd> fake;
  if (count > 2 && std::string_view(words[1]) == "--fake") {
    sim::amd::Options machine{.gpus = 0};
    const std::string_view minor = words[2];
    std::from_chars(minor.data(), minor.data() + minor.size(), machine.minor);
    fake = std::make_unique<sim::amd::FakeKfd>(machine);
  }
  return Oracle(fake != nullptr ? *fake : real_system()).run() ? 0 : 1;
}
