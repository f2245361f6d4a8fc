// The files of pages/, which are compiled in. page_files.cc is made of them when the build is configured.
// Thread rule: a pure function.
#pragma once

#include "absl/strings/string_view.h"

namespace attnd::client {

// Empty when there is no such file.
absl::string_view PageFile(absl::string_view name);

}  // namespace attnd::client
