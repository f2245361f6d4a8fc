// attn store: tensors and weight sets that stay on a server under a name.
#include <algorithm>
#include <ostream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/json.h"
#include "client/cli/text.h"
#include "client/npy.h"
#include "client/npz.h"
#include "client/safetensors.h"
#include "client/store.h"

namespace attnd::client {

namespace {

using Json = nlohmann::ordered_json;

constexpr char kActions[] = "{put,append,put_weights,list,get,delete}";

// The array of that name, or the only one where none is given.
template <typename File>
absl::StatusOr<Array> ReadOneOf(const std::string& path, const std::string& name) {
  const absl::StatusOr<File> file = File::Open(path);
  if (!file.ok()) return file.status();
  if (!name.empty()) return file->Load(name);
  const std::vector<std::string> names = file->names();
  if (names.size() == 1) return file->Load(names.front());
  return UsageError(absl::StrCat(path, " holds ", names.size(), " arrays; say which, as NAME=", path, "::ARRAY"));
}

// FILE.npy, or an array of a file of many: FILE.npz::ARRAY, FILE.safetensors::ARRAY.
absl::StatusOr<Array> ReadTensor(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits("::", 1));
  const auto& [path, name] = parts;
  if (absl::EndsWith(path, ".npz")) return ReadOneOf<NpzFile>(path, name);
  if (absl::EndsWith(path, ".safetensors")) return ReadOneOf<SafetensorsFile>(path, name);
  return ReadNpy(path);
}

std::string Time(std::int64_t ms) { return HumanMicroseconds(static_cast<double>(ms) * 1e3); }

std::string TensorsTable(const std::vector<v1::StoredTensor>& tensors) {
  Table table({true, true, true});
  table.Row({"tensor", "dtype", "shape", "memory", "grows to", "ttl", "calls"});
  for (const v1::StoredTensor& t : tensors) {
    table.Row({t.name(), std::string(Name(static_cast<DType>(t.dtype()))),
               ShapeText({t.shape().begin(), t.shape().end()}), HumanBytes(static_cast<double>(t.bytes())),
               t.has_append_axis() ? absl::StrCat(t.capacity(), ", axis ", t.append_axis()) : "-", Time(t.ttl_ms()),
               absl::StrCat(t.calls())});
  }
  return table.Text();
}

std::string WeightSetsTable(const std::vector<v1::StoredWeightSet>& sets) {
  Table table({true});
  table.Row({"weight set", "version", "heads", "w_q", "memory", "from", "owner", "calls"});
  for (const v1::StoredWeightSet& s : sets) {
    const v1::Projection& p = s.projection();
    table.Row({s.name(), absl::StrCat(s.version()), absl::StrCat(p.q_heads(), "/", p.kv_heads()),
               ShapeText({p.w_q().shape().begin(), p.w_q().shape().end()}), HumanBytes(static_cast<double>(s.bytes())),
               s.from_file() ? "file" : "call", s.owner().empty() ? "-" : s.owner(), absl::StrCat(s.calls())});
  }
  return table.Text();
}

struct StoreCommand {
  ServerFlags server;
  ProblemFlags weights;
  std::string action;
  std::vector<std::string> names;  // or NAME=FILE
  StoredOptions stored;
  std::int64_t version = 0;
  bool weight_set = false, full_rank = false, json = false;

  absl::Status Run(const Io& io) const {
    using Act = absl::Status (StoreCommand::*)(const Io&, Store&) const;
    static constexpr std::pair<absl::string_view, Act> kActs[] = {
        {"put", &StoreCommand::Put},   {"append", &StoreCommand::Append}, {"put_weights", &StoreCommand::PutWeights},
        {"list", &StoreCommand::List}, {"get", &StoreCommand::Get},       {"delete", &StoreCommand::Delete}};
    const auto* act =
        std::find_if(std::begin(kActs), std::end(kActs), [&](const auto& a) { return a.first == action; });
    if (act == std::end(kActs)) return UsageError(absl::StrCat("'", action, "', expected one of ", kActions));
    if (names.empty() != (action == "list")) {
      return UsageError(absl::StrCat(action, action == "list" ? " takes no names" : " needs a name"));
    }
    if (action == "put_weights" && names.size() > 1) return UsageError("put_weights takes one name");
    const absl::StatusOr<std::unique_ptr<Client>> client = server.Connect();
    if (!client.ok()) return client.status();
    Store store(**client);
    return server.Explain((this->*act->second)(io, store));
  }

  // Each name with its array.
  absl::StatusOr<std::vector<std::pair<std::string, Array>>> Read() const {
    std::vector<std::pair<std::string, Array>> read;
    for (const std::string& text : names) {
      const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
      if (parts.first.empty() || parts.second.empty()) {
        return UsageError(absl::StrCat("'", text, "', expected NAME=FILE.npy, or NAME=FILE::ARRAY of a file of many"));
      }
      absl::StatusOr<Array> array = ReadTensor(parts.second);
      if (!array.ok()) return array.status();
      std::vector<std::int64_t>& shape = array->shape;
      if (full_rank && shape.size() == 2) shape.insert(shape.begin(), 1);
      if (full_rank && shape.size() == 3) shape.insert(shape.begin() + 1, 1);
      read.emplace_back(parts.first, *std::move(array));
    }
    return read;
  }

  void Show(const Io& io, const std::vector<v1::StoredTensor>& tensors,
            const std::vector<v1::StoredWeightSet>& sets) const {
    if (json) {
      Json shown = {{"tensors", Json::array()}, {"weight_sets", Json::array()}};
      for (const v1::StoredTensor& tensor : tensors) shown["tensors"].push_back(ToJson(tensor));
      for (const v1::StoredWeightSet& set : sets) shown["weight_sets"].push_back(ToJson(set));
      io.out << shown.dump(2) << "\n";
      return;
    }
    if (!tensors.empty()) io.out << TensorsTable(tensors);
    if (!tensors.empty() && !sets.empty()) io.out << "\n";
    if (!sets.empty()) io.out << WeightSetsTable(sets);
    if (tensors.empty() && sets.empty()) io.out << "nothing is stored\n";
  }

