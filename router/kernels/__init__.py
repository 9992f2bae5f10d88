"""Loops compiled by numba; nothing here may be imported where numba is missing.

`router.keys` and `router.structures` import these modules lazily and fall back to plain Python by name.
"""
