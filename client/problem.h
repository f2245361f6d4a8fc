// One attention problem as the client sends it: the wire's request, made of arrays, and where each answer's rows
// belong.
//
// Arrays of rank 2 ([N, d]: one sequence, one head) and rank 3 ([B, N, d]: one head) are taken beside [B, H, N, d];
// every answer comes back without the same dimensions. x may be [N, d_model] or [B, N, d_model]. Tensors are sent from
// where they lie: a problem that is changed while a call that was given up still holds them goes on with a copy.
// Thread rule: a plain value; const methods may be called from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include "absl/strings/string_view.h"

#include "absl/status/statusor.h"
#include "attnd/v1/attention.pb.h"
#include "client/array.h"

namespace attnd::client {

// An array as the wire's tensor, and back. The bytes are moved.
v1::Tensor ToTensor(Array array);
// INTERNAL when the bytes are not what dtype and shape promise: tensors come back only from servers.
absl::StatusOr<Array> ToArray(v1::Tensor tensor);
// The array without its bytes, of which the server sent `bytes`. INTERNAL likewise.
absl::StatusOr<Array> ToArrayHead(const v1::Tensor& tensor, std::int64_t bytes);

// "weights", "scores_dot", ...: the enum's name without its prefix, in small letters.
std::string Name(v1::OutputKind kind);

// Where the rows of one output lie in its dense tensor. Strides in elements.
struct OutputLayout {
  std::vector<std::int64_t> shape;  // as the reply carries it, in the caller's rank
  std::int64_t batch = 0, heads = 0, rows = 0, columns = 0;
  std::int64_t batch_stride = 0, head_stride = 0, row_stride = 0;
  std::int64_t elements = 0;
};

class Problem {
 public:
  // q, k, v of one rank, 2 to 4; layout decides the order of dimensions at rank 4. INVALID_ARGUMENT names the field.
  // With options().page_table, k and v are pages: [P, Hkv, R, d], or [P, R, d] beside a q of rank 3.
  static absl::StatusOr<Problem> FromQkv(Array q, Array k, Array v, v1::Layout layout = v1::LAYOUT_UNSPECIFIED);
  // x of rank 2 or 3; the projection's tensors are made with ToTensor.
  static absl::StatusOr<Problem> FromX(Array x, v1::Projection projection);

  // Rank 1 to 4, from the right [B, Hq, Nq, Nk]; with q of rank 3, a rank 3 mask is [B, Nq, Nk] (there is one head).
  void SetMask(Array mask);
  void SetBias(Array bias);
  // What q, k and v, or x and the projection's tensors, travel as; each number is rounded once, to nearest even, and
  // stays so in request(). The output travels in the same type unless options().output_dtype asks for one, and an
  // answer holds it in the type that q (or x) had where that is wider. INVALID_ARGUMENT names a tensor without floats.
  absl::Status SetWireDType(DType dtype);
  // The tensor at that path of the contract ("k", "options.mask", "projection.w_q") travels as the name of one that the
  // server has (client/store.h); what was given for it says its dtype and shape, as they are stored, and its bytes are
  // dropped. Where rows were appended since, an answer whose shape depends on them is INTERNAL. INVALID_ARGUMENT for a
  // path where nothing was given.
  absl::Status UseStored(const std::string& path, const std::string& name);
  // The projection that x was given with stays on the server as a weight set, likewise. Version 0: the newest.
  void UseWeightSet(const std::string& name, std::int64_t version);
  // Whether any of that was done: such a problem's numbers are not all here.
  bool uses_stored() const { return !stored_.empty() || stored_projection_.has_value(); }
  // Everything else: scale, causal, lengths, ... Its layout is FromQkv's. Not to be kept: the reference is good until
  // the next call with this problem, or of a method that changes it.
  v1::Options& options() { return *Mutable().mutable_options(); }
  // What share of the server's compute it gets; never changes an answer.
  void SetPriority(v1::Priority priority) { Mutable().set_priority(priority); }
  // An output beside the one that always comes. A second time changes nothing.
  void Want(v1::OutputKind kind);
  bool Wants(v1::OutputKind kind) const;

  // What goes on the wire. Shapes are of full rank; what is a name there has none.
  const v1::AttendRequest& request() const { return *request_; }
  // The same for who needs it longer: it does not change while anyone but the problem holds it.
  std::shared_ptr<const v1::AttendRequest> shared_request() const { return request_; }
  // The output's type on the wire, and the type in which an answer holds what came as `sent`.
  DType output_dtype() const;
  DType AnswerDType(v1::OutputKind kind, DType sent) const;
  // Bytes of all tensors.
  std::int64_t request_bytes() const;
  // Bytes of all answers, taking 4 bytes an element where the dtype is the server's choice. INVALID_ARGUMENT when the
  // shapes contradict each other.
  absl::StatusOr<std::int64_t> reply_bytes() const;

  // The shape of the tensor at that path, stored ones too; empty where there is none.
  std::vector<std::int64_t> ShapeOf(const std::string& path) const;
  // INVALID_ARGUMENT when the shapes contradict each other (the server says it better: ask it first).
  absl::StatusOr<OutputLayout> LayoutOf(v1::OutputKind kind) const;
  // A reply's full shape without the dimensions that the caller's arrays do not have. INTERNAL when the rank is wrong.
  absl::StatusOr<std::vector<std::int64_t>> InCallersRank(v1::OutputKind kind,
                                                          const std::vector<std::int64_t>& shape) const;

 private:
  // The tensor at that path with its dtype and shape, whether it or its name travels; null where there is none.
  const v1::Tensor* Find(const std::string& path) const;
  struct Sizes;
  absl::StatusOr<Sizes> SizesOf() const;
  // The letters of an output's dimensions: B, H, N and C for columns.
  absl::string_view Dimensions(v1::OutputKind kind) const;
  Array WithHeadDimension(Array broadcast) const;
  // The request to change, which nobody else holds.
  v1::AttendRequest& Mutable();

  std::shared_ptr<v1::AttendRequest> request_ = std::make_shared<v1::AttendRequest>();
  std::map<std::string, v1::Tensor> stored_;         // dtype and shape of what travels as a name, by path
  std::optional<v1::Projection> stored_projection_;  // the same of a weight set's tensors
  std::optional<DType> callers_dtype_;               // q's or x's before SetWireDType
  std::string dropped_;                              // letters of Dimensions that answers lose
};

}  // namespace attnd::client
