#include "io/open.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/suggest.h"
#include "base/text.h"
#include "io/http/open.h"
#include "io/local/open.h"
#include "io/redis/open.h"
#include "io/redis/options.h"
#include "io/s3/open.h"
#include "io/uri.h"

namespace tensorizer {

namespace {

// Returns the options of `declare`, which set a struct that they own.
template <typename Options>
std::vector<Option> over_own(std::vector<Option> (*declare)(Options&)) {
  const auto values = std::make_shared<Options>();
  std::vector<Option> options = declare(*values);
  for (Option& option : options) {
    option.set = [values, set = std::move(option.set)](const std::string& name,
                                                       const std::string& value) {
      return set(name, value);
    };
  }
  return options;
}

template <auto declare>
std::vector<Option> checks() {
  return over_own(declare);
}

// A scheme of URIs. A new one takes one line in the table below.
struct Scheme {
  std::string_view name;
  const char* written;  // for messages
  std::string_view folder;
  std::vector<Option> (*options)();  // or null
  std::unique_ptr<Source> (*open_source)(const std::string& uri, const SourceOptions& options,
                                         Cancel& cancel);
  std::unique_ptr<Sink> (*open_sink)(const std::string& uri, const SinkOptions& options,
                                     Cancel& cancel);
  // Opens a sink that several processes write; or null.
  std::unique_ptr<SharedSink> (*open_shared_sink)(const std::string& uri,
                                                  const std::optional<std::string>& joined,
                                                  const SinkOptions& options, Cancel& cancel);
  // Returns the URI of a file beside another one (sibling_uri()); or null.
  std::string (*sibling)(const std::string& uri, const std::string& name, const OptionList& given);
  // Returns the name of a file that can be saved with others beside it (file_name_of()); or null.
  std::optional<std::string> (*file_name)(const std::string& uri);
  // Removes such a file (remove_file()); or null.
  void (*remove)(const std::string& uri, const SinkOptions& options, Cancel& cancel);
};

constexpr Scheme kSchemes[] = {
    {"", "a plain path", "local", nullptr, &open_local_source, &open_local_sink,
     &open_shared_local_sink, &local_sibling, &local_file_name, &remove_local_file},
    {"file", "file://", "local", nullptr, &open_local_source, &open_local_sink,
     &open_shared_local_sink, &local_sibling, &local_file_name, &remove_local_file},
    {"fd", "fd:N", "local", nullptr, &open_local_source, &open_local_sink, &open_shared_local_sink,
     nullptr, nullptr, nullptr},
    {"http", "http://", "http", &checks<&http_options>, &open_http_source, &open_http_sink, nullptr,
     &http_sibling, nullptr, nullptr},
    {"https", "https://", "http", &checks<&http_options>, &open_http_source, &open_http_sink,
     nullptr, &http_sibling, nullptr, nullptr},
    {"s3", "s3://", "s3", &checks<&s3_options>, &open_s3_source, &open_s3_sink,
     &open_shared_s3_sink, &s3_sibling, &s3_file_name, &remove_s3_object},
    {"gs", "gs://", "s3", &checks<&s3_options>, &open_s3_source, &open_s3_sink,
     &open_shared_s3_sink, &s3_sibling, &s3_file_name, &remove_s3_object},
    {"redis", "redis://", "redis", &checks<&redis_options>, &open_redis_source, &open_redis_sink,
     nullptr, nullptr, nullptr, nullptr},
    {"rediss", "rediss://", "redis", &checks<&redis_options>, &open_redis_source, &open_redis_sink,
     nullptr, nullptr, nullptr, nullptr},
    {"unix", "unix://", "redis", &checks<&redis_options>, &open_redis_source, &open_redis_sink,
     nullptr, nullptr, nullptr, nullptr},
};

const Scheme* find_scheme(std::string_view name) {
  const Scheme* found = std::find_if(std::begin(kSchemes), std::end(kSchemes),
                                     [&](const Scheme& scheme) { return scheme.name == name; });
  return found == std::end(kSchemes) ? nullptr : found;
}

// Returns "a, b and c".
std::string listed(std::span<const std::string_view> texts) {
  std::string list;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) list += i + 1 == texts.size() ? " and " : ", ";
    list += texts[i];
  }
  return list;
}

