"""Write docs/reference/ from the program: ``python docs/write_reference.py``.

A command, option or argument without a help text, and a page that is not what the program says,
fail tests/test_docs.py.
"""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

import bench_lib.cli
from bench_lib.micro import flags
from bench_lib.plugin.declared import add_options

FOLDER = Path(__file__).with_name("reference")
NOTE = "<!-- Written by docs/write_reference.py from the program. Do not edit. -->"
OWN_PAGES = {"environment.md"}
"""What is written by hand."""


class UndocumentedError(Exception):
    """Something of the program says nothing of itself."""


def pages() -> dict[str, str]:
    """Return every generated page by its name.

    Raises UndocumentedError naming all commands, options and arguments without a help text.
    """
    program: Any = typer.main.get_command(bench_lib.cli.app)
    if silent := [*_silent(program, "bench-lib"), *_silent_in_pytest()]:
        raise UndocumentedError(f"no help text: {', '.join(silent)}")
    written = {"index.md": _index(program), "pytest.md": _pytest_page()}
    for name, command in _below(program).items():
        written[f"{name}.md"] = "\n".join([NOTE, "", *_page(command, f"bench-lib {name}")])
    return {name: re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n" for name, text in written.items()}


def _below(command: Any) -> dict[str, Any]:
    """Return the commands below one by name; a program imports each when it is asked for it."""
    names = command.list_commands(None) if hasattr(command, "commands") else []
    return {name: command.get_command(None, name) for name in names}


def _silent(command: Any, path: str) -> Iterator[str]:
    if not (command.help or "").strip():
        yield path
    for parameter in command.params:
        if not (getattr(parameter, "help", None) or "").strip():
            yield f"{path} {parameter.opts[0]}"
    for name, below in _below(command).items():
        yield from _silent(below, f"{path} {name}")


def _silent_in_pytest() -> Iterator[str]:
    options, settings = _of_pytest()
    yield from (f"pytest {each['name']}" for each in options if not each.get("help"))
    yield from (f"pytest's {name}" for name, about, _ in settings if not about)


def _index(program: Any) -> str:
    """Return the page that lists every command."""
    rows = []
    for name, command in _below(program).items():
        below = _below(command)
        for path, each in (
            [(f"{name} {b}", c) for b, c in below.items()] if below else [(name, command)]
        ):
            anchor = f"#{_anchor(path)}" if below else ""
            rows.append((f"[`{path}`]({name}.md{anchor})", _escaped(_first_sentence(each.help))))
    about = inspect.cleandoc(bench_lib.cli.__doc__ or "")
    status = (
        f"{_paragraph(about, 'Exit status')} [The table](../exit-status.md) has what each command "
        "and `pytest perf_tests` mean by it. [json.md](../json.md) describes what `--json` prints."
    )
    return "\n".join(
        [
            NOTE,
            "",
            "# Reference",
            "",
            "Every command with its arguments, options and defaults.",
            "",
            *_table(("command", "does"), rows),
            "",
            "Besides the commands:",
            "",
            "- [pytest's options and settings](pytest.md)",
            "- [the environment's variables](environment.md)",
            "",
            "## Exit status",
            "",
            *textwrap.wrap(status, 100, break_long_words=False, break_on_hyphens=False),
        ]
    )


def _page(command: Any, path: str) -> Iterator[str]:
    """Yield the lines of a command's page, with a section for each command below it."""
    yield f"# {path}"
    yield ""
    below = getattr(command, "commands", None)
    if below is None:
        yield from _command(command, path)
        if path == "bench-lib micro":
            yield from _flags(flags.parser())
        return
    yield from _prose(command.help)
    rows = [
        (f"[`{name}`](#{_anchor(f'{path} {name}')})", _escaped(_first_sentence(each.help)))
        for name, each in below.items()
    ]
    yield from _table(("command", "does"), rows)
    for name, each in below.items():
        yield ""
        yield f"## {path} {name}"
        yield ""
        yield from _command(each, f"{path} {name}")


def _command(command: Any, path: str) -> Iterator[str]:
    shown = [
        each
        for each in command.params
        if "--help" not in each.opts and not getattr(each, "hidden", False)
    ]
    arguments = [each for each in shown if each.param_type_name == "argument"]
    options = [each for each in shown if each.param_type_name == "option"]
    words = [path, *(["[OPTIONS]"] if options else []), *map(_argument, arguments)]
    yield from ["```text", " ".join(words), "```", ""]
    yield from _prose(command.help)
    if arguments:
        rows = [(f"`{_argument(each)}`", _about(each), _default(each)) for each in arguments]
        yield from [*_table(("argument", "means", "default"), rows), ""]
    if options:
        rows = [(_option(each), _about(each), _default(each)) for each in options]
        yield from [*_table(("option", "means", "default"), rows), ""]


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    if not parameter.required:
        name = f"[{name}]"
    return f"{name}..." if parameter.nargs == -1 and not name.endswith("ARGUMENTS]") else name


def _option(parameter: Any) -> str:
    spellings = [*parameter.opts, *parameter.secondary_opts]
    word = "" if getattr(parameter, "is_flag", False) else parameter.metavar
    return ", ".join(f"`{each}`" for each in spellings) + (f" `{word}`" if word else "")


def _about(parameter: Any) -> str:
    return _escaped(parameter.help)


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if callable(value):
        value = value()
    if value is None or value is False or value in ("", [], ()):
        return ""
    if value is True:
        return "yes"
    if isinstance(value, (list, tuple)):
        return ", ".join(f"`{each}`" for each in value)
    return f"`{getattr(value, 'value', value)}`"


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the flags of a program that has argparse's."""
    for group in parser._action_groups:  # noqa: SLF001 - argparse offers no other way
        rows = []
        for each in group._group_actions:  # noqa: SLF001
            if "--help" in each.option_strings:
                continue
            if not each.help:
                raise UndocumentedError(f"no help text: bench-lib micro {each.option_strings[0]}")
            word = (
                ""
                if each.nargs == 0
                else each.metavar or _choices(each.choices) or each.dest.upper()
            )
            names = ", ".join(f"`{name}`" for name in each.option_strings)
            text = _escaped(each.help % {**vars(each), "prog": parser.prog})
            rows.append((f"{names} `{word}`" if word else names, text))
        if rows:
            yield from [f"## {(group.title or '').capitalize()}", ""]
            yield from [*_table(("flag", "means"), rows), ""]


def _choices(choices: Any) -> str:
    return ",".join(map(str, choices)).join("{}") if choices else ""


def _of_pytest() -> tuple[list[dict[str, Any]], list[tuple[str, str, Any]]]:
    """Return the plugin's options and ini settings, as it declares them."""
    options: list[dict[str, Any]] = []
    settings: list[tuple[str, str, Any]] = []

    class Asked:
        """Takes what is declared, in pytest's place."""

        def getgroup(self, *_words: str) -> Asked:
            return self

        def addoption(self, *names: str, **about: Any) -> None:
            options.append({"name": names[0], **about})

        def addini(self, name: str, help: str, *, default: Any = None, **_: Any) -> None:  # noqa: A002 - argparse's
            settings.append((name, help, default))

    add_options(Asked())  # type: ignore[arg-type]  # it has the two methods that are called
    return options, settings


def _pytest_page() -> str:
    options, settings = _of_pytest()
    rows = []
    for each in options:
        word = each.get("metavar") or r"\|".join(each.get("choices", ()))
        rows.append((f"`{each['name']}{' ' * bool(word)}{word}`", _escaped(each["help"])))
    inis = [
        (f"`{name}`", _escaped(about), f"`{default}`" if default else "")
        for name, about, default in settings
    ]
    return "\n".join(
        [
            NOTE,
            "",
            "# pytest's options and settings",
            "",
            "What the plugin adds to pytest, for tests with the `perf` fixture.",
            "",
            "## Options",
            "",
            *_table(("option", "means"), rows),
            "",
            "## Settings",
            "",
            "In `pyproject.toml` under `[tool.pytest.ini_options]`, or in `pytest.ini`.",
            "",
            *_table(("setting", "means", "default"), inis),
            "",
            "## Markers",
            "",
            "`@pytest.mark.perf_cases(WORKLOAD)` gives a test the fixture `case`, once for each",
            "case of that workload in the matrix. `-k` chooses among them by their ids.",
            "",
            "## Fixtures",
            "",
            "`case` is a case of the matrix, where the marker asks for one. `perf` measures:",
            "",
            "```text",
            "perf.measure(case)",
            "```",
            "",
            *_prose(inspect.getdoc(_perf_measure())),
            "[Your own step in your own repository](../own-repository.md) shows both at work.",
        ]
    )


def _perf_measure() -> Any:
    from bench_lib.plugin.running import Perf  # noqa: PLC0415 - makes pytest's plugin, not its options

    return Perf.measure


def _prose(text: str | None) -> Iterator[str]:
    r"""Yield paragraphs; one that click shows as it stands, after \b, as a block."""
    for part in inspect.cleandoc(text or "").split("\f")[0].split("\n\n"):
        if part.startswith("\b"):
            yield from ["```text", *part.removeprefix("\b").strip("\n").split("\n"), "```"]
        else:
            yield from map(_escaped, part.split("\n"))
        yield ""


def _paragraph(text: str, beginning: str) -> str:
    found = next(part for part in text.split("\n\n") if part.startswith(beginning))
    return _escaped(found)


def _first_sentence(text: str | None) -> str:
    return inspect.cleandoc(text or "").split("\n\n")[0].replace("\n", " ")


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table without the columns that nothing stands in."""
    kept = [i for i in range(len(headings)) if any(row[i] for row in rows)]
    for row in (headings, ["---"] * len(headings), *rows):
        yield f"| {' | '.join(row[i] for i in kept)} |"


def _anchor(heading: str) -> str:
    words = heading if heading.startswith("bench-lib") else f"bench-lib {heading}"
    return words.replace(" ", "-")


def _escaped(text: str) -> str:
    """Return text for a page or a cell; what stands in backticks is code."""
    parts = " ".join(text.replace("``", "`").split()).split("`")
    for i in range(0, len(parts), 2):
        for mark in ("\\", "<", "*", "[", "]"):
            parts[i] = parts[i].replace(mark, f"\\{mark}")
    return "`".join(parts).replace("|", "\\|")


def main() -> None:
    """Write every page, and remove those of commands that there are no more."""
    written = pages()
    for path in FOLDER.glob("*.md"):
        if path.name not in written.keys() | OWN_PAGES:
            path.unlink()
    for name, text in written.items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
