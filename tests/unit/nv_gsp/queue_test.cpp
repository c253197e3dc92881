#include "drivers/nv/gsp/message_queue.h"

#include <gtest/gtest.h>

#include "tests/unit/nv_gsp/fake_gsp.h"

namespace bm::nv::gsp::test {
namespace {

using Events = std::vector<std::pair<uint32_t, size_t>>;

class Listener final : public RpcEventSink {
 public:
  void on_event(RpcEvent event, uint32_t, std::span<const std::byte> payload) override {
    events.emplace_back(static_cast<uint32_t>(event), payload.size());
  }
  Events events;
};

/// A queue whose GSP does `serve` whenever its doorbell is rung.
struct Pair {
  Pair() {
    queue = *MessageQueue::create(rig.bus, *rig.memory);
    gsp.emplace(rig, queue->address());
    rig.pci.on_write = [this](uint32_t bar, uint64_t offset, uint32_t) {
      if (bar == 0 && offset == 0x110c00 && serve) serve();
    };
  }
  void link() {
    gsp->make_queue();
    ASSERT_TRUE(queue->link(1000));
  }
  /// Answers a command with the same payload.
  void echo() {
    serve = [this] {
      while (const auto command = gsp->take()) {
        commands.push_back(*command);
        gsp->put(command->function, command->payload);
      }
    };
  }
  Rig rig;
  std::unique_ptr<MessageQueue> queue;
  std::optional<FakeGsp> gsp;
  std::function<void()> serve;
  std::vector<Command> commands;
};

RpcRequest control(const Blob& payload) {
  return {.what = "a control",
          .function = RpcFunction::kGspRmControl,
          .payload = payload,
          .timeout_us = 50'000};
}

TEST(GspQueue, PageListBeginsWithItselfAndHeaderIsTheKernels) {
  Pair pair;
  EXPECT_EQ(pair.queue->page_table_entries(), 129u);
  EXPECT_EQ(pair.queue->command_offset(), 0x1000u);
  EXPECT_EQ(pair.queue->status_offset(), 0x41000u);
  for (uint32_t i = 0; i < 129; ++i)
    EXPECT_EQ(pair.gsp->load<uint64_t>(pair.queue->address() + 8 * i),
              pair.queue->address() + 0x1000 * i);
  const uint32_t wanted[8] = {0, 0x40000, 0x1000, 63, 0, 1, 32, 0x1000};
  for (uint32_t i = 0; i < 8; ++i)
    EXPECT_EQ(pair.gsp->load<uint32_t>(pair.gsp->at(4 * i)), wanted[i]) << i;
}

TEST(GspQueue, CallIsFramedAndItsAnswerComesBack) {
  Pair pair;
  pair.link();
  pair.echo();
  const Blob payload = noise(100);
  const auto reply = pair.queue->call(control(payload));
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ(reply->result, 0u);
  EXPECT_EQ(reply->payload, payload);
  ASSERT_EQ(pair.commands.size(), 1u);
  EXPECT_EQ(pair.commands[0].function, 76u);
  EXPECT_EQ(pair.commands[0].sequence, 0u);
  EXPECT_EQ(pair.commands[0].pages, 1u);
  EXPECT_EQ(pair.commands[0].payload, payload);
  EXPECT_TRUE(pair.gsp->is_checksum_right);
  EXPECT_EQ(pair.gsp->messages_read(), 1u);
}

TEST(GspQueue, SequencesCountAndQueuesWrapAround) {
  Pair pair;
  pair.link();
  pair.echo();
  for (uint32_t i = 0; i < 200; ++i) {
    const Blob payload = noise(4000 + i * 17 % 9000, i);
    const auto reply = pair.queue->call(control(payload));
    ASSERT_TRUE(reply) << i << ": " << reply.error().message;
    ASSERT_EQ(reply->payload, payload) << i;
    ASSERT_EQ(pair.commands[i].sequence, i);
  }
  EXPECT_TRUE(pair.gsp->is_checksum_right);
}

TEST(GspQueue, LongCallGoesInContinuationRecordsAndSoDoesItsAnswer) {
  Pair pair;
  pair.link();
  pair.echo();
  const Blob payload = noise(200'000);
  const auto reply = pair.queue->call(control(payload));
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ(reply->payload, payload);
  ASSERT_EQ(pair.commands.size(), 4u);
  EXPECT_EQ(pair.commands[0].pages, 16u);
  EXPECT_EQ(pair.commands[0].payload.size(), 65456u);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(pair.commands[i].function, 71u) << i;
  EXPECT_TRUE(pair.gsp->is_checksum_right);
}

TEST(GspQueue, EventsBetweenCallAndAnswerGoToTheSink) {
  Pair pair;
  pair.link();
  Listener listener;
  pair.queue->set_sink(&listener);
  pair.serve = [&] {
    while (const auto command = pair.gsp->take()) {
      pair.gsp->put(0x1006, noise(300));
      pair.gsp->put(command->function, command->payload, 0x55);
      pair.gsp->put(0x1004, noise(20));
    }
  };
  const Blob payload = noise(8);
  const auto reply = pair.queue->call(control(payload));
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->result, 0x55u);
  EXPECT_EQ(listener.events, (Events{{0x1006, 300}}));
  ASSERT_TRUE(pair.queue->poll());
  EXPECT_EQ(listener.events, (Events{{0x1006, 300}, {0x1004, 20}}));
}

TEST(GspQueue, FullQueueDrainsMessagesWhileItWaits) {
  Pair pair;
  pair.link();
  Listener listener;
  pair.queue->set_sink(&listener);
  const Blob payload = noise(60'000);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(pair.queue->post(control(payload)));  // 60 of 62 pages
  uint32_t reads = 0;
  pair.gsp->put(0x1006, noise(10));
  pair.rig.pci.on_read = [&](uint32_t, uint64_t) {
    ++reads;
    return 1u;
  };
  // Nothing answers: time runs out, and what had come is not lost.
  const auto late = pair.queue->post(control(payload));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::kTimeout);
  EXPECT_NE(late.error().message.find("reads no commands"), std::string::npos);
  EXPECT_EQ(pair.gsp->messages_read(), 1u);
  // The way is broken from now on.
  EXPECT_EQ(pair.queue->poll().error().message, late.error().message);
}

TEST(GspQueue, SilenceIsATimeoutThatSaysWhatCameLast) {
  Pair pair;
  pair.link();
  pair.gsp->put(0x1005, {});
  const Blob payload = noise(8);
  const auto reply = pair.queue->call(control(payload));
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, Code::kTimeout);
  EXPECT_NE(reply.error().message.find("a control"), std::string::npos) << reply.error().message;
  EXPECT_NE(reply.error().message.find("MMU_FAULT_QUEUED"), std::string::npos);
  EXPECT_FALSE(pair.queue->status());
}

/// Has something new to tell for everything that was heard.
class Flood final : public RpcEventSink {
 public:
  explicit Flood(FakeGsp& gsp) : gsp_(gsp) {}
  void on_event(RpcEvent, uint32_t, std::span<const std::byte>) override {
    ++events;
    if (events < 1'000'000) gsp_.put(0x1004, {});
  }
  uint64_t events = 0;

