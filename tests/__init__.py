"""Tests, and the type checker that they run under: beartype, for which an int is a float too."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
