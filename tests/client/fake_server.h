// A server in this process that implements the generated services with the formula in float64: what the client is
// tested against without the real one. Knobs make it misbehave and may be set at any time: a call that its client gave
// up may still be running.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attnd/v1/attention.grpc.pb.h"
#include "client/cli/slice.h"
#include "client/problem.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace attnd::client {

// softmax(q k^T scale) v of a BHND request in float64, mask honoured; tensors in the order output, then as asked.
inline std::vector<std::pair<v1::OutputKind, Array>> Formula(const v1::AttendRequest& request) {
  const v1::Options& options = request.options();
  const TensorRead q = TensorRead::Heads(request.q(), v1::LAYOUT_BHND),
                   k = TensorRead::Heads(request.k(), v1::LAYOUT_BHND),
                   v = TensorRead::Heads(request.v(), v1::LAYOUT_BHND);
  const std::int64_t batch = q.shape[0], heads = q.shape[1], rows = q.shape[2], keys = k.shape[2];
  const double scale = options.has_scale() ? options.scale() : 1 / std::sqrt(static_cast<double>(q.shape[3]));
  Array output = *Array::Zeros(static_cast<DType>(request.q().dtype()), {batch, heads, rows, v.shape[3]});
  Array dot = *Array::Zeros(DType::kFloat32, {batch, heads, rows, keys}), scaled = dot, weights = dot;
  Array lse = *Array::Zeros(DType::kFloat32, {batch, heads, rows});
  for (std::int64_t row = 0; row < batch * heads * rows; ++row) {
    const std::int64_t b = row / rows / heads, h = row / rows % heads, i = row % rows, kv = h / (heads / k.shape[1]);
    std::vector<double> s(static_cast<std::size_t>(keys));
    double sum = 0;
    for (std::int64_t j = 0; j < keys; ++j) {
      double score = 0;
      for (std::int64_t c = 0; c < q.shape[3]; ++c) score += q.At(b, h, i, c) * k.At(b, kv, j, c);
      const bool allowed = !options.has_mask() || TensorRead::Broadcast(options.mask()).At(b, h, i, j) != 0;
      const double excluded = -std::numeric_limits<double>::infinity();
      dot.Set(row * keys + j, allowed ? score : excluded);
      scaled.Set(row * keys + j, allowed ? score * scale : excluded);
      s[static_cast<std::size_t>(j)] = allowed ? std::exp(score * scale) : 0;
      sum += s[static_cast<std::size_t>(j)];
    }
    for (std::int64_t j = 0; j < keys && sum > 0; ++j)
      weights.Set(row * keys + j, s[static_cast<std::size_t>(j)] / sum);
    for (std::int64_t c = 0; c < v.shape[3] && sum > 0; ++c) {
      double mixed = 0;
      for (std::int64_t j = 0; j < keys; ++j) mixed += s[static_cast<std::size_t>(j)] / sum * v.At(b, kv, j, c);
      output.Set(row * v.shape[3] + c, mixed);
    }
    lse.Set(row, std::log(sum));
  }
  std::vector<std::pair<v1::OutputKind, Array>> answers = {{v1::OUTPUT_KIND_OUTPUT, output}};
  const std::map<v1::OutputKind, const Array*> known = {{v1::OUTPUT_KIND_SCORES_DOT, &dot},
                                                        {v1::OUTPUT_KIND_SCORES_SCALED, &scaled},
                                                        {v1::OUTPUT_KIND_WEIGHTS, &weights},
                                                        {v1::OUTPUT_KIND_LSE, &lse}};
  for (const int kind : request.outputs()) {
    answers.emplace_back(static_cast<v1::OutputKind>(kind), *known.at(static_cast<v1::OutputKind>(kind)));
  }
  return answers;
}

// One query and one key: the output is the value.
inline Problem Gives(const std::vector<float>& value) {
  const Array one = Array::Of({1, 1}, std::vector<float>{1});
  return *Problem::FromQkv(one, one, Array::Of({1, static_cast<std::int64_t>(value.size())}, value));
}

