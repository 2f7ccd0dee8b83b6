"""A report as one comment of a pull request: GitHub's stand-in is a real server on loopback."""

from __future__ import annotations

import http.server
import json
import re
from contextlib import contextmanager
from dataclasses import dataclass, field

import builders
import nights
import pytest
from command import ran
from serving import answering

from bench_lib.model import UserError
from bench_lib.report.markdown import MARKER, UNCHANGED
from bench_lib.report.pull_request import PullRequest, comment, pull_request
from bench_lib.report.webhook import UndeliverableError, WaitingClock

TOKEN = "ghs_shhhhhhhhhhhhhhhh"
OURS = f"{MARKER}\n\n## 1 of 2 cases failed"
QUIET = f"{MARKER}\n{UNCHANGED}\n\n## Nothing failed"
BOT = {"login": "ci[bot]", "type": "Bot"}
PERSON = {"login": "somebody", "type": "User"}
IMPATIENT = WaitingClock(sleep=lambda _seconds: None)


@dataclass
class GitHub:
    """What a repository's pull request 7 has, and what was asked of it."""

    user: dict[str, str] | None
    """Whose the token is; None of an app's."""
    comments: list[dict] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    refuses: int = 0
    """The status with which it answers what would write."""
    url: str = ""

    @property
    def pull(self) -> PullRequest:
        """The pull request, as a user of this server names it."""
        return pull_request(f"{self.url}/someone/net/pull/7", self.variables)

    @property
    def variables(self) -> dict[str, str]:
        """What GitHub Actions would set."""
        api = f"{self.url}/api"
        return {"GITHUB_SERVER_URL": self.url, "GITHUB_API_URL": api, "GH_TOKEN": TOKEN}

    @property
    def bodies(self) -> list[str]:
        """What the comments say."""
        return [each["body"] for each in self.comments]

    def said(self, body: str, user: dict[str, str] | None) -> None:
        """Have somebody comment."""
        self.comments.append({"id": 100 + len(self.comments), "user": user, "body": body})

    def answer(self, method: str, path: str, document: dict | None) -> tuple[int, object]:
        """Answer as GitHub's API does."""
        self.asked.append(f"{method} {path}")
        if path == "/api/user":
            return (403, {}) if self.user is None else (200, self.user)
        if self.refuses and method != "GET":
            return self.refuses, {}
        if listed := re.fullmatch(r"/api/repos/someone/net/issues/7/comments\?(.*)", path):
            size, page = map(int, re.findall(r"\d+", listed[1]))
            return 200, self.comments[size * (page - 1) : size * page]
        if method == "POST" and path == "/api/repos/someone/net/issues/7/comments":
            self.said(document["body"], self.user or BOT)
            return 201, self.comments[-1]
        number = int(path.removeprefix("/api/repos/someone/net/issues/comments/"))
        found = next(each for each in self.comments if each["id"] == number)
        assert method == "PATCH"
        found["body"] = document["body"]
        return 200, found


@contextmanager
def github(user=None):
    """Serve GitHub's API."""
    hub = GitHub(user)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.headers["Authorization"] == f"Bearer {TOKEN}"
            length = int(self.headers.get("Content-Length", 0))
            document = json.loads(self.rfile.read(length)) if length else None
            status, answer = hub.answer(self.command, self.path, document)
            words = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(words)))
            self.end_headers()
            self.wfile.write(words)

        def do_POST(self) -> None:
            self.do_GET()

        def do_PATCH(self) -> None:
            self.do_GET()

        def log_message(self, *_args) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        with answering(server):
            yield hub


# ---- one comment -------------------------------------------------------------------------


@pytest.mark.parametrize("user", [None, PERSON])
def test_a_later_report_takes_the_place_of_the_first(user):
    with github(user) as hub:
        hub.said("looks good", PERSON)
        assert comment(hub.pull, OURS) == "the comment is made"
        assert comment(hub.pull, f"{OURS} again") == "the comment is brought up to date"
    assert hub.bodies == ["looks good", f"{OURS} again"]


def test_where_nothing_changed_no_comment_is_made():
    with github() as hub:
        assert comment(hub.pull, QUIET, on_change=True).startswith("nothing changed")
        assert not hub.comments
        comment(hub.pull, QUIET)
    assert hub.bodies == [QUIET]


