// Fuzzes the files of AWS's tools and of s3cmd. Lines that are "%%" divide an input: the
// credentials, the config, and the file of s3cmd. A '$' in them is a secret.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/text.h"
#include "fuzz_text.h"
#include "io/aws/config.h"
#include "io/aws/ini.h"
#include "io/url.h"

namespace tensorizer {
namespace {

// A file in memory, with a path.
class File {
 public:
  explicit File(const char* name) : descriptor_(memfd_create(name, MFD_CLOEXEC)) {
    require(descriptor_ >= 0);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { close(descriptor_); }

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }
  void write(std::string_view text) const {
    require(ftruncate(descriptor_, 0) == 0);
    require(pwrite(descriptor_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  }

 private:
  int descriptor_;
};

struct Home {
  File credentials{"credentials"}, config{"config"}, s3cmd{"s3cmd"};

  Home() {
    for (const char* const name :
         {"AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID",
          "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"}) {
      unsetenv(name);
    }
    setenv("HOME", "/nonexistent", 1);
    setenv("AWS_SHARED_CREDENTIALS_FILE", credentials.path().c_str(), 1);
    setenv("AWS_CONFIG_FILE", config.path().c_str(), 1);
  }
};

void check_ini(const std::string& text) {
  // A value may be anything, but what is refused is not quoted.
  accepts({ErrorKind::InvalidFormat}, [&] {
    for (const auto& [section, settings] : parse_ini(text, "'f'")) {
      for (const auto& [name, value] : settings) {
        require(!name.empty() && is_lower_case(name) && trimmed(name) == name);
      }
    }
  });
}

void fuzz(std::string_view text) {
  static const Home home;
  if (contains(text, kSecret)) return;
  std::vector<std::string> files(1);
  for (const std::string_view line : split(text, '\n')) {
    if (line == "%%" && files.size() < 3) {
      files.emplace_back();
    } else {
      files.back() += with_secret(line) + "\n";
    }
  }
  files.resize(3);
  for (const std::string& file : files) check_ini(file);
  // Each file is read by a thread, which takes a hundred times as long as its parsing.
  if (text.size() % 8 != 0) return;
  home.credentials.write(files[0]);
  home.config.write(files[1]);
  home.s3cmd.write(files[2]);
  for (const bool with_s3cmd : {false, true}) {
    Cancel cancel;
    S3Options options;
    if (with_s3cmd) options.config_path = home.s3cmd.path();
    try {
      const S3Config config(options, cancel);
      config.origin();
      const S3Settings settings = config.settings();
      require(std::all_of(settings.region.begin(), settings.region.end(), [](char c) {
        return is_letter(c) || is_digit(c) || c == '-' || c == '_' || c == '.';
      }));
      require(settings.endpoint.empty() || !origin_of(settings.endpoint).empty());
    } catch (const Error& error) {
      require(error.kind() == ErrorKind::InvalidFormat ||
              error.kind() == ErrorKind::InvalidArgument);
    }
  }
}

}  // namespace
}  // namespace tensorizer

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tensorizer::fuzz({reinterpret_cast<const char*>(data), size});
  return 0;
}
