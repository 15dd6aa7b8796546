"""`tidegate draw`: the machines, a behaviour that TLC found, or a recorded run, as pictures (SVG)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tidegate.spec.counterexample import Shown

app = typer.Typer(no_args_is_help=False, add_completion=False, rich_markup_mode="markdown")
Out = Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="The SVG file; NAME.svg in this folder if absent.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A configuration of tla/models/manifest.toml.")]


@app.callback(invoke_without_command=True)
def command(
    context: typer.Context,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if a committed picture is stale.")] = False,
) -> None:
    """Draw pictures (needs the `spec` extra; a source checkout).

    Without a further word: each machine from its reachable graph, docs/machines.md and docs/machines/.  Other words draw one
    sequence diagram: ranks, network, slots and pool side by side, time downwards.

    Examples: `tidegate draw --check`, `tidegate draw witness reach-stray -o stray.svg`, `tidegate draw trace /tmp/t -o run.svg`
    """
    if context.invoked_subcommand:
        return
    from tidegate.spec import draw

    with _told():
        stale = draw.check() if check else []
        written = [] if check else draw.write()
    if written:
        typer.echo(f"wrote {len(written)} files: {written[0]} and what it shows")
    if stale:
        typer.echo(f"stale: {', '.join(stale)}; run `tidegate draw` and commit the result", err=True)
        raise typer.Exit(1)


@app.command("counterexample")
def counterexample(name: Name, out: Out = None) -> None:
    """Run TLC on a configuration and draw the behaviour that violates it.

    Example: `tidegate draw counterexample messages -o messages.svg`
    """
    with _told():
        _drawn(_found(name), out or Path(f"{name}.svg"))


@app.command("witness")
def witness(name: Name, out: Out = None) -> None:
    """Run TLC on a configuration that must be violated, and draw how the situation that it names comes about.

    Example: `tidegate draw witness reach-torn-by-revoke`
    """
    with _told():
        _drawn(_found(name, wanted=True), out or Path(f"{name}.svg"))


@app.command("museum")
def museum(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="An exhibit, or a property whose planted bug is drawn.")] = "",
    out: Out = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Without a name: TLCs at a time.")] = 2,
) -> None:
    """Draw what TLC finds with a fault of tla/museum planted; without a name, all whose behaviour is stale, and docs/museum.md.

    Example: `tidegate draw museum remote-reader-forgotten -o reuse.svg`
    """
    from tidegate.spec import draw, museum_page
    from tidegate.spec.errors import SpecError

    with _told():
        if name:
            _drawn(_exhibit(name), out or Path(f"{name}.svg"))
            return
        wrong = museum_page.look(on_done=lambda text: typer.echo(text, err=True), jobs=jobs)
        if wrong:
            raise SpecError("\n".join(wrong))
        typer.echo(f"wrote {len(draw.write())} files")


def _exhibit(name: str) -> Shown:
    """The kept behaviour of an exhibit, or what TLC finds with a property's planted bug. Raises SpecError if there is neither."""
    from tidegate.spec import museum, museum_page
    from tidegate.spec.counterexample import explain
    from tidegate.spec.errors import SpecError
    from tidegate.spec.variant import configurations

    bugs = {bug.property: bug for bug in museum.planted()}
    known = {exhibit.name: exhibit for exhibit in museum.exhibits()}
    if name in known:
        kept = museum_page.shown(known[name])
        if kept is None:
            why = "a probe looks at it, not TLC" if known[name].probe else "`tidegate draw museum` looks for it"
            raise SpecError(f"{name} has no behaviour to draw: {why}")
        return kept
    if name not in bugs:
        raise SpecError(f"no exhibit named {name}: there are {', '.join([*known, *bugs])}")
    bug = bugs[name]
    (model,) = configurations([bug.configuration])
    result = museum.show(bug)
    if not result.trace:
        raise SpecError(f"with this bug planted TLC finds no violation in {bug.configuration}: {bug.mistake}")
    return explain(result, model.module, model.text, title=bug.mistake, changed=museum.plant(bug))


@app.command("trace")
def trace(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder written by `tidegate run --trace`.")],
    request: Annotated[str, typer.Option("--request", metavar="R", help="A request's id, or an attempt's nonce; else the first.")] = "",
    chunk: Annotated[list[int] | None, typer.Option("--chunk", help="Only this chunk (may be repeated).")] = None,
    layer: Annotated[list[int] | None, typer.Option("--layer", help="Only this layer (may be repeated).")] = None,
    out: Out = None,
) -> None:
    """Draw one request of a recorded run.

    Example: `tidegate draw trace /tmp/t --request first --layer 1 --layer 3 -o run.svg`
    """
    from tidegate.spec.diagram_svg import svg
    from tidegate.spec.run_story import tell_run

    with _told():
        path = out or Path(f"{folder.resolve().name}.svg")
        path.write_text(svg(tell_run(folder, request, chunks=chunk or (), layers=layer or ())))
        typer.echo(f"wrote {path}")


@contextmanager
def _told() -> Iterator[None]:
    """What cannot be drawn is one line of text, and exit code 2."""
    from tidegate.spec.errors import SpecError

    try:
        yield
    except (SpecError, OSError, ValueError) as error:
        typer.echo(f"tidegate draw: {error}", err=True)
        raise typer.Exit(2) from None


def _found(name: str, *, wanted: bool = False) -> Shown:
    """What TLC finds in a configuration. Raises SpecError if there is nothing to draw."""
    from tidegate.spec import models
    from tidegate.spec.counterexample import explain
    from tidegate.spec.errors import SpecError
    from tidegate.spec.paths import root

    every = {m.name: m for m in models.read_manifest(root() / "tla" / "models" / "manifest.toml", root() / "tla")}
    if name not in every or (wanted and every[name].violates is None):
        known = [m.name for m in every.values() if m.violates or not wanted]
        raise SpecError(f"no {'witness' if wanted else 'configuration'} named {name}: there are {', '.join(known)}")
    model = every[name]
    typer.echo(f"TLC looks at {name} ...", err=True)
    outcome = models.judge(model)
    if outcome.result is None:
        raise SpecError(outcome.error)
    if not outcome.result.trace:
        raise SpecError(f"{name} passes ({outcome.result.distinct:,} states): there is no counterexample to draw")
    good = model.violates is not None and not outcome.wrong
    return explain(outcome.result, model.module, model.config.read_text(), title=f"{name}: {outcome.said}", wanted=good)


def _drawn(shown: Shown, path: Path) -> None:
    typer.echo(f"wrote {shown.write(path)}\n{shown.sentence}")
