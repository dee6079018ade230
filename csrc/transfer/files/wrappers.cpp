#include "transfer/files/wrappers.h"

#include <string_view>
#include <unordered_map>

#include "base/error.h"

namespace tensorizer {

namespace {

constexpr std::string_view kPrefixes[] = {"module.", "_orig_mod."};

// Returns the name without the prefixes of wrappers. They are also inside names, because parts of a
// module can be wrapped.
std::string unwrapped(std::string_view name) {
  std::string inner;
  while (!name.empty()) {
    bool found = false;
    for (const std::string_view prefix : kPrefixes) {
      if (!name.starts_with(prefix)) continue;
      name.remove_prefix(prefix.size());
      found = true;
    }
    if (found) continue;
    const std::size_t end = std::min(name.find('.'), name.size() - 1) + 1;
    inner += name.substr(0, end);
    name.remove_prefix(end);
  }
  return inner;
}

std::string describe(const std::string& here, const std::string& there) {
  std::string text = "\n  " + quote(there) + " in the file is " + quote(here) +
                     " here: DistributedDataParallel puts 'module.' before names, and "
                     "torch.compile '_orig_mod.'; ";
  if (here.size() > there.size()) return text + "fill the module inside of the wrapper";
  text += "save the module inside of the wrapper";
  if (!there.ends_with('.' + here)) return text;
  const std::string prefix = there.substr(0, there.size() - here.size() - 1);
  if (prefix.find('.') != std::string::npos) return text;
  return text + ", or fill torch.nn.ModuleDict({" + quote(prefix) + ": model})";
}

}  // namespace

std::string wrapper_hint(const std::vector<std::string>& missing,
                         const std::vector<std::string>& unexpected) {
  std::unordered_map<std::string, const std::string*> by_inner;
  for (const std::string& name : unexpected) by_inner.emplace(unwrapped(name), &name);
  for (const std::string& name : missing) {
    const auto found = by_inner.find(unwrapped(name));
    if (found != by_inner.end()) return describe(name, *found->second);
  }
  return {};
}

}  // namespace tensorizer
