#include "client/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/client/fake_server.h"

namespace attnd::client {
namespace {

using ::testing::HasSubstr;

Array Waves(std::vector<std::int64_t> shape, double phase) {
  Array array = *Array::Zeros(DType::kFloat32, std::move(shape));
  for (std::int64_t i = 0; i < array.elements(); ++i) array.Set(i, std::sin(phase + 0.7 * static_cast<double>(i)));
  return array;
}

// Two sequences, four query heads on two kv heads, odd sizes.
Problem SmallProblem() {
  Problem problem = *Problem::FromQkv(Waves({2, 4, 5, 3}, 0), Waves({2, 2, 7, 3}, 1), Waves({2, 2, 7, 6}, 2));
  problem.Want(v1::OUTPUT_KIND_WEIGHTS);
  problem.Want(v1::OUTPUT_KIND_LSE);
  return problem;
}

void ExpectFormula(const Problem& problem, const Answer& answer) {
  const auto right = Formula(problem.request());
  ASSERT_EQ(answer.extras.size() + 1, right.size());
  EXPECT_EQ(answer.output.bytes, right[0].second.bytes);
  for (std::size_t e = 0; e < answer.extras.size(); ++e) {
    EXPECT_EQ(answer.extras[e].first, right[e + 1].first);
    EXPECT_EQ(answer.extras[e].second.bytes, right[e + 1].second.bytes);
    EXPECT_EQ(answer.extras[e].second.shape, right[e + 1].second.shape);
  }
}

class ClientTest : public testing::Test {
 protected:
  void SetUp() override {
    ClientOptions options;
    options.piece_bytes = 100;  // so that small tensors go in pieces
    absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(server_.target, options);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  FakeServer server_;
  std::unique_ptr<Client> client_;
};

TEST_F(ClientTest, UnaryAnswerIsTheServers) {
  const Problem problem = SmallProblem();
  const absl::StatusOr<Answer> answer = client_->Attend(problem);
  ASSERT_TRUE(answer.ok()) << answer.status();
  ExpectFormula(problem, *answer);
  EXPECT_EQ(answer->statistics.flops(), 4000);
  EXPECT_TRUE(server_.had_deadline);
}

TEST_F(ClientTest, StreamedBlocksJoinInAnyOrderAndCut) {
  const Problem problem = SmallProblem();
  for (const bool backwards : {false, true}) {
    for (const std::int64_t rows : {1, 2, 5}) {
      for (const std::int64_t columns : {1, 4, 100}) {
        server_.backwards = backwards;
        server_.block_rows = rows;
        server_.block_columns = columns;
        const absl::StatusOr<Answer> answer = client_->AttendStream(problem);
        ASSERT_TRUE(answer.ok()) << answer.status();
        ExpectFormula(problem, *answer);
      }
    }
  }
  EXPECT_GT(server_.pieces, 0);
  EXPECT_LE(server_.largest_piece, 100);
  EXPECT_TRUE(server_.had_deadline);
}

TEST_F(ClientTest, PiecesComeInTheOrderInWhichTheyAreOfUse) {
  Problem problem = SmallProblem();
  problem.SetMask(Array{DType::kBool, {4, 5, 7}, std::string(4 * 5 * 7, 1)});
  ASSERT_TRUE(client_->AttendStream(problem).ok());
  EXPECT_EQ(server_.PieceOrder(), (std::vector<std::string>{"options.mask", "k", "v", "q"}));
}

TEST_F(ClientTest, HalfWidthBothWaysAndTheCallersTypeAtTheEnd) {
  // One query, one key: the output is the value, here rounded by hand: a middle to even, 11 bits of 0.1, the smallest
  // number beyond the range.
  const Array q = Array::Of({1, 1}, std::vector<float>{1});
  const Array v = Array::Of({1, 4}, std::vector<float>{1 + 0x1p-11F, 1 + 3 * 0x1p-11F, 0.1F, -65520});
  Problem problem = *Problem::FromQkv(q, q, v);
  ASSERT_TRUE(problem.SetWireDType(DType::kFloat16).ok());
  EXPECT_EQ(problem.request_bytes(), 2 * (1 + 1 + 4));
  EXPECT_EQ(*problem.reply_bytes(), 2 * 4);
  std::int64_t received = 0;
  StreamCall call;
  call.on_progress = [&](std::int64_t, std::int64_t bytes) { received = bytes; };
  server_.block_columns = 3;
  for (const bool stream : {false, true}) {
    const absl::StatusOr<Answer> answer = stream ? client_->AttendStream(problem, call) : client_->Attend(problem);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->output.dtype, DType::kFloat32);
    const Array right = Array::Of({1, 4}, std::vector<float>{1, 1 + 0x1p-9F, 0x1.998p-4F, -INFINITY});
    EXPECT_EQ(answer->output.bytes, right.bytes);
    EXPECT_EQ(answer->output.shape, right.shape);
  }
  EXPECT_EQ(received, 2 * 4);
}

TEST_F(ClientTest, ConvertedAnswersJoinAndEndLikeOthers) {
  Problem problem = SmallProblem();
  ASSERT_TRUE(problem.SetWireDType(DType::kBFloat16).ok());
  const auto right = Formula(problem.request());
  for (const bool backwards : {false, true}) {
    server_.backwards = backwards;
    const absl::StatusOr<Answer> answer = client_->AttendStream(problem);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->output.bytes, Convert(right[0].second, DType::kFloat32)->bytes);
    EXPECT_EQ(answer->extras[0].second.bytes, right[1].second.bytes);
  }
  StreamCall call;
  call.by_block = {v1::OUTPUT_KIND_OUTPUT};
  call.on_block = [](const v1::Block& block) {
    EXPECT_EQ(block.dtype(), v1::DATA_TYPE_BFLOAT16);
    return absl::OkStatus();
  };
  const absl::StatusOr<Answer> handed_over = client_->AttendStream(problem, call);
  ASSERT_TRUE(handed_over.ok()) << handed_over.status();
  EXPECT_TRUE(handed_over->output.bytes.empty());
  server_.spoil = [](v1::AttendResponse& response) { response.mutable_output()->mutable_data()->pop_back(); };
  EXPECT_EQ(client_->Attend(problem).status().code(), absl::StatusCode::kInternal);
}

TEST_F(ClientTest, AnswersHaveTheCallersRank) {
  Problem problem = *Problem::FromQkv(Waves({5, 3}, 0), Waves({7, 3}, 1), Waves({7, 2}, 2));
  problem.Want(v1::OUTPUT_KIND_WEIGHTS);
  problem.Want(v1::OUTPUT_KIND_LSE);
  for (const bool stream : {false, true}) {
    const absl::StatusOr<Answer> answer = stream ? client_->AttendStream(problem) : client_->Attend(problem);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->output.shape, (std::vector<std::int64_t>{5, 2}));
    EXPECT_EQ(answer->Find(v1::OUTPUT_KIND_WEIGHTS)->shape, (std::vector<std::int64_t>{5, 7}));
    EXPECT_EQ(answer->Find(v1::OUTPUT_KIND_LSE)->shape, (std::vector<std::int64_t>{5}));
    EXPECT_EQ(answer->Find(v1::OUTPUT_KIND_SCORES_DOT), nullptr);
  }
}

