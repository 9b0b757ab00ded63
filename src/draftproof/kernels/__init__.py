"""Implementations of the batched acceptance step: one op, one file each, all tested against the references."""
