// Signed files on web servers.
#include "base/number.h"
#include "signed_files.h"
#include "tiny_server.h"

namespace tensorizer {
namespace {

using namespace testing_support;

// A server with files, which knows their versions and ranges.
class ServedFilesTest : public SignedFilesTest {
 protected:
  TinyAnswer get(const TinyRequest& request) {
    const std::lock_guard lock(mutex_);
    asked_.push_back(request.path);
    if (refused_.contains(request.path))
      return {.status = refused_[request.path], .body = {}, .headers = {}};
    const auto found = files_.find(request.path);
    if (found == files_.end()) return {.status = 404, .body = {}, .headers = {}};
    const std::string& body = found->second;
    const std::string etag = "ETag: \"" + to_hex(sha256(as_bytes(body))) + "\"\r\n";
    const auto range = request.headers.find("range");
    if (range == request.headers.end()) return {.status = 200, .body = body, .headers = etag};
    const std::string words = range->second.substr(6);
    const std::size_t begin = parse_number(words.substr(0, words.find('-'))).value();
    const std::size_t last = std::min<std::size_t>(
        parse_number(words.substr(words.find('-') + 1)).value_or(body.size()), body.size() - 1);
    return {.status = 206,
            .body = body.substr(begin, last + 1 - begin),
            .headers = etag + "Content-Range: bytes " + std::to_string(begin) + "-" +
                       std::to_string(last) + "/" + std::to_string(body.size()) + "\r\n"};
  }
  std::ptrdiff_t times(const std::string& path) {
    const std::lock_guard lock(mutex_);
    return std::ranges::count(asked_, path);
  }

  std::mutex mutex_;
  std::map<std::string, std::string> files_;
  std::map<std::string, int> refused_;
  std::vector<std::string> asked_;
  TinyServer server_{[this](const TinyRequest& request) { return get(request); }};
};

TEST_F(ServedFilesTest, BundlesBesideAFile) {
  files_["/a/m"] = text_;
  files_["/a/model.sig"] = bundle_of({{"m", text_}});
  EXPECT_EQ(load(server_.url("/a/m")), text_);
  EXPECT_EQ(times("/a/m.sig"), 1);
  // Servers that list no files may not tell whether there is one.
  refused_["/a/m.sig"] = 403;
  EXPECT_EQ(load(server_.url("/a/m")), text_);
  refused_["/a/m.sig"] = 400;
  EXPECT_TRUE(contains(message_of([&] { load(server_.url("/a/m")); }), "/a/m.sig"));
  refused_.clear();
  files_["/a/m.sig"] = bundle_of({{"m", other_}});
  EXPECT_EQ(kind_of([&] { load(server_.url("/a/m")); }), ErrorKind::HashMismatch);
}

TEST_F(ServedFilesTest, EscapesAndParameters) {
  files_["/mo%64el%20x/my%20m?token=1"] = text_;
  files_["/mo%64el%20x/my%20m.sig?token=1"] = bundle_of({{"my m", text_}, {"other", other_}});
  EXPECT_EQ(load(server_.url("/mo%64el%20x/my%20m?token=1#part")), text_);
  files_["/model%20x/model.sig"] = bundle_of({{"my m", text_}, {"a/b/m", other_}});
  EXPECT_EQ(load(server_.url("/mo%64el%20x/my%20m?token=1"),
                 {{"signature", server_.url("/model%20x/model.sig")}}),
            text_);
  files_["/model%20x/a/b/m"] = other_;
  EXPECT_EQ(
      load(server_.url("/model%20x/a/b/m"), {{"signature", server_.url("/model%20x/model.sig")}}),
      other_);
}

TEST_F(ServedFilesTest, AURLMayBeWrittenInSeveralWays) {
  files_["/a/m"] = text_;
  files_["/a/model.sig"] = bundle_of({{"m", text_}, {"n", other_}});
  const std::string url = server_.url("/a/m");
  EXPECT_EQ(load(server_.url("/b/../a/./m")), text_);
  EXPECT_EQ(load("HTTP" + url.substr(4)), text_);
  std::string with_login = url;
  with_login.insert(7, "user:pass@");
  EXPECT_EQ(load(with_login, {{"signature", server_.url("/a/model.sig")}}), text_);
}

TEST_F(ServedFilesTest, AURLForOneFileNeedsTheOption) {
  const std::string uri = server_.url("/a/m?X-Amz-Signature=abc");
  files_["/a/m?X-Amz-Signature=abc"] = text_;
  files_["/a/model.sig"] = bundle_of({{"m", text_}});
  const Error error = error_of([&] { load(uri); });
  EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
  EXPECT_FALSE(contains(error.what(), "abc")) << error.what();
  EXPECT_EQ(load(uri, {{"signature", server_.url("/a/model.sig")}}), text_);
}

TEST_F(ServedFilesTest, MessagesShowNoSecrets) {
  files_["/a/m"] = text_;
  std::string url = server_.url("/a/m");
  url.insert(7, "user:hunter2@");
  const Error error = error_of([&] { load(url); });
  EXPECT_EQ(error.kind(), ErrorKind::Crypto);
  EXPECT_FALSE(contains(error.what(), "hunter2")) << error.what();
}

TEST_F(ServedFilesTest, AJobAsksForItsBundleOnce) {
  files_["/a/m"] = text_;
  files_["/a/n"] = other_;
  files_["/a/model.sig"] = bundle_of({{"m", text_}, {"n", other_}});
  const auto access = std::make_shared<SharedAccess>();
  EXPECT_EQ(load(server_.url("/a/m"), {}, access), text_);
  EXPECT_EQ(load(server_.url("/a/n"), {}, access), other_);
  EXPECT_EQ(times("/a/model.sig"), 1);
  EXPECT_EQ(times("/a/n.sig"), 0);
}

// What processes of a machine share is checked by each of them, and mended.
TEST_F(ServedFilesTest, ASharedCopyThatIsDamagedIsFetchedAnew) {
  files_["/a/m"] = text_;
  files_["/a/model.sig"] = bundle_of({{"m", text_}});
  const fs::path node = folder_.path() / "node";
  const OptionList shared{{"node_folder", node.string()}};
  const auto first = open(server_.url("/a/m"), shared);
  EXPECT_EQ(whole(*first), text_);
  for (const auto& entry : fs::directory_iterator(node)) {
    std::fstream file(entry.path(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(70);
    file.put('!');
  }
  const auto second = open(server_.url("/a/m"), shared);
  EXPECT_EQ(read(*second, 65, 10), text_.substr(65, 10));
  // For others, too.
  for (const auto& entry : fs::directory_iterator(node)) {
    if (fs::file_size(entry.path()) < text_.size()) continue;
    const std::string bytes = read_file(entry.path());
    if (bytes.starts_with(text_.substr(0, 8))) EXPECT_TRUE(bytes.starts_with(text_));
  }
}

}  // namespace
}  // namespace tensorizer
