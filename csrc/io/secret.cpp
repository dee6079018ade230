#include "io/secret.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/environment.h"
#include "base/error.h"
#include "base/text.h"
#include "codec/hmac.h"
#include "io/named_secret.h"
#include "io/uri.h"

namespace tensorizer {

namespace {

constexpr std::size_t kLongestSecret = 64 << 10;

// Never destroyed: a load may still run when the process ends.
NameTable<std::string>& named_secrets() {
  static auto* const named = new NameTable<std::string>;
  return *named;
}

std::string from_file(const std::string& path) {
  const SecretBytes content = read_secret_file(path, kLongestSecret, "a secret");
  std::string_view line = as_text(content.bytes());
  const std::size_t end = line.find('\n');
  if (line.empty() || (end == line.npos && line.size() > kLongestSecret)) {
    throw Error(ErrorKind::InvalidArgument,
                "cannot read a secret from the first line of " + quote(path, 4096) + ": it " +
                    (line.empty() ? "is empty" : "has more than 65536 bytes"));
  }
  line = line.substr(0, end);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return std::string(line);
}

std::string from_names(const std::string& name) {
  if (const std::optional<std::string> found = named_secrets().find(name)) return *found;
  throw Error(ErrorKind::InvalidArgument,
              "there is no secret named " + quote(name) + ": set it with set_secret()");
}

// The offsets of the parts of a URI that may be secret: from `begin` to `host`, between scheme and
// host, and from `end` on, behind the path.
//
// Parsed by hand and not by libcurl: a secret must not show in a URI that libcurl rejects either,
// nor in one that it parses differently from what the caller meant.
struct Parts {
  std::size_t begin = 0;
  std::size_t host = 0;
  std::size_t end = 0;  // before `host` if the host itself may be secret
  // "http://a:1/b@c" may be the path "/b@c" at port 1 of host "a", or user "a" with an unescaped
  // password.
  bool is_ambiguous = false;
};

bool is_port(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_digit);
}

// Returns true for a text that is a host and not the name of a user: "localhost", or an address.
bool is_machine(std::string_view text) {
  return text == "localhost" || text.starts_with('[') ||
         (!text.empty() &&
          std::all_of(text.begin(), text.end(), [](char c) { return is_digit(c) || c == '.'; }));
}

// Returns true if the text may begin with "user:password".
bool may_be_login(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == text.npos || text.ends_with(']')) return false;
  return !is_machine(text.substr(0, colon)) || !is_port(text.substr(colon + 1));
}

bool is_unix(std::string_view uri) { return lower_case(uri.substr(0, 7)) == "unix://"; }

// Returns where the colon of the scheme is. "s3:/x" is probably a URI that lacks a slash.
std::size_t scheme_of(std::string_view uri) {
  const std::size_t end = uri.find("://");
  if (end != uri.npos) return end;
  const std::size_t colon = uri.find(':');
  return std::ranges::all_of(uri.substr(0, colon), is_in_word) ? colon : uri.npos;
}

// Returns the offset of what may be secret in the key of an object: somebody may have copied the
// parameters of a signed URL with it.
std::size_t end_of_key(std::string_view key) {
  const std::size_t question = std::min(key.find('?'), key.size());
  const std::string parameters = lower_case(key.substr(question));
  for (const char* name : {"signature=", "sig=", "token=", "key=", "secret=", "password="}) {
    if (parameters.find(name) != parameters.npos) return question;
  }
  return key.size();
}

// Returns the offset of what may be secret behind the host of a URI, whose path begins at `path`.
std::size_t end_of_path(std::string_view uri, std::size_t path) {
  const std::size_t end = std::min(uri.find_first_of("?#", path), uri.size());
  const bool is_key =
      uri.substr(path).starts_with('/') && has_literal_names(uri.substr(0, scheme_length(uri)));
  if (!is_key) return end;
  return path + end_of_key(uri.substr(path));
}

