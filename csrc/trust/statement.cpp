#include "trust/statement.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/json_string.h"
#include "base/number.h"
#include "base/text.h"
#include "codec/hmac.h"
#include "trust/json.h"

namespace tensorizer {

namespace {

using Value = StrictJson::Value;
using Unknown = StrictJson::Unknown;

constexpr std::string_view kStatementType = "https://in-toto.io/Statement/v1";
constexpr std::string_view kPredicateType = "https://model_signing/signature/v1.0";
constexpr std::string_view kOldPredicateType = "https://model_signing/Digests/v0.1";
constexpr std::string_view kAlgorithm = "sha256";
constexpr std::uint64_t kMaxOffset = std::numeric_limits<std::int64_t>::max();

// A file, or a shard of one. Strings lie where the parser keeps them.
struct Resource {
  std::string_view name;  // without the range
  std::string_view algorithm;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::size_t digest = 0;
};

std::optional<std::uint64_t> parse_offset(std::string_view text) {
  if (text.size() > 1 && text.front() == '0') return std::nullopt;
  const std::optional<std::uint64_t> offset = parse_number(text);
  return offset && *offset <= kMaxOffset ? offset : std::nullopt;
}

bool read_digest(std::string_view text, std::vector<std::byte>& out) {
  if (text.size() != 2 * kSha256Size) return false;
  const auto digit = [](char c) { return c >= 'A' && c <= 'F' ? -1 : hex_value(c); };
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const int high = digit(text[i]);
    const int low = digit(text[i + 1]);
    if (high < 0 || low < 0) return false;
    out.push_back(static_cast<std::byte>(high << 4 | low));
  }
  return true;
}

struct StatementReader {
  static constexpr bool kOptional = StrictJson::kOptional;

  StrictJson& json;
  Manifest manifest{};
  std::vector<Resource> resources{};
  std::vector<std::byte> digests{};  // in the order of the resources
  std::optional<Sha256Digest> root{};
  std::string_view method{};
  std::string_view hash{};
  std::optional<std::uint64_t> shard_size{};
  std::size_t subjects = 0;

  Manifest read() {
    const auto read_type = [&](Value& text) { check_type(json.string(text, "'_type'")); };
    const auto read_predicate_type = [&](Value& text) {
      check_predicate_type(json.string(text, "'predicateType'"));
    };
    const auto read_subjects = [&](Value& list) {
      json.array(list, "'subject'", [&](Value& one) { read_subject(one); });
    };
    json.root(Unknown::Refused, {{"_type", read_type},
                                 {"predicateType", read_predicate_type},
                                 {"subject", read_subjects},
                                 {"predicate", [&](Value& value) { read_predicate(value); }}});
    check_members();
    check_algorithms();
    if (const Sha256Digest made = sha256(digests); made != *root) {
      json.fail("its root digest is " + to_hex(*root) + ", but its resources make " + to_hex(made));
    }
    manifest.root = *root;
    manifest.shard_size = shard_size.value_or(0);
    if (manifest.in_shards()) split_names();
    collect_files();
    return std::move(manifest);
  }

  // These are checked early, because a statement of another type has other members.
  void check_type(std::string_view type) const {
    if (type == kStatementType) return;
    json.fail("its type is " + quote(type) + ", expected is " + quote(kStatementType));
  }

  void check_predicate_type(std::string_view type) const {
    if (type == kPredicateType) return;
    json.fail("its predicate type is " + quote(type) + ", expected is " + quote(kPredicateType) +
              (type == kOldPredicateType
                   ? ": it was made by model_signing 0.2, so sign the model again"
                   : ""));
  }

  void read_subject(Value& value) {
    ++subjects;
    const auto read_name = [&](Value& text) {
      manifest.model = json.string(text, "the name of the subject");
    };
    const auto read_sha256 = [&](Value& text) {
      read_root(json.string(text, "the digest of the subject"));
    };
    const auto read_digests = [&](Value& all) {
      json.object(all, "the digest of the subject", Unknown::Ignored, {{"sha256", read_sha256}});
    };
    json.object(value, "the subject", Unknown::Ignored,
                {{"name", read_name}, {"digest", read_digests}});
    if (manifest.model.empty()) json.fail("the subject has no name");
  }

  void read_root(std::string_view text) {
    std::vector<std::byte> bytes;
    if (!read_digest(text, bytes)) {
      json.fail("the digest " + quote(text) + " of the subject is not 64 lower-case hex digits");
    }
    std::ranges::copy(bytes, root.emplace().begin());
  }

