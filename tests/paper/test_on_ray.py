"""Runs on a Ray cluster of two nodes on this machine, one of which is killed."""

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from derts.errors import DertsError
from derts.paper.grid import absolute, run_on_ray, train_on_node, write_files
from derts.paper.runs import GridRun
from derts.training.run import open_trainer
from derts.training.run_folder import Run, point_file

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def two_nodes() -> Iterator[Any]:
    """A head and a second node, with one CPU each."""
    ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'derts[ray]'")
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        # a lost node is noticed within a second instead of a quarter of a minute
        soon = {"health_check_period_ms": 300, "health_check_failure_threshold": 3}
        cluster.add_node(num_cpus=1, _system_config=soon)
        second = cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False)
        cluster.wait_for_nodes(60)
    except Exception as error:  # whatever Ray finds wrong with a small or guarded machine
        cluster.shutdown()
        pytest.skip(f"no Ray cluster starts on this machine: {error}")
    yield cluster, second
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.slow
def test_runs_of_a_killed_node_finish_on_the_other(
    two_nodes: Any, protonet_runs: list[GridRun]
) -> None:
    cluster, second = two_nodes
    runs = [
        replace(
            run,
            config=replace(run.config, updates=300, validate_every=100, checkpoint_every=10),
            until=300,
            points=(300,),
        )
        for run in protonet_runs
    ]

    def kill_when_both_are_at_work() -> None:
        deadline = time.monotonic() + 400  # a busy machine
        while time.monotonic() < deadline:
            logs = [run.folder / "events.jsonl" for run in runs]
            if sum(log.exists() and '"update": 30,' in log.read_text() for log in logs) >= 2:
                break
            time.sleep(0.05)
        cluster.remove_node(second, allow_graceful=False)

    killer = threading.Thread(target=kill_when_both_are_at_work)
    killer.start()
    endings = run_on_ray(runs)
    killer.join()
    assert sorted(map(str, endings.finished)) == sorted(map(str, runs))
    assert not endings.failed
    assert all(point_file(run.folder, 300).is_file() for run in runs)
    begun = [
        [event["update"] for event in Run.open(run.folder).events() if event["event"] == "start"]
        for run in runs
    ]
    (again,) = [starts for starts in begun if len(starts) > 1]
    assert again[-1] >= 20  # it went on from its checkpoint


def test_a_run_comes_back_whole_from_a_node_with_a_file_system_of_its_own(
    protonet_runs: list[GridRun], tmp_path: Path
) -> None:
    run = protonet_runs[0]
    ending, _, files = train_on_node(run)
    assert ending == "finished"
    copy = tmp_path / "copy"
    write_files(copy, files)
    assert (copy / "result.json").read_bytes() == (run.folder / "result.json").read_bytes()
    assert open_trainer(copy).update == run.until


def test_paths_mean_the_same_in_another_folder(
    protonet_runs: list[GridRun], in_folder: Path
) -> None:
    run = protonet_runs[0]
    near = replace(run, folder=Path("run"), config=replace(run.config, data="store"))
    far = absolute(near)
    assert (far.folder, far.config.data) == (in_folder / "run", str(in_folder / "store"))
    assert absolute(run).config.data == "glyphs"


def test_without_ray_there_is_one_line(
    protonet_runs: list[GridRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DertsError, match=r"--on ray needs Ray: pip install 'derts\[ray\]'"):
        run_on_ray(protonet_runs)
