"""SECURITY.md is true to the letter: every sentence of its promises has a test."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PROMISES = {
    "A plan never runs code": "trust: test_a_plan_never_names_code_to_run",
    "A plan from somebody else": "trust: test_models_that_a_plan_may_not_open",
    "`ld3` opens that model only if": "trust: test_a_shipped_model_is_opened_if_it_is_the_one",
    "A Python function or an address": "trust: test_a_plan_never_names_code_to_run",
    "A plan is checked when": "plan: test_bad_plans_are_one_line",
    "Times must be finite": "plan: test_bad_plans_are_one_line",
    "A plan with another model": "plan: test_another_model_is_refused",
    "Checkpoints run no code": (
        "checkpoint_reader: test_calls_are_refused_by_name_and_nothing_is_run"
    ),
    "A published checkpoint may": "checkpoint_reader: test_the_calls_are_real",
    "A reader of our own": "checkpoint_reader: test_a_state_dict_bit_by_bit",
    "It has no way to import": "checkpoint_reader: test_the_machine_has_no_way_to_import_or_call",
    "A diffusers folder may name": "pipelines: test_code_in_a_folder_never_runs",
    "Code inside the folder": "pipelines: test_pickles_are_never_opened",
    "Other weights are read": "trust: test_nothing_imports_what_could_run_or_fetch",
    "One exception is yours": "metrics: test_torchscript_by_path",
    "A file that `ld3` finds": "evaluate: test_code_in_a_file_that_was_found_never_runs",
    "Text from files cannot": "trust: test_printed_text_steers_no_terminal",
    "Control characters are": "trust: test_printed_text_steers_no_terminal",
    "Files are written whole": "store: test_a_failed_write_leaves_the_old_file",
    "A symbolic link": "trust: test_writes_do_not_go_through_links",
    "A device or pipe": "trust: test_writes_do_not_go_through_links",
    "Nothing is fetched": "trust: test_importing_learning_and_sampling_open_no_connection",
    "There are three exceptions": "trust: test_nothing_imports_what_could_run_or_fetch",
    "The distance LPIPS": "distances: test_torchvision_backbone",
    "`--model diffusers:`": "pipelines: test_instaflow_is_fetched_as_stable_diffusion",
    "`ld3 zoo` with an address": "plan_zoo: test_an_address",
    "There is no telemetry": "trust: test_importing_learning_and_sampling_open_no_connection",
    "A model that you bring": "trust: test_a_model_that_fails_is_one_line",
    "`ld3` calls it": "trust: test_a_model_that_fails_is_one_line",
    "`make fuzz` sends": "fuzz: test_mutated_input_is_answered_or_refused",
    "Many of them name": "fuzz: test_failures_would_be_seen",
}
"""The beginning of a sentence, and the test that fails when it is not true."""


def sentences() -> list[str]:
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    promises = text.split("## What we promise")[1].split("\n## ")[0].split("[Robustness]")[0]
    plain = re.sub(r"\s+", " ", promises.replace("**", "").replace("\n- ", "\n")).strip()
    return re.split(r"(?<=\.) (?=[A-Z`])", plain)


def test_every_sentence_has_a_test() -> None:
    found = [[start for start in PROMISES if one.startswith(start)] for one in sentences()]
    assert found == [[start] for start in PROMISES]


@pytest.mark.parametrize("promise", PROMISES)
def test_the_test_is_there(promise: str) -> None:
    file, name = PROMISES[promise].split(": ")
    text = (ROOT / f"tests/test_{file}.py").read_text("utf-8")
    assert f"\ndef {name}(" in text
