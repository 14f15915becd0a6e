"""A step is known by one name however its module is started; and results are read by their annotation."""

import subprocess
import sys
from pathlib import Path

import pytest

import oncemore
from tests.steps import lazily_annotated

SCRIPT = """
import oncemore

@oncemore.step(effect="pure")
def work(x):
    return x

def told(q=None):
    text = f"{work.name} {work.bind(oncemore.open('memory:')).key(1)}"
    q.put(text) if q else print(text)

if __name__ == "__main__":
    import sys
    if sys.argv[1:] == ["spawn"]:
        import multiprocessing
        c = multiprocessing.get_context("spawn")
        q = c.SimpleQueue()
        p = c.Process(target=told, args=(q,))
        p.start()
        print(q.get())
        p.join()
    else:
        told()
"""


def says(where: Path, *command: str) -> str:
    done = subprocess.run([sys.executable, *command], cwd=where, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_program_has_the_same_names_and_keys_as_a_file_with_m_imported_and_in_spawned_children(
    tmp_path: Path,
) -> None:
    (tmp_path / "nightly.py").write_text(SCRIPT)
    imported = says(tmp_path, "-c", "import nightly; nightly.told()")
    assert imported.startswith("nightly.work ")
    for command in (
        ["nightly.py"],
        ["-m", "nightly"],
        [str(tmp_path / "nightly.py")],
        ["nightly.py", "spawn"],
        ["-m", "nightly", "spawn"],
    ):
        assert says(tmp_path, *command) == imported


def test_so_has_a_module_of_a_package(tmp_path: Path) -> None:
    package = tmp_path / "shop" / "jobs"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "nightly.py").write_text(SCRIPT)
    imported = says(tmp_path, "-c", "import shop.jobs.nightly as n; n.told()")
    assert imported.startswith("shop.jobs.nightly.work ")
    assert says(tmp_path, "-m", "shop.jobs.nightly") == imported
    assert says(tmp_path, str(package / "nightly.py")) == imported


def test_a_module_in_a_plain_folder_is_known_by_how_it_was_found(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "nightly.py").write_text(SCRIPT)
    imported = says(tmp_path, "-c", "import jobs.nightly as n; n.told()")
    assert imported.startswith("jobs.nightly.work ")
    assert says(tmp_path, "-m", "jobs.nightly") == imported


def test_a_program_without_a_file_has_a_name_too(tmp_path: Path) -> None:
    assert says(tmp_path, "-c", SCRIPT).startswith("main.work ")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text(SCRIPT)
    assert says(tmp_path, "folder").startswith("__main__.work ")


def test_one_name_that_cannot_be_resolved_does_not_hide_the_others() -> None:
    with oncemore.open("memory:"):
        pays = oncemore.step(effect="once")(lazily_annotated.pays)
        assert pays() == pays() == lazily_annotated.Receipt(7)
        promises = oncemore.step(effect="once")(lazily_annotated.promises)
        assert promises(5) == promises(5) == 5


@pytest.mark.parametrize("name", ["x" * 200, "ö", "a\x00b", "'; DROP TABLE log; --", "../../etc"], ids=ascii)
def test_any_text_is_a_name(name: str, engine: oncemore.Engine) -> None:
    @oncemore.step(effect="pure", name=name)
    def work() -> int:
        return 5

    assert (work(), work()) == (5, 5)
    assert work.run().step == name
