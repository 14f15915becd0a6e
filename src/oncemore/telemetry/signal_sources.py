"""The sources of signals: constants, files, HTTP services, commands and the store itself.

The setting `signals` has one entry per signal:

    [signals]
    energy_price = 0.31                                # a constant
    queue_depth = "store"                              # due runs of this store
    [signals.grid_intensity]
    url = "https://api.example.org/v3/carbon-intensity/latest?zone=DE"
    shape = "electricity_maps"                         # watttime, gb_carbon_intensity, json
    token = "env:GRID_TOKEN"                           # sent as the service expects it
    [signals.error_budget]
    file = "budget.csv"                                # columns time and value; .json: a list of them
    [signals.parallelism]
    command = ["./count-workers"]                      # prints a number

A constant is read at once. Every other source is fetched in a thread of its own (`telemetry.signal_board`),
with `oncemore.retry` and a time limit, so that no attempt waits for it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.policy.backoff import Schedule
from oncemore.retries.decorator import retrying
from oncemore.telemetry.signal_shapes import (
    SERVICES,
    DocumentFault,
    SignalDocument,
    read_csv,
    read_json,
    read_number,
)
from oncemore.telemetry.signal_values import NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncemore.steps.engine import Engine

#: The kinds of sources, by the field that has their address.
KINDS = ("constant", "file", "url", "command", "store")
SHAPES = (*SERVICES, "json")
_OPTIONS = ("shape", "field", "token", "refresh_s", "max_age_s", "timeout_s")
#: The largest document that is read, and the number of runs that are counted.
MAX_DOCUMENT_BYTES = 4_000_000
MAX_COUNTED_RUNS = 10_000
FETCH_ATTEMPTS = 3


class SignalSource(Value):
    """The source of one signal.

    kind        constant, file, url, command or store
    address     the number, the absolute path, the URL, or the words of the command
    shape       of a URL: the service whose answers it gives, or json with `field`
    token       of a URL: `env:NAME` of the variable that has the secret
    refresh_s   how long a fetched value is used before it is fetched again
    max_age_s   how old a value may be; an older one is missing
    timeout_s   time limit of one fetch with all its retries
    """

    name: str
    kind: str
    address: Any
    shape: str = ""
    field: str = ""
    token: str = ""
    refresh_s: float = 60.0
    max_age_s: float = 7200.0
    timeout_s: float = 10.0

    @property
    def title(self) -> str:
        """The source as proofs name it; never with a query or a secret."""
        if self.kind == "file":
            return f"file {Path(self.address).name}"
        if self.kind == "url":
            host = self.address.split("//", 1)[-1].split("/", 1)[0].rpartition("@")[2]
            return f"{self.shape} {host}"
        return f"command {Path(self.address[0]).name}" if self.kind == "command" else self.kind


def parse_sources(setting: Any, where: str = "signals", root: Path | None = None) -> tuple[SignalSource, ...]:
    """Return the sources of a setting; refuse a name, an option or a value that cannot be."""
    if not setting:
        return ()
    if not isinstance(setting, dict):
        raise UsageError(f"{where} is a {type(setting).__name__}; it takes a table of signals")
    for name in setting:
        if name not in NAMES:
            raise UsageError(f"{where} has no signal {name!r}; it has {', '.join(NAMES)}")
    return tuple(
        _parse_source(name, value, f"{where}.{name}", root or Path.cwd()) for name, value in setting.items()
    )


def _parse_source(name: str, value: Any, where: str, root: Path) -> SignalSource:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = {"constant": value}
    elif value == "store":
        value = {"store": True}
    if not isinstance(value, dict):
        raise UsageError(f"{where} is {value!r}; it takes a number, a table with one of {', '.join(KINDS)}")
    kinds = [kind for kind in KINDS if kind in value]
    unknown = [option for option in value if option not in (*KINDS, *_OPTIONS)]
    if unknown:
        raise UsageError(f"{where} has no option {unknown[0]!r}; it has {', '.join((*KINDS, *_OPTIONS))}")
    if len(kinds) != 1:
        raise UsageError(f"{where} needs exactly one of {', '.join(KINDS)}")
    kind = kinds[0]
    options = {option: value[option] for option in _OPTIONS if option in value}
    for option in ("refresh_s", "max_age_s", "timeout_s"):
        if option in options:
            options[option] = _check_number(options[option], f"{where}.{option}", least=0.01)
    for option in ("shape", "field", "token"):
        if not isinstance(options.get(option, ""), str):
            raise UsageError(f"{where}.{option} takes a text")
    return SignalSource(name, kind, _parse_address(name, kind, value, where, root), **options)


def _parse_address(name: str, kind: str, value: dict[str, Any], where: str, root: Path) -> Any:
    address = value[kind]
    if kind == "constant":
        return _check_number(address, where, least=0.0)
    if kind == "store":
        if name != "queue_depth":
            raise UsageError(f"{where}: the store knows the queue_depth only")
        return ""
    if kind == "command":
        if not (isinstance(address, list) and address and all(isinstance(word, str) for word in address)):
            raise UsageError(f"{where}.command takes a list of words")
        return tuple(address)
    if not isinstance(address, str) or not address:
        raise UsageError(f"{where}.{kind} takes a text")
    if kind == "file":
        return str(root / Path(address).expanduser())
    shape = value.get("shape")
    if shape not in SHAPES or not address.startswith(("http://", "https://")):
        raise UsageError(f"{where} takes an http(s) url and a shape: {', '.join(SHAPES)}")
    if shape in SERVICES and name != "grid_intensity":
        raise UsageError(f"{where}: {shape} answers with a grid_intensity; give shape = 'json' and field")
    token = value.get("token", "")
    if token and not str(token).startswith("env:"):
        raise UsageError(f"{where}.token takes env:NAME, so that no file has the secret")
    return address


def _check_number(value: Any, where: str, *, least: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= 1e12:
        raise UsageError(f"{where} is {value!r}; it takes a number of {least:g} or more")
    return float(value)


def describe_sources(sources: tuple[SignalSource, ...]) -> dict[str, Any]:
    """Return the setting that gives these sources, with absolute paths: for another process."""
    setting: dict[str, Any] = {}
    for source in sources:
        fields = source._asdict()
        kind, address = fields["kind"], fields["address"]
        options = {name: fields[name] for name in _OPTIONS if fields[name] != ""}
        value = True if kind == "store" else list(address) if kind == "command" else address
        setting[source.name] = {kind: value, **options}
    return setting


# Fetching -------------------------------------------------------------------------------------------


def fetch_document(source: SignalSource, engine: Engine) -> SignalDocument:
    """Return the values of a source now; retried, within the source's time limit."""
    # Short waits: the first decision of a process waits for the first values.
    fetch = retrying(
        _fetch_once,
        on="transient",
        attempts=FETCH_ATTEMPTS,
        wait=Schedule("exponential", 0.1),
        total_timeout=source.timeout_s,
        name=source.title,
    )
    return fetch(source, engine)


