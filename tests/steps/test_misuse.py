"""Every mistake shows when a function is decorated, and its message names the argument."""

import asyncio
import re
from typing import Any

import pytest

import oncemore
from oncemore.policy.model import EFFECTS


def work(x: int = 0, *, token: str = "") -> int:
    return x


async def later(x: int = 0) -> int:
    return x


def generator(x: int = 0) -> Any:
    yield x


async def async_generator(x: int = 0) -> Any:
    yield x


def test_leaving_out_the_effect_names_the_five_choices() -> None:
    for misuse in (oncemore.step, lambda f: oncemore.step()(f), lambda f: oncemore.step(name="work")(f)):
        with pytest.raises(oncemore.UsageError) as caught:
            misuse(work)
        assert all(effect in str(caught.value) for effect in EFFECTS)
        assert len(EFFECTS) == 5


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("unknown effect", {"effect": "safe"}, "effect is 'safe'; the choices are pure, idempotent"),
    ("empty name", {"name": ""}, "name is ''; it takes a text of 1 to 200 characters"),
    ("long name", {"name": "x" * 201}, "name is 'xxx"),
    ("number as name", {"name": 5}, "name is 5; it takes a text"),
    ("number as version", {"version": 2}, "version is 2; it takes a text"),
    ("object as config", {"config": object()}, "config is an object"),
    ("unknown ignored", {"ignore": "y"}, "ignore of .* names y, which is not a parameter of it"),
    ("unknown ignored, several", {"ignore": ["x", "z", "y"]}, "names y, z, which is not a parameter"),
    ("number as ignore", {"ignore": 5}, "ignore of .* is 5; it takes names of parameters"),
    ("numbers as ignore", {"ignore": (1, 2)}, r"ignore of .* is \(1, 2\); it takes names"),
    ("unknown key", {"key": "y"}, "key of .* names y, which is not a parameter of it"),
    ("number as key", {"key": 5}, "key of .* is 5; it takes names of parameters"),
    ("async key", {"key": later}, "key of .* is an async function"),
    (
        "unknown bucket",
        {"bucket": "fortnight"},
        "bucket is 'fortnight'; the choices are minute, hour, day, week",
    ),
    ("empty bucket", {"bucket": 0}, "bucket is 0; it takes 0.001 s or more"),
    ("negative bucket", {"bucket": -5}, "bucket is -5; it takes 0 to"),
    ("no bucket", {"bucket": float("nan")}, "bucket is nan"),
    ("endless bucket", {"bucket": float("inf")}, "bucket is inf"),
    ("truth as bucket", {"bucket": True}, "bucket is True; it takes seconds"),
    ("unknown policy", {"policy": "nope"}, "policy 'nope' is not known; known are"),
    ("number as policy", {"policy": 5}, "policy is 5; it takes the name of a policy"),
    ("text as timeout", {"timeout": "5"}, "timeout is '5'; it takes seconds"),
    ("negative timeout", {"timeout": -1}, "timeout_s is -1"),
    ("no time at all", {"total_timeout": 0}, "total_timeout_s is 0"),
    ("unknown if_running", {"if_running": "skip"}, "if_running is 'skip'; the choices are wait, raise"),
    (
        "unknown change",
        {"on_version_change": "ask"},
        "on_version_change is 'ask'; the choices are new, reuse, fail",
    ),
    ("once anew", {"effect": "once", "on_version_change": "new"}, "would repeat what may happen only once"),
    ("unknown priority", {"priority": "P9"}, "priority is 'P9'; the choices are P0, P1, P2"),
    ("negative retention", {"retain_for": -1}, "retain_for is -1; it takes 0 to"),
    ("text as retention", {"retain_for": "1d"}, "retain_for is '1d'; it takes seconds"),
    ("unknown isolation", {"isolate": "thread"}, "isolate is 'thread'; it takes 'process'"),
    ("not_applied of pure", {"not_applied": OSError}, "not_applied is for effect='once'; pure work"),
    (
        "number as not_applied",
        {"effect": "once", "not_applied": 5},
        "not_applied is 5; it takes exception types",
    ),
    ("nothing as not_applied", {"effect": "once", "not_applied": None}, "not_applied is None"),
    ("async not_applied", {"effect": "once", "not_applied": later}, "it takes exception types, a predicate"),
    ("a class as predicate", {"effect": "once", "not_applied": str}, "not_applied is <class 'str'>"),
    (
        "Ctrl-C as not_applied",
        {"effect": "once", "not_applied": KeyboardInterrupt},
        "it takes exception types",
    ),
    ("cancellation", {"effect": "once", "not_applied": asyncio.CancelledError}, "it takes exception types"),
    ("one of several", {"effect": "once", "not_applied": (OSError, SystemExit)}, "it takes exception types"),
    ("reconcile of pure", {"reconcile": work}, "reconcile is for effect='once'; pure work"),
    (
        "text as reconcile",
        {"effect": "once", "reconcile": "look"},
        "reconcile is 'look'; it takes a function",
    ),
    (
        "async reconcile",
        {"effect": "once", "reconcile": later},
        "reconcile is an async function, and the step is not",
    ),
]


