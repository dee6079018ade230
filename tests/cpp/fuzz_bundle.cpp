// Fuzzes bundles of signed models and the statements in them, whose signatures fuzzing would not
// guess. The first byte says which of both the others are.
#include <simdjson.h>

#include <algorithm>

#include "fuzz_text.h"
#include "trust/bundle.h"
#include "trust/statement.h"

namespace tensorizer {
namespace {

// Of the seed bundles, from tests/data/oms.
constexpr std::string_view kKey = R"(-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEZLLttnVghj9GlOu8GBrnc1KpF6a7
0/AdMDiJZy2mxWkRe/t7sd+2P6YRYICV0lVXo1J/IaEkjBuA1EMrdhSWZw==
-----END PUBLIC KEY-----
)";
constexpr std::string_view kRoot = R"(-----BEGIN CERTIFICATE-----
MIIBhzCCAS6gAwIBAgIURK+N6k8Qt51sn5g2TpXdXecQtjMwCgYIKoZIzj0EAwIw
ITEQMA4GA1UECgwHRXhhbXBsZTENMAsGA1UEAwwEcm9vdDAgFw0yNjExMjgxNjEy
NThaGA8yMTI2MTEwNDE2MTI1OFowITEQMA4GA1UECgwHRXhhbXBsZTENMAsGA1UE
AwwEcm9vdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABGSy7bZ1YIY/RpTrvBga
53NSqRemu9PwHTA4iWctpsVpEXv7e7Hftj+mEWCAldJVV6NSfyGhJIwbgNRDK3YU
lmejQjBAMA8GA1UdEwEB/wQFMAMBAf8wDgYDVR0PAQH/BAQDAgIEMB0GA1UdDgQW
BBQtlNRP/y2HjigQ4t++WMZT/Of9pjAKBggqhkjOPQQDAgNHADBEAiBSTWVhZjsz
teC/Ad8y/PLPu5CosVjz8tFlSNUsPldKmgIgCm8CxcOrSDuT7aqFlBsUFf9Rt2Na
s0tVaWXLrCoyCLU=
-----END CERTIFICATE-----
)";
constexpr std::time_t kTime = 1893456000;  // when the certificates are valid

const Policy& policy() {
  static const Policy made = [] {
    const std::vector<Pem> keys{{"'key'", std::string(kKey)}};
    const std::vector<Pem> roots{{"'root'", std::string(kRoot)}};
    const std::vector<std::string> identities{"signer@example.com"};
    return make_policy("the policy", keys, roots, identities, kTime);
  }();
  return made;
}

void check_manifest(const Manifest& manifest) {
  std::size_t digests = 0;
  require(!manifest.files.empty() && !manifest.model.empty());
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    const ManifestFile& file = manifest.files[i];
    require(i == 0 || manifest.files[i - 1].name < file.name);
    require(fault_of_file_name(file.name) == nullptr);
    require(manifest.find(file.name) == &file);
    require(file.first == digests && file.count > 0);
    digests += file.count;
    if (!manifest.in_shards()) {
      require(file.count == 1 && file.size == 0);
    } else {
      require(file.size > (file.count - 1) * manifest.shard_size);
      require((file.size - 1) / manifest.shard_size == file.count - 1);
    }
  }
  require(manifest.digests.size() == digests * kSha256Size);
}

void check_statement(ConstBytes bytes) {
  const Manifest manifest = open_payload({bytes.begin(), bytes.end()}, "somebody", {}, "'b'");
  check_manifest(manifest);
  // Another parser, which checks all of a text at once, takes it as well.
  simdjson::dom::parser parser;
  simdjson::dom::element whole;
  require(parser.parse(as_text(bytes).data(), bytes.size()).get(whole) == simdjson::SUCCESS);
  // What is read can be written, and says the same.
  const std::string text = write_statement(manifest);
  const ConstBytes again_bytes = as_bytes(text);
  const Manifest again =
      open_payload({again_bytes.begin(), again_bytes.end()}, "somebody", {}, "'b'");
  require(write_statement(again) == text);
  require(again.digests == manifest.digests && again.files.size() == manifest.files.size());
  require(again.shard_size == manifest.shard_size && again.ignored == manifest.ignored);
}

}  // namespace
}  // namespace tensorizer

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorizer;
  if (size == 0) return 0;
  const ConstBytes rest(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  try {
    if (data[0] % 2 == 0) {
      check_manifest(open_bundle({rest.begin(), rest.end()}, policy(), "'b'"));
    } else {
      check_statement(rest);
    }
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::InvalidFormat ||
            (error.kind() == ErrorKind::Crypto && data[0] % 2 == 0));
    require(error.message().starts_with("'b': "));
  }
  return 0;
}
