from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_operator.status.text import (
    clean,
    cut,
    elapsed,
    hide_api_keys,
    one_line,
    parse_rfc3339,
    rfc3339,
    share,
    some,
    tail,
)

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@settings(deadline=None)
@given(text=st.text(), limit=st.integers(min_value=8, max_value=64))
def test_a_cut_text_fits_is_valid_and_keeps_its_start(text: str, limit: int) -> None:
    short = cut(text, limit)
    assert len(short.encode()) <= limit
    assert text.encode("utf-8", "replace").startswith(short.removesuffix("…").encode())


def test_the_cut_falls_between_characters() -> None:
    assert cut("Zähler" * 10, 8) == "Zähl…"
    assert cut("世" * 10, 10) == "世世…"


@settings(deadline=None)
@given(text=st.text())
def test_a_log_tail_fits_and_is_valid(text: str) -> None:
    assert len(tail(text, 40).encode()) <= 40


def test_a_log_tail_starts_at_a_line_and_keeps_the_end() -> None:
    log = "\n".join(f"line {number} of the log" for number in range(100))
    assert tail(log, 50) == "…line 98 of the log\nline 99 of the log"


def test_lone_surrogates_and_control_characters_are_removed() -> None:
    assert clean("a\ud800b\x00c\x1b[31m") == "a?bc[31m"
    assert one_line(" two\n  lines\t") == "two lines"


def test_what_a_program_makes_up_anew_each_time_is_removed() -> None:
    said = (
        "<urllib3.connection.HTTPConnection object at 0x7f31c0a1d2d0>: refused; read udp 10.0.0.5:41231->10.0.0.10:53"
    )
    assert clean(said) == "<urllib3.connection.HTTPConnection>: refused; read udp 10.0.0.5->10.0.0.10:53"


LOGS_WITH_KEYS = [
    ("ServerArgs(model_path='m', api_key='{}', admin_api_key='{}', port=1)", "port=1"),
    ("server_args={{'model_path': 'm', 'api_key': '{}', 'admin_api_key': '{}', 'port': 1}}", "'port': 1"),
    ('{{"api_key": "{}", "admin_api_key":"{}", "port": 1}}', '"port": 1'),
    ("launch_server --api-key={} --admin-api-key {} --port 1", "--port 1"),
    ("launch_server --admin-api-key={}\n--api-key {}", "launch_server"),
    ("['--api-key', '{}', '--admin-api-key', '{}', '--port', '1']", "'--port', '1'"),
    ("api_key=\"{}'s\" and cut off: admin_api_key='{}", "and cut off"),
    ("api_key='it\\'s {}', admin_api_key='{}'", "admin_api_key="),
]


@pytest.mark.parametrize(("log", "kept"), LOGS_WITH_KEYS)
def test_api_keys_in_a_servers_log_are_taken_out_and_the_rest_stays(log: str, kept: str) -> None:
    shown = hide_api_keys(log.format("hunter2", "swordfish"))
    assert "hunter2" not in shown
    assert "swordfish" not in shown
    assert kept in shown


@pytest.mark.parametrize("log", ["api_key=None, port=1", "max_total_num_tokens=4096", "a log", "", "--api-key"])
def test_a_log_without_keys_stays_as_it_is(log: str) -> None:
    assert hide_api_keys(log) == log


@pytest.mark.parametrize(
    ("minutes", "told"),
    [(-3, "less than 5 min"), (0, "less than 5 min"), (4.99, "less than 5 min"), (5, "5 min"), (14.9, "10 min")],
)
def test_elapsed_time_moves_in_steps(minutes: float, told: str) -> None:
    assert elapsed(START, START + timedelta(minutes=minutes)) == told


def test_an_unknown_start_counts_as_just_now() -> None:
    assert elapsed(None, START) == "less than 5 min"


@pytest.mark.parametrize(
    ("part", "whole", "told"),
    [(0, 1, "0 of 1 pod answers"), (1, 2, "1 of 2 pods answer")],
)
def test_shares_are_told_as_people_would(part: int, whole: int, told: str) -> None:
    assert share(part, whole, "answers") == told


def test_long_lists_say_how_much_is_left_out() -> None:
    assert some(["a", "b", "c", "d", "e"]) == "a, b, c, and 2 more"
    assert some(["a", "b"]) == "a, b"


@pytest.mark.parametrize("text", ["2026-03-01T12:00:00Z", "2026-03-01T13:00:00+01:00", "2026-03-01T12:00:00.000000Z"])
def test_times_are_read_in_every_spelling_and_written_in_one(text: str) -> None:
    moment = parse_rfc3339(text)
    assert moment is not None
    assert rfc3339(moment) == "2026-03-01T12:00:00Z"


@pytest.mark.parametrize("text", ["", "yesterday", None, 5])
def test_what_is_no_time_is_none(text: object) -> None:
    assert parse_rfc3339(text) is None
