#include "tests/sim/nv/chip/gsp.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "tests/sim/nv/bytes.h"

namespace bm::sim::nv::card {
namespace {

constexpr uint64_t kQueuePage = 4096;
// GSP_MSG_QUEUE_ELEMENT: checksum, sequence number, element count behind two buffers of 16 bytes;
// the RPC header from 48 on, 32 bytes.
constexpr size_t kChecksum = 32, kSequence = 36, kCount = 40, kRpc = 48, kPayload = 80;
constexpr uint32_t kHeaderVersion = 3u << 24, kRpcSignature = 0x43505256, kMostElements = 16;

uint64_t id_of(std::string_view name) {
  uint64_t id = 0;
  for (const char one : name) id = id << 8 | static_cast<uint8_t>(one);
  return id;
}

uint32_t checksum(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  for (size_t at = 0; at < bytes.size(); at += 8) {
    uint64_t one = 0;
    std::memcpy(&one, &bytes[at], std::min<size_t>(8, bytes.size() - at));
    sum ^= one;
  }
  return static_cast<uint32_t>(sum) ^ static_cast<uint32_t>(sum >> 32);
}

}  // namespace

GspQueues::GspQueues(const CardRow& row, RegisterFile& registers, Memory& memory, Falcon& gsp)
    : row_(row), registers_(registers), memory_(memory), gsp_(gsp) {
  for (uint32_t i = 0; i < 8; ++i)
    registers_.declare(0x110c00 + 8 * i, fmt::format("NV_PGSP_QUEUE_HEAD({})", i),
                       "turing/tu102/dev_gsp.h", {.write = [this, i](uint32_t) {
                         if (i == 0) ring();
                       }});
}

bool GspQueues::refuse(const std::string& what) {
  registers_.violations().add("GSP: " + what);
  return false;
}

uint32_t* GspQueues::word(uint64_t offset) {
  if (offset / kQueuePage >= pages_.size()) return nullptr;
  std::byte* const at =
      memory_.system_at(pages_[offset / kQueuePage] + offset % kQueuePage, 4, true, "GSP queue");
  return reinterpret_cast<uint32_t*>(at);
}

bool GspQueues::copy_in(uint64_t offset, std::span<std::byte> to) {
  for (size_t done = 0; done < to.size();) {
    const size_t part =
        std::min<size_t>(to.size() - done, kQueuePage - (offset + done) % kQueuePage);
    const uint64_t page = (offset + done) / kQueuePage;
    if (page >= pages_.size()) return refuse("a queue ends behind its page list");
    if (!memory_.read(Aperture::kSystem, pages_[page] + (offset + done) % kQueuePage,
                      to.subspan(done, part), "GSP queue"))
      return false;
    done += part;
  }
  return true;
}

bool GspQueues::copy_out(uint64_t offset, std::span<const std::byte> from) {
  for (size_t done = 0; done < from.size();) {
    const size_t part =
        std::min<size_t>(from.size() - done, kQueuePage - (offset + done) % kQueuePage);
    const uint64_t page = (offset + done) / kQueuePage;
    if (page >= pages_.size()) return refuse("a queue ends behind its page list");
    if (!memory_.write(Aperture::kSystem, pages_[page] + (offset + done) % kQueuePage,
                       from.subspan(done, part), "GSP queue"))
      return false;
    done += part;
  }
  return true;
}

// LibosMemoryRegionInitArgument: id, address, size, kind, location; 32 bytes.
bool GspQueues::read_arguments(uint64_t address, uint64_t* rm_arguments) {
  Blob page(kQueuePage);
  if (address % 8 != 0 || !memory_.read(Aperture::kSystem, address, page, "libos arguments"))
    return address % 8 == 0 ? false : refuse("libos arguments that are not aligned");
  uint64_t seen = 0;
  constexpr std::array<std::string_view, 4> kWanted = {"LOGINIT", "LOGINTR", "LOGRM", "RMARGS"};
  for (size_t at = 0; at + 32 <= page.size(); at += 32) {
    const uint64_t id = get<uint64_t>(page, at), where = get<uint64_t>(page, at + 8),
                   bytes = get<uint64_t>(page, at + 16);
    if (id == 0) break;
    std::string name;
    for (int shift = 56; shift >= 0; shift -= 8)
      if (const auto one = static_cast<char>(id >> shift & 0xff); one != 0) name += one;
    if (at == 0 && name != "LOGINIT") refuse("libos arguments do not begin with LOGINIT");
    if (get<uint8_t>(page, at + 24) != 1 || get<uint8_t>(page, at + 25) != 1)
      return refuse(fmt::format("libos argument {} is not contiguous system memory", name));
    if (bytes == 0 || bytes > 16 << 20 || where % kQueuePage != 0)
      return refuse(fmt::format("libos argument {} at {:#x}, {:#x} bytes", name, where, bytes));
    for (uint64_t done = 0; done < bytes; done += kQueuePage)
      if (memory_.system_at(where + done, std::min(kQueuePage, bytes - done), true,
                            "libos argument " + name) == nullptr)
        return false;
    for (size_t i = 0; i < kWanted.size(); ++i)
      if (id == id_of(kWanted[i])) seen |= uint64_t{1} << i;
    if (name == "RMARGS") *rm_arguments = where;
  }
  for (size_t i = 0; i < kWanted.size(); ++i)
    if ((seen >> i & 1) == 0) return refuse(fmt::format("libos arguments without {}", kWanted[i]));
  return true;
}

// GSP_ARGUMENTS_CACHED: the queues' description first.
bool GspQueues::link(uint64_t rm_arguments) {
  Blob arguments(72);
  if (!memory_.read(Aperture::kSystem, rm_arguments, arguments, "GSP arguments")) return false;
  const uint64_t shared = get<uint64_t>(arguments, 0);
  const uint32_t count = get<uint32_t>(arguments, 8);
  commands_queue_ = {get<uint64_t>(arguments, 16)};
  status_queue_ = {get<uint64_t>(arguments, 24)};
  if (count == 0 || count > 4096) return refuse(fmt::format("{} pages of queues", count));
  Blob list(count * 8ull);
  // The list lies in the pages that it names: the first one is the list's own.
  pages_.assign(1, shared);
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t one = 0;
    if (!copy_in(i * 8ull, std::as_writable_bytes(std::span(&one, 1)))) return false;
    if (i == 0) {
      if (one != shared)
        return refuse(
            fmt::format("the page list of the queues at {:#x} begins with {:#x}", shared, one));
      continue;
    }
    if (one == 0 || one % kQueuePage != 0)
      return refuse(fmt::format("page {} of the queues is {:#x}", i, one));
    pages_.push_back(one);
  }
  Blob header(32);
  if (!copy_in(commands_queue_.at, header)) return false;
  // msgqTxHeader: version, size, msgSize, msgCount, writePtr, flags, rxHdrOff, entryOff.
  const uint32_t size = get<uint32_t>(header, 4), entries = get<uint32_t>(header, 28);
  commands_queue_.count = get<uint32_t>(header, 12);
  commands_queue_.entries_at = entries;
  commands_queue_.read_pointer_at = get<uint32_t>(header, 24);
  if (get<uint32_t>(header, 0) != 0 || get<uint32_t>(header, 8) != kElement ||
      get<uint32_t>(header, 20) != 1 || entries != kElement || size % kQueuePage != 0 ||
      size < 2 * kElement || commands_queue_.count != (size - entries) / kElement ||
      commands_queue_.read_pointer_at < 32 || commands_queue_.read_pointer_at + 4 > entries)
    return refuse(fmt::format(
        "command queue of version {}, {:#x} bytes, {} elements of {:#x} bytes from {:#x}, flags {}",
        get<uint32_t>(header, 0), size, commands_queue_.count, get<uint32_t>(header, 8), entries,
        get<uint32_t>(header, 20)));
  if (commands_queue_.at + size > status_queue_.at ||
      status_queue_.at + size > pages_.size() * kQueuePage)
    return refuse("the queues overlap, or end behind their page list");
  // The status queue is of the same form; each side keeps its read pointer in its own memory.
  status_queue_.count = commands_queue_.count;
  status_queue_.entries_at = entries;
  status_queue_.read_pointer_at = commands_queue_.read_pointer_at;
  const std::lock_guard lock(status_mutex_);
  read_at_ = expected_sequence_ = write_at_ = sequence_ = 0;
  waiting_.clear();
  put<uint32_t>(header, 16, 0);
  const uint32_t zero = 0;
  if (!copy_out(status_queue_.at + status_queue_.read_pointer_at,
                std::as_bytes(std::span(&zero, 1))))
    return false;
  return copy_out(status_queue_.at, header);
}

