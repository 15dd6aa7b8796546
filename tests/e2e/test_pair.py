"""Two real processes: the tokens, the logits and every byte are those of the run that kept everything in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from pair_tools import MODEL, bound_runs, config, run, slow, written_tags

from tidegate.engine.config import FaultSpec


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_tokens_logits_and_destination_bytes(dtype: str, tmp_path: Path) -> None:
    c = config(dtype, trace=str(tmp_path))
    result, compared = run(c)
    written, runs = written_tags(tmp_path), bound_runs(tmp_path)
    for index, request in enumerate(c.requests):
        line = result.results[index]
        assert line.ok, f"request {index} failed: {line.text}"
        chunks = -(-len(request.prompt) // c.chunk)
        for name, tag in line.tags.items():
            chunk, layer = map(int, name.split("/"))
            assert tag == written[runs[line.attempt], chunk, layer], (
                f"request {index}: what lies in the destination of chunk {chunk} layer {layer} is not what Prefill computed"
            )
        assert len(line.tags) == chunks * 7
    assert not [one for one in compared if not one.equal]
    assert result.stats["decode"]["places_free"] == c.concurrency


def test_indexer_rows_in_eight_bits_cross_as_such_and_give_the_tokens_of_the_plain_run_that_keeps_them_so() -> None:
    c = config(lic8=True)
    result, compared = run(c)
    assert all(one.equal for one in compared), compared
    tokens, width = sum(len(request.prompt) for request in c.requests), MODEL["index_head_dim"]
    assert result.stats["decode"]["bytes_pulled_index"] == tokens * 7 * (width + 2)  # and a half for each row


def test_lost_doubled_and_late_messages_change_nothing() -> None:
    def unreliable(*tags: str) -> tuple[FaultSpec, ...]:
        lost = [FaultSpec(where="send", what=tag, mode="lose", nth=3) for tag in tags]
        return (*lost, *(FaultSpec(where="send", what=tag, mode="double") for tag in tags))

    c = config(
        prefill_faults=(*unreliable("READY", "COMMITTED"), slow("save", 0.01), slow("load", 0.01), slow("attend", 0.005)),
        decode_faults=(
            *unreliable("READ_DONE"), FaultSpec(where="send", what="START", mode="double", nth=1), slow("read", 0.01),
        ),
        proxy_faults=(FaultSpec(where="send", what="START", mode="double"),),
    )
    result, compared = run(c)
    assert all(one.equal for one in compared), compared
    assert result.stats["decode"]["places_free"] == c.concurrency


@pytest.mark.parametrize("mode", ["quiet", "unknown"])
def test_a_failed_read_fails_its_request_alone_and_blocks_return(mode: str) -> None:
    c = config(decode_faults=(FaultSpec(where="read", mode=mode, layer=2, chunk=4, delay=0.2),))  # type: ignore[arg-type]
    result, compared = run(c)
    assert not result.results[0].ok
    assert "layer 2" in result.results[0].text
    assert compared[1].equal
    assert result.stats["decode"]["places_free"] == c.concurrency


def test_a_failed_save_fails_the_request_that_needs_it() -> None:
    c = config(prefill_faults=(FaultSpec(where="save", mode="quiet", layer=1, chunk=1, nth=1),))
    result, compared = run(c)
    assert not result.results[0].ok
    assert "not in the pool" in result.results[0].text
    assert compared[1].equal


def test_an_abort_in_the_middle_ends_one_request_and_gives_its_blocks_back() -> None:
    c = config(
        requests=(config().requests[0], type(config().requests[0])("other", config().requests[1].prompt)),
        abort_after={"same": 0.3}, decode_faults=(slow("read", 0.2, chunk=4),),
    )  # fmt: skip
    result, compared = run(c)
    assert not result.results[0].ok
    assert "the client gave up after" in result.results[0].text
    assert compared[1].equal
    assert result.stats["decode"]["places_free"] == c.concurrency


def test_with_read_lease_a_revoked_read_is_never_believed() -> None:
    c = config(concurrency=1, read_lease=1.0, decode_faults=(slow("read", 2.5, layer=1, chunk=2, nth=1),))
    result, compared = run(c)
    assert not result.results[0].ok
    assert compared[1].equal
