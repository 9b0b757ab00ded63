"""The plugin, in the test suite of an engine of somebody else."""

from __future__ import annotations

import pytest


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest('pytest_plugins = ["draftproof.audit.pytest_plugin"]')
    return pytester


def test_three_lines_find_a_bug_and_pass_what_is_exact(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import draftproof as dp
        from draftproof.audit.witness import SEARCHED, Witness
        from draftproof.audit.zoo import BUGS

        SMALL = [Witness.random("small", 3, 2, 0.35, 13)]

        def test_exact(lossless):
            assert lossless(dp.verify, witnesses=SMALL, least_power=0.0).ok

        def test_wrong(lossless):
            lossless(BUGS[0], witnesses=SMALL)

        def test_too_little(lossless):
            import numpy as np
            rng = np.random.default_rng(0)
            lossless(lambda p, x, q: dp.verify(p, x, q, uniforms=rng.random((*x.shape[:-1], x.shape[-1] + 1))),
                     draws=1000, witnesses=SMALL)
        """
    )
    result = suite.runpytest_subprocess("-q")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*AssertionError: Bug*not exact*", "*nearest known bug: the residual is p itself*"])
    result.stdout.fnmatch_lines(["*would be found with less than 0.95*"])


def test_known_bugs_are_given_one_by_one(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import numpy as np

        def test_law(known_bug):
            n, tokens = known_bug(np.full((2, 3), 1 / 3), np.array([1]), np.full((1, 3), 1 / 3), np.array([0.5, 0.5]))
            assert len(tokens) == n + 1
        """
    )
    suite.runpytest_subprocess("-q").assert_outcomes(passed=18)
