// A server that answers every Attend with the same bytes and computes nothing, to measure clients with: how much can
// they ask for, and how late are they themselves?
//
//   null_server PORT_FILE
//
// The reply is that of the first request, zeros in its q's shape. It listens on a loopback port of the system's choice,
// which it writes to PORT_FILE, until its standard input ends.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <fstream>
#include <iostream>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "attnd/v1/attention.pb.h"

namespace {

using namespace attnd;

class NullService : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* /*context*/) override {
    return new Reactor(*this);
  }

 private:
  class Reactor : public grpc::ServerGenericBidiReactor {
   public:
    explicit Reactor(NullService& service) : service_(service) { StartRead(&request_); }
    void OnReadDone(bool ok) override {
      if (!ok) {
        Finish({grpc::StatusCode::INVALID_ARGUMENT, "no request"});
        return;
      }
      StartWriteAndFinish(&service_.ReplyTo(request_), {}, grpc::Status::OK);
    }
    void OnDone() override { delete this; }

   private:
    NullService& service_;
    grpc::ByteBuffer request_;
  };

  grpc::ByteBuffer& ReplyTo(grpc::ByteBuffer& request) {
    std::call_once(once_, [&] {
      std::vector<grpc::Slice> slices;
      std::string bytes;
      if (request.Dump(&slices).ok()) {
        for (const grpc::Slice& slice : slices)
          bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
      }
      v1::AttendRequest asked;
      v1::AttendResponse response;
      if (!asked.ParseFromString(bytes)) return;
      *response.mutable_output() = asked.q();
      response.mutable_output()->mutable_data()->assign(asked.q().data().size(), '\0');
      const grpc::Slice reply(response.SerializeAsString());
      reply_ = grpc::ByteBuffer(&reply, 1);
    });
    return reply_;
  }

  std::once_flag once_;
  grpc::ByteBuffer reply_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "null_server: expected PORT_FILE\n";
    return 2;
  }
  NullService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  std::ofstream(argv[1]) << "127.0.0.1:" << port << "\n";
  std::cin.ignore(std::numeric_limits<std::streamsize>::max());
  server->Shutdown(std::chrono::system_clock::now());
  return 0;
}
