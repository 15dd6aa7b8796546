"""`tidegate proxy`: the proxy and metaserver, until it is told to stop."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.engine.cli.serving import Drain, serve


def command(
    port: Annotated[int, typer.Option(help="HTTP port; 0: any free one.")] = 8000,
    prefill: Annotated[list[str] | None, typer.Option(help="URL of a Prefill; give one for each. Others may join.")] = None,
    decode: Annotated[list[str] | None, typer.Option(help="URL of a Decode; give one for each. Others may join.")] = None,
    max_retries: Annotated[int, typer.Option(help="Further tries of a request between the servers.")] = 3,
    retry_delay: Annotated[float, typer.Option(help="Seconds before the first of them; doubles each time.")] = 0.1,
    drain: Drain = 60.0,
) -> None:
    """Take completions of clients, have a Decode answer them and, when it asks for it, a Prefill compute the prompt.

    Exit code: 0 stopped by a signal, everything answered; 2 the configuration cannot be served; 4 it failed while it served.

    Example: `tidegate proxy --port 8000 --prefill http://127.0.0.1:8100 --decode http://127.0.0.1:8200`
    """
    from tidegate.engine.http.proxy import ProxyConfig
    from tidegate.engine.proxy_worker import serve as serve_proxy
    from tidegate.engine.server_options import checked_urls

    serve(
        "proxy", drain=drain,
        make=lambda folder: ProxyConfig(
            prefillers=checked_urls("--prefill", prefill or []), decoders=checked_urls("--decode", decode or []), port=port,
            max_retries=max_retries, retry_delay=retry_delay,
        ),
        run=serve_proxy,
    )  # fmt: skip
