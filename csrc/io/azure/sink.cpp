// Saves a block blob. Its blocks are sent as they fill, and the blob appears when their list is
// stored. Azure drops blocks that are in no list after a week, or when the blob is saved again.
#include <array>

#include "base/error.h"
#include "codec/hmac.h"
#include "codec/secret_bytes.h"
#include "io/azure/open.h"
#include "io/http/client.h"
#include "io/http/operation.h"
#include "io/http/upload.h"
#include "io/upload/part_sink.h"
#include "io/uri.h"

namespace tensorizer {

namespace {

constexpr PartLimits kLimits{50000, std::uint64_t{4000} << 20, "a block blob in Azure"};
// All blocks of a blob must have identifiers of one length, those that another program has left
// there included. This is the length of Azure's SDK for Python, before base64.
constexpr std::size_t kIdSize = 48;

// Returns a name that no other save has, so that their blocks are told apart.
std::string new_name() {
  std::array<std::byte, 16> random;
  fill_random(random);
  return to_hex(random);
}

class AzureSink final : public PartSink {
 public:
  AzureSink(HttpAccess access, std::uint64_t part_size, bool shared, std::string name)
      : PartSink(kLimits, access.pool->options().connections, part_size, shared),
        client_(std::move(access)),
        name_(std::move(name)) {}
  ~AzureSink() override { stop(); }

  void leave() noexcept override { stop(); }
  void abort() noexcept override { stop(); }
  const std::string& label() const override { return client_.label(); }

 private:
  void send_whole(const UploadPart& part, Cancel& cancel) override {
    put(part.pieces, {}, {kBlockBlob, kBlobContentType}, cancel);
  }

  std::string send_part(const UploadPart& part, Cancel& cancel) override {
    std::string id = name_ + std::to_string(part.number);
    id.insert(name_.size(), kIdSize - id.size(), '0');
    id = to_base64(as_bytes(id));
    put(part.pieces, {{"comp", "block"}, {"blockid", id}}, {}, cancel);
    return id;
  }

  // A list that is sent again, because the response was lost, finds its blocks in the blob.
  void complete(std::uint64_t, const Receipts& receipts, Cancel& cancel) override {
    std::string text = "<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>";
    for (const auto& [number, id] : receipts) text += "<Latest>" + id + "</Latest>";
    text += "</BlockList>";
    const ConstBytes bytes = as_bytes(text);
    put({&bytes, 1}, {{"comp", "blocklist"}}, {"Content-Type: application/xml", kBlobContentType},
        cancel);
  }

  std::string upload_name(Cancel&) override { return name_; }

  void put(std::span<const ConstBytes> pieces, NamedTexts query, std::vector<std::string> headers,
           Cancel& cancel) {
    MemoryBody body(pieces);
    HttpOperation operation;
    operation.request.method = "PUT";
    operation.request.query = std::move(query);
    operation.request.headers = std::move(headers);
    // Without "Expect: 100-continue", which would cost each block a round trip.
    operation.request.headers.emplace_back("Expect:");
    operation.request.body = &body;
    operation.fault = fault_of_azure;
    HttpTries tries(client_, "save");
    operate(client_, operation, tries, cancel);
  }

  HttpClient client_;
  const std::string name_;
};

}  // namespace

std::string fault_of_azure(const HttpAnswer& answer, std::string_view text) {
  const bool is_azures =
      answer.status == 201 && text.empty() && !answer.header("x-ms-request-id").empty();
  return is_azures ? std::string() : not_from("Azure", answer, text, {});
}

std::unique_ptr<Sink> azure_sink(HttpAccess access, std::uint64_t part_size) {
  return std::make_unique<AzureSink>(std::move(access), part_size, false, new_name());
}

std::unique_ptr<SharedSink> shared_azure_sink(HttpAccess access,
                                              const std::optional<std::string>& joined) {
  return std::make_unique<AzureSink>(std::move(access), 0, true, joined ? *joined : new_name());
}

}  // namespace tensorizer
