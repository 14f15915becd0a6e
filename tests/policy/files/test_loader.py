"""Names, addresses, the policy root, digests, caches and warnings."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore import PolicyError, PolicyWarning
from oncemore.policy import files
from oncemore.policy.files import address, file_reader, loader
from oncemore.policy.policy import STANDARD

if TYPE_CHECKING:
    from oncemore.testing import FakeClock

Write = Callable[..., Path]

MANY = """
version: "1"
retry_policy: {max_attempts: 2}
policies: {slow: {max_attempts: 7}}
providers: {eso: {retry_policy: {timeout_s: 3}}}
"""
GOVERNED = "version: retry-loop-v1.0\ngoverned: true\nretry_policy: {timeout_s: 1}\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "root"
    folder.joinpath("retry-loop/policies").mkdir(parents=True)
    monkeypatch.setenv("ONCEMORE_POLICY_ROOT", str(folder))
    return folder


def test_an_address_names_a_profile_a_policy_and_a_provider(write: Write) -> None:
    path = write(MANY)
    assert files.policy(path).max_attempts == 2
    assert files.policy(str(path)).max_attempts == 2
    assert files.policy(f"{path}/slow").max_attempts == 7
    assert files.policy(f"{path}/slow@eso").timeout_s == 3.0
    assert files.policy(f"{path}@eso").timeout_s == 3.0
    assert files.policy(path, provider="eso").timeout_s == 3.0
    assert files.policy(f"{path}/slow", provider="eso").name == "mine/slow@eso"
    assert files.policy("nova-cat/acquisition").max_delay_s == 180.0
    assert files.policy("standard") == STANDARD


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (
            "nope",
            "policy 'nope' is not known; known are exoarmur, kfm-loop, kfm-loop-default, kfm-rules, lit",
        ),
        ("", "policy '' is not known"),
        ("a/b/c", "policy 'a/b/c' is not known; known are"),
        ("a/b/c", "the path of a file ends in .yaml"),
        ("nova-cat/nope", "policy 'nova-cat/nope' is not known;"),
        ("nova-cat/nope", "has nova-cat/acquisition, nova-cat/default"),
        ("nova-cat@", "is not known"),
        ("missing.yaml", "missing.yaml: cannot be read: there is no such file"),
    ],
)
def test_an_unknown_address_is_refused_with_those_that_are_known(address: str, said: str) -> None:
    for ask in (files.policy, lambda policy: oncemore.retry(on=OSError, policy=policy)):
        with pytest.raises(PolicyError) as caught:
            ask(address)
        assert said in str(caught.value)


def test_the_error_for_a_missing_default_policy_lists_the_policies(write: Write) -> None:
    path = write('version: "1"\npolicies: {slow: {}, quick: {}}\n')
    with pytest.raises(
        PolicyError, match=r"policy 'mine' is not known; .*mine.yaml has mine/quick, mine/slow"
    ):
        files.policy(path)


def test_a_path_of_bytes_is_refused() -> None:
    with pytest.raises(PolicyError, match="the path of a policy file is b'x'; it must be a text"):
        files.load(b"x")  # type: ignore[arg-type]


@pytest.mark.req("POL-8")
def test_every_policy_below_the_root_is_listed_with_version_and_signature(root: Path) -> None:
    root.joinpath("mine.yaml").write_text('version: "3"\nretry_policy: {}\n')
    root.joinpath("retry-loop/policies/night.yaml").write_text(GOVERNED)
    root.joinpath("retry-loop/policies/named.yaml").write_text(
        'profile: other\nversion: "1"\nretry_policy: {}\n'
    )
    root.joinpath("broken.yaml").write_text("zzz: 1\n")
    root.joinpath("unreadable.yaml").write_bytes(b"\xff")
    root.joinpath("notes.txt").write_text("not a policy")
    listed = {one.name: one for one in files.listing()}
    assert (listed["mine"].version, listed["mine"].governed, listed["mine"].signature) == (
        "3",
        False,
        "unsigned",
    )
    assert (listed["night"].version, listed["night"].governed) == ("retry-loop-v1.0", True)
    assert listed["other"].source == str(root / "retry-loop/policies/named.yaml")
    assert "zzz is not a field" in listed["broken"].fault
    assert "is not UTF-8" in listed["unreadable"].fault
    assert listed["kfm-loop"][1:5] == (
        "retry-loop-v11.2", True, file_reader.packaged_path("kfm-loop"), "packaged, digest verified",
    )  # fmt: skip
    assert files.names() == sorted(
        [*file_reader.PACKAGED_FILES, "mine", "night", "other", "broken", "unreadable"]
    )


def test_policies_of_the_root_are_known_by_name(root: Path) -> None:
    root.joinpath("mine.yaml").write_text(MANY)
    root.joinpath("retry-loop/policies/child.yaml").write_text('version: "2"\nextends: mine\n')
    assert files.policy("mine/slow@eso").max_attempts == 7
    assert files.profile("child").extends == ("mine",)
    with pytest.raises(PolicyError, match=r"known are .*mine"):
        files.profile("nope")


def test_two_files_may_not_have_the_same_name(root: Path) -> None:
    root.joinpath("a.yaml").write_text('profile: same\nversion: "1"\nretry_policy: {}\n')
    root.joinpath("same.yaml").write_text('version: "1"\nretry_policy: {}\n')
    with pytest.raises(PolicyError, match=r"two files are called same: .*a.yaml and .*same.yaml"):
        files.profile("same")


def test_a_file_may_not_have_the_name_of_a_packaged_profile(root: Path, write: Write) -> None:
    root.joinpath("kfm-rules.yaml").write_text('version: "1"\nretry_policy: {}\n')
    with pytest.raises(PolicyError, match=r"kfm-rules.yaml is called kfm-rules, like a packaged profile"):
        files.policy("kfm-rules")
    with pytest.raises(PolicyError, match=r"kfm-rules.yaml: profile is kfm-rules, like a packaged profile"):
        files.load(root / "kfm-rules.yaml")
    path = write('version: "1"\nname: lit\nretry_policy: {}\n')
    with pytest.raises(PolicyError, match=r"mine.yaml:2:1: profile is lit, like a packaged profile"):
        files.load(path)
    assert len([one for one in files.listing() if one.name == "kfm-rules"]) == 2


def test_a_policy_root_that_is_not_a_folder_or_too_large_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "MAX_FILES", 3)
    for n in range(3):
        root.joinpath(f"f{n}.yaml").write_text('version: "1"\nretry_policy: {}\n')
    assert len(files.names()) == len(file_reader.PACKAGED_FILES) + 3
    root.joinpath("f3.yaml").touch()
    with pytest.raises(PolicyError, match="holds more than 3 policy files"):
        files.names()
    monkeypatch.setenv("ONCEMORE_POLICY_ROOT", str(root / "nowhere"))
    with pytest.raises(PolicyError, match=r"ONCEMORE_POLICY_ROOT is '.*nowhere', which is not a folder"):
        files.policy("kfm-rules")
    monkeypatch.setenv("ONCEMORE_POLICY_ROOT", "")
    assert files.names() == sorted(file_reader.PACKAGED_FILES)


def test_the_cache_of_names_is_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(5):
        root.joinpath("mine.yaml").write_text(f'version: "{n}"\nretry_policy: {{}}\n' + "#" * n)
        assert "mine" in files.names()
        monkeypatch.setattr(address, "MAX_FILES", 2)
        assert len(address._name_cache) <= 2
    root.joinpath("gone.yaml").symlink_to(root / "nowhere")
    assert "gone" in files.names()


def test_a_file_with_an_invalid_file_name_must_give_its_name(write: Write) -> None:
    text = 'version: "1"\nretry_policy: {}\n'
    for name in ("my policy.yaml", "a@b.yaml", ".yaml"):
        with pytest.raises(PolicyError, match="profile is missing, and the file's own name"):
            files.load(write(text, name))
        assert files.load(write(f"profile: mine\n{text}", name)).name == "mine"


# Trust.


def test_a_packaged_file_is_recognised_under_every_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file_reader.PROFILES_FOLDER)
    tmp_path.joinpath("link").symlink_to(file_reader.PROFILES_FOLDER)
    for path in ("lit.yaml", "./retry-loop/../lit.yaml", tmp_path / "link" / "lit.yaml"):
        assert files.load(path).signature == "packaged, digest verified"


@pytest.mark.parametrize("name", file_reader.PACKAGED_FILES)
def test_one_altered_byte_in_a_packaged_profile_is_refused_by_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in file_reader.PROFILES_FOLDER.rglob("*"):
        if path.suffix in (".yaml", ".txt"):
            copy = tmp_path / path.relative_to(file_reader.PROFILES_FOLDER)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    monkeypatch.setattr(file_reader, "PROFILES_FOLDER", tmp_path)
    assert files.profile(name).signature == "packaged, digest verified"
    file = tmp_path / file_reader.PACKAGED_FILES[name]
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(data)
    with pytest.raises(PolicyError, match=r"was changed after its release: its SHA-256 is") as caught:
        files.profile(name)
    assert str(file) in str(caught.value)
    tmp_path.joinpath("digests.txt").unlink()
    with pytest.raises(PolicyError, match=r"digests.txt: cannot be read; install the package again"):
        files.profile(name)


def test_an_unsigned_governed_file_is_shown_and_not_loaded(write: Write) -> None:
    path = write(GOVERNED)
    with pytest.raises(PolicyError, match=f"{path}: is not signed; a governed file needs the signature"):
        files.load(path)
    profile = files.inspect_file(path)
    assert (profile.governed, profile.signature) == (True, "unsigned")
    assert "is not signed" in profile.warnings[0]
    assert files.inspect_file(path) is profile


def test_an_ungoverned_file_and_packaged_ones_load_without_warnings(write: Write) -> None:
    assert files.load(write(MANY)).warnings == ()
    assert [files.profile(name).warnings for name in file_reader.PACKAGED_FILES] == [()] * len(
        file_reader.PACKAGED_FILES
    )


def test_a_file_that_extends_another_gives_each_warning_once(write: Write) -> None:
    long = "base_delay_s: 2000, max_delay_s: 4000"
    write(f'version: "1"\nretry_policy: {{{long}}}\n', "parent.yaml")
    with pytest.warns(PolicyWarning) as caught:
        files.load(write('version: "2"\nprofile: mine.yaml\nextends: parent.yaml\n'))
    assert ["mine.yaml" in str(warning.message) for warning in caught] == [True]


# What is remembered.


def test_a_file_is_read_again_when_it_or_its_parent_has_changed(write: Write) -> None:
    write('version: "1"\nretry_policy: {max_attempts: 2}\n', "parent.yaml")
    path = write('version: "1"\nextends: parent.yaml\n')
    first = files.load(path)
    assert files.load(path) is first
    write('version: "1"\nretry_policy: {max_attempts: 5}\n', "parent.yaml")
    assert files.load(path).policy().max_attempts == 5
    write('version: "1"\nretry_policy: {max_attempts: 6}\n')
    assert files.load(path).policy().max_attempts == 6
    path.unlink()
    with pytest.raises(PolicyError, match="there is no such file"):
        files.load(path)


def test_the_cache_of_profiles_is_bounded(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "MAX_CACHED_PROFILES", 3)
    for n in range(7):
        files.load(write(MANY, f"f{n}.yaml"))
        assert len(loader._profile_cache) <= 3


# The value.


def test_a_profile_is_frozen_comparable_and_can_be_pickled(write: Write) -> None:
    profile = files.load(write(MANY))
    with pytest.raises(AttributeError, match="Profile is frozen"):
        profile.name = "other"
    with pytest.raises(TypeError):
        profile.policies["x"] = STANDARD  # type: ignore[index]
    with pytest.raises(TypeError):
        profile.sections["x"] = 1  # type: ignore[index]
    again = pickle.loads(pickle.dumps(profile))  # noqa: S301
    assert again == profile
    assert hash(again) == hash(profile)
    files.forget()
    assert files.load(profile.source) == profile


def test_a_profile_can_be_shown_as_plain_values(write: Write) -> None:
    import json

    for name in file_reader.PACKAGED_FILES:
        plain = json.loads(json.dumps(files.profile(name).plain()))
        assert plain["name"] == name
    plain = files.load(write(MANY)).plain()
    assert plain["policies"]["slow"]["max_attempts"] == 7
    assert plain["providers"]["eso"]["default"]["timeout_s"] == 3.0
    assert files.profile("nova-cat").plain()["cooldowns"] == {
        "": {"base_s": 300.0, "multiplier": 2.0, "cap_s": 86400.0}
    }


def test_the_digest_is_that_of_the_file(write: Write) -> None:
    from hashlib import sha256

    path = write(MANY)
    assert files.load(path).digest == sha256(path.read_bytes()).hexdigest()


def test_an_error_keeps_its_faults_over_pickling(write: Write) -> None:
    with pytest.raises(files.PolicyFileError) as caught:
        files.load(write("zzz: 1\n"))
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert again.faults == caught.value.faults
    assert str(again) == str(caught.value)
    fault = again.faults[-1]
    assert (fault.mark.line, fault.mark.column, fault.field) == (1, 1, "zzz")


# Through the door.


def failing(clock: FakeClock, **options: object) -> list[float]:
    """The delays of work that always fails."""
    clock.delays.clear()

    def work() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        oncemore.retrying(work, **options)()  # type: ignore[arg-type]
    return list(clock.delays)


def test_retry_takes_a_policy_by_path_or_address(write: Write, instant_retries: FakeClock) -> None:
    path = write('version: "1"\nretry_policy: {delays_s: [1, 2]}\npolicies: {slow: {delays_s: [7, 8]}}\n')
    assert failing(instant_retries, on=TimeoutError, policy=path) == [1.0, 2.0]
    assert failing(instant_retries, on=TimeoutError, policy=str(path)) == [1.0, 2.0]
    assert failing(instant_retries, on=TimeoutError, policy=f"{path}/slow") == [7.0, 8.0]
    assert failing(instant_retries, on=TimeoutError, policy=path, attempts=2) == [1.0]


@pytest.mark.req("PROD-2")
def test_one_unchanged_function_shows_the_schedules_of_two_files(
    write: Write, instant_retries: FakeClock
) -> None:
    one = write('version: "1"\nretry_policy: {schedule: linear, base_delay_s: 1, jitter: none}\n', "one.yaml")
    two = write('version: "1"\nretry_policy: {max_attempts: 4, base_delay_s: 2, jitter: none}\n', "two.yaml")
    assert failing(instant_retries, on=TimeoutError, policy=one) == [1.0, 2.0]
    assert failing(instant_retries, on=TimeoutError, policy=two) == [2.0, 4.0, 8.0]


def test_transient_means_what_the_files_classes_say(write: Write, instant_retries: FakeClock) -> None:
    path = write('version: "1"\nretry_policy: {delays_s: [1, 2]}\nclassify: {non_retryable: [TIMEOUT]}\n')
    assert failing(instant_retries, on="transient", policy=path) == []
    path = write('version: "1"\nretry_policy: {delays_s: [1, 2]}\nclassify: {retryable: [TIMEOUT]}\n')
    assert failing(instant_retries, on="transient", policy=path) == [1.0, 2.0]


def test_a_changed_file_changes_the_next_block_of_attempts(write: Write, instant_retries: FakeClock) -> None:
    for delays in ([1, 2], [3, 4]):
        path = write(f'version: "1"\nretry_policy: {{delays_s: {delays}}}\n')
        instant_retries.delays.clear()
        with pytest.raises(TimeoutError):
            for attempt in oncemore.attempts(on=TimeoutError, policy=path):
                with attempt:
                    raise TimeoutError
        assert instant_retries.delays == delays


def test_a_decorator_gives_each_warning_once_at_its_own_line(write: Write) -> None:
    long = "base_delay_s: 2000, max_delay_s: 4000, timeout_s: 1"
    path = write(f'version: "1"\nreview_by: 2026-01-31\nretry_policy: {{{long}}}\n')
    with pytest.warns(PolicyWarning) as caught:
        oncemore.retry(on=OSError, policy=path)(print)
    assert [warning.filename for warning in caught] == [__file__] * 2
    assert "its review is overdue since 2026-01-31" in str(caught[0].message)
    assert "up to 3 calls and 6000 s" in str(caught[1].message)


@pytest.mark.req("POL-2")
def test_a_seed_template_is_resolved_per_run_and_a_literal_is_used_as_it_is(
    write: Write, instant_retries: FakeClock
) -> None:
    def seed(path: Path) -> str:
        def work() -> None:
            raise TimeoutError

        with pytest.raises(TimeoutError) as caught:
            oncemore.retrying(work, on=TimeoutError, policy=path)()
        decision = oncemore.get_decision(caught.value)
        assert decision is not None
        return decision.situation.seed

    template = write('version: "1"\nretry_policy: {jitter_seed: "<sha256(run_id)>"}\n', "template.yaml")
    literal = write('version: "1"\nretry_policy: {jitter_seed: a literal}\n', "literal.yaml")
    assert seed(template) != seed(template)
    assert seed(literal) == seed(literal) == "a literal"
