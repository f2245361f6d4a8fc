#include "client/cli/page.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cli/page_files.h"

namespace attnd::client {

std::string MakePage(absl::string_view title, absl::string_view script, const nlohmann::ordered_json& data) {
  // No text of a user ends the element it stands in.
  const std::string json = absl::StrReplaceAll(data.dump(), {{"<", "\\u003c"}});
  const std::string head = absl::StrReplaceAll(title, {{"&", "&amp;"}, {"<", "&lt;"}});
  return absl::StrCat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'; img-src data:\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n<title>",
      head, "</title>\n<style>\n", PageFile("page.css"), PageFile(absl::StrCat(script, ".css")),
      "</style>\n</head>\n<body>\n<main></main>\n", "<script id=\"data\" type=\"application/json\">", json,
      "</script>\n<script>\n\"use strict\";\n", PageFile("page.js"), PageFile("chart.js"),
      PageFile(absl::StrCat(script, ".js")), "</script>\n</body>\n</html>\n");
}

}  // namespace attnd::client
