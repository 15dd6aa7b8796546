"""The proxy process: serves until the process that started it says stop, or is gone."""

from __future__ import annotations

import threading

from tidegate.engine.http.proxy import Proxy, ProxyConfig
from tidegate.engine.worker_io import Parent, run_worker

__all__ = ["main", "serve"]


def serve(parent: Parent) -> None:
    """Configuration on standard input; serve to the end."""
    config, stopped = parent.config(ProxyConfig), threading.Event()
    proxy = Proxy(config, on_fault=lambda request: parent.say("taken", request=request))
    parent.watch(stopped.set, config.scratch_folder)
    proxy.start()
    parent.say("ready", http_port=proxy.server.port)
    stopped.wait()
    proxy.stop()
    parent.say("stats", stats=proxy.stats())


def main() -> None:
    """Entry of the process."""
    run_worker("proxy", serve)


if __name__ == "__main__":
    main()