Parts split(std::string_view uri) {
  const std::size_t scheme = scheme_of(uri);
  // In the path of a file these characters have no meaning.
  if (scheme == std::string_view::npos || lower_case(uri.substr(0, 7)) == "file://") {
    return {0, 0, uri.size()};
  }
  // libcurl reads "http:///host" as "http://host"; a Unix domain socket has no host.
  const std::size_t begin =
      is_unix(uri) ? scheme + 3 : std::min(uri.find_first_not_of('/', scheme + 1), uri.size());
  std::size_t path = std::min(uri.find_first_of("/?#", begin), uri.size());
  std::size_t at = uri.substr(0, path).rfind('@');
  bool is_ambiguous = false;
  const std::string_view authority = uri.substr(begin, path - begin);
  if ((at == uri.npos || at < begin) && may_be_login(authority)) {
    // The password may hold one of those three characters unescaped.
    at = uri.rfind('@');
    if (at != uri.npos && at > path) {
      const std::size_t colon = authority.rfind(':');
      is_ambiguous = colon > 0 && is_port(authority.substr(colon + 1));
      // Both sides of this mark may be secret: a password ends, or parameters begin there.
      const std::size_t mark = uri.find_first_of("?#", path);
      if (mark < at) return {begin, at + 1, mark, is_ambiguous};
      path = std::min(uri.find_first_of("/?#", at), uri.size());
    }
  }
  const std::size_t host = at == uri.npos || at < begin ? begin : at + 1;
  return {begin, host, end_of_path(uri, path), is_ambiguous};
}

// Returns true if the text behind the path may hold a secret. The prefix and the number of a Redis
// database are not secret.
bool hides_parameters(std::string_view uri, std::string_view parameters) {
  if (!parameters.starts_with('?')) return false;
  if (!is_unix(uri)) return true;
  do {
    parameters.remove_prefix(1);
    if (!parameters.starts_with("prefix=") && !parameters.starts_with("db=")) return true;
    parameters.remove_prefix(std::min(parameters.find('&'), parameters.size()));
  } while (!parameters.empty());
  return false;
}

// Adds a part of a URL as it is written there, escaped, and decoded; also as forms are, with "+"
// for a space.
void add_escaped(Secrets& secrets, std::string_view text) {
  secrets.emplace_back(text);
  std::string as_form(text);
  std::ranges::replace(as_form, '+', ' ');
  for (const auto& decoded : {percent_decoded(text), percent_decoded(as_form)}) {
    if (decoded && *decoded != secrets.back()) secrets.push_back(*decoded);
  }
}

// Calls `take` with a secret, and with its spellings in URLs.
template <typename Take>
void with_escaped(const std::string& secret, const Take& take) {
  take(secret);
  for (const bool is_in_path : {true, false}) take(escape_uri(secret, is_in_path));
}

}  // namespace

bool names_secret(std::string_view value) { return parse_secret_reference(value).has_value(); }

std::string resolve_secret(const std::string& value) {
  const std::optional<SecretReference> reference = parse_secret_reference(value);
  if (!reference) return value;
  const std::string name(reference->name);
  switch (reference->place) {
    case SecretPlace::Variable:
      return std::string(read_secret_variable(name, "a secret"));
    case SecretPlace::File:
      return from_file(name);
    case SecretPlace::Named:
      break;
  }
  return from_names(name);
}

void set_secret(const std::string& name, std::string secret) {
  if (secret.empty()) {
    named_secrets().forget(name);
  } else {
    named_secrets().set(name, std::move(secret));
  }
}

bool holds_secret(std::string_view uri) {
  const Parts parts = split(uri);
  return parts.host > parts.begin || hides_parameters(uri, uri.substr(parts.end));
}

std::string without_secrets(std::string_view uri) {
  const Parts parts = split(uri);
  std::string text(uri.substr(0, parts.begin));
  if (parts.end < parts.host) return text + "...";
  if (parts.is_ambiguous) text += "...@";
  text += uri.substr(parts.host, parts.end - parts.host);
  const std::string_view parameters = uri.substr(parts.end);
  if (hides_parameters(uri, parameters)) return text + "?...";
  return parameters.starts_with('?') ? text + std::string(parameters) : text;
}