  void read_predicate(Value& value) {
    const auto read_resources = [&](Value& list) {
      json.array(list, "'resources'", [&](Value& one) { read_resource(one); });
    };
    json.object(value, "the predicate", Unknown::Refused,
                {{"resources", read_resources},
                 {"serialization", [&](Value& how) { read_serialization(how); }}});
  }

  void read_resource(Value& value) {
    Resource resource;
    std::string_view digest;
    json.object(
        value, "resource " + std::to_string(resources.size()), Unknown::Ignored,
        {{"name",
          [&](Value& text) { resource.name = json.string(text, "the name of a resource"); }},
         {"algorithm",
          [&](Value& text) {
            resource.algorithm = json.string(text, "the algorithm of a resource");
          }},
         {"digest", [&](Value& text) { digest = json.string(text, "the digest of a resource"); }}});
    resource.digest = resources.size();
    if (!is_other_algorithm(resource.algorithm) && !read_digest(digest, digests)) {
      json.fail("the digest " + quote(digest) + " of the resource " + quote(resource.name) +
                " is not 64 lower-case hex digits");
    }
    resources.push_back(resource);
  }

  // "sha256-sharded-4096", if this is the size of the shards, is SHA-256 as well.
  static bool is_other_algorithm(std::string_view algorithm) {
    return algorithm != kAlgorithm && !algorithm.starts_with("sha256-sharded-");
  }

  void read_serialization(Value& value) {
    const auto read_size = [&](Value& number) {
      shard_size = json.positive(number, "'shard_size'");
    };
    const auto read_links = [&](Value& truth) {
      manifest.allow_symlinks = json.boolean(truth, "'allow_symlinks'");
    };
    const auto read_path = [&](Value& one) {
      manifest.ignored.emplace_back(json.string(one, "an ignored path"));
      if (manifest.ignored.back().empty()) json.fail("an ignored path is empty");
    };
    json.object(value, "'serialization'", Unknown::Refused,
                {{"method", [&](Value& text) { method = json.string(text, "'method'"); }},
                 {"hash_type", [&](Value& text) { hash = json.string(text, "'hash_type'"); }},
                 {"shard_size", read_size, kOptional},
                 {"allow_symlinks", read_links},
                 {"ignore_paths",
                  [&](Value& list) { json.array(list, "'ignore_paths'", read_path); }, kOptional}});
  }

  void check_members() const {
    if (subjects != 1) {
      json.fail("it has " + std::to_string(subjects) + " subjects, expected is one");
    }
    if (method != "files" && method != "shards") {
      json.fail("its method is " + quote(method) + ", expected is 'files' or 'shards'");
    }
    if (method == "shards" && !shard_size) json.fail("it is in shards, without a 'shard_size'");
    if (method == "files" && shard_size) json.fail("it has a 'shard_size' without shards");
    if (resources.empty()) json.fail("it lists no files");
  }

  void check_algorithms() const {
    if (hash != kAlgorithm) refuse_algorithm("its files are", hash);
    for (const Resource& resource : resources) {
      if (resource.algorithm == kAlgorithm) continue;
      if (!shard_size || resource.algorithm != "sha256-sharded-" + std::to_string(*shard_size)) {
        refuse_algorithm("the resource " + quote(resource.name) + " is", resource.algorithm);
      }
    }
  }

  [[noreturn]] void refuse_algorithm(const std::string& what, std::string_view algorithm) const {
    json.fail(what + " hashed with " + quote(algorithm) +
              (algorithm == "blake2b" || algorithm == "blake3"
                   ? ", and only SHA-256 is supported: sign the model with sha256"
                   : ", which is not the 'sha256' of this format"));
  }

  // Names of shards end with their range: "a/model.safetensors:0:4096".
  void split_names() {
    for (Resource& resource : resources) {
      const std::string_view name = resource.name;
      const auto refuse = [&](const char* why) {
        json.fail("the shard " + quote(name) + " " + why);
      };
      const std::size_t second = name.rfind(':');
      const std::size_t first =
          second == name.npos || second == 0 ? name.npos : name.rfind(':', second - 1);
      if (first == name.npos) refuse("does not end with its range, as ':0:4096'");
      const auto begin = parse_offset(name.substr(first + 1, second - first - 1));
      const auto end = parse_offset(name.substr(second + 1));
      if (!begin || !end) refuse("has a range that is not two numbers below 2^63");
      if (*begin >= *end) refuse("is empty");
      if (*begin % *shard_size != 0) refuse("begins at no multiple of the shard size");
      if (*end - *begin > *shard_size) refuse("is larger than the shard size");
      resource.name = name.substr(0, first);
      resource.begin = *begin;
      resource.end = *end;
    }
  }

