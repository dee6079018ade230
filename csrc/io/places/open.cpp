#include "io/places/open.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <span>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/suggest.h"
#include "base/text.h"
#include "io/azure/open.h"
#include "io/http/open.h"
#include "io/http/options.h"
#include "io/hub/open.h"
#include "io/local/open.h"
#include "io/node/open.h"
#include "io/place_kind.h"
#include "io/planted.h"
#include "io/redis/address.h"
#include "io/redis/open.h"
#include "io/s3/open.h"
#include "io/secret.h"
#include "io/signed/open.h"
#include "io/uri.h"
#include "io/url.h"

namespace tensorizer {

namespace {

// A new kind takes one entry.
constexpr const PlaceKind* kKinds[] = {&local_files, &local_descriptors, &web_servers, &s3_objects,
                                       &azure_blobs, &hub_files,         &redis_files};

// The bytes that a process asks for to learn the version of a file that it shares with others.
constexpr std::uint64_t kFirstOnNode = 4 << 10;
// After this time, the date of a file is in the past.
constexpr auto kUntilExact = std::chrono::milliseconds(1100);

// A scheme, and the kind of place that it is of.
struct Found {
  const UriScheme* scheme;  // null if it is unknown
  const PlaceKind* kind;
};

Found find_scheme(std::string_view name) {
  for (const PlaceKind* kind : kKinds) {
    for (const UriScheme& scheme : kind->schemes) {
      if (scheme.name == name) return {&scheme, kind};
    }
  }
  return {};
}

// Returns "a, b and c".
std::string listed(std::span<const UriScheme> schemes) {
  std::string list;
  for (std::size_t i = 0; i < schemes.size(); ++i) {
    if (i > 0) list += i + 1 == schemes.size() ? " and " : ", ";
    list += schemes[i].written;
  }
  return list;
}

// The message quotes only the scheme: the rest of the URI may hold a password.
[[noreturn]] void throw_unknown(const std::string& name) {
  std::vector<std::string_view> names;
  std::vector<UriScheme> known;
  for (const PlaceKind* kind : kKinds) {
    known.insert(known.end(), kind->schemes.begin(), kind->schemes.end());
  }
  for (const UriScheme& scheme : known) names.push_back(scheme.name);
  const std::string question = did_you_mean(name, names);
  throw Error(ErrorKind::InvalidArgument, "the scheme " + quote(name) + " is unknown" +
                                              (question.empty() ? "; known" : question + " Known") +
                                              " are " + listed(known));
}

// Throws for an exclusive option of another kind of place.
void check_exclusive(const PlaceKind& kind, const OptionList& given) {
  if (given.empty()) return;
  for (const PlaceKind* other : kKinds) {
    if (other == &kind || other->options == nullptr) continue;
    const std::vector<Option> options = other->options();
    for (const auto& [name, value] : given) {
      const Option* option = find_option(options, name);
      if (!option || !option->exclusive_unless || value == *option->exclusive_unless) continue;
      throw Error(ErrorKind::InvalidArgument,
                  "option '" + option->name + "' applies to " + listed(other->schemes) + " only");
    }
  }
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
  const UriScheme* scheme = find_scheme(name).scheme;
  const bool known = scheme && std::string_view(scheme->written).ends_with("://");
  return known || text.substr(colon).starts_with("://") ? name : std::string();
}

// Throws for a path that was meant as a URI: it may hold a password, which messages about a path
// would quote, and a save would make a folder "s3:".
void refuse_broken_uri(std::string_view text) {
  const std::string name = apparent_scheme(text);
  if (name.empty() || scheme_length(text) > 0) return;
  const UriScheme* scheme = find_scheme(name).scheme;
  if (!scheme) throw_unknown(name);
  const std::string written = scheme->written;
  if (written.ends_with("://") && lower_case(text).starts_with(name + ":/")) {
    const std::string meant = written + std::string(text.substr(name.size() + 2));
    throw Error(ErrorKind::InvalidArgument, "a URI has two slashes: did you mean " +
                                                quote(without_secrets(meant), 4096) +
                                                "? (pathlib.Path drops one)");
  }
  throw Error(ErrorKind::InvalidArgument,
              "a URI begins with " + written +
                  ", with nothing in front of it: write that, or the whole path of a file whose "
                  "name begins with \"" +
                  name + ":\"");
}

const PlaceKind& kind_of(const std::string& uri, const OptionList& given) {
  refuse_broken_uri(uri);
  const std::string name = split_uri(uri).scheme;
  const PlaceKind* kind = find_scheme(name).kind;
  if (!kind) throw_unknown(name);
  check_exclusive(*kind, given);
  return *kind;
}

// Throws for a file on a server whose name ends in a slash: other programs take it for a folder.
void refuse_trailing_slash(const PlaceKind& kind, const std::string& uri) {
  if (!kind.on_server || !uri.ends_with('/')) return;
  throw Error(ErrorKind::InvalidArgument,
              quote(without_secrets(uri), 4096) +
                  " ends in a slash, and names no file: add the name of the file");
}

// Returns what chooses the file that is opened: its place and the options of its kind of place.
std::string all_but_secrets(const std::string& uri, const PlaceKind& kind,
                            const OptionList& given) {
  std::string all = kind.identity == nullptr ? uri : kind.identity(uri);
  const std::vector<Option> options = kind.options();
  for (const auto& [name, value] : given) {
    const Option* const option = find_option(options, name);
    if (option && !option->secret) all += '\n' + name + '=' + value;
  }
  return all;
}

// Opens a file as it is there, whether anybody has signed it or not.
std::unique_ptr<Source> open_unsigned(const std::string& uri, const SourceOptions& options,
                                      Cancel& cancel) {
  const PlaceKind& kind = kind_of(uri, options.given);
  const std::string folder = options_from(options.given, &node_options).folder;
  if (folder.empty() || !kind.on_server) return kind.open_source(uri, options, cancel);
  SourceOptions first = options;
  first.end = std::min(options.end, options.begin + kFirstOnNode);
  std::shared_ptr<Source> file = kind.open_source(uri, first, cancel);
  if (file->version() && !file->is_exact_version()) {
    cancel.sleep(kUntilExact);
    file = kind.open_source(uri, first, cancel);
  }
  return node_source(std::move(file), folder, all_but_secrets(uri, kind, options.given), cancel);
}

// Returns the absolute path of a file, which can be written in several ways: "m", "./m". A ".."
// stays, because it may follow a symbolic link.
std::string absolute_path(const std::string& path) {
  std::error_code failure;
  const std::filesystem::path whole = std::filesystem::absolute(path, failure);
  if (failure) return path;
  std::filesystem::path plain;
  for (const std::filesystem::path& part : whole) {
    if (part != ".") plain /= part;
  }
  return plain.string();
}

}  // namespace

std::string signed_path(const std::string& uri) {
  const std::string_view folder = folder_of(uri);
  if (folder == local_files.folder) return absolute_path(expand_home(local_path(split_uri(uri))));
  if (folder == redis_files.folder) return redis_path(uri);
  // The others take names as they are.
  if (folder != web_servers.folder) return uri;
  const std::optional<UrlParts> parts = url_parts(uri);
  if (!parts) {
    throw Error(ErrorKind::InvalidArgument,
                quote(without_secrets(uri), 4096) + " is not a valid URL");
  }
  const std::string server = parts->scheme + "://" + parts->host + ":" + parts->port;
  return server + percent_decoded(parts->path).value_or(parts->path);
}

std::unique_ptr<Source> open_source(const std::string& uri, const SourceOptions& options,
                                    Cancel& cancel) {
  cancel.check();
  const SignedOptions trusted = signed_options_in(options.given);
  if (trusted.trust.empty()) return open_unsigned(uri, options, cancel);
  if (uri.starts_with("fd:")) {
    throw Error(ErrorKind::InvalidArgument,
                quote(uri) +
                    ": option 'trust' is for files with a signature, and an open file has no name "
                    "that could be signed: give its path or URI");
  }
  const Neighbours neighbours{
      [&](const std::string& bundle) { return open_bundle_file(bundle, uri, options, cancel); },
      [&](const std::string& name) { return sibling_uri(uri, name, options.given); }, &signed_path};
  return signed_source(open_unsigned(uri, options, cancel), uri, trusted, options.access,
                       neighbours, cancel);
}

std::unique_ptr<Source> open_bundle_file(const std::string& uri, const std::string& signed_uri,
                                         const SourceOptions& options, Cancel& cancel) {
  SourceOptions own = options;
  own.begin = 0;
  own.end = SourceOptions().end;
  const bool same =
      folder_of(uri) == folder_of(signed_uri) && origin_of(uri) == origin_of(signed_uri);
  if (!same && !is_local(signed_uri)) own.given = for_other_servers(options.given);
  std::unique_ptr<Source> file = open_unsigned(uri, own, cancel);
  // Files of the kernel have no size, and some of these are read like pipes.
  if (is_local(uri) && (file->sequential() || file->size() == 0)) {
    throw Error(ErrorKind::Crypto, file->label() +
                                       ": a bundle is a file, and this is empty, or is a pipe, "
                                       "which may never end");
  }
  return file;
}

std::optional<std::string> sibling_uri(const std::string& uri, const std::string& name,
                                       const OptionList& given) {
  const auto sibling = kind_of(uri, given).sibling;
  if (sibling == nullptr) return std::nullopt;
  return sibling(uri, name, given);
}

std::optional<std::string> file_name_of(const std::string& uri) {
  const auto file_name = kind_of(uri, {}).file_name;
  return file_name == nullptr ? std::nullopt : file_name(uri);
}

bool is_uri(std::string_view text) {
  refuse_broken_uri(text);
  return text.starts_with("fd:") || scheme_length(text) > 0;
}

bool is_own_file(const std::string& uri, const Source& source) {
  const std::optional<FileIdentity> read = source.identity();
  if (!read || !is_local(uri)) return true;
  return own_file_at(expand_home(local_path(split_uri(uri)))) == read;
}

bool is_local(const std::string& uri) { return !kind_of(uri, {}).on_server; }

bool has_siblings(const std::string& uri) { return kind_of(uri, {}).sibling != nullptr; }

std::optional<std::vector<std::string>> files_in(const std::string& uri, std::string_view suffix,
                                                 Cancel& cancel) {
  const auto files_in = kind_of(uri, {}).files_in;
  return files_in == nullptr ? std::nullopt : files_in(uri, suffix, cancel);
}

void remove_file(const std::string& uri, const SinkOptions& options, Cancel& cancel) {
  cancel.check();
  const PlaceKind& kind = kind_of(uri, options.given);
  if (kind.remove == nullptr) {
    throw Error(ErrorKind::InvalidArgument,
                quote(without_secrets(uri), 4096) +
                    " cannot be removed: only files of this machine, on web servers, in S3, Azure "
                    "and Redis can");
  }
  refuse_trailing_slash(kind, uri);
  kind.remove(uri, options, cancel);
}

bool swap_file(const std::string& uri, std::optional<ConstBytes> known, ConstBytes next,
               const SinkOptions& options, Cancel& cancel) {
  cancel.check();
  const PlaceKind& kind = kind_of(uri, options.given);
  if (kind.swap == nullptr || next.size() > kMostSwapped) {
    throw Error(ErrorKind::InvalidArgument,
                quote(without_secrets(uri), 4096) +
                    " cannot be replaced on a condition: only files of up to " +
                    std::to_string(kMostSwapped) +
                    " bytes on this machine, on web servers, in S3, Azure and Redis can");
  }
  refuse_trailing_slash(kind, uri);
  return kind.swap(uri, known, next, options, cancel);
}

std::unique_ptr<Sink> open_sink(const std::string& uri, const SinkOptions& options,
                                Cancel& cancel) {
  cancel.check();
  const PlaceKind& kind = kind_of(uri, options.given);
  std::unique_ptr<Sink> sink = kind.open_sink(uri, options, cancel);
  refuse_trailing_slash(kind, uri);  // after what else is wrong with a URI
  return sink;
}

std::unique_ptr<SharedSink> open_shared_sink(const std::string& uri,
                                             const std::optional<std::string>& joined,
                                             const SinkOptions& options, Cancel& cancel) {
  cancel.check();
  const PlaceKind& kind = kind_of(uri, options.given);
  refuse_trailing_slash(kind, uri);
  if (kind.open_shared_sink == nullptr) {
    throw Error(ErrorKind::InvalidArgument,
                quote(without_secrets(uri), 4096) +
                    " cannot be written by several processes: save to a path that all of them "
                    "share, to S3 or to Azure");
  }
  return kind.open_shared_sink(uri, joined, options, cancel);
}

std::vector<Option> place_options(OptionList& given) {
  std::vector<Option> all = checks<&node_options>();
  std::ranges::move(checks<&signed_options>(), std::back_inserter(all));
  for (const PlaceKind* kind : kKinds) {
    if (kind->options == nullptr) continue;
    for (Option& option : kind->options()) {
      const auto same = std::find_if(
          all.begin(), all.end(), [&](const Option& other) { return other.name == option.name; });
      if (same == all.end()) {
        all.push_back(std::move(option));
      } else {  // another kind has an option of this name
        same->set = [first = std::move(same->set), second = std::move(option.set)](
                        const std::string& name, const std::string& value) {
          return first(name, value) && second(name, value);
        };
      }
    }
  }
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
  for (const PlaceKind* kind : kKinds) {
    for (const UriScheme& scheme : kind->schemes) folders.emplace_back(scheme.name, kind->folder);
  }
  return folders;
}

std::string_view folder_of(std::string_view uri) {
  const PlaceKind* kind = find_scheme(split_uri(uri).scheme).kind;
  return kind ? kind->folder : std::string_view();
}

}  // namespace tensorizer
