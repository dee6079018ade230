// Parses URIs and paths.
//
// Only a leading "scheme://" or "fd:" makes a URI. Anything else is a plain path, even if it has
// colons and slashes further on.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tensorizer {

struct Uri {
  std::string scheme;  // lower-case; empty for a plain path
  std::string rest;    // what follows "scheme://" or "fd:", or the path
};

// Returns the length of the scheme in a leading "scheme://", or 0.
std::size_t scheme_length(std::string_view uri);

// Returns whether the scheme, in any case, is one of files whose names are taken as they are, with
// "?" and "#". Every other may have parameters and a fragment behind the path.
bool has_literal_names(std::string_view scheme);

// Returns the offset at which the path or key in a path or URI ends: that of the parameters or the
// fragment, if there are any.
std::size_t path_end(std::string_view uri);

// Splits a URI. Throws InvalidArgument for an empty URI and for one that holds a NUL.
Uri split_uri(std::string_view uri);

// Returns `text` with every percent-escape decoded; null if a '%' is not followed by two
// hexadecimal digits.
std::optional<std::string> percent_decoded(std::string_view text);

// Returns `text` with every byte except letters, digits, "-._~" and, if asked for, slashes escaped
// as %XX.
std::string escape_uri(std::string_view text, bool keep_slashes);

// Names with values, such as the parameters of a URL.
using NamedTexts = std::vector<std::pair<std::string, std::string>>;

// Returns "a=b&c=d", escaped, and sorted as signatures need it.
std::string escape_query(const NamedTexts& query);

// Returns the URI of the object `name` beside the one that `uri` names, in a store whose keys are
// not escaped.
std::string key_beside(const std::string& uri, const std::string& name);
// Returns what follows the last slash of such a URI; null if that is nothing.
std::optional<std::string> last_of_key(const std::string& uri);

// Returns the path that "file://" + `rest` names, with percent-escapes decoded. Throws
// InvalidArgument for a host other than "localhost" or none, for a malformed escape, and for a NUL.
std::string decode_file_uri(std::string_view rest);

// Replaces a leading "~" or "~user" by that home directory. Returns the path unchanged if the user
// is unknown.
std::string expand_home(const std::string& path);

// Returns the path in a plain path or a file:// URI.
std::string local_path(const Uri& uri);

// Returns the number in "fd:" + `rest`. Throws InvalidArgument for anything but a number.
int parse_descriptor(std::string_view rest);

// Returns the number of the descriptor for which /dev/stdin, /dev/stdout, /dev/stderr, /dev/fd/N or
// /proc/self/fd/N is another name; -1 for any other path.
int descriptor_alias(std::string_view path);

}  // namespace tensorizer
