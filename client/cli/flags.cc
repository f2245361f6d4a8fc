#include "client/cli/flags.h"

#include <cmath>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/channel.h"

namespace attnd::client {

namespace {

constexpr absl::string_view kUsagePayload = "attn/usage";

// The wire's enum by a name without prefix: "bnhd" is LAYOUT_BNHD.
template <typename Enum, typename Parse>
absl::StatusOr<Enum> EnumByName(absl::string_view flag, absl::string_view prefix, absl::string_view text,
                                absl::string_view expected, const Parse& parse) {
  Enum value{};
  if (text.empty()) return value;
  if (!parse(absl::StrCat(prefix, absl::AsciiStrToUpper(text)), &value) || value == Enum{}) {
    return UsageError(absl::StrCat(flag, ": '", text, "', expected ", expected));
  }
  return value;
}

// A list as long as the batch, by repeating a single value.
template <typename Field>
absl::Status SetPerSequence(absl::string_view flag, const std::string& text, std::int64_t batch, Field* field) {
  if (text.empty()) return absl::OkStatus();
  const absl::StatusOr<std::vector<std::int64_t>> values = ParseIntegers(flag, text);
  if (!values.ok()) return values.status();
  if (values->size() == 1) {
    if (batch < 0 || batch > (1 << 24)) return UsageError(absl::StrCat(flag, ": cannot be repeated ", batch, " times"));
    field->Resize(static_cast<int>(batch), values->front());
  } else {
    field->Assign(values->begin(), values->end());
  }
  return absl::OkStatus();
}

template <typename Field>
absl::Status SetPerHead(absl::string_view flag, const std::string& text, Field* field) {
  if (text.empty()) return absl::OkStatus();
  const absl::StatusOr<std::vector<double>> values = ParseNumbers(flag, text);
  if (!values.ok()) return values.status();
  for (const double value : *values) field->Add(static_cast<float>(value));
  return absl::OkStatus();
}

}  // namespace

absl::Status UsageError(absl::string_view message) {
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kUsagePayload, absl::Cord());
  return status;
}

bool IsUsageError(const absl::Status& status) { return status.GetPayload(kUsagePayload).has_value(); }

absl::StatusOr<std::vector<std::int64_t>> ParseIntegers(absl::string_view flag, absl::string_view text) {
  std::vector<std::int64_t> values;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    std::int64_t value = 0;
    if (!absl::SimpleAtoi(part, &value)) {
      return UsageError(absl::StrCat(flag, ": '", text, "', expected whole numbers with commas between them"));
    }
    values.push_back(value);
  }
  return values;
}

absl::StatusOr<std::vector<double>> ParseNumbers(absl::string_view flag, absl::string_view text) {
  std::vector<double> values;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    double value = 0;
    if (!absl::SimpleAtod(part, &value)) {
      return UsageError(absl::StrCat(flag, ": '", text, "', expected numbers with commas between them"));
    }
    values.push_back(value);
  }
  return values;
}

absl::StatusOr<std::optional<DType>> ParseWireDType(absl::string_view text) {
  if (text.empty()) return std::optional<DType>();
  const absl::StatusOr<DType> dtype = DTypeByName(text);
  if (dtype.ok() && IsFloat(*dtype)) return std::optional<DType>(*dtype);
  return UsageError(absl::StrCat("--wire_dtype: '", text, "', expected float32, float16, bfloat16 or float64"));
}

void ServerFlags::AddTo(CLI::App& app) {
  app.add_option("--server", server, "host:port, unix:path, dns:///host:port or ipv4:a:port,b:port")
      ->capture_default_str();
  app.add_option("--timeout_ms", timeout_ms, "deadline of every call, milliseconds")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  app.add_option("--attempts", attempts, "of a call that no server had room for or whose connection was lost")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_flag("--round_robin", round_robin, "calls go to all addresses of --server in turn, not to the first");
  const std::string group = "Trust";
  app.add_flag("--tls", credentials.tls, "speak TLS and trust the system's roots")->group(group);
  app.add_option("--tls_ca", credentials.ca.file, "speak TLS and trust these CAs instead (PEM file)")->group(group);
  CLI::Option* certificate =
      app.add_option("--tls_certificate", credentials.certificate.file, "this client's own certificate (PEM file)");
  CLI::Option* key = app.add_option("--tls_key", credentials.key.file, "its key (PEM file)");
  certificate->group(group)->needs(key);
  key->group(group)->needs(certificate);
  app.add_option("--tls_server_name", credentials.server_name,
                 "the certificate's name, where it is not --server's host")
      ->group(group);
  app.add_option("--token_file", credentials.token.file, "file with a bearer token, sent with every call")
      ->envname("ATTN_TOKEN_FILE")
      ->group(group);
  app.add_flag("--allow_plaintext_token", credentials.allow_plaintext_token,
               "send the token without TLS also beyond this machine, where others can read it")
      ->group(group);
}

