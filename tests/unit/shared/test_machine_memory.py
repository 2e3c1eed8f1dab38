"""Tests how the limit on a process's memory is found, with files like those that the kernel shows."""

import psutil

from shared.machine_memory import memory_limit_bytes

MACHINE = psutil.virtual_memory().total


def limit(tmp_path, groups, files):
    own = tmp_path / "cgroup"
    own.write_text(groups)
    for name, text in files.items():
        file = tmp_path / "tree" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return memory_limit_bytes(tmp_path / "tree", own)


def test_without_control_groups_it_is_the_machines_memory(tmp_path):
    assert memory_limit_bytes(tmp_path / "none", tmp_path / "missing") == MACHINE


def test_a_container_has_the_limit_of_its_group(tmp_path):
    assert limit(tmp_path, "0::/\n", {"memory.max": "1048576\n"}) == 1_048_576


def test_a_group_inherits_the_limit_of_the_group_above_it(tmp_path):
    files = {"system.slice/penstock.service/memory.max": "max\n", "system.slice/memory.max": "2097152\n"}
    assert limit(tmp_path, "0::/system.slice/penstock.service\n", files) == 2_097_152


def test_a_path_of_the_host_that_does_not_exist_in_the_container_leaves_the_root_group(tmp_path):
    assert limit(tmp_path, "0::/docker/0123456789\n", {"memory.max": "4194304\n"}) == 4_194_304


def test_version_1_has_a_tree_of_its_own_for_memory(tmp_path):
    files = {"memory/user/memory.limit_in_bytes": "3145728\n", "memory.max": "1\n"}
    assert limit(tmp_path, "7:cpu,cpuacct:/user\n4:memory:/user\n", files) == 3_145_728


def test_a_limit_above_the_machines_memory_is_ignored(tmp_path):
    assert limit(tmp_path, "4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}) == MACHINE
