// What a URI names.
//
// Only a leading "scheme://" and "fd:" make a URI; anything else is a plain path, whatever colons
// and slashes stand further on in it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tensorizer {

struct Uri {
  std::string scheme;  // lower-case; empty for a plain path
  std::string rest;    // what follows "scheme://" or "fd:", or the path
};

// Throws InvalidArgument for an empty URI and for one that holds a NUL.
Uri split_uri(std::string_view uri);

// `text` with every percent-escape replaced by the byte that it stands for; nothing where two
// hexadecimal digits do not follow a '%'.
std::optional<std::string> percent_decoded(std::string_view text);

// The path that "file://" + `rest` names: a percent-escape stands for a byte, every other byte for
// itself, and the host is empty or "localhost".
std::string decode_file_uri(std::string_view rest);

// Replaces a leading "~" or "~user" by that home directory; a path whose user is unknown is left as
// it is.
std::string expand_home(const std::string& path);

// The number of "fd:" + `rest`.
int parse_descriptor(std::string_view rest);

// The number of the descriptor that /dev/stdin, /dev/stdout, /dev/stderr, /dev/fd/N and
// /proc/self/fd/N are other names of; -1 for any other path.
int descriptor_alias(std::string_view path);

}  // namespace tensorizer