def test_a_comment_of_a_failure_does_not_outlive_it():
    with github() as hub:
        comment(hub.pull, OURS, on_change=True)
        comment(hub.pull, QUIET, on_change=True)
    assert hub.bodies == [QUIET]


@pytest.mark.parametrize(("owner", "stranger"), [(None, PERSON), (PERSON, BOT), (PERSON, None)])
def test_a_strangers_comment_with_our_marker_is_not_ours(owner, stranger):
    with github(owner) as hub:
        hub.said(f"{MARKER}\nall is well", stranger)
        comment(hub.pull, OURS)
    assert hub.bodies == [f"{MARKER}\nall is well", OURS]


def test_it_is_found_among_hundreds_of_others():
    with github() as hub:
        for number in range(230):
            hub.said(OURS if number == 220 else "+1", BOT)
        comment(hub.pull, QUIET)
    assert hub.bodies.count(QUIET) == 1
    assert len(hub.comments) == 230
    assert [line for line in hub.asked if "page" in line][-1].endswith("page=3")


# ---- what goes wrong ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "words"),
    [(403, "it answered 403; see that the token may write"), (422, "it answered 422$")],
)
def test_a_refusal_names_what_may_be_wrong_and_not_the_token(status, words):
    with github() as hub:
        hub.refuses = status
        with pytest.raises(UndeliverableError, match=words) as raised:
            comment(hub.pull, OURS, clock=IMPATIENT)
    assert TOKEN not in str(raised.value)


def test_what_is_not_githubs_answer_is_told():
    with (
        github({"name": "nobody"}) as hub,
        pytest.raises(UndeliverableError, match="not of GitHub"),
    ):
        comment(hub.pull, OURS, clock=IMPATIENT)


@pytest.mark.parametrize(
    ("address", "variables", "issues"),
    [
        ("https://github.com/a/b/pull/7", {}, "https://api.github.com/repos/a/b/issues"),
        ("https://github.com/a/b/pull/7/files", {}, "https://api.github.com/repos/a/b/issues"),
        ("https://git.example/a/b/pull/7", {}, "https://git.example/api/v3/repos/a/b/issues"),
        (
            "https://git.example/a/b/pull/7",
            {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_API_URL": "https://elsewhere"},
            "https://git.example/api/v3/repos/a/b/issues",
        ),
    ],
)
def test_the_token_goes_to_the_api_of_the_pull_requests_own_server(address, variables, issues):
    found = pull_request(address, {"GITHUB_TOKEN": TOKEN, **variables})
    assert (found.issues, found.number, found.token) == (issues, "7", TOKEN)


@pytest.mark.parametrize(
    ("address", "token", "words"),
    [
        ("7", TOKEN, "not a pull request, such as https://github.com/OWNER/REPOSITORY/pull/7"),
        ("https://github.com/a/b/issues/7", TOKEN, "not a pull request"),
        ("http://github.com/a/b/pull/7", TOKEN, "https:// alone"),
        ("https://github.com/a/b/pull/7", "", "set GH_TOKEN"),
    ],
)
def test_what_cannot_be_commented_on_is_a_users_error(address, token, words):
    with pytest.raises(UserError, match=words):
        pull_request(address, {"GH_TOKEN": token})


# ---- the command -------------------------------------------------------------------------


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    """Run ``report`` in a folder with a night in which one case of two regressed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bench_lib.storage.history.utc_now", lambda: nights.stamp(minutes=360))
    records = [nights.make_entry().record, nights.regressed().record]
    builders.write_run(tmp_path / "history", records, now="20261120T020000Z")

    def run(*words):
        return ran(["report", *words], monkeypatch, capsys)

    return run


def test_the_command_comments_with_a_link_to_the_report(cli, monkeypatch):
    with github() as hub:
        for name, value in hub.variables.items():
            monkeypatch.setenv(name, value)
        words = ("--comment", f"{hub.url}/someone/net/pull/7", "--link", "https://ci.example/1")
        status, _, err = cli(*words, "--on-change")
        assert (status, err) == (0, "the comment is made\n")
        hub.refuses = 403
        status, _, err = cli(*words)
    assert status == 0
    assert err.startswith("the comment was not made: it answered 403")
    assert "(<https://ci.example/1>)" in hub.bodies[0]
    assert hub.bodies[0].startswith(MARKER)


def test_on_change_without_a_comment_is_a_users_error(cli):
    assert cli("--on-change")[0] == 2
