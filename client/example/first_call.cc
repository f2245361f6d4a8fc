// What does "it" mean in "server request it"? One query and three keys, for the server that the command line names.
#include <cstdio>
#include <vector>

#include "attnd/client/client.h"

using attnd::client::Array;
using attnd::client::Client;
using attnd::client::Problem;

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}

int main(int argc, char** argv) {
  const auto client = Client::Connect(argc > 1 ? argv[1] : "127.0.0.1:50051");
  if (!client.ok()) return Fail(client.status());

  const std::vector<float> it = {1, 0, 0.5F, 1};
  const std::vector<float> keys = {1, 0, 0.8F, 1, 0, 1, 0.2F, 0, 0.2F, 0.2F, 0.4F, 0.1F};  // server, request, it
  const std::vector<float> values = {0.9F, 0.1F, 0.7F, 0.8F, 0.1F, 0.9F, 0.2F, 0.1F, 0.3F, 0.3F, 0.5F, 0.2F};
  auto problem = Problem::FromQkv(Array::Of({1, 4}, it), Array::Of({3, 4}, keys), Array::Of({3, 4}, values));
  if (!problem.ok()) return Fail(problem.status());
  problem->Want(attnd::v1::OUTPUT_KIND_WEIGHTS);

  const auto answer = (*client)->Attend(*problem);
  if (!answer.ok()) return Fail(answer.status());
  const Array& weights = *answer->Find(attnd::v1::OUTPUT_KIND_WEIGHTS);
  const Array& output = answer->output;
  std::printf("weights %.4f %.4f %.4f\n", weights.At(0), weights.At(1), weights.At(2));
  std::printf("output  %.4f %.4f %.4f %.4f\n", output.At(0), output.At(1), output.At(2), output.At(3));
}
