// Tensors from files, by flags or by name from an .npz or safetensors file.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/flags.h"
#include "client/npy.h"
#include "client/npz.h"
#include "client/safetensors.h"
#include "client/store.h"

namespace attnd::client {

namespace {

// Every role that a tensor can have.
constexpr absl::string_view kRoles[] = {"q",    "k",    "v",           "x",           "w_q",       "w_k",
                                        "w_v",  "b_q",  "b_k",         "b_v",         "w_o",       "b_o",
                                        "mask", "bias", "q_positions", "k_positions", "page_table"};

// What begins the name of a tensor that a server has, where a file's would stand.
constexpr absl::string_view kStored = "stored:";

// Where the contract has the tensor of that role.
std::string PathOf(const std::string& role) {
  if (absl::StartsWith(role, "w_") || absl::StartsWith(role, "b_")) return absl::StrCat("projection.", role);
  if (absl::EndsWith(role, "_positions")) return absl::StrCat("options.rotary.", role);
  return role.size() == 1 ? role : absl::StrCat("options.", role);
}

// Reads tensors by role, from the flag's file where one is given, else from the file of many: by the name that --names
// gives the role, else by the role's own in any case.
class TensorSource {
 public:
  explicit TensorSource(Client* client) : client_(client) {}

  absl::Status Open(const ProblemFlags& flags) {
    if (!flags.npz.empty() && !flags.safetensors.empty()) {
      return UsageError("--npz and --safetensors exclude each other");
    }
    if (!flags.npz.empty()) {
      absl::StatusOr<NpzFile> file = NpzFile::Open(flags.npz);
      if (!file.ok()) return file.status();
      npz_.emplace(*std::move(file));
      for (const std::string& name : npz_->names()) names_.emplace(absl::AsciiStrToLower(name), name);
    }
    if (!flags.safetensors.empty()) {
      absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(flags.safetensors);
      if (!file.ok()) return file.status();
      safetensors_.emplace(*std::move(file));
      for (const std::string& name : safetensors_->names()) names_.emplace(absl::AsciiStrToLower(name), name);
    }
    for (const std::string& text : flags.names) {
      const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
      const auto& [role, name] = parts;
      if (name.empty() || std::find(std::begin(kRoles), std::end(kRoles), role) == std::end(kRoles)) {
        return UsageError(absl::StrCat("--names: '", text, "', expected ROLE=NAME with one of the roles ",
                                       absl::StrJoin(kRoles, ", ")));
      }
      if (!npz_ && !safetensors_) return UsageError("--names needs --npz or --safetensors");
      names_[role] = name;
    }
    return absl::OkStatus();
  }

  bool Has(const std::string& path, const std::string& role) const { return !path.empty() || names_.count(role) > 0; }

  // Nothing when neither is there.
  absl::StatusOr<std::optional<Array>> Read(const std::string& path, const std::string& role) {
    if (!Has(path, role)) return std::nullopt;
    if (absl::StartsWith(path, kStored)) return ReadStored(path.substr(kStored.size()), role);
    absl::StatusOr<Array> array = path.empty() ? Load(names_.at(role)) : ReadNpy(path);
    if (!array.ok()) return array.status();
    return std::optional<Array>(*std::move(array));
  }

  absl::StatusOr<Array> Need(const std::string& path, const std::string& role) {
    absl::StatusOr<std::optional<Array>> array = Read(path, role);
    if (!array.ok()) return array.status();
    if (!*array)
      return UsageError(absl::StrCat("--", role, " is missing: give it a .npy file, or an array '", role,
                                     "' in --npz or --safetensors (or --names ", role, "=NAME of one there)"));
    return **std::move(array);
  }

  // What was read as a name becomes one in the problem that it was read for.
  absl::Status NameStored(Problem& problem) {
    for (const auto& [role, name] : std::exchange(stored_, {})) {
      const absl::Status named = problem.UseStored(PathOf(role), name);
      if (!named.ok()) return named;
    }
    return absl::OkStatus();
  }

 private:
  // Its dtype and shape.
  absl::StatusOr<std::optional<Array>> ReadStored(const std::string& name, const std::string& role) {
    if (client_ == nullptr) return UsageError(absl::StrCat("--", role, ": ", kStored, "NAME is for attn run"));
    const absl::StatusOr<v1::StoredTensor> stored = Store(*client_).GetTensor(name);
    if (!stored.ok()) return stored.status();
    stored_[role] = name;
    return std::optional<Array>(WithoutBytes(*stored));
  }

  absl::StatusOr<Array> Load(const std::string& name) const {
    return npz_ ? npz_->Load(name) : safetensors_->Load(name);
  }