TEST_F(ClientTest, EmptyOutputsComeWithoutBlocks) {
  const Problem problem = *Problem::FromQkv(Waves({2, 1, 0, 3}, 0), Waves({2, 1, 4, 3}, 1), Waves({2, 1, 4, 3}, 2));
  const absl::StatusOr<Answer> answer = client_->AttendStream(problem);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->output.shape, (std::vector<std::int64_t>{2, 1, 0, 3}));
  EXPECT_TRUE(answer->output.bytes.empty());
}

TEST_F(ClientTest, BlocksCanBeTakenInsteadOfHeld) {
  const Problem problem = SmallProblem();
  std::int64_t taken = 0, sent_last = 0, received_last = 0;
  StreamCall call;
  call.by_block = {v1::OUTPUT_KIND_WEIGHTS};
  call.on_block = [&](const v1::Block& block) {
    EXPECT_EQ(block.kind(), v1::OUTPUT_KIND_WEIGHTS);
    taken += block.rows() * block.columns();
    return absl::OkStatus();
  };
  call.on_progress = [&](std::int64_t sent, std::int64_t received) {
    EXPECT_GE(sent, sent_last);
    EXPECT_GE(received, received_last);
    sent_last = sent;
    received_last = received;
  };
  const absl::StatusOr<Answer> answer = client_->AttendStream(problem, call);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(taken, 2 * 4 * 5 * 7);
  EXPECT_EQ(answer->Find(v1::OUTPUT_KIND_WEIGHTS), nullptr);
  EXPECT_NE(answer->Find(v1::OUTPUT_KIND_LSE), nullptr);
  EXPECT_EQ(sent_last, problem.request_bytes());
  EXPECT_EQ(received_last, 4 * (2 * 4 * 5 * 6 + 2 * 4 * 5 * 7 + 2 * 4 * 5));
}

