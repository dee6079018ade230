// The exception class of the library.
//
// Its text starts with its kind ("tensorizer.NotFound: ..."), which is stable, for callers that
// receive only the text. The text is always printable UTF-8 and holds no secret: what comes from a
// file, a server or a caller is quoted and escaped.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tensorizer {

enum class ErrorKind : std::uint8_t {
  NotFound,
  NoSuchTensor,
  PermissionDenied,
  Unavailable,
  TimedOut,
  InvalidFormat,
  InvalidArgument,
  OutOfSpace,
  OutOfMemory,
  SystemError,  // any other error of the operating system
  HashMismatch,
  Crypto,
  Cancelled,
  Internal,
};

// Returns the name of a kind: "NotFound". The text is static.
std::string_view kind_name(ErrorKind kind) noexcept;

class __attribute__((visibility("default"))) Error : public std::runtime_error {
 public:
  // Makes an error whose text is `kind`, then `message`.
  Error(ErrorKind kind, const std::string& message, int system_errno = 0, std::string path = {});

  ErrorKind kind() const noexcept { return kind_; }
  // Returns the text without its kind. Valid while this error lives.
  std::string_view message() const noexcept;
  // Returns the operating system's errno, or 0 if there is none.
  int system_errno() const noexcept { return system_errno_; }
  // Returns the path that the operating system refused, or an empty string if there is none.
  const std::string& path() const noexcept { return path_; }

 private:
  ErrorKind kind_;
  int system_errno_;
  std::string path_;
};

}  // namespace tensorizer
