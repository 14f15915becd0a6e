"""In a governed pipeline every stage names a policy, if only one of a single attempt."""

from pathlib import Path

import pytest

import oncemore


@pytest.mark.req("PROD-10")
@pytest.mark.parametrize("where", ["environment", "file"])
def test_a_stage_that_names_no_policy_is_refused_by_its_name(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "environment":
        monkeypatch.setenv("ONCEMORE_POLICY", "required")
    else:
        Path("oncemore.toml").write_text('policy = "required"\n')
    with pytest.raises(oncemore.UsageError, match="step load_tiles does not name a policy"):

        @oncemore.step(effect="pure", name="load_tiles")
        def load_tiles() -> None: ...

    Path("single.yaml").write_text(
        'version: "1"\ndescription: an irreversible write\nretry_policy: {max_attempts: 1}\n'
    )
    for policy in ("kfm-rules", "./single.yaml", oncemore.Policy(max_attempts=1)):
        with oncemore.open("memory:"):
            assert oncemore.step(effect="pure", name="load_tiles", policy=policy)(lambda: 7)() == 7
