"""Speculative decoding that is provably lossless."""