bool GspQueues::start(uint64_t libos_arguments) {
  uint64_t rm_arguments = 0;
  has_system_info_ = has_registry_ = false;
  large_.clear();
  if (!read_arguments(libos_arguments, &rm_arguments) || !link(rm_arguments)) return false;
  is_running_ = true;
  gsp_.is_riscv_active = true;
  // What was written before the start.
  ring();
  if (!has_system_info_ || !has_registry_)
    return refuse(fmt::format("GSP-RM starts without {}",
                              has_system_info_ ? "SET_REGISTRY" : "SET_SYSTEM_INFO"));
  const std::vector<std::byte> program = sequencer ? sequencer() : std::vector<std::byte>();
  if (program.empty())
    finish_start();
  else
    post(rpc::kRunCpuSequencer, program);
  return true;
}

void GspQueues::stop() {
  const std::lock_guard lock(status_mutex_);
  is_running_ = false;
  gsp_.is_riscv_active = false;
  pages_.clear();
}

/// One message, all of its elements.
bool GspQueues::take(std::vector<std::byte>* message) {
  uint32_t* const write_pointer = word(commands_queue_.at + 16);
  if (write_pointer == nullptr) return false;
  const uint32_t count = commands_queue_.count;
  const uint32_t end = std::atomic_ref(*write_pointer).load(std::memory_order_acquire);
  if (end >= count)
    return refuse(fmt::format("write pointer {} of a queue of {} elements", end, count));
  if (end == read_at_) return false;
  const uint32_t available = (end + count - read_at_) % count;
  const auto element_at = [&](uint32_t index) {
    return commands_queue_.at + commands_queue_.entries_at +
           uint64_t{(read_at_ + index) % count} * kElement;
  };
  message->resize(kElement);
  if (!copy_in(element_at(0), *message)) return false;
  const uint32_t elements = get<uint32_t>(*message, kCount);
  const auto skip = [&](uint32_t by, const std::string& why) {
    read_at_ = (read_at_ + by) % count;
    if (uint32_t* const at = word(status_queue_.at + status_queue_.read_pointer_at); at != nullptr)
      std::atomic_ref(*at).store(read_at_, std::memory_order_release);
    if (!why.empty()) refuse(why);
    return why.empty();
  };
  if (elements == 0 || elements > kMostElements || elements > available)
    return skip(available,
                fmt::format("a message of {} elements where {} were written", elements, available));
  message->resize(elements * size_t{kElement});
  for (uint32_t i = 1; i < elements; ++i)
    if (!copy_in(element_at(i), std::span(*message).subspan(i * size_t{kElement}, kElement)))
      return false;
  const uint32_t length = get<uint32_t>(*message, kRpc + 8);
  if (length < 32 || kRpc + length > message->size() ||
      (kRpc + length + kElement - 1) / kElement != elements)
    return skip(elements, fmt::format("an RPC of {} bytes in {} elements", length, elements));
  const size_t bytes = (kRpc + length + 7) / 8 * 8;
  if (checksum(std::span(*message).first(std::min(bytes, message->size()))) != 0)
    return skip(elements, fmt::format("a message with a wrong checksum, function {}",
                                      get<uint32_t>(*message, kRpc + 12)));
  const uint32_t sequence = get<uint32_t>(*message, kSequence);
  if (sequence != expected_sequence_)
    return skip(elements,
                fmt::format("sequence number {} where {} is next", sequence, expected_sequence_));
  ++expected_sequence_;
  message->resize(kRpc + length);
  return skip(elements, "");
}