  absl::Status Put(const Io& io, Store& store) const {
    const absl::StatusOr<std::vector<std::pair<std::string, Array>>> read = Read();
    if (!read.ok()) return read.status();
    std::vector<v1::StoredTensor> put;
    for (const auto& [name, array] : *read) {
      absl::StatusOr<v1::StoredTensor> tensor = store.PutTensor(name, array, stored);
      if (!tensor.ok()) return tensor.status();
      put.push_back(*std::move(tensor));
    }
    Show(io, put, {});
    return absl::OkStatus();
  }

  absl::Status Append(const Io& io, Store& store) const {
    absl::StatusOr<std::vector<std::pair<std::string, Array>>> read = Read();
    if (!read.ok()) return read.status();
    v1::AppendTensorsRequest request;
    for (auto& [name, array] : *read) {
      v1::TensorAppend& append = *request.add_appends();
      append.set_name(name);
      *append.mutable_rows() = ToTensor(std::move(array));
    }
    const absl::StatusOr<std::vector<v1::StoredTensor>> appended = store.AppendTensors(request);
    if (!appended.ok()) return appended.status();
    Show(io, *appended, {});
    return absl::OkStatus();
  }

  absl::Status PutWeights(const Io& io, Store& store) const {
    absl::StatusOr<v1::Projection> projection = weights.LoadWeights();
    if (!projection.ok()) return projection.status();
    v1::PutWeightSetRequest request;
    request.set_name(names.front());
    request.set_version(version);
    *request.mutable_projection() = *std::move(projection);
    const absl::StatusOr<v1::StoredWeightSet> set = store.PutWeightSet(request);
    if (!set.ok()) return set.status();
    Show(io, {}, {*set});
    return absl::OkStatus();
  }

  absl::Status List(const Io& io, Store& store) const {
    const absl::StatusOr<std::vector<v1::StoredTensor>> tensors = store.ListTensors();
    if (!tensors.ok()) return tensors.status();
    const absl::StatusOr<std::vector<v1::StoredWeightSet>> sets = store.ListWeightSets();
    if (!sets.ok()) return sets.status();
    Show(io, *tensors, *sets);
    return absl::OkStatus();
  }

  absl::Status Get(const Io& io, Store& store) const {
    std::vector<v1::StoredTensor> tensors;
    std::vector<v1::StoredWeightSet> sets;
    for (const std::string& name : names) {
      if (weight_set) {
        absl::StatusOr<v1::StoredWeightSet> set = store.GetWeightSet(name, version);
        if (!set.ok()) return set.status();
        sets.push_back(*std::move(set));
      } else {
        absl::StatusOr<v1::StoredTensor> tensor = store.GetTensor(name);
        if (!tensor.ok()) return tensor.status();
        tensors.push_back(*std::move(tensor));
      }
    }
    Show(io, tensors, sets);
    return absl::OkStatus();
  }

  absl::Status Delete(const Io& io, Store& store) const {
    for (const std::string& name : names) {
      const absl::Status deleted = weight_set ? store.DeleteWeightSet(name, version) : store.DeleteTensor(name);
      if (!deleted.ok()) return deleted;
      io.out << name << " deleted\n";
    }
    return absl::OkStatus();
  }
};

}  // namespace

void AddStoreCommand(CLI::App& app, Command& selected) {
  auto command = std::make_shared<StoreCommand>();
  CLI::App* sub = app.add_subcommand("store", "Tensors and weight sets that stay on the server under a name");
  sub->add_option("action", command->action, "what to do")->required()->type_name(kActions);
  // Not "names": newer releases of CLI11 take that for --names.
  sub->add_option("stored", command->names,
                  "names; for put and append NAME=FILE.npy, or NAME=FILE::ARRAY of an .npz or safetensors file");
  command->server.AddTo(*sub);
  sub->add_option("--append_axis", command->stored.append_axis,
                  "put: the dimension that rows may be appended along; 2 of [B,H,N,d]");
  sub->add_option("--capacity", command->stored.capacity, "put: of that dimension, the most it may ever be");
  sub->add_option("--ttl_ms", command->stored.ttl_ms,
                  "put: milliseconds without a use after which it goes; default: the server's store_ttl_ms");
  sub->add_flag("--full_rank", command->full_rank,
                "put, append: [N,d] and [B,N,d] as [B,H,N,d], which k and v must be");
  sub->add_flag("--weight_set", command->weight_set, "get, delete: names are of weight sets");
  sub->add_option("--version", command->version, "of a weight set; default: the newest, and for delete every one");
  sub->add_flag("--json", command->json, "print JSON");
  command->weights.AddWeightsTo(*sub);
  sub->footer(
      "Examples:\n  attn store put chat.k=k.npy chat.v=layer.safetensors::blk.0.v --append_axis 2 --capacity 4096\n"
      "  attn store append chat.k=k1.npy chat.v=v1.npy\n  attn run --q q.npy --k stored:chat.k --v stored:chat.v\n"
      "  attn store put_weights llama.layer0 --safetensors layer.safetensors --q_heads 32 --kv_heads 8\n"
      "  attn run --x x.npy --weight_set llama.layer0\n  attn store list\n  attn store delete chat.k chat.v");
  sub->callback([command, &selected] { selected = [command](const Io& io) { return command->Run(io); }; });
}

}  // namespace attnd::client
