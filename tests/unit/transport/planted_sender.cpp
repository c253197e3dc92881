#include "tests/unit/transport/planted_sender.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdlib>
#include <cstring>

namespace bm::test {

bool PlantedSender::put(int fd, int cut, const std::string& bytes, int passed) {
  // One at a time only where something is planted.
  constexpr uint64_t kNever = ~uint64_t{0};
  const bool is_plain =
      faults_.cut_after == kNever && faults_.stall_after == kNever && faults_.flip_at == kNever;
  for (size_t i = 0; i < bytes.size();) {
    if (sent_ >= faults_.stall_after) return true;
    if (sent_ >= faults_.cut_after) {
      ::shutdown(cut, SHUT_RDWR);
      return false;
    }
    char byte = sent_ == faults_.flip_at ? static_cast<char>(~bytes[i]) : bytes[i];
    iovec part{is_plain ? const_cast<char*>(&bytes[i]) : &byte, is_plain ? bytes.size() - i : 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (passed >= 0 && i == 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* const head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(head), &passed, sizeof passed);
    }
    const ssize_t done = ::sendmsg(fd, &message, MSG_NOSIGNAL);
    if (done <= 0) return false;
    sent_ += static_cast<uint64_t>(done);
    i += static_cast<size_t>(done);
  }
  return true;
}

int listen_in_folder(std::string* folder) {
  if (::mkdtemp(folder->data()) == nullptr) std::abort();
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (*folder + "/socket").c_str(), sizeof address.sun_path - 1);
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener, 4) != 0)
    std::abort();
  return listener;
}

}  // namespace bm::test
