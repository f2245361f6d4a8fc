#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include "absl/strings/str_join.h"
#include "client/client.h"
#include "tests/client/fake_server.h"

// Debian's c-ares forgets the name that it finds in /etc/hosts, once a resolution; AddressSanitizer asks this.
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libcares.so\n"; }

namespace attnd::client {
namespace {

using ::testing::Each;
using ::testing::Pair;
using ::testing::SizeIs;

// Holds up whoever passes until it is opened.
class Gate {
 public:
  void Pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void AwaitWaiting(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ >= count; });
  }
  void Open() {
    const std::scoped_lock lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  bool open_ = false;
};

class AsyncTest : public testing::Test {
 protected:
  void SetUp() override { Connect({}); }
  void TearDown() override { gate_.Open(); }
  void Connect(const ClientOptions& options) {
    absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(server_.target, options);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  // Answers wait at the gate.
  void HoldAnswers() {
    server_.spoil = [this](v1::AttendResponse&) { gate_.Pass(); };
  }

  Gate gate_;
  FakeServer server_;
  std::unique_ptr<Client> client_;
};

TEST_F(AsyncTest, TheAnswerIsTheServersAndItsErrorsToo) {
  std::promise<absl::StatusOr<Answer>> good, bad;
  client_->AttendAsync(Gives({7}), {}, [&](absl::StatusOr<Answer> answer) { good.set_value(std::move(answer)); });
  const absl::StatusOr<Answer> answer = good.get_future().get();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->output.At(0), 7);
  EXPECT_EQ(answer->output.shape, (std::vector<std::int64_t>{1, 1}));
  EXPECT_TRUE(server_.had_deadline);
  server_.refusal = {grpc::StatusCode::INVALID_ARGUMENT, "k: is wrong"};
  client_->AttendAsync(Gives({7}), {}, [&](absl::StatusOr<Answer> refused) { bad.set_value(std::move(refused)); });
  EXPECT_EQ(bad.get_future().get().status(), absl::InvalidArgumentError("k: is wrong"));
}

TEST_F(AsyncTest, AProblemMayBeChangedWhileItsCallIsOpen) {
  HoldAnswers();
  // More than what is copied into a message.
  const std::vector<float> twos(4096, 2.0F);
  Problem problem = Gives(twos);
  std::promise<absl::StatusOr<Answer>> done;
  client_->AttendAsync(problem, {}, [&](absl::StatusOr<Answer> answer) { done.set_value(std::move(answer)); });
  ASSERT_TRUE(problem.SetWireDType(DType::kFloat16).ok());
  gate_.Open();
  const absl::StatusOr<Answer> answer = done.get_future().get();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->output.bytes, Array::Of({1, 4096}, twos).bytes);
}

