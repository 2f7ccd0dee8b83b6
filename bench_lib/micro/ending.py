"""The first rank's output for all ranks: it prints, stores and writes the results."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_lib import backends, files
from bench_lib.engine.engine import Engine
from bench_lib.formulas.roofline import place
from bench_lib.micro import lines
from bench_lib.micro.flags import MicroOptions
from bench_lib.micro.session import RankSeen
from bench_lib.model import Hardware, UserError


@dataclass
class Ending:
    """The first rank's output for all ranks, after the measurement.

    Each step runs even if others fail, so that no measurement is lost.
    """

    options: MicroOptions
    device: Hardware
    engine: Engine | None
    """Writes the history; None without ``--history``."""
    say: Callable[[str], None]
    trouble: list[str] = field(default_factory=list)
    """Error messages."""
    began_s: float = field(default_factory=time.monotonic)

    def conclude(self, seen: RankSeen) -> None:
        """Print the results, store them in the history, and write the files."""
        folded, options = seen.folded, self.options
        result = lines.result(options, seen.place, folded)
        if seen.place.is_rank:
            self.say("\n".join(lines.overall_summary(options, seen.place, folded)))
        params = seen.case.params
        precision, mode = str(params["precision"]), str(params["compile_mode"])
        placed = place(folded, self.device, precision, mode)
        below = lines.performance(
            options,
            folded,
            seen.measured,
            precision=f"{options.dtype.partition(':')[0]} ({precision})",
            roofline=placed,
        )
        self.say("\n".join(["", *below]))
        with self._going_on():
            self.keep(seen)
        self._write(result)

    def keep(self, seen: RankSeen) -> None:
        """Store the ranks' results in the history; raises HistoryError.

        Raises UserError if they ran on another device.
        """
        if self.engine is None:
            return
        if differing := backends.confirm(self.device, seen.device):
            raise UserError(f"this ran on another device than {self.device.key}: {differing[0]}")
        first = seen.outcomes[0]
        outcome = self.engine.held.take_in(
            seen.case,
            seen.folded,
            began_s=self.began_s,
            versions={**first["versions"], "cudnn": first["cudnn"]},
            threads=first["threads"],
            pids=[int(outcome["pid"]) for outcome in seen.outcomes],
        )
        self.engine.note(outcome)
        self.engine.end(0)
        self.say(f"History: {self.engine.suite.writer.path}")

    def _write(self, result: dict[str, Any]) -> None:
        """Write the JSON file and append a row to the CSV file, with a header if it is new."""
        options = self.options
        with self._going_on(options.result):
            if options.result is not None:
                options.result.parent.mkdir(parents=True, exist_ok=True)
                files.replace(options.result, json.dumps(result, indent=2).encode())
        file = Path(options.csv_name)
        with self._going_on(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            is_new = not file.exists() or not file.stat().st_size
            text = io.StringIO(newline="")
            rows = csv.DictWriter(text, list(result))
            if is_new:
                rows.writeheader()
            rows.writerow(result)
            files.append(file, text.getvalue().encode())
            self.say(f"Benchmark result saved to {options.csv_name}")

    @contextlib.contextmanager
    def _going_on(self, file: Path | None = None) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            self.trouble.append(str(error))
        except BrokenPipeError:  # of the output
            raise
        except OSError as error:
            self.trouble.append(f"{file} cannot be written: {error.strerror}")