TEST_F(ClientTest, AnErrorOfTheBlockTakerEndsTheCallAndTheNextIsGood) {
  StreamCall call;
  call.by_block = {v1::OUTPUT_KIND_WEIGHTS};
  call.on_block = [](const v1::Block&) { return absl::ResourceExhaustedError("the disk is full"); };
  EXPECT_EQ(client_->AttendStream(SmallProblem(), call).status(), absl::ResourceExhaustedError("the disk is full"));
  EXPECT_TRUE(client_->AttendStream(SmallProblem()).ok());
}

TEST_F(ClientTest, RefusalsKeepTheServersCodeAndWords) {
  server_.refusal = {grpc::StatusCode::INVALID_ARGUMENT, "k: shape [1,8,77,64], expected d_k = 128 as in q"};
  for (const bool stream : {false, true}) {
    const absl::StatusOr<Answer> answer =
        stream ? client_->AttendStream(SmallProblem()) : client_->Attend(SmallProblem());
    EXPECT_EQ(answer.status(), absl::InvalidArgumentError("k: shape [1,8,77,64], expected d_k = 128 as in q"));
  }
}

TEST_F(ClientTest, OneStreamCarriesManyProblemsAndOutlivesARefusal) {
  const std::unique_ptr<Stream> stream = client_->OpenStream();
  const Problem problem = SmallProblem();
  for (int round = 0; round < 3; ++round) {
    server_.refusal = {grpc::StatusCode::RESOURCE_EXHAUSTED, "come back later"};
    EXPECT_EQ(stream->Attend(problem).status(), absl::ResourceExhaustedError("come back later"));
    EXPECT_TRUE(stream->alive());
    server_.refusal = grpc::Status::OK;
    const absl::StatusOr<Answer> answer = stream->Attend(problem);
    ASSERT_TRUE(answer.ok()) << answer.status();
    ExpectFormula(problem, *answer);
  }
  EXPECT_EQ(server_.stream_problems, 6);
}

TEST_F(ClientTest, AStreamThatEndsSaysWhyAndStaysEnded) {
  server_.hang_up = true;
  const std::unique_ptr<Stream> stream = client_->OpenStream();
  EXPECT_EQ(stream->Attend(SmallProblem()).status(), absl::AbortedError("the fake hangs up"));
  EXPECT_FALSE(stream->alive());
  EXPECT_EQ(stream->Attend(SmallProblem()).status().code(), absl::StatusCode::kFailedPrecondition);
  server_.hang_up = false;
  EXPECT_TRUE(client_->AttendStream(SmallProblem()).ok());
}

TEST_F(ClientTest, AMissingBlockIsNotPassedOffAsAnAnswer) {
  server_.leave_out_last = true;
  const absl::Status status = client_->AttendStream(SmallProblem()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("elements of lse"));
}

