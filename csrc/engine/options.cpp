#include "engine/options.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/cpus.h"
#include "base/error.h"
#include "base/number.h"
#include "base/suggest.h"
#include "io/key.h"
#include "io/named_secret.h"
#include "io/places/open.h"
#include "io/secret.h"
#include "io/uri.h"

namespace tensorizer {

namespace {

constexpr std::uint64_t kSmallestCeiling = 1 << 20;
constexpr std::int64_t kMostThreads = 1024;

// What `verify` and `hashes` may be.
constexpr std::pair<std::string_view, Verify> kVerifyWords[] = {
    {"none", Verify::None}, {"crc32", Verify::Crc32}, {"all", Verify::All}};
constexpr std::pair<std::string_view, HashKinds> kHashesWords[] = {
    {"all", {true, true}},
    {"crc32", {true, false}},
    {"sha256", {false, true}},
    {"chunked", {true, false, true}},
    {"all+chunked", {true, true, true}},
    {"none", {false, false}}};

// The options that are paths of this machine, or URIs.
constexpr std::string_view kPaths[] = {"ca_file",    "ca_path",        "client_cert",
                                       "client_key", "s3_config_path", "node_folder",
                                       "signature",  "signed_folder"};

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::InvalidArgument, what); }

// Returns the value of the word that `argument` is.
template <typename Value, std::size_t kCount>
Value value_of(const std::string& argument, const std::string& given,
               const std::pair<std::string_view, Value> (&words)[kCount]) {
  std::string known;
  for (std::size_t i = 0; i < kCount; ++i) {
    if (words[i].first == given) return words[i].second;
    known += i == 0 ? "'" : i + 1 < kCount ? ", '" : " or '";
    known += std::string(words[i].first) + "'";
  }
  refuse(argument + " is " + quote(given) + ", and must be " + known + did_you_mean(given, known));
}

Option memory_option(const char* name, std::uint64_t& ceiling) {
  return bytes_option(name, "a number of bytes, 1048576 or more, such as 64MiB", ceiling,
                      kSmallestCeiling);
}

Option key_option(std::string& key) {
  Option option{"key", kKeyNames, [&key](const std::string&, const std::string& text) {
                  key = text;
                  return names_key(text);
                }};
  option.secret = true;
  option.names_secret = names_key;
  return option;
}

// Parses "PASSES,BYTES". Returns null if that is malformed or out of range.
std::optional<Argon2Cost> parse_cost(const std::string& text) {
  const std::size_t comma = text.find(',');
  const auto passes = parse_number(std::string_view(text).substr(0, comma));
  if (comma == std::string::npos || !passes) return std::nullopt;
  const auto memory = parse_bytes(std::string_view(text).substr(comma + 1));
  if (!memory) return std::nullopt;
  const Argon2Cost cost{*passes, *memory};
  return is_possible(cost) ? std::optional(cost) : std::nullopt;
}

// Returns an option whose text `parse` turns into its value, or into null if it must be another.
template <typename Value, typename Parse>
Option parsed_option(const char* name, const char* texts, Value& value, const Parse& parse) {
  return {name, texts, [&value, parse](const std::string&, const std::string& text) {
            const auto parsed = parse(text);
            if (parsed) value = *parsed;
            return parsed.has_value();
          }};
}

// Returns an option whose text is one of a few words.
template <typename Meaning, typename Value>
Option word_option(const char* name, const char* texts, Value& value,
                   const std::vector<std::pair<std::string_view, Meaning>>& words) {
  return parsed_option(name, texts, value, [words](std::string_view text) {
    std::optional<Meaning> found;
    for (const auto& [word, meaning] : words) {
      if (word == text) found = meaning;
    }
    return found;
  });
}

std::vector<Option> load_options(LoadOptions& load) {
  std::vector<Option> known = place_options(load.source.given);
  known.push_back(memory_option("memory_ceiling", load.memory_ceiling));
  known.push_back(memory_option("staging", load.staging));
  known.push_back(key_option(load.key));
  known.push_back(parsed_option("kdf_limit", "PASSES,BYTES, with 8192 bytes or more",
                                load.kdf_limit, parse_cost));
  known.push_back(bool_option("require_authenticated", load.require_authenticated));
  known.push_back(parsed_option(
      "digest", "64 hexadecimal digits, with 'v2:' before them or not, as digest() returns them",
      load.digest, parse_model_digest));
  known.push_back(word_option<FileAccess>("io", "'auto', 'buffered', 'direct' or 'mmap'",
                                          load.source.file_access,
                                          {{"auto", FileAccess::Auto},
                                           {"buffered", FileAccess::Buffered},
                                           {"direct", FileAccess::Direct},
                                           {"mmap", FileAccess::Mapped}}));
  return known;
}

