"""`tidegate why`: what running servers wait for, in sentences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import httpx

    from tidegate.engine.waiting import Status


def command(
    address: Annotated[
        str, typer.Argument(help="HOST:PORT or URL of a server; a proxy's: it and all that it asks. Default: all of yours on this machine.")
    ] = "",
    state: Annotated[Path | None, typer.Option(help="Look for servers here, not in /dev/shm (or TIDEGATE_SHARED_MEMORY).")] = None,
) -> None:
    """Say what each server waits for: who, for what, of whom, for how long, and which guard of which machine is false.

    Exit code: 0 all answered, and nothing waits longer than its server's limit (wait_limit_seconds); 1 something does, or a server could
    not be read; 2 none could.

    Example: `tidegate why 127.0.0.1:8000`
    """
    import httpx

    from tidegate.engine.endings import Ending
    from tidegate.engine.notes import running

    urls = [_url(address)] if address else [note.url for note in running(state)]
    if not urls:
        typer.echo("tidegate why: no server of yours runs on this machine; give HOST:PORT of one", err=True)
        raise typer.Exit(Ending.REFUSED)
    late, told, unread = False, 0, list[str]()
    with httpx.Client(timeout=5.0, trust_env=False) as client:
        asked: set[str] = set()
        while urls:
            url = urls.pop(0)
            if url in asked:
                continue
            asked.add(url)
            if (found := _asked(client, url)) is None:
                unread.append(url)
                continue
            told += 1
            late |= bool(found.late)
            urls += [one for role in found.servers.values() for one in role]
            _tell(url, found)
    if unread:
        typer.echo(f"tidegate why: of {told + len(unread)} servers {len(unread)} could not be read: {', '.join(unread)}", err=True)
    raise typer.Exit(Ending.REFUSED if not told else Ending.FOUND if late or unread else Ending.DONE)


def _url(address: str) -> str:
    return (address if "://" in address else f"http://{address}").rstrip("/")


def _asked(client: httpx.Client, url: str) -> Status | None:
    """What the server at `url` says; None, and a line about it, where it says nothing."""
    import httpx
    import msgspec

    from tidegate.engine.waiting import Status

    try:
        answer = client.get(f"{url}/status")
        answer.raise_for_status()
        return msgspec.json.decode(answer.content, type=Status)
    except httpx.TimeoutException:
        typer.echo(f"{url}: does not answer (stopped, or hanging): whoever waits for it waits for that")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        typer.echo(f"{url}: {error or type(error).__name__}", err=True)
    except msgspec.MsgspecError as error:
        typer.echo(f"{url}: is no server of this release: {error}", err=True)
    return None


def _tell(url: str, found: Status) -> None:
    mode = f", {found.mode} mode" if found.mode else ""
    count = f"{len(found.waits)} waits, {len(found.late)} of them longer than {found.limit:g} s" if found.waits else "nothing waits"
    typer.echo(f"{found.role} at {url} (process {found.pid}{mode}): {count}")
    for wait in found.waits:
        typer.echo(f"  {'!' if wait.seconds > found.limit else ' '} {wait}")
