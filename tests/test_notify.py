"""News of a night over a webhook: when, what, and what happens if nobody takes them.

Every server here is a real one on loopback; waiting is counted and not done.
"""

from __future__ import annotations

import http.server
import json
import re
import shutil
import socket
import ssl
import subprocess
import threading
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

import builders
import nights
import pytest
from serving import answering

from bench_lib.model import Quarantine, SlowDown, Status
from bench_lib.report import notify as news
from bench_lib.report import webhook
from bench_lib.report.html import page
from bench_lib.report.markdown import as_markdown
from bench_lib.report.night import NightSlowDown
from bench_lib.report.notify import Before, before_of, body, news_of, notify
from bench_lib.report.webhook import UndeliverableError, WaitingClock, post

SECRET = "T0/B0/shhhhhhhhhhhhhhhhh"
ANYTHING = Before()
"""Nothing failed before, and no hardware was there."""


@dataclass
class Time:
    """A clock that waiting moves on by itself."""

    passed: float = 0.0
    slept: list[float] = field(default_factory=list)

    @property
    def clock(self) -> WaitingClock:
        """What the code under test waits by."""
        return WaitingClock(lambda: self.passed, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.passed += seconds


@dataclass
class Hook:
    """A server on loopback that answers as it was told, the last answer for ever."""

    url: str
    answers: list[tuple[int, dict[str, str], bytes]]
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def document(self):
        """What was posted last, decoded."""
        return json.loads(self.bodies[-1])


@contextmanager
def serving(*answers, tls: ssl.SSLContext | None = None):
    """Serve ``answers``: numbers, or (number, headers, body)."""
    hook = Hook("", [a if isinstance(a, tuple) else (a, {}, b"") for a in answers])

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            hook.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            hook.headers.append(dict(self.headers))
            status, headers, words = hook.answers[min(len(hook.bodies), len(hook.answers)) - 1]
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(words)))
            self.end_headers()
            self.wfile.write(words)

        def log_message(self, *_args) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.handle_error = lambda *_args: None
        scheme = "http"
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
            scheme = "https"
        hook.url = f"{scheme}://127.0.0.1:{server.server_port}/services/{SECRET}"
        with answering(server):
            yield hook


@contextmanager
def speaking(*said: bytes, closes: bool = True):
    """Serve one connection at a time with bytes that are no HTTP, or none."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        held = []
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.recv(65_536)
                for part in said:
                    connection.sendall(part)
                if closes:
                    connection.close()
                else:
                    held.append(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/services/{SECRET}"
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in held:
                connection.close()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    """Loopback is asked directly, whatever the machine has."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def time():
    """Return a clock at its beginning."""
    return Time()


@pytest.fixture
def said():
    """Return the lines that were said."""
    return []


def night(*entries, **fields):
    """Return a night of these entries."""
    return nights.make_night(list(entries), **fields)


def place(entry):
    """Return what an entry is told apart by."""
    return entry.record.case.id, entry.hardware.key


def as_before(*entries) -> Before:
    """Return a night before in which these failed."""
    return Before(frozenset(map(place, entries)))


