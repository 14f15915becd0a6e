"""The files in deploy/: commands that exist, no root, probes of ports that are open; the tool that pins."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import click
import pytest
from ruamel.yaml import YAML

from oncemore.cli.commands import root
from tools import pin_images

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY.joinpath("Dockerfile").read_text(encoding="utf-8")
DIGEST = "sha256:" + "ab" * 32


def load_compose() -> Any:
    return YAML(typ="safe").load(DEPLOY / "compose.yaml")


def load_manifests() -> list[Any]:
    return list(YAML(typ="safe").load_all(DEPLOY / "kubernetes.yaml"))


def list_pods() -> list[Any]:
    return [one["spec"]["template"]["spec"] for one in load_manifests() if one["kind"] == "Deployment"]


def list_command_lines() -> list[list[str]]:
    services = load_compose()["services"].values()
    own = [service["command"] for service in services if service["image"] == "oncemore"]
    return own + [pod["containers"][0]["args"] for pod in list_pods()]


def read_option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def test_the_compose_file_is_valid() -> None:
    program = Path(sys.executable).parent / "check-jsonschema"
    command = [program, "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize("words", list_command_lines(), ids=lambda words: words[0])
def test_containers_run_commands_that_exist(words: list[str]) -> None:
    # `oncemore worker MODULE` is short for `oncemore worker run MODULE`.
    command: click.Command | None = root
    for name in ("worker", "run") if words[0] == "worker" else words[:1]:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(root), name)
    assert command is not None
    options = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options
    # Probes and health checks ask this port.
    opened = read_option(words, "--health" if words[0] == "worker" else "--port")
    assert opened.rpartition(":")[2] == "8080"


def test_the_image_is_not_root_and_its_health_check_asks_the_open_port() -> None:
    stages = DOCKERFILE.split("\nFROM ")
    assert re.search(r"(?m)^USER 10001:10001$", stages[-1])
    assert "pip install" not in stages[-1], "the last stage gets only what was built"
    assert re.search(r"(?m)^HEALTHCHECK (.|\n)*?http://127\.0\.0\.1:8080/healthz", stages[-1])
    assert re.search(r"(?m)^EXPOSE 8080$", stages[-1])
    assert "--require-hashes" in DOCKERFILE


def test_the_image_holds_what_the_commands_need() -> None:
    project = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = ("nats", "otel", "postgres", "prometheus", "web")
    of_extras = (one for name in extras for one in project["optional-dependencies"][name])
    wanted = [re.match(r"[\w.-]+", one) for one in (*project["dependencies"], *of_extras)]
    names = {match[0].lower().replace(".", "-") for match in wanted if match}
    pinned = re.findall(r"(?m)^([\w.-]+)==", ROOT.joinpath("requirements/container.txt").read_text())
    assert names <= {name.lower() for name in pinned}


def test_running_work_has_its_time_before_the_container_is_killed() -> None:
    for service in load_compose()["services"].values():
        if service.get("command", [""])[0] == "worker":
            assert float(read_option(service["command"], "--grace")) < int(
                service["stop_grace_period"].rstrip("s")
            )
    worker = list_pods()[0]
    grace = float(read_option(worker["containers"][0]["args"], "--grace"))
    assert grace < worker["terminationGracePeriodSeconds"]


def test_pods_are_restricted_and_probed_at_ports_that_they_open() -> None:
    for pod in list_pods():
        assert pod["securityContext"]["runAsNonRoot"] is True
        (container,) = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for probe in ("livenessProbe", "readinessProbe"):
            assert ports[container[probe]["httpGet"]["port"]] == 8080
        # The address of the store has a password: it comes from a secret and stands in no file.
        assert all("value" not in variable for variable in container["env"])


def test_the_probe_of_the_dashboard_uses_a_name_that_it_knows() -> None:
    container = list_pods()[1]["containers"][0]
    name = read_option(container["args"], "--allow-host")
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["httpHeaders"] == [{"name": "Host", "value": name}]


def test_the_example_of_the_containers_runs(tmp_path: Path) -> None:
    code = "import oncemore, shop\nwith oncemore.open('memory:'): print(shop.charge('a', 5))"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(DEPLOY / 'app')!r})\n{code}"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("a: 5 cents charged")


# Pinning --------------------------------------------------------------------------------------------


class Registry(BaseHTTPRequestHandler):
    """A registry that wants a token, as Docker's does."""

    def do_GET(self) -> None:
        assert "scope=repository%3Alibrary%2Fpython%3Apull" in self.path
        self.answer(200, body=b'{"token": "t1"}')

    def do_HEAD(self) -> None:
        if self.headers["Authorization"] != "Bearer t1":
            realm = f"http://127.0.0.1:{self.server.server_port}/token"  # type: ignore[attr-defined]
            scope = 'scope="repository:library/python:pull"'
            self.answer(401, {"WWW-Authenticate": f'Bearer realm="{realm}",service="here",{scope}'})
        else:
            assert self.path == "/v2/library/python/manifests/3.13-slim"
            assert "oci.image.index" in self.headers["Accept"]
            self.answer(200, {"Docker-Content-Digest": DIGEST})

    def answer(self, code: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass


@contextmanager
def running_registry() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_images_are_pinned_by_the_digest_that_the_registry_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_registry() as address:
        image = f"{address}/library/python:3.13-slim"
        texts = {
            "deploy/Dockerfile": f"ARG PYTHON_IMAGE={image}\nFROM ${{PYTHON_IMAGE}}\n",
            "deploy/compose.yaml": f"services:\n  a:\n    image: {image}\n",
            "deploy/kubernetes.yaml": "    image: registry.example.org/shop:1.0\n    x: 1\n",
        }
        tmp_path.joinpath("deploy").mkdir()
        for path, text in texts.items():
            tmp_path.joinpath(path).write_text(text)
        monkeypatch.setattr(pin_images, "ROOT", tmp_path)
        assert pin_images.main(["--check"]) == 1
        assert "has no digest" in capsys.readouterr().out
        assert pin_images.main([]) == 0
        assert pin_images.main(["--check"]) == 0
        # A second run renews the digest, and changes nothing while the tag stands.
        assert pin_images.main([]) == 0
    for path, text in texts.items():
        assert tmp_path.joinpath(path).read_text() == text.replace(image, f"{image}@{DIGEST}")


def test_every_image_of_deploy_is_seen_by_the_tool_that_pins() -> None:
    seen = [
        str(image) for path in pin_images.FILES for image in pin_images.list_images((ROOT / path).read_text())
    ]
    assert [re.sub(r":[^:]*$", "", image) for image in seen] == [
        "docker.io/library/python",
        "docker.io/library/postgres",
        "docker.io/library/nats",
    ]
