#include "transfer/options.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <limits>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/number.h"
#include "engine/cpus.h"
#include "io/secret.h"

namespace tensorizer {

namespace {

constexpr std::uint64_t kSmallestCeiling = 1 << 20;
constexpr std::int64_t kMostThreads = 1024;
constexpr std::string_view kHeader = "header.";

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::InvalidArgument, what); }

struct Option {
  std::string name;   // one that ends with a dot is followed by a name of the caller's choice
  const char* value;  // what a value looks like, for messages
  std::function<bool(const std::string&)> set;
  bool secret = false;
};

bool is_named(const Option& option, const std::string& name) {
  return option.name.ends_with('.') ? name.starts_with(option.name) : name == option.name;
}

void apply_options(const OptionList& given, std::span<const Option> known) {
  for (const auto& [name, value] : given) {
    const Option* match = nullptr;
    std::string names;
    for (const Option& option : known) {
      if (is_named(option, name)) match = &option;
      names += (names.empty() ? "" : ", ") + option.name + (option.name.ends_with('.') ? "*" : "");
    }
    if (!match) refuse("unknown option " + quote(name) + "; the options here are " + names);
    if (!match->set(value)) {
      const std::string is = match->secret ? "" : " is " + quote(value) + ", and";
      refuse("option " + quote(name) + is + " must be " + match->value);
    }
  }
}

// Leaves `number` as it is where the text is none from `least` to `most`.
template <typename Number>
bool take_number(const std::string& text, Number& number, std::uint64_t least,
                 std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) {
  const std::optional<std::uint64_t> given = parse_number(text);
  if (!given || *given < least || *given > most) return false;
  number = static_cast<Number>(*given);
  return true;
}

Option memory_option(const char* name, std::uint64_t& ceiling) {
  return {name, "a number of bytes, 1048576 or more", [&ceiling](const std::string& text) {
            return take_number(text, ceiling, kSmallestCeiling);
          }};
}

Option bool_option(const char* name, bool& is) {
  return {name, "'true' or 'false'", [&is](const std::string& text) {
            is = text == "true";
            return is || text == "false";
          }};
}

// Of more than `least`.
Option seconds_option(const char* name, double& seconds, double least) {
  return {name, "a number of seconds", [&seconds, least](const std::string& text) {
            const char* end = text.data() + text.size();
            const auto [stopped, error] = std::from_chars(text.data(), end, seconds);
            return error == std::errc() && stopped == end && seconds >= least && seconds <= 1e6;
          }};
}

Option text_option(const char* name, std::string& text) {
  return {name, "a path", [&text](const std::string& given) {
            text = given;
            return !given.empty() && given.find('\0') == std::string::npos;
          }};
}

Option number_option(const char* name, const char* value, int& number, std::uint64_t least,
                     std::uint64_t most) {
  return {name, value, [&number, least, most](const std::string& text) {
            return take_number(text, number, least, most);
          }};
}

// What a header may be made of, so that it ends where it should.
bool is_header_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return c > 0x20 && c < 0x7F && c != ':' && c != ';';
  });
}
bool is_header_value(const std::string& value) {
  return std::none_of(value.begin(), value.end(),
                      [](unsigned char c) { return (c < 0x20 && c != '\t') || c == 0x7F; });
}

// Names are not known beforehand, so what the option is called is looked at here.
void take_headers(const OptionList& given, HttpOptions& http) {
  for (const auto& [option, value] : given) {
    if (!option.starts_with(kHeader)) continue;
    std::string name = option.substr(kHeader.size());
    if (!is_header_name(name)) refuse("option " + quote(option) + " does not name a header");
    http.headers.emplace_back(std::move(name), value);
  }
}

std::vector<Option> http_options(HttpOptions& http) {
  return {
      {std::string(kHeader), "printable, in one line", is_header_value, true},
      text_option("ca_file", http.ca_file),
      text_option("client_cert", http.client_cert),
      text_option("client_key", http.client_key),
      bool_option("insecure", http.insecure),
      seconds_option("connect_timeout", http.connect_timeout, 0.001),
      seconds_option("stall_timeout", http.stall_timeout, 0.001),
      seconds_option("timeout", http.timeout, 0),
      number_option("connections", "a number from 1 to 256", http.connections, 1, 256),
      {"chunk_size", "a number of bytes, 65536 or more",
       [&http](const std::string& text) {
         return take_number(text, http.chunk_size, 64 << 10, std::uint64_t{1} << 40);
       }},
      number_option("retries", "a number from 0 to 1000", http.retries, 0, 1000),
      {"max_bandwidth", "a number of bytes per second, or 0 for no limit",
       [&http](const std::string& text) { return take_number(text, http.max_bandwidth, 0); }},
  };
}

Option fsync_option(SinkOptions& sink) { return bool_option("fsync", sink.fsync); }

}  // namespace

LoadOptions parse_load_options(const OptionList& options) {
  LoadOptions parsed;
  std::vector<Option> known = http_options(parsed.source.http);
  known.push_back(memory_option("memory_ceiling", parsed.memory_ceiling));
  known.push_back(memory_option("staging", parsed.staging));
  apply_options(options, known);
  take_headers(options, parsed.source.http);
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
       [&](const std::string& text) { return take_number(text, parsed.threads, 0, kMostThreads); }},
      {"expected_tensors", "a number of tensors",
       [&](const std::string& text) {
         return take_number(text, parsed.expected_tensors, 0, std::uint64_t{1} << 32);
       }},
  };
  apply_options(options, known);
  return parsed;
}

void refuse_secrets(const std::string& uri, const OptionList& options, const std::string& keeper) {
  std::string what = holds_secret(uri) ? "the URI " + quote(without_secrets(uri)) : "";
  for (const auto& [name, value] : options) {
    if (name.starts_with(kHeader) && !names_secret(value)) what = "option " + quote(name);
  }
  if (what.empty()) return;
  refuse(what + " may hold a secret, which " + keeper +
         " would keep: name it instead, as header.NAME with the value env:NAME or file:PATH");
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
