"""`GET /metrics`: what the owner's thread measures, and the answers of the server itself, in Prometheus' text form.

Rules: names begin with tidegate_ and then say the machine or the part that they are of, as it is called everywhere; a number that only
grows is a counter and ends in _total; ages and times are in seconds, memory in bytes; nothing is kept for it between two scrapes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.responses import Response

from tidegate.engine.http.errors import Refusal
from tidegate.engine.http.server import HEALTH_SECONDS, Answer, HttpServer

__all__ = ["Measure", "Sample", "metrics"]


class Sample(NamedTuple):
    """One figure.  name: without tidegate_, ending in _total for a counter; labels: (name, value) pairs."""

    name: str
    about: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


Measure = Callable[[Callable[[Sequence[Sample]], None]], None]
"""Given a function, have the owner's thread call it with what it measures."""


class _Scrape(Collector):
    """The samples of one scrape, those of one name together."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        found: dict[str, Metric] = {}
        for name, about, value, labels in self._samples:
            if name not in found:
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                found[name] = kind(f"tidegate_{name}", about, labels=[label for label, _ in labels])
            found[name].add_metric([text for _, text in labels], value)  # type: ignore[attr-defined]
        yield from found.values()


async def metrics(measure: Measure, server: HttpServer) -> Response:
    """200 with all figures; Refusal (503) if the owner's thread does not answer."""
    answer: Answer[Sequence[Sample]] = Answer()
    measure(answer.give)
    try:
        samples = await asyncio.wait_for(answer.wait(), HEALTH_SECONDS)
    except TimeoutError:
        raise Refusal(503, f"the session's thread has not answered for {HEALTH_SECONDS:g} s") from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scrape([*samples, *_answers(server)]))
    return Response(generate_latest(registry), 200, {"Content-Type": CONTENT_TYPE_LATEST})


def _answers(server: HttpServer) -> list[Sample]:
    about = "Answers of the HTTP server, by status."
    counted = [Sample("http_answers_total", about, n, (("status", str(status)),)) for status, n in sorted(server.counts.items())]
    return [*counted, Sample("draining", "1 while no new work is taken.", float(server.draining))]
