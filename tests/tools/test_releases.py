"""Versions of Python, versions of the site and the tag of a release."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tools import check_tag, run_tests, site_versions
from tools import test_versions as versions
from tools.site import find_faults

ROOT = Path(__file__).resolve().parents[2]


# Versions of Python --------------------------------------------------------------------------------


def make_interpreter(folder: Path, name: str, exact: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho {exact}\n" if exact else "#!/bin/sh\nexit 127\n")
    path.chmod(0o755)
    return path


def test_the_versions_are_those_of_the_metadata_and_of_the_workflow() -> None:
    workflow = ROOT.joinpath(".github/workflows/test.yml").read_text(encoding="utf-8")
    assert versions.read_versions() == ["3.11", "3.12", "3.13"]
    assert json.dumps(versions.read_versions()) in workflow


def test_interpreters_are_found_on_the_path_of_pyenv_and_of_uv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    # A shim that answers for a version that is not selected.
    make_interpreter(tmp_path / "bin", "python3.97", "")
    older = make_interpreter(tmp_path / ".pyenv/versions/3.97.9/bin", "python3.97", "3.97.9")
    assert versions.find_interpreter("3.97", tmp_path) == (older, "3.97.9")
    newer = make_interpreter(tmp_path / ".pyenv/versions/3.97.10/bin", "python3.97", "3.97.10")
    assert versions.find_interpreter("3.97", tmp_path) == (newer, "3.97.10")
    of_uv = make_interpreter(tmp_path / ".local/share/uv/python/cpython-3.98.1-x/bin", "python3.98", "3.98.1")
    assert versions.find_interpreter("3.98", tmp_path) == (of_uv, "3.98.1")
    assert versions.find_interpreter("3.99", tmp_path) is None


def test_a_version_that_was_not_found_fails_the_run_and_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[list[str]] = []

    def make_environment(version: str, interpreter: Path) -> Path:
        # Instead of the tests: a program that prints what it was asked for.
        ran.append([version, str(interpreter)])
        return Path(sys.executable)

    monkeypatch.setattr(versions, "ROOT", ROOT / "tests" / "tools" / "absent")
    monkeypatch.setattr(versions, "make_environment", make_environment)
    monkeypatch.setattr(versions, "read_versions", lambda: ["3.11", "3.99"])
    monkeypatch.setattr(versions, "find_interpreter", lambda version, home: None)
    assert versions.main([]) == 1
    printed = capsys.readouterr().out
    assert [line.split()[:4] for line in printed.splitlines()[-2:]] == [
        ["3.11", "-", "not", "found"],
        ["3.99", "-", "not", "found"],
    ]
    assert ran == []
    with pytest.raises(SystemExit, match=r"does not name 3\.10; it names 3\.11, 3\.99"):
        versions.main(["3.10"])


def test_other_versions_run_all_tests_without_coverage() -> None:
    plain = run_tests.strip_coverage(run_tests.PARTS)
    assert [part.name for part in plain] == ["measured tests", "tests", "clean install"]
    assert not any("coverage" in words for part in plain for words in part.commands)
    full = {part.name: part.commands[-1] for part in run_tests.PARTS}
    for part in plain:
        assert part.commands[-1][-5:] == full[part.name][-5:], "the same tests"


# Versions of the site ------------------------------------------------------------------------------


def test_the_site_has_the_newest_release_of_each_minor_version() -> None:
    tags = ["v0.1.0", "v0.2.9", "v0.2.10", "v0.10.0", "v0.11.0rc1", "nightly"]
    chosen = site_versions.select_versions(tags)
    assert chosen == [("0.10", "v0.10.0"), ("0.2", "v0.2.10"), ("0.1", "v0.1.0"), ("dev", "")]
    assert site_versions.select_versions([]) == [("dev", "")]


def test_the_first_page_and_the_list_lead_to_folders_that_exist(tmp_path: Path) -> None:
    chosen = site_versions.select_versions(["v0.1.0"])
    for version in chosen:
        tmp_path.joinpath(version.folder).mkdir()
        tmp_path.joinpath(version.folder, "index.html").write_text("<p>there</p>")
    site_versions.write_root(chosen, tmp_path)
    assert find_faults(tmp_path) == []
    listed = json.loads(tmp_path.joinpath("versions.json").read_text())
    assert listed == [{"folder": "0.1", "title": "0.1.0"}, {"folder": "dev", "title": "development"}]
    shutil.rmtree(tmp_path / "0.1")
    assert find_faults(tmp_path) != [], "a missing version is found"


PAGE = """<!doctype html><html data-content_root="{root}"><a class="sidebar-brand">oncemore</a>
<p>{title}</p><script src="{root}_static/versions.js"></script></html>"""


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves a folder without a line for each request."""

    def log_message(self, *words: object) -> None:
        pass


