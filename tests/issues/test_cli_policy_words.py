"""`oncemore policy show --error` says what the engine does."""

from tests.shell import run


def test_show_says_that_a_governed_step_is_quarantined() -> None:
    shown = run("policy", "show", "kfm-rules", "--error", "SCHEMA_INVALID")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("quarantine (quarantined)")
    assert run("policy", "show", "kfm-loop", "--error", "SCHEMA_INVALID").stdout.startswith(
        "stop (not_retryable)"
    )
