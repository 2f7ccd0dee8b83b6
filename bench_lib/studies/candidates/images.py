"""Container images, in an order that the user gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench_lib.engine.settings import Side
from bench_lib.launch import inquiry
from bench_lib.studies.candidates import Candidate, CandidateError

PLACE = "{image}"
"""Stands for the image in a command prefix; without it the image comes last."""


class Images:
    """The images between two, each run by the same command prefix."""

    def __init__(
        self,
        images: Sequence[str],
        prefix: Sequence[str],
        *,
        python: str = "python3",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start nothing yet.

        ``images`` are in their order, by reference or by tag of the good end's image; the ends
        need not be among them.  ``prefix`` is the command that runs words in an image, and
        ``python`` the interpreter in there.  Raises CandidateError where there is no prefix.
        """
        if not prefix:
            why = "images need the command that runs them"
            raise CandidateError(f"{why}: --prefix 'docker run --rm {PLACE}', for example")
        self._images = list(images)
        self._prefix = tuple(prefix)
        self._python = python
        self._variables = dict(environment or {})

    def between(self, good: str, bad: str) -> list[Candidate]:
        """Return the images from ``good`` to ``bad``, both of them included.

        Raises CandidateError.
        """
        last = _in_full(bad, good)
        images = [_in_full(each, good) for each in self._images]
        if doubled := next((each for each in images if images.count(each) > 1), None):
            raise CandidateError(f"{doubled} is named twice among the images")
        if good == last:
            raise CandidateError(f"{good} and {bad} are the same image")
        images = images if good in images else [good, *(each for each in images)]
        images = images if last in images else [*images, last]
        begin, end = images.index(good), images.index(last)
        if begin > end:
            why = f"{last} comes before {good} among the images"
            raise CandidateError(f"{why}; name them in their order, from good to bad")
        return [Candidate(image) for image in images[begin : end + 1]]

    def make(self, candidate: Candidate) -> Side:
        """Return the side of an image, which is fetched now where it is not here.

        Raises LaunchError where it cannot be run, or has no torch.
        """
        words = tuple(word.replace(PLACE, candidate.name) for word in self._prefix)
        prefix = words if words != self._prefix else (*words, candidate.name)
        inquiry.ask(self._python, self._variables, prefix)
        return Side(self._python, self._variables, prefix)

    def close(self) -> None:
        """Leave the images where they are; they are the user's."""


def _in_full(image: str, good: str) -> str:
    """Return an image's reference; a bare tag is one of the good end's image."""
    if "/" in image or ":" in image or "@" in image:
        return image
    name, colon, _ = good.partition("@")[0].rpartition(":")
    # A colon before a slash is that of a registry's port.
    return f"{name}:{image}" if colon and "/" not in good.rpartition(":")[2] else image
