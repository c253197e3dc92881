#include "tests/sim/usb/usbredir.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace bm::sim {
namespace {

enum Type : uint32_t {
  kHello = 0,
  kDeviceConnect = 1,
  kDeviceDisconnect = 2,
  kReset = 3,
  kInterfaceInfo = 4,
  kEpInfo = 5,
  kSetConfiguration = 6,
  kGetConfiguration = 7,
  kConfigurationStatus = 8,
  kSetAltSetting = 9,
  kGetAltSetting = 10,
  kAltSettingStatus = 11,
  kCancelDataPacket = 21,
  kDisconnectAck = 24,
  kControlPacket = 100,
  kBulkPacket = 101,
};
enum Answer : uint8_t { kSuccess = 0, kCancelled = 1, kStall = 4 };
constexpr uint32_t kCapDeviceVersion = 1 << 1, kCapMaxPacketSize = 1 << 4, kCapLongIds = 1 << 5,
                   kCapLongBulk = 1 << 6;
constexpr uint8_t kSpeedHigh = 2, kSpeedSuper = 3;
constexpr uint32_t kLongest = 16 << 20;

#pragma pack(push, 1)
struct Hello {
  char version[64];
  uint32_t capabilities;
};
struct Connect {
  uint8_t speed, device_class, subclass, protocol;
  uint16_t vendor, product, version;
};
struct InterfaceInfo {
  uint32_t count;
  uint8_t number[32], interface_class[32], subclass[32], protocol[32];
};
/// bulk_streams is not among our capabilities, so max_streams is not sent.
struct EpInfo {
  uint8_t type[32], interval[32], interface[32];
  uint16_t max_packet[32];
};
struct Control {
  uint8_t endpoint, request, request_type, status;
  uint16_t value, index, length;
};
struct Bulk {
  uint8_t endpoint, status;
  uint16_t length;
  uint32_t stream;
  uint16_t length_high;
  uint32_t bytes() const { return length | uint32_t{length_high} << 16; }
};
#pragma pack(pop)

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

Status read_all(int socket, void* to, size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes != 0) {
    const ssize_t got = ::recv(socket, at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return fail(Code::kNotFound, "the other side is gone");
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return {};
}

Status write_all(int socket, std::span<const std::byte> from) {
  while (!from.empty()) {
    const ssize_t sent = ::send(socket, from.data(), from.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return fail(Code::kNotFound, "the other side is gone");
    from = from.subspan(static_cast<size_t>(sent));
  }
  return {};
}

}  // namespace

Status UsbredirServer::send(uint32_t type, uint64_t id, std::span<const std::byte> header,
                            std::span<const std::byte> data) {
  std::vector<std::byte> out(has_long_ids_ ? 16 : 12);
  const auto length = static_cast<uint32_t>(header.size() + data.size());
  std::memcpy(out.data(), &type, 4);
  std::memcpy(out.data() + 4, &length, 4);
  std::memcpy(out.data() + 8, &id, out.size() - 8);
  out.insert(out.end(), header.begin(), header.end());
  out.insert(out.end(), data.begin(), data.end());
  return write_all(socket_, out);
}

Result<UsbredirServer::Message> UsbredirServer::receive() {
  std::array<std::byte, 16> header{};
  BM_TRY(read_all(socket_, header.data(), has_long_ids_ ? 16 : 12));
  Message message;
  uint32_t length = 0;
  std::memcpy(&message.type, header.data(), 4);
  std::memcpy(&length, header.data() + 4, 4);
  std::memcpy(&message.id, header.data() + 8, has_long_ids_ ? 8 : 4);
  if (length > kLongest) return fail(Code::kCorrupt, "a message of {} bytes", length);
  message.body.resize(length);
  BM_TRY(read_all(socket_, message.body.data(), length));
  return message;
}

Status UsbredirServer::describe_endpoints() {
  InterfaceInfo interfaces{};
  EpInfo endpoints{};
  std::ranges::fill(endpoints.type, uint8_t{255});
  endpoints.type[0] = endpoints.type[16] = 0;
  endpoints.max_packet[0] = endpoints.max_packet[16] = 512;
  if (configuration_ != 0) {
    interfaces.count = 1;
    interfaces.interface_class[0] = 0xff;
    for (const int index : {16 + 1, 2}) {  // 0x81 and 0x02
      endpoints.type[index] = 2;
      endpoints.max_packet[index] = device_.identity().speed_mbit >= 5000 ? 1024 : 512;
    }
  }
  BM_TRY(send(kInterfaceInfo, 0, bytes_of(interfaces)));
  return send(kEpInfo, 0, bytes_of(endpoints));
}

Status UsbredirServer::announce() {
  const UsbIdentity& identity = device_.identity();
  const Connect connect{.speed = identity.speed_mbit >= 5000 ? kSpeedSuper : kSpeedHigh,
                        .device_class = 0,
                        .subclass = 0,
                        .protocol = 0,
                        .vendor = identity.vendor,
                        .product = identity.product,
                        .version = 0x0100};
  BM_TRY(describe_endpoints());
  return send(kDeviceConnect, 0, bytes_of(connect));
}

std::vector<std::byte> UsbredirServer::descriptor(uint16_t value) const {
  const UsbIdentity& identity = device_.identity();
  const bool is_super = identity.speed_mbit >= 5000;
  std::vector<uint8_t> out;
  const auto put = [&](std::initializer_list<int> values) {
    for (const int byte : values) out.push_back(static_cast<uint8_t>(byte));
  };
  switch (value >> 8) {
    case 1:  // device, USB 3.2 table 9-11
      put({18, 1, 0x00, is_super ? 3 : 2, 0, 0, 0, is_super ? 9 : 64});
      put({identity.vendor & 0xff, identity.vendor >> 8, identity.product & 0xff,
           identity.product >> 8, 0, 1, 1, 2, 3, 1});
      break;
    case 2: {  // configuration, interface, endpoints and their companions, tables 9-22 to 9-26
      const auto endpoint = [&](int address) {
        put({7, 5, address, 2, 0, is_super ? 4 : 2, 0});
        if (is_super) put({6, 0x30, 15, 0, 0, 0});
      };
      put({9, 2, 0, 0, 1, 1, 0, 0xc0, 0});
      put({9, 4, 0, 0, 2, 0xff, 0, 0, 0});
      endpoint(0x81);
      endpoint(0x02);
      out[2] = static_cast<uint8_t>(out.size());
      break;
    }
    case 3: {  // string
      const std::string texts[] = {"", identity.manufacturer_text, identity.product_text,
                                   identity.serial};
      const size_t index = value & 0xff;
      if (index >= std::size(texts)) return {};
      if (index == 0) {
        put({4, 3, 9, 4});
        break;
      }
      put({static_cast<int>(2 + 2 * texts[index].size()), 3});
      for (const char letter : texts[index]) put({letter, 0});
      break;
    }
    case 15:  // BOS with USB 2.0 extension and SuperSpeed capability, tables 9-12 to 9-15
      if (!is_super) return {};
      put({5, 15, 22, 0, 2, 7, 16, 2, 2, 0, 0, 0, 10, 16, 3, 0, 14, 0, 3, 10, 0xff, 7});
      break;
    default: return {};
  }
  const auto bytes = std::as_bytes(std::span(out));
  return {bytes.begin(), bytes.end()};
}

Status UsbredirServer::answer_control(const Message& message) {
  Control header{};
  if (message.body.size() < sizeof header) return fail(Code::kCorrupt, "a short control packet");
  std::memcpy(&header, message.body.data(), sizeof header);
  const auto data = std::span(message.body).subspan(sizeof header);
  const bool is_in = (header.request_type & 0x80) != 0;
  std::vector<std::byte> reply;
  header.status = kSuccess;
  if ((header.request_type & 0x60) == 0) {  // a standard request
    if (is_in && header.request == 6) reply = descriptor(header.value);
    if (is_in && header.request == 0) reply = {std::byte{1}, std::byte{0}};
    if (is_in && reply.empty()) header.status = kStall;
  } else {
    const UsbRequest request{header.request_type, header.request, header.value, header.index};
    Status done;
    if (is_in) {
      reply.resize(header.length);
      const Result<size_t> got = device_.control_in(request, reply, 1000);
      reply.resize(got ? *got : 0);
      if (!got) done = tl::unexpected(got.error());
    } else {
      done = device_.control_out(request, data, 1000);
    }
    if (!done && done.error().code == Code::kTimeout) {
      pending_[message.id] = message;
      return {};
    }
    if (!done) header.status = kStall;
  }
  if (reply.size() > header.length) reply.resize(header.length);
  if (is_in) header.length = static_cast<uint16_t>(reply.size());
  return send(kControlPacket, message.id, bytes_of(header), reply);
}

Status UsbredirServer::answer_bulk(const Message& message) {
  Bulk header{};
  if (message.body.size() < sizeof header) return fail(Code::kCorrupt, "a short bulk packet");
  std::memcpy(&header, message.body.data(), sizeof header);
  if (header.bytes() > kLongest) return fail(Code::kCorrupt, "a transfer of {}", header.bytes());
  const auto data = std::span(message.body).subspan(sizeof header);
  std::vector<std::byte> reply;
  Status done;
  if ((header.endpoint & 0x80) != 0) {
    reply.resize(header.bytes());
    const Result<size_t> got = device_.bulk_in(header.endpoint, reply, 1000);
    reply.resize(got ? *got : 0);
    if (!got) done = tl::unexpected(got.error());
    header.length = static_cast<uint16_t>(reply.size());
    header.length_high = static_cast<uint16_t>(reply.size() >> 16);
  } else {
    done = device_.bulk_out(header.endpoint, data, 1000);
  }
  if (!done && done.error().code == Code::kTimeout) {
    pending_[message.id] = message;
    return {};
  }
  header.status = done ? kSuccess : kStall;
  return send(kBulkPacket, message.id, bytes_of(header), reply);
}

Status UsbredirServer::answer(const Message& message) {
  const auto byte = [&](size_t at) {
    return at < message.body.size() ? static_cast<uint8_t>(message.body[at]) : uint8_t{0};
  };
  switch (message.type) {
    case kHello: {
      Hello theirs{};
      std::memcpy(&theirs, message.body.data(), std::min(message.body.size(), sizeof theirs));
      has_long_ids_ = (theirs.capabilities & kCapLongIds) != 0;
      return announce();
    }
    case kReset:
      configuration_ = alternate_ = 0;
      pending_.clear();
      return {};
    case kSetConfiguration:
      configuration_ = byte(0);
      alternate_ = 0;
      BM_TRY(describe_endpoints());
      [[fallthrough]];
    case kGetConfiguration:
      return send(kConfigurationStatus, message.id,
                  bytes_of(std::array<uint8_t, 2>{kSuccess, configuration_}));
    case kSetAltSetting:
      alternate_ = byte(1);
      BM_TRY(describe_endpoints());
      [[fallthrough]];
    case kGetAltSetting:
      return send(kAltSettingStatus, message.id,
                  bytes_of(std::array<uint8_t, 3>{kSuccess, byte(0), alternate_}));
    case kCancelDataPacket: {
      const auto found = pending_.find(message.id);
      if (found == pending_.end()) return {};
      const Message cancelled = std::move(found->second);
      pending_.erase(found);
      std::vector<std::byte> header = cancelled.body;
      header.resize(cancelled.type == kBulkPacket ? sizeof(Bulk) : sizeof(Control));
      header[cancelled.type == kBulkPacket ? offsetof(Bulk, status) : offsetof(Control, status)] =
          std::byte{kCancelled};
      return send(cancelled.type, cancelled.id, header);
    }
    case kControlPacket: return answer_control(message);
    case kBulkPacket: return answer_bulk(message);
    default: return {};
  }
}

Status UsbredirServer::serve(int socket) {
  socket_ = socket;
  Hello hello{"bellmetal usb model",
              kCapDeviceVersion | kCapMaxPacketSize | kCapLongIds | kCapLongBulk};
  BM_TRY(send(kHello, 0, bytes_of(hello)));
  while (!is_unplugged_) {
    const Result<Message> message = receive();
    if (!message) {
      if (message.error().code == Code::kNotFound) return {};
      return tl::unexpected(message.error());
    }
    BM_TRY(answer(*message));
  }
  return send(kDeviceDisconnect, 0, {});
}

}  // namespace bm::sim
