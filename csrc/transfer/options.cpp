#include "transfer/options.h"

#include <charconv>
#include <functional>
#include <span>

#include "base/error.h"
#include "engine/cpus.h"

namespace tensorizer {

namespace {

constexpr std::uint64_t kSmallestCeiling = 1 << 20;
constexpr std::int64_t kMostThreads = 1024;

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::InvalidArgument, what); }

struct Option {
  const char* name;
  const char* value;  // what a value looks like, for messages
  std::function<bool(const std::string&)> set;
};

void apply_options(const OptionList& given, std::span<const Option> known) {
  for (const auto& [name, value] : given) {
    const Option* match = nullptr;
    std::string names;
    for (const Option& option : known) {
      if (name == option.name) match = &option;
      names += std::string(names.empty() ? "" : ", ") + option.name;
    }
    if (!match) refuse("unknown option " + quote(name) + "; the options here are " + names);
    if (!match->set(value)) {
      refuse("option " + quote(name) + " is " + quote(value) + ", and must be " + match->value);
    }
  }
}

bool parse_number(const std::string& text, std::uint64_t& number) {
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stopped == end && !text.empty();
}

Option memory_option(const char* name, std::uint64_t& ceiling) {
  return {name, "a number of bytes, 1048576 or more", [&ceiling](const std::string& text) {
            return parse_number(text, ceiling) && ceiling >= kSmallestCeiling;
          }};
}

Option fsync_option(SinkOptions& sink) {
  return {"fsync", "'true' or 'false'", [&sink](const std::string& text) {
            sink.fsync = text == "true";
            return sink.fsync || text == "false";
          }};
}

}  // namespace

LoadOptions parse_load_options(const OptionList& options) {
  LoadOptions parsed;
  const Option known[] = {memory_option("memory_ceiling", parsed.memory_ceiling),
                          memory_option("staging", parsed.staging)};
  apply_options(options, known);
  return parsed;
}

SaveOptions parse_save_options(const OptionList& options) {
  SaveOptions parsed;
  const Option known[] = {fsync_option(parsed.sink),
                          memory_option("memory_ceiling", parsed.memory_ceiling),
                          memory_option("staging", parsed.staging)};
  apply_options(options, known);
  return parsed;
}

WriterOptions parse_writer_options(const OptionList& options) {
  WriterOptions parsed;
  const Option known[] = {
      fsync_option(parsed.save.sink),
      memory_option("memory_ceiling", parsed.save.memory_ceiling),
      memory_option("staging", parsed.save.staging),
      {"hashes", "'all', 'crc32', 'sha256' or 'none'",
       [&](const std::string& text) {
         parsed.hashes = parse_hashes(text);
         return true;
       }},
      {"threads", "a number of threads, or 0 for every CPU",
       [&](const std::string& text) {
         std::uint64_t threads = 0;
         if (!parse_number(text, threads) || threads > kMostThreads) return false;
         parsed.threads = static_cast<int>(threads);
         return true;
       }},
      {"expected_tensors", "a number of tensors",
       [&](const std::string& text) {
         return parse_number(text, parsed.expected_tensors) &&
                parsed.expected_tensors <= (std::uint64_t{1} << 32);
       }},
  };
  apply_options(options, known);
  return parsed;
}

Verify parse_verify(const std::string& text) {
  if (text == "none") return Verify::None;
  if (text == "crc32") return Verify::Crc32;
  if (text == "all") return Verify::All;
  refuse("verify is " + quote(text) + ", and must be 'none', 'crc32' or 'all'");
}

HashKinds parse_hashes(const std::string& text) {
  if (text == "all") return {true, true};
  if (text == "crc32") return {true, false};
  if (text == "sha256") return {false, true};
  if (text == "none") return {false, false};
  refuse("hashes is " + quote(text) + ", and must be 'all', 'crc32', 'sha256' or 'none'");
}

int parse_threads(std::int64_t threads) {
  if (threads < 0 || threads > kMostThreads) {
    refuse("threads is " + std::to_string(threads) + ", and must be from 0 (every CPU) to 1024");
  }
  return threads == 0 ? usable_cpus() : static_cast<int>(threads);
}

}  // namespace tensorizer
