// Removing files: what is no file, responses that are lost, and redirects.
#include <sys/stat.h>

#include <atomic>

#include "io_support.h"
#include "tiny_redis.h"
#include "tiny_server.h"
#include "worlds.h"

namespace tensorizer {
namespace {

using namespace testing_support;

class Remove : public IoTest {
 protected:
  void remove(const std::string& uri, OptionList given = {}) {
    remove_file(uri, {.given = std::move(given)}, cancel_);
  }
};

TEST_F(Remove, TakesAFileOrALinkAndNothingElse) {
  const Folder folder("/tmp");
  const std::string file = folder / "file", link = folder / "link";
  write_file(file, "x");
  fs::create_symlink(file, link);
  remove(link);
  EXPECT_FALSE(fs::is_symlink(link));
  EXPECT_TRUE(fs::exists(file));
  for (int removals = 0; removals < 2; ++removals) remove("file://" + file);
  EXPECT_EQ(folder.entries(), 0U);

  const Error error = error_of([&] { remove(folder.path()); });
  EXPECT_EQ(error.kind(), ErrorKind::SystemError);
  EXPECT_EQ(error.system_errno(), EISDIR);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  fs::create_symlink(file, link);
  // No device of this machine, which a wrong change of the code would remove.
  for (const std::string& stream :
       {file, std::string("/dev/fd/1"), std::string("/proc/self/fd/1"), std::string("fd:1")}) {
    EXPECT_EQ(kind_of([&] { remove(stream); }), ErrorKind::InvalidArgument) << stream;
  }
  remove(link);
  EXPECT_TRUE(fs::is_fifo(file));
  EXPECT_EQ(folder.entries(), 1U);
}

TEST_F(Remove, RefusesWhatNamesNoFileThatCanBeRemoved) {
  const TinyServer server([](const TinyRequest&) { return TinyAnswer{204, "", ""}; });
  for (const std::string& uri : {std::string("hf://org/model/file"), server.url("/folder/"),
                                 std::string("s3://bucket/folder/")}) {
    EXPECT_EQ(kind_of([&] { remove(uri); }), ErrorKind::InvalidArgument) << uri;
  }
  EXPECT_TRUE(server.requests().empty());
  const std::string why = message_of([&] { remove("hf://org/model/file?token=SECRET"); });
  EXPECT_TRUE(contains(why, "cannot be removed")) << why;
  EXPECT_FALSE(contains(why, "SECRET")) << why;
}

TEST_F(Remove, EndsOnceCancelled) {
  const Folder folder("/tmp");
  write_file(folder / "file", "x");
  cancel_.request();
  EXPECT_EQ(kind_of([&] { remove(folder / "file"); }), ErrorKind::Cancelled);
  EXPECT_EQ(folder.entries(), 1U);
}

TEST_F(Remove, ARetryFindsWhatALostResponseHasRemoved) {
  std::atomic<int> status = 503;
  const TinyServer server(
      [&](const TinyRequest&) { return TinyAnswer{status.exchange(404), "", ""}; });
  const RecordedPauses pauses{};
  remove(server.url("/file"), {{"header.X-Mine", "1"}});
  ASSERT_EQ(server.requests().size(), 2U);
  EXPECT_EQ(pauses.so_far().size(), 1U);
  for (const TinyRequest& request : server.requests()) {
    EXPECT_EQ(request.method, "DELETE");
    EXPECT_EQ(request.headers.at("depth"), "0") << "a folder would go with all in it";
    EXPECT_EQ(request.headers.at("x-mine"), "1");
  }
  status = 503;
  EXPECT_EQ(kind_of([&] { remove(server.url("/file"), {{"retries", "0"}}); }),
            ErrorKind::Unavailable);
}

TEST_F(Remove, TellsOtherAnswersFromSuccess) {
  TinyAnswer answer;
  const TinyServer server([&](const TinyRequest&) { return answer; });
  const auto why = [&](const TinyAnswer& given) {
    answer = given;
    return error_of([&] { remove(server.url("/file")); });
  };
  for (const int status : {200, 202, 204, 404, 410}) {
    answer = {status, "", ""};
    EXPECT_NO_THROW(remove(server.url("/file"))) << status;
  }
  EXPECT_EQ(why({401, "", ""}).kind(), ErrorKind::PermissionDenied);
  EXPECT_EQ(why({403, "", ""}).kind(), ErrorKind::PermissionDenied);
  EXPECT_EQ(why({405, "", ""}).kind(), ErrorKind::Unavailable);
  const std::size_t before = server.requests().size();
  EXPECT_TRUE(contains(why({200, "<html>Log in", ""}).what(), "still there"));
  // A 303 would remove the page that it leads to.
  EXPECT_TRUE(contains(why({303, "", "Location: /page\r\n"}).what(), "answers with status 303"));
  EXPECT_EQ(server.requests().size(), before + 2);
}

TEST_F(Remove, FollowsRedirectsAsSavesDo) {
  const TinyServer server([](const TinyRequest& request) {
    return request.path == "/file" ? TinyAnswer{307, "", "Location: /other\r\n"}
                                   : TinyAnswer{204, "", ""};
  });
  remove(server.url("/file"));
  ASSERT_EQ(server.requests().size(), 2U);
  EXPECT_EQ(server.requests()[1].method, "DELETE");
  EXPECT_EQ(server.requests()[1].path, "/other");
}

// Keys without a header are those of another program.
TEST_F(Remove, NeedsAHeaderInRedis) {
  bool has_header = true;
  const auto text = [](const std::string& bytes) {
    return "$" + std::to_string(bytes.size()) + "\r\n" + bytes + "\r\n";
  };
  const TinyRedis server([&](const TinyRedis::Words& words) -> std::optional<std::string> {
    const std::string& name = words.front();
    if (name == "HELLO") return "-ERR unknown command\r\n";
    if (name == "SCAN") {
      const std::string header = has_header ? text("p:header:0") : "";
      return "*2\r\n" + text("0") + (has_header ? "*2\r\n" : "*1\r\n") + header + text("p:x:5");
    }
    if (name == "UNLINK") return "+QUEUED\r\n";
    if (name == "EXEC") return "*1\r\n:2\r\n";
    return "+OK\r\n";
  });
  remove(server.uri("p"), {{"overwrite", "false"}});
  ASSERT_EQ(server.commands("UNLINK").size(), 1U);
  EXPECT_EQ(server.commands("UNLINK")[0], (TinyRedis::Words{"UNLINK", "p:header:0", "p:x:5"}));
  EXPECT_EQ(server.commands("WATCH").size(), 1U);
  has_header = false;
  remove(server.uri("p"));
  EXPECT_EQ(server.commands("UNLINK").size(), 1U);
}

}  // namespace
}  // namespace tensorizer