def unbound_port() -> int:
    """Return a port that nobody listens on."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return server.getsockname()[1]


# ---- when there are news ----------------------------------------------------------------


def test_a_new_failure_is_posted(said):
    with serving(200) as hook:
        assert notify(night(nights.regressed()), hook.url, before=ANYTHING, say=said.append)
    assert len(hook.bodies) == 1
    assert hook.headers[0]["Content-Type"] == "application/json"
    assert hook.document["failures"][0]["new"] is True
    assert said == [f"posted: {night(nights.regressed()).sentence}"]


def test_the_same_failure_again_is_no_news(said):
    with serving(200) as hook:
        entry = nights.regressed()
        assert not notify(night(entry), hook.url, before=as_before(entry), say=said.append)
    assert hook.bodies == []
    assert said == ["nothing changed since the night before, so nothing was posted"]


def test_a_green_night_after_a_green_night_is_no_news():
    with serving(200) as hook:
        assert not notify(night(nights.make_entry()), hook.url, before=ANYTHING)
    assert hook.bodies == []


def test_a_failure_that_is_over_is_news():
    entry = nights.make_entry()
    with serving(200) as hook:
        assert notify(night(entry), hook.url, before=as_before(entry))
    assert hook.document["over"] == [
        {"case_id": entry.record.case.id, "hardware_key": "mi300x", "status": "OK"}
    ]


@pytest.mark.parametrize(
    ("entries", "standing"),
    [(list, "not measured"), (lambda: [excused()], "in quarantine")],
)
def test_a_failure_that_was_not_measured_or_is_excused_is_said_to_be(entries, standing):
    known = nights.make_entry()
    others = nights.make_entry(nights.make_case("other"))
    found = news_of(night(others, *entries()), as_before(known))
    assert found.over == {place(known): standing}


def excused():
    """Return a failure in quarantine."""
    return nights.quarantined(nights.make_case())


def test_one_new_failure_among_old_ones_is_news_and_the_old_ones_come_along():
    old, new = nights.regressed(), nights.error()
    with serving(200) as hook:
        assert notify(night(old, new), hook.url, before=as_before(old))
    told = [(failure["case_id"], failure["new"]) for failure in hook.document["failures"]]
    assert told == [(place(new)[0], True), (place(old)[0], False)]


def test_the_same_case_on_other_hardware_is_another_failure():
    here = nights.regressed()
    there = replace(here, hardware=nights.MI250X)
    assert news_of(night(here, there), as_before(here)).new == [there]


def test_a_case_in_quarantine_is_no_failure():
    assert not news_of(night(nights.quarantined()), ANYTHING)


def test_a_run_that_did_not_end_is_news_each_night_and_so_is_hardware_that_is_gone():
    found = news_of(nights.unfinished_night(), as_before(nights.regressed()))
    assert [run.run_id for run in found.unfinished] == ["0d0d0d0d"]
    assert found.new == []
    assert found
    before = Before(keys=frozenset({"mi300x", "mi210"}))
    assert news_of(night(nights.make_entry()), before).missing == ["mi210"]


# ---- how things stood before ------------------------------------------------------------


def written(folder, ago, *records, **fields):
    """Write the run of some nights ago."""
    return builders.write_run(folder, records, now=nights.stamp(ago), **fields)


def failed(case, **fields):
    """Return the record of a case that ended in an error."""
    return replace(nights.error(case).record, **fields)


def passed(case):
    """Return the record of a case that is OK."""
    verdicts = [builders.make_verdict()]
    return builders.make_record(case=case, status=Status.OK, verdicts=verdicts)


def test_the_night_before_is_the_last_run_before_on_the_same_hardware(tmp_path):
    from bench_lib.storage.archive import Archive

    one, two, three = (nights.make_case(name) for name in ("one", "two", "three"))
    other = builders.make_hardware(key="mi250x")
    written(tmp_path, 5, failed(three))
    attempt = replace(failed(two).attempts[0], hardware_key="mi250x")
    written(tmp_path, 4, failed(two, attempts=[attempt]), hardware=other)
    written(tmp_path, 1, failed(one), passed(three))
    path = written(tmp_path, 0, failed(one))
    run_id = path.stem.rpartition("_")[2]
    tonight = night(nights.error(one, run_id=run_id), runs=[nights.make_run(run_id=run_id)])
    with Archive(tmp_path) as archive:
        before = before_of(archive, tonight)
        assert before == Before(frozenset({(one.id, "mi300x")}), frozenset({"mi300x"}))
        assert not news_of(tonight, before)
        both = replace(
            tonight,
            runs=[*tonight.runs, nights.make_run(run_id="0d0d0d0d", key="mi250x")],
        )
        assert (two.id, "mi250x") in before_of(archive, both).failing


def test_runs_of_one_night_are_taken_together(tmp_path):
    from bench_lib.storage.archive import Archive

    one, two = (nights.make_case(name) for name in ("one", "two"))
    written(tmp_path, 3, failed(nights.make_case("long-ago")))
    builders.write_run(tmp_path, [failed(one), failed(two)], now=nights.stamp(1))
    builders.write_run(tmp_path, [passed(two)], now=nights.stamp(1, minutes=90))
    with Archive(tmp_path) as archive:
        assert before_of(archive, night()).failing == {(one.id, "mi300x")}


def test_a_quarantine_held_then_made_no_failure_then(tmp_path):
    from bench_lib.storage.archive import Archive

    case = nights.make_case("excused")
    held = Quarantine("known", nights.stamp(1)[:10], nights.stamp(9))
    written(tmp_path, 1, failed(case, quarantine=held))
    with Archive(tmp_path) as archive:
        before = before_of(archive, night(runs=[nights.make_run()]))
    assert before.failing == frozenset()


def test_a_run_that_measured_nothing_is_news_once(tmp_path):
    from bench_lib.storage.archive import Archive

    written(tmp_path, 3, passed(nights.make_case()))
    run_ids = [written(tmp_path, ago).stem.rpartition("_")[2] for ago in (1, 0)]
    told = []
    with Archive(tmp_path) as archive:
        for ago, run_id in zip((1, 0), run_ids, strict=True):
            run = nights.make_run(run_id=run_id, started=nights.stamp(ago))
            empty = nights.make_night([], runs=[run])
            told.append(news_of(empty, before_of(archive, empty)).missing)
    assert told == [["mi300x"], []]


def test_a_run_that_failed_without_a_case_is_news_once(tmp_path):
    from bench_lib.storage.archive import Archive

    path = written(tmp_path, 1, nights.invalid().record)
    red = nights.make_run(exit_status=1, counts={"INVALID": 1})
    tonight = night(nights.invalid(), runs=[red])
    for status, told in ((0, [red]), (1, [])):
        end = f'"exit_status":{status}'
        path.write_text(re.sub(r'"exit_status":\d', end, path.read_text()))
        with Archive(tmp_path) as archive:
            found = news_of(tonight, before_of(archive, tonight))
        assert (found.red, bool(found)) == (told, bool(told))
    assert json.loads(body(tonight, news_of(tonight, Before()), "json"))["red"] == [red.run_id]
    assert "exit status 1, though no case of it failed" in str(
        body(tonight, news_of(tonight, Before()), "slack")
    )


# ---- delivery ---------------------------------------------------------------------------


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_what_may_pass_is_tried_again(time, status):
    with serving(status, status, 200) as hook:
        post(hook.url, b"{}", clock=time.clock)
    assert len(hook.bodies) == 3
    assert time.slept == [1.0, 2.0]


def test_retry_after_says_how_long_to_wait(time):
    after = {"Retry-After": "7"}, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}
    with serving((429, after[0], b""), (429, after[1], b""), 200) as hook:
        post(hook.url, b"{}", clock=time.clock)
    assert time.slept == [7.0, 2.0]


def test_a_wait_that_is_longer_than_the_time_left_is_not_begun(time):
    answer = (429, {"Retry-After": "3600"}, b"")
    with serving(answer) as hook, pytest.raises(UndeliverableError, match="no time is left"):
        post(hook.url, b"{}", clock=time.clock)
    assert len(hook.bodies) == 1
    assert time.slept == []


def test_after_five_attempts_it_is_given_up(time):
    with serving(503) as hook, pytest.raises(UndeliverableError, match="503; tried 5 times"):
        post(hook.url, b"{}", clock=time.clock)
    assert len(hook.bodies) == 5
    assert time.slept == [1.0, 2.0, 4.0, 8.0]


def test_an_answer_that_breaks_off_after_taking_it_is_a_delivery(time):
    with speaking(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nok") as url:
        post(url, b"{}", clock=time.clock)
    assert time.slept == []


def test_a_line_break_at_the_end_of_the_address_is_forgiven():
    with serving(200) as hook:
        assert notify(night(nights.error()), f" {hook.url}\n", before=ANYTHING)


@pytest.mark.parametrize("status", [400, 403, 404, 410, 413])
def test_what_is_refused_is_not_tried_again(time, status):
    answer = (status, {}, b"no_service")
    with serving(answer) as hook, pytest.raises(UndeliverableError) as caught:
        post(hook.url, b"{}", clock=time.clock)
    assert str(caught.value) == f"it answered {status} (no_service)"
    assert len(hook.bodies) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(time, status):
    with serving(200) as elsewhere:
        answer = (status, {"Location": elsewhere.url}, b"")
        with serving(answer) as hook, pytest.raises(UndeliverableError, match="not followed"):
            post(hook.url, b"{}", clock=time.clock)
    assert elsewhere.bodies == []
    assert len(hook.bodies) == 1


def test_nobody_there_is_tried_again_and_given_up(time):
    url = f"http://127.0.0.1:{unbound_port()}/services/{SECRET}"
    with pytest.raises(UndeliverableError, match="Connection refused; tried 5 times"):
        post(url, b"{}", clock=time.clock)


def test_a_server_that_never_answers_is_given_up(time):
    with speaking(closes=False) as url, pytest.raises(UndeliverableError, match="no answer"):
        post(url, b"{}", attempt_s=0.05, clock=time.clock)
    assert time.slept == [1.0, 2.0, 4.0, 8.0]


def test_a_server_that_answers_byte_by_byte_is_given_up(monkeypatch, time):
    over = threading.Event()
    monkeypatch.setattr(webhook, "_once", lambda *_args: over.wait(5))
    with pytest.raises(UndeliverableError, match="no answer within 0 s; tried 5 times"):
        post("http://127.0.0.1/", b"{}", attempt_s=0.01, clock=time.clock)
    over.set()


@pytest.mark.parametrize("words", [b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 garbage\r\n\r\n"])
def test_what_is_no_http_is_tried_again_and_given_up(time, words):
    with speaking(words) as url, pytest.raises(UndeliverableError, match="tried 5 times"):
        post(url, b"{}", clock=time.clock)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Return the folder of a key and a certificate that nobody has signed."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here that would make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(folder / "key"), "-out", str(folder / "certificate")),
        ],
        check=True,
        capture_output=True,
    )
    return folder


def test_a_certificate_that_nobody_signed_is_refused_at_once(certificate, time):
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate / "certificate", certificate / "key")
    with serving(200, tls=tls) as hook, pytest.raises(UndeliverableError) as caught:
        post(hook.url, b"{}", clock=time.clock)
    assert str(caught.value) == "its certificate is not accepted: self-signed certificate"
    assert hook.bodies == []
    assert time.slept == []


def test_a_certificate_that_is_trusted_is_accepted(certificate, time, monkeypatch):
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate / "certificate", certificate / "key")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "certificate"))
    with serving(200, tls=tls) as hook:
        post(hook.url, b"{}", clock=time.clock)
    assert hook.bodies == [b"{}"]


def test_plain_http_behind_https_is_refused_at_once(time):
    with serving(200) as hook, pytest.raises(UndeliverableError, match="no TLS with it"):
        post(hook.url.replace("http:", "https:"), b"{}", clock=time.clock)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "nonsense",
            SECRET,
            f"ftp://host/{SECRET}",
            f"file:///{SECRET}",
            f"https:///{SECRET}",
        ),
        *(f"https://user:{SECRET}@host/", f"https://host:port/{SECRET}", f"https://[::1/{SECRET}"),
        *(f"https://host/a b/{SECRET}", f"https://host/\n{SECRET}", f"https://host/é{SECRET}"),
    ],
)
def test_what_is_no_address_is_refused_without_repeating_it(url, said):
    assert not notify(night(nights.regressed()), url, before=ANYTHING, say=said.append)
    (line,) = said
    assert line.startswith("the news was not delivered: the address ")
    assert SECRET not in line


# ---- the secret -------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 302, 404, 503])
def test_the_address_is_never_said(capfd, said, time, status):
    with serving((status, {"Location": f"http://x/{SECRET}"}, SECRET.encode())) as hook:
        notify(night(nights.error()), hook.url, before=ANYTHING, say=said.append, clock=time.clock)
    printed = capfd.readouterr()
    assert "shhh" not in "".join([*said, printed.out, printed.err])
    assert b"shhh" not in b"".join(hook.bodies)


@pytest.mark.parametrize("words", ["Unknown hook {}", "no T0 B0 {}", "{}", "{}."])
def test_an_answer_that_repeats_a_part_of_the_address_is_not_repeated(time, words):
    token = SECRET.rpartition("/")[2].upper()
    answer = (404, {}, words.format(token).encode())
    with serving(answer) as hook, pytest.raises(UndeliverableError) as caught:
        post(hook.url, b"{}", clock=time.clock)
    assert str(caught.value) == "it answered 404"


def test_a_mistake_of_ours_costs_the_night_nothing(said, monkeypatch):
    monkeypatch.setattr(news, "body", lambda *_args: 1 / 0)
    assert not notify(night(nights.error()), f"http://x/{SECRET}", before=ANYTHING, say=said.append)
    assert said == ["the news was not delivered: ZeroDivisionError"]


# ---- shapes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shape"),
    [
        ("https://hooks.slack.com/services/x", "slack"),
        ("https://HOOKS.SLACK.COM/services/x", "slack"),
        ("https://prod-23.westeurope.logic.azure.com:443/workflows/x", "teams"),
        ("https://a1.b2.environment.api.powerplatform.com/powerautomate/x", "teams"),
        ("https://contoso.webhook.office.com/x", "teams"),
        ("https://hooks.slack.com.example.org/x", "json"),
        ("https://nothooks.slack.com.example/x", "json"),
        ("https://example.org/hooks.slack.com", "json"),
    ],
)
def test_the_host_chooses_the_shape(url, shape):
    assert news.shape_of(url) == shape


def test_the_shape_can_be_named(said):
    with serving(200) as hook:
        assert notify(night(nights.error()), hook.url, before=ANYTHING, shape="slack")
        assert set(hook.document) == {"text", "blocks"}
        assert notify(night(nights.error()), hook.url, before=ANYTHING, shape="teams")
        assert set(hook.document) == {"type", "attachments"}
        arguments = {"before": ANYTHING, "say": said.append}
        assert not notify(night(nights.error()), hook.url, shape="irc", **arguments)
    assert said == ["the news was not delivered: 'irc' is no shape; there is json, slack, teams"]


def test_the_plain_shape_is_what_the_docs_say():
    from pathlib import Path

    tonight = night(nights.error(), nights.regressed())
    document = json.loads(body(tonight, news_of(tonight, ANYTHING), "json"))
    assert document["schema"] == 1
    assert document["sentence"] == tonight.sentence
    failure = next(one for one in document["failures"] if one["status"] == "REGRESSED")
    assert (failure["ratio"], failure["interval"]) == (1.08, [1.076, 1.084])
    docs = (Path(__file__).parents[1] / "docs" / "reports.md").read_text()
    for name in [*document, *failure]:
        assert f"`{name}`" in docs, name


def many(count, reason="because " * 100):
    """Return so many failures, each with a long reason."""
    one = nights.regressed(ratio=1.08)
    verdict = replace(one.record.verdicts[0], reason=reason)
    return [
        replace(
            one, record=replace(one.record, case=builders.make_case(id=f"c{n}"), verdicts=[verdict])
        )
        for n in range(count)
    ]


def test_a_slack_message_keeps_within_slacks_limits():
    for count in (1, 49, 1_000):
        for reason in ("because", "because " * 100, "<&>" * 1_000):
            tonight = night(*many(count, reason))
            document = json.loads(body(tonight, news_of(tonight, ANYTHING), "slack"))
            texts = [block["text"]["text"] for block in document["blocks"]]
            assert len(texts) <= 50
            assert max(map(len, texts)) <= 3_000
            assert sum(map(len, texts)) <= 12_000
            shown = sum(text.startswith("new: ") for text in texts)
            assert texts[-1] == "more: bench-lib report --run 0a1b2c3d --html night.html"
            if shown < count:
                assert texts[-2] == f"and {count - shown} more, which the report has"
            assert shown or count == 0


def test_a_teams_message_keeps_within_28_kb():
    for count in (1, 49, 1_000):
        tonight = night(*many(count))
        document = body(tonight, news_of(tonight, ANYTHING), "teams")
        assert len(document.decode().encode("utf-16-le")) < 28_000
        blocks = json.loads(document)["attachments"][0]["content"]["body"]
        texts = [block["inlines"][0]["text"] for block in blocks]
        shown = sum(text.startswith("new: ") for text in texts)
        assert shown
        assert texts[-1] == "more: bench-lib report --run 0a1b2c3d --html night.html"
        if shown < count:
            assert texts[-2] == f"and {count - shown} more, which the report has"


def test_the_plain_shape_is_bounded_too():
    tonight = night(*many(1_000))
    document = json.loads(body(tonight, news_of(tonight, ANYTHING), "json"))
    assert len(document["failures"]) == 200
    assert document["failures_left_out"] == 800


def test_slack_shows_names_as_they_are_and_mentions_nobody():
    tonight = night(*many(1, "<!channel> & <https://x|y>\n@here"))
    document = json.loads(body(tonight, news_of(tonight, ANYTHING), "slack"))
    block = document["blocks"][1]["text"]
    assert block["verbatim"] is True
    assert "&lt;!channel&gt; &amp; &lt;https://x|y&gt; @here" in block["text"]


def test_teams_shows_words_as_they_are():
    tonight = night(*many(1, "**bold** [x](http://y)"))
    card = json.loads(body(tonight, news_of(tonight, ANYTHING), "teams"))["attachments"][0]
    assert card["contentType"] == "application/vnd.microsoft.card.adaptive"
    assert (card["content"]["type"], card["content"]["version"]) == ("AdaptiveCard", "1.4")
    assert {block["type"] for block in card["content"]["body"]} == {"RichTextBlock"}
    (run,) = card["content"]["body"][1]["inlines"]
    assert run["text"].endswith("**bold** [x](http://y)")


def test_what_was_not_measured_is_not_said_to_fail_no_more():
    mended, gone = nights.make_entry(), nights.regressed()
    tonight = night(mended)
    news = news_of(tonight, as_before(mended, gone))
    document = json.loads(body(tonight, news, "slack"))
    lines = [block["text"]["text"] for block in document["blocks"]]
    name, other = mended.record.case.id, gone.record.case.id
    assert f"fails no more: {name} on mi300x: OK" in lines
    assert f"failed in the last run: {other} on mi300x: not measured" in lines


def test_every_kind_of_news_is_put_into_words():
    old, new, mended = nights.regressed(), nights.error(), nights.make_entry()
    torn = nights.make_run(run_id="0d0d0d0d", key="mi250x", ended=None)
    unjudged = nights.make_entry(status=None, hardware=nights.MI250X, run_id="0d0d0d0d")
    tonight = night(old, new, mended, unjudged, runs=[nights.make_run(), torn])
    before = Before(as_before(old, mended).failing, frozenset({"mi300x", "mi210"}))
    document = json.loads(body(tonight, news_of(tonight, before), "slack"))
    lines = [block["text"]["text"] for block in document["blocks"]][1:]
    assert [line.partition(" ")[0] for line in lines] == [
        "new:",
        "run",
        "nothing",
        "fails",
        "mi250x:",
        "still:",
        "more:",
    ]
    words = "REGRESSED, 1.080 times latency (1.076 to 1.084), since 2026-11-18 (+8.0%), with torch "
    assert words in lines[-2]
    assert "ERROR, measured last on" in lines[0]
    assert lines[2] == "nothing was measured on mi210, unlike the night before"


# ---- the command ------------------------------------------------------------------------


@pytest.fixture
def report(tmp_path, monkeypatch, capfd):
    """Return a function that runs ``bench-lib report`` in a folder of its own."""
    from bench_lib.cli import main

    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("bench_lib.storage.history.utc_now", lambda: nights.stamp(minutes=360))

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["bench-lib", "report", *words])
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
        printed = capfd.readouterr()
        return status, printed.out + printed.err

    return run


def test_the_command_posts_what_changed_and_then_keeps_quiet(report, tmp_path):
    case = nights.make_case("one")
    written(tmp_path / "history", 2, passed(case))
    written(tmp_path / "history", 1, failed(case))
    with serving(200) as hook:
        status, printed = report("--notify", hook.url)
        assert (status, len(hook.bodies)) == (0, 1)
        assert "posted: " in printed
        assert SECRET not in printed
        written(tmp_path / "history", 0, failed(case))
        status, printed = report("--notify", hook.url)
        assert (status, len(hook.bodies)) == (0, 1)
    assert "nothing changed since the night before" in printed
    assert hook.document["failures"][0]["case_id"] == case.id


def test_the_command_ends_well_where_nobody_takes_the_news(report, tmp_path):
    written(tmp_path / "history", 0, failed(nights.make_case("one")))
    with serving(404) as hook:
        status, printed = report("--notify", hook.url, "--markdown", "comment.md")
    assert status == 0
    assert "the news was not delivered: it answered 404" in printed
    assert SECRET not in printed
    assert "**ERROR**" in (tmp_path / "comment.md").read_text()


LINK = "https://example.org/runs/4?a=b&c=d"


def test_a_link_leads_to_the_report(report, tmp_path):
    written(tmp_path / "history", 0, failed(nights.make_case("one")))
    with serving(200) as hook:
        words = ("--notify", hook.url, "--link", LINK, "--notify-as")
        report(*words, "slack")
        assert hook.document["blocks"][-1]["text"]["text"] == (
            "<https://example.org/runs/4?a=b&amp;c=d|Open the report>"
        )
        report(*words, "teams")
        card = hook.document["attachments"][0]["content"]
        assert [action["url"] for action in card["actions"]] == [LINK]
        report(*words, "json")
        assert hook.document["report"] == LINK
    assert b"more: bench-lib" not in b"".join(hook.bodies)


def test_in_github_actions_the_link_is_the_run_s(report, tmp_path, monkeypatch):
    written(tmp_path / "history", 0, failed(nights.make_case("one")))
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://github.com")
    monkeypatch.setenv("GITHUB_REPOSITORY", "someone/suite")
    monkeypatch.setenv("GITHUB_RUN_ID", "42")
    with serving(200) as hook:
        report("--notify", hook.url)
    assert hook.document["report"] == "https://github.com/someone/suite/actions/runs/42"


@pytest.mark.parametrize("link", ["javascript:alert(1)", "https://a|b", "https://a>b", "x", ""])
def test_what_is_no_address_is_no_link(link):
    tonight = night(nights.error())
    with serving(200) as hook:
        assert notify(tonight, hook.url, before=ANYTHING, link=link)
    assert hook.document["report"] is None


def test_a_night_in_which_nothing_ran_is_news_and_the_last_one_s_failures_are_none(
    report, tmp_path, monkeypatch
):
    written(tmp_path / "history", 1, passed(nights.make_case("one")))
    written(tmp_path / "history", 0, failed(nights.make_case("one")))
    monkeypatch.setattr("bench_lib.storage.history.utc_now", lambda: nights.stamp(-3))
    with serving(200) as hook:
        report("--notify", hook.url)
    assert hook.document["sentence"].startswith("Nothing has run for 3 days, since 2026-11-20. ")
    assert hook.document["late_days"] == 3
    assert [failure["new"] for failure in hook.document["failures"]] == [False]


# --- over several nights -------------------------------------------------------------------


def slowed(told_by=nights.RUN, beside=()) -> NightSlowDown:
    """Return what only several nights show, told by this night's run or by another."""
    found = SlowDown(
        since="2026-11-17T02:00:00Z",
        run="0e0e0e0e",
        cases=["a", "b", "c", "d"],
        shared="precision fp16",
        ratio=1.0031,
        interval=(1.0022, 1.004),
        nights=4,
        told_by=told_by,
        beside=list(beside),
        changes=["torch 2.9.0 -> 2.10.0"],
    )
    return NightSlowDown(found, "mi300x", nights.RUN)


