"""Tests, and the type checker that they run under: beartype, with an int passing for a float as everywhere in Python."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