void GspQueues::ring() {
  if (!is_running_) return;  // messages may be written before the start
  for (;;) {
    std::vector<std::byte> message;
    const uint32_t before = read_at_;
    if (take(&message)) {
      ++commands_;
      execute(message);
      if (!is_running_) return;
    } else if (read_at_ == before) {
      break;
    }
  }
  finish_large();
  // What waited for room in the status queue.
  const std::lock_guard lock(status_mutex_);
  while (!waiting_.empty() && send(waiting_.front())) waiting_.pop_front();
}

void GspQueues::execute(std::span<const std::byte> message) {
  const auto header = message.subspan(kRpc);
  const uint32_t function = get<uint32_t>(header, 12);
  if (get<uint32_t>(header, 0) != kHeaderVersion || get<uint32_t>(header, 4) != kRpcSignature) {
    refuse(fmt::format("an RPC of header version {:#x}, signature {:#x}", get<uint32_t>(header, 0),
                       get<uint32_t>(header, 4)));
    return;
  }
  const auto payload = message.subspan(kPayload);
  if (function == rpc::kContinuation) {
    if (large_.empty()) {
      refuse("a CONTINUATION_RECORD that continues nothing");
      return;
    }
    large_.insert(large_.end(), payload.begin(), payload.end());
    if (message.size() < kMostElements * size_t{kElement}) finish_large();
    return;
  }
  finish_large();
  // A message that fills all it may goes on in the next.
  large_.assign(payload.begin(), payload.end());
  large_function_ = function;
  if (large_.empty()) large_.resize(1);  // functions without a payload
  if (message.size() < kMostElements * size_t{kElement}) {
    large_.resize(payload.size());
    std::vector<std::byte> whole;
    whole.swap(large_);
    const uint32_t done = function;
    if (done == rpc::kSetSystemInfo) {
      has_system_info_ = true;
      if (on_system_info) on_system_info(whole);
    } else if (done == rpc::kSetRegistry) {
      has_registry_ = true;
    } else {
      const RpcReply reply = handle ? handle(done, whole) : RpcReply{0x56, {}};
      post(done, reply.payload, reply.result);
      if (done == rpc::kUnloading && on_unload) on_unload();
    }
  }
}

