"""The proxy process: serves until the one that started it says stop, or is gone."""

from __future__ import annotations

import threading

from tidegate.engine.http.proxy import Proxy, ProxyConfig
from tidegate.engine.notes import leave_note
from tidegate.engine.worker_io import Host, run_worker

__all__ = ["main", "serve"]


def serve(config: ProxyConfig, host: Host) -> None:
    """Serve to the end.  OSError where the port is taken."""
    stopped = threading.Event()
    proxy = Proxy(config, on_fault=lambda request: host.say("taken", request=request))
    host.watch(stopped.set, config.scratch_folder, server=proxy.server)
    proxy.start()
    leave_note(config.scratch_folder, "proxy", proxy.server.url)
    host.say("ready", http_port=proxy.server.port)
    stopped.wait()
    proxy.stop()
    host.say("stats", stats=proxy.stats())


def main() -> None:
    """Entry of the process: the configuration on standard input."""
    run_worker("proxy", lambda parent: serve(parent.config(ProxyConfig), parent))


if __name__ == "__main__":
    main()
