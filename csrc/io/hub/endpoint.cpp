#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "codec/hmac.h"
#include "io/hub/open.h"
#include "io/hub/settings.h"
#include "io/secret.h"
#include "io/uri.h"
#include "io/url.h"

namespace tensorizer {

namespace {

bool is_commit(std::string_view text) {
  return text.size() == 40 &&
         std::ranges::all_of(text, [](char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); });
}

// Returns what an ETag says of the bytes of a file: its hash by git, or the SHA-256 of a large one.
std::optional<WholeDigest> digest_in(std::string_view etag) {
  if (etag.size() < 2 || etag.front() != '"' || etag.back() != '"') return std::nullopt;
  const std::string hex(etag.substr(1, etag.size() - 2));
  std::array<std::byte, 32> bytes{};
  if (from_hex(hex, bytes)) return WholeDigest{WholeDigest::Hash::Sha256, lower_case(hex)};
  if (from_hex(hex, Bytes(bytes).first(20))) {
    return WholeDigest{WholeDigest::Hash::GitBlob, lower_case(hex)};
  }
  return std::nullopt;
}

std::string uri_of(const HubName& name) {
  return "hf://" + name.repository + "@" + name.revision + "/" + name.file;
}

// The Hub sends small files itself, and redirects to a signed URL, which expires, for others.
class HubEndpoint final : public UrlEndpoint {
 public:
  HubEndpoint(const HubName& name, HubSettings settings, const HttpOptions& http,
              std::shared_ptr<HubCommits> commits)
      : UrlEndpoint(settings.url, http, quote(without_secrets(uri_of(name)), 4096)),
        name_(name),
        settings_(std::move(settings)),
        commits_(std::move(commits)) {}

  void complete(HttpRequest& request, Cancel& cancel) override {
    UrlEndpoint::complete(request, cancel);
    request.log_in = false;
    add_url_secrets(request.secrets, uri_of(name_));
    if (settings_.token.empty()) return;
    request.home_headers.push_back("Authorization: Bearer " + settings_.token);
    request.secrets.push_back(settings_.token);
  }

  HttpRefusal learn(const HttpRequest& request, const HttpOutcome& outcome) override {
    HttpRefusal refusal = UrlEndpoint::learn(request, outcome);
    const bool of_hub = origin_of(outcome.url) == origin_of(settings_.url);
    if (outcome.home_answer) keep(*outcome.home_answer, "x-linked-etag");
    if (outcome.failure || !of_hub) return refusal;
    keep(outcome.answer, "etag");
    if (outcome.answer.status >= 300) explain(outcome.answer, refusal);
    return refusal;
  }

  std::optional<WholeDigest> digest() override {
    const std::lock_guard lock(mutex_);
    return digest_;
  }

 private:
  std::string url() const override {
    return settings_.url + "/" + name_.repository + "/resolve/" +
           escape_uri(commits_->of(name_), false) + "/" + escape_uri(name_.file, true);
  }

  // Keeps the commit that a response of the Hub names, and the digest in one of its headers.
  void keep(const HttpAnswer& answer, std::string_view header) {
    const std::string commit(answer.header("x-repo-commit"));
    if (is_commit(commit)) commits_->learn(name_, commit);
    const std::lock_guard lock(mutex_);
    if (!digest_ && answer.status < 400) digest_ = digest_in(answer.header(header));
  }

  void explain(const HttpAnswer& answer, HttpRefusal& refusal) const {
    const std::string_view code = answer.header("x-error-code");
    refusal.what = answer.header("x-error-message");
    const std::string token =
        settings_.token.empty()
            ? "there is no token, in option 'hf_token', HF_TOKEN or the file of "
              "`hf auth login`"
            : "the token may not read it";
    if (code == "GatedRepo") {
      refusal.kind = ErrorKind::PermissionDenied;
      refusal.note = "the repository is gated: accept its terms at " + settings_.url + "/" +
                     name_.repository + "; " + token;
    } else if (code == "RepoNotFound" || (code.empty() && answer.status == 401)) {
      refusal.kind = ErrorKind::NotFound;
      refusal.note = "there is no such repository, or it is private: " + token;
    } else if (code == "RevisionNotFound") {
      refusal.kind = ErrorKind::NotFound;
      refusal.note = "the repository has no such revision";
    } else if (code == "EntryNotFound") {
      refusal.kind = ErrorKind::NotFound;
      refusal.note = "the revision has no such file";
    }
  }

  const HubName name_;
  const HubSettings settings_;
  const std::shared_ptr<HubCommits> commits_;
  std::mutex mutex_;
  std::optional<WholeDigest> digest_;  // guarded by the mutex
};

}  // namespace

std::string HubCommits::of(const HubName& name) {
  const std::lock_guard lock(mutex_);
  const auto found = commits_.find(name.repository + "@" + name.revision);
  return found == commits_.end() ? name.revision : found->second;
}

void HubCommits::learn(const HubName& name, const std::string& commit) {
  const std::lock_guard lock(mutex_);
  commits_.try_emplace(name.repository + "@" + name.revision, commit);
}

std::unique_ptr<HttpEndpoint> hub_endpoint(const HubName& name, const HubOptions& options,
                                           const HttpOptions& http,
                                           std::shared_ptr<HubCommits> commits) {
  return std::make_unique<HubEndpoint>(name, hub_settings(options), http, std::move(commits));
}

}  // namespace tensorizer
