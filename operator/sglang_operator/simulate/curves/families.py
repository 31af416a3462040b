"""The named curves: three measured engines and the families that a tuner must cope with.

**Measured** (`triton`, `flashinfer`, `fa3`; one H200, SGLang 0.5.16, Llama-8B shape in bf16, EAGLE-3 with 3 steps and
top-k 1, simulated acceptance 2.4, 128 prompt and 160 output tokens, closed loop). The names are SGLang's attention
backends. The tables hold output tokens per second end to end. Two variants differ in what "off" costs: with the plain
name it is SGLang's own zero-step state (drafting nothing, but still running the verify path), with `-decode` it is a
real decode step (measured within 1 % of a server without speculation).

End to end contains prefill. Comparing the end-to-end table with the decode-only one of the same engine gives 3.6–3.9 ms
of prefill per request at 32 to 128 requests, 29 µs a prompt token, hence 128 × 29 µs / 160 = 23.2 µs per output
token, which is taken out of each rate (`line_from_rates`); the result meets the decode-only table within 3 % without
speculation. The scheduler adds prefill back where it happens.

**Families** (step time affine in batch size; chosen so that the stated property holds, not measured):

    off(B) = a_off + b_off·B,   on(B) = a_on + b_on·B,   off and on equal in rate at x:
    accept·(a_off + b_off·x) = a_on + b_on·x   which gives b_on for a chosen a_on and x

- `founding`: 773 tok/s off against 354 tok/s on at 64 requests, crossover near 2 (x = 1.9).
- `mid`: crossover near 46 (x = 45.5). `strong-draft`: acceptance 3.2, crossover near 205 (x = 204.5).
- `never-helps`: on is 7 to 14 % slower up to 256 requests. `always-helps`: on is 1.4 to 1.7 times as fast up to there.
- `graph-steps`: `mid` with steps padded to the captured graph sizes.
- `two-crossings`: as with a mixture of experts; off is better below 6 (a few drafted tokens already wake many more
  experts), on from 6 to 48, off again from 49.
"""

from __future__ import annotations

from sglang_operator.simulate.curves.curve import Curve, CurveError, Line, affine, line_from_rates

MEASURED_ACCEPT_LENGTH = 2.4
PREFILL_SECONDS_PER_OUTPUT_TOKEN = 128 * 29e-6 / 160

# End-to-end output tokens per second by number of concurrent requests: no speculation, speculating, off by zero-step.
# fa3 speculating at 1 request was measured between 283 and 363; the upper value agrees with a second machine.
_Rates = tuple[tuple[int, float], ...]
_MEASURED: dict[str, tuple[_Rates, _Rates, _Rates]] = {
    "triton": (
        ((1, 203), (8, 1530), (32, 5082), (64, 8551), (128, 12708)),
        ((1, 332), (8, 2266), (32, 5239), (64, 6652), (128, 7262)),
        ((1, 168), (8, 1086), (32, 2689), (64, 3550), (128, 4187)),
    ),
    "flashinfer": (
        ((1, 199), (8, 1493), (32, 5103), (64, 8526), (128, 12658)),
        ((1, 273), (8, 1943), (32, 6390), (64, 8841), (128, 10842)),
        ((1, 138), (8, 1043), (32, 3625), (64, 6169), (128, 8974)),
    ),
    "fa3": (
        ((1, 205), (8, 1507), (32, 5202), (64, 8634), (128, 12658)),
        ((1, 363), (8, 2794), (32, 8176), (64, 11693), (128, 13269)),
        ((1, 167), (8, 1395), (32, 4506), (64, 7977), (128, 10750)),
    ),
}
_DECODE_OFF_SHARE = 0.99
_GRAPH_SIZES = (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)
_FAMILY_SOURCE = "family chosen for its crossover, not measured"


def curve_names() -> tuple[str, ...]:
    """The names that `curve_by_name` knows, in a fixed order."""
    return tuple(_CURVES)


