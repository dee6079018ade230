#include "io/local/access.h"

#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace tensorizer {

namespace {

constexpr const char* kAcl = "system.posix_acl_access";
constexpr std::size_t kLargestAttribute = 64 << 10;  // as in the kernel
constexpr mode_t kAll = 7;                           // read, write, execute

// The kernel's format of an ACL, in little-endian: a version, then entries.
constexpr std::uint32_t kAclVersion = 2;
struct AclEntry {
  std::uint16_t tag;
  std::uint16_t rights;
  std::uint32_t id;
};
static_assert(sizeof(AclEntry) == 8);
enum AclTag : std::uint16_t {
  kOwner = 1,
  kUser = 2,
  kGroup = 4,
  kNamedGroup = 8,
  kMask = 16,
  kOthers = 32
};

using Acl = std::vector<AclEntry>;

// Returns an attribute of the file behind `path`; null and errno if it has none or cannot be read.
std::optional<std::vector<std::byte>> attribute(const char* path, const char* name) {
  std::vector<std::byte> value(kLargestAttribute);
  const ssize_t size = getxattr(path, name, value.data(), value.size());
  if (size < 0) return std::nullopt;
  value.resize(static_cast<std::size_t>(size));
  return value;
}

void keep_user_attributes(const char* target, int file) {
  std::vector<char> names(kLargestAttribute);
  const ssize_t size = listxattr(target, names.data(), names.size());
  if (size <= 0) return;
  const std::string_view list(names.data(), static_cast<std::size_t>(size));
  for (std::size_t at = 0; at < list.size(); at = list.find('\0', at) + 1) {
    const char* const name = list.data() + at;
    if (!std::string_view(name).starts_with("user.")) continue;
    const auto value = attribute(target, name);
    if (value && fsetxattr(file, name, value->data(), value->size(), 0) != 0) {
      // Ignored: these attributes grant no rights, and saving the file matters more than one that
      // does not fit.
    }
  }
}

// Returns the entries of an ACL; null if the bytes are not an ACL.
std::optional<Acl> parse_acl(ConstBytes bytes) {
  std::uint32_t version = 0;
  if (bytes.size() < sizeof(version) || (bytes.size() - sizeof(version)) % sizeof(AclEntry) != 0) {
    return std::nullopt;
  }
  std::memcpy(&version, bytes.data(), sizeof(version));
  if (version != kAclVersion) return std::nullopt;
  Acl acl((bytes.size() - sizeof(version)) / sizeof(AclEntry));
  std::memcpy(acl.data(), bytes.data() + sizeof(version), acl.size() * sizeof(AclEntry));
  return acl;
}

bool set_acl(int file, const Acl& acl) {
  std::vector<std::byte> bytes(sizeof(kAclVersion) + acl.size() * sizeof(AclEntry));
  std::memcpy(bytes.data(), &kAclVersion, sizeof(kAclVersion));
  std::memcpy(bytes.data() + sizeof(kAclVersion), acl.data(), acl.size() * sizeof(AclEntry));
  return fsetxattr(file, kAcl, bytes.data(), bytes.size(), 0) == 0;
}

// Returns the rights that all users except the owner have.
mode_t rights_of_all(const Acl& acl) {
  mode_t rights = kAll;
  for (const AclEntry& entry : acl) {
    if (entry.tag != kOwner) rights &= entry.rights;
  }
  return rights;
}

mode_t with_same_rights(mode_t mode, mode_t rights) {
  return (mode & ~mode_t{077}) | rights << 3 | rights;
}

// Sets the ACL of `file`. Returns false if the system refuses: the file may then have another ACL.
bool keep_acl(int file, Acl acl, bool same_group) {
  if (!same_group) {
    // Members of the old group may be "others" now, and "others" members of the new group.
    const auto rights = static_cast<std::uint16_t>(rights_of_all(acl));
    for (AclEntry& entry : acl) {
      if (entry.tag == kGroup || entry.tag == kOthers) entry.rights = rights;
    }
  }
  return set_acl(file, acl);
}

bool remove_acl(int file) {
  return fremovexattr(file, kAcl) == 0 || errno == ENODATA || errno == ENOTSUP;
}

}  // namespace

void keep_access(int target, const std::string& path, int file) {
  const std::string link = "/proc/self/fd/" + std::to_string(target);
  const char* const name = access(link.c_str(), F_OK) == 0 ? link.c_str() : path.c_str();
  struct stat old;
  struct stat now;
  if (fstat(target, &old) != 0) return;
  // First, because it needs the right to write the file, which the next steps may remove.
  keep_user_attributes(name, file);
  if (fchown(file, old.st_uid, old.st_gid) != 0 &&
      fchown(file, static_cast<uid_t>(-1), old.st_gid) != 0) {
    // Ignored: the code below checks which owner and group the file has now.
  }
  if (fstat(file, &now) != 0) return;
  const bool same_group = now.st_gid == old.st_gid;
  mode_t mode = old.st_mode & 07777;
  // Set-user-ID and set-group-ID would apply to another owner or group than before.
  if (now.st_uid != old.st_uid || !same_group) mode &= 0777;

  const auto bytes = attribute(name, kAcl);
  const bool has_none = !bytes && (errno == ENODATA || errno == ENOTSUP);
  const auto acl = bytes ? parse_acl(*bytes) : std::nullopt;
  if (acl && keep_acl(file, *acl, same_group)) {
    // The ACL has set the permission bits of the mode already; the group's bits are the mask.
    if (fstat(file, &now) == 0) fchmod(file, (mode & 07000) | (now.st_mode & 0777));
    return;
  }
  // If a file has an ACL, the group's bits in its mode are not the rights of the group.
  if (!has_none) {
    mode = with_same_rights(mode, acl ? rights_of_all(*acl) : 0);
  } else if (!same_group) {
    mode = with_same_rights(mode, mode >> 3 & mode & kAll);
  }
  // With an empty mask, an ACL that could not be removed grants nothing to groups and named users.
  if (!remove_acl(file)) mode &= ~mode_t{070};
  fchmod(file, mode);
}

}  // namespace tensorizer
