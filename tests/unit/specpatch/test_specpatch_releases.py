"""A release that the package index has and the repository does not know is an error, not an oversight."""

from __future__ import annotations

import sys

import pytest

from engine import fetch, releases


def test_every_known_release_is_one_of_the_supported() -> None:
    assert releases.unknown(fetch.pins(), []) == list(fetch.pins()), "in order, none before 0.5.6"


def test_older_releases_are_not_missed() -> None:
    assert releases.unknown(["0.5.5.post3", "0.4.10.post2", "0.1.3", "0.5.6"], ["0.5.6"]) == []


def test_new_releases_are_found_in_order() -> None:
    published = ["0.10.0", "0.5.24", "0.5.23.post1", "0.5.23", "0.5.9"]
    assert releases.unknown(published, ["0.5.23", "0.5.9"]) == ["0.5.23.post1", "0.5.24", "0.10.0"]


def _index(monkeypatch: pytest.MonkeyPatch, *versions: str) -> None:
    """Let pip say that the index has these versions, in its own words."""
    listing = f"sglang ({versions[0]})\nAvailable versions: {', '.join(versions)}"
    monkeypatch.setattr(fetch, "PIP", [sys.executable, "-c", f"print({listing!r})"])


@pytest.mark.parametrize("options", [[], ["--check"]])
def test_the_command_fails_and_writes_nothing_when_the_index_has_a_new_one(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _index(monkeypatch, "0.5.99", *reversed(fetch.pins()), "0.5.5")
    monkeypatch.setattr(releases, "prove", lambda _: pytest.fail("nothing must be patched"))
    monkeypatch.setattr("sys.argv", ["releases", *options])
    with pytest.raises(SystemExit, match=r"has SGLang 0\.5\.99, which is not known here\. Add the SHA-256"):
        releases.main()


def test_the_check_asks_the_index_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _index(monkeypatch, *reversed(fetch.pins()), "0.5.5")
    monkeypatch.setattr(releases, "prove", lambda _: pytest.fail("nothing must be patched"))
    monkeypatch.setattr("sys.argv", ["releases", "--check"])
    releases.main()
    assert f"All {len(fetch.pins())} releases" in capsys.readouterr().out


def test_an_index_that_does_not_answer_is_no_empty_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PIP", ["false"])
    with pytest.raises(SystemExit, match="can't be asked"):
        releases.published()