ClientOptions ServerFlags::Options() const {
  ClientOptions options;
  options.timeout = absl::Milliseconds(timeout_ms);
  options.credentials = credentials;
  options.retry.max_attempts = static_cast<int>(attempts);
  if (round_robin) options.balancing = Balancing::kRoundRobin;
  return options;
}

absl::Status ServerFlags::ExplainConnect(const absl::Status& status) const {
  if (absl::IsFailedPrecondition(status)) {
    return UsageError(absl::StrCat(status.message(), "; give --tls or --tls_ca, or --allow_plaintext_token"));
  }
  return Explain(status);
}

absl::StatusOr<std::unique_ptr<Client>> ServerFlags::Connect() const {
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(server, Options());
  if (!client.ok()) return ExplainConnect(client.status());
  return client;
}

absl::StatusOr<std::vector<std::shared_ptr<grpc::Channel>>> ServerFlags::ConnectChannels(int connections) const {
  ClientOptions options = Options();
  options.connections = connections;
  absl::StatusOr<std::vector<std::shared_ptr<grpc::Channel>>> channels = OpenChannels(server, options);
  if (!channels.ok()) return ExplainConnect(channels.status());
  return channels;
}

absl::Status ServerFlags::Explain(const absl::Status& status) const {
  std::string hint;
  if (absl::IsUnavailable(status) && absl::StartsWith(status.message(), "no server answer")) {
    hint = absl::StrCat("; start a server (attnd --listen=", server, ") or name another with --server");
  } else if (absl::IsDeadlineExceeded(status)) {
    hint = absl::StrCat("; it had --timeout_ms=", timeout_ms, ", give it more");
  } else if (absl::IsUnauthenticated(status)) {
    hint = "; see --tls_ca, --tls_server_name, --tls_certificate and --token_file";
  }
  if (hint.empty()) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), hint));
}

absl::StatusOr<ShapeFlag> ShapeFlag::Parse(absl::string_view flag, absl::string_view text) {
  const absl::Status bad = UsageError(absl::StrCat(
      flag, ": '", text, "', expected B,H,N,d or B,H,Nq,Nk,d (H may be Hq/Hkv, d may be d_k/d_v), as 1,8,2048,64"));
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ',');
  if (parts.size() != 4 && parts.size() != 5) return bad;
  const auto number = [](absl::string_view part, std::int64_t* value) {
    return absl::SimpleAtoi(part, value) && *value >= 0;
  };
  const auto pair = [&](absl::string_view part, std::int64_t* first, std::int64_t* second) {
    const std::vector<absl::string_view> sides = absl::StrSplit(part, '/');
    return sides.size() <= 2 && number(sides.front(), first) && number(sides.back(), second);
  };
  ShapeFlag shape;
  if (!number(parts[0], &shape.batch) || !pair(parts[1], &shape.q_heads, &shape.kv_heads) ||
      !number(parts[2], &shape.nq) || !number(parts[parts.size() - 2], &shape.nk) ||
      !pair(parts.back(), &shape.d_k, &shape.d_v)) {
    return bad;
  }
  return shape;
}