std::vector<Option> save_options(SaveOptions& save) {
  std::vector<Option> known = place_options(save.sink.given);
  known.push_back(bool_option("fsync", save.sink.fsync));
  known.push_back(bool_option("replace_links", save.sink.replace_links));
  known.push_back(memory_option("memory_ceiling", save.memory_ceiling));
  known.push_back(memory_option("staging", save.staging));
  known.push_back(key_option(save.key));
  known.push_back(parsed_option("kdf",
                                "'min', 'interactive', 'moderate', 'sensitive', or PASSES,BYTES",
                                save.kdf, [](const std::string& text) {
                                  const std::optional<Argon2Cost> named = named_cost(text);
                                  return named ? named : parse_cost(text);
                                }));
  known.push_back(bool_option("digests", save.digests));
  known.push_back(parsed_option("digest_chunk",
                                "a power of two from 65536 to 16777216, such as 1MiB",
                                save.digest_chunk, [](const std::string& text) {
                                  const auto size = parse_bytes(text);
                                  return size && is_chunk_size(*size) ? size : std::nullopt;
                                }));
  known.push_back(bool_option("plain_digests", save.plain_digests));
  known.push_back(
      word_option<Format>("format", "'tensors' or 'safetensors'", save.format,
                          {{"tensors", Format::Tensors}, {"safetensors", Format::Safetensors}}));
  known.push_back(word_option<bool>("share", "'true' or 'false'", save.share,
                                    {{"true", true}, {"false", false}}));
  return known;
}

std::vector<Option> all_save_options(SaveOptions& save) {
  std::vector<Option> known = save_options(save);
  known.push_back(bytes_option("max_shard_size", "a number of bytes, 1 or more, such as 5GB",
                               save.max_shard_size, 1));
  return known;
}

// Adds the options of the other use, so that messages can say that they are.
std::vector<Option> with_those_of(std::vector<Option> known, OptionUse use,
                                  std::vector<Option> others) {
  for (Option& other : others) {
    if (find_option(known, other.name)) continue;
    other.use = use;
    known.push_back(std::move(other));
  }
  return known;
}

// Throws for an option that is an argument of the functions which take options.
void refuse_arguments(const OptionList& options,
                      std::initializer_list<std::string_view> arguments) {
  for (const auto& [name, value] : options) {
    if (std::find(arguments.begin(), arguments.end(), name) == arguments.end()) continue;
    refuse(quote(name) + " is an argument, and not among the options: give " + name + "=");
  }
}

}  // namespace

LoadOptions parse_load_options(const OptionList& options) {
  refuse_arguments(options,
                   {"names", "slices", "device", "dtype", "verify", "copy", "threads", "progress"});
  LoadOptions parsed;
  SaveOptions unused;
  apply_options(options,
                with_those_of(load_options(parsed), OptionUse::Save, all_save_options(unused)),
                OptionUse::Load);
  return parsed;
}

SaveOptions parse_save_options(const OptionList& options) {
  refuse_arguments(options, {"hashes", "metadata", "threads", "progress"});
  SaveOptions parsed;
  LoadOptions unused;
  apply_options(options,
                with_those_of(all_save_options(parsed), OptionUse::Load, load_options(unused)),
                OptionUse::Save);
  return parsed;
}

std::vector<std::string> option_names() {
  LoadOptions load;
  SaveOptions save;
  std::vector<std::string> names;
  for (const Option& option :
       with_those_of(load_options(load), OptionUse::Save, all_save_options(save))) {
    names.push_back(option.name);
  }
  return names;
}

OptionList options_for(OptionUse use, const OptionList& options) {
  LoadOptions load;
  SaveOptions save;
  const std::vector<Option> loads = load_options(load);
  const std::vector<Option> saves = all_save_options(save);
  const auto applies = [&](OptionUse to, const std::string& name) {
    const Option* const match = find_option(to == OptionUse::Load ? loads : saves, name);
    return match != nullptr && (match->use == OptionUse::Any || match->use == to);
  };
  const OptionUse other = use == OptionUse::Load ? OptionUse::Save : OptionUse::Load;
  OptionList kept;
  for (const auto& option : options) {
    // An unknown option stays: whoever parses them says so.
    if (applies(use, option.first) || !applies(other, option.first)) kept.push_back(option);
  }
  return absolute_paths(std::move(kept));
}

