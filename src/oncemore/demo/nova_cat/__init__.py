"""Spectra from an archive that throttles and sends broken files."""
