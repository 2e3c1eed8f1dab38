"""`python -m workers.demo` writes the demo model, or says in a sentence why it does not."""

from pathlib import Path

import gguf
import pytest

from workers.demo import demo_model_path
from workers.demo.__main__ import main


def general_name(path: Path) -> str:
    return str(gguf.GGUFReader(path).fields["general.name"].contents())


def test_the_trained_model_is_copied_and_named_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "demo.gguf"
    main([str(target)])

    assert target.read_bytes() == demo_model_path().read_bytes()
    told = capsys.readouterr().out
    assert told.count("\n") == 1
    assert str(target) in told
    assert "penstock-demo" in told
    assert f"{target.stat().st_size / 1e6:.1f} MB" in told


def test_a_random_model_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    main([str(tmp_path / "a.gguf"), "--random", "--seed", "7"])
    main([str(tmp_path / "b.gguf"), "--random", "--seed", "7"])
    main([str(tmp_path / "c.gguf"), "--random"])

    assert general_name(tmp_path / "a.gguf") == "penstock-demo"
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert (tmp_path / "a.gguf").read_bytes() != (tmp_path / "c.gguf").read_bytes()


def test_a_file_that_is_there_is_replaced_only_by_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "mine.gguf"
    target.write_text("mine")

    with pytest.raises(SystemExit) as refused:
        main([str(target), "--random"])
    assert refused.value.code == 2
    assert f"PATH '{target}' is already there; --force replaces it" in capsys.readouterr().err
    assert target.read_text() == "mine"

    main([str(target), "--random", "--force"])
    assert general_name(target) == "penstock-demo"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["missing/demo.gguf"], "there is no folder"),
        (["."], "is a folder; name a file in it"),
        (["demo.gguf", "--seed", "3"], "--seed 3 is for a random model"),
        (["demo.gguf", "--random", "--seed", "-1"], "--seed -1 is not in 0..4294967295"),
        (["demo.gguf", "--random", "--seed", "many"], "invalid int value: 'many'"),
    ],
)
def test_what_cannot_be_done_is_said_and_leaves_nothing_behind(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SystemExit) as refused:
        main(arguments)

    assert refused.value.code == 2
    assert complaint in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