// A value that one thread sets and others read.
template <typename T>
class Knob {
 public:
  Knob& operator=(T value) {
    const std::scoped_lock lock(mutex_);
    value_ = std::move(value);
    return *this;
  }
  [[nodiscard]] T Get() const {
    const std::scoped_lock lock(mutex_);
    return value_;
  }

 private:
  mutable std::mutex mutex_;
  T value_;
};

class FakeServer : public v1::AttentionService::Service {
 public:
  // A call has a thread of its own, and is refused where there are `threads_max` already.
  explicit FakeServer(const std::shared_ptr<grpc::ServerCredentials>& credentials = grpc::InsecureServerCredentials(),
                      int threads_max = 1000) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port);
    builder.SetMaxReceiveMessageSize(-1);
    builder.SetResourceQuota(grpc::ResourceQuota("fake server").SetMaxThreads(threads_max));
    builder.RegisterService(this);
    builder.RegisterService(&health_);
    server_ = builder.BuildAndStart();
    target = absl::StrCat("127.0.0.1:", port);
  }
  ~FakeServer() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string target;
  // Knobs.
  Knob<grpc::Status> refusal;                            // of every problem, by either call
  Knob<std::function<grpc::Status(int)>> attempt;        // status of the nth unary or streaming call, from 1
  Knob<std::function<void(v1::AttendResponse&)>> spoil;  // of a unary answer
  Knob<std::function<void(v1::AttendStreamResponse&)>> spoil_message;
  std::atomic<std::int64_t> block_rows = 2, block_columns = 1 << 20;
  std::atomic<bool> backwards = false;             // blocks last to first
  std::atomic<bool> leave_out_last = false;        // one block is never sent
  std::atomic<bool> hang_up = false;               // end the stream instead of closing the problem
  std::atomic<bool> hang_up_after_blocks = false;  // end it by `attempt` only when all blocks were sent
  std::atomic<bool> serving = true;
  // What was seen.
  std::atomic<int> unary_calls{0}, stream_problems{0}, pieces{0};
  std::atomic<std::int64_t> largest_piece{0};
  std::atomic<int> calls{0};  // of either kind
  std::atomic<bool> had_deadline{false};
  Knob<std::chrono::system_clock::time_point> deadline;  // of the last call
  // Method -> the `authorization` it came with, of every call that was begun.
  std::multimap<std::string, std::string> Authorizations() {
    const std::scoped_lock lock(seen_mutex_);
    return authorizations_;
  }
  // How many calls of Attend came over each connection.
  std::map<std::string, int> CallsByPeer() {
    const std::scoped_lock lock(seen_mutex_);
    return calls_by_peer_;
  }
  // The tensors of the last problem that came in pieces, in the order of their first ones.
  std::vector<std::string> PieceOrder() {
    const std::scoped_lock lock(seen_mutex_);
    return piece_order_;
  }

  grpc::Status Attend(grpc::ServerContext* context, const v1::AttendRequest* request,
                      v1::AttendResponse* response) override {
    ++unary_calls;
    Note("Attend", *context);
    NoteDeadline(*context);
    {
      const std::scoped_lock lock(seen_mutex_);
      ++calls_by_peer_[context->peer()];
    }
    const int call = ++calls;
    if (const auto status_of = attempt.Get()) {
      if (grpc::Status status = status_of(call); !status.ok()) return status;
    }
    if (const grpc::Status refused = refusal.Get(); !refused.ok()) return refused;
    auto answers = Formula(*request);
    *response->mutable_output() = ToTensor(answers.front().second);
    for (std::size_t e = 1; e < answers.size(); ++e) {
      v1::NamedTensor& extra = *response->add_extras();
      extra.set_kind(answers[e].first);
      *extra.mutable_tensor() = ToTensor(answers[e].second);
    }
    FillStatistics(*request, response->mutable_statistics());
    if (const auto spoiler = spoil.Get()) spoiler(*response);
    return grpc::Status::OK;
  }

  grpc::Status AttendStream(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::AttendStreamResponse, v1::AttendStreamRequest>* stream) override {
    Note("AttendStream", *context);
    v1::AttendStreamRequest message;
    v1::AttendRequest problem;
    std::set<std::uint64_t> refused;
    NoteDeadline(*context);
    grpc::Status ends;
    const int call = ++calls;
    if (const auto status_of = attempt.Get()) ends = status_of(call);
    if (!ends.ok() && !hang_up_after_blocks) return ends;
    while (stream->Read(&message)) {
      if (message.has_header()) {
        problem = message.header();
        {
          const std::scoped_lock lock(seen_mutex_);
          piece_order_.clear();
        }
        ++stream_problems;
        if (const grpc::Status refusal_now = refusal.Get(); !refusal_now.ok()) {
          v1::AttendStreamResponse closing;
          closing.set_problem_id(message.problem_id());
          closing.mutable_closing()->mutable_error()->set_code(refusal_now.error_code());
          closing.mutable_closing()->mutable_error()->set_message(refusal_now.error_message());
          refused.insert(message.problem_id());
          stream->Write(closing);
          continue;
        }
      } else {
        ++pieces;
        {
          const std::scoped_lock lock(seen_mutex_);
          const std::string& path = message.piece().tensor();
          if (piece_order_.empty() || piece_order_.back() != path) piece_order_.push_back(path);
        }
        const std::int64_t size = static_cast<std::int64_t>(message.piece().data().size());
        largest_piece = std::max(largest_piece.load(), size);
        if (refused.count(message.problem_id()) > 0) continue;  // its pieces were still on their way
        v1::Tensor& tensor = TensorOf(&problem, message.piece().tensor());
        if (static_cast<std::int64_t>(tensor.data().size()) != message.piece().offset_bytes()) {
          return {grpc::StatusCode::INVALID_ARGUMENT, "pieces out of order"};
        }
        tensor.mutable_data()->append(message.piece().data());
      }
      if (!Whole(problem)) continue;
      if (hang_up) return {grpc::StatusCode::ABORTED, "the fake hangs up"};
      Answer(problem, message.problem_id(), stream, /*close=*/ends.ok());
      if (!ends.ok()) return ends;
    }
    return grpc::Status::OK;
  }

  grpc::Status Plan(grpc::ServerContext* context, const v1::PlanRequest* request, v1::PlanResponse* response) override {
    Note("Plan", *context);
    if (const grpc::Status refused = refusal.Get(); !refused.ok()) return refused;
    if (!request->problem().q().data().empty()) return {grpc::StatusCode::INVALID_ARGUMENT, "q: data must be empty"};
    response->set_scores_per_head(request->problem().q().shape(2) * request->problem().k().shape(2));
    response->set_naive_score_bytes_per_head(4 * response->scores_per_head());
    response->set_admitted(true);
    return grpc::Status::OK;
  }

  grpc::Status Info(grpc::ServerContext* context, const v1::InfoRequest*, v1::InfoResponse* response) override {
    Note("Info", *context);
    response->set_version("9.9.9");
    response->set_threads(3);
    response->add_dtypes(v1::DATA_TYPE_BFLOAT16);
    v1::Limit& limit = *response->add_limits();
    limit.set_flag("message_bytes_max");
    limit.set_value(1 << 20);
    return grpc::Status::OK;
  }

 private:
  struct Health : grpc::health::v1::Health::Service {
    explicit Health(FakeServer& owner) : owner_(owner) {}
    grpc::Status Check(grpc::ServerContext* context, const grpc::health::v1::HealthCheckRequest* request,
                       grpc::health::v1::HealthCheckResponse* response) override {
      owner_.Note("Check", *context);
      if (const grpc::Status refused = owner_.refusal.Get(); !refused.ok()) return refused;
      if (request->service() == "nothing") return {grpc::StatusCode::NOT_FOUND, "service 'nothing' is unknown"};
      response->set_status(owner_.serving ? grpc::health::v1::HealthCheckResponse::SERVING
                                          : grpc::health::v1::HealthCheckResponse::NOT_SERVING);
      return grpc::Status::OK;
    }
    FakeServer& owner_;
  };

  void NoteDeadline(const grpc::ServerContext& context) {
    deadline = context.deadline();
    had_deadline = context.deadline() < std::chrono::system_clock::now() + std::chrono::hours(24);
  }
  void Note(const std::string& method, const grpc::ServerContext& context) {
    const std::scoped_lock lock(seen_mutex_);
    const auto& metadata = context.client_metadata();
    const auto [first, last] = metadata.equal_range("authorization");
    if (first == last) authorizations_.emplace(method, "");
    for (auto found = first; found != last; ++found) {
      authorizations_.emplace(method, std::string(found->second.begin(), found->second.end()));
    }
  }

  static v1::Tensor& TensorOf(v1::AttendRequest* problem, const std::string& path) {
    if (path == "q") return *problem->mutable_q();
    if (path == "k") return *problem->mutable_k();
    if (path == "v") return *problem->mutable_v();
    return *problem->mutable_options()->mutable_mask();
  }
  static bool Whole(const v1::AttendRequest& problem) {
    for (const v1::Tensor* tensor : {&problem.q(), &problem.k(), &problem.v(), &problem.options().mask()}) {
      const Array array{static_cast<DType>(tensor->dtype()), {tensor->shape().begin(), tensor->shape().end()}, {}};
      if (tensor->shape_size() > 0 &&
          *ByteCount(array.dtype, array.shape) != static_cast<std::int64_t>(tensor->data().size()))
        return false;
    }
    return true;
  }
  static void FillStatistics(const v1::AttendRequest& request, v1::Statistics* statistics) {
    statistics->set_compute_us(2);
    statistics->set_flops(4000);
    for (std::int64_t b = 0; b < request.q().shape(0); ++b)
      statistics->add_q_offset(request.k().shape(2) - request.q().shape(2));
  }

  // The answer in blocks of block_rows x block_columns, then, with `close`, the closing message.
  void Answer(const v1::AttendRequest& problem, std::uint64_t id,
              grpc::ServerReaderWriter<v1::AttendStreamResponse, v1::AttendStreamRequest>* stream, bool close) {
    std::vector<v1::AttendStreamResponse> messages;
    v1::AttendStreamResponse closing;
    closing.set_problem_id(id);
    FillStatistics(problem, closing.mutable_closing()->mutable_statistics());
    for (const auto& [kind, array] : Formula(problem)) {
      v1::OutputShape& shape = *closing.mutable_closing()->add_outputs();
      shape.set_kind(kind);
      shape.set_dtype(static_cast<v1::DataType>(array.dtype));
      shape.mutable_shape()->Assign(array.shape.begin(), array.shape.end());
      const std::int64_t rows = array.shape[2], columns = array.shape.size() == 4 ? array.shape[3] : 1;
      for (std::int64_t bh = 0; bh < array.shape[0] * array.shape[1]; ++bh) {
        for (std::int64_t row = 0; row < rows; row += block_rows) {
          for (std::int64_t column = 0; column < columns; column += block_columns) {
            v1::AttendStreamResponse message;
            message.set_problem_id(id);
            v1::Block& block = *message.mutable_block();
            block.set_kind(kind);
            block.set_dtype(static_cast<v1::DataType>(array.dtype));
            block.set_batch(bh / array.shape[1]);
            block.set_head(bh % array.shape[1]);
            block.set_first_row(row);
            block.set_rows(std::min(block_rows.load(), rows - row));
            block.set_first_column(column);
            block.set_columns(std::min(block_columns.load(), columns - column));
            const auto element = static_cast<std::size_t>(ElementBytes(array.dtype));
            for (std::int64_t r = row; r < row + block.rows(); ++r) {
              block.mutable_data()->append(array.bytes,
                                           static_cast<std::size_t>((bh * rows + r) * columns + column) * element,
                                           static_cast<std::size_t>(block.columns()) * element);
            }
            messages.push_back(message);
          }
        }
      }
    }
    if (backwards) std::reverse(messages.begin(), messages.end());
    if (leave_out_last) messages.pop_back();
    if (close) messages.push_back(closing);
    for (v1::AttendStreamResponse& message : messages) {
      if (const auto spoiler = spoil_message.Get()) spoiler(message);
      if (!stream->Write(message)) return;
    }
  }

  std::mutex seen_mutex_;
  std::map<std::string, int> calls_by_peer_;
  std::vector<std::string> piece_order_;
  std::multimap<std::string, std::string> authorizations_;
  Health health_{*this};
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace attnd::client