  void collect_files() {
    std::ranges::sort(resources, {}, [](const Resource& resource) {
      return std::pair(resource.name, resource.begin);
    });
    manifest.digests.reserve(digests.size());
    for (std::size_t i = 0; i < resources.size(); ++i) {
      const Resource& resource = resources[i];
      const bool again = i > 0 && resources[i - 1].name == resource.name;
      if (!again) add_file(resource.name);
      if (again && !manifest.in_shards()) {
        json.fail("it lists the file " + quote(resource.name) + " twice");
      }
      if (manifest.in_shards()) add_shard(resource);
      manifest.files.back().count =
          manifest.digests.size() / kSha256Size + 1 - manifest.files.back().first;
      const ConstBytes digest =
          ConstBytes(digests).subspan(resource.digest * kSha256Size, kSha256Size);
      manifest.digests.insert(manifest.digests.end(), digest.begin(), digest.end());
    }
  }

  void add_file(std::string_view name) {
    if (const char* const fault = fault_of_file_name(name)) {
      json.fail("the name " + quote(name) + " cannot be that of a file: " + fault);
    }
    ManifestFile& file = manifest.files.emplace_back();
    file.name = name;
    file.first = manifest.digests.size() / kSha256Size;
  }

  void add_shard(const Resource& shard) {
    ManifestFile& file = manifest.files.back();
    const auto range = [&] {
      return "the shard of " + quote(file.name) + " from " + std::to_string(shard.begin) + " to " +
             std::to_string(shard.end);
    };
    if (shard.begin < file.size) json.fail(range() + " overlaps the one before");
    if (shard.begin > file.size) {
      json.fail(range() + " leaves a gap, as the one before ends at " + std::to_string(file.size));
    }
    file.size = shard.end;
  }
};

}  // namespace

Manifest read_statement(std::vector<std::byte> text, const std::string& label) {
  StrictJson json(std::move(text), label + ": what was signed is not a list of a model's files");
  return StatementReader{json}.read();
}

std::string write_statement(const Manifest& manifest) {
  // Names and numbers of their digests.
  std::vector<std::pair<std::string, std::size_t>> resources;
  for (const ManifestFile& file : manifest.files) {
    for (std::size_t i = 0; i < file.count; ++i) {
      std::string name = file.name;
      if (manifest.in_shards()) {
        const std::uint64_t begin = i * manifest.shard_size;
        name += ':' + std::to_string(begin) + ':' +
                std::to_string(begin + std::min(manifest.shard_size, file.size - begin));
      }
      resources.emplace_back(std::move(name), file.first + i);
    }
  }
  // The bytes of UTF-8 are in the order of its code points.
  std::ranges::sort(resources);
  Sha256 root;
  std::string list;
  for (const auto& [name, number] : resources) {
    const ConstBytes digest =
        ConstBytes(manifest.digests).subspan(number * kSha256Size, kSha256Size);
    root.update(digest);
    list += list.empty() ? R"({"name":)" : R"(,{"name":)";
    put_json_string(list, name);
    list += R"(,"digest":")" + to_hex(digest) + R"(","algorithm":"sha256"})";
  }
  std::string text = R"({"_type":")" + std::string(kStatementType) + R"(","subject":[{"name":)";
  put_json_string(text, manifest.model);
  text += R"(,"digest":{"sha256":")" + to_hex(root.finish()) + R"("}}],"predicateType":")" +
          std::string(kPredicateType) + R"(","predicate":{"resources":[)" + list +
          R"(],"serialization":{"method":)" +
          (manifest.in_shards() ? R"("shards")" : R"("files")") + R"(,"hash_type":"sha256")";
  if (manifest.in_shards()) text += R"(,"shard_size":)" + std::to_string(manifest.shard_size);
  text += R"(,"allow_symlinks":)" + std::string(manifest.allow_symlinks ? "true" : "false");
  if (!manifest.ignored.empty()) {
    text += R"(,"ignore_paths":[)";
    for (std::size_t i = 0; i < manifest.ignored.size(); ++i) {
      if (i > 0) text += ',';
      put_json_string(text, manifest.ignored[i]);
    }
    text += ']';
  }
  return text + "}}}";
}

}  // namespace tensorizer