def curve_by_name(name: str) -> Curve:
    """The named curve. Raises CurveError that lists the names if there is none of that name."""
    try:
        return _CURVES[name]
    except KeyError:
        raise CurveError(f"there is no curve {name!r}; known curves: {', '.join(_CURVES)}") from None


def _measured(backend: str, *, decode: bool) -> Curve:
    none_rates, on_rates, zero_step_rates = _MEASURED[backend]
    other = PREFILL_SECONDS_PER_OUTPUT_TOKEN
    none = line_from_rates(none_rates, 1.0, other)
    if decode:
        off = Line(tuple((batch, seconds / _DECODE_OFF_SHARE) for batch, seconds in none.points))
    else:
        off = line_from_rates(zero_step_rates, 1.0, other)
    return Curve(
        name=f"{backend}-decode" if decode else backend,
        source=f"H200, SGLang 0.5.16, {backend}, off by {'a decode step' if decode else 'the zero-step state'}",
        on=line_from_rates(on_rates, MEASURED_ACCEPT_LENGTH, other),
        off=off,
        none=none,
        accept_length=MEASURED_ACCEPT_LENGTH,
    )


def _crossing_at(
    name: str,
    crossover: float,
    *,
    off_base: float = 0.020,
    off_slope: float = 0.0001,
    on_base: float = 0.027,
    accept_length: float = 2.4,
    graph_sizes: tuple[int, ...] = (),
) -> Curve:
    """An affine family whose modes have equal rates at `crossover`; bases in seconds, slope in seconds per request."""
    on_slope = (accept_length * (off_base + off_slope * crossover) - on_base) / crossover
    off = affine(off_base, off_slope)
    return Curve(name, _FAMILY_SOURCE, affine(on_base, on_slope), off, off, accept_length, graph_sizes)


def _founding() -> Curve:
    """Two saturated rates and a crossover fix three of the four numbers; the base of "off" is chosen."""
    accept, saturated, crossover, off_base = 2.4, 64, 1.9, 0.020
    off_slope = (saturated / 773.0 - off_base) / saturated
    at_crossover = accept * (off_base + off_slope * crossover)
    on_slope = (saturated * accept / 354.0 - at_crossover) / (saturated - crossover)
    off = affine(off_base, off_slope)
    on = affine(at_crossover - on_slope * crossover, on_slope)
    return Curve("founding", "two saturated rates and a crossover from the field", on, off, off, accept)


def _two_crossings() -> Curve:
    off = Line(((1, 0.0100), (4, 0.0150), (16, 0.0300), (64, 0.0420), (256, 0.0700)))
    on = Line(((1, 0.0280), (4, 0.0375), (8, 0.0440), (16, 0.0560), (32, 0.0700), (64, 0.1120), (256, 0.4200)))
    return Curve("two-crossings", _FAMILY_SOURCE, on, off, off, 2.4)


def _never_and_always() -> tuple[Curve, Curve]:
    off = affine(0.020, 0.0001)
    never = affine(2.4 * 0.020 * 1.08, 2.4 * 0.0001 * 1.22)
    always = affine(1.4 * 0.020, 1.9 * 0.0001)
    return (
        Curve("never-helps", _FAMILY_SOURCE, never, off, off, 2.4),
        Curve("always-helps", _FAMILY_SOURCE, always, off, off, 2.4),
    )


def _all_curves() -> dict[str, Curve]:
    measured = [_measured(backend, decode=decode) for backend in _MEASURED for decode in (False, True)]
    families = [
        _founding(),
        _crossing_at("mid", 45.5),
        _crossing_at("strong-draft", 204.5, on_base=0.028, accept_length=3.2),
        *_never_and_always(),
        _crossing_at("graph-steps", 45.5, graph_sizes=_GRAPH_SIZES),
        _two_crossings(),
    ]
    return {curve.name: curve for curve in (*measured, *families)}


_CURVES = _all_curves()
