"""A secret shows nothing of itself, and gives back what it holds."""

import copy
import pickle

import pytest

from oncemore import Secret
from oncemore.steps.secret import secret_texts_of


@pytest.mark.parametrize("value", ["hunter2", b"hunter2", {"a": 1}, None, 5], ids=repr)
def test_it_gives_back_what_it_holds_and_shows_nothing(value: object) -> None:
    secret = Secret(value)
    assert secret.reveal() is value
    for shown in (repr(secret), str(secret), f"{secret}", f"{secret!r:>20}", repr([secret]), ascii(secret)):
        assert "hunter2" not in shown
        assert "***" in shown
    assert not hasattr(secret, "__dict__")


def test_it_is_equal_to_one_that_holds_the_same_and_to_nothing_else() -> None:
    assert Secret("a") == Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a"), Secret("b"), "a"}) == 3
    with pytest.raises(TypeError):
        hash(Secret([]))


def test_it_can_be_copied_and_brought_to_another_process() -> None:
    secret = Secret("hunter2")
    assert pickle.loads(pickle.dumps(secret)) == copy.deepcopy(secret) == copy.copy(secret) == secret  # noqa: S301


def test_the_texts_of_secrets_are_found_among_values() -> None:
    assert secret_texts_of(["a", Secret("b"), Secret(5), 6, None]) == ("a", "b")