TEST_F(ClientTest, BlocksThatDoNotFitAreRefused) {
  const std::function<void(v1::Block&)> spoilers[] = {
      [](v1::Block& block) { block.set_batch(2); },
      [](v1::Block& block) { block.set_head(-1); },
      [](v1::Block& block) { block.set_first_row(INT64_MAX); },
      [](v1::Block& block) { block.set_rows(INT64_MAX); },
      [](v1::Block& block) { block.set_rows(0); },
      [](v1::Block& block) { block.set_columns(0); },
      [](v1::Block& block) { block.set_first_column(1); },
      [](v1::Block& block) { block.mutable_data()->pop_back(); },
      [](v1::Block& block) { block.set_kind(v1::OUTPUT_KIND_SCORES_DOT); },
      [](v1::Block& block) { block.set_dtype(v1::DATA_TYPE_UNSPECIFIED); },
      [](v1::Block& block) { block.set_dtype(v1::DATA_TYPE_FLOAT64); },
  };
  for (const auto& spoil : spoilers) {
    server_.spoil_message = [spoil](v1::AttendStreamResponse& message) {
      if (message.has_block() && message.block().first_row() == 2) spoil(*message.mutable_block());
    };
    EXPECT_EQ(client_->AttendStream(SmallProblem()).status().code(), absl::StatusCode::kInternal);
  }
  server_.spoil_message = [](v1::AttendStreamResponse& message) { message.set_problem_id(77); };
  EXPECT_EQ(client_->AttendStream(SmallProblem()).status().code(), absl::StatusCode::kInternal);
  server_.spoil_message = nullptr;
  EXPECT_TRUE(client_->AttendStream(SmallProblem()).ok());
}

TEST_F(ClientTest, UnaryAnswersThatLieAreRefused) {
  const std::function<void(v1::AttendResponse&)> spoilers[] = {
      [](v1::AttendResponse& response) { response.mutable_output()->mutable_data()->pop_back(); },
      [](v1::AttendResponse& response) { response.mutable_output()->add_shape(1); },
      [](v1::AttendResponse& response) { response.mutable_output()->set_dtype(v1::DATA_TYPE_UNSPECIFIED); },
      [](v1::AttendResponse& response) { response.mutable_extras(0)->mutable_tensor()->set_shape(0, INT64_MAX); },
  };
  for (const auto& spoil : spoilers) {
    server_.spoil = spoil;
    EXPECT_EQ(client_->Attend(SmallProblem()).status().code(), absl::StatusCode::kInternal);
  }
}

TEST_F(ClientTest, ADeadlineEndsACallThatIsNotAnswered) {
  server_.spoil = [](v1::AttendResponse&) { std::this_thread::sleep_for(std::chrono::milliseconds(500)); };
  EXPECT_EQ(client_->Attend(SmallProblem(), {absl::Milliseconds(50)}).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  server_.spoil_message = [](v1::AttendStreamResponse&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  };
  EXPECT_EQ(client_->AttendStream(SmallProblem(), {}, {absl::Milliseconds(50)}).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ClientTest, PlanSendsNoBytes) {
  v1::PlanRequest request;
  *request.mutable_problem() = SmallProblem().request();
  const absl::StatusOr<v1::PlanResponse> plan = client_->Plan(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->scores_per_head(), 35);
}

TEST_F(ClientTest, HealthTellsThreeStatesApart) {
  EXPECT_TRUE(*client_->Health());
  server_.serving = false;
  EXPECT_FALSE(*client_->Health());
  EXPECT_EQ(client_->Health("nothing").status().code(), absl::StatusCode::kNotFound);
}

TEST(ClientConnectTest, NobodyThereIsUnavailableAtOnce) {
  const absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect("127.0.0.1:1");
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(client.status().message()), HasSubstr("no server answers at 127.0.0.1:1: "));
  EXPECT_THAT(std::string(client.status().message()), HasSubstr("Connection refused"));
  EXPECT_EQ(Client::Connect("unix:/nowhere/attnd.sock").status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace attnd::client