def test_a_slow_down_over_several_nights_is_news_in_the_first_night_that_tells_it():
    red = nights.make_run(exit_status=1, counts={"OK": 1})
    new = replace(night(nights.improved(), runs=[red]), slow_downs=[slowed()])
    assert new.sentence.startswith("No case failed")
    told = "4 cases of precision fp16 slower by 0.31% since 2026-11-17, as several nights show"
    assert told in new.sentence
    told = news_of(new, Before())
    assert (bool(told), told.red, [one.found.since for one in told.slowed]) == (
        True,
        [],
        ["2026-11-17T02:00:00Z"],
    )
    (message,) = json.loads(body(new, told, "json"))["slower_over_nights"]
    assert (message["hardware_key"], message["shared"]) == ("mi300x", "precision fp16")
    line = (
        "mi300x: SLOWER since 2026-11-17: 4 cases of precision fp16 by 0.31% (0.22% to 0.40%), as "
        "4 nights show together: a, b, c and 1 more; with torch 2.9.0 -> 2.10.0"
    )
    assert slowed().words == line
    assert "SLOWER since 2026-11-17" in as_markdown(new)
    assert line.replace(">", "&gt;") in page(new)


@pytest.mark.parametrize("known", [slowed(told_by="0c0c0c0c"), slowed(beside=["e"])])
def test_a_slow_down_that_is_known_is_no_news(known):
    later = replace(night(), slow_downs=[known])
    assert "several nights" not in later.sentence
    assert not news_of(later, Before()).slowed
    assert "SLOWER since 2026-11-17" in as_markdown(later)