// The message quotes only the scheme: the rest of the URI may hold a password.
[[noreturn]] void throw_unknown(const std::string& name) {
  std::vector<std::string_view> names;
  std::vector<std::string_view> known;
  for (const Scheme& scheme : kSchemes) {
    names.push_back(scheme.name);
    known.push_back(scheme.written);
  }
  const std::string question = did_you_mean(name, names);
  throw Error(ErrorKind::InvalidArgument, "the scheme " + quote(name) + " is unknown" +
                                              (question.empty() ? "; known" : question + " Known") +
                                              " are " + listed(known));
}

// Calls `visit` once for each folder that has options, with the first of its schemes.
template <typename Visit>
void for_each_folder(Visit visit) {
  const Scheme* last = nullptr;
  for (const Scheme& scheme : kSchemes) {
    if (!scheme.options || (last && last->folder == scheme.folder)) continue;
    visit(scheme);
    last = &scheme;
  }
}

// Returns how the URIs of a scheme's folder are written: "redis:// and unix://".
std::string written_of(const Scheme& scheme) {
  std::vector<std::string_view> written;
  for (const Scheme& other : kSchemes) {
    if (other.folder == scheme.folder) written.push_back(other.written);
  }
  return listed(written);
}

// Throws for an exclusive option of another folder.
void check_exclusive(const Scheme& scheme, const OptionList& given) {
  if (given.empty()) return;
  for_each_folder([&](const Scheme& other) {
    if (other.folder == scheme.folder) return;
    const std::vector<Option> options = other.options();
    for (const auto& [name, value] : given) {
      const Option* option = find_option(options, name);
      if (!option || !option->exclusive_unless || value == *option->exclusive_unless) continue;
      throw Error(ErrorKind::InvalidArgument,
                  "option '" + option->name + "' applies to " + written_of(other) + " only");
    }
  });
}

// Returns the scheme of a text that begins as a URI: as one should, without its slashes, or with
// spaces, quotes and bytes that are not ASCII in front of the colon. Empty for a path.
std::string apparent_scheme(std::string_view text) {
  const std::size_t colon = text.find_first_of(":/");
  if (colon == text.npos || text[colon] == '/') return {};
  std::string name;
  for (const char c : text.substr(0, colon)) {
    if (c > ' ' && c < '\x7f' && std::string_view("\"'`<([").find(c) == std::string_view::npos) {
      name += c;
    }
  }
  name = lower_case(name);
  const Scheme* scheme = find_scheme(name);
  const bool known = scheme && std::string_view(scheme->written).ends_with("://");
  return known || text.substr(colon).starts_with("://") ? name : std::string();
}

// Throws for a path that was meant as a URI: it may hold a password, which messages about a path
// would quote, and a save would make a folder "s3:".
void refuse_broken_uri(std::string_view text) {
  const std::string name = apparent_scheme(text);
  if (name.empty() || scheme_length(text) > 0) return;
  const Scheme* scheme = find_scheme(name);
  if (!scheme) throw_unknown(name);
  throw Error(ErrorKind::InvalidArgument,
              "a URI begins with " + std::string(scheme->written) +
                  ", with nothing in front of it, and is no pathlib.Path: write that, or the "
                  "whole path of a file whose name begins with \"" +
                  name + ":\"");
}

const Scheme& scheme_for(const std::string& uri, const OptionList& given) {
  refuse_broken_uri(uri);
  const std::string name = split_uri(uri).scheme;
  const Scheme* scheme = find_scheme(name);
  if (!scheme) throw_unknown(name);
  check_exclusive(*scheme, given);
  return *scheme;
}

// Throws for a file on a server whose name ends in a slash: other programs take it for a folder.
void refuse_trailing_slash(const Scheme& scheme, const std::string& uri) {
  if (scheme.folder == "local" || !uri.ends_with('/')) return;
  throw Error(ErrorKind::InvalidArgument,
              quote(without_secrets(uri), 4096) +
                  " ends in a slash, and names no file: add the name of the file");
}

}  // namespace