@pytest.mark.parametrize(("options", "says"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_wrong_option_is_refused_by_its_name(options: dict[str, Any], says: str) -> None:
    with pytest.raises(oncemore.UsageError, match=says):
        oncemore.step(**{"effect": "pure", **options})(work)


@pytest.mark.parametrize(
    ("thing", "says"),
    [
        (5, "5 is not a function"),
        ("work", "'work' is not a function"),
        (dict, "is not a function; a step is made of a function"),
        (generator, "generator is a generator function: .* return a list"),
        (async_generator, "async_generator is a generator function"),
        (staticmethod(work), "put @oncemore.step below @staticmethod"),
        (classmethod(work), "put @oncemore.step below @classmethod"),
        (max, "does not declare its arguments; wrap it in a function"),
    ],
    ids=["number", "text", "class", "generator", "async generator", "staticmethod", "classmethod", "builtin"],
)
def test_what_is_no_plain_or_async_function_is_refused(thing: Any, says: str) -> None:
    with pytest.raises(oncemore.UsageError, match=says):
        oncemore.step(effect="pure")(thing)


def test_isolation_is_for_plain_functions() -> None:
    with pytest.raises(oncemore.UsageError, match="isolate='process' is for plain functions"):
        oncemore.step(effect="pure", isolate="process")(later)
    oncemore.step(effect="pure", isolate="process")(work)


def test_options_are_given_by_keyword_and_must_exist() -> None:
    with pytest.raises(oncemore.UsageError, match="takes keywords only, and got 'work'"):
        oncemore.step("work", effect="pure")
    with pytest.raises(TypeError, match=re.escape("unexpected keyword argument 'retries'")):
        oncemore.step(effect="pure", retries=3)  # type: ignore[call-arg]


def test_an_unwise_policy_is_a_warning_at_the_users_line() -> None:
    with pytest.warns(oncemore.PolicyWarning) as caught:
        oncemore.step(effect="pure", policy=oncemore.Policy(max_attempts=50))(work)
    assert caught[0].filename == __file__


def test_options_that_are_right_are_taken() -> None:
    step = oncemore.step(
        effect="once", name="all", key=("x",), ignore={"token"}, partition="p", bucket="week", tenant="t",
        config={"a": 1}, version="2", on_version_change="fail", policy="standard", timeout=5,
        total_timeout=60,
        if_running="raise", not_applied=[OSError], reconcile=work, provider=None, dataset="d", priority="P0",
        retain_for=86_400,
    )(work)  # fmt: skip
    with oncemore.open("memory:"):
        state = step.run(1).state
    assert (state.dataset, state.priority, state.retain_s, state.tenant) == ("d", "P0", 86_400.0, "t")


@pytest.mark.parametrize("dataset", [lambda x: f"d{x}", lambda x: None], ids=["named", "none"])
def test_a_dataset_may_be_named_by_the_arguments(dataset: Any) -> None:
    step = oncemore.step(effect="pure", dataset=dataset)(work)
    with oncemore.open("memory:"):
        assert step.run(7).state.dataset == (dataset(7) or "")


def test_a_policy_may_be_a_file_or_of_a_provider(tmp_path: Any) -> None:
    (tmp_path / "mine.yaml").write_text("version: '1'\nextends: lit\n", encoding="utf-8")
    oncemore.step(effect="pure", policy=tmp_path / "mine.yaml")(work)
    with oncemore.open("memory:"):
        assert (
            oncemore.step(effect="pure", policy="nova-cat", provider="eso")(work).run(1).status == "COMPLETE"
        )
