"""Downloads a spectrum, and checks that it is usable: integrity, format, domain (COOL-12).

The first check that fails decides the reason:

    the SHA-256 is the announced one             CHECKSUM_MISMATCH
    astropy reads the file as FITS to its end    FITS_UNREADABLE
    the file's own checksums fit                 FITS_CHECKSUM_MISMATCH
    the layout is known                          UNKNOWN_FITS_PROFILE
    wavelengths rise                             WAVELENGTH_NOT_RISING
    wavelengths are in the range of spectra      WAVELENGTH_OUT_OF_RANGE
    every flux is a finite number                FLUX_NOT_FINITE
    the largest flux is plausible                FLUX_OUT_OF_RANGE

Two layouts are known: a spectrum as a one-row image with its scale in the header (`image-1d`), and a table
with a column of wavelengths and one of fluxes (`table`). astropy is imported with the first file.
"""

from __future__ import annotations

import io
import warnings
from hashlib import sha256
from http.client import IncompleteRead
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from oncemore._values import Value
from oncemore.errors import MissingExtra
from oncemore.profiles.nova_cat import names
from oncemore.profiles.nova_cat.input import InvalidInput, UnusableData
from oncemore.retries.deadlines import time_remaining

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: The range of wavelengths, in nanometres: from the far ultraviolet to the far infrared.
MIN_WAVELENGTH_NM, MAX_WAVELENGTH_NM = 50.0, 100_000.0
#: The largest plausible flux, in any unit.
MAX_FLUX = 1e12
#: Nanometres per unit, by the name of the unit in a header, in lower case.
NANOMETRES_BY_UNIT = {
    "": 0.1, "angstrom": 0.1, "angstroms": 0.1, "a": 0.1, "nm": 1.0, "nanometer": 1.0, "nanometers": 1.0,
    "um": 1e3, "micron": 1e3, "microns": 1e3, "m": 1e9, "meter": 1e9,
}  # fmt: skip
AXES = ("WAVE", "AWAV", "LINEAR", "WAVELENGTH", "LAMBDA")
WAVELENGTH_COLUMNS, FLUX_COLUMNS = (
    ("WAVE", "WAVELENGTH", "LAMBDA", "WL"),
    ("FLUX", "FLUX_REDUCED", "F_LAMBDA", "SPEC"),
)

#: `warnings.catch_warnings` changes the filters of the whole process, so only one thread may be inside.
_WARNINGS_LOCK = Lock()


class SpectrumFile(Value):
    """A file that passed the checks: its layout, its range of wavelengths, its digest and size."""

    profile: str
    points: int
    first_nm: float
    last_nm: float
    sha256: str
    size: int


def validate(data: bytes, expected: str | None = None) -> SpectrumFile:
    """Return the description of a file; raise `UnusableData` with the reason of the first failed check.

    expected  the SHA-256 that was announced for the file, if one was
    """
    digest = sha256(data).hexdigest()
    if expected is not None and digest != expected.lower():
        raise UnusableData(
            names.CHECKSUM_MISMATCH,
            f"the bytes have SHA-256 {digest[:12]}…, and {expected[:12]}… was announced",
        )
    fits, numpy = import_readers()
    with _WARNINGS_LOCK, warnings.catch_warnings():
        # astropy only warns about a cut file or a wrong checksum; the checks below refuse both.
        warnings.simplefilter("ignore")
        with _open_fits(fits, data) as file:
            _check_complete(file, data)
            _check_checksums(file)
            profile, waves, flux = _read_spectrum(file, numpy)
    first, last = _check_domain(numpy, waves, flux)
    return SpectrumFile(profile, len(waves), first, last, digest, len(data))


def import_readers() -> tuple[Any, Any]:
    """Return the modules astropy.io.fits and numpy; raise `MissingExtra` if they are not installed."""
    try:
        import numpy
        from astropy.io import fits  # type: ignore[import-untyped]
    except ImportError as missing:
        raise MissingExtra("spectra are read with astropy: pip install 'oncemore[fits]'") from missing
    return fits, numpy


def _open_fits(fits: Any, data: bytes) -> Any:
    try:
        return fits.open(io.BytesIO(data), memmap=False, lazy_load_hdus=False)
    except Exception as error:
        raise _unreadable_error(error) from error


def _unreadable_error(error: object) -> UnusableData:
    return UnusableData(names.FITS_UNREADABLE, f"it cannot be read as FITS: {str(error).splitlines()[0]}")


def _check_complete(file: Any, data: bytes) -> None:
    """Refuse a file that is shorter than its headers say, or whose data cannot be read."""
    try:
        for hdu in file:
            info = hdu.fileinfo()
            ends = info["datLoc"] + info["datSpan"]
            if ends > len(data):
                raise _unreadable_error(f"it ends after {len(data)} bytes, and should have {ends}")
            _ = hdu.data  # astropy decodes the data on first access only
    except UnusableData:
        raise
    except Exception as error:
        raise _unreadable_error(error) from error


def _check_checksums(file: Any) -> None:
    """Refuse a file whose own checksums (CHECKSUM, DATASUM) do not fit; a file without them passes."""
    for number, hdu in enumerate(file):
        # astropy returns 0 for a wrong checksum, 1 for a right one and 2 for none.
        if 0 in (hdu.verify_checksum(), hdu.verify_datasum()):
            raise UnusableData(
                names.FITS_CHECKSUM_MISMATCH, f"HDU {number} ({hdu.name}) does not fit its own checksum"
            )


