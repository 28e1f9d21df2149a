"""Which widths a round's messages get: problems, solvers, fronts.

Read problem.py, front.py, exact.py, then hull.py, simple.py, solvers.py, milp.py, ring_lp.py, joint.py; table.py
names the policies.
"""

from simulator.policy.front import Assignment, Corners, Front, check_lambda
from simulator.policy.hull import best_front
from simulator.policy.joint import JointAssignment
from simulator.policy.problem import (
    DEFAULT_BITS,
    WIDTHS,
    Channel,
    Grouping,
    ProblemError,
    RoundProblem,
    grouped,
    message_beta,
    rounds_of,
    variance_factor,
)
from simulator.policy.ring_lp import RingAssignment, ring_seconds
from simulator.policy.solvers import SolverError
from simulator.policy.table import POLICIES, Settings, assign

__all__ = [
    "DEFAULT_BITS",
    "WIDTHS",
    "Channel",
    "Grouping",
    "ProblemError",
    "RoundProblem",
    "grouped",
    "message_beta",
    "rounds_of",
    "variance_factor",
    "Assignment",
    "Corners",
    "Front",
    "check_lambda",
    "best_front",
    "JointAssignment",
    "RingAssignment",
    "ring_seconds",
    "SolverError",
    "POLICIES",
    "Settings",
    "assign",
]