std::string key_without_secrets(std::string_view key) {
  const std::size_t end = end_of_key(key);
  return end == key.size() ? std::string(key) : std::string(key.substr(0, end)) + "?...";
}

void add_header_secrets(Secrets& secrets, std::string_view line) {
  const std::size_t colon = std::min(line.find(':'), line.size() - 1);
  const std::string name = lower_case(line.substr(0, colon));
  std::string_view value = trimmed(line.substr(colon + 1));
  secrets.emplace_back(value);
  const std::size_t end = std::min(value.find(' '), value.size());
  const std::string_view behind = value.substr(end);
  if (lower_case(value.substr(0, end)) == "basic") {
    if (const auto login = from_base64(trimmed(behind))) {
      const std::string_view text = as_text(*login);
      const std::size_t colon = std::min(text.find(':'), text.size());
      secrets.emplace_back(text.substr(0, colon));
      secrets.emplace_back(text.substr(std::min(colon + 1, text.size())));
    }
  }
  // Messages need words like "Bearer".
  if (name.ends_with("authorization")) value = behind;
  const auto add = [&secrets](std::string_view part) {
    if (std::ranges::any_of(part, is_in_word)) secrets.emplace_back(part);
  };
  while (!value.empty()) {
    const std::size_t end = std::min(value.find_first_of(" ;,\"{}"), value.size());
    const std::string_view part = value.substr(0, end);
    add(part);
    if (const std::size_t at = part.find('='); at != part.npos) add(part.substr(at + 1));
    if (const std::size_t at = part.find(':'); at != part.npos) {
      add(part.substr(0, at));
      add(part.substr(at + 1));
    }
    value.remove_prefix(std::min(end + 1, value.size()));
  }
}

void add_url_secrets(Secrets& secrets, std::string_view url) {
  const Parts parts = split(url);
  if (parts.host > parts.begin) {
    const std::string_view login = url.substr(parts.begin, parts.host - 1 - parts.begin);
    const std::size_t colon = std::min(login.find(':'), login.size());
    // In an ambiguous URL the "user" may be the host, which messages need.
    if (!parts.is_ambiguous) add_escaped(secrets, login.substr(0, colon));
    add_escaped(secrets, login.substr(std::min(colon + 1, login.size())));
    secrets.push_back(to_base64(as_bytes(percent_decoded(login).value_or(std::string(login)))));
  }
  std::string_view query = url.substr(parts.end);
  query = query.substr(0, query.find('#'));
  if (!query.starts_with('?')) return;
  query.remove_prefix(1);
  secrets.emplace_back(query);
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string_view parameter = query.substr(0, end);
    const std::size_t equals = parameter.find('=');
    add_escaped(secrets, equals == parameter.npos ? parameter : parameter.substr(equals + 1));
    query.remove_prefix(std::min(end + 1, query.size()));
  }
}

void add_proxy_secrets(Secrets& secrets) {
  for (const char* const name :
       {"http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}) {
    const std::string proxy = environment(name);
    if (proxy.empty()) continue;
    add_url_secrets(secrets, proxy.find("://") == proxy.npos ? "http://" + proxy : proxy);
  }
}

void redact_everywhere(std::span<const std::string> secrets, SecretKind kind) {
  for (const std::string& secret : secrets) {
    if (!redact_everywhere(secret, kind)) continue;
    with_escaped(secret, [&](const std::string& each) { redact_everywhere(each, kind); });
  }
}

void redact(Redaction& text, std::span<const std::string> secrets) {
  for (const std::string& secret : secrets) {
    with_escaped(secret, [&](const std::string& each) { text.add(each); });
  }
}

std::string redacted(std::string_view text, std::span<const std::string> secrets) {
  Redaction redaction(text);
  redact(redaction, secrets);
  return redaction.text();
}

}  // namespace tensorizer
