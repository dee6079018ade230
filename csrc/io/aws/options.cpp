#include "io/aws/options.h"

namespace tensorizer {

std::vector<Option> s3_options(S3Options& s3) {
  return {
      secret_option("s3_access_key_id", s3.access_key_id),
      secret_option("s3_secret_access_key", s3.secret_access_key),
      secret_option("s3_session_token", s3.session_token),
      text_option("s3_endpoint", "a URL or a host", s3.endpoint),
      text_option("s3_region", "the name of a region", s3.region),
      text_option("s3_profile", "the name of a profile", s3.profile),
      text_option("s3_config_path", "a path", s3.config_path),
      bool_option("force_http", s3.force_http),
      {"s3_anonymous", "'true', 'false' or 'without_keys'",
       [&s3](const std::string&, const std::string& text) {
         s3.anonymous = text == "true";
         s3.anonymous_without_keys = text == "without_keys";
         return s3.anonymous || s3.anonymous_without_keys || text == "false";
       }},
      bool_option("s3_requester_pays", s3.requester_pays),
      exclusive(text_option("s3_version_id", "the identifier of a version", s3.version_id),
                OptionUse::Load),
      secret_option("s3_sse_customer_key", s3.sse_customer_key),
      {"s3_addressing", "'path' or 'virtual'",
       [&s3](const std::string&, const std::string& text) {
         s3.addressing = text;
         return text == "path" || text == "virtual";
       }},
      {"s3_signature_version", "'s3v4' or 's3'",
       [&s3](const std::string&, const std::string& text) {
         s3.signs_url = text == "s3";
         return s3.signs_url || text == "s3v4";
       }},
  };
}

}  // namespace tensorizer
