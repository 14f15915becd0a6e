"""The set-up on the page about MySQL works as it is written, with a real MariaDB."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import oncemore
from tests.servers import mariadb

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "keep-the-log-in-mysql.md"


def read_block(language: str) -> str:
    found = re.search(rf"(?ms)^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"))
    assert found
    return found[1]


@pytest.mark.skipif(mariadb.ADDRESS in os.environ, reason="creates users, so it must be our own server")
def test_the_users_and_commands_of_the_page_work(mysql_database: str, tmp_path: Path) -> None:
    server = mysql_database.rpartition("/")[0].replace("oncemore@", "")
    try:
        with mariadb.connect(mysql_database) as boss, boss.cursor() as cursor:
            for statement in filter(str.strip, read_block("sql").split(";")):
                cursor.execute(statement)
        environment, said = dict(os.environ), ""
        for line in read_block("sh").replace("db.example", server.partition("//")[2]).splitlines():
            name, *words = shlex.split(line, comments=True)
            if name == "export":
                environment |= dict(word.split("=", 1) for word in words)
                continue
            command = [sys.executable, *words] if name == "python" else [sys.executable, "-m", name, *words]
            done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, done
            said += done.stdout
        assert "MariaDB" in said
        assert "second-password" not in said

        @oncemore.step(effect="idempotent")
        def greet(name: str) -> str:
            return f"hello {name}"

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MYSQL_PWD", environment["MYSQL_PWD"])
            with oncemore.open(environment["ONCEMORE_STORE"]) as engine:
                assert [greet.bind(engine)("reader") for _ in range(2)] == ["hello reader"] * 2
    finally:
        with mariadb.connect(mysql_database) as boss, boss.cursor() as cursor:
            cursor.execute("drop database if exists shop")
            cursor.execute("drop user if exists admin, app")
