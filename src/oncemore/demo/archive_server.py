"""An archive of spectra on the loopback address, with files that are made in memory.

The files are real FITS, written by astropy. Each path has a list of *turns*, one per request; the last one
repeats:

    200        the whole file
    429, 503   a refusal, with the Retry-After that follows a comma ("429,120")
    cut        fewer bytes than announced, then the end of the connection
    stall      no reply until the client gives up
"""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

from oncemore.demo.local_server import LocalServer, QuietHandler
from oncemore.profiles.nova_cat.fits import import_readers

if TYPE_CHECKING:
    from collections.abc import Callable

#: Longest time that a stalled reply is held back.
STALL_S = 10.0


def image(waves: tuple[float, float] = (400.0, 0.05), points: int = 2000, **changes: Any) -> bytes:
    """Return a spectrum as a FITS image of one row.

    waves    its first wavelength and its step, in nanometres
    changes  header cards that differ, None to leave one out; also `flux` and `checksum`
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
    waves: Any = None, flux: Any = None, names: tuple[str, str] = ("WAVE", "FLUX"), unit: str = "Angstrom"
) -> bytes:
    """Return a spectrum as a FITS table of wavelengths and fluxes."""
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
    """Return one invalid file for each reason of refusal, by that reason."""
    fits, numpy = import_readers()
    good = image()
    flipped = bytearray(good)
    # Inside of the data: a changed header would be unreadable, and not a wrong checksum.
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


class ArchiveServer(LocalServer):
    """A server of files with scripted faults.

    asked  the path and the turn of every request, in order
    peak   the largest number of requests in progress at the same time
    """

    def __init__(self, hold_s: float = 0.0) -> None:
        super().__init__(_ArchiveHandler)
        self._files: dict[str, tuple[bytes, list[str]]] = {}
        self._hold_s, self._in_progress = hold_s, 0
        self.asked: list[tuple[str, str]] = []
        self.peak = 0

    def put(self, path: str, data: bytes, *turns: str) -> str:
        """Add a file and the turns of its requests; return its URL."""
        self._files[path] = data, list(turns or ("200",))
        return f"{self.url}{path}"

    def count(self, path: str) -> int:
        """Return the number of requests for a path."""
        return sum(asked == path for asked, _ in self.asked)

    def next_turn(self, path: str) -> tuple[str, bytes]:
        """Log a request; return its turn and the file."""
        # Searches add a query, and share the turns of their path.
        path = path.partition("?")[0]
        with self.lock:
            data, turns = self._files.get(path, (b"", ["404"]))
            turn = turns[min(self.count(path), len(turns) - 1)]
            self.asked.append((path, turn))
            return turn, data

    def answer_counted(self, answer: Callable[[], None]) -> None:
        """Call `answer` and count it as a request in progress."""
        with self.lock:
            self._in_progress += 1
            self.peak = max(self.peak, self._in_progress)
        try:
            # Holding each request makes simultaneous ones overlap, so that `peak` is exact.
            self.closing.wait(self._hold_s)
            answer()
        finally:
            with self.lock:
                self._in_progress -= 1


class _ArchiveHandler(QuietHandler):
    timeout = STALL_S

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server asks for
        """Reply as the path's turn says."""
        archive: ArchiveServer = self.server.owner
        turn, data = archive.next_turn(self.path)
        archive.answer_counted(lambda: self._send_turn(turn, data))

    def _send_turn(self, turn: str, data: bytes) -> None:
        # One request per connection: a cut reply ends with it.
        self.close_connection = True
        status, _, retry_after = turn.partition(",")
        headers = {"Retry-After": retry_after} if retry_after else {}
        if status == "stall":
            self.server.owner.closing.wait(STALL_S)
        elif status == "cut":
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
        else:
            self.send_bytes(int(status), data if status == "200" else b"", headers)


def make_search(url: str) -> Any:
    """Return a function that searches an archive's list of products, for `NovaCat(providers=…)`."""
    from oncemore.profiles.nova_cat import download

    return lambda nova_id: json.loads(download(f"{url}?nova_id={nova_id}"))
