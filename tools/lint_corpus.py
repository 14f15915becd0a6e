"""Count the findings of `oncemore lint` in public code, and compare them with the judged ones.

    python tools/lint_corpus.py FOLDER             download the packages into FOLDER and check them
    python tools/lint_corpus.py FOLDER --offline   check what is there already
    python tools/lint_corpus.py FOLDER --json OUT  also write all findings

Checked are the standard library and the newest wheels of `PACKAGES`; nothing is installed or executed.
`tools/lint_judged.tsv` has one line for each finding that a person has read: rule, path, function, and
whether it is true. docs/explanation/lint-precision.md has the resulting table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections import Counter
from multiprocessing import Pool
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from oncemore.lint.check import check_bytes
from oncemore.lint.project import paused_collector
from oncemore.lint.rules import RULES

if TYPE_CHECKING:
    from oncemore.lint.model import LintFinding

ROOT = Path(__file__).resolve().parent.parent
JUDGED = ROOT / "tools" / "lint_judged.tsv"
STANDARD_LIBRARY = "python"
PACKAGES = """
PyGithub aiohttp airbyte-cdk ansible-core anthropic apache-airflow-core apache-airflow-providers-amazon
apache-airflow-providers-google apache-airflow-providers-http apache-airflow-providers-slack
atlassian-python-api azure-core azure-storage-blob backoff boto3 botocore celery cinder crewai dagster
databricks-sdk datadog datasets dbt-core discord.py distributed django docker dspy elasticsearch fastapi flask
fsspec gcsfs google-api-core google-auth google-cloud-bigquery google-cloud-storage great-expectations gspread
haystack-ai homeassistant httpx huggingface_hub influxdb-client instructor jira jupyter_server kafka-python
keystoneauth1 kombu kubernetes langchain langchain-community litellm llama-index-core locust luigi mechanize
mlflow moto nats-py newrelic nova openai opensearch-py oslo.messaging paramiko pika pip poetry praw pre-commit
prefect pymongo pystac-client python-gitlab python-swiftclient python-telegram-bot redis requests s3fs
s3transfer scrapy selenium sendgrid sentry-sdk slack-sdk snowflake-connector-python spotipy sqlalchemy stripe
tenacity transformers tweepy twilio twine urllib3 virtualenv wandb web3 yfinance youtube-dl yt-dlp
""".split()  # noqa: SIM905 - a list with quotes is three times as long


class CorpusFile(NamedTuple):
    """A file of the corpus: where it is, and its path below the folder of its package."""

    path: Path
    name: str


class CheckedCorpus(NamedTuple):
    """All findings of the corpus, and its size."""

    findings: list[LintFinding]
    files: int
    lines: int
    seconds: float


def download_packages(folder: Path) -> None:
    """Download the wheels that are missing, and unpack their Python files; nothing is installed."""
    wheels, sources = folder / "wheels", folder / "src"
    wheels.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        name = package.replace("-", "_").replace(".", "_").lower()
        if (sources / name).is_dir():
            continue
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*command, "--dest", wheels / name, package], check=True)
        for wheel in (wheels / name).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if name.endswith(".py")]
                archive.extractall(sources / name, names)


def list_corpus(folder: Path) -> list[CorpusFile]:
    """Return the files of the standard library and of the unpacked packages."""
    standard = Path(sysconfig.get_path("stdlib"))
    files = [
        CorpusFile(path, f"{STANDARD_LIBRARY}/{path.relative_to(standard).as_posix()}")
        for path in sorted(standard.rglob("*.py"))
        # The tests of the interpreter break every rule on purpose.
        if not {"site-packages", "test", "tests"} & set(path.parts)
    ]
    sources = folder / "src"
    files += [
        CorpusFile(path, path.relative_to(sources).as_posix()) for path in sorted(sources.rglob("*.py"))
    ]
    return files


def check_file(file: CorpusFile) -> tuple[list[LintFinding], int, float]:
    """Return the findings of one file with all rules, its number of lines, and the CPU time."""
    data = file.path.read_bytes()
    started = time.process_time()
    with paused_collector():
        findings = check_bytes(data, file.name, tuple(RULES))
    return findings, data.count(b"\n"), time.process_time() - started


def check_corpus(folder: Path, processes: int) -> CheckedCorpus:
    """Check all files in several processes."""
    files = list_corpus(folder)
    findings: list[LintFinding] = []
    lines, seconds = 0, 0.0
    with Pool(processes) as pool:
        for found, count, spent in pool.imap(check_file, files, chunksize=100):
            findings += found
            lines += count
            seconds += spent
    return CheckedCorpus(findings, len(files), lines, seconds)


def read_judged(path: Path = JUDGED) -> dict[tuple[str, str, str], list[str]]:
    """Return the judgements, "true" or "false", by rule, path and function."""
    judged: dict[tuple[str, str, str], list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        rule, name, function, verdict = line.split("\t")
        judged.setdefault((rule, name, function), []).append(verdict)
    return judged


def count_judged(path: Path = JUDGED) -> dict[str, Counter[str]]:
    """Return the number of true and false findings among the judged ones, by rule."""
    counts: dict[str, Counter[str]] = {}
    for (rule, _, _), verdicts in read_judged(path).items():
        counts.setdefault(rule, Counter()).update(verdicts)
    return counts


def print_table(corpus: CheckedCorpus) -> None:
    """Print one row for each rule, as Markdown."""
    found = Counter(finding.rule for finding in corpus.findings)
    judged = count_judged() if JUDGED.exists() else {}
    print("| rule | findings | read | true | false |\n| --- | ---: | ---: | ---: | ---: |")
    for rule in [*RULES, "all"]:
        rules = list(RULES) if rule == "all" else [rule]
        true, false = (sum(judged.get(one, Counter())[word] for one in rules) for word in ("true", "false"))
        print(f"| {rule} | {sum(found[one] for one in rules)} | {true + false} | {true} | {false} |")
    rate = corpus.lines / corpus.seconds
    print(f"\n{corpus.files} files, {corpus.lines} lines, {rate:.0f} lines per second of CPU")
    print(f"files that cannot be parsed: {found['OM000']}")


def main() -> int:
    """Check the corpus and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--offline", action="store_true", help="download nothing")
    parser.add_argument("--json", type=Path, help="write all findings to this file")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    if not given.offline:
        download_packages(given.folder)
    corpus = check_corpus(given.folder, given.processes)
    if given.json:
        rows = [finding._replace(edits=())._asdict() for finding in corpus.findings]
        given.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print_table(corpus)
    return 0


if __name__ == "__main__":
    sys.exit(main())
