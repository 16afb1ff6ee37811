"""A million lines published by `felix pub` to a durable stream whose broker is killed on the way."""

import os
import pathlib
import signal

from test_dev import Dev
from text import write_text
from waiting import until

LINES = int(os.environ.get("FELIX_LINES", "1000000"))
KILLS = 3
# What one machine's disk needs for all of it, many times over.
LONGEST_S = 140


def numbered_lines(path):
    """The lines of a text by their numbers, and the numbers of each key's lines in order."""
    lines, keys = {}, {}
    with open(path, "rb") as text:
        for line in text:
            name, number, _ = line.split(b"\t", 2)
            assert int(number) not in lines, f"line {int(number)} is there twice"
            lines[int(number)] = line
            keys.setdefault(name, []).append(int(number))
    return lines, keys


def test_a_million_lines_survive_three_kills_of_the_broker_complete_in_order_and_once(tmp_path):
    dev = Dev(tmp_path, "--set=fsync=on_commit")
    try:
        dev.run("stream", "create", "million", "--shards", "4", "--durable")
        write_text(tmp_path / "lines", LINES)
        publishing, log = dev.command("pub", "million", str(tmp_path / "lines"), "--key-column", "1")
        size = (tmp_path / "lines").stat().st_size
        for kill in range(1, KILLS + 1):
            written = lambda: sum(file.stat().st_blocks * 512 for file in stored(dev.folder))
            # A quarter of the text more than at the kill before; publishing must not be over by then.
            until("more is on the disk", lambda: written() > kill * size / (KILLS + 1), within=LONGEST_S)
            assert publishing.poll() is None, f"it was over before kill {kill}: {log.read_text()}"
            before = dev.ready["pids"]["broker"]
            os.kill(before, signal.SIGKILL)
            until("another broker", lambda: dev.ready["pids"]["broker"] != before, within=60)
        assert publishing.wait(LONGEST_S) == 0, log.read_text()
        with open(tmp_path / "got", "wb") as out:
            reading, log = dev.command("sub", "million", "--from", "earliest", "--count", str(LINES), stdout=out)
        assert reading.wait(LONGEST_S) == 0, log.read_text()
        # Nothing follows: what was there at the start is all there is.
        with open(tmp_path / "all", "wb") as out:
            reading, log = dev.command("sub", "million", "--from", "earliest", "--until-end", stdout=out)
        assert reading.wait(LONGEST_S) == 0, log.read_text()
    finally:
        stopped = dev.stop()
    assert stopped == 0
    sent, sent_by_key = numbered_lines(tmp_path / "lines")
    for name in ("got", "all"):
        got, got_by_key = numbered_lines(tmp_path / name)
        assert got == sent
        assert got_by_key == sent_by_key


def stored(folder):
    """Files of the broker's logs, as far as they are there at this moment."""
    found = []
    for shard in pathlib.Path(folder).glob("data/**/shards/*/*.seg"):
        try:
            shard.stat()
        except FileNotFoundError:
            continue
        found.append(shard)
    return found
