#include "python/trust.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <ctime>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/redaction.h"
#include "codec/hmac.h"
#include "engine/open/open_model.h"
#include "engine/options.h"
#include "engine/rewrite/sign_files.h"
#include "io/places/open.h"
#include "io/signed/open.h"
#include "io/signed/policy_name.h"
#include "python/error.h"

namespace tensorizer {

namespace {

namespace nb = nanobind;

// Signs files, which other threads may watch and cancel.
class Signing {
 public:
  Signing(std::string model, const std::vector<std::pair<std::string, std::string>>& files,
          std::optional<std::uint64_t> shard_size, std::vector<std::string> ignored)
      : request_{
            .model = std::move(model), .shard_size = shard_size, .ignored = std::move(ignored)} {
    for (const auto& [name, uri] : files) request_.files.push_back({name, uri});
  }

  // Returns the text of the bundle. `certificates` are texts of PEM, beside those of the key.
  std::string start(const std::string& key, const std::string& passphrase,
                    const std::vector<std::string>& certificates, const OptionList& options,
                    std::int64_t threads) {
    return run(cancel_, [&](Cancel& cancel) {
      request_.source = parse_load_options(options).source;
      request_.threads = parse_threads(threads);
      SigningKey signing = resolve_signing_key(key, passphrase);
      for (const std::string& text : certificates) {
        for (Certificate& one : Certificate::from_pem(text, "the certificates")) {
          signing.chain.push_back(std::move(one));
        }
      }
      return sign_files(request_, signing.key, signing.chain, progress_, cancel);
    });
  }
  nb::tuple progress() const {
    return nb::make_tuple(progress_.done.load(), progress_.total.load());
  }
  void cancel() { cancel_.request(); }

 private:
  SignRequest request_;
  Progress progress_;
  Cancel cancel_{&stop_on_signal};
};

// The file of a bundle for the package sigstore.
class SigstoreBundle {
 public:
  SigstoreBundle(const std::string& uri, const OptionList& options)
      : file_(run([&](Cancel& cancel) {
          return open_bundle_file(uri, uri, parse_load_options(options).source, cancel);
        })) {}

  // Returns its bytes, of which only the form is checked.
  nb::bytes read() {
    const std::vector<std::byte> bytes =
        run([&](Cancel& cancel) { return read_sigstore_bundle(*file_, cancel); });
    return nb::bytes(bytes.data(), bytes.size());
  }
  // Quotes a text about what was read, which may repeat some of it.
  std::string quoted(const nb::bytes& text) const {
    const RedactedQuotes quotes(*file_);
    return quote({text.c_str(), text.size()});
  }

 private:
  std::unique_ptr<Source> file_;
};

// Returns the option `trust`, if it is given. Throws as the loads with these options.
std::optional<std::string> trust_in(const OptionList& options) {
  std::string trust = run([&](Cancel& /*cancel*/) { return signed_options_in(options); }).trust;
  return trust.empty() ? std::nullopt : std::optional(std::move(trust));
}

// Returns what the bundle of a file or folder says, if somebody has signed it whom the policy
// trusts, for the model that the options may pin: the signer, the root digest, the size of shards,
// the files with their sizes if these are known, and what is left out.
nb::tuple open_signature(const std::string& uri, const std::string& signed_uri,
                         const std::string& policy, const OptionList& options) {
  const Manifest manifest = run([&](Cancel& cancel) {
    if (!names_policy(policy)) {
      const bool is_name = policy.size() < 100 && policy.find('\n') == std::string::npos;
      throw Error(ErrorKind::InvalidArgument,
                  "the policy " + (is_name ? "is " + quote(policy) + ", and " : "") + "must be " +
                      kPolicyNames);
    }
    SignedOptions wanted = options_from(options, &signed_options);
    wanted.trust = policy;
    const Policy trusted = policy_in(wanted);
    const std::unique_ptr<Source> file =
        open_bundle_file(uri, signed_uri, parse_load_options(options).source, cancel);
    return read_bundle(*file, trusted, cancel);
  });
  std::vector<std::pair<std::string, std::optional<std::uint64_t>>> files;
  for (const ManifestFile& file : manifest.files) {
    files.emplace_back(file.name, manifest.in_shards() ? std::optional(file.size) : std::nullopt);
  }
  return nb::make_tuple(manifest.signer, to_hex(manifest.root), manifest.shard_size, files,
                        manifest.ignored, manifest.model);
}

}  // namespace

void define_trust(nb::module_& module) {
  module.def(
      "set_trust",
      [](const std::string& name, std::vector<std::string> keys, std::vector<std::string> roots,
         std::vector<std::string> identities, std::optional<std::time_t> at,
         std::optional<std::string> subject) {
        const TrustedSigners signers{std::move(keys), std::move(roots), std::move(identities), at,
                                     std::move(subject)};
        run([&](Cancel& /*cancel*/) { set_trust(name, signers); });
      },
      nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none());
  module.def("trust_checked", [](const std::string& name, const std::string& signer,
                                 const nb::bytes& payload) {
    const ConstBytes bytes(static_cast<const std::byte*>(payload.data()), payload.size());
    run([&](Cancel& /*cancel*/) { trust_checked(name, signer, bytes); });
  });
  module.def("forget_trust", &forget_trust);
  module.def("policy_digest", [](const std::string& policy) {
    return run([&](Cancel& /*cancel*/) { return to_hex(policy_digest(*resolve_policy(policy))); });
  });
  module.attr("MOST_BUNDLE_BYTES") = kMostBundleBytes;
  module.def("has_name_of_file", [](const std::string& uri) {
    return run([&](Cancel& /*cancel*/) { return has_name_of_file(uri); });
  });
  module.def(
      "refuse_name_of_file",
      [](const std::string& folder, const std::vector<std::string>& listed) {
        run([&](Cancel& /*cancel*/) { refuse_name_of_file(folder, listed); });
      },
      nb::arg(), nb::arg() = std::vector<std::string>());
  module.def("trust_in", &trust_in);
  module.def("open_signature", &open_signature);
  module.def("signed_path", [](const std::string& uri) {
    // Which need not be UTF-8.
    const std::string path = run([&](Cancel& /*cancel*/) { return signed_path(uri); });
    return nb::steal<nb::str>(PyUnicode_DecodeFSDefaultAndSize(path.data(), std::ssize(path)));
  });
  nb::class_<SigstoreBundle>(module, "SigstoreBundle")
      .def(nb::init<const std::string&, const OptionList&>())
      .def("read", &SigstoreBundle::read)
      .def("quoted", &SigstoreBundle::quoted);
  nb::class_<Signing>(module, "Signing")
      .def(nb::init<std::string, const std::vector<std::pair<std::string, std::string>>&,
                    std::optional<std::uint64_t>, std::vector<std::string>>(),
           nb::arg(), nb::arg(), nb::arg().none(), nb::arg())
      .def("start", &Signing::start)
      .def("progress", &Signing::progress)
      .def("cancel", &Signing::cancel);
}

}  // namespace tensorizer
