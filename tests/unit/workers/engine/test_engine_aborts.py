"""Tests of the last lines of the log when llama.cpp ends the process."""

import signal
import subprocess
import sys

import pytest

from workers.engine.llama.aborts import read_xids, recent_xids

_ABORTS = """
from llama_cpp import _ggml
from workers.engine.llama.aborts import log_aborts
from workers.engine.llama.log import LlamaLog
log = LlamaLog()
log_aborts(_ggml.libggml, log, "CPU")
log_aborts(_ggml.libggml, log, "CUDA0 (NVIDIA H100)")
log.add_line(4, "CUDA error: an illegal instruction was encountered\\n")
log.add_line(4, "  current device: 0, in function synchronize at ggml-cuda.cu:1\\n")
"""


def run(program: str) -> tuple[int, str]:
    """Run a program in a process of its own. Return its exit code and all that it printed."""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_an_abort_logs_its_message_the_last_errors_and_the_device():
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    code, printed = run(_ABORTS + "_ggml.libggml.ggml_abort(b'ggml-cuda.cu', 103, b'CUDA error')")
    assert code == -signal.SIGABRT
    for part in (
        "engine.aborted",
        "ggml-cuda.cu:103: CUDA error",
        "an illegal instruction was encountered; current device: 0, in function synchronize",
        "CUDA0 (NVIDIA H100)",
        "ggml_abort",
    ):
        assert part in printed, printed


def test_an_abort_while_the_process_exits_calls_no_python():
    """The functions of atexit run in reverse order, so this one runs after the callback has been removed."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    early = "import atexit\natexit.register(lambda: _ggml.libggml.ggml_abort(b'x.cpp', 1, b'too late'))\n"
    code, printed = run(early + _ABORTS)
    assert code == -signal.SIGABRT
    assert "too late" in printed
    assert "engine.aborted" not in printed


def test_a_build_without_the_callback_is_left_alone():
    code, printed = run(
        "from workers.engine.llama.aborts import log_aborts\n"
        "from workers.engine.llama.log import LlamaLog\n"
        "log_aborts(object(), LlamaLog(), 'CPU')"
    )
    assert (code, printed) == (0, "")


XID = "NVRM: Xid (PCI:0000:0a:00): 13, pid=77, name=python, Graphics Exception: ESR 0x50c648=0x9"


def test_only_recent_reports_of_the_driver_belong_to_an_abort():
    records = [
        f"4,800,900000000,-;{XID} old\n",
        f"4,801,999000000,-;{XID}\n SUBSYSTEM=pci\n",
        "6,802,999500000,-;usb 1-1: new device\n",
        "spoiled",
        f"4,803,999600000,c;{XID} again\n",
    ]
    assert recent_xids(records, now_s=1_000) == [XID, f"{XID} again"]
    assert len(recent_xids([f"4,1,999000000,-;{XID} {number}\n" for number in range(90)], now_s=1_000)) == 4


def test_a_kernel_log_that_cannot_be_read_has_no_reports(tmp_path):
    assert read_xids(tmp_path / "missing") == []
    assert read_xids(tmp_path) == []
    (tmp_path / "empty").touch()
    assert read_xids(tmp_path / "empty") == []
