from __future__ import annotations

from pathlib import Path

import pytest

from engine_sim.faults import Faults, fault_names
from engine_sim.settings import Resolution, SettingsError, settings_from_environment


def test_defaults() -> None:
    settings = settings_from_environment({"PATH": "/bin", "SGLANG_ENABLE_X": "1"})
    assert settings.curve.name == "mid"
    assert settings.accept_length == settings.curve.accept_length == 2.4
    assert settings.load_seconds == 2
    assert settings.resolution is Resolution.AUTO
    assert settings.faults == Faults()


def test_every_setting_is_read(tmp_path: Path) -> None:
    csv = tmp_path / "mine.csv"
    csv.write_text("batch_size,mode,tokens_per_second\n1,on,120\n1,off,50\n")
    settings = settings_from_environment(
        {
            "SGLANG_SIM_CURVE": str(csv),
            "SGLANG_SIM_ACCEPT_LENGTH": "3",
            "SGLANG_SIM_LOAD_SECONDS": "0.5",
            "SGLANG_SIM_SEED": "7",
            "SGLANG_SIM_MAX_TOTAL_TOKENS": "5000",
            "SGLANG_SIM_MAX_RUNNING_REQUESTS": "12",
            "SGLANG_SIM_RESOLUTION": "full",
            "SGLANG_SIM_FAULTS": "hang_health, drop_counters",
        }
    )
    assert (settings.curve.name, settings.curve.accept_length) == ("mine", 3)
    assert (settings.load_seconds, settings.seed) == (0.5, 7)
    assert (settings.max_total_tokens, settings.max_running_requests) == (5000, 12)
    assert settings.resolution is Resolution.FULL
    assert settings.faults.active() == ("hang_health", "drop_counters")


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("CURVE", "nope", "SGLANG_SIM_CURVE=nope: there is no curve 'nope'; known curves: triton"),
        ("CURVE", "/none.csv", "SGLANG_SIM_CURVE=/none.csv: .*No such file"),
        ("LOAD_SECONDS", "-1", "SGLANG_SIM_LOAD_SECONDS=-1 must be a number from 0"),
        ("LOAD_SECONDS", "soon", "must be a number"),
        ("LOAD_SECONDS", "nan", "must be a number"),
        ("ACCEPT_LENGTH", "4.5", "must be a number from 1 to 4"),
        ("SEED", "1.5", "must be a whole number"),
        ("RESOLUTION", "half", "must be one of auto, full, record"),
        ("FAULTS", "burn", "SGLANG_SIM_FAULTS: there is no fault 'burn'; known faults: refuse_updates"),
        ("CURVES", "mid", "SGLANG_SIM_CURVES is no setting of the simulated engine; known settings: SGLANG_SIM_CURVE"),
    ],
)
def test_bad_settings_are_refused_by_name(name: str, value: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        settings_from_environment({f"SGLANG_SIM_{name}": value})


def test_faults_change_one_by_one() -> None:
    faults = Faults().changed({"hang_health": True}).changed({"drop_counters": True, "hang_health": False})
    assert faults.active() == ("drop_counters",)
    assert "crash" in fault_names()


@pytest.mark.parametrize("changes", [["hang_health"], {"hang_health": 1}, {"burn": True}, None])
def test_unknown_faults_are_refused(changes: object) -> None:
    with pytest.raises(ValueError, match="fault"):
        Faults().changed(changes)
