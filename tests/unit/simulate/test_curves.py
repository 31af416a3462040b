from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_operator.simulate.curves.curve import Curve, CurveError, Line, Mode, affine, line_from_rates
from sglang_operator.simulate.curves.families import curve_by_name, curve_names


@pytest.mark.parametrize(
    ("name", "crossings"),
    [
        ("founding", (2,)),
        ("mid", (46,)),
        ("strong-draft", (205,)),
        ("never-helps", ()),
        ("always-helps", ()),
        ("two-crossings", (6, 49)),
    ],
)
def test_families_cross_where_they_say(name: str, crossings: tuple[int, ...]) -> None:
    assert curve_by_name(name).crossings() == crossings


@pytest.mark.parametrize(
    ("name", "low", "high"), [("triton-decode", 32, 40), ("flashinfer-decode", 65, 128), ("fa3-decode", 129, 200)]
)
def test_measured_crossovers_against_a_real_decode_step(name: str, low: int, high: int) -> None:
    (crossing,) = curve_by_name(name).crossings()
    assert low <= crossing <= high


def test_never_and_always_are_what_they_say() -> None:
    sizes = (1, 2, 46, 256)
    assert {curve_by_name("never-helps").better(size) for size in sizes} == {Mode.OFF}
    assert {curve_by_name("always-helps").better(size) for size in sizes} == {Mode.ON}


def test_zero_step_off_never_pays_on_the_measured_backends_up_to_128() -> None:
    for name in ("triton", "flashinfer", "fa3"):
        assert all(curve_by_name(name).better(size) is Mode.ON for size in range(1, 129))


def test_founding_rates_when_saturated() -> None:
    founding = curve_by_name("founding")
    assert founding.tokens_per_second(Mode.OFF, 64) == pytest.approx(773)
    assert founding.tokens_per_second(Mode.ON, 64) == pytest.approx(354)


def test_rates_without_prefill_meet_the_decode_only_measurement() -> None:
    decode_only = {1: 208, 2: 412, 4: 829, 8: 1630, 16: 3107, 32: 5804, 64: 10801, 128: 17785}
    triton = curve_by_name("triton")
    for batch, rate in decode_only.items():
        assert triton.tokens_per_second(Mode.NONE, batch) == pytest.approx(rate, rel=0.035), batch


def test_acceptance_moves_only_the_drafting_rate() -> None:
    mid = curve_by_name("mid")
    assert mid.tokens_per_second(Mode.ON, 8, 1.2) == pytest.approx(mid.tokens_per_second(Mode.ON, 8) / 2)
    assert mid.tokens_per_second(Mode.OFF, 8, 1.2) == mid.tokens_per_second(Mode.OFF, 8)
    assert mid.crossings(accept_length=1.6)[0] < 46 < mid.crossings(accept_length=3.0)[0]


def test_steps_are_padded_to_graph_sizes() -> None:
    padded = curve_by_name("graph-steps")
    assert padded.step_seconds(Mode.ON, 33) == padded.step_seconds(Mode.ON, 40)
    assert padded.step_seconds(Mode.ON, 41) > padded.step_seconds(Mode.ON, 40)
    assert padded.step_seconds(Mode.ON, 300) > padded.step_seconds(Mode.ON, 256)


def test_line_is_interpolated_and_goes_on() -> None:
    line = Line(((2, 0.010), (4, 0.020), (8, 0.030)))
    assert [line.seconds(b) for b in (1, 2, 3, 4, 6, 8, 12)] == pytest.approx(
        [0.010, 0.010, 0.015, 0.020, 0.025, 0.030, 0.040]
    )
    assert Line(((4, 0.02),)).seconds(100) == 0.02
    falling = Line(((1, 0.02), (4, 0.01)))
    assert falling.seconds(1000) == 0.01, "time never falls beyond what was measured"


@settings(deadline=None)
@given(st.sampled_from(curve_names()), st.sampled_from(tuple(Mode)), st.integers(1, 2000))
def test_every_step_takes_time(name: str, mode: Mode, batch: int) -> None:
    assert 0 < curve_by_name(name).step_seconds(mode, batch) < 60


@settings(deadline=None)
@given(st.integers(1, 512), st.floats(10, 1e5), st.floats(1, 4))
def test_rates_turn_into_steps_and_back(batch: int, rate: float, accept_length: float) -> None:
    line = line_from_rates(((batch, rate),), accept_length)
    assert batch * accept_length / line.seconds(batch) == pytest.approx(rate)


def test_prefill_has_a_floor() -> None:
    curve = curve_by_name("triton")
    assert curve.prefill_seconds(1) == curve.prefill_seconds(100) == 0.005
    assert curve.prefill_seconds(10_000) == pytest.approx(0.29)


@pytest.mark.parametrize(
    "points",
    [
        (),
        ((1, 0.0),),
        ((1, -1.0),),
        ((0, 1.0),),
        ((1, float("nan")),),
        ((1, float("inf")),),
        ((2, 0.1), (2, 0.2)),
        ((4, 0.1), (2, 0.2)),
    ],
)
def test_bad_lines_are_refused(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(CurveError):
        Line(points)


def test_bad_curves_are_refused_by_name() -> None:
    line = affine(0.01, 0.001)
    with pytest.raises(CurveError, match=r"'x': accept_length 0\.5"):
        Curve("x", "test", line, line, line, accept_length=0.5)
    with pytest.raises(CurveError, match=r"no curve 'nope'; known curves: triton, .*founding"):
        curve_by_name("nope")
