"""docs/retrieval.md works as printed, with the embedded database and an embedding worker that `penstock up` starts."""

from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.processes import ROOT
from tests.support.shown_commands import blocks, first_shell, prepare, run_second_shell, steps

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("psycopg", reason="the extra retrieval is not installed")

from tests.support.bert import write_bert

FIRST_SHELL, SECOND_SHELL = blocks((ROOT / "docs" / "retrieval.md").read_text(encoding="utf-8"))


@pytest.mark.minutes
@pytest.mark.timeout(600)
def test_the_commands_of_the_page_work_as_printed(tmp_path: Path) -> None:
    folder, port = prepare(tmp_path, "docs"), free_port()
    # Its vectors say nothing about the texts, but they are made and compared like those of the model on the page.
    write_bert(folder / "all-minilm-l6-v2.gguf", context=512)
    # The model that generates text is not used.
    settings = {"PENSTOCK_STATE_DIR": str(folder / "state"), "PENSTOCK_ENGINE": "sim"}
    with first_shell(folder, port, FIRST_SHELL, model="sim", **settings):
        run_second_shell(folder, port, steps(SECOND_SHELL))
