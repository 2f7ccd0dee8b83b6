"""Commits as people read them: subject, author, and an address where the remote gives one."""

import pytest
from repositories import Repository

from bench_lib.environment.commits import Checkout, commit_address

HASH = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://github.com/owner/name.git", "https://github.com/owner/name/commit/"),
        ("git@github.com:owner/name.git", "https://github.com/owner/name/commit/"),
        ("ssh://git@git.example.org:2222/owner/name", "https://git.example.org/owner/name/commit/"),
        ("https://git.example.org:8443/a/b/", "https://git.example.org:8443/a/b/commit/"),
        ("https://user:secret@gitlab.com/a/b/c.git", "https://gitlab.com/a/b/c/-/commit/"),
        ("git@bitbucket.org:a/b.git", "https://bitbucket.org/a/b/commits/"),
        ("git://git.example.org/a.git", "https://git.example.org/a/commit/"),
    ],
)
def test_a_remote_gives_a_commit_s_address(remote, address):
    assert commit_address(remote, HASH) == address + HASH


@pytest.mark.parametrize(
    "remote",
    [
        *("", "/srv/git/name.git", "../name", "file:///srv/name.git", "C:\\git\\name"),
        *("https://", "https://host:x/a", "javascript://host/a"),
    ],
)
def test_a_folder_gives_none(remote):
    assert commit_address(remote, HASH) == ""


def test_an_address_holds_no_markup():
    address = commit_address('https://host/a"><script>', HASH)
    assert address == f"https://host/a%22%3E%3Cscript%3E/commit/{HASH}"


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    made = Repository(tmp_path_factory.mktemp("commits") / "repository")
    made.git("remote", "add", "upstream", "git@github.com:owner/name.git")
    subjects = ("first", "second: a | b", "third")
    return made.folder, [made.commit(f"{subject}\n\nbody") for subject in subjects]


def test_the_commits_between_two_are_told(repository):
    folder, hashes = repository
    found = Checkout(folder).between(hashes[0][:12], hashes[2])
    assert [each.subject for each in found] == ["third", "second: a | b"]
    assert found[0].hash == hashes[2]
    assert found[0].author == "Ada"
    assert found[0].address == f"https://github.com/owner/name/commit/{hashes[2]}"


@pytest.mark.parametrize("name", ["f" * 40, "--all", "main", "", "HEAD"])
def test_what_is_no_commit_of_the_repository_is_not_told(repository, name):
    folder, hashes = repository
    assert Checkout(folder).between(name, hashes[2]) == []
    assert Checkout(folder).between(hashes[0], name) == []


def test_a_folder_without_a_repository_tells_nothing(tmp_path):
    assert Checkout(tmp_path).between("a" * 40, "b" * 40) == []
