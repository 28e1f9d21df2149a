"""Small rounds, and every assignment of them: the oracle of all solvers."""

import itertools

import numpy as np
from hypothesis import strategies as st

from simulator.policy.problem import Channel, Grouping, RoundProblem, grouped


def channel(beta, size=10, last=None, entries=64, theta=1e-9, gamma=1e-5, ends=(0, 1)):
    """One group per beta, all of ``size`` messages but the last one of ``last``."""
    sizes = np.full(len(beta), size, np.int64)
    if last is not None:
        sizes[-1] = last
    groups = Grouping(beta=np.array(beta, float), size=sizes, group_of=np.repeat(np.arange(len(beta)), sizes))
    return Channel(
        groups=groups, entries=entries, theta_s_per_byte=theta, gamma_s=gamma, sender=ends[0], receiver=ends[1]
    )


def lognormal(channels, groups, *, size=20, short=0, entries=64, seed=0, bits=(2, 4, 8), sigma=1.5):
    """Channels of lognormal betas and unequal links; ``short``: messages of the last group, 0 for a full one."""
    draw = np.random.default_rng(seed)
    return RoundProblem(
        channels=tuple(
            Channel(
                groups=grouped(draw.lognormal(0, sigma, groups * size + (short - size if short else 0)), size),
                entries=entries,
                theta_s_per_byte=1e-9 * draw.uniform(0.5, 2),
                gamma_s=1e-6 * draw.uniform(0.5, 2),
                sender=index,
                receiver=(index + 1) % channels,
            )
            for index in range(channels)
        ),
        bits=bits,
    )


def all_assignments(problem):
    """(bits, seconds, variance) of every assignment."""
    per_channel = [
        [np.array(bits, np.uint8) for bits in itertools.product(problem.bits, repeat=len(c.groups.size))]
        for c in problem.channels
    ]
    for bits in itertools.product(*per_channel):
        yield bits, problem.seconds(bits), problem.variance(bits)


def brute_front(points):
    """The (seconds, variance) that no other point beats, fastest first."""
    front, least = [], np.inf
    for seconds, variance in sorted(points):
        if variance < least:
            front.append((seconds, variance))
            least = variance
    last = [front[i + 1][0] > front[i][0] * (1 + 1e-12) for i in range(len(front) - 1)] + [True]
    return [point for point, keep in zip(front, last, strict=True) if keep]


BETAS = st.one_of(st.just(0.0), st.just(1.0), st.floats(1e-6, 1e6))
EVEN_BETAS = st.one_of(st.just(0.0), st.just(1.0), st.floats(0.01, 100))


@st.composite
def problems(
    draw, *, channels=2, groups=3, bits=((2, 4, 8),), equal=True, betas=BETAS, entries=(1, 2, 3, 5, 6, 7, 8, 41, 64)
):
    """Rounds small enough for brute force; sizes equal but for the last group, or all of them any."""
    made = []
    for index in range(draw(st.integers(1, channels))):
        beta = sorted(draw(st.lists(betas, min_size=1, max_size=groups)), reverse=True)
        size = draw(st.integers(1, 9))
        made.append(
            channel(
                beta,
                size,
                draw(st.integers(1, size)),
                entries=draw(st.sampled_from(entries)),
                theta=draw(st.sampled_from([0.0, 1e-9, 3e-9])),
                gamma=draw(st.sampled_from([0.0, 1e-6])),
                ends=(index, index + 1),
            )
        )
        if not equal:
            made[-1].groups.size[:] = draw(st.lists(st.integers(1, 9), min_size=len(beta), max_size=len(beta)))
    return RoundProblem(channels=tuple(made), bits=draw(st.sampled_from(bits)))


def scaled(problem, factor):
    """The same round with every beta times ``factor``."""
    return RoundProblem(
        channels=tuple(
            channel(c.groups.beta * factor, entries=c.entries, theta=c.theta_s_per_byte, gamma=c.gamma_s)
            for c in problem.channels
        ),
        bits=problem.bits,
    )


LAMBDAS = (0.0, 0.1, 0.37, 0.5, 0.9, 0.999, 1.0)


def rounding(corners):
    """What roundings may do to a score: variances far larger than their span cancel in it."""
    return 1e-9 + 1e-12 * corners.nadir_variance / corners.span_variance()
