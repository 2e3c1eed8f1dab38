"""Tests the units of deploy/systemd, as far as that is possible without a running systemd."""

import pytest

from shared.settings.settings import SYSTEM_WIDE, Settings, load
from tests.support.program import program
from tests.support.systemd import FOLDER, Unit, analyze, complaints, installed, needs_systemd
from workers.exit_codes import ExitCode

WEB, GATE, WORKER = "penstock-web.service", "penstock-gate.service", "penstock-worker@.service"
UNITS = (WEB, GATE, WORKER)
#: Units that end after their work.
BACKUP, NVIDIA = "penstock-backup.service", "penstock-nvidia@.service"
#: The time that open requests of a door or a gate have to end (web/gunicorn_conf.py).
DOOR_GRACE_S = 30
#: On systemd's scale from 0 to 100, where less is better, what its own table still calls OK.
EXPOSURE = "20"


@pytest.fixture(params=UNITS)
def unit(request, tmp_path):
    return Unit(request.param, tmp_path)


def settings(unit: Unit, tmp_path) -> Settings:
    """Return the settings of a unit's program, with the store's URL as its credential."""
    (tmp_path / "credentials").mkdir(exist_ok=True)
    (tmp_path / "credentials" / "redis-url").write_text("redis://penstock:secret@store.example:6379/0\n")
    return load(unit.environ(), dotenv=None)


def test_the_folder_has_these_units_only():
    assert sorted(path.name for path in FOLDER.glob("*.service")) == sorted((*UNITS, BACKUP, NVIDIA))


@needs_systemd
@pytest.mark.parametrize("name", [*UNITS, BACKUP, NVIDIA])
def test_systemd_accepts_every_line_of_a_unit(name, tmp_path):
    path = installed(name, tmp_path)
    done = analyze("verify", "--man=no", path)
    # An unknown option is only a warning.
    assert (done.returncode, complaints(done, path)) == (0, []), done.stderr


@needs_systemd
def test_systemd_would_report_a_mistake(tmp_path):
    path = installed(WEB, tmp_path)
    path.write_text(path.read_text().replace("ProtectSystem=", "ProtectSytem="))
    (complaint,) = complaints(analyze("verify", "--man=no", path), path)
    assert "ProtectSytem" in complaint


@needs_systemd
@pytest.mark.parametrize("name", [*UNITS, BACKUP])
def test_a_unit_may_do_little_by_the_measure_of_systemd(name, tmp_path):
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE}", installed(name, tmp_path))
    assert done.returncode == 0, done.stdout


def test_the_settings_of_a_unit_are_valid_and_its_password_is_a_credential(unit, tmp_path):
    assert unit.one("LoadCredential") == "redis-url:/etc/penstock/redis-url"
    assert settings(unit, tmp_path).redis_url == "redis://penstock:secret@store.example:6379/0"


def test_all_units_read_the_same_file_of_settings_and_agree_on_the_system_wide_ones(tmp_path):
    units = [Unit(name, tmp_path) for name in UNITS]
    assert {unit.all("EnvironmentFile")[0] for unit in units} == {"-/etc/penstock/penstock.env"}
    assert len({tuple(getattr(settings(unit, tmp_path), field) for field in SYSTEM_WIDE) for unit in units}) == 1


def test_the_command_of_a_unit_is_a_penstock_command(unit, tmp_path):
    words = unit.one("ExecStart").removeprefix("/opt/penstock/bin/penstock ").split()
    done = program(tmp_path)(*words, "--help")
    assert done.returncode == 0, done.stderr


def test_a_worker_can_drain_and_a_door_can_end_its_requests_before_systemd_kills_them(tmp_path):
    for name, grace_s in ((WEB, DOOR_GRACE_S), (GATE, DOOR_GRACE_S), (WORKER, 120)):
        assert Unit(name, tmp_path).seconds("TimeoutStopSec") >= grace_s + 10
    assert settings(Unit(WORKER, tmp_path), tmp_path).drain_grace_ms == 120_000


def test_what_a_restart_does_not_mend_is_not_restarted(tmp_path):
    final = {ExitCode.CONFIG, ExitCode.STORE_UNFIT}
    for name, codes in ((WEB, final), (GATE, final), (WORKER, final | {ExitCode.CONFIG_LOST})):
        assert set(map(int, Unit(name, tmp_path).one("RestartPreventExitStatus").split())) == set(map(int, codes))


@pytest.mark.parametrize("index", [0, 7])
def test_the_instance_of_a_worker_is_its_gpu_and_its_port(index, tmp_path):
    unit = Unit(WORKER, tmp_path, index=index)
    assert unit.environ()["CUDA_VISIBLE_DEVICES"] == str(index)
    assert settings(unit, tmp_path).worker_listen == f"127.0.0.1:910{index}"
    assert unit.all("EnvironmentFile")[1] == f"-/etc/penstock/worker-{index}.env"


def test_only_the_worker_sees_devices(tmp_path):
    assert [Unit(name, tmp_path).all("PrivateDevices") for name in UNITS] == [["yes"], ["yes"], []]
    assert Unit(WORKER, tmp_path).one("DevicePolicy") == "closed"


@needs_systemd
def test_systemd_accepts_the_timer_of_backups_which_starts_their_unit_every_hour(tmp_path):
    installed(BACKUP, tmp_path)
    timer = tmp_path / BACKUP.replace(".service", ".timer")
    timer.write_text((FOLDER / timer.name).read_text())
    done = analyze("verify", "--man=no", timer)
    assert (done.returncode, complaints(done, timer)) == (0, []), done.stderr
    assert analyze("calendar", Unit(timer.name, tmp_path).one("OnCalendar")).returncode == 0


def test_a_backup_runs_the_program_of_deploy_and_can_write_only_the_copies(tmp_path):
    unit = Unit(BACKUP, tmp_path)
    shell, path, *arguments = unit.one("ExecStart").split()
    assert (shell, path) == ("/bin/sh", "/usr/local/lib/penstock/keep_backups.sh")
    values = [unit.environ()[argument.strip("${}")] for argument in arguments]
    assert values[1] == unit.one("ReadWritePaths")
    assert int(values[2]) > 1


def test_a_worker_waits_for_the_device_files_of_its_gpu(tmp_path):
    worker = Unit(WORKER, tmp_path, index=3)
    assert "penstock-nvidia@3.service" in worker.one("After").split()
    # Not Requires: a machine may have another kind of GPU, or none.
    assert "penstock-nvidia@3.service" in worker.one("Wants").split()
    assert Unit(NVIDIA, tmp_path, index=3).one("ExecStart").endswith(" -c 3")
