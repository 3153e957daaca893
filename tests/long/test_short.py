"""The long proofs, made short: that they run, and that they notice what they are there to notice."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.long import crowd, kills, large, rig
from tests.support.ours import Process


def test_kills_in_short(capsys: pytest.CaptureFixture[str]) -> None:
    kills.prove(2, 1, seed=7)
    always, everysec = capsys.readouterr().out.splitlines()
    assert always.startswith("always    2 kills, ")
    assert " answered and 0 of them lost" in always
    assert everysec.startswith("everysec  1 kills, ")


def test_an_answer_that_is_lost_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_and_kill = kills.run_and_kill

    def lose_the_end(server: Process, writers: list[kills.Writer], rng: random.Random) -> float:
        killed_s = run_and_kill(server, writers, rng)
        log = max((tmp_path / "data" / "appendonlydir").glob("*.incr.aof"))
        # far more than what was sent and not answered
        log.write_bytes(log.read_bytes()[: -log.stat().st_size // 2])
        return killed_s

    monkeypatch.setattr(kills, "run_and_kill", lose_the_end)
    with pytest.raises(rig.Failed, match="found is no state after that"):
        kills.kill_again_and_again(tmp_path, "always", 1, 7)


def test_large_in_short(capsys: pytest.CaptureFixture[str]) -> None:
    large.prove(5000, 1000)
    assert "5,000 entries and 1,000 pending ones" in capsys.readouterr().out


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="the load generator is C")
def test_crowd_in_short(capsys: pytest.CaptureFixture[str]) -> None:
    crowd.prove(60, 5, 0.1, dearest=100.0)  # too short to tell what a request costs
    assert "6 woken, 6 told, 48 asked" in capsys.readouterr().out


def test_growing_memory_is_noticed_and_noise_is_not() -> None:
    def samples(sizes: list[int]) -> rig.Samples:
        return rig.Samples(0, seconds=[float(at) for at in range(len(sizes))], sizes=sizes)

    rng = random.Random(1)
    noisy = samples([100 * rig.MB + rng.randrange(5 * rig.MB) for _ in range(600)]).trend(min)
    assert abs(noisy.drift) < rig.MB
    growing = samples([100 * rig.MB + at * rig.MB // 10 + rng.randrange(5 * rig.MB) for at in range(600)]).trend(min)
    assert growing.slope == pytest.approx(rig.MB / 10, rel=0.1)
    assert growing.drift > 40 * rig.MB
