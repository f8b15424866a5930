"""A cluster's directory that was copied, or founded again: real processes tell them apart."""

import json
import shutil
import subprocess

import pytest

from integration.command_line import command
from quorumlog.client import SyncClient
from quorumlog.local import LocalCluster, LocalClusterError
from quorumlog.local.ports import free_ports
from quorumlog.model.errors import WrongClusterError

pytestmark = pytest.mark.processes


def bodies(cluster):
    with SyncClient(cluster.servers, "g") as client:
        return [entry.body for entry in client.read("earliest", follow=False)]


def terms_and_ends(cluster):
    with SyncClient(cluster.servers, "g") as client:
        return sorted((one.node_id, one.term, one.end_index) for one in client.status())


def copy_of(cluster, directory):
    """`cp -a` of a stopped cluster, and other ports in all its configurations."""
    subprocess.run(["cp", "-a", cluster.directory, directory], check=True)
    before = [cluster.address(node_id) for node_id in cluster.node_ids]
    before += [cluster.admin_address(node_id) for node_id in cluster.node_ids]
    taken = [int(address.rpartition(":")[2]) for address in before]
    after = [f"127.0.0.1:{port}" for port in free_ports(len(before), besides=taken)]
    for path in (directory / "cluster.json", *directory.glob("*.toml")):
        text = path.read_text().replace(str(cluster.directory), str(directory))
        for old, new in zip(before, after, strict=True):
            text = text.replace(f'{old}"', f'{new}"').replace(f"{old};", f"{new};")
        path.write_text(text)
    for path in directory.glob("*.log"):
        path.unlink()
    return LocalCluster.open(directory)


@pytest.fixture
def copied(cluster, tmp_path):
    """A copy that does not run yet; its original has one entry, and is stopped."""
    with SyncClient(cluster.servers, "g") as client:
        client.append(b"first")
    cluster.down()
    made = copy_of(cluster, tmp_path / "copy")
    yield made
    made.down()


@pytest.mark.parametrize("is_original_up", [True, False])
def test_a_copy_takes_no_part_and_says_why_and_what_to_do(cluster, copied, is_original_up):
    if is_original_up:
        cluster.up()
        before = terms_and_ends(cluster)
        while len({end for _, _, end in before}) > 1:  # bounded by the time-out of the test
            before = terms_and_ends(cluster)
    for node_id in copied.node_ids:
        copied.start(node_id)
    with SyncClient(copied.servers, "g", timeout_ms=20_000) as client:
        for _ in range(3):
            with pytest.raises(WrongClusterError, match="copied or moved"):
                client.append(b"meant for the copy")
    status, out, err = command("append", "--dir", copied.directory, stdin=b"nor this\n")
    assert (status, out) == (1, "")
    assert "copied or moved, so it takes no part" in err

    status, out, err = command("status", "--dir", copied.directory)
    assert (status, err) == (0, "")
    assert out.count("takes no part, see below") == 3, out
    for node_id in copied.node_ids:
        own, log = copied.address(node_id), cluster.address(node_id)
        said = f"{node_id} is at {log} according to the log of group g, but at {own} according to"
        assert out.count(said) == 1
        assert f"put {log} into peers and start it again" in out
        (line,) = [
            json.loads(line)
            for line in copied.log_file(node_id).read_text().splitlines()
            if '"addresses differ"' in line
        ]
        assert line["level"] == "WARNING"
        assert said in line["text"]
    if is_original_up:
        assert terms_and_ends(cluster) == before, "nobody who leads was disturbed"
    else:
        cluster.up()
    assert bodies(cluster) == [b"first"]


def test_up_and_restart_say_at_once_that_a_cluster_was_copied(copied):
    for wait in (copied.up, lambda: copied.restart("n1")):
        with pytest.raises(LocalClusterError, match=r"^not ready: .*copied or moved") as told:
            wait()
    assert "n1 (g: n1 is at" in str(told.value)
    assert "n0 (" not in str(told.value)


def test_at_its_addresses_a_copy_is_the_cluster_as_it_was(cluster, copied):
    """The advice: put the addresses of the log into `peers` (the original does not run)."""
    for node_id in copied.node_ids:
        path = copied.directory / f"{node_id}.toml"
        text = path.read_text()
        for other in copied.node_ids:
            text = text.replace(copied.address(other), cluster.address(other))
        path.write_text(text)
        copied._processes[node_id].start()
    assert bodies(cluster) == [b"first"]
    for node_id in copied.node_ids:
        assert '"addresses differ"' not in copied.log_file(node_id).read_text()


def test_a_client_of_a_cluster_that_was_deleted_is_refused_by_the_one_founded_after_it(cluster):
    with SyncClient(cluster.servers, "g") as client:
        client.append(b"first")
        cluster.down()
        for node_id in cluster.node_ids:
            shutil.rmtree(cluster.directory / node_id)
        cluster.up()
        with pytest.raises(WrongClusterError, match="founded again"):
            client.append(b"of another cluster")
        with pytest.raises(WrongClusterError, match="founded again"):
            list(client.read("earliest", follow=False))
    assert bodies(cluster) == []