void GspQueues::finish_large() {
  if (large_.empty()) return;
  std::vector<std::byte> whole;
  whole.swap(large_);
  if (large_function_ == rpc::kSetRegistry) {
    has_registry_ = true;
    return;
  }
  const RpcReply reply = handle ? handle(large_function_, whole) : RpcReply{0x56, {}};
  post(large_function_, reply.payload, reply.result);
}

void GspQueues::post(uint32_t function, std::span<const std::byte> payload, uint32_t result) {
  // Long answers go on in CONTINUATION_RECORDs.
  const size_t most = kMostElements * size_t{kElement} - kPayload;
  bool is_first = true;
  {
    const std::lock_guard lock(status_mutex_);
    if (!is_running_) return;
    do {
      const auto part = payload.first(std::min(most, payload.size()));
      payload = payload.subspan(part.size());
      const auto length = static_cast<uint32_t>(32 + part.size());
      const uint32_t elements = static_cast<uint32_t>((kRpc + length + kElement - 1) / kElement);
      std::vector<std::byte> message(elements * size_t{kElement});
      put<uint32_t>(message, kSequence, sequence_++);
      put<uint32_t>(message, kCount, elements);
      const uint32_t header[] = {kHeaderVersion, kRpcSignature,
                                 length,         is_first ? function : uint32_t{rpc::kContinuation},
                                 result,         result};
      for (size_t i = 0; i < std::size(header); ++i)
        put<uint32_t>(message, kRpc + 4 * i, header[i]);
      std::ranges::copy(part, message.begin() + kPayload);
      const size_t bytes = std::min<size_t>((kRpc + length + 7) / 8 * 8, message.size());
      put<uint32_t>(message, kChecksum, checksum(std::span(message).first(bytes)));
      if (!waiting_.empty() || !send(message)) waiting_.push_back(std::move(message));
      is_first = false;
    } while (!payload.empty());
  }
  gsp_.interrupts |= 1u << 6;  // SWGEN0
  if (on_message) on_message();
}

/// False: there is no room.
bool GspQueues::send(const std::vector<std::byte>& message) {
  const uint32_t* const read_pointer = word(commands_queue_.at + commands_queue_.read_pointer_at);
  uint32_t* const write_pointer = word(status_queue_.at + 16);
  if (read_pointer == nullptr || write_pointer == nullptr) return true;
  const uint32_t count = status_queue_.count;
  const auto elements = static_cast<uint32_t>(message.size() / kElement);
  const uint32_t read = *read_pointer;
  if (read >= count) {
    refuse(fmt::format("read pointer {} of a status queue of {} elements", read, count));
    return true;
  }
  const uint32_t room = (read + count - write_at_ - 1) % count;
  if (elements > room) return false;
  for (uint32_t i = 0; i < elements; ++i)
    if (!copy_out(status_queue_.at + status_queue_.entries_at +
                      uint64_t{(write_at_ + i) % count} * kElement,
                  std::span(message).subspan(i * size_t{kElement}, kElement)))
      return true;
  write_at_ = (write_at_ + elements) % count;
  std::atomic_ref(*write_pointer).store(write_at_, std::memory_order_release);
  return true;
}

}  // namespace bm::sim::nv::card
