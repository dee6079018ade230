// The one error that leaves the library.
//
// An Error is raised where the fault is found and translated once, at the border (ops/). Its text
// starts with its kind ("tensorizer.NotFound: ..."), which is a stable promise for the places where
// no type survives, and is always printable UTF-8: whatever comes from a file, a server or a caller
// goes through quote().
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
  SystemError,  // any other refusal of the operating system
  HashMismatch,
  Crypto,
  Cancelled,
  Internal,
};

std::string_view kind_name(ErrorKind kind) noexcept;

class __attribute__((visibility("default"))) Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, int system_errno = 0, std::string path = {});

  ErrorKind kind() const noexcept { return kind_; }
  // The text without its kind.
  std::string_view message() const noexcept;
  // The operating system's errno and the path that it was about; 0 and empty where there is none.
  int system_errno() const noexcept { return system_errno_; }
  const std::string& path() const noexcept { return path_; }

 private:
  ErrorKind kind_;
  int system_errno_;
  std::string path_;
};

// The Error for a failed system call: `doing` says what was tried ("cannot open").
Error system_error(int system_errno, const std::string& doing, const std::string& path);

// `text` in single quotes with everything escaped that is not printable UTF-8, cut after `limit`
// bytes, so that a hostile name cannot break or flood a message.
std::string quote(std::string_view text, std::size_t limit = 200);

}  // namespace tensorizer
