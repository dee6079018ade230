#include "io/other_options.h"

#include <utility>

#include "base/text.h"

namespace tensorizer {

namespace {

// Which some of these libraries put before their names.
constexpr std::string_view kPrefixes[] = {"aws_", "azure_storage_", "azure_", "google_", "s3_"};

constexpr std::pair<std::string_view, std::string_view> kOptions[] = {
    // Of boto3, s3fs, polars and object_store.
    {"access_key", "s3_access_key_id"},
    {"access_key_id", "s3_access_key_id"},
    {"secret", "s3_secret_access_key"},
    {"secret_key", "s3_secret_access_key"},
    {"secret_access_key", "s3_secret_access_key"},
    {"token", "s3_session_token"},
    {"session_token", "s3_session_token"},
    {"endpoint", "s3_endpoint"},
    {"endpoint_url", "s3_endpoint"},
    {"endpoint_override", "s3_endpoint"},
    {"region", "s3_region"},
    {"region_name", "s3_region"},
    {"default_region", "s3_region"},
    {"profile", "s3_profile"},
    {"profile_name", "s3_profile"},
    {"anon", "s3_anonymous"},
    {"anonymous", "s3_anonymous"},
    {"no_sign_request", "s3_anonymous"},
    {"skip_signature", "s3_anonymous"},
    {"requester_pays", "s3_requester_pays"},
    {"request_payer", "s3_requester_pays"},
    {"version_id", "s3_version_id"},
    {"versionid", "s3_version_id"},
    {"ssecustomerkey", "s3_sse_customer_key"},
    {"addressing_style", "s3_addressing"},
    {"virtual_hosted_style_request", "s3_addressing"},
    {"force_virtual_addressing", "s3_addressing"},
    {"signature_version", "s3_signature_version"},
    // Of Azure's and Redis' clients.
    {"account_key", "az_account_key"},
    {"sas_token", "az_sas_token"},
    {"sas_key", "az_sas_token"},
    {"bearer_token", "az_bearer_token"},
    {"account_url", "az_endpoint"},
    {"username", "redis_user"},
    {"password", "redis_password"},
    {"ex", "ttl"},
    // Of all kinds of clients.
    {"allow_http", "force_http"},
    {"use_ssl", "force_http"},
    {"verify_ssl", "insecure"},
    {"allow_invalid_certificates", "insecure"},
    {"ca_bundle", "ca_file"},
    {"ca_cert", "ca_file"},
    {"cafile", "ca_file"},
    {"ssl_ca_certs", "ca_file"},
    {"ssl_certfile", "client_cert"},
    {"ssl_keyfile", "client_key"},
    {"max_retries", "retries"},
    {"max_attempts", "retries"},
    {"read_timeout", "stall_timeout"},
    {"socket_timeout", "stall_timeout"},
    {"socket_connect_timeout", "connect_timeout"},
    {"request_timeout", "timeout"},
    {"total_timeout", "timeout"},
    {"max_connections", "connections"},
    {"max_pool_connections", "connections"},
    {"max_concurrency", "connections"},
    {"concurrency", "connections"},
    {"num_connections", "connections"},
    {"block_size", "chunk_size"},
    {"multipart_chunksize", "chunk_size"},
    {"headers", "header."},
    {"user_agent", "header."},
    {"authorization", "header."},
    {"encryption", "key"},
    {"passphrase", "key"},
    {"encryption_key", "key"},
    {"buffer_size", "memory_ceiling"},
    {"memory_limit", "memory_ceiling"},
    {"max_memory", "memory_ceiling"},
    {"direct_io", "io"},
    {"use_mmap", "io"},
    {"mmap", "io"},
    {"sync", "fsync"},
    {"shard_size", "max_shard_size"},
};

}  // namespace

std::string_view our_option(std::string_view name) {
  const std::string lower = lower_case(name);
  std::string_view wanted = lower;
  for (const std::string_view prefix : kPrefixes) {
    if (!wanted.starts_with(prefix)) continue;
    wanted.remove_prefix(prefix.size());
    break;
  }
  for (const auto& [theirs, ours] : kOptions) {
    if (theirs == wanted) return ours;
  }
  return {};
}

}  // namespace tensorizer