TEST_F(AsyncTest, WhoeverKeepsAPendingCallKeepsNoTensors) {
  std::weak_ptr<const v1::AttendRequest> request;
  std::promise<void> done;
  std::optional<PendingCall> call;
  {
    const Problem problem = Gives(std::vector<float>(4096, 1));
    request = problem.shared_request();
    call = client_->AttendAsync(problem, {}, [&](absl::StatusOr<Answer>) { done.set_value(); });
  }
  done.get_future().wait();
  // gRPC gives back what it sent in its own time.
  for (int i = 0; i < 1000 && !request.expired(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(request.expired());
}

TEST_F(AsyncTest, CancelEndsACallThatTheServerStillWorksOn) {
  HoldAnswers();
  std::promise<absl::Status> done;
  const PendingCall call =
      client_->AttendAsync(Gives({1}), {}, [&](absl::StatusOr<Answer> answer) { done.set_value(answer.status()); });
  gate_.AwaitWaiting(1);
  std::thread([call] { call.Cancel(); }).join();
  EXPECT_EQ(done.get_future().get().code(), absl::StatusCode::kCancelled);
  call.Cancel();  // of a call that is over
}

TEST_F(AsyncTest, EveryCallIsAnsweredOnceWhateverIsCancelled) {
  constexpr int kCalls = 400;
  std::vector<std::atomic<int>> answered(kCalls);
  std::atomic<int> right{0}, cancelled{0};
  std::vector<PendingCall> calls;
  for (int i = 0; i < kCalls; ++i) {
    calls.push_back(client_->AttendAsync(Gives({static_cast<float>(i)}), {}, [&, i](absl::StatusOr<Answer> answer) {
      ++answered[static_cast<std::size_t>(i)];
      if (answer.ok() && answer->output.At(0) == i) ++right;
      if (absl::IsCancelled(answer.status())) ++cancelled;
    }));
  }
  std::thread odd([&] {
    for (std::size_t i = 1; i < calls.size(); i += 2) calls[i].Cancel();
  });
  for (std::size_t i = 1; i < calls.size(); i += 4) calls[i].Cancel();
  odd.join();
  client_ = nullptr;  // which waits
  for (const std::atomic<int>& times : answered) EXPECT_EQ(times, 1);
  EXPECT_EQ(right + cancelled, kCalls);
  for (const PendingCall& call : calls) call.Cancel();  // after the client is gone
}

TEST_F(AsyncTest, DestroyingTheClientEndsItsCalls) {
  HoldAnswers();
  std::atomic<int> cancelled{0};
  for (int i = 0; i < 8; ++i) {
    client_->AttendAsync(Gives({1}), {}, [&](absl::StatusOr<Answer> answer) {
      if (absl::IsCancelled(answer.status())) ++cancelled;
    });
  }
  gate_.AwaitWaiting(1);
  client_ = nullptr;
  EXPECT_EQ(cancelled, 8);
}

TEST_F(AsyncTest, ACallbackMayDestroyTheClient) {
  std::promise<void> destroyed;
  client_->AttendAsync(Gives({1}), {}, [&](absl::StatusOr<Answer>) {
    client_ = nullptr;
    destroyed.set_value();
  });
  destroyed.get_future().wait();
  EXPECT_EQ(client_, nullptr);
}

// A loop of calls, each begun by the one before, until one is not answered.
class Loop {
 public:
  explicit Loop(Client& client) : client_(client) { Begin(); }
  std::atomic<int> answered{0};
  std::promise<absl::Status> ended;

 private:
  void Begin() {
    client_.AttendAsync(Gives({1}), {}, [this](absl::StatusOr<Answer> answer) {
      if (!answer.ok()) return ended.set_value(answer.status());
      ++answered;
      Begin();
    });
  }
  Client& client_;
};

TEST_F(AsyncTest, CallbacksBeginCallsUntilTheClientIsDestroyed) {
  Loop first(*client_), second(*client_);
  while (first.answered < 50 || second.answered < 50) std::this_thread::yield();
  client_ = nullptr;
  EXPECT_EQ(first.ended.get_future().get().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(second.ended.get_future().get().code(), absl::StatusCode::kCancelled);
}

TEST_F(AsyncTest, AStreamIsCancelledFromAnotherThread) {
  server_.spoil_message = [this](v1::AttendStreamResponse&) { gate_.Pass(); };
  const std::unique_ptr<Stream> stream = client_->OpenStream();
  std::thread canceller([&] {
    gate_.AwaitWaiting(1);
    stream->Cancel();
  });
  EXPECT_EQ(stream->Attend(Gives({1})).status().code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(stream->alive());
  canceller.join();
}

TEST_F(AsyncTest, CallsSpreadOverConnectionsByHowManyAreOpen) {
  ClientOptions options;
  options.connections = 3;
  Connect(options);
  HoldAnswers();
  std::atomic<int> answered{0};
  for (int i = 0; i < 6; ++i) client_->AttendAsync(Gives({1}), {}, [&](absl::StatusOr<Answer>) { ++answered; });
  gate_.AwaitWaiting(6);
  EXPECT_THAT(server_.CallsByPeer(), SizeIs(3));
  EXPECT_THAT(server_.CallsByPeer(), Each(Pair(testing::_, 2)));
  gate_.Open();
  while (answered < 6) std::this_thread::yield();
  // With none open they take turns.
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(client_->Attend(Gives({1})).ok());
  EXPECT_THAT(server_.CallsByPeer(), Each(Pair(testing::_, 3)));
}

TEST(BalancingTest, RoundRobinReachesEveryServerAndTheFirstAloneOtherwise) {
  FakeServer servers[3];
  const std::string target = absl::StrCat(
      "ipv4:",
      absl::StrJoin(servers, ",", [](std::string* out, const FakeServer& server) { out->append(server.target); }));
  const std::unique_ptr<Client> first = *Client::Connect(target);
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(first->Attend(Gives({1})).ok());
  EXPECT_EQ(servers[0].calls, 9);
  ClientOptions options;
  options.balancing = Balancing::kRoundRobin;
  const std::unique_ptr<Client> all = *Client::Connect(target, options);
  while (servers[0].calls == 9 || servers[1].calls == 0 || servers[2].calls == 0) {
    EXPECT_TRUE(all->Attend(Gives({1})).ok());  // connections come up one after another
  }
  for (FakeServer& server : servers) server.calls = 0;
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(all->Attend(Gives({1})).ok());
  for (const FakeServer& server : servers) EXPECT_EQ(server.calls, 3);
}

TEST(BalancingTest, NamesAreResolved) {
  const FakeServer server;
  const std::string port = server.target.substr(server.target.find(':'));
  for (const Balancing balancing : {Balancing::kFirst, Balancing::kRoundRobin}) {
    ClientOptions options;
    options.balancing = balancing;
    const absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect("dns:///localhost" + port, options);
    ASSERT_TRUE(client.ok()) << client.status();
    EXPECT_TRUE((*client)->Attend(Gives({1})).ok());
  }
}

}  // namespace
}  // namespace attnd::client
