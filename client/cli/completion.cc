#include "client/cli/completion.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace attnd::client {

namespace {

// An option with a name in full, as a shell needs it.
struct Flag {
  std::string name, description;
  bool takes_value = false;
  std::vector<std::string> words;  // the values there are
  bool file = false;               // the value may be a file
};

std::vector<const CLI::App*> CommandsOf(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_name().empty(); });
}

std::vector<Flag> FlagsOf(const CLI::App& app) {
  std::vector<Flag> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      Flag flag;
      flag.name = name;
      flag.description = option->get_description();
      flag.takes_value = option->get_items_expected_max() > 0;
      const std::string type_name = option->get_type_name();
      absl::string_view type = type_name;
      flag.file = flag.takes_value && absl::StartsWith(type, "TEXT");
      if (absl::ConsumePrefix(&type, "{")) flag.words = absl::StrSplit(type.substr(0, type.find('}')), ',');
      flags.push_back(std::move(flag));
    }
  }
  return flags;
}

// The words that are no option's, `attn completion bash`'s last.
std::vector<std::string> ArgumentsOf(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string type_name = option->get_type_name();
    absl::string_view type = type_name;
    if (option->get_positional() && absl::ConsumePrefix(&type, "{")) {
      return absl::StrSplit(type.substr(0, type.find('}')), ',');
    }
  }
  return {};
}

// Within single quotes.
std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string ZshText(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

// _arguments' word for one option.
std::string ZshArgument(const Flag& flag) {
  std::string argument =
      absl::StrCat("--", flag.name, flag.takes_value ? "=" : "", "[", ZshText(flag.description), "]");
  if (flag.takes_value) absl::StrAppend(&argument, ":", flag.name, ":");
  if (!flag.words.empty()) absl::StrAppend(&argument, "(", absl::StrJoin(flag.words, " "), ")");
  if (flag.file) absl::StrAppend(&argument, "_files");
  return Quoted(argument);
}

std::string FishLine(absl::string_view command, const Flag& flag) {
  std::string line = absl::StrCat("complete -c attn -n ", command, " -l ", flag.name);
  if (!flag.words.empty()) {
    absl::StrAppend(&line, " -x -a ", Quoted(absl::StrJoin(flag.words, " ")));
  } else if (flag.takes_value) {
    absl::StrAppend(&line, flag.file ? " -r -F" : " -x");
  }
  return absl::StrCat(line, " -d ", Quoted(absl::StrReplaceAll(flag.description, {{"\\", "\\\\"}})), "\n");
}

}  // namespace

std::string BashCompletion(const CLI::App& app) {
  // A case for what an option takes, and one for what else a command takes.
  std::string values, options;
  std::vector<std::string> commands;
  for (const CLI::App* command : CommandsOf(app)) {
    const std::string& name = command->get_name();
    commands.push_back(name);
    std::vector<std::string> words = ArgumentsOf(*command), files, others;
    for (const Flag& flag : FlagsOf(*command)) {
      words.push_back(absl::StrCat("--", flag.name));
      const std::string pattern = absl::StrCat("'", name, " --", flag.name, "'");
      if (!flag.words.empty()) {
        absl::StrAppend(&values, "    ", pattern, ") words='", absl::StrJoin(flag.words, " "), "' ;;\n");
      } else if (flag.takes_value) {
        (flag.file ? files : others).push_back(pattern);
      }
    }
    if (!files.empty()) {
      absl::StrAppend(&values, "    ", absl::StrJoin(files, " | "),
                      ")\n      compopt -o filenames\n      mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
                      "      return ;;\n");
    }
    if (!others.empty()) absl::StrAppend(&values, "    ", absl::StrJoin(others, " | "), ") return ;;\n");
    absl::StrAppend(&options, "        ", name, ") words='", absl::StrJoin(words, " "), "' ;;\n");
  }
  std::vector<std::string> first = commands;
  for (const Flag& flag : FlagsOf(app)) first.push_back(absl::StrCat("--", flag.name));
  return absl::StrCat(R"(# bash completion for attn, as `attn completion bash` prints it.
_attn() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command='' words='' i
  # --option=value comes as three words.
  if [ "$word" = = ]; then
    word=''
  elif [ "$previous" = = ]; then
    previous=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    case ${COMP_WORDS[i]} in
      )",
                      absl::StrJoin(commands, " | "), R"() command=${COMP_WORDS[i]}; break ;;
    esac
  done
  COMPREPLY=()
  case "$command $previous" in
)",
                      values, R"(    *)
      case $command in
)",
                      options, "        *) words='", absl::StrJoin(first, " "), R"(' ;;
      esac ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -F _attn attn
)");
}

std::string ZshCompletion(const CLI::App& app) {
  std::string script = R"(#compdef attn
# zsh completion for attn, as `attn completion zsh` prints it.
_attn() {
  local state
  local -a commands
  commands=(
)";
  for (const CLI::App* command : CommandsOf(app)) {
    absl::StrAppend(&script, "    ",
                    Quoted(absl::StrCat(command->get_name(), ":", ZshText(command->get_description()))), "\n");
  }
  absl::StrAppend(&script, "  )\n  _arguments -C");
  for (const Flag& flag : FlagsOf(app)) absl::StrAppend(&script, " \\\n    ", ZshArgument(flag));
  absl::StrAppend(&script, R"( \
    '1:command:->command' '*::argument:->argument'
  case $state in
    command) _describe command commands ;;
    argument)
      case $words[1] in
)");
  for (const CLI::App* command : CommandsOf(app)) {
    absl::StrAppend(&script, "        ", command->get_name(), ") _arguments");
    for (const Flag& flag : FlagsOf(*command)) absl::StrAppend(&script, " \\\n          ", ZshArgument(flag));
    if (const std::vector<std::string> words = ArgumentsOf(*command); !words.empty()) {
      absl::StrAppend(&script, " \\\n          '1:word:(", absl::StrJoin(words, " "), ")'");
    }
    absl::StrAppend(&script, " ;;\n");
  }
  absl::StrAppend(&script, R"(      esac ;;
  esac
}
# Autoloaded as a function, or sourced.
if [ "$funcstack[1]" = _attn ]; then _attn "$@"; else compdef _attn attn; fi
)");
  return script;
}

std::string FishCompletion(const CLI::App& app) {
  std::string script = "# fish completion for attn, as `attn completion fish` prints it.\ncomplete -c attn -f\n";
  for (const Flag& flag : FlagsOf(app)) absl::StrAppend(&script, FishLine("__fish_use_subcommand", flag));
  for (const CLI::App* command : CommandsOf(app)) {
    absl::StrAppend(&script, "complete -c attn -n __fish_use_subcommand -a ", command->get_name(), " -d ",
                    Quoted(command->get_description()), "\n");
    const std::string seen = Quoted(absl::StrCat("__fish_seen_subcommand_from ", command->get_name()));
    if (const std::vector<std::string> words = ArgumentsOf(*command); !words.empty()) {
      absl::StrAppend(&script, "complete -c attn -n ", seen, " -a ", Quoted(absl::StrJoin(words, " ")), "\n");
    }
    for (const Flag& flag : FlagsOf(*command)) absl::StrAppend(&script, FishLine(seen, flag));
  }
  return script;
}

}  // namespace attnd::client
