"""Serving the page's files, and building them or saying why not (T3, S6)."""

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from holdfast.web import is_page_built, page_routes

ROOT = Path(__file__).parents[2]


@pytest.fixture
def static(tmp_path: Path) -> Path:
    """A page of a few files."""
    folder = tmp_path / "static"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html>")
    (folder / "assets" / "index-abc.js").write_text("let x;")
    (folder / "assets" / "index-abc.js.gz").write_bytes(gzip.compress(b"let x;"))
    (folder / "theme.js").write_text("let z;")
    (folder / "secret.env").write_text("KEY=1")
    return folder


def client_for(static: Path) -> TestClient:
    return TestClient(Starlette(routes=page_routes(static)))


def test_files_have_their_types_and_only_those_with_a_hash_in_their_name_are_kept_for_ever(static: Path) -> None:
    """S6: each under the page's own policy."""
    client = client_for(static)
    page, script, theme = client.get("/"), client.get("/assets/index-abc.js"), client.get("/theme.js")
    assert (page.headers["content-type"], page.headers["cache-control"]) == ("text/html; charset=utf-8", "no-cache")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "immutable" in script.headers["cache-control"] and theme.headers["cache-control"] == "no-cache"
    for answer in (page, script, theme):
        assert answer.headers["content-security-policy"].split("; ") == [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' data: blob:",
            "connect-src 'self'",
            "font-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
        assert answer.headers["vary"] == "Accept-Encoding"


def test_a_file_is_sent_compressed_to_whoever_takes_it_so_and_not_at_all_to_whoever_has_it(static: Path) -> None:
    """Small and quick."""
    client = client_for(static)
    packed = client.get("/assets/index-abc.js", headers={"Accept-Encoding": "gzip"})
    plain = client.get("/assets/index-abc.js", headers={"Accept-Encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.text == plain.text == "let x;"
    whole = client.get("/", headers={"Accept-Encoding": "gzip"})
    assert whole.text == "<!doctype html>" and "content-encoding" not in whole.headers
    again = client.get("/assets/index-abc.js", headers={"If-None-Match": plain.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == plain.headers["etag"] and "immutable" in again.headers["cache-control"]
    (static / "assets" / "index-abc.js").write_text("let y;")
    changed = client_for(static).get("/assets/index-abc.js", headers={"If-None-Match": plain.headers["etag"]})
    assert changed.status_code == 200


def test_nothing_but_the_page_is_served(static: Path) -> None:
    """Neither files of other kinds nor paths that lead out."""
    client = client_for(static)
    for path in ("/secret.env", "/assets/index-abc.js.gz", "/assets/../../routes.py", "/assets/%2e%2e/secret.env"):
        assert client.get(path).status_code == 404


def test_without_a_built_page_it_is_said_how_to_build_it(tmp_path: Path) -> None:
    """A plain page, and the server works."""
    assert not is_page_built(tmp_path)
    answer = client_for(tmp_path).get("/")
    assert answer.status_code == 404
    assert "make page" in answer.text and "/openapi.json" in answer.text
    assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    # Once it is built nobody shall be shown this again.
    assert answer.headers["cache-control"] == "no-store"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the script needs, elsewhere, so that nothing here is touched."""
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "ui", folder / "ui", ignore=shutil.ignore_patterns("node_modules"))
    (folder / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "build_page.py", folder / "scripts")
    return folder


def run_script(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """With no programs to be found and no index to fetch any from."""
    nowhere = "http://127.0.0.1:9/"
    environment = {
        "PATH": str(checkout / "empty"),
        "HOME": os.environ.get("HOME", "/"),
        "PIP_INDEX_URL": nowhere,
        "PIP_RETRIES": "0",
        "PIP_NO_CACHE_DIR": "1",
    }
    command = [sys.executable, "scripts/build_page.py", *arguments]
    return subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_without_node_and_network_the_script_says_what_is_missing(checkout: Path) -> None:
    """By name, with what to do, and no stack trace."""
    done = run_script(checkout)
    assert done.returncode == 1
    assert "needs Node 20.19 or later" in done.stderr
    assert "The server works without the page." in done.stderr
    assert "Traceback" not in done.stderr


def test_a_page_that_is_current_is_not_built_again(checkout: Path) -> None:
    """The stamp is a hash of the sources; a changed source is noticed."""
    assert run_script(checkout, "--check").returncode == 1
    digest = subprocess.run(
        [sys.executable, "-c", "import build_page; print(build_page.source_digest(), end='')"],
        cwd=checkout / "scripts",
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    static = checkout / "src" / "holdfast" / "web" / "static"
    static.mkdir(parents=True)
    (static / ".built-from").write_text(digest)
    done = run_script(checkout)
    assert (done.returncode, done.stdout.strip()) == (0, "The page is current; nothing to do.")
    (checkout / "ui" / "index.html").write_text("changed")
    assert run_script(checkout, "--check").returncode == 1
