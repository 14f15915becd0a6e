"""Settings files that another user controls are not used: they can start programs and import modules."""

import logging
import os
from pathlib import Path

import pytest

import oncemore
from oncemore import _file_trust, config
from oncemore.config import load_settings

OTHER_USER = 54321


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in config.NAMES.values():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config, "_warned", set())


def give_to_other_user(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a file belong to another user; without the right to do so, be another user."""
    if os.geteuid() == 0:
        os.chown(path, OTHER_USER, OTHER_USER)
    else:
        monkeypatch.setattr(_file_trust.os, "geteuid", lambda: OTHER_USER)


@pytest.mark.parametrize("name", ["oncemore.toml", "pyproject.toml"])
@pytest.mark.parametrize("below", [".", "src/deep"])
def test_a_settings_file_of_another_user_is_ignored_with_a_warning(
    name: str, below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    text = 'notify = [{command = ["touch", "started"]}]\nlease_s = 5\n'
    (tmp_path / name).write_text(f"[tool.oncemore]\n{text}" if name == "pyproject.toml" else text)
    give_to_other_user(tmp_path / name, monkeypatch)
    (tmp_path / below).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path / below)
    found = load_settings()
    assert (found.notify, found.lease_s) == ("", 60)
    assert found.store == str(tmp_path / ".oncemore" / "log.db")  # where it was before
    assert load_settings() == found
    (record,) = caplog.records
    said = record.getMessage()
    assert record.levelno == logging.WARNING
    assert "belongs to another user" in said
    assert (f"owner {OTHER_USER}" if os.geteuid() == 0 else "owner ") in said
    for part in (str(tmp_path / name), "mode 0644", "notify, lease_s", "chown"):
        assert part in said


@pytest.mark.parametrize(
    ("mode", "is_used"), [(0o600, True), (0o644, True), (0o666, False), (0o646, False), (0o622, False)]
)
def test_a_settings_file_that_others_can_write_is_ignored(mode: int, is_used: bool, tmp_path: Path) -> None:
    file = tmp_path / "oncemore.toml"
    file.write_text("lease_s = 5\n")
    file.chmod(mode)
    assert load_settings().lease_s == (5 if is_used else 60)


@pytest.mark.parametrize(
    ("group", "members", "is_used"),
    [("user", [], True), ("user", ["user"], True), ("user", ["user", "friend"], False), ("staff", [], False)],
)
def test_a_group_may_write_if_it_is_the_private_group_of_the_owner(
    group: str, members: list[str], is_used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import grp
    import pwd

    class User:
        pw_name, pw_gid = "user", os.getegid()

    class Group:
        gr_name, gr_mem = group, members

    monkeypatch.setattr(pwd, "getpwuid", lambda uid: User)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: Group)
    file = tmp_path / "oncemore.toml"
    file.write_text("lease_s = 5\n")
    file.chmod(0o664)
    assert load_settings().lease_s == (5 if is_used else 60)


def test_a_group_or_user_without_a_name_is_shown_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import grp
    import pwd

    def raise_key_error(_number: int) -> None:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", raise_key_error)
    monkeypatch.setattr(grp, "getgrgid", raise_key_error)
    file = tmp_path / "oncemore.toml"
    file.write_text("lease_s = 5\n")
    file.chmod(0o664)
    assert load_settings().lease_s == 60
    assert (
        f"(owner {file.stat().st_uid}, mode 0664) is writable by the group {file.stat().st_gid}"
        in caplog.text
    )


@pytest.mark.parametrize(("mode", "is_used"), [(0o1777, True), (0o777, False), (0o755, True)])
@pytest.mark.parametrize("which", ["parent", "grandparent"])
def test_a_folder_that_others_can_write_counts_unless_it_is_sticky(
    mode: int, is_used: bool, which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    folder = tmp_path / "open" / ("" if which == "parent" else "project")
    folder.mkdir(parents=True)
    (folder / "oncemore.toml").write_text("lease_s = 5\n")
    (tmp_path / "open").chmod(mode)
    monkeypatch.chdir(folder)
    assert load_settings().lease_s == (5 if is_used else 60)
    assert (f"{tmp_path / 'open'} (owner " in caplog.text) is not is_used


def test_a_symbolic_link_counts_as_well_as_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "elsewhere" / "settings.toml"
    target.parent.mkdir()
    target.write_text("lease_s = 5\n")
    (tmp_path / "project").mkdir()
    link = tmp_path / "project" / "oncemore.toml"
    link.symlink_to(target)
    monkeypatch.chdir(link.parent)
    assert load_settings().lease_s == 5
    target.parent.chmod(0o777)
    assert load_settings().lease_s == 60
    target.parent.chmod(0o755)
    if os.geteuid() == 0:
        os.lchown(link, OTHER_USER, OTHER_USER)
        assert load_settings().lease_s == 60


@pytest.mark.parametrize("name", config.ESSENTIAL)
def test_without_a_setting_that_protects_something_no_work_starts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another store would do the work twice; no codec would write plain text; no control would not stop."""
    file = tmp_path / "oncemore.toml"
    file.write_text(f'{name} = "something"\n')
    file.chmod(0o666)
    step = oncemore.step(effect="pure")(lambda: 1)  # needs the policy only
    with pytest.raises(oncemore.UsageError, match=f"it sets {name}.*{config.NAMES[name]}"):
        step()
    with oncemore.open("memory:"):
        assert step() == 1
    given: str | int = 2 if name == "policy_threshold" else "memory:"
    monkeypatch.setenv(config.NAMES[name], str(given))
    assert getattr(load_settings(), name) == given


def test_a_planted_file_that_is_not_toml_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "oncemore.toml"
    for text in ("= = =", "a = " + "[" * 100_000, "surprise = 1", "lease_s = 'x"):
        file.write_text(text)
        file.chmod(0o666)
        assert load_settings().lease_s == 60
        file.chmod(0o644)
        with pytest.raises(oncemore.UsageError, match=r"oncemore\.toml"):
            load_settings()
    assert "is ignored" in caplog.text


def test_a_pyproject_file_without_our_settings_needs_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text("[tool.other]\nx = 1\n")
    file.chmod(0o666)
    assert load_settings().lease_s == 60
    assert not caplog.records


def test_a_pipe_or_an_endless_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "oncemore.toml"
    os.mkfifo(file)
    with pytest.raises(oncemore.UsageError, match="not a regular file"):
        load_settings()
    file.unlink()
    file.write_text("#" * (_file_trust.MAX_BYTES + 1))
    with pytest.raises(oncemore.UsageError, match="larger than"):
        load_settings()


def test_platforms_without_user_ids_have_no_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "oncemore.toml"
    file.write_text("lease_s = 5\n")
    file.chmod(0o666)
    monkeypatch.delattr(_file_trust.os, "geteuid")
    assert load_settings().lease_s == 5


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
@pytest.mark.parametrize(
    ("uid_map", "mode", "is_used"),
    [
        ("0 1000 1", 0o755, True),
        ("0 1000 1", 0o1777, True),
        ("0 1000 1", 0o777, False),
        ("0 0 4294967295", 0o755, False),
        ("", 0o755, True),
        (None, 0o755, False),
    ],
)
def test_in_a_user_namespace_folders_of_the_host_are_trusted(
    uid_map: str | None, mode: int, is_used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "host" / "project"
    folder.mkdir(parents=True)
    (folder / "oncemore.toml").write_text("lease_s = 5\n")
    (tmp_path / "host").chmod(mode)
    os.chown(tmp_path / "host", OTHER_USER, OTHER_USER)
    (tmp_path / "overflow").write_text(f"{OTHER_USER}\n")
    if uid_map is not None:
        (tmp_path / "map").write_text(uid_map)
    monkeypatch.setattr(_file_trust, "UID_MAP", tmp_path / "map")
    monkeypatch.setattr(_file_trust, "OVERFLOW_UID", tmp_path / "overflow")
    monkeypatch.chdir(folder)
    assert load_settings().lease_s == (5 if is_used else 60)
    os.chown(folder / "oncemore.toml", OTHER_USER, OTHER_USER)
    assert load_settings().lease_s == 60
