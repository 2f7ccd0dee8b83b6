"""One comment in a pull request of GitHub, which a later report brings up to date."""

from __future__ import annotations

import http
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from bench_lib.model import UserError
from bench_lib.report.markdown import MARKER, UNCHANGED
from bench_lib.report.webhook import CLOCK, UndeliverableError, WaitingClock, ask

TOKENS = ("GH_TOKEN", "GITHUB_TOKEN")
"""Variables that may hold the token; the first that is set counts."""
PUBLIC, PUBLIC_API = "https://github.com", "https://api.github.com"
A_PAGE = 100
"""Comments that GitHub lists at once, the most that it does."""
MOST_PAGES = 50
MOST_BYTES = 32 * 2**20
"""Most bytes of a page of answers: a comment has up to 64 KiB, and JSON escapes some of it."""
_ADDRESS = re.compile(
    r"(?P<server>https?://[^/]+)/(?P<repository>[\w.-]+/[\w.-]+)/pull/(?P<number>\d+)"
)
_REFUSED = (
    *(http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN),
    http.HTTPStatus.NOT_FOUND,
)
"""GitHub's answers if a token lacks the right."""


@dataclass(frozen=True)
class PullRequest:
    """A pull request, and the rights to comment on it."""

    issues: str
    """Address of the repository's issues in GitHub's API, without a slash at its end."""
    user: str
    """Address that tells whose the token is."""
    number: str
    token: str


def pull_request(address: str, variables: Mapping[str, str]) -> PullRequest:
    """Return the pull request of a page's address; raises UserError.

    The token is in one of TOKENS.  It goes to GitHub's API, to that of an Enterprise server, or to
    GITHUB_API_URL where the address is of GITHUB_SERVER_URL.
    """
    found = _ADDRESS.match(address)
    token = next(filter(None, map(variables.get, TOKENS)), "")
    if found is None:
        raise UserError(
            f"--comment {address}: not a pull request, such as {PUBLIC}/OWNER/REPOSITORY/pull/7"
        )
    server = found["server"]
    if server == variables.get("GITHUB_SERVER_URL") and variables.get("GITHUB_API_URL"):
        api = variables["GITHUB_API_URL"].rstrip("/")
    elif not server.startswith("https://"):
        raise UserError(f"--comment {address}: a token is sent to https:// alone")
    else:
        api = PUBLIC_API if server == PUBLIC else f"{server}/api/v3"
    if not token:
        raise UserError(f"--comment needs a token; set {TOKENS[0]} to one that may comment")
    return PullRequest(
        f"{api}/repos/{found['repository']}/issues", f"{api}/user", found["number"], token
    )


def comment(
    pull: PullRequest, body: str, *, on_change: bool = False, clock: WaitingClock = CLOCK
) -> str:
    """Make the comment, or bring the one up to date that was made before; return which.

    With ``on_change`` a report without changes makes no new comment.  An old one is brought up to
    date all the same, since it may say that something fails.  Raises UndeliverableError, which
    never holds the token.
    """
    api = _Api(pull, clock)
    try:
        if (old := api.own()) is not None:
            api.write("PATCH", f"{pull.issues}/comments/{old}", body)
            return "the comment is brought up to date"
        if on_change and body.startswith(f"{MARKER}\n{UNCHANGED}"):
            return "nothing changed, so there is no comment"
        api.write("POST", f"{pull.issues}/{pull.number}/comments", body)
    except UndeliverableError as error:
        if error.status not in _REFUSED:
            raise
        words = f"{error}; see that the token may write to pull requests there"
        raise UndeliverableError(words) from error
    return "the comment is made"


@dataclass(frozen=True)
class _User:
    login: str
    type: str = "User"
    """``Bot`` of an app."""


@dataclass(frozen=True)
class _Comment:
    id: int
    user: _User | None
    """None if the user is gone."""
    body: str | None = None


Answer = TypeVar("Answer")


@dataclass(frozen=True)
class _Api:
    """GitHub's API, as the owner of a token sees it."""

    pull: PullRequest
    clock: WaitingClock

    def write(self, method: str, url: str, body: str) -> None:
        """Write a comment; raises UndeliverableError."""
        document = msgspec.json.encode({"body": body})
        ask(method, url, document, headers=self._headers, clock=self.clock)

    def read(self, url: str, kind: type[Answer]) -> Answer:
        """Return the content; raises UndeliverableError."""
        answer = ask("GET", url, headers=self._headers, most=MOST_BYTES, clock=self.clock)
        try:
            return msgspec.json.decode(answer, type=kind)
        except ValueError:
            raise UndeliverableError("its answer is not of GitHub's form") from None

    @property
    def _headers(self) -> dict[str, str]:
        return {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {self.pull.token}",
            "X-GitHub-Api-Version": "2022-11-28",
        }

    def own(self) -> int | None:
        """Return the id of the comment that this program made before; None if there is none.

        Anybody may write a comment that begins as ours do, so its author counts.
        """
        login = self._login()
        for page in range(1, MOST_PAGES + 1):
            query = f"?per_page={A_PAGE}&page={page}"
            url = f"{self.pull.issues}/{self.pull.number}/comments{query}"
            found = self.read(url, list[_Comment])
            for each in found:
                if (each.body or "").startswith(MARKER) and _is_by(each.user, login):
                    return each.id
            if len(found) < A_PAGE:
                break
        return None

    def _login(self) -> str | None:
        """Return the token's owner; None for an app's, which GitHub does not name."""
        try:
            return self.read(self.pull.user, _User).login
        except UndeliverableError as error:
            if error.status == http.HTTPStatus.FORBIDDEN:  # "not accessible by integration"
                return None
            raise


def _is_by(user: _User | None, login: str | None) -> bool:
    if user is None:
        return False
    return user.type == "Bot" if login is None else user.login == login
