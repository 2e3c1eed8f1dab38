"""Tests of `python -m workers.demo`: it writes the demo model, or prints why it cannot."""

from pathlib import Path

import gguf
import pytest

from workers.demo import demo_model_path
from workers.demo.__main__ import main


def general_name(path: Path) -> str:
    return str(gguf.GGUFReader(path).fields["general.name"].contents())


def test_the_trained_model_is_copied_and_described_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "demo.gguf"
    main([str(target)])

    assert target.read_bytes() == demo_model_path().read_bytes()
    output = capsys.readouterr().out
    assert output.count("\n") == 1
    assert str(target) in output
    assert "penstock-demo" in output
    assert f"{target.stat().st_size / 1e6:.1f} MB" in output


def test_a_random_model_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    main([str(tmp_path / "a.gguf"), "--random", "--seed", "7"])
    main([str(tmp_path / "b.gguf"), "--random", "--seed", "7"])
    main([str(tmp_path / "c.gguf"), "--random"])

    assert general_name(tmp_path / "a.gguf") == "penstock-demo"
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert (tmp_path / "a.gguf").read_bytes() != (tmp_path / "c.gguf").read_bytes()


def test_an_existing_file_is_replaced_only_with_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "mine.gguf"
    target.write_text("mine")

    with pytest.raises(SystemExit) as refused:
        main([str(target), "--random"])
    assert refused.value.code == 2
    assert f"PATH '{target}' already exists; --force replaces it" in capsys.readouterr().err
    assert target.read_text() == "mine"

    main([str(target), "--random", "--force"])
    assert general_name(target) == "penstock-demo"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing/demo.gguf"], "does not exist"),
        (["."], "is a folder; name a file in it"),
        (["demo.gguf", "--seed", "3"], "--seed 3 applies only to a random model"),
        (["demo.gguf", "--random", "--seed", "-1"], "--seed -1 is not in 0..4294967295"),
        (["demo.gguf", "--random", "--seed", "many"], "invalid int value: 'many'"),
    ],
)
def test_invalid_arguments_are_reported_and_no_file_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SystemExit) as refused:
        main(arguments)

    assert refused.value.code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
