"""Benchmarks: each prints its table and writes a CSV with machine, versions and commit."""
