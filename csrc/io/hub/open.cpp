#include "io/hub/open.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "io/http/client.h"
#include "io/http/open.h"
#include "io/secret.h"
#include "io/uri.h"

namespace tensorizer {

namespace {

// Returns the part of `text` before the next slash, and removes it with the slash.
std::string take_segment(std::string& text) {
  const std::size_t end = std::min(text.find('/'), text.size());
  std::string segment = text.substr(0, end);
  text.erase(0, std::min(end + 1, text.size()));
  return segment;
}

// Returns the revision that `text` begins with, and removes it. Those of pull requests and
// conversions have slashes, which may be escaped.
std::string take_revision(std::string& text) {
  std::string revision = take_segment(text);
  if (revision == "refs") {
    for (int i = 0; i < 2; ++i) revision += "/" + take_segment(text);
  }
  return percent_decoded(revision).value_or(revision);
}

bool is_name(std::string_view text) {
  return !text.empty() && text != "." && text != ".." && std::ranges::all_of(text, [](char c) {
    return is_letter(c) || is_digit(c) || c == '-' || c == '_' || c == '.';
  });
}

HubName parsed(const std::string& uri) {
  const std::string label = quote(without_secrets(uri), 4096);
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::InvalidArgument,
                label + " " + why + ": write hf://ORG/MODEL/FILE or hf://ORG/MODEL@REVISION/FILE");
  };
  std::string rest = split_uri(uri).rest;
  HubName name;
  std::string owner = take_segment(rest);
  if (owner == "datasets" || owner == "spaces") {
    name.repository = owner + "/";
    owner = take_segment(rest);
  } else if (owner == "models") {
    owner = take_segment(rest);
  }
  const std::size_t at = std::min(rest.find('@'), rest.size());
  const bool has_revision = at < rest.find('/');
  std::string repository = has_revision && at < rest.size() ? rest.substr(0, at) : "";
  if (repository.empty()) {
    repository = take_segment(rest);
    name.revision = "main";
  } else {
    rest.erase(0, at + 1);
    name.revision = take_revision(rest);
  }
  if (!is_name(owner) || !is_name(repository)) refuse("names no repository");
  if (name.revision.empty()) refuse("has an empty revision");
  name.repository += owner + "/" + repository;
  name.file = rest;
  // URLs with such a segment mean another one.
  const std::string path = "/" + name.revision + "/" + name.file + "/";
  if (path.find("/../") != path.npos || path.find("/./") != path.npos) {
    refuse("has a segment '.' or '..'");
  }
  return name;
}

std::unique_ptr<Source> open_hub_source(const std::string& uri, const SourceOptions& options,
                                        Cancel& cancel) {
  const HubName name = parsed(uri);
  if (name.file.empty() || name.file.ends_with('/')) {
    throw Error(ErrorKind::NotFound, quote(uri, 4096) +
                                         " names no file, and none in it has the name of a model: "
                                         "write hf://ORG/MODEL/FILE");
  }
  const HttpOptions http = options_from(options.given, &http_options);
  const auto make = [] { return std::make_shared<HubCommits>(); };
  std::shared_ptr<HubCommits> commits =
      options.access ? options.access->get<HubCommits>(make) : make();
  return http_source(
      {hub_endpoint(name, options_from(options.given, &hub_options), http, std::move(commits)),
       http_pool(options.access.get(), http)},
      options, cancel);
}

std::unique_ptr<Sink> open_hub_sink(const std::string& uri, const SinkOptions&, Cancel&) {
  throw Error(ErrorKind::InvalidArgument,
              quote(without_secrets(uri), 4096) +
                  " cannot be saved to: save to a path of this machine, and upload the file with "
                  "huggingface_hub.upload_file()");
}

std::string hub_sibling(const std::string& uri, const std::string& name, const OptionList&) {
  return key_beside(uri, name);
}

constexpr UriScheme kSchemes[] = {{"hf", "hf://"}};

}  // namespace

const PlaceKind hub_files{
    .folder = "hub",
    .schemes = kSchemes,
    .options = &checks<&hub_options>,
    .open_source = &open_hub_source,
    .open_sink = &open_hub_sink,
    .sibling = &hub_sibling,
};

}  // namespace tensorizer