def test_the_switcher_leads_to_the_same_page_or_to_the_first_one(tmp_path: Path) -> None:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("there is no chromium on this machine; `make browser` installs it")
    from playwright.sync_api import sync_playwright

    chosen = site_versions.select_versions(["v0.1.0"])
    pages = {"index.html": "./", "how-to/old.html": "../", "how-to/new.html": "../"}
    for version in chosen:
        for name, root in pages.items():
            place = tmp_path / version.folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(PAGE.format(root=root, title=f"{version.folder} {name}"))
        place = tmp_path / version.folder / "_static"
        place.mkdir()
        shutil.copy(ROOT / "docs/theme/static/versions.js", place)
    tmp_path.joinpath("0.1/how-to/new.html").unlink()
    site_versions.write_root(chosen, tmp_path)
    handler = functools.partial(QuietHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, sync_playwright() as driver:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{address}/")
        page.wait_for_selector(".version-switcher")
        assert page.url == f"{address}/0.1/index.html", "the first page leads to the newest release"
        assert page.locator(".version-switcher option").all_inner_texts() == ["0.1.0", "development"]
        for name, wanted in {"old": "0.1/how-to/old.html", "new": "0.1/index.html"}.items():
            page.goto(f"{address}/dev/how-to/{name}.html")
            page.select_option(".version-switcher", "0.1")
            page.wait_for_url(f"{address}/{wanted}")
        # A site that stands alone has no list of versions, and shows no switcher.
        tmp_path.joinpath("versions.json").unlink()
        # A new context, because the list may be cached.
        page = browser.new_context().new_page()
        page.goto(f"{address}/dev/index.html", wait_until="networkidle")
        assert page.locator(".version-switcher").count() == 0
        browser.close()
        server.shutdown()


# The tag of a release ------------------------------------------------------------------------------


def make_release(folder: Path) -> Path:
    """Make a repository with a signed tag of its version, and return the file of its keys."""
    for path, text in {
        "src/oncemore/_version.py": '__version__ = "1.2.3"\n',
        "CHANGELOG.md": "# Changes\n\n## 1.2.3 (2026-11-18)\n",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    key = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    signers = folder / ".github" / "allowed_signers"
    signers.parent.mkdir()
    signers.write_text(f"release@example.org {key.with_suffix('.pub').read_text()}")
    for words in (
        ["init", "--quiet"],
        ["config", "user.name", "A maintainer"],
        ["config", "user.email", "release@example.org"],
        ["config", "gpg.format", "ssh"],
        ["config", "user.signingkey", str(key)],
        ["add", "src", "CHANGELOG.md"],
        ["commit", "--quiet", "-m", "Release"],
        ["tag", "--sign", "-m", "1.2.3", "v1.2.3"],
    ):
        check_tag.run_git(folder, *words).check_returncode()
    return signers


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_a_release_has_a_tag_of_its_version_signed_by_a_known_key(tmp_path: Path) -> None:
    signers = make_release(tmp_path)
    assert check_tag.find_tag_faults(tmp_path) == []
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    known = signers.read_text()
    signers.write_text(f"release@example.org {other.with_suffix('.pub').read_text()}")
    (fault,) = check_tag.find_tag_faults(tmp_path)
    assert "v1.2.3 is not signed by a key in .github/allowed_signers" in fault
    signers.unlink()
    (fault,) = check_tag.find_tag_faults(tmp_path)
    assert "allowed_signers is missing" in fault
    signers.write_text(known)
    check_tag.run_git(tmp_path, "tag", "-f", "v1.2.3", "-m", "not signed", "--no-sign").check_returncode()
    (fault,) = check_tag.find_tag_faults(tmp_path)
    assert "is not signed" in fault
    tmp_path.joinpath("src/oncemore/_version.py").write_text('__version__ = "1.3.0"\n')
    assert [fault.split(";")[0] for fault in check_tag.find_tag_faults(tmp_path)] == [
        "this commit has no tag v1.3.0",
        "CHANGELOG.md has no dated heading for 1.3.0",
    ]
