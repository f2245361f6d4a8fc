#include "ask.h"

#include <iostream>
#include <string>
#include <vector>

#include "attnd/client/client.h"

namespace {

using namespace attnd::client;

absl::Status AskOnce(Client& client) {
  // One query and one key: the output is the value.
  const Array one = Array::Of({1, 1}, std::vector<float>{1}), two = Array::Of({1, 1}, std::vector<float>{2});
  const auto problem = Problem::FromQkv(one, one, two);
  if (!problem.ok()) return problem.status();
  const auto answer = client.Attend(*problem);
  if (!answer.ok()) return answer.status();
  return answer->output.At(0) == 2 ? absl::OkStatus() : absl::InternalError("a wrong answer");
}

}  // namespace

int Ask(const char* target) {
  ClientOptions options;
  options.balancing = Balancing::kRoundRobin;
  const auto client = Client::Connect(target, options);
  if (!client.ok()) {
    std::cerr << client.status() << "\n";
    return 1;
  }
  int calls = 0;
  while (std::cin >> calls) {
    int failed = 0;
    std::string first;
    for (int i = 0; i < calls; ++i) {
      const absl::Status status = AskOnce(**client);
      if (!status.ok() && failed++ == 0) first = status.ToString();
    }
    std::cout << failed << " " << first << std::endl;
  }
  return 0;
}
