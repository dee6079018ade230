// Other programs, run for what they print.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"

namespace tensorizer {

// The words of a command line, split as a shell splits them: quotes and backslashes mean what they
// mean there, and nothing else means anything. Nothing where a quote has no end.
std::optional<std::vector<std::string>> split_words(std::string_view line);

struct CommandLimits {
  std::chrono::milliseconds time;
  std::size_t output;  // in bytes
};

// Runs the program that the first word names, found as a shell finds it, and returns what it
// printed. It gets an empty input, none of this process's descriptors, and a process group of its
// own, which is killed when a limit is reached or the cancel is requested. What it prints to its
// standard error goes nowhere. Throws Error, which calls the program `label` and holds neither its
// words nor its output: InvalidArgument where it cannot be run, PermissionDenied where it fails.
std::string run_command(const std::vector<std::string>& words, const std::string& label,
                        const CommandLimits& limits, Cancel& cancel);

}  // namespace tensorizer
