"""A save that replaces a file keeps its access rights. No user or group gains any."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from support.process import ONLY_ROOT, fork, wait
from tensorizer_ops import _core
from tensorizer_ops._base.private import PrivateFolder

ACCESS = "system.posix_acl_access"
DEFAULT = "system.posix_acl_default"
TENSORS = {"x": torch.arange(100)}

OWNER, USER, GROUP, NAMED_GROUP, MASK, OTHERS = 1, 2, 4, 8, 16, 32
NOBODY = 65534
CLONE_NEWUSER = 0x10000000
SKIPPED = 77


def acl(*entries: tuple[int, int] | tuple[int, int, int]) -> bytes:
    """Encodes an ACL as the kernel does, from tuples of (tag, rights) and (tag, rights, id)."""
    ids = [entry if len(entry) == 3 else (*entry, 0xFFFFFFFF) for entry in entries]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in ids)


# user:1234:rw-, group::---, which the mode shows as 0660.
ONE_USER = acl((OWNER, 6), (USER, 6, 1234), (GROUP, 0), (MASK, 6), (OTHERS, 0))
# All users may read, except one.
ALL_BUT_ONE = acl((OWNER, 6), (USER, 0, 1234), (GROUP, 4), (MASK, 4), (OTHERS, 4))
FOR_NEW_FILES = acl((OWNER, 7), (USER, 7, 1234), (GROUP, 5), (MASK, 7), (OTHERS, 5))


def give(path: str, name: str, value: bytes) -> None:
    try:
        os.setxattr(path, name, value)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        pytest.skip(f"the file system has no {name}")


def attributes(path: str) -> dict[str, bytes]:
    return {
        name: os.getxattr(path, name)
        for name in os.listxattr(path)
        if name.startswith(("user.", "system.posix_acl"))
    }


def mode_of(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def by_writer(path: str) -> None:
    writer = torch.classes.tensorizer.Writer(path, {})
    writer.add("x", TENSORS["x"])
    writer.close()


def by_serializer(path: str) -> None:
    with tensorizer_ops.TensorSerializer(path) as serializer:
        serializer.write_state_dict(TENSORS)


def by_rewrite(path: str) -> None:
    tensorizer_ops.keys.add("access", key=bytes(32))
    try:
        tensorizer_ops.encrypt(path, path, key="named:access")
        tensorizer_ops.decrypt(path, path, key="named:access")
    finally:
        tensorizer_ops.keys.remove("access")


def by_torch_save(path: str) -> None:
    with tensorizer_ops.torch_compat.tensorizer_saving(path):
        torch.save(TENSORS, f"{path}.pickle")
    os.unlink(f"{path}.pickle")


def as_code(path: str) -> None:
    """Saves the code of a scripted module to `path`."""
    scripted = torch.jit.script(torch.nn.Linear(2, 2))
    tensorizer_ops.externalize(scripted, f"{path}.weights", path)
    os.unlink(f"{path}.weights")


SAVES: dict[str, Callable[[str], None]] = {
    "save": lambda path: tensorizer_ops.save(path, TENSORS),
    "async": lambda path: tensorizer_ops.save_async(path, TENSORS).result(),
    "writer": by_writer,
    "serializer": by_serializer,
    "rewrite": by_rewrite,
    "torch.save": by_torch_save,
    "code": as_code,
}


@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)
def test_everything_that_is_saved_over_keeps_its_access(
    path: str, save: Callable[[str], None]
) -> None:
    tensorizer_ops.save(path, TENSORS)
    give(path, ACCESS, ONE_USER)
    give(path, "user.origin", b"\x00here")
    before = attributes(path)
    with open(path, "rb") as old:  # keeps the inode number from being reused
        save(path)
        assert not os.path.samestat(os.fstat(old.fileno()), os.stat(path))
    assert attributes(path) == before
    assert mode_of(path) == 0o660
    os.chmod(path, 0o600)
    assert os.getxattr(path, ACCESS)[:20] == ONE_USER[:20]
    assert os.listdir(Path(path).parent) == [Path(path).name]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o604, 0o444, 0o2660, 0o4750])
@pytest.mark.parametrize("tmpfs", [False, True])
def test_a_default_acl_is_for_new_files(
    tmp_path: Path, shared_memory: Path, tmpfs: bool, mode: int
) -> None:
    folder = shared_memory if tmpfs else tmp_path
    path = str(folder / "model.tensors")
    tensorizer_ops.save(path, TENSORS)
    os.chmod(path, mode)
    give(str(folder), DEFAULT, FOR_NEW_FILES)
    tensorizer_ops.save(path, TENSORS)
    assert attributes(path) == {}
    assert mode_of(path) == mode

    # A new file gets its access from its folder.
    new = str(folder / "new.tensors")
    tensorizer_ops.save(new, TENSORS)
    assert ACCESS in attributes(new)


@ONLY_ROOT
def test_of_another_owner_with_all_bits(path: str) -> None:
    tensorizer_ops.save(path, TENSORS)
    os.chown(path, 12345, 54321)
    give(path, ACCESS, ONE_USER)
    os.chmod(path, 0o6760)
    before = attributes(path)
    tensorizer_ops.save(path, TENSORS)
    status = os.stat(path)
    assert (status.st_uid, status.st_gid, mode_of(path)) == (12345, 54321, 0o6760)
    assert attributes(path) == before


@ONLY_ROOT
@pytest.mark.parametrize(
    ("mode", "entries", "kept_mode", "kept_entries"),
    [
        (0o664, None, 0o644, None),
        (0o662, None, 0o622, None),
        # Former members of the group are now others, so the rights of others are reduced.
        (0o606, None, 0o600, None),
        (
            None,
            acl((OWNER, 6), (USER, 6, NOBODY), (GROUP, 0), (MASK, 6), (OTHERS, 6)),
            0o660,
            acl((OWNER, 6), (USER, 6, NOBODY), (GROUP, 0), (MASK, 6), (OTHERS, 0)),
        ),
        (
            None,
            acl((OWNER, 6), (USER, 6, NOBODY), (GROUP, 6), (NAMED_GROUP, 4, 77), (MASK, 6),
                (OTHERS, 6)),
            0o664,
            acl((OWNER, 6), (USER, 6, NOBODY), (GROUP, 4), (NAMED_GROUP, 4, 77), (MASK, 6),
                (OTHERS, 4)),
        ),
    ],
)  # fmt: skip
def test_who_cannot_keep_the_group_gives_no_right_away(
    shared_memory: Path,
    mode: int | None,
    entries: bytes | None,
    kept_mode: int,
    kept_entries: bytes | None,
) -> None:
    path = str(shared_memory / "model.tensors")
    tensorizer_ops.save(path, TENSORS)
    os.chown(path, NOBODY if mode is not None and not mode & 2 else 12345, 54321)
    shared_memory.chmod(0o777)
    if mode is not None:
        os.chmod(path, mode)
    if entries is not None:
        give(path, ACCESS, entries)

    def child() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        tensorizer_ops.save(path, TENSORS)

    assert wait(fork(child)) == 0
    status = os.stat(path)
    assert (status.st_uid, status.st_gid) == (NOBODY, NOBODY)
    assert mode_of(path) == kept_mode
    assert attributes(path) == ({} if kept_entries is None else {ACCESS: kept_entries})


@ONLY_ROOT
def test_files_that_others_made_in_a_sticky_folder(shared_memory: Path) -> None:
    """Who has made a file where all may create some does not get what is saved there."""
    path = str(shared_memory / "model.tensors")

    def plant(owner: int) -> None:
        Path(path).unlink(missing_ok=True)
        tensorizer_ops.save(path, TENSORS)
        os.chown(path, owner, owner)
        os.chmod(path, 0o666)

    def others(save: bool) -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        if save:
            tensorizer_ops.save(path, TENSORS)
        else:
            with pytest.raises(PermissionError, match="belongs to another user, who could change"):
                tensorizer_ops.save(path, TENSORS)

    shared_memory.chmod(0o1777)
    plant(12345)
    inode = os.stat(path).st_ino
    assert wait(fork(lambda: others(save=False))) == 0
    assert os.stat(path).st_ino == inode
    tensorizer_ops.save(path, TENSORS)
    status = os.stat(path)
    assert (status.st_uid, status.st_gid) == (0, 0)
    assert mode_of(path) & 0o022 == 0
    # What the owner of the folder has made is written in place.
    plant(0)
    assert wait(fork(lambda: others(save=True))) == 0
    assert (os.stat(path).st_uid, mode_of(path)) == (0, 0o666)
    # In a folder where no others may create files, all is kept.
    shared_memory.chmod(0o1755)
    plant(12345)
    tensorizer_ops.save(path, TENSORS)
    assert (os.stat(path).st_uid, mode_of(path)) == (12345, 0o666)


@ONLY_ROOT
def test_a_stream_that_others_made_in_a_sticky_folder(shared_memory: Path, tmp_path: Path) -> None:
    shared_memory.chmod(0o1777)
    path, link = shared_memory / "stream", tmp_path / "link"
    os.mkfifo(path)
    link.symlink_to(path)
    os.chown(path, 12345, 12345)
    for given in (path, link):
        with pytest.raises(PermissionError, match="a stream or device of another user"):
            tensorizer_ops.save(given, TENSORS)


def in_a_user_namespace(work: Callable[[], None]) -> None:
    """Run `work` in a fork where only this user has a number."""

    def child() -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER) != 0:
            os._exit(SKIPPED)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        work()

    user, group = os.geteuid(), os.getegid()
    status = wait(fork(child))
    if status == SKIPPED:
        pytest.skip("there are no user namespaces")
    assert status == 0


@ONLY_ROOT
def test_all_users_outside_of_a_container_are_others(shared_memory: Path) -> None:
    """They have one number there, so the owner of the folder may be another than of the file."""
    path = shared_memory / "model.tensors"
    tensorizer_ops.save(path, TENSORS)
    os.chown(path, 12345, 12345)
    os.chown(shared_memory, 54321, 54321)
    shared_memory.chmod(0o1777)

    def look() -> None:
        assert os.stat(path).st_uid == os.stat(shared_memory).st_uid == 65534
        assert not _core.leads_to_own_file(os.fsencode(path))
        with pytest.raises(PermissionError, match="belongs to another user, who may replace"):
            PrivateFolder(shared_memory / "scratch", is_signed=True)

    in_a_user_namespace(look)
    assert not (shared_memory / "scratch").exists()


def test_rights_that_cannot_be_kept_go(path: str) -> None:
    """A user namespace accepts no ACL with a user id that is not mapped in it."""
    tensorizer_ops.save(path, TENSORS)
    give(path, ACCESS, ALL_BUT_ONE)
    assert mode_of(path) == 0o644

    in_a_user_namespace(lambda: tensorizer_ops.save(path, TENSORS))
    assert attributes(path) == {}
    assert mode_of(path) == 0o600