OptionList absolute_paths(OptionList options) {
  LoadOptions unused;
  const std::vector<Option> known = load_options(unused);
  const auto absolute = [](const std::string& path) {
    std::error_code failure;
    const auto whole = std::filesystem::absolute(expand_home(path), failure);
    if (failure) throw system_error(failure.value(), "cannot find the folder of", path);
    return whole.string();
  };
  for (auto& [name, value] : options) {
    const Option* const option = find_option(known, name);
    if (option != nullptr && option->secret) {
      const auto reference = parse_secret_reference(value);
      if (!reference || reference->place != SecretPlace::File || reference->name.empty()) continue;
      value = "file:" + absolute(std::string(reference->name));
    } else if (std::ranges::find(kPaths, name) != std::end(kPaths) && !value.empty() &&
               scheme_length(value) == 0 && !value.starts_with("fd:")) {
      value = absolute(value);
    }
  }
  return options;
}

WriterOptions parse_writer_options(const OptionList& options) {
  WriterOptions parsed;
  std::vector<Option> known = save_options(parsed.save);
  known.push_back({"hashes", "", [&parsed](const std::string&, const std::string& text) {
                     parsed.hashes = parse_hashes(text);
                     return true;
                   }});
  known.push_back(number_option("threads", "a number of threads, or 0 for every CPU",
                                parsed.threads, 0, kMostThreads));
  known.push_back(bytes_option("part_size", "a number of bytes, from 5242880 to 5368709120",
                               parsed.save.sink.part_size, 5 << 20, std::uint64_t{5} << 30));
  known.push_back(number_option("expected_tensors", "a number of tensors", parsed.expected_tensors,
                                0, std::uint64_t{1} << 32));
  known.push_back(bytes_option("expected_bytes", "a number of bytes", parsed.expected_bytes, 0,
                               std::uint64_t{1} << 62));
  LoadOptions unused;
  known = with_those_of(std::move(known), OptionUse::Load, load_options(unused));
  apply_options(options, known, OptionUse::Save);
  return parsed;
}

void refuse_secrets(const std::string& uri, const OptionList& options, const std::string& keeper) {
  if (holds_secret(uri)) {
    refuse("the URI " + quote(without_secrets(uri)) + " may hold a secret, which " + keeper +
           " would keep: pass it as an argument when the code runs, or replace a password by an "
           "option that names it, such as redis_password=env:NAME or "
           "header.Authorization=env:NAME");
  }
  std::string what;
  LoadOptions unused;
  const std::vector<Option> known = load_options(unused);
  for (const auto& [name, value] : options) {
    const Option* option = find_option(known, name);
    if (option == nullptr) continue;
    if (option->secret && !option->names_secret(value)) what = "option " + quote(name);
    if (!option->secret && holds_secret(value)) {
      refuse("the URI of option " + quote(name) + " may hold a secret, which " + keeper +
             " would keep: name it in another option, such as header.Authorization=env:NAME");
    }
  }
  if (what.empty()) return;
  refuse(what + " may hold a secret, which " + keeper +
         " would keep: name it instead, in an option whose value is env:NAME, file:PATH or "
         "named:NAME");
}

Verify parse_verify(const std::string& text) { return value_of("verify", text, kVerifyWords); }

HashKinds parse_hashes(const std::string& text) { return value_of("hashes", text, kHashesWords); }

std::string_view hashes_word(HashKinds hashes) {
  hashes.crc32 |= hashes.chunked;  // which formats without CRC32 leave out
  for (const auto& [word, meaning] : kHashesWords) {
    if (meaning == hashes) return word;
  }
  refuse("no word of hashes means those of this file");
}

DigestVersion parse_digest_version(std::int64_t version) {
  if (version != 1 && version != 2) {
    refuse("the version of a digest is " + std::to_string(version) + ", and must be 1 or 2");
  }
  return static_cast<DigestVersion>(version);
}

int parse_threads(std::int64_t threads) {
  if (threads < 0 || threads > kMostThreads) {
    refuse("threads is " + std::to_string(threads) + ", and must be from 0 (every CPU) to 1024");
  }
  return threads == 0 ? usable_cpus() : static_cast<int>(threads);
}

}  // namespace tensorizer
