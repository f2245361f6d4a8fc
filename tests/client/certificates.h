// Certificates for tests, made by the openssl command into a folder of their own when they are asked for; nothing that
// expires is kept.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/file.h"

namespace attnd::client {

class Certificates {
 public:
  Certificates() : folder_(absl::StrCat(testing::TempDir(), "/certificates_", getpid(), "_", ++made_)) {
    std::filesystem::create_directories(folder_);
  }
  ~Certificates() { std::filesystem::remove_all(folder_); }
  Certificates(const Certificates&) = delete;
  Certificates& operator=(const Certificates&) = delete;

  // NAME.pem and NAME.key, valid for a day: a CA.
  void MakeCa(const std::string& name) { Make(name, "-addext basicConstraints=critical,CA:TRUE"); }
  // The same, signed by `ca` for `names` ("DNS:localhost,IP:127.0.0.1").
  void MakeLeaf(const std::string& name, const std::string& ca, const std::string& names) {
    Make(name, absl::StrCat("-addext basicConstraints=critical,CA:FALSE -addext subjectAltName=", names, " -CA '",
                            Pem(ca), "' -CAkey '", Key(ca), "'"));
  }
  std::string Pem(const std::string& name) const { return absl::StrCat(folder_, "/", name, ".pem"); }
  std::string Key(const std::string& name) const { return absl::StrCat(folder_, "/", name, ".key"); }
  // A file of any contents.
  std::string Write(const std::string& name, absl::string_view text) const {
    const std::string path = absl::StrCat(folder_, "/", name);
    EXPECT_TRUE(WriteFile(path, text).ok());
    return path;
  }
  static std::string Text(const std::string& path) { return *ReadFile(path); }

 private:
  void Make(const std::string& name, const std::string& more) const {
    const std::string command = absl::StrCat(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=", name, " -out '",
        Pem(name), "' -keyout '", Key(name), "' ", more, " 2>'", folder_, "/log'");
    ASSERT_EQ(std::system(command.c_str()), 0) << command << "\n" << Text(folder_ + "/log");
  }

  inline static int made_ = 0;
  const std::string folder_;
};

}  // namespace attnd::client
