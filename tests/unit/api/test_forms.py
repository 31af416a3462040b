"""Forms of texts: tables of what is one and what is none."""

from __future__ import annotations

import pytest

from sglang_operator.api import forms
from sglang_operator.api.forms import Form

FORMS = {name: value for name, value in vars(forms).items() if isinstance(value, Form)}

WELL_FORMED: dict[str, tuple[str, ...]] = {
    "CPU_FORM": ("1", "32", "500m", "1.5", "0.25"),
    "SIZE_FORM": ("16Gi", "0.5Ti", "500M", "1k"),
    "LABEL_VALUE_FORM": ("NVIDIA-B200", "a", "1.0_x"),
    "OPTIONAL_LABEL_VALUE_FORM": ("", "a"),
    "LABEL_KEY_FORM": ("team", "example.com/team"),
    "RESOURCE_NAME_FORM": ("nvidia.com/gpu", "nvidia.com/mig-1g.10gb"),
    "OBJECT_NAME_FORM": ("a", "a.b-c"),
    "SECRET_KEY_FORM": ("HF_TOKEN", ".token"),
    "MODEL_URI_FORM": ("hf://meta-llama/Llama-3.3-70B-Instruct", "/models/target"),
    "SERVED_NAME_FORM": ("Llama 3.3", "Ünïcode"),
    "REVISION_FORM": ("main", "refs/pr/3", "0123abcd"),
    "QUANTIZATION_FORM": ("fp8", "w8a8_int8"),
    "ENV_NAME_FORM": ("A", "_a1"),
    "IMAGE_FORM": ("sglang", "lmsysorg/sglang:v0.5.23", "r.example:5000/a/b", f"a/b@sha256:{'0' * 64}"),
    "ARGUMENT_FORM": ("", "--a", '{"a": 1}', "a\nb"),
    "ENV_VALUE_FORM": ("", "a b"),
}
ILL_FORMED: dict[str, tuple[str, ...]] = {
    "CPU_FORM": ("", "0", "-1", "1Gi", "1 ", "1e3", "08"),
    "SIZE_FORM": ("", "16", "16gb", "0Gi", "0.0Gi", "-1Gi", "500m", "16Gi\n", "08Gi"),
    "LABEL_VALUE_FORM": ("", "-a", "a b", "é", "a\n"),
    "OPTIONAL_LABEL_VALUE_FORM": ("-", "a b"),
    "LABEL_KEY_FORM": ("", "/a", "a/", "Example.com/a", "a..b/c"),
    "RESOURCE_NAME_FORM": ("gpu", "nvidia.com/", "NVIDIA.com/gpu"),
    "OBJECT_NAME_FORM": ("", "A", "a..b", "a-"),
    "SECRET_KEY_FORM": ("", "a/b", "a b"),
    "MODEL_URI_FORM": ("", "llama", "hf://llama", "hf://a/b/c", "/a b", "https://x/y", "s3://a/b"),
    "SERVED_NAME_FORM": ("", "a\nb", "a\tb"),
    "REVISION_FORM": ("", "-a", "a b"),
    "QUANTIZATION_FORM": ("", "FP8", "-a"),
    "ENV_NAME_FORM": ("", "1A", "A-B", "A B"),
    "IMAGE_FORM": ("", "https://a/b", "a b", "A/B", "a:", "a@sha256:12"),
    "ARGUMENT_FORM": ("\0", "a\0b"),
    "ENV_VALUE_FORM": ("\0",),
}


def test_every_form_has_a_table() -> None:
    assert FORMS.keys() == WELL_FORMED.keys() == ILL_FORMED.keys()


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in WELL_FORMED.items() for text in texts])
def test_well_formed(name: str, text: str) -> None:
    assert FORMS[name].check(text) == text


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in ILL_FORMED.items() for text in texts])
def test_ill_formed(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"^must ") as error:
        FORMS[name].check(text)
    assert str(error.value) == FORMS[name].message


@pytest.mark.parametrize("name", FORMS)
def test_too_long(name: str) -> None:
    form = FORMS[name]
    with pytest.raises(ValueError, match=f"^must have at most {form.max_length} characters$"):
        form.check("a" * (form.max_length + 1))


@pytest.mark.parametrize("name", FORMS)
def test_patterns_fit_into_a_cel_text(name: str) -> None:
    assert "'" not in FORMS[name].pattern
    assert "^" not in FORMS[name].pattern.replace("[^", "")
