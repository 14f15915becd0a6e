"""The front door is what `api.txt` says: a change to the public interface is made on purpose."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from tools import api

if TYPE_CHECKING:
    from pathlib import Path


def test_the_public_interface_is_the_one_in_api_txt() -> None:
    changed = api.difference(api.current())
    assert not changed, f"\n{changed}\nif that is meant: {api.REWRITE}"


@pytest.mark.parametrize("door", api.DOORS)
def test_a_front_door_lists_each_of_its_names_once_and_has_them_all(door: str) -> None:
    module = importlib.import_module(door)
    assert len(module.__all__) == len(set(module.__all__))
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert set(module.__all__) <= set(dir(module)), "dir() is where people and editors look"


def test_the_front_door_holds_names_and_nothing_else() -> None:
    import oncemore

    loose = {
        name
        for name, value in vars(oncemore).items()
        if not name.startswith("_") and name not in oncemore.__all__ and not isinstance(value, ModuleType)
    }
    assert loose <= {"TYPE_CHECKING", "annotations"}


def test_the_door_opens_for_no_name_that_it_does_not_list() -> None:
    import oncemore

    assert set(oncemore._MODULE_OF_NAME) <= set(oncemore.__all__)


def door_with(**members: object) -> str:
    door = ModuleType("door")
    door.__dict__.update(members, __all__=sorted(members))
    return "".join(f"{line}\n" for line in api.lines_of(door))


def sample(a: int, *, b: str = "x", c: object = object()) -> list[str]:
    return [str(a), b, str(c)]


class Sample(ValueError):
    __slots__ = ("_own", "often")
    often: int

    def __init__(self, text: str) -> None:
        super().__init__(text)

    def act(self, often: int = 1) -> None: ...

    @classmethod
    def of(cls, text: str) -> Sample:
        return cls(text)

    @property
    def size(self) -> int:
        return 0

    def _hidden(self) -> None: ...


def test_lines_are_readable_and_the_same_in_every_run() -> None:
    assert sorted(door_with(sample=sample, Sample=Sample, limit=3).splitlines()) == [
        "door.Sample.__init__(self, text: str) -> None",
        "door.Sample.act(self, often: int = 1) -> None",
        "door.Sample.of(cls, text: str) -> Sample: classmethod",
        "door.Sample.often: int",
        "door.Sample.size: property -> int",
        "door.Sample: class(ValueError)",
        "door.limit: int",
        "door.sample(a: int, *, b: str = 'x', c: object = ...) -> list[str]",
    ]


def test_a_changed_default_is_a_difference(tmp_path: Path) -> None:
    def before(attempts: int = 3) -> None: ...

    def after(attempts: int = 4) -> None: ...

    file = tmp_path / "api.txt"
    file.write_text(door_with(retry=before), encoding="utf-8")
    assert api.difference(door_with(retry=before), file) == ""
    assert "+door.retry(attempts: int = 4)" in api.difference(door_with(retry=after), file)
    assert "-door.retry(attempts: int = 3)" in api.difference(door_with(), file)
