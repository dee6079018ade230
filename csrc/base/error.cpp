#include "base/error.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/redaction.h"
#include "base/utf8.h"

namespace tensorizer {

namespace {

bool is_inside_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

}  // namespace

std::string_view kind_name(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::NotFound:
      return "NotFound";
    case ErrorKind::NoSuchTensor:
      return "NoSuchTensor";
    case ErrorKind::PermissionDenied:
      return "PermissionDenied";
    case ErrorKind::Unavailable:
      return "Unavailable";
    case ErrorKind::TimedOut:
      return "TimedOut";
    case ErrorKind::InvalidFormat:
      return "InvalidFormat";
    case ErrorKind::InvalidArgument:
      return "InvalidArgument";
    case ErrorKind::OutOfSpace:
      return "OutOfSpace";
    case ErrorKind::OutOfMemory:
      return "OutOfMemory";
    case ErrorKind::SystemError:
      return "SystemError";
    case ErrorKind::HashMismatch:
      return "HashMismatch";
    case ErrorKind::Crypto:
      return "Crypto";
    case ErrorKind::Cancelled:
      return "Cancelled";
    case ErrorKind::Internal:
      return "Internal";
  }
  return "Internal";
}

Error::Error(ErrorKind kind, const std::string& message, int system_errno, std::string path)
    : std::runtime_error("tensorizer." + std::string(kind_name(kind)) + ": " + message),
      kind_(kind),
      system_errno_(system_errno),
      path_(std::move(path)) {}

std::string_view Error::message() const noexcept {
  // "tensorizer." + kind + ": "
  return std::string_view(what()).substr(11 + kind_name(kind_).size() + 2);
}

Error system_error(int system_errno, const std::string& doing, const std::string& path) {
  ErrorKind kind = ErrorKind::SystemError;
  switch (system_errno) {
    case ENOENT:
    case ENOTDIR:
      kind = ErrorKind::NotFound;
      break;
    case EACCES:
    case EPERM:
    case EROFS:
      kind = ErrorKind::PermissionDenied;
      break;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      kind = ErrorKind::OutOfSpace;
      break;
    default:
      break;
  }
  const char* const advice =
      system_errno == EISDIR ? ": name a file in it, such as model.tensors" : "";
  return Error(kind, doing + " " + quote(path, 4096) + ": " + std::strerror(system_errno) + advice,
               system_errno, path);
}

std::string quote(std::string_view given, std::size_t limit) {
  static constexpr char kHex[] = "0123456789abcdef";
  for (int i = 0; i < 3 && limit < given.size() && is_inside_character(given[limit]); ++i) ++limit;
  // A secret that begins in what is shown may be this long.
  Redaction redaction(given.substr(0, limit + (64 << 10)));
  if (const Redactor* const redactor = RedactedQuotes::redactor()) redactor->redact(redaction);
  const std::string shown = redaction.first(limit);
  const std::string_view text = shown;
  const bool has_apostrophe = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char mark = has_apostrophe ? '"' : '\'';
  std::string out(1, mark);
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t length = utf8_sequence(text.substr(at));
    const auto first = static_cast<unsigned char>(text[at]);
    // U+0080 to U+009F are control characters.
    const bool control =
        first == 0xc2 && length == 2 && static_cast<unsigned char>(text[at + 1]) < 0xa0;
    if ((length > 1 && !control) || (length == 1 && first >= 0x20 && first != 0x7f &&
                                     first != static_cast<unsigned char>(mark) && first != '\\')) {
      out += text.substr(at, length);
      at += length;
      continue;
    }
    if (text[at] == mark || first == '\\') {
      out += '\\';
      out += text[at];
    } else {
      out += "\\x";
      out += kHex[first >> 4];
      out += kHex[first & 15];
    }
    ++at;
  }
  if (given.size() > limit && !redaction.covers(limit)) out += "...";
  return out + mark;
}

}  // namespace tensorizer
