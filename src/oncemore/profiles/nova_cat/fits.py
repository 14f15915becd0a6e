"""Whether bytes are a spectrum that science can use: integrity, format, domain (COOL-12).

The questions are asked in this order, and the first that says no ends it with its own reason:

    are they the bytes that were announced?    CHECKSUM_MISMATCH
    can they be read as FITS, to the end?      FITS_UNREADABLE
    do they agree with their own checksums?    FITS_CHECKSUM_MISMATCH
    is it a layout that we know?               UNKNOWN_FITS_PROFILE
    do wavelengths rise?                       WAVELENGTH_NOT_RISING
    … and lie where spectra of novae are?      WAVELENGTH_OUT_OF_RANGE
    is every flux a number?                    FLUX_NOT_FINITE
    … and could it have been measured?         FLUX_OUT_OF_RANGE

Two layouts are known: a spectrum as an image of one row with its scale in the header (`image-1d`), and one as
a table with a column of wavelengths and one of fluxes (`table`). astropy reads both; it is imported when the
first file is looked at.
"""

from __future__ import annotations

import io
import warnings
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.errors import MissingExtra
from oncemore.profiles.nova_cat import names
from oncemore.profiles.nova_cat.input import QuarantineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Where wavelengths of spectra may lie, in nanometres: from the far ultraviolet to the far infrared.
SHORTEST_NM, LONGEST_NM = 50.0, 100_000.0
#: The largest flux that anybody could have meant, in whatever unit.
LARGEST_FLUX = 1e12
#: How many of a unit make a nanometre; what a header calls it, in lower case.
UNITS = {
    "": 0.1, "angstrom": 0.1, "angstroms": 0.1, "a": 0.1, "nm": 1.0, "nanometer": 1.0, "nanometers": 1.0,
    "um": 1e3, "micron": 1e3, "microns": 1e3, "m": 1e9, "meter": 1e9,
}  # fmt: skip
AXES = ("WAVE", "AWAV", "LINEAR", "WAVELENGTH", "LAMBDA")
WAVES, FLUXES = ("WAVE", "WAVELENGTH", "LAMBDA", "WL"), ("FLUX", "FLUX_REDUCED", "F_LAMBDA", "SPEC")

_ALONE = Lock()


class Spectrum(Value):
    """What a file that passed is: its layout, and how far it reaches."""

    profile: str
    points: int
    first_nm: float
    last_nm: float
    sha256: str
    size: int


def validate(data: bytes, expected: str | None = None) -> Spectrum:
    """Return what a file is; raise `QuarantineError` with the reason of the first question it fails.

    expected  the SHA-256 that was announced for it, if one was
    """
    found = sha256(data).hexdigest()
    if expected is not None and found != expected.lower():
        raise QuarantineError(
            names.CHECKSUM_MISMATCH,
            f"the bytes have SHA-256 {found[:12]}…, and {expected[:12]}… was announced",
        )
    fits, numpy = readers()
    with _ALONE, warnings.catch_warnings():  # whose filters are the whole process's
        warnings.simplefilter("ignore")  # what astropy warns of is asked about below, and refused
        with _opened(fits, data) as file:
            _whole(file, data)
            _agrees(file)
            profile, waves, flux = _spectrum(file, numpy)
    first, last = _domain(numpy, waves, flux)
    return Spectrum(profile, len(waves), first, last, found, len(data))


def readers() -> tuple[Any, Any]:
    """Return what reads FITS, and what computes; say which extra brings them if they are not there."""
    try:
        import numpy
        from astropy.io import fits  # type: ignore[import-untyped]
    except ImportError as missing:
        raise MissingExtra("spectra are read with astropy: pip install 'oncemore[fits]'") from missing
    return fits, numpy


# Integrity and format -------------------------------------------------------------------------------


def _opened(fits: Any, data: bytes) -> Any:
    try:
        return fits.open(io.BytesIO(data), memmap=False, lazy_load_hdus=False)
    except Exception as fault:
        raise _unreadable(fault) from fault


def _unreadable(fault: object) -> QuarantineError:
    return QuarantineError(names.FITS_UNREADABLE, f"it cannot be read as FITS: {str(fault).splitlines()[0]}")


def _whole(file: Any, data: bytes) -> None:
    """Refuse a file that ends before its headers say that it does, or whose data cannot be read."""
    try:
        for hdu in file:
            told = hdu.fileinfo()
            ends = told["datLoc"] + told["datSpan"]
            if ends > len(data):
                raise _unreadable(f"it ends after {len(data)} bytes, and should have {ends}")
            _ = hdu.data
    except QuarantineError:
        raise
    except Exception as fault:
        raise _unreadable(fault) from fault


