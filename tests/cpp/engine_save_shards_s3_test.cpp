// Saves of models in several objects, to a bucket that does not tell what is missing.
#include "aws_home.h"
#include "engine/save/save_shards.h"
#include "tiny_server.h"

namespace tensorizer {
namespace {

using namespace testing_support;

using SavesObjects = AwsHome;

// S3 answers 403 for what is missing to whoever may not list the bucket.
TEST_F(SavesObjects, WhereMissingOnesAreForbidden) {
  const TinyServer server([](const TinyRequest& request) {
    if (request.method == "PUT") return TinyAnswer{200, "", "ETag: \"0\"\r\n"};
    if (request.method != "POST") {
      return TinyAnswer{403, "<Error><Code>AccessDenied</Code></Error>", ""};
    }
    const std::string root =
        request.path.ends_with("?uploads=") ? "InitiateMultipartUpload" : "CompleteMultipartUpload";
    return TinyAnswer{
        200, "<" + root + "Result><UploadId>u</UploadId><ETag>\"0-1\"</ETag></" + root + "Result>",
        ""};
  });
  const std::vector<std::byte> data = pattern(8);
  SavedModel model{.sorted = true};
  for (const char* const name : {"a", "b"}) {
    TensorSpec& spec = model.specs.emplace_back();
    spec.name = name;
    spec.shape = {8};
    model.items.push_back({data});
  }
  SaveOptions options;
  options.max_shard_size = 8;
  options.sink.given = {{"s3_endpoint", server.url()},
                        {"force_http", "true"},
                        {"s3_access_key_id", "AKIA"},
                        {"s3_secret_access_key", "secret"}};
  Progress progress;
  save_in_shards("s3://bucket/m.safetensors", std::move(model), options, {}, progress, cancel_);
  const TinyRequest last = server.requests().back();
  EXPECT_EQ(last.method + " " + last.path, "PUT /bucket/m.safetensors.index.json");
}

}  // namespace
}  // namespace tensorizer