void OptionFlags::AddTo(CLI::App& app) {
  const std::string group = "Options of the problem";
  app.add_option("--scale", scale, "multiplies q.k; default 1/sqrt(d_k)")->group(group);
  app.add_flag("--causal", causal, "row at position p sees keys up to p")->group(group);
  app.add_option("--q_offset", q_offset, "position of row 0, one or B values; default kv_len - q_len")->group(group);
  app.add_option("--q_len", q_len, "rows that count, one or B values")->group(group);
  app.add_option("--kv_len", kv_len, "keys that count, one or B values")->group(group);
  app.add_option("--lengths", lengths, "with --x: q_len and kv_len together")->group(group);
  app.add_option("--window_left", window_left, "keys from p - this on")->group(group);
  app.add_option("--window_right", window_right, "keys up to p + this")->group(group);
  app.add_option("--softcap", softcap, "s becomes cap * tanh(s / cap)")->group(group);
  app.add_option("--alibi_slopes", alibi_slopes, "Hq slopes")->group(group);
  app.add_option("--sinks", sinks, "Hq sink logits")->group(group);
  app.add_option("--rotary_style", rotary_style, "turns on rotary embedding")
      ->type_name("{half,interleaved}")
      ->group(group);
  app.add_option("--rotary_dim", rotary_dim, "coordinates that turn; default d_k")->group(group);
  app.add_option("--rope_base", rope_base, "default 10000")->group(group);
  app.add_option("--layout", layout, "default: bhnd")->type_name("{bhnd,bnhd}")->group(group);
  app.add_option("--output_dtype", output_dtype, "default: q's")->type_name(kFloatTypes)->group(group);
  app.add_option("--mode", mode, "default: tiled; reference is float64 and slow")
      ->type_name("{tiled,reference}")
      ->group(group);
  app.add_option("--priority", priority, "its share of compute; default: normal")
      ->type_name("{low,normal,high}")
      ->group(group);
}

absl::StatusOr<v1::Layout> OptionFlags::Layout() const {
  return EnumByName<v1::Layout>("--layout", "LAYOUT_", layout, "bhnd or bnhd", v1::Layout_Parse);
}

absl::StatusOr<v1::Priority> OptionFlags::Priority() const {
  return EnumByName<v1::Priority>("--priority", "PRIORITY_", priority, "low, normal or high", v1::Priority_Parse);
}

absl::Status OptionFlags::Apply(std::int64_t batch, std::int64_t d_k, v1::Options* options) const {
  if (scale) options->set_scale(*scale);
  if (softcap) options->set_softcap(*softcap);
  options->set_causal(causal);
  if (window_left) options->set_window_left(*window_left);
  if (window_right) options->set_window_right(*window_right);
  absl::Status status;
  status.Update(SetPerSequence("--q_offset", q_offset, batch, options->mutable_q_offset()));
  status.Update(SetPerSequence("--q_len", q_len, batch, options->mutable_q_len()));
  status.Update(SetPerSequence("--kv_len", kv_len, batch, options->mutable_kv_len()));
  status.Update(SetPerSequence("--lengths", lengths, batch, options->mutable_lengths()));
  status.Update(SetPerHead("--alibi_slopes", alibi_slopes, options->mutable_alibi_slopes()));
  status.Update(SetPerHead("--sinks", sinks, options->mutable_sinks()));
  if (!status.ok()) return status;
  const auto compute =
      EnumByName<v1::ComputeMode>("--mode", "COMPUTE_MODE_", mode, "tiled or reference", v1::ComputeMode_Parse);
  if (!compute.ok()) return compute.status();
  options->set_mode(*compute);
  if (!output_dtype.empty()) {
    const absl::StatusOr<DType> dtype = DTypeByName(output_dtype);
    if (!dtype.ok()) return UsageError(absl::StrCat("--output_dtype: ", dtype.status().message()));
    options->set_output_dtype(static_cast<v1::DataType>(*dtype));
  }
  const auto style = EnumByName<v1::RotaryStyle>("--rotary_style", "ROTARY_STYLE_", rotary_style, "half or interleaved",
                                                 v1::RotaryStyle_Parse);
  if (!style.ok()) return style.status();
  if (*style != v1::ROTARY_STYLE_UNSPECIFIED) {
    options->mutable_rotary()->set_style(*style);
    options->mutable_rotary()->set_rotary_dim(rotary_dim != 0 ? rotary_dim : d_k);
    if (rope_base) options->mutable_rotary()->set_rope_base(*rope_base);
  } else if (rotary_dim != 0 || rope_base) {
    return UsageError("--rotary_dim and --rope_base need --rotary_style half or interleaved");
  }
  return absl::OkStatus();
}

}  // namespace attnd::client