  Client* const client_;
  std::map<std::string, std::string> stored_;  // role -> name on the server
  std::optional<NpzFile> npz_;
  std::optional<SafetensorsFile> safetensors_;
  std::map<std::string, std::string> names_;  // role, or in small letters -> in the file
};

absl::StatusOr<v1::Projection> ReadWeights(const ProblemFlags& flags, TensorSource& source) {
  v1::Projection projection;
  projection.set_q_heads(flags.q_heads);
  projection.set_kv_heads(flags.kv_heads.value_or(flags.q_heads));
  projection.set_weights_transposed(flags.weights_transposed);
  struct Role {
    const char* name;
    const std::string& path;
    v1::Tensor* (v1::Projection::*field)();
    bool needed;
  };
  const Role roles[] = {
      {"w_q", flags.w_q, &v1::Projection::mutable_w_q, true},  {"w_k", flags.w_k, &v1::Projection::mutable_w_k, true},
      {"w_v", flags.w_v, &v1::Projection::mutable_w_v, true},  {"b_q", flags.b_q, &v1::Projection::mutable_b_q, false},
      {"b_k", flags.b_k, &v1::Projection::mutable_b_k, false}, {"b_v", flags.b_v, &v1::Projection::mutable_b_v, false},
      {"w_o", flags.w_o, &v1::Projection::mutable_w_o, false}, {"b_o", flags.b_o, &v1::Projection::mutable_b_o, false}};
  for (const Role& role : roles) {
    if (!role.needed && !source.Has(role.path, role.name)) continue;
    absl::StatusOr<Array> array = source.Need(role.path, role.name);
    if (!array.ok()) return array.status();
    *(projection.*role.field)() = ToTensor(*std::move(array));
  }
  return projection;
}

// x with the weights of a set that the server has: what it is like now, of the version that is named from then on.
absl::StatusOr<Problem> WithWeightSet(const std::string& text, Array x, Client* client) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('@', 1));
  std::int64_t version = 0;
  if (parts.first.empty() || (text.size() > parts.first.size() && !absl::SimpleAtoi(parts.second, &version))) {
    return UsageError(absl::StrCat("--weight_set: '", text, "', expected NAME or NAME@VERSION"));
  }
  const absl::StatusOr<v1::StoredWeightSet> set = Store(*client).GetWeightSet(parts.first, version);
  if (!set.ok()) return set.status();
  absl::StatusOr<Problem> problem = Problem::FromX(std::move(x), set->projection());
  if (problem.ok()) problem->UseWeightSet(set->name(), set->version());
  return problem;
}

absl::StatusOr<Problem> LoadProjected(const ProblemFlags& flags, TensorSource& source, Client* client) {
  absl::StatusOr<v1::Projection> projection = v1::Projection();
  if (flags.weight_set.empty()) projection = ReadWeights(flags, source);
  if (!projection.ok()) return projection.status();
  absl::StatusOr<Array> x = source.Need(flags.x, "x");
  if (!x.ok()) return x.status();
  if (!flags.weight_set.empty()) return WithWeightSet(flags.weight_set, *std::move(x), client);
  return Problem::FromX(*std::move(x), *std::move(projection));
}

absl::StatusOr<Problem> LoadQkv(const ProblemFlags& flags, TensorSource& source) {
  absl::StatusOr<Array> q = source.Need(flags.q, "q");
  if (!q.ok()) return q.status();
  absl::StatusOr<Array> k = source.Need(flags.k, "k");
  if (!k.ok()) return k.status();
  absl::StatusOr<Array> v = source.Need(flags.v, "v");
  if (!v.ok()) return v.status();
  const absl::StatusOr<v1::Layout> layout = flags.options.Layout();
  if (!layout.ok()) return layout.status();
  return Problem::FromQkv(*std::move(q), *std::move(k), *std::move(v), *layout);
}

}  // namespace

void ProblemFlags::AddTo(CLI::App& app) {
  const std::string group = "Tensors (.npy files)";
  app.add_option("--q", q, "queries [B,Hq,Nq,d_k], [B,N,d] or [N,d]")->group(group);
  app.add_option("--k", k, "keys")->group(group);
  app.add_option("--v", v, "values")->group(group);
  app.add_option("--x", x, "instead of q, k, v: [B,N,d_model] or [N,d_model], with the weights below")->group(group);
  AddWeightsTo(app);
  app.add_option("--wire_dtype", wire_dtype, "send tensors and get the output as this; files keep the type of q or x")
      ->type_name(kFloatTypes)
      ->group(group);
  app.add_option("--mask", mask, "bool, broadcast from the right to [B,Hq,Nq,Nk]; true = may see")->group(group);
  app.add_option("--bias", bias, "float, likewise, added to the scores")->group(group);
  app.add_option("--q_positions", q_positions, "[B,Nq] int64, for rotary embedding")->group(group);
  app.add_option("--k_positions", k_positions, "[B,Nk] int64, for rotary embedding")->group(group);
  app.add_option("--page_table", page_table,
                 "[B,T] int64: k and v are pages [P,Hkv,R,d]; key j is row j % R of page table[b, j / R]")
      ->group(group);
  options.AddTo(app);
}

