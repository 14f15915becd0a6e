"""Finds references to container images and actions that are not pinned by a digest.

An image is pinned by `@sha256:` and 64 digits, an action by the 40 digits of a commit. A tag or a branch can
be moved to other content, so it pins nothing. Each finding is a line and a text.
"""

from __future__ import annotations

import re

from oncemore._values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

IMAGE_RULE, ACTION_RULE = "image-not-pinned", "action-not-pinned"

_DIGEST = re.compile(r"@sha(?:256:[0-9a-f]{64}|384:[0-9a-f]{96}|512:[0-9a-f]{128})$")
_COMMIT = re.compile(r"@(?:[0-9a-f]{40}|[0-9a-f]{64})$")
_ARGUMENT = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")
#: Keys of Kubernetes objects that hold lists of containers.
CONTAINER_KEYS = ("containers", "initContainers", "ephemeralContainers")


class ImageReference(Value):
    """A reference that is not pinned: the rule, the line and the text of the finding."""

    rule: str
    line: int
    text: str


def check_image(image: str, line: int) -> Iterator[ImageReference]:
    """Yield a finding if an image has no digest."""
    if not _DIGEST.search(image):
        yield ImageReference(IMAGE_RULE, line, f"image {image} has no digest; write NAME:TAG@sha256:DIGEST")


def check_action(action: str, line: int) -> Iterator[ImageReference]:
    """Yield a finding if an action of a workflow is not pinned by a commit, or its image by a digest."""
    if action.startswith("docker://"):
        yield from check_image(action.removeprefix("docker://"), line)
    # A local action has the commit of the workflow itself.
    elif not action.startswith("./") and not _COMMIT.search(action):
        text = f"action {action} is not pinned by a commit; write OWNER/NAME@COMMIT # TAG"
        yield ImageReference(ACTION_RULE, line, text)


# Dockerfiles.


def check_dockerfile(text: str) -> Iterator[ImageReference]:
    """Yield the images of a Dockerfile without digest: of FROM, COPY --from, RUN --mount and # syntax."""
    stages: set[str] = set()
    arguments: dict[str, str] = {}
    for line, instruction, rest in _read_instructions(text):
        if instruction == "SYNTAX":
            yield from check_image(rest, line)
        elif instruction == "ARG":
            name, _, value = rest.partition("=")
            arguments[name.strip()] = value.strip().strip("\"'")
        elif instruction == "FROM":
            words = [word for word in rest.split() if not word.startswith("--")]
            image = _expand_arguments(words[0], arguments) if words else ""
            if image not in stages and image != "scratch":
                yield from check_image(image, line)
            if len(words) == 3 and words[1].upper() == "AS":
                stages.add(words[2])
        else:
            yield from _check_sources(line, rest, stages, arguments)


def _check_sources(
    line: int, rest: str, stages: set[str], arguments: dict[str, str]
) -> Iterator[ImageReference]:
    """Yield images that COPY or RUN --mount reads from; stages of the file are named or numbered."""
    for option in re.findall(r"--from=(\S+)|--mount=\S*?\bfrom=([^,\s]+)", rest):
        image = _expand_arguments(option[0] or option[1], arguments)
        if image not in stages and not image.isdigit():
            yield from check_image(image, line)


def _expand_arguments(text: str, arguments: dict[str, str]) -> str:
    def expand(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        # An argument without a default is only known to the builder, and stays as it is written.
        return arguments.get(name) or match[2] or match[0]

    return _ARGUMENT.sub(expand, text)


def _read_instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the word in capitals and the rest of each instruction; joins continued lines."""
    start, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"#\s*syntax\s*=\s*(\S+)", line, re.IGNORECASE):
            yield number, "SYNTAX", match[1]
        # A comment inside a continued instruction is left out, as the builder does.
        if line.lstrip().startswith("#") or (not line.strip() and not parts):
            continue
        start = start if parts else number
        parts.append(line.rstrip().removesuffix("\\"))
        if not line.rstrip().endswith("\\"):
            word, _, rest = " ".join(parts).strip().partition(" ")
            yield start, word.upper(), rest.strip()
            parts = []


# YAML.


def check_workflow(document: Any) -> Iterator[ImageReference]:
    """Yield the unpinned images and actions of a GitHub workflow or of a composite action."""
    for job in _read_members(document, "jobs"):
        yield from _check_use(job)
        yield from _check_container(job, "container")
        for service in _read_members(job, "services"):
            yield from _check_container(service, "image")
        yield from _check_steps(job)
    runs = _read_mapping(document, "runs")
    if runs is not None:
        yield from _check_steps(runs)
        image = runs.get("image")
        if isinstance(image, str) and image.startswith("docker://"):
            yield from check_action(image, _line_of(runs, "image"))


def _check_steps(job: Any) -> Iterator[ImageReference]:
    steps = job.get("steps")
    for step in steps if isinstance(steps, list) else []:
        if isinstance(step, dict):
            yield from _check_use(step)


def _check_use(part: Any) -> Iterator[ImageReference]:
    if isinstance(part.get("uses"), str):
        yield from check_action(part["uses"], _line_of(part, "uses"))


def _check_container(part: Any, key: str) -> Iterator[ImageReference]:
    """Yield the image of a container that is written as a text or as a mapping with `image`."""
    value = part.get(key)
    if isinstance(value, str):
        yield from check_image(value, _line_of(part, key))
    elif isinstance(value, dict) and isinstance(value.get("image"), str):
        yield from check_image(value["image"], _line_of(value, "image"))


def check_compose(document: Any) -> Iterator[ImageReference]:
    """Yield the images of a compose file; a service that is built has a name for its image, and no source."""
    for service in _read_members(document, "services"):
        if isinstance(service.get("image"), str) and "build" not in service:
            yield from check_image(service["image"], _line_of(service, "image"))


def check_manifest(document: Any) -> Iterator[ImageReference]:
    """Yield the images of all containers in a Kubernetes object, at any depth."""
    if isinstance(document, list):
        for part in document:
            yield from check_manifest(part)
    if not isinstance(document, dict):
        return
    for key, value in document.items():
        if key in CONTAINER_KEYS and isinstance(value, list):
            for container in value:
                if isinstance(container, dict) and isinstance(container.get("image"), str):
                    yield from check_image(container["image"], _line_of(container, "image"))
        elif key == "image" and isinstance(value, dict) and isinstance(value.get("reference"), str):
            # A volume that is an image.
            yield from check_image(value["reference"], _line_of(value, "reference"))
        else:
            yield from check_manifest(value)


def check_yaml(document: Any, *, is_workflow: bool) -> Iterator[ImageReference]:
    """Yield the unpinned references of one YAML document of any kind."""
    if is_workflow:
        yield from check_workflow(document)
    elif isinstance(document, dict) and "apiVersion" in document and "kind" in document:
        yield from check_manifest(document)
    elif isinstance(document, dict):
        yield from check_compose(document)


def _read_mapping(part: Any, key: str) -> Any:
    value = part.get(key) if isinstance(part, dict) else None
    return value if isinstance(value, dict) else None


def _read_members(part: Any, key: str) -> list[Any]:
    members = _read_mapping(part, key)
    return [] if members is None else [value for value in members.values() if isinstance(value, dict)]


def _line_of(part: Any, key: str) -> int:
    # ruamel.yaml counts lines from zero.
    return int(part.lc.value(key)[0]) + 1
