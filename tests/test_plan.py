import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit import config as configs
from toolkit.errors import UserError
from toolkit.plan import STEPS, LayerShape, bytes_by_reach, floats, layer_shapes, make_plan, parse_steps
from toolkit.traffic import flows, savings, total_bytes

THREE = (
    LayerShape(inputs=602, outputs=256, dropout=0.0),
    LayerShape(inputs=256, outputs=256, dropout=0.5),
    LayerShape(inputs=256, outputs=41, dropout=0.5),
)


def schedule(steps):
    return [(s.sends, s.entries, s.width, s.backward, s.max_reach) for s in steps]


def test_the_exact_plan_of_a_three_layer_net():
    plan = make_plan(THREE, parse_steps("exact"))
    assert schedule(plan.train) == [
        ("nothing", 602, 602, False, None),
        ("inputs", 128, 256, True, 1),
        ("outputs", 41, 41, True, 0),
    ]
    assert schedule(plan.evaluate) == [
        ("nothing", 602, 602, False, None),
        ("inputs", 256, 256, False, None),
        ("outputs", 41, 41, False, None),
    ]


def test_the_papers_plan():
    plan = make_plan(THREE, parse_steps("paper"))
    assert schedule(plan.train) == [
        ("inputs", 602, 602, False, None),
        ("inputs", 256, 256, True, None),
        ("inputs", 256, 256, True, None),
    ]


def test_narrow_is_by_bytes_that_would_travel():
    """128 kept entries of 256 are fewer than 200 after W: then kept-only wins."""
    shape = LayerShape(inputs=256, outputs=200, dropout=0.5)
    step = make_plan((THREE[0], shape), parse_steps("exact")).train[1]
    assert (step.sends, step.entries) == ("inputs", 128)
    step = make_plan((THREE[0], shape), parse_steps("once+narrow+needed")).train[1]
    assert (step.sends, step.entries) == ("outputs", 200)


def test_w_first_at_layer_0_sends_errors_back_and_must_pay_for_them():
    """Where layer 0's rows travel after W, the gradient of W needs the remote share: there and back."""
    step = make_plan(THREE, parse_steps("narrow")).train[0]
    assert (step.sends, step.entries, step.backward) == ("outputs", 256, True)  # 2 x 256 < 602
    wide = (LayerShape(inputs=511, outputs=256, dropout=0.0), THREE[1])
    step = make_plan(wide, parse_steps("narrow")).train[0]
    assert (step.sends, step.entries, step.backward) == ("inputs", 511, False)


def test_gat_widths_count_all_heads():
    model = configs.Model(kind="gat", layers=2, hidden=64, heads=8, out_heads=3)
    shapes = layer_shapes(model, 100, 7)
    assert [(s.inputs, s.outputs) for s in shapes] == [(100, 64), (64, 21)]


@pytest.mark.parametrize("text", ["exakt", "once+keep", "", "once,kept"])
def test_unknown_plans_are_refused(text):
    with pytest.raises(UserError, match=r"method\.plan"):
        parse_steps(text)


def test_bytes_by_reach_equal_the_flows():
    plan = make_plan(THREE, parse_steps("exact"))
    per_reach = bytes_by_reach(plan, floats)
    # reach 0: both layers, there and back; reach 1: layer 1 alone; farther: nothing
    assert per_reach.tolist() == [2 * 4 * (128 + 41), 2 * 4 * 128, 0, 0]


@given(data=st.data(), ranks=st.integers(1, 5))
def test_every_step_saves_and_predictions_agree(data, ranks):
    layers = data.draw(st.integers(1, 4))
    widths = data.draw(st.lists(st.integers(1, 300), min_size=layers + 1, max_size=layers + 1))
    dropouts = data.draw(st.lists(st.sampled_from([0.0, 0.5, 0.9]), min_size=layers, max_size=layers))
    shapes = tuple(
        LayerShape(inputs=a, outputs=b, dropout=p) for a, b, p in zip(widths[:-1], widths[1:], dropouts, strict=True)
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    channels = rng.integers(0, 50, (ranks, ranks, 65)) * ~np.eye(ranks, dtype=bool)[:, :, None]
    saved = savings(shapes, channels, floats)
    totals = [s.total_bytes for s in saved]
    assert totals == sorted(totals, reverse=True)
    assert [s.step for s in saved] == ["paper", *STEPS]
    for text in ("exact", "paper", "kept+needed"):
        plan = make_plan(shapes, parse_steps(text))
        weights = bytes_by_reach(plan, floats)
        by_reach = channels.sum((0, 1))
        expected = sum(int(by_reach[r] * weights[min(r, layers)]) for r in range(65))
        assert total_bytes(flows(plan.train, channels, floats)).sum() == expected
