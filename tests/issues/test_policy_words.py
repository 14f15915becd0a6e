"""What is said of a policy is what the engine does: show, replay --current, the clamps of a proof."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import oncemore
from oncemore.log.store import HeadQuery
from oncemore.policy import files
from oncemore.policy.decide import Decision, Situation, decide_retry
from oncemore.policy.files import loader
from oncemore.policy.model import Failure
from oncemore.policy.tuning import Signals
from oncemore.queries.policies import find_policy
from oncemore.queries.policy_question import PolicyQuestion, answer_question
from oncemore.queries.replay import replay_all, replay_run
from oncemore.testing import instant_waits
from tests.steps.colours import SOON, Turns, in_memory, made

OUR_OWN = 'profile: mine\nversion: "1"\nretry_policy: {{max_attempts: {attempts}, delays_s: [1, 2, 3]}}\n'


@in_memory
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (oncemore.PolicyViolation("SCHEMA_INVALID", "bad"), "SCHEMA_INVALID"),
        (oncemore.PermanentError("x"), "PermanentError"),
    ],
)
@pytest.mark.parametrize("profile", ["kfm-rules", "kfm-loop", "nova-cat"])
@pytest.mark.usefixtures("engine", "clock")
def test_show_says_what_the_engine_does(profile: str, error: Exception, code: str) -> None:
    run = made("plain", Turns(error), policy=profile, provider="a").run()
    found = find_policy(profile)
    answer = answer_question(found.policy, PolicyQuestion(1, code), quarantines=found.quarantines)
    (proof,) = run.proofs
    assert (answer.action, answer.reason) == (proof["action"], proof["reason"])
    assert (answer.action == "quarantine") is (profile == "kfm-rules")


@pytest.mark.parametrize("given", ["./mine.yaml", "./mine.yaml@eso", Path("mine.yaml")], ids=str)
def test_replay_finds_drift_for_a_policy_given_by_path(given: Any, engine: oncemore.Engine) -> None:
    path = Path("mine.yaml")
    path.write_text(OUR_OWN.format(attempts=4))
    loader.forget()
    with instant_waits():
        run = made("plain", Turns(SOON), policy=given).run()
    entity = f"run/{run.key}"
    assert replay_run(engine.store, entity, current=True).verdict == "agrees"
    path.write_text(OUR_OWN.format(attempts=2))
    loader.forget()
    found = replay_run(engine.store, entity, current=True)
    assert found.verdict == "drift"
    assert {"policy.digest", "now.action", "now.thresholds.max_attempts"} <= {
        one.what for one in found.differences
    }
    assert replay_all(engine.store, current=True).totals.drift == 1
    assert replay_run(engine.store, entity).verdict == "agrees"
    path.unlink()
    loader.forget()
    assert replay_run(engine.store, entity, current=True).verdict == "agrees"


@in_memory
def test_replay_compares_a_policy_whose_records_have_another_name(engine: oncemore.Engine) -> None:
    with instant_waits():
        run = made("plain", Turns(TimeoutError()), policy="kfm-rules").run()
        assert run.proofs[0]["policy"]["name"] == "exp_full_jitter"
        changed = made("plain", Turns(TimeoutError()), policy="kfm-rules", timeout=3, name="other").run()
    assert replay_run(engine.store, f"run/{run.key}", current=True).verdict == "agrees"
    sources = [head.head for head in engine.store.list_heads(HeadQuery("policy"))]
    assert sum(b'"kfm-rules"]' in head for head in sources) == 1
    assert replay_run(engine.store, f"run/{changed.key}", current=True).verdict == "agrees"


def decide_with(signals: Signals, max_stretch: float) -> Decision:
    loop = files.policy("kfm-loop")
    assert loop.tuning is not None
    policy = loop.replace(tuning=loop.tuning._replace(max_stretch=max_stretch))
    return decide_retry(policy, Situation(1, Failure("transient"), "RETRYABLE", 0.0, "seed", signals=signals))


def test_a_proof_lists_the_stretch_only_where_it_was_clamped() -> None:
    high, none = Signals(900.0, 0.9), Signals(0.0, 0.0)
    assert decide_with(high, 2.5).proof()["clamps"] == []  # it asks for 2.5, and gets it
    assert decide_with(high, 2.4).proof()["clamps"] == ["max_stretch"]
    assert decide_with(none, 1.0).proof()["clamps"] == []
    assert decide_with(high._replace(error_budget=0.0), 1.0).proof()["clamps"] == ["max_stretch"]
    assert decide_with(high._replace(error_budget=0.0), 2.4).proof()["clamps"] == []
