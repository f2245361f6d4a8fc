#include "client/retry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "client/client.h"
#include "client/wire.h"
#include "tests/client/fake_clock.h"
#include "tests/client/fake_server.h"

namespace attnd::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kMs = absl::Milliseconds(1);

// google.rpc.Status{code, message, details = Any{RetryInfo{retry_delay = {seconds, nanos}}}}, written by hand from
// their .proto files. All lengths are below 128.
std::string Details(const std::string& duration) {
  const auto field = [](char tag, const std::string& bytes) {
    return std::string(1, tag) + static_cast<char>(bytes.size()) + bytes;
  };
  const std::string any =
      field('\x0a', "type.googleapis.com/google.rpc.RetryInfo") + field('\x12', field('\x0a', duration));
  return std::string("\x08\x08", 2) + field('\x12', "no room") + field('\x1a', any);
}
// 250 ms: nanos (field 2) = 250,000,000.
const std::string k250Ms = "\x10\x80\xe5\x9a\x77";

grpc::Status NoRoom(const std::string& duration = k250Ms) {
  return {grpc::StatusCode::RESOURCE_EXHAUSTED, "no room", Details(duration)};
}
const grpc::Status kGone(grpc::StatusCode::UNAVAILABLE, "gone");

TEST(RetryDelayTest, ComesFromTheDetailsAndFromNothingElse) {
  EXPECT_EQ(RetryDelay(FromGrpc(NoRoom())), 250 * kMs);
  EXPECT_EQ(FromGrpc(NoRoom()).message(), "no room");
  EXPECT_EQ(RetryDelay(FromGrpc(NoRoom("\x08\x03"))), 3000 * kMs);
  EXPECT_EQ(RetryDelay(FromGrpc(NoRoom(""))), absl::ZeroDuration());
  // A negative delay (-1 s) is none, nor is one that cannot be read.
  EXPECT_EQ(RetryDelay(FromGrpc(NoRoom("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))), std::nullopt);
  EXPECT_EQ(RetryDelay(FromGrpc(NoRoom("\x08"))), std::nullopt);
  EXPECT_EQ(RetryDelay(FromGrpc(kGone)), std::nullopt);
  EXPECT_EQ(RetryDelay(FromGrpc({grpc::StatusCode::RESOURCE_EXHAUSTED, "retry after 5 ms", "no message"})),
            std::nullopt);
}

class RetriesTest : public testing::Test {
 protected:
  std::optional<absl::Duration> After(Retries& retries, const absl::Status& status, double uniform = 0.5) {
    return retries.After(status, now_, uniform);
  }
  RetryOptions options_{.max_tokens = 0};
  RetryBudget budget_{options_};
  absl::Time now_ = absl::UnixEpoch(), deadline_ = now_ + absl::Seconds(60);
};

TEST_F(RetriesTest, OnlyWhatMayHelpIsAskedAgain) {
  const absl::Status no_room = FromGrpc(NoRoom());
  EXPECT_TRUE(Retries(options_, budget_, deadline_).After(no_room, now_, 0).has_value());
  EXPECT_TRUE(Retries(options_, budget_, deadline_).After(absl::UnavailableError(""), now_, 0).has_value());
  for (int code = 1; code <= 16; ++code) {
    if (code == static_cast<int>(absl::StatusCode::kUnavailable)) continue;
    const absl::Status status(static_cast<absl::StatusCode>(code), "");
    EXPECT_EQ(Retries(options_, budget_, deadline_).After(status, now_, 0), std::nullopt) << status;
  }
}

TEST_F(RetriesTest, WaitsGrowUpToTheLongestAndEndWithTheAttempts) {
  options_.max_attempts = 6;
  options_.max_backoff = 500 * kMs;
  Retries retries(options_, budget_, deadline_);
  for (const int expected : {100, 200, 400, 500, 500}) {
    EXPECT_EQ(After(retries, absl::UnavailableError("")), expected * kMs);
  }
  EXPECT_EQ(After(retries, absl::UnavailableError("")), std::nullopt);
}

TEST_F(RetriesTest, JitterGoesBothWaysButNeverBelowTheServersDelay) {
  const absl::Status gone = absl::UnavailableError(""), no_room = FromGrpc(NoRoom());
  const auto first = [&](const absl::Status& status, double uniform) {
    return absl::ToDoubleMilliseconds(*Retries(options_, budget_, deadline_).After(status, now_, uniform));
  };
  EXPECT_NEAR(first(gone, 0), 80, 1e-6);
  EXPECT_NEAR(first(gone, 0.75), 110, 1e-6);
  EXPECT_NEAR(first(no_room, 0), 250, 1e-6);
  EXPECT_NEAR(first(no_room, 0.5), 275, 1e-6);
  options_.initial_backoff = 1000 * kMs;
  EXPECT_NEAR(first(no_room, 0.5), 1000, 1e-6);
}

TEST_F(RetriesTest, NothingIsWaitedForBeyondTheDeadline) {
  Retries retries(options_, budget_, now_ + 100 * kMs);
  EXPECT_EQ(After(retries, absl::UnavailableError("")), std::nullopt);
  Retries just_enough(options_, budget_, now_ + 101 * kMs);
  EXPECT_EQ(After(just_enough, absl::UnavailableError("")), 100 * kMs);
}

TEST(RetryBudgetTest, HalfTheTokensMayBeSpentAndAnswersGiveThemBack) {
  RetryBudget budget(RetryOptions{.max_tokens = 10, .token_ratio = 0.5});
  for (int failure = 1; failure <= 4; ++failure) EXPECT_TRUE(budget.OnFailure()) << failure;
  EXPECT_FALSE(budget.OnFailure());  // 5 are left, which is not more than half
  for (int answer = 0; answer < 3; ++answer) budget.OnSuccess();
  EXPECT_TRUE(budget.OnFailure());  // 6.5 were there
  EXPECT_FALSE(budget.OnFailure());
}

class RetriedCallTest : public testing::Test {
 protected:
  void Connect(const RetryOptions& retry = {}) {
    ClientOptions options;
    options.retry = retry;
    absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(server_.target, options, clock_);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  // The first `failures` calls end with `status`.
  void FailFirst(int failures, const grpc::Status& status) {
    server_.attempt = [=](int call) { return call <= failures ? status : grpc::Status::OK; };
  }
  // Every way to ask, with what it gave.
  absl::Status Ask(bool async, const CallOptions& options = {}) {
    if (!async) return client_->Attend(problem_, options).status();
    std::promise<absl::Status> done;
    client_->AttendAsync(problem_, options, [&](absl::StatusOr<Answer> answer) { done.set_value(answer.status()); });
    return done.get_future().get();
  }

  FakeServer server_;
  FakeClock clock_;
  std::unique_ptr<Client> client_;
  const Problem problem_ = Gives({2});
};

class EitherWay : public RetriedCallTest, public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(, EitherWay, testing::Bool(),
                         [](const auto& given) { return given.param ? "Async" : "Blocking"; });

TEST_P(EitherWay, ALostCallIsAskedAgainWithGrowingWaits) {
  Connect();
  FailFirst(3, kGone);
  EXPECT_EQ(Ask(GetParam()), absl::OkStatus());
  EXPECT_EQ(server_.calls, 4);
  EXPECT_THAT(clock_.Waits(), ElementsAre(100 * kMs, 200 * kMs, 400 * kMs));
}

TEST_P(EitherWay, TheServersDelayIsObeyed) {
  Connect();
  clock_.uniform = 0;
  FailFirst(2, NoRoom());
  EXPECT_EQ(Ask(GetParam()), absl::OkStatus());
  EXPECT_THAT(clock_.Waits(), ElementsAre(250 * kMs, 250 * kMs));
}

TEST_P(EitherWay, RefusalsForGoodAreNotAskedAgain) {
  Connect();
  FailFirst(1, {grpc::StatusCode::RESOURCE_EXHAUSTED, "never fits"});
  EXPECT_EQ(Ask(GetParam()), absl::ResourceExhaustedError("never fits"));
  EXPECT_EQ(server_.calls, 1);
  EXPECT_THAT(clock_.Waits(), IsEmpty());
}

TEST_P(EitherWay, TheLastStatusStandsWhenAttemptsAreUsedUp) {
  Connect({.max_attempts = 3});
  FailFirst(1000, kGone);
  EXPECT_EQ(Ask(GetParam()), absl::UnavailableError("gone"));
  EXPECT_EQ(server_.calls, 3);
}

TEST_P(EitherWay, ADelayBeyondTheDeadlineIsNotWaitedFor) {
  Connect();
  FailFirst(1000, NoRoom("\x08\x0a"));  // 10 s
  EXPECT_EQ(Ask(GetParam(), {absl::Seconds(30)}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(server_.calls, 3);  // at 0, 11 and 22 s
}

TEST_P(EitherWay, AnOverloadIsNotAmplified) {
  Connect({.max_attempts = 1000, .initial_backoff = kMs, .max_backoff = kMs});
  FailFirst(1 << 30, kGone);
  EXPECT_EQ(Ask(GetParam()).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server_.calls, 5);  // 10 tokens: four retries leave 6 of them
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Ask(GetParam()).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server_.calls, 25);  // each once
  server_.attempt = nullptr;
  for (int i = 0; i < 70; ++i) EXPECT_EQ(Ask(GetParam()), absl::OkStatus());  // 70 tenths: 7 tokens
  server_.calls = 0;
  FailFirst(1, kGone);
  EXPECT_EQ(Ask(GetParam()), absl::OkStatus());
}

TEST_F(RetriedCallTest, PlansAreAskedAgainAndProbesAndOpenStreamsAreNot) {
  Connect({.max_attempts = 3, .max_tokens = 0});
  server_.refusal = kGone;
  EXPECT_EQ(client_->Plan({}).status(), absl::UnavailableError("gone"));
  EXPECT_THAT(clock_.Waits(), SizeIs(2));
  EXPECT_EQ(client_->Health().status(), absl::UnavailableError("gone"));
  EXPECT_EQ(client_->OpenStream()->Attend(problem_).status(), absl::UnavailableError("gone"));
  EXPECT_THAT(clock_.Waits(), SizeIs(2));
}

TEST_F(RetriedCallTest, AStreamIsAskedAgainUntilABlockWasHandedOver) {
  Connect();
  server_.hang_up_after_blocks = true;
  FailFirst(2, kGone);
  const absl::StatusOr<Answer> answer = client_->AttendStream(problem_);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->output.At(0), 2);
  EXPECT_EQ(server_.calls, 3);

  server_.calls = 0;
  int blocks = 0;
  StreamCall by_block;
  by_block.by_block = {v1::OUTPUT_KIND_OUTPUT};
  by_block.on_block = [&](const v1::Block&) {
    ++blocks;
    return absl::OkStatus();
  };
  EXPECT_EQ(client_->AttendStream(problem_, by_block).status(), absl::UnavailableError("gone"));
  EXPECT_EQ(blocks, 1);
  EXPECT_EQ(server_.calls, 1);
  // Lost before a block came: nothing was handed over, so it may be asked again.
  server_.calls = 0;
  server_.hang_up_after_blocks = false;
  EXPECT_TRUE(client_->AttendStream(problem_, by_block).ok());
  EXPECT_EQ(blocks, 2);
  EXPECT_EQ(server_.calls, 3);
}

TEST_F(RetriedCallTest, ACancelledWaitEndsTheCall) {
  Connect();
  FailFirst(1000, kGone);
  clock_.Hold();
  std::promise<absl::Status> done;
  const PendingCall call =
      client_->AttendAsync(problem_, {}, [&](absl::StatusOr<Answer> answer) { done.set_value(answer.status()); });
  clock_.AwaitWaits(1);
  call.Cancel();
  EXPECT_EQ(done.get_future().get().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(server_.calls, 1);
}

TEST_F(RetriedCallTest, TheEarlierOfDeadlineAndTimeoutReachesTheServer) {
  ClientOptions options;
  options.timeout = absl::Seconds(60);
  const std::unique_ptr<Client> client = *Client::Connect(server_.target, options);
  const absl::Time now = absl::Now();
  // Within the seconds that a busy machine takes, and as the wire rounds it.
  const auto reached = [&](const CallOptions& call) {
    EXPECT_TRUE(client->Attend(problem_, call).ok());
    return absl::ToDoubleSeconds(absl::FromChrono(server_.deadline.Get()) - now);
  };
  constexpr double kNear = 50;
  EXPECT_NEAR(reached({}), 60, kNear);
  EXPECT_NEAR(reached({.timeout = {}, .deadline = now + absl::Seconds(400)}), 400, kNear);
  EXPECT_NEAR(reached({.timeout = absl::Seconds(200), .deadline = now + absl::Seconds(400)}), 200, kNear);
  EXPECT_NEAR(reached({.timeout = absl::Seconds(600), .deadline = now + absl::Seconds(400)}), 400, kNear);
  // What a server without a deadline of its own would pass on.
  const absl::Time none = absl::FromChrono(std::chrono::system_clock::time_point::max());
  EXPECT_NEAR(reached({.timeout = {}, .deadline = none}), 60, kNear);
  EXPECT_NEAR(reached({.timeout = absl::Seconds(200), .deadline = none}), 200, kNear);
  EXPECT_EQ(client->Attend(problem_, {.timeout = {}, .deadline = now - absl::Seconds(1)}).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace attnd::client