std::unique_ptr<Source> open_source(const std::string& uri, const SourceOptions& options,
                                    Cancel& cancel) {
  cancel.check();
  return scheme_for(uri, options.given).open_source(uri, options, cancel);
}

std::optional<std::string> sibling_uri(const std::string& uri, const std::string& name,
                                       const OptionList& given) {
  const auto sibling = scheme_for(uri, given).sibling;
  if (sibling == nullptr) return std::nullopt;
  return sibling(uri, name, given);
}

std::optional<std::string> file_name_of(const std::string& uri) {
  const auto file_name = scheme_for(uri, {}).file_name;
  return file_name == nullptr ? std::nullopt : file_name(uri);
}

bool is_uri(std::string_view text) {
  refuse_broken_uri(text);
  return text.starts_with("fd:") || scheme_length(text) > 0;
}

bool is_local(const std::string& uri) { return scheme_for(uri, {}).folder == "local"; }

bool has_siblings(const std::string& uri) { return scheme_for(uri, {}).sibling != nullptr; }

std::optional<std::vector<std::string>> files_in(const std::string& uri, std::string_view suffix,
                                                 Cancel& cancel) {
  if (!is_local(uri)) return std::nullopt;
  std::optional<std::vector<std::string>> names = list_folder(uri, suffix, cancel);
  if (!names) return std::nullopt;
  for (std::string& name : *names) name = local_sibling(uri + "/", name, {});
  return names;
}

void remove_file(const std::string& uri, const SinkOptions& options, Cancel& cancel) {
  scheme_for(uri, options.given).remove(uri, options, cancel);
}

std::unique_ptr<Sink> open_sink(const std::string& uri, const SinkOptions& options,
                                Cancel& cancel) {
  cancel.check();
  const Scheme& scheme = scheme_for(uri, options.given);
  std::unique_ptr<Sink> sink = scheme.open_sink(uri, options, cancel);
  refuse_trailing_slash(scheme, uri);  // after what else is wrong with a URI
  return sink;
}

std::unique_ptr<SharedSink> open_shared_sink(const std::string& uri,
                                             const std::optional<std::string>& joined,
                                             const SinkOptions& options, Cancel& cancel) {
  cancel.check();
  const Scheme& scheme = scheme_for(uri, options.given);
  refuse_trailing_slash(scheme, uri);
  if (scheme.open_shared_sink == nullptr) {
    throw Error(ErrorKind::InvalidArgument,
                quote(without_secrets(uri), 4096) +
                    " cannot be written by several processes: save to a path that all of them "
                    "share, or to S3");
  }
  return scheme.open_shared_sink(uri, joined, options, cancel);
}

std::vector<Option> place_options(OptionList& given) {
  std::vector<Option> all;
  for_each_folder([&](const Scheme& scheme) {
    std::vector<Option> options = scheme.options();
    for (Option& option : options) {
      const auto same = std::find_if(
          all.begin(), all.end(), [&](const Option& other) { return other.name == option.name; });
      if (same == all.end()) {
        all.push_back(std::move(option));
      } else {  // another folder has an option of this name
        same->set = [first = std::move(same->set), second = std::move(option.set)](
                        const std::string& name, const std::string& value) {
          return first(name, value) && second(name, value);
        };
      }
    }
  });
  for (Option& option : all) {
    option.set = [&given, check = std::move(option.set)](const std::string& name,
                                                         const std::string& value) {
      if (!check(name, value)) return false;
      given.emplace_back(name, value);
      return true;
    };
  }
  return all;
}

std::vector<std::pair<std::string_view, std::string_view>> scheme_folders() {
  std::vector<std::pair<std::string_view, std::string_view>> folders;
  for (const Scheme& scheme : kSchemes) folders.emplace_back(scheme.name, scheme.folder);
  return folders;
}

std::string_view folder_of(std::string_view uri) {
  const Scheme* scheme = find_scheme(split_uri(uri).scheme);
  return scheme ? scheme->folder : std::string_view();
}

}  // namespace tensorizer
