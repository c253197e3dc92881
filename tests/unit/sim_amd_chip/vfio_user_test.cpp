// The vfio-user server of the modelled card, message by message, as the specification has them.

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/amd/chip/chip.h"
#include "tests/sim/pci/vfio_user.h"

namespace bm::sim::amd {
namespace {

struct Reply {
  bool is_there = false;
  uint32_t error = 0;
  std::vector<uint32_t> words;  ///< of the payload
};

class VfioUser : public ::testing::Test {
 protected:
  VfioUser() {
    int both[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both), 0);
    client_ = both[0];
    thread_ = std::thread([this, server = both[1]] {
      sim::VfioUserServer serving(chip_);
      serving.serve(server);
      close(server);
    });
  }
  ~VfioUser() override { leave(); }
  void leave() {
    if (client_ >= 0) close(client_);
    client_ = -1;
    if (thread_.joinable()) thread_.join();
  }

  Reply ask(uint16_t command, const std::vector<uint32_t>& words, int passed = -1) {
    std::vector<uint32_t> message = {0x1234u | uint32_t{command} << 16,
                                     static_cast<uint32_t>(16 + words.size() * 4), 0, 0};
    message.insert(message.end(), words.begin(), words.end());
    iovec part{message.data(), message.size() * 4};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (passed >= 0) {
      header.msg_control = control.data();
      header.msg_controllen = control.size();
      cmsghdr* const one = CMSG_FIRSTHDR(&header);
      one->cmsg_level = SOL_SOCKET;
      one->cmsg_type = SCM_RIGHTS;
      one->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(one), &passed, sizeof passed);
    }
    if (sendmsg(client_, &header, MSG_NOSIGNAL) != static_cast<ssize_t>(part.iov_len)) return {};
    uint32_t head[4] = {};
    if (recv(client_, head, sizeof head, MSG_WAITALL) != sizeof head) return {};
    EXPECT_EQ(head[0], message[0]);  // identifier and command come back
    EXPECT_EQ(head[2] & 0xf, 1u);    // a reply
    EXPECT_EQ((head[2] & 0x20) != 0, head[3] != 0);
    Reply reply{
        .is_there = true, .error = head[3], .words = std::vector<uint32_t>(head[1] / 4 - 4)};
    const size_t bytes = reply.words.size() * 4;
    if (bytes != 0) {
      EXPECT_EQ(recv(client_, reply.words.data(), bytes, MSG_WAITALL), static_cast<ssize_t>(bytes));
    }
    return reply;
  }
  /// Major 0, minor 1, no capabilities: all of them have defaults.
  void greet() { ASSERT_TRUE(ask(1, {0x00010000}).is_there); }
  static std::vector<uint32_t> map_words(uint64_t address, uint64_t bytes, uint32_t flags = 3) {
    return {32,
            flags,
            0,
            0,
            static_cast<uint32_t>(address),
            static_cast<uint32_t>(address >> 32),
            static_cast<uint32_t>(bytes),
            static_cast<uint32_t>(bytes >> 32)};
  }

  Chip chip_{ChipOptions{}};
  int client_ = -1;
  std::thread thread_;
};

TEST_F(VfioUser, WhoeverDoesNotBeginWithAVersionIsLeft) {
  EXPECT_FALSE(ask(4, {16, 0, 0, 0}).is_there);
}

TEST_F(VfioUser, AnotherMajorVersionIsRefused) { EXPECT_EQ(ask(1, {7}).error, uint32_t{EINVAL}); }

TEST_F(VfioUser, TheDeviceIsDescribed) {
  greet();
  EXPECT_EQ(ask(4, {16, 0, 0, 0}).words, (std::vector<uint32_t>{16, 3, 9, 5}));
  const Reply bar = ask(5, {32, 0, 5, 0, 0, 0, 0, 0});
  ASSERT_EQ(bar.words.size(), 8u);
  EXPECT_EQ(bar.words[1], 3u);
  EXPECT_EQ(bar.words[4], Chip::kRegisterBytes);
  EXPECT_EQ(ask(5, {32, 0, 9, 0, 0, 0, 0, 0}).error, uint32_t{EINVAL});
  EXPECT_EQ(ask(7, {16, 0, 1, 0}).words, (std::vector<uint32_t>{16, 9, 1, 1}));
  EXPECT_EQ(ask(9, {0, 0, 7, 4}).words.at(4) & 0xffff, 0x1002u);
  EXPECT_EQ(ask(9, {0x1000, 0, 7, 4}).error, uint32_t{EINVAL});
  EXPECT_EQ(ask(99, {}).error, uint32_t{ENOSYS});
}

TEST_F(VfioUser, MemoryIsReachedWhileItIsMappedAndNotAfterwards) {
  greet();
  const int file = memfd_create("client", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, 8192), 0);
  EXPECT_EQ(ask(2, map_words(0x10000, 8192)).error, uint32_t{ENOTSUP});
  EXPECT_EQ(ask(2, map_words(0x10000, 8192), file).error, 0u);
  EXPECT_EQ(ask(2, map_words(0x11000, 8192), file).error, uint32_t{EEXIST});
  EXPECT_EQ(ask(2, map_words(0x20001, 8192), file).error, uint32_t{EINVAL});
  EXPECT_EQ(ask(2, map_words(0x20000, 8192, 1), file).error, 0u);
  std::byte* const there = chip_.system_memory().at(0x11000, 4, true);
  ASSERT_NE(there, nullptr);
  there[0] = std::byte{42};
  char seen = 0;
  EXPECT_EQ(pread(file, &seen, 1, 4096), 1);
  EXPECT_EQ(seen, 42);
  EXPECT_EQ(chip_.system_memory().at(0x20000, 4, true), nullptr);  // read-only
  EXPECT_NE(chip_.system_memory().at(0x20000, 4, false), nullptr);
  EXPECT_EQ(ask(3, {24, 0, 0x10000, 0, 4096, 0}).error, uint32_t{EINVAL});
  EXPECT_EQ(ask(3, {24, 0, 0x10000, 0, 8192, 0}).error, 0u);
  EXPECT_EQ(chip_.system_memory().at(0x10000, 4, false), nullptr);
  leave();
  EXPECT_EQ(chip_.system_memory().at(0x20000, 4, false), nullptr);
  close(file);
}

TEST_F(VfioUser, AClientThatGoesTakesBusMasteringWithIt) {
  greet();
  chip_.write_config(4, 2, 6);
  leave();
  EXPECT_EQ(chip_.read_config(4, 2) & 6, 2u);
}

}  // namespace
}  // namespace bm::sim::amd
