#include "io/local/missing_file.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/suggest.h"
#include "base/text.h"

namespace tensorizer {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostListed = 4096;
constexpr std::string_view kEndings[] = {".tensors", ".safetensors"};

// Returns true for OWNER/NAME.
bool may_be_of_the_hub(std::string_view path) {
  const std::size_t slash = path.find('/');
  return slash != path.npos && slash > 0 && slash + 1 < path.size() &&
         std::all_of(path.begin(), path.end(),
                     [](char c) {
                       return is_letter(c) || is_digit(c) || c == '-' || c == '_' || c == '.' ||
                              c == '/';
                     }) &&
         std::ranges::count(path, '/') == 1 && path[0] != '.' &&
         std::ranges::none_of(kEndings, [&](std::string_view end) { return path.ends_with(end); });
}

// Returns the names in a folder, as far as they may be shown and can be read.
std::vector<std::string> names_in(const fs::path& folder, bool hidden) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    if (hidden || !name.starts_with('.')) names.push_back(name);
    if (names.size() == kMostListed) break;
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

std::string advice_on_missing(const std::string& path) {
  const fs::path given(path);
  const fs::path folder = given.has_parent_path() ? given.parent_path() : ".";
  const std::string name = given.filename();
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    if (!may_be_of_the_hub(path)) return "";
    return "; a model of the Hugging Face Hub is " + quote("hf://" + path, 4096);
  }
  const std::vector<std::string> names = names_in(folder, name.starts_with('.'));
  for (const std::string_view ending : kEndings) {
    const std::string whole = name + std::string(ending);
    if (std::ranges::binary_search(names, whole)) return ": did you mean " + quote(whole) + "?";
  }
  const std::vector<std::string_view> known(names.begin(), names.end());
  const std::string question = did_you_mean(name, known);
  if (!question.empty() || given.is_absolute()) return question;
  const fs::path here = fs::current_path(error);
  return error ? "" : ", in the working directory " + quote(here.string(), 4096);
}

}  // namespace tensorizer
