#include <algorithm>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "io/hub/open.h"
#include "io/hub/settings.h"
#include "io/secret.h"
#include "io/uri.h"
#include "io/url.h"

namespace tensorizer {

namespace {

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

bool is_commit(std::string_view text) {
  return text.size() == 40 &&
         std::ranges::all_of(text, [](char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); });
}

// The Hub sends small files itself, and redirects to a signed URL, which expires, for others.
class HubEndpoint final : public HttpEndpoint {
 public:
  HubEndpoint(const HubName& name, const HubOptions& options, const HttpOptions& http,
              std::shared_ptr<HubCommits> commits)
      : name_(name),
        settings_(hub_settings(options)),
        headers_(header_lines(http)),
        insecure_redirects_(http.insecure_redirects),
        label_(quote("hf://" + name.repository + "@" + name.revision + "/" + name.file, 4096)),
        commits_(std::move(commits)) {
    for (const std::string& line : headers_) add_header_secrets(secrets_, line);
    if (!settings_.token.empty()) secrets_.push_back(settings_.token);
  }

  void complete(HttpRequest& request, Cancel&) override {
    const std::lock_guard lock(mutex_);
    request.url = moved_to_.empty() ? own_url() : moved_to_;
    request.follow_redirects = false;
    request.log_in = false;
    request.secrets = secrets_;
    add_url_secrets(request.secrets, moved_to_);
    if (!is_of_hub(request.url)) return;
    request.headers.insert(request.headers.end(), headers_.begin(), headers_.end());
    if (!settings_.token.empty()) {
      request.headers.push_back("Authorization: Bearer " + settings_.token);
    }
  }

  HttpRefusal learn(const HttpRequest& request, const HttpOutcome& outcome) override {
    HttpRefusal refusal;
    const HttpAnswer& answer = outcome.answer;
    const bool of_hub = is_of_hub(request.url);
    const std::lock_guard lock(mutex_);
    if (!outcome.failure && of_hub) {
      const std::string commit(answer.header("x-repo-commit"));
      if (is_commit(commit)) commits_->learn(name_, commit);
    }
    if (!outcome.failure && is_redirect(answer.status)) {
      const auto target = redirected(request.url, std::string(answer.header("location")));
      const bool is_safe = target && (insecure_redirects_ || !request.url.starts_with("https://") ||
                                      target->starts_with("https://"));
      if (is_safe) moved_to_ = *target;
      if (!is_safe) {
        refusal.note = target ? "it redirects to a server that does not encrypt"
                              : "it redirects to what is no server";
      }
      refusal.recovered = is_safe;
      return refusal;
    }
    // 412 and 416 are about the file itself, and not about its URL.
    if (!outcome.failure && (answer.status < 300 || answer.status == 412 || answer.status == 416)) {
      return refusal;
    }
    if (!moved_to_.empty() && request.url == moved_to_) {
      moved_to_.clear();
      refusal.recovered = !outcome.failure && answer.status < 500;
      refusal.temporary = !refusal.recovered;
      return refusal;
    }
    if (outcome.failure) return refusal;
    explain(answer, refusal);
    return refusal;
  }

  const std::string& label() const override { return label_; }

 private:
  std::string own_url() const {
    return settings_.url + "/" + name_.repository + "/resolve/" +
           escape_uri(commits_->of(name_), false) + "/" + escape_uri(name_.file, true);
  }

  bool is_of_hub(const std::string& url) const {
    return origin_of(url) == origin_of(settings_.url);
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
  const std::vector<std::string> headers_;
  const bool insecure_redirects_;
  const std::string label_;
  const std::shared_ptr<HubCommits> commits_;
  Secrets secrets_;

  std::mutex mutex_;  // guards what follows
  std::string moved_to_;
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
  return std::make_unique<HubEndpoint>(name, options, http, std::move(commits));
}

}  // namespace tensorizer
