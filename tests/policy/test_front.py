import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.policy import exact
from simulator.policy.problem import Channel, ProblemError, RoundProblem
from tests.policy.instances import LAMBDAS, all_assignments, channel, lognormal, problems


@settings(max_examples=60, deadline=None)
@given(problem=problems(), share=st.floats(0, 1))
def test_budgets_equal_brute_force(problem, share):
    front = exact.front(problem)
    points = [(s, v) for _, s, v in all_assignments(problem)]
    seconds = front.seconds[0] + share * (front.seconds[-1] - front.seconds[0])
    within = front.least_variance_within(seconds)
    assert within.seconds <= seconds
    assert within.variance == pytest.approx(min(v for s, v in points if s <= seconds), rel=1e-9)
    variance = front.variance[-1] + share * (front.variance[0] - front.variance[-1])
    fastest = front.least_time_within(variance)
    assert fastest.variance <= variance * (1 + 1e-9)
    assert fastest.seconds <= min((s for s, v in points if v <= variance * (1 - 1e-9)), default=np.inf) * (1 + 1e-12)


def test_corners():
    problem = RoundProblem(channels=(channel([2.0], theta=1e-8, gamma=0.0), channel([1.0], theta=1e-9, gamma=0.0)))
    corners = exact.front(problem).corners
    assert corners.utopia_s == pytest.approx(10 * 20 * 1e-8) and corners.nadir_s == pytest.approx(10 * 68 * 1e-8)
    assert corners.utopia_variance == pytest.approx(3 / 65025)
    # The fast channel goes to 8 bits for free, so the nadir is not the 3 / 9 of 2 bits everywhere
    assert corners.nadir_variance == pytest.approx(2 / 9 + 1 / 65025)
    assert corners.score(corners.utopia_s, corners.utopia_variance, 0.3) == pytest.approx(0)
    assert corners.score(corners.nadir_s, corners.nadir_variance, 0.3) == pytest.approx(1)


def test_lambda_0_is_least_time_and_1_least_variance():
    front = exact.front(lognormal(4, 30))
    assert front.at(0.0).seconds == front.corners.utopia_s
    assert front.at(1.0).variance == pytest.approx(front.corners.utopia_variance)
    seconds = [front.at(lam).seconds for lam in LAMBDAS]
    variance = [front.at(lam).variance for lam in LAMBDAS]
    assert seconds == sorted(seconds) and variance == sorted(variance, reverse=True)


def test_the_front_is_strict_and_its_points_are_reached():
    front = exact.front(lognormal(4, 30, short=7))
    assert (np.diff(front.seconds) > 0).all() and (np.diff(front.variance) < 0).all()
    for index in range(0, len(front.seconds), 37):
        reached = front.least_variance_within(front.seconds[index])
        assert reached.seconds == front.seconds[index]
        assert reached.variance == pytest.approx(front.variance[index], rel=1e-12)


def test_the_knee_lies_below_the_chord_and_on_the_front():
    front = exact.front(lognormal(6, 50))
    index = front.knee_index()
    assert 0 < index < len(front.seconds) - 1
    assert front.knee().seconds == front.seconds[index]
    chord = np.interp(front.seconds, front.seconds[[0, -1]], np.log(front.variance[[0, -1]]))
    below = chord - np.log(front.variance)
    assert below[index] == pytest.approx(below.max()) and below[index] > 0.5
    flat = exact.front(RoundProblem(channels=(channel([0.0]),)))
    assert flat.knee_index() == 0


def test_hidden_communication_is_spent_on_variance():
    front = exact.front(lognormal(3, 20))
    assert front.no_slower_than(1e9).variance == pytest.approx(front.corners.utopia_variance)
    assert front.no_slower_than(0.0).seconds == front.corners.utopia_s


def test_impossible_demands_are_refused():
    front = exact.front(lognormal(3, 20))
    with pytest.raises(ProblemError, match="no assignment ends within"):
        front.least_variance_within(front.seconds[0] / 2)
    with pytest.raises(ProblemError, match="no assignment has a variance of"):
        front.least_time_within(front.variance[-1] / 2)
    with pytest.raises(ProblemError, match=r"lambda is 1\.5"):
        front.at(1.5)


@settings(max_examples=60, deadline=None)
@given(
    problem=problems(channels=3),
    which=st.integers(0, 2),
    what=st.sampled_from(["theta_s_per_byte", "gamma_s", "size"]),
    share=st.floats(0, 1),
)
def test_more_cost_is_never_better(problem, which, what, share):
    """Least variance within a fixed time rises with every theta, gamma and size; so does the least time."""
    which %= len(problem.channels)
    old = problem.channels[which]
    costs = {"theta_s_per_byte": old.theta_s_per_byte, "gamma_s": old.gamma_s}
    groups = old.groups
    if what == "size":
        groups = type(groups)(beta=groups.beta, size=groups.size * 2, group_of=groups.group_of)
    else:
        costs[what] = costs[what] * 1.5 + 1e-9
    new = Channel(groups=groups, entries=old.entries, **costs)
    dearer = RoundProblem(
        channels=tuple(new if i == which else c for i, c in enumerate(problem.channels)), bits=problem.bits
    )
    before, after = exact.front(problem), exact.front(dearer)
    assert after.seconds[0] >= before.seconds[0]
    seconds = after.seconds[0] + share * (after.seconds[-1] - after.seconds[0])
    assert before.least_variance_within(seconds).variance <= after.least_variance_within(seconds).variance * (1 + 1e-12)


def test_per_message_bits_follow_the_messages():
    problem = lognormal(2, 6, short=4)
    answer = exact.solve(problem, 0.5)
    for index, c in enumerate(problem.channels):
        messages = answer.per_message(index)
        assert len(messages) == c.groups.size.sum()
        for group, bits in enumerate(answer.bits[index]):
            assert (messages[c.groups.group_of == group] == bits).all()
