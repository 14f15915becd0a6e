"""Add the digest of today's image to every image that a file of deploy/ names by its tag alone.

    python -m tools.pin_images            asks the registries, and writes the files
    python -m tools.pin_images --check    only lists what is not pinned

A registry is asked as the OCI distribution specification has it: the digest of a manifest is a header of the
response, and a registry that wants a token says where to get one. Nothing is pulled. Names below
example.org are for the reader to replace.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

import oncemore

ROOT = Path(__file__).resolve().parent.parent
FILES = ("deploy/Dockerfile", "deploy/compose.yaml", "deploy/kubernetes.yaml")
#: An image with its registry and its tag, where a Dockerfile, a compose file or a manifest names one.
IMAGE = re.compile(
    r"(?m)^(?P<before>\s*(?:image:|- image:|ARG \w+_IMAGE=)\s*)"
    r"(?P<registry>[\w.-]+(?::\d+)?)/(?P<name>[\w./-]+):(?P<tag>[\w.-]+)"
    r"(?P<digest>@sha256:[0-9a-f]{64})?[ \t]*$"
)
#: The name of Docker's registry is not the host that serves it.
HOSTS = {"docker.io": "registry-1.docker.io"}
MANIFESTS = (
    "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, "
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
)


class DeployedImage(NamedTuple):
    """An image in a file: the registry, the name there, the tag and the digest, which may be empty."""

    registry: str
    name: str
    tag: str
    digest: str

    def __str__(self) -> str:
        return f"{self.registry}/{self.name}:{self.tag}"


def list_images(text: str) -> list[DeployedImage]:
    """Return the images that a file names with registry and tag, without those of example.org."""
    found = (
        DeployedImage(match["registry"], match["name"], match["tag"], match["digest"] or "")
        for match in IMAGE.finditer(text)
    )
    return [image for image in found if not image.registry.endswith("example.org")]


@oncemore.retry(on="transient", attempts=4, timeout=30)
def send(url: str, headers: dict[str, str], method: str = "GET") -> tuple[dict[str, str], bytes]:
    """Send a request; return the header fields and the body of the response."""
    request = Request(url, headers=headers, method=method)  # noqa: S310 - https, or a test
    with urlopen(request, timeout=20) as response:  # noqa: S310
        return {name.lower(): value for name, value in response.headers.items()}, response.read()


def fetch_digest(image: DeployedImage) -> str:
    """Return the digest that a tag has today."""
    host = HOSTS.get(image.registry, image.registry)
    # A registry on this machine, as tests start one, speaks HTTP.
    scheme = "http" if host.startswith("127.0.0.1:") else "https"
    url = f"{scheme}://{host}/v2/{image.name}/manifests/{image.tag}"
    headers = {"Accept": MANIFESTS}
    try:
        answer, _ = send(url, headers, "HEAD")
    except HTTPError as error:
        if error.code != 401:
            raise
        headers["Authorization"] = f"Bearer {fetch_token(error.headers['WWW-Authenticate'] or '')}"
        answer, _ = send(url, headers, "HEAD")
    digest = answer.get("docker-content-digest", "")
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise SystemExit(f"{image}: {host} gave no digest")
    return digest


def fetch_token(challenge: str) -> str:
    """Return the token that a registry asks for with `WWW-Authenticate: Bearer realm="…",service="…",…`."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = fields.pop("realm", "")
    if urlsplit(realm).scheme not in ("http", "https"):
        raise SystemExit(f"the registry asks for a login that this tool does not know: {challenge}")
    body = json.loads(send(f"{realm}?{urlencode(fields)}", {})[1])
    token = body.get("token") or body.get("access_token")
    return str(token)


def pin_text(text: str, digests: dict[str, str]) -> str:
    """Return a text in which every image has its digest."""

    def pin(match: re.Match[str]) -> str:
        image = f"{match['registry']}/{match['name']}:{match['tag']}"
        return f"{match['before']}{image}@{digests[image]}" if image in digests else match[0].rstrip()

    return IMAGE.sub(pin, text)


def main(words: list[str]) -> int:
    """List the images; without --check, fetch their digests and write the files."""
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in FILES}
    images = {path: list_images(text) for path, text in texts.items()}
    if "--check" in words:
        for path, named in images.items():
            print(*(f"{path}: {one} {one.digest or 'has no digest'}" for one in named), sep="\n")
        return 0 if all(one.digest for named in images.values() for one in named) else 1
    digests = {str(one): fetch_digest(one) for one in {one for named in images.values() for one in named}}
    for path, text in texts.items():
        (ROOT / path).write_text(pin_text(text, digests), encoding="utf-8")
        print(*(f"{path}: {one} is {digests[str(one)]}" for one in images[path]), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
