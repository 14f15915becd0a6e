"""Fail unless the modules that decide are covered to the last line and branch (TEST-4).

The modules are named here, next to the rule. What surrounds them (stores, clients, commands) is shown by
tests that are not measured, because measuring makes what starts programs take half as long again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("src/oncemore")

DECIDING = (
    "_driver.py", "_listeners.py", "_redact.py", "_values.py", "backoff.py", "clock.py", "errors.py",
    "events.py", "jitter.py",
    "artifacts/*.py", "audit/*.py", "classifiers/classify.py", "control/*.py",
    "dashboard/background.py", "dashboard/drawings.py", "dashboard/request_rules.py", "dashboard/sessions.py",
    "governance/*.py", "http/endpoint.py", "http/exchange.py",
    "limits/*.py", "lineage/*.py", "lint/*.py", "lint/rules/*.py", "log/*.py",
    "maintenance/*.py",
    "messaging/delivery.py", "messaging/delivery_gate.py", "messaging/driver.py", "messaging/inbox_flow.py",
    "messaging/message.py", "messaging/relay.py", "messaging/signature.py", "migrate/*.py",
    "policy/*.py", "policy/files/*.py", "profiles/exoarmur/*.py", "programs/store_secret.py",
    "retries/*.py", "schedules/*.py", "simulate/*.py", "steps/*.py", "supply_chain/*.py", "telemetry/*.py",
    "workers/*.py", "workflows/*.py",
)  # fmt: skip

#: Files in these folders that are shown by tests with servers, clients and programs instead.
NOT_MEASURED = (
    "artifacts/object_store.py", "control/nats_switches.py",
    "limits/declarations.py", "log/group_commit.py", "log/memory.py", "log/read_only.py", "log/store.py",
    "log/waiters.py", "maintenance/sandbox.py", "maintenance/sandbox_process.py",
    "log/open_store.py", "steps/db_adapters.py", "steps/decorator.py", "steps/nodes.py",
    "steps/once_options.py", "steps/options.py", "steps/signature.py",
    "steps/step.py", "steps/step_map.py", "steps/step_types.py",
    "workers/executor_adapters.py", "workers/remote.py", "workers/find_steps.py",
)  # fmt: skip


def gone(patterns: tuple[str, ...], package: Path) -> list[str]:
    """Return the patterns that no file answers to: a renamed module must not drop out in silence."""
    return [pattern for pattern in patterns if not any(package.glob(pattern))]


def report(*options: str, root: Path = ROOT) -> int:
    """Print coverage's table and return its exit code."""
    command = [sys.executable, "-m", "coverage", "report", "--show-missing", *options]
    return subprocess.run(command, cwd=root, check=False).returncode


def main(root: Path = ROOT, patterns: tuple[str, ...] = DECIDING) -> int:
    """Print the modules that have a gap; return 1 when there is one."""
    if missing := gone(patterns, root / PACKAGE):
        print(
            f"nothing under {PACKAGE} matches {', '.join(missing)}; correct DECIDING in {Path(__file__).name}"
        )
        return 1
    files, rest = (
        ",".join(f"{PACKAGE.as_posix()}/{pattern}" for pattern in each) for each in (patterns, NOT_MEASURED)
    )
    # Only those with a gap are listed, so that the last lines of a log that was cut still name the line.
    print("\nthe modules that decide: 100 % of lines and branches, or this part fails", flush=True)
    return (
        1
        if report(f"--include={files}", f"--omit={rest}", "--skip-covered", "--fail-under=100", root=root)
        else 0
    )


if __name__ == "__main__":
    sys.exit(main())
