#include "server/reflection.h"

#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace attnd::server {
namespace {

using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;

TEST(ReflectionTest, EveryListedServiceHasItsFileWithAllImports) {
  ServerReflectionRequest list;
  list.set_list_services("");
  const ServerReflectionResponse services = AnswerReflection(list);
  ASSERT_EQ(services.list_services_response().service_size(), 5);
  for (const auto& service : services.list_services_response().service()) {
    ServerReflectionRequest request;
    request.set_file_containing_symbol(service.name());
    const ServerReflectionResponse answer = AnswerReflection(request);
    ASSERT_GE(answer.file_descriptor_response().file_descriptor_proto_size(), 1) << service.name();
    std::set<std::string> files;
    google::protobuf::FileDescriptorProto file;
    bool found = false;
    for (const std::string& bytes : answer.file_descriptor_response().file_descriptor_proto()) {
      ASSERT_TRUE(file.ParseFromString(bytes));
      files.insert(file.name());
      for (const auto& named : file.service()) found |= file.package() + "." + named.name() == service.name();
    }
    EXPECT_TRUE(found) << service.name();
  }
}

TEST(ReflectionTest, WhatIsNotThereIsSaid) {
  ServerReflectionRequest request;
  EXPECT_EQ(AnswerReflection(request).error_response().error_code(), 3);
  request.set_file_by_filename("no/such.proto");
  EXPECT_EQ(AnswerReflection(request).error_response().error_code(), 5);
  request.set_file_containing_symbol("no.such.Symbol");
  EXPECT_EQ(AnswerReflection(request).error_response().error_code(), 5);
  request.set_all_extension_numbers_of_type("attnd.v1.Tensor");
  EXPECT_EQ(AnswerReflection(request).error_response().error_code(), 5);
}

}  // namespace
}  // namespace attnd::server