def _fetch_once(source: SignalSource, engine: Engine) -> SignalDocument:
    now = engine.now()
    if source.kind == "store":
        return SignalDocument(((now, float(count_due_runs(engine, now))),))
    if source.kind == "file":
        text = _read_limited(Path(source.address))
        return read_json(text) if source.address.endswith(".json") else read_csv(text)
    if source.kind == "command":
        text = _run_command(source)
        return read_number(text, source.field, now)
    text = _fetch_url(source)
    reader = SERVICES.get(source.shape)
    return read_number(text, source.field, now) if reader is None else reader(text)


def _read_limited(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(MAX_DOCUMENT_BYTES + 1)
    return _decode(content)


def _decode(content: bytes) -> str:
    if len(content) > MAX_DOCUMENT_BYTES:
        raise DocumentFault(f"it is larger than {MAX_DOCUMENT_BYTES} bytes")
    return content.decode("utf-8-sig")


def _fetch_url(source: SignalSource) -> str:
    from urllib.request import Request, urlopen

    from oncemore._version import __version__

    headers = {"accept": "application/json", "user-agent": f"oncemore/{__version__}", **_token_header(source)}
    request = Request(source.address, headers=headers)  # noqa: S310 - http and https only, checked above
    with urlopen(request, timeout=source.timeout_s) as response:  # noqa: S310
        return _decode(response.read(MAX_DOCUMENT_BYTES + 1))


def _token_header(source: SignalSource) -> Mapping[str, str]:
    if not source.token:
        return {}
    variable = source.token.removeprefix("env:")
    secret = os.environ.get(variable, "")
    if not secret:
        raise DocumentFault(f"the environment has no {variable}, which the token is to come from")
    # Electricity Maps has a header of its own; the other services take a bearer token.
    if source.shape == "electricity_maps":
        return {"auth-token": secret}
    return {"authorization": f"Bearer {secret}"}


def _run_command(source: SignalSource) -> str:
    import subprocess

    result = subprocess.run(  # noqa: S603 - the command of the user's own settings
        source.address, capture_output=True, timeout=source.timeout_s, check=False, stdin=subprocess.DEVNULL
    )
    if result.returncode:
        last = result.stderr.decode(errors="replace").strip().rpartition("\n")[2][:200]
        raise DocumentFault(f"it ended with exit code {result.returncode}{': ' + last if last else ''}")
    return _decode(result.stdout)


def count_due_runs(engine: Engine, now: float) -> int:
    """Return the number of runs of a store that are due and wait for a worker, up to a limit."""
    from oncemore.log.entry_codec import decode_head
    from oncemore.log.store import HeadQuery

    count = 0
    for state in ("PENDING", "SOFT_FAIL"):
        for head in engine.store.list_heads(HeadQuery("run", state=state, limit=MAX_COUNTED_RUNS)):
            count += decode_head(head.head).not_before <= now
    return count