 private:
  FakeGsp& gsp_;
};

TEST(GspQueue, EventsWithoutEndEndAWait) {
  Pair pair;
  pair.link();
  Flood flood(*pair.gsp);
  pair.queue->set_sink(&flood);
  pair.gsp->put(0x1004, {});
  ASSERT_TRUE(pair.queue->poll());
  EXPECT_LT(flood.events, 1'000u);
  const Blob payload = noise(8);
  const auto reply = pair.queue->call(control(payload));
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, Code::kTimeout);
  EXPECT_NE(reply.error().message.find("other messages"), std::string::npos)
      << reply.error().message;
  EXPECT_LT(flood.events, 1'000'000u);
}

TEST(GspQueue, InterruptEndsAWait) {
  Pair pair;
  pair.link();
  pair.rig.stop = true;
  const Blob payload = noise(8);
  const auto reply = pair.queue->call(control(payload));
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, Code::kCancelled);
}

TEST(GspQueue, CardThatIsPulledOutEndsAWait) {
  Pair pair;
  pair.link();
  pair.serve = [&] { pair.rig.pci.unplug(); };
  const Blob payload = noise(8);
  const auto reply = pair.queue->call(control(payload));
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, Code::kDeviceLost) << reply.error().message;
}

TEST(GspQueue, DamagedMessagesAreRefused) {
  struct Row {
    const char* what;
    std::function<void(Pair&)> damage;
    const char* said;
  };
  const Row rows[] = {
      {"checksum", [](Pair& pair) { pair.gsp->put(0x1006, noise(10), 0, 0x10); }, "checksum"},
      {"sequence",
       [](Pair& pair) {
         pair.gsp->sequence = 7;
         pair.gsp->put(0x1006, noise(10));
       },
       "where 0 was next"},
      {"write pointer",
       [](Pair& pair) { pair.gsp->store(pair.gsp->at(0x40000 + 16), uint32_t{63}); },
       "write pointer is 63"},
      {"pages",
       [](Pair& pair) {
         pair.gsp->put(0x1006, noise(10));
         pair.gsp->store(pair.gsp->at(0x41000 + 40), uint32_t{17});
       },
       "17 pages"},
      {"length",
       [](Pair& pair) {
         pair.gsp->put(0x1006, noise(10));
         pair.gsp->store(pair.gsp->at(0x41000 + 56), uint32_t{0x1000});
       },
       "0x1000 bytes"},
  };
  for (const Row& row : rows) {
    Pair pair;
    pair.link();
    row.damage(pair);
    const auto polled = pair.queue->poll();
    ASSERT_FALSE(polled) << row.what;
    EXPECT_EQ(polled.error().code, Code::kCorrupt) << row.what;
    EXPECT_NE(polled.error().message.find(row.said), std::string::npos)
        << row.what << ": " << polled.error().message;
  }
}