def _read_spectrum(file: Any, numpy: Any) -> tuple[str, Any, Any]:
    """Return the layout, the wavelengths in nanometres and the fluxes; refuse an unknown layout."""
    for profile, read_layout in PROFILES.items():
        for hdu in file:
            spectrum = read_layout(hdu, numpy)
            if spectrum is not None:
                return profile, *spectrum
    kinds = ", ".join(type(hdu).__name__ for hdu in file)
    raise UnusableData(
        names.UNKNOWN_FITS_PROFILE, f"the file has none of the known layouts ({', '.join(PROFILES)}): {kinds}"
    )


def _read_image(hdu: Any, numpy: Any) -> tuple[Any, Any] | None:
    header = hdu.header
    step = header.get("CDELT1", header.get("CD1_1"))
    if hdu.data is None or getattr(hdu.data, "ndim", 0) != 1 or "CRVAL1" not in header or step is None:
        return None
    axis, scale = str(header.get("CTYPE1", "LINEAR")).strip().upper(), _unit_scale(header.get("CUNIT1"))
    if axis.partition("-")[0] not in AXES or scale is None or hdu.data.dtype.names is not None:
        return None
    pixels = numpy.arange(1, len(hdu.data) + 1, dtype=float) - float(header.get("CRPIX1", 1.0))
    return (float(header["CRVAL1"]) + pixels * float(step)) * scale, numpy.asarray(hdu.data, dtype=float)


def _read_table(hdu: Any, numpy: Any) -> tuple[Any, Any] | None:
    columns = {name.upper(): name for name in getattr(getattr(hdu, "columns", None), "names", ())}
    wave, flux = (
        next((columns[column] for column in known if column in columns), None)
        for known in (WAVELENGTH_COLUMNS, FLUX_COLUMNS)
    )
    if wave is None or flux is None:
        return None
    scale = _unit_scale(hdu.columns[wave].unit)
    if scale is None:
        return None
    # An archive may keep a whole spectrum in one row of vectors.
    waves, fluxes = (numpy.asarray(hdu.data[name], dtype=float).ravel() for name in (wave, flux))
    return (waves * scale, fluxes) if len(waves) == len(fluxes) else None


def _unit_scale(unit: Any) -> float | None:
    return NANOMETRES_BY_UNIT.get(str(unit or "").strip().lower())


PROFILES: dict[str, Callable[[Any, Any], tuple[Any, Any] | None]] = {
    "image-1d": _read_image,
    "table": _read_table,
}


def _check_domain(numpy: Any, waves: Any, flux: Any) -> tuple[float, float]:
    """Return the first and last wavelength of a plausible spectrum; refuse any other."""
    for failed, reason, text in _domain_checks(numpy, waves, flux):
        if failed:
            raise UnusableData(reason, text)
    return round(float(waves[0]), 6), round(float(waves[-1]), 6)


def _domain_checks(numpy: Any, waves: Any, flux: Any) -> Iterator[tuple[bool, str, str]]:
    # The order matters: later checks index and compare values that earlier ones have secured.
    too_few = len(waves) < 2 or not bool(numpy.all(numpy.isfinite(waves)))
    yield too_few, names.WAVELENGTH_NOT_RISING, "it has fewer than two wavelengths, or some are not finite"
    is_falling = bool(numpy.any(numpy.diff(waves) <= 0))
    yield (
        is_falling,
        names.WAVELENGTH_NOT_RISING,
        f"wavelengths do not rise ({waves[0]:g} to {waves[-1]:g} nm)",
    )
    is_outside = waves[0] < MIN_WAVELENGTH_NM or waves[-1] > MAX_WAVELENGTH_NM
    text = (
        f"wavelengths of {waves[0]:g} to {waves[-1]:g} nm; {MIN_WAVELENGTH_NM:g} to "
        f"{MAX_WAVELENGTH_NM:g} are plausible"
    )
    yield bool(is_outside), names.WAVELENGTH_OUT_OF_RANGE, text
    not_finite = int(numpy.count_nonzero(~numpy.isfinite(flux)))
    yield not_finite > 0, names.FLUX_NOT_FINITE, f"{not_finite} of {len(flux)} fluxes are not finite numbers"
    large = float(numpy.max(numpy.abs(flux)))
    is_implausible = large == 0.0 or large > MAX_FLUX
    yield is_implausible, names.FLUX_OUT_OF_RANGE, f"the largest flux is {large:g}, which is not plausible"


#: The largest file to fetch, the size of one read, and the longest silence of a provider.
MAX_BYTES, CHUNK, READ_TIMEOUT_S = 256 * 2**20, 2**16, 60.0
HEADERS = {"User-Agent": "oncemore nova-cat", "Accept": "application/fits, */*"}


def download(locator: str, silence_s: float = READ_TIMEOUT_S) -> bytes:
    """Return the bytes behind an http or https address, within the time that is left for the attempt.

    silence_s  how long the provider may send nothing
    Raises `InvalidInput` for more than `MAX_BYTES` bytes and `IncompleteRead` for a body that was cut.
    """
    remaining_s = time_remaining()
    timeout_s = silence_s if remaining_s is None else max(0.001, min(remaining_s, silence_s))
    try:
        with urlopen(Request(locator, headers=HEADERS), timeout=timeout_s) as response:  # noqa: S310 - http(s) only
            return _read_body(response)
    except HTTPError as error:
        error.close()  # the error outlives the call in logs and records, and would keep the connection open
        raise


def _read_body(response: Any) -> bytes:
    """Return the whole body of a response; refuse one that is cut or too large."""
    parts, size = [], 0
    while part := response.read(CHUNK):
        parts.append(part)
        size += len(part)
        if size > MAX_BYTES:
            raise InvalidInput(names.INVALID_FIELD, f"locator has more than {MAX_BYTES} bytes")
    # `length` counts the announced bytes that have not arrived; `read` in parts does not check it.
    if response.length:
        raise IncompleteRead(b"", response.length)
    return b"".join(parts)
