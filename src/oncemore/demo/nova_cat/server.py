"""Spectra made in memory, and an archive on the loopback address that serves them: well, late, badly, or not.

The files are real FITS, written by astropy; the archive is a real HTTP server that counts who asks, and how
many at once. What it does about a path stands in a list of *turns*, one for each request, of which the last
stays:

    200        the file, whole
    429, 503   a refusal, with the Retry-After that follows a comma ("429,120")
    cut        fewer bytes than were announced, and then nothing
    stall      silence, until the asking side has had enough
"""

from __future__ import annotations

import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from oncemore.profiles.nova_cat.fits import import_readers

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = "127.0.0.1"
#: The longest that a stalled answer is held back.
PATIENCE_S = 10.0


def image(waves: tuple[float, float] = (400.0, 0.05), points: int = 2000, **changes: Any) -> bytes:
    """Return a spectrum as an image of one row: its first wavelength and step in nanometres.

    changes  cards of the header that differ; None leaves one out. `flux` and `checksum` are no cards
    """
    fits, numpy = import_readers()
    flux = changes.pop("flux", None)
    if flux is None:
        line = numpy.linspace(-6.0, 6.0, points)
        flux = 1.0 + 3.0 * numpy.exp(-(line**2))  # a continuum and the hydrogen line of a nova
    checksum = changes.pop("checksum", True)
    hdu = fits.PrimaryHDU(numpy.asarray(flux, dtype="f4"))
    cards = {"OBJECT": "V1369 Cen", "CRVAL1": waves[0], "CDELT1": waves[1], "CTYPE1": "WAVE", "CUNIT1": "nm"}
    for name, value in {**cards, **changes}.items():
        if value is not None:
            hdu.header[name] = value
    return _encode_fits(fits, [hdu], checksum)


def table(
    waves: Any = None,
    flux: Any = None,
    names: tuple[str, str] = ("WAVE", "FLUX"),
    unit: str = "Angstrom",
) -> bytes:
    """Return a spectrum as a table of wavelengths and fluxes."""
    fits, numpy = import_readers()
    rows = numpy.arange(4000.0, 4100.0) if waves is None else numpy.asarray(waves, dtype=float)
    values = numpy.ones(len(rows)) if flux is None else numpy.asarray(flux, dtype=float)
    columns = [
        fits.Column(names[0], "D", unit=unit, array=rows), fits.Column(names[1], "D", array=values),
    ]  # fmt: skip
    return _encode_fits(
        fits, [fits.PrimaryHDU(), fits.BinTableHDU.from_columns(columns, name="SPECTRUM")], True
    )


def _encode_fits(fits: Any, hdus: list[Any], checksum: bool) -> bytes:
    out = io.BytesIO()
    fits.HDUList(hdus).writeto(out, checksum=checksum)
    return out.getvalue()


def make_broken_files() -> dict[str, bytes]:
    """Return one file for each way in which a spectrum can be wrong, by the reason it is refused for."""
    fits, numpy = import_readers()
    good = image()
    flipped = bytearray(good)
    flipped[-2000] ^= 0xFF
    picture = _encode_fits(fits, [fits.PrimaryHDU(numpy.ones((8, 8), dtype="f4"))], True)
    return {
        "FITS_CHECKSUM_MISMATCH": bytes(flipped),
        "FITS_UNREADABLE": good[: len(good) // 2],
        "UNKNOWN_FITS_PROFILE": picture,
        "WAVELENGTH_NOT_RISING": image((700.0, -0.05)),
        "WAVELENGTH_OUT_OF_RANGE": image((4000.0, 0.5), CUNIT1="um"),
        "FLUX_NOT_FINITE": image(flux=[1.0, float("nan"), 1.0]),
        "FLUX_OUT_OF_RANGE": image(flux=[0.0] * 10),
    }


class ArchiveServer:
    """A server of files that fares as it is told; runs in threads of its own from `with` to the end.

    asked  every path that was asked for, in order, with the status that it got
    peak   the most requests that were under way at once
    """

    def __init__(self, hold_s: float = 0.0) -> None:
        self._files: dict[str, tuple[bytes, list[str]]] = {}
        self._lock, self.closing = threading.Lock(), threading.Event()
        self._hold_s, self._now = hold_s, 0
        self.asked: list[tuple[str, str]] = []
        self.peak = 0
        self._http = _ArchiveHttpServer((HOST, 0), _ArchiveHandler)
        self._http.archive = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://{HOST}:{self._http.server_address[1]}"

    def put(self, path: str, data: bytes, *turns: str) -> str:
        """Have a file, and say how requests for it fare; return where it is."""
        self._files[path] = data, list(turns or ("200",))
        return f"{self.url}{path}"

    def count(self, path: str) -> int:
        """Return how often a path was asked for."""
        return sum(asked == path for asked, _ in self.asked)

    def next_turn(self, path: str) -> tuple[str, bytes]:
        """Decide about a request, and write it down."""
        path = path.partition("?")[0]
        with self._lock:
            data, turns = self._files.get(path, (b"", ["404"]))
            turn = turns[min(self.count(path), len(turns) - 1)]
            self.asked.append((path, turn))
            return turn, data

    def answer_counted(self, answers: Callable[[], None]) -> None:
        """Count who is being answered."""
        with self._lock:
            self._now += 1
            self.peak = max(self.peak, self._now)
        try:
            self.closing.wait(self._hold_s)
            answers()
        finally:
            with self._lock:
                self._now -= 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _ArchiveHttpServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    archive: ArchiveServer

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing when a caller hung up: being left is part of the story."""


class _ArchiveHandler(BaseHTTPRequestHandler):
    server: _ArchiveHttpServer
    timeout = PATIENCE_S

    def do_GET(self) -> None:
        """Answer as the path's turn says."""
        turn, data = self.server.archive.next_turn(self.path)
        self.server.archive.answer_counted(lambda: self._send_answer(turn, data))

    def _send_answer(self, turn: str, data: bytes) -> None:
        status, _, rest = turn.partition(",")
        if status == "stall":
            self.server.archive.closing.wait(PATIENCE_S)
            self.close_connection = True
            return
        self.send_response(int(status) if status.isdigit() else 200)
        if rest:
            self.send_header("Retry-After", rest)
        body = data if status in ("200", "cut") else b""
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if status == "cut" else body)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that http.server uses
        """Keep the standard log lines off the screen; requests are kept in order elsewhere."""


def make_search(url: str) -> Any:
    """Return what searches an archive's list of products, for `NovaCat(providers=…)`."""
    from oncemore.profiles.nova_cat import download

    return lambda nova_id: json.loads(download(f"{url}?nova_id={nova_id}"))