TEST(GspQueue, OldMessageIsPassedOver) {
  Pair pair;
  pair.link();
  Listener listener;
  pair.queue->set_sink(&listener);
  pair.gsp->put(0x1006, noise(10));
  pair.gsp->sequence = 0;
  pair.gsp->put(0x1006, noise(20));
  pair.gsp->put(0x1004, noise(30));
  ASSERT_TRUE(pair.queue->poll());
  EXPECT_EQ(listener.events, (Events{{0x1006, 10}, {0x1004, 30}}));
}

TEST(GspQueue, QueueOfAnotherFormIsRefused) {
  Pair pair;
  pair.gsp->make_queue();
  pair.gsp->store(pair.gsp->at(0x40000 + 8), uint32_t{0x800});
  const auto linked = pair.queue->link(1000);
  ASSERT_FALSE(linked);
  EXPECT_EQ(linked.error().code, Code::kCorrupt);
}

TEST(GspQueue, NoQueueIsATimeout) {
  Pair pair;
  const auto linked = pair.queue->link(10'000);
  ASSERT_FALSE(linked);
  EXPECT_EQ(linked.error().code, Code::kTimeout);
}

TEST(GspQueue, WhatIsSentBeforeTheGspRunsWaitsForIt) {
  Pair pair;
  const Blob payload = noise(928);
  ASSERT_TRUE(pair.queue->post(
      {.what = "x", .function = RpcFunction::kGspSetSystemInfo, .payload = payload}));
  ASSERT_TRUE(
      pair.queue->post({.what = "y", .function = RpcFunction::kSetRegistry, .payload = payload}));
  EXPECT_EQ(pair.gsp->commands_written(), 2u);
  pair.link();
  pair.gsp->put(0x1001, {});
  ASSERT_TRUE(pair.queue->wait_event(RpcEvent::kGspInitDone, 1000));
  EXPECT_EQ(pair.gsp->take()->function, 72u);
  EXPECT_EQ(pair.gsp->take()->function, 73u);
}

}  // namespace
}  // namespace bm::nv::gsp::test