def _agrees(file: Any) -> None:
    """Refuse a file whose own checksums (CHECKSUM, DATASUM) do not fit; one without them has none to fit."""
    for number, hdu in enumerate(file):
        if 0 in (hdu.verify_checksum(), hdu.verify_datasum()):
            raise QuarantineError(
                names.FITS_CHECKSUM_MISMATCH, f"HDU {number} ({hdu.name}) does not fit its own checksum"
            )


def _spectrum(file: Any, numpy: Any) -> tuple[str, Any, Any]:
    """Return layout, wavelengths in nanometres and fluxes; refuse a layout that nobody knows."""
    for profile, reads in PROFILES.items():
        for hdu in file:
            found = reads(hdu, numpy)
            if found is not None:
                return profile, *found
    kinds = ", ".join(type(hdu).__name__ for hdu in file)
    raise QuarantineError(
        names.UNKNOWN_FITS_PROFILE, f"none of the known layouts ({', '.join(PROFILES)}) is in it: {kinds}"
    )


def _image(hdu: Any, numpy: Any) -> tuple[Any, Any] | None:
    header = hdu.header
    step = header.get("CDELT1", header.get("CD1_1"))
    if hdu.data is None or getattr(hdu.data, "ndim", 0) != 1 or "CRVAL1" not in header or step is None:
        return None
    axis, scale = str(header.get("CTYPE1", "LINEAR")).strip().upper(), _scale(header.get("CUNIT1"))
    if axis.partition("-")[0] not in AXES or scale is None or hdu.data.dtype.names is not None:
        return None
    pixels = numpy.arange(1, len(hdu.data) + 1, dtype=float) - float(header.get("CRPIX1", 1.0))
    return (float(header["CRVAL1"]) + pixels * float(step)) * scale, numpy.asarray(hdu.data, dtype=float)


def _table(hdu: Any, numpy: Any) -> tuple[Any, Any] | None:
    columns = {name.upper(): name for name in getattr(getattr(hdu, "columns", None), "names", ())}
    wave, flux = (next((columns[one] for one in known if one in columns), None) for known in (WAVES, FLUXES))
    if wave is None or flux is None:
        return None
    scale = _scale(hdu.columns[wave].unit)
    if scale is None:
        return None
    # An archive may keep a whole spectrum in one row of vectors.
    waves, fluxes = (numpy.asarray(hdu.data[name], dtype=float).ravel() for name in (wave, flux))
    return (waves * scale, fluxes) if len(waves) == len(fluxes) else None


def _scale(unit: Any) -> float | None:
    return UNITS.get(str(unit or "").strip().lower())


PROFILES: dict[str, Callable[[Any, Any], tuple[Any, Any] | None]] = {"image-1d": _image, "table": _table}


# Domain ---------------------------------------------------------------------------------------------


def _domain(numpy: Any, waves: Any, flux: Any) -> tuple[float, float]:
    """Return the ends of a spectrum that makes sense; else say in which way it does not."""
    for wrong, reason, text in _sense(numpy, waves, flux):
        if wrong:
            raise QuarantineError(reason, text)
    return round(float(waves[0]), 6), round(float(waves[-1]), 6)


def _sense(numpy: Any, waves: Any, flux: Any) -> Iterator[tuple[bool, str, str]]:
    few = len(waves) < 2 or not bool(numpy.all(numpy.isfinite(waves)))
    yield few, names.WAVELENGTH_NOT_RISING, "it has fewer than two wavelengths, or some that are no numbers"
    falls = bool(numpy.any(numpy.diff(waves) <= 0))
    yield falls, names.WAVELENGTH_NOT_RISING, f"wavelengths do not rise ({waves[0]:g} to {waves[-1]:g} nm)"
    out = waves[0] < SHORTEST_NM or waves[-1] > LONGEST_NM
    text = f"wavelengths of {waves[0]:g} to {waves[-1]:g} nm; {SHORTEST_NM:g} to {LONGEST_NM:g} are plausible"
    yield bool(out), names.WAVELENGTH_OUT_OF_RANGE, text
    wrong = int(numpy.count_nonzero(~numpy.isfinite(flux)))
    yield wrong > 0, names.FLUX_NOT_FINITE, f"{wrong} of {len(flux)} fluxes are no numbers"
    large = float(numpy.max(numpy.abs(flux)))
    nothing = large == 0.0 or large > LARGEST_FLUX
    yield nothing, names.FLUX_OUT_OF_RANGE, f"the largest flux is {large:g}; nobody can have measured that"
