"""Which values the patch's settings take, on the command line and live, and that both sides speak of the same ones."""

from __future__ import annotations

import argparse

import pytest

from sglang_specpatch import runtime
from sglang_specpatch.names import FIELDS, EngineField
from sglang_specpatch.runtime import settings

WHOLE_NUMBERS = {
    settings.THRESHOLD: (settings.parse_threshold, 1_000_000),
    settings.PROBE_PERMILLE: (settings.parse_probe_permille, 500),
}
NO_NUMBERS = ["", "eight", "-1", "+1", "1.0", "1e3", " 8", "8 ", "1_0", "٣", "0x8", "9" * 400]


def test_the_fields_of_the_patch_are_the_settings_of_the_added_module() -> None:
    assert [field.name for field in FIELDS] == list(settings.ALL)
    assert [field.name for field in FIELDS if field.live] == list(settings.LIVE)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_a_default_is_a_value_that_the_flag_and_the_server_take(field: EngineField) -> None:
    parse = getattr(runtime, field.parser)
    assert parse(str(field.default)) == field.default
    assert type(field.default) is field.kind
    assert settings.refusal(field.name, field.default) is None


@pytest.mark.parametrize("name", WHOLE_NUMBERS)
def test_whole_numbers_up_to_the_highest_are_taken(name: str) -> None:
    parse, highest = WHOLE_NUMBERS[name]
    for value in (0, 1, 8, highest):
        assert settings.refusal(name, value) is None
        assert parse(str(value)) == value


@pytest.mark.parametrize("name", WHOLE_NUMBERS)
@pytest.mark.parametrize("value", [3.0, "3", True, False, None, [], {}, -1, 1_000_001, 10**9, float("nan")])
def test_anything_else_is_refused_with_a_sentence(name: str, value: object) -> None:
    sentence = settings.refusal(name, value)
    assert sentence is not None
    assert sentence.startswith(name)


@pytest.mark.parametrize("name", WHOLE_NUMBERS)
@pytest.mark.parametrize("text", [*NO_NUMBERS, "1000001"])
def test_the_command_line_refuses_what_is_no_plain_number(name: str, text: str) -> None:
    parse, highest = WHOLE_NUMBERS[name]
    with pytest.raises(argparse.ArgumentTypeError, match=f"must be a whole number from 0 to {highest} "):
        parse(text)


def test_the_first_value_past_the_highest_is_refused() -> None:
    for name, (parse, highest) in WHOLE_NUMBERS.items():
        assert settings.refusal(name, highest + 1) == f"{name} must be from 0 to {highest}, got {highest + 1}"
        with pytest.raises(argparse.ArgumentTypeError):
            parse(str(highest + 1))


@pytest.mark.parametrize("value", ["auto", "decode", "zero-step"])
def test_an_off_path_is_taken_by_its_name(value: str) -> None:
    assert settings.refusal(settings.OFF_PATH, value) is None
    assert settings.parse_off_path(value) == value


@pytest.mark.parametrize("value", ["default", "16x128"])
def test_a_tile_is_taken_by_its_name(value: str) -> None:
    assert settings.refusal(settings.VERIFY_TILE, value) is None
    assert settings.parse_verify_tile(value) == value


@pytest.mark.parametrize("value", ["", "16x64", "16X128", "16", "auto"])
def test_any_other_tile_is_refused(value: str) -> None:
    sentence = "must be one of default, 16x128, got"
    assert sentence in (settings.refusal(settings.VERIFY_TILE, value) or "")
    with pytest.raises(argparse.ArgumentTypeError, match=sentence):
        settings.parse_verify_tile(value)


@pytest.mark.parametrize("value", ["", "Decode", "zerostep", "ZeroStep", "auto ", None, 0, True])
def test_any_other_off_path_is_refused(value: object) -> None:
    sentence = "must be one of auto, decode, zero-step, got"
    assert sentence in (settings.refusal(settings.OFF_PATH, value) or "")
    if isinstance(value, str):
        with pytest.raises(argparse.ArgumentTypeError, match=sentence):
            settings.parse_off_path(value)


def test_an_update_is_refused_for_its_first_bad_value_and_other_keys_do_not_count() -> None:
    good, bad = {settings.THRESHOLD: 8, "other": "3"}, {settings.THRESHOLD: 8, settings.PROBE_PERMILLE: 501}
    assert settings.update_refusal({}) is None
    assert settings.update_refusal(good) is None
    assert settings.update_refusal(bad) == "speculative_probe_permille must be from 0 to 500, got 501"
    assert settings.update_refusal({settings.OFF_PATH: "whatever"}) is None, "no live setting: SGLang refuses the key"
