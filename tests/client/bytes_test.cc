// What travels: a server that sees the client's bytes and answers in bytes of its own, and a peer that reads nothing
// until calls have been given up.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attnd/v1/attention.grpc.pb.h"
#include "client/client.h"

namespace attnd::client {
namespace {

std::string Bytes(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(message.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(slice.begin(), slice.end());
  return bytes;
}

grpc::ByteBuffer Message(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

// Keeps what came and answers `reply` to a call, or `replies` to a stream's first message.
class BytesServer : public v1::AttentionService::WithRawCallbackMethod_Attend<
                        v1::AttentionService::WithRawCallbackMethod_AttendStream<v1::AttentionService::Service>> {
 public:
  BytesServer() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.SetMaxReceiveMessageSize(-1);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    target = absl::StrCat("127.0.0.1:", port);
  }
  ~BytesServer() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string target;
  std::string reply;                 // set before calls
  std::vector<std::string> replies;  // likewise
  std::vector<std::string> Came() {
    const std::scoped_lock lock(mutex_);
    return came_;
  }

  grpc::ServerUnaryReactor* Attend(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override {
    Keep(*request);
    *response = Message(reply);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* AttendStream(grpc::CallbackServerContext*) override {
    return new Reactor(*this);
  }

 private:
  class Reactor : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
   public:
    explicit Reactor(BytesServer& server) : server_(server) { StartRead(&in_); }
    void OnReadDone(bool ok) override {
      if (!ok) return Finish(grpc::Status::OK);
      server_.Keep(in_);
      if (sent_ == 0) Send();
      StartRead(&in_);
    }
    void OnWriteDone(bool ok) override {
      if (ok) Send();
    }
    void OnDone() override { delete this; }

   private:
    void Send() {
      if (sent_ == server_.replies.size()) return;
      out_ = Message(server_.replies[sent_++]);
      StartWrite(&out_);
    }
    BytesServer& server_;
    std::size_t sent_ = 0;
    grpc::ByteBuffer in_, out_;
  };

  void Keep(const grpc::ByteBuffer& message) {
    const std::scoped_lock lock(mutex_);
    came_.push_back(Bytes(message));
  }

  std::mutex mutex_;
  std::vector<std::string> came_;
  std::unique_ptr<grpc::Server> server_;
};

// q, k, v of [rows, 64] and one value.
Problem Filled(std::int64_t rows) {
  const Array array{DType::kFloat32, {rows, 64}, std::string(static_cast<std::size_t>(rows) * 64 * 4, 'Z')};
  return *Problem::FromQkv(array, array, array);
}

v1::AttendResponse Zeros(std::int64_t rows) {
  v1::AttendResponse reply;
  *reply.mutable_output() = ToTensor(*Array::Zeros(DType::kFloat32, {1, 1, rows, 64}));
  return reply;
}

TEST(BytesTest, ACallIsOneStockMessage) {
  BytesServer server;
  server.reply = Zeros(1000).SerializeAsString();
  const std::unique_ptr<Client> client = *Client::Connect(server.target);
  Problem problem = Filled(1000);
  problem.options().add_q_len(999);
  problem.Want(v1::OUTPUT_KIND_LSE);
  problem.SetPriority(v1::PRIORITY_HIGH);
  const absl::StatusOr<Answer> answer = client->Attend(problem);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->output.bytes, std::string(1000 * 64 * 4, '\0'));
  EXPECT_EQ(server.Came(), std::vector<std::string>{problem.request().SerializeAsString()});
}

TEST(BytesTest, AStreamIsStockMessagesThatMakeTheRequest) {
  BytesServer server;
  ClientOptions options;
  options.piece_bytes = 100000;
  const std::unique_ptr<Client> client = *Client::Connect(server.target, options);
  Problem problem = Filled(1000);
  problem.SetMask(Array{DType::kBool, {1000}, std::string(1000, 1)});
  v1::AttendStreamResponse closing;
  closing.set_problem_id(1);
  closing.mutable_closing()->mutable_error()->set_code(3);
  closing.mutable_closing()->mutable_error()->set_message("enough");
  server.replies = {closing.SerializeAsString()};
  // On a stream that stays open pieces are sent until the answer is there: some may be missing at the end.
  const std::unique_ptr<Stream> stream = client->OpenStream();
  EXPECT_EQ(stream->Attend(problem).status(), absl::InvalidArgumentError("enough"));
  v1::AttendRequest joined;
  std::int64_t bytes = 0;
  for (const std::string& wire : server.Came()) {
    v1::AttendStreamRequest message;
    ASSERT_TRUE(message.ParseFromString(wire));
    EXPECT_EQ(message.SerializeAsString(), wire);
    EXPECT_EQ(message.problem_id(), 1u);
    if (message.has_header()) {
      joined = message.header();
      continue;
    }
    const std::string right = message.piece().tensor() == "options.mask" ? std::string(1, '\1') : "Z";
    EXPECT_EQ(message.piece().data().find_first_not_of(right), std::string::npos);
    EXPECT_LE(message.piece().data().size(), 100000u);
    bytes += static_cast<std::int64_t>(message.piece().data().size());
  }
  EXPECT_EQ(joined.options().mask().data(), "");
  EXPECT_LE(bytes, problem.request_bytes());
  // One that is small enough rides in its header.
  const Problem small = Filled(100);
  EXPECT_EQ(client->AttendStream(small).status().code(), absl::StatusCode::kInvalidArgument);
  v1::AttendStreamRequest opening;
  opening.set_problem_id(1);
  *opening.mutable_header() = small.request();
  // Pieces of the first stream may still come in after it.
  const std::vector<std::string> came = server.Came();
  EXPECT_EQ(std::count(came.begin(), came.end(), opening.SerializeAsString()), 1);
}

TEST(BytesTest, GarbageInPlaceOfAReplyIsInternalAndTheNextCallIsGood) {
  BytesServer server;
  const std::unique_ptr<Client> client = *Client::Connect(server.target);
  const Problem problem = Filled(100);
  const std::string good = Zeros(100).SerializeAsString();
  for (const std::string& bytes : {std::string(), std::string("\xff"), std::string(100000, '\x0a'),
                                   good.substr(0, 1000), good.substr(0, good.size() - 1), good + "\x0a\x05"}) {
    server.reply = bytes;
    EXPECT_EQ(client->Attend(problem).status().code(), absl::StatusCode::kInternal) << bytes.size();
  }
  server.reply = good;
  EXPECT_TRUE(client->Attend(problem).ok());
}

TEST(BytesTest, GarbageInAStreamIsInternalAndEndsIt) {
  BytesServer server;
  const std::unique_ptr<Client> client = *Client::Connect(server.target);
  v1::AttendStreamResponse block;
  block.set_problem_id(1);
  block.mutable_block()->set_kind(v1::OUTPUT_KIND_OUTPUT);
  block.mutable_block()->set_dtype(v1::DATA_TYPE_FLOAT32);
  block.mutable_block()->set_rows(100);
  block.mutable_block()->set_columns(64);
  block.mutable_block()->set_data(std::string(100 * 64 * 4, 'o'));
  const std::string good = block.SerializeAsString();
  for (const std::string& bytes : {std::string(), std::string("\xff"), good.substr(0, good.size() - 1),
                                   good + "\x12\x05", good + "\x12\x02\x4a\x00"}) {
    server.replies = {good, bytes};
    const std::unique_ptr<Stream> stream = client->OpenStream();
    EXPECT_EQ(stream->Attend(Filled(100)).status().code(), absl::StatusCode::kInternal) << bytes.size();
    EXPECT_FALSE(stream->alive());
  }
}

// Speaks enough HTTP/2 for a client to connect and to send all it likes, and reads nothing until `silent_ms` are over.
class SilentPeer {
 public:
  explicit SilentPeer(int silent_ms) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    target = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
    thread_ = std::thread([this, silent_ms] { Serve(silent_ms); });
  }
  ~SilentPeer() {
    if (thread_.joinable()) thread_.join();
    close(listener_);
  }

  // All that was sent, after the client has closed its connection.
  std::string Sent() {
    thread_.join();
    return sent_;
  }

  std::string target;

 private:
  void Serve(int silent_ms) {
    const int connection = accept(listener_, nullptr, nullptr);
    // SETTINGS with INITIAL_WINDOW_SIZE 2^30, and a window of the connection that is as large.
    const std::string frames("\0\0\6\4\0\0\0\0\0\0\4\x40\0\0\0\0\0\4\x08\0\0\0\0\0\x40\0\0\0", 28);
    EXPECT_EQ(write(connection, frames.data(), frames.size()), static_cast<ssize_t>(frames.size()));
    std::this_thread::sleep_for(std::chrono::milliseconds(silent_ms));
    std::string part(1 << 20, '\0');
    for (ssize_t bytes = 0; (bytes = read(connection, part.data(), part.size())) > 0;) {
      sent_.append(part, 0, static_cast<std::size_t>(bytes));
    }
    close(connection);
  }

  int listener_ = -1;
  std::string sent_;
  std::thread thread_;
};

// A deadline passes while gRPC is sending slices: what is sent stays what it was, whatever becomes of the problem.
TEST(BytesTest, CallsThatAreGivenUpSendTensorsAsTheyWere) {
  constexpr std::size_t kMiB = 1 << 20;
  for (const bool streamed : {false, true}) {
    std::string sent;
    // Until the first MiB is sent before the deadline, which takes what it takes on a busy machine.
    for (int deadline_ms = 200; sent.size() <= kMiB && deadline_ms <= 3200; deadline_ms *= 2) {
      SilentPeer peer(2 * deadline_ms);
      {
        const std::unique_ptr<Client> client = *Client::Connect(peer.target);
        Problem problem = Filled(1 << 15);  // 24 MiB, more than sockets hold
        const CallOptions options{absl::Milliseconds(deadline_ms)};
        const absl::Status status =
            (streamed ? client->AttendStream(problem, {}, options) : client->Attend(problem, options)).status();
        EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
        ASSERT_TRUE(problem.SetWireDType(DType::kFloat16).ok());  // other bytes, where the old ones lay
      }
      sent = peer.Sent();
    }
    ASSERT_GT(sent.size(), kMiB);
    // All that is no tensor: the connection's preface, the calls' headers, and nine bytes before every 16 KiB.
    const auto others =
        static_cast<std::size_t>(std::count_if(sent.begin(), sent.end(), [](char byte) { return byte != 'Z'; }));
    EXPECT_LT(others, 2000 + sent.size() / 16384 * 9);
  }
}

}  // namespace
}  // namespace attnd::client