void ProblemFlags::AddWeightsTo(CLI::App& app) {
  const std::string group = "Tensors (.npy files)";
  app.add_option("--w_q", w_q, "[d_model, Hq*d_k]")->group(group);
  app.add_option("--w_k", w_k, "[d_model, Hkv*d_k]")->group(group);
  app.add_option("--w_v", w_v, "[d_model, Hkv*d_v]")->group(group);
  app.add_option("--b_q", b_q, "bias of w_q")->group(group);
  app.add_option("--b_k", b_k, "bias of w_k")->group(group);
  app.add_option("--b_v", b_v, "bias of w_v")->group(group);
  app.add_option("--w_o", w_o, "[Hq*d_v, d_out]")->group(group);
  app.add_option("--b_o", b_o, "bias of w_o")->group(group);
  app.add_option("--npz", npz, "one file with arrays of these names, in any case; x is taken before q, k, v")
      ->group(group);
  app.add_option("--safetensors", safetensors, "the same from a safetensors file")->group(group);
  app.add_option("--names", names, "ROLE=NAME, as q=layers.0.q: what an array is called there; may be repeated")
      ->group(group);
  app.add_option("--q_heads", q_heads, "heads that x is projected to")->capture_default_str()->group(group);
  app.add_option("--kv_heads", kv_heads, "default: q_heads")->group(group);
  app.add_flag("--weights_transposed", weights_transposed, "weights are [out, in], as PyTorch keeps them")
      ->group(group);
}

void ProblemFlags::AddStoredTo(CLI::App& app) {
  app.add_option("--weight_set", weight_set,
                 "instead of weights, those that the server has: NAME or NAME@VERSION (attn store)")
      ->group("Tensors (.npy files, or stored:NAME of what the server has)");
}

bool ProblemFlags::NamesStored() const {
  const std::string* const paths[] = {&q,   &k,   &v,   &x,    &w_q,  &w_k,         &w_v,         &w_o,       &b_q,
                                      &b_k, &b_v, &b_o, &mask, &bias, &q_positions, &k_positions, &page_table};
  const auto named = [](const std::string* path) { return absl::StartsWith(*path, kStored); };
  return !weight_set.empty() || std::any_of(std::begin(paths), std::end(paths), named);
}

absl::StatusOr<v1::Projection> ProblemFlags::LoadWeights() const {
  TensorSource source(nullptr);
  const absl::Status opened = source.Open(*this);
  if (!opened.ok()) return opened;
  return ReadWeights(*this, source);
}

bool ProblemFlags::AnyInput() const {
  return !(q.empty() && k.empty() && v.empty() && x.empty() && npz.empty() && safetensors.empty());
}

absl::StatusOr<Problem> ProblemFlags::Load(Client* client) const {
  const absl::StatusOr<std::optional<DType>> wire = ParseWireDType(wire_dtype);
  if (!wire.ok()) return wire.status();
  const absl::StatusOr<v1::Priority> priority = options.Priority();
  if (!priority.ok()) return priority.status();
  TensorSource source(client);
  const absl::Status opened = source.Open(*this);
  if (!opened.ok()) return opened;
  if (!x.empty() && !q.empty()) return UsageError("--x and --q exclude each other");
  const bool projected = !x.empty() || (q.empty() && source.Has("", "x"));
  absl::StatusOr<Problem> problem = projected ? LoadProjected(*this, source, client) : LoadQkv(*this, source);
  if (!problem.ok()) return problem;
  absl::Status named = source.NameStored(*problem);
  if (!named.ok()) return named;
  problem->SetPriority(*priority);
  if (*wire) {
    const absl::Status converted = problem->SetWireDType(**wire);
    if (!converted.ok()) return converted;
  }
  const std::vector<std::int64_t> first = problem->ShapeOf(projected ? "x" : "q");
  const std::int64_t batch = first.empty() ? 0 : first[0];
  const absl::StatusOr<OutputLayout> keys = problem->LayoutOf(v1::OUTPUT_KIND_PROJECTED_K);
  const std::int64_t d_k = projected ? (keys.ok() ? keys->columns : 0) : (first.empty() ? 0 : first.back());
  const absl::Status applied = options.Apply(batch, d_k, &problem->options());
  if (!applied.ok()) return applied;
  absl::StatusOr<std::optional<Array>> tensor = source.Read(mask, "mask");
  if (!tensor.ok()) return tensor.status();
  if (*tensor) problem->SetMask(**std::move(tensor));
  tensor = source.Read(bias, "bias");
  if (!tensor.ok()) return tensor.status();
  if (*tensor) problem->SetBias(**std::move(tensor));
  for (const auto& [path, role] : {std::pair(q_positions, "q_positions"), std::pair(k_positions, "k_positions")}) {
    tensor = source.Read(path, role);
    if (!tensor.ok()) return tensor.status();
    if (!*tensor) continue;
    v1::Rotary& rotary = *problem->options().mutable_rotary();
    *(role[0] == 'q' ? rotary.mutable_q_positions() : rotary.mutable_k_positions()) = ToTensor(**std::move(tensor));
  }
  tensor = source.Read(page_table, "page_table");
  if (!tensor.ok()) return tensor.status();
  if (*tensor) *problem->options().mutable_page_table() = ToTensor(**std::move(tensor));
  named = source.NameStored(*problem);
  if (!named.ok()) return named;
  return problem;
}

}  // namespace attnd::client
