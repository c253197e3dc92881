// What the client of `bench serve` counts, from servers that a thread plays.
#include "tools/bellmetal/stream_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "runtime/base/scoped_fd.h"

namespace bm::cli {
namespace {

constexpr std::string_view kHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";

/// Answers one connection with `answer`, once the request is there.
class OneAnswer {
 public:
  explicit OneAnswer(std::string answer) : listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const at = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listener_.get(), at, size), 0);
    EXPECT_EQ(::listen(listener_.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener_.get(), at, &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, answer = std::move(answer)] {
      const ScopedFd fd(::accept(listener_.get(), nullptr, nullptr));
      for (char c = 0; request_.find("\r\n\r\n{}") == std::string::npos;) {
        if (::recv(fd.get(), &c, 1, 0) != 1) return;
        request_ += c;
      }
      (void)::send(fd.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    });
  }
  ~OneAnswer() { thread_.join(); }
  OneAnswer(const OneAnswer&) = delete;
  OneAnswer& operator=(const OneAnswer&) = delete;
  uint16_t port() const { return port_; }

 private:
  ScopedFd listener_;
  uint16_t port_ = 0;
  std::string request_;
  std::thread thread_;
};

std::string text_event(std::string_view text) {
  return R"(data: {"choices":[{"index":0,"text":")" + std::string(text) +
         R"(","finish_reason":null}],"usage":null})"
         "\n\n";
}
std::string last_events(int tokens) {
  return R"(data: {"choices":[{"index":0,"text":"","finish_reason":"length"}],"usage":null})"
         "\n\n"
         R"(data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":)" +
         std::to_string(tokens) +
         R"(,"total_tokens":9}})"
         "\n\ndata: [DONE]\n\n";
}

TEST(StreamClient, TokensWithoutTextAreCountedAndNotTimed) {
  // A model that writes nothing but control tokens: they have no text, so no event tells of them.
  const OneAnswer server(std::string(kHead) + last_events(5));
  const auto times = stream_completion(server.port(), "{}");
  ASSERT_TRUE(times) << times.error().message;
  EXPECT_EQ(times->tokens, 5U);
  EXPECT_FALSE(times->first_ms);
  EXPECT_TRUE(times->gaps_ms.empty());
}

TEST(StreamClient, TokensThatCameTogetherAreAllCounted) {
  const OneAnswer server(std::string(kHead) + text_event("a b") + text_event("c") + last_events(3));
  const auto times = stream_completion(server.port(), "{}");
  ASSERT_TRUE(times) << times.error().message;
  EXPECT_EQ(times->tokens, 3U);
  EXPECT_TRUE(times->first_ms);
  EXPECT_EQ(times->gaps_ms.size(), 1U);
}

TEST(StreamClient, EventsAreCountedWhereTheServerTellsNoUsage) {
  const OneAnswer server(std::string(kHead) + text_event("a") + text_event("b") +
                         "data: [DONE]\n\n");
  const auto times = stream_completion(server.port(), "{}");
  ASSERT_TRUE(times) << times.error().message;
  EXPECT_EQ(times->tokens, 2U);
}

TEST(StreamClient, AnAnswerOfNothingIsAnError) {
  const OneAnswer server(std::string(kHead) + "data: [DONE]\n\n");
  EXPECT_FALSE(stream_completion(server.port(), "{}"));
}

TEST(StreamClient, AStreamThatBreaksOffIsAnError) {
  const OneAnswer server(std::string(kHead) + text_event("a"));
  const auto times = stream_completion(server.port(), "{}");
  ASSERT_FALSE(times);
  EXPECT_NE(times.error().message.find("[DONE]"), std::string::npos);
}

TEST(StreamClient, AnErrorInsideAStreamIsAnError) {
  const OneAnswer server(std::string(kHead) + text_event("a") +
                         "data: {\"error\":{\"message\":\"the device failed\"}}\n\n"
                         "data: [DONE]\n\n");
  const auto times = stream_completion(server.port(), "{}");
  ASSERT_FALSE(times);
  EXPECT_NE(times.error().message.find("the device failed"), std::string::npos);
}

}  // namespace
}  // namespace bm::cli
