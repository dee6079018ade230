// Runs other programs for their output.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"

namespace tensorizer {

// Returns the words of a command line, split as a shell splits them. Only quotes and backslashes
// have a special meaning. Returns null if a quote is not closed, or if the line ends with a
// backslash.
std::optional<std::vector<std::string>> split_words(std::string_view line);

struct CommandLimits {
  std::chrono::milliseconds time;
  std::size_t output;  // in bytes
};

// Runs the program that the first word names, found as a shell finds it, and returns its standard
// output. The program gets an empty input, none of this process's descriptors, and a process group
// of its own, which is killed when a limit is reached or the cancel is requested. Its standard
// error is discarded. Throws Error, whose message calls the program `label` and shows neither its
// words nor its output: InvalidArgument if it cannot be run, PermissionDenied if it fails, TimedOut
// and InvalidFormat for the limits of time and output.
std::string run_command(const std::vector<std::string>& words, const std::string& label,
                        const CommandLimits& limits, Cancel& cancel);

}  // namespace tensorizer
