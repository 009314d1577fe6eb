"""What Spark's session is started with."""

from __future__ import annotations

from pathlib import Path

from ferry.driver.session import shared_classes


def test_an_archive_of_classes_is_used_where_there_is_one(tmp_path: Path) -> None:
    archive = tmp_path / "classes.jsa"
    assert shared_classes(archive) == {}
    archive.touch()
    (options,) = shared_classes(archive).values()
    assert f"-XX:SharedArchiveFile={archive} " in options
