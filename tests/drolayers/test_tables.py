"""CSV files: what is not a table of named numbers is refused, with file and line."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

import drolayers as dro
from drolayers import tables


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"\na,b\n1,2\n", "Line 1 of .* is blank"),
        (b"a,b,a\n1,2,3\n", r"Line 1 of .* several columns called \['a'\]"),
        (b"a, b ,b\n1,2,3\n", r"Line 1 of .* several columns called \['b'\]"),
        (b"a,,b\n1,2,3\n", "Line 1 of .* no name for column 2"),
        (b",a,b\n0,1,2\n", "Line 1 of .* no name for column 1"),
        (b"1.0,2.0\n3.0,4.0\n", "Line 1 of .* add a header"),
        (b"a,b\n1,2\n\n3,4\n", "Line 3 of .* is blank"),
        (b"a,b\n1,2\n  \n3,4\n", "Line 3 of .* is blank"),
        (b"a,b\n1,2\n,\n3,4\n", "Line 3 of .* is blank"),
        (b"a,b\n1,2\n3,4\n\n", "Line 4 of .* is blank"),
        (b"a\n1\n\n", "Line 3 of .* is blank"),
        (b"a,b\n1,2\n3\n", "Line 3 of .* 1 entries where there are 2"),
        (b"a,b\n1,2\n3,4,5\n", "Line 3 of .* 3 entries where there are 2"),
        (b"a,b\n1,2\n3,4,\n", "Line 3 of .* 3 entries where there are 2"),
        (b"a;b\n1;2\n", r"Line 1 of .* has ';' between its columns: save the file with commas"),
        (b"a;b\n1,5;2,5\n", "has ';' between its columns"),
        (b"a\tb\n1\t2\n", r"has '\\t' between its columns"),
        (b"a b\n1 2\n", r"lacks the columns \['a', 'b'\]"),
        (b"a,b\n1,2\n3,\xe9\n", "Line 3 of .* not in UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), "Line 1 of .* UTF-16"),
        ("a,b\n1,2\n".encode("utf-32"), "Line 1 of .* UTF-32"),
        (b"\x00\x00\xfe\xff" + "a,b\n1,2\n".encode("utf-32-be"), "Line 1 of .* UTF-32"),
        (b"\xfe\xff" + "a,b\n1,2\n".encode("utf-16-be"), "Line 1 of .* UTF-16"),
        ("a,b\n1,2\n".encode("utf-16-le"), "Line 1 of .* zero byte"),
        (b'a,b\n1,2\n"3,4\n', "Line 3 of .* is not CSV"),
        (b"a,b\n1,2\n1_000,4\n", "Line 3 of .* needs a number"),
        (b"a,b\n1,2\n3,nan\n", "Line 3 of .* NaN"),
        (b"a,b\n1,2\n3,inf\n", "Line 3 of .* infinity"),
        (b"a,b\n", "a header but no rows"),
        (b'a,b\n1,2\n"3,5",4\n', "Line 3 of .* needs a number"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, data: bytes, says: str) -> None:
    file = tmp_path / "data.csv"
    file.write_bytes(data)
    with pytest.raises(dro.ShapeError, match=says) as caught:
        tables.read(file, ["a", "b"] if data != b"a\n1\n\n" else ["a"])
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_read(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    for data in (b"a,b\n1,2\n3,4", b"\xef\xbb\xbfa, b\r\n1, 2\r\n3, 4\r\n", b'"a","b"\n"1",2\n3e0,4.0\n'):
        file.write_bytes(data)
        assert tables.header(file) == ["a", "b"]
        assert tables.read(file, ["b", "a"]) == [[2.0, 1.0], [4.0, 3.0]]
    file.write_bytes("né,b\nx,nan\ny,2\n".encode())
    assert tables.header(file) == ["né", "b"]
    assert str(tables.read(file, [], ["b"])) == "[[nan], [2.0]]"


def test_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    tables.write(target, ["a"], [["1"], ["2"]])
    assert target.read_bytes() == b"a\n1\n2\n"
    with pytest.raises(OSError, match="No such file"):
        tables.write(tmp_path / "no" / "out.csv", ["a"], [["1"]])
    assert list(tmp_path.iterdir()) == [target]


def test_links_stay_and_what_they_lead_to_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "real.csv", tmp_path / "link.csv"
    target.write_text("old")
    link.symlink_to(target)
    tables.write(link, ["a"], [["1.0"]])
    assert link.is_symlink()
    assert target.read_text().splitlines() == ["a", "1.0"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
def test_pipes_and_devices_are_written_to_not_replaced(tmp_path: Path) -> None:
    pipe, heard = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()), daemon=True)
    reader.start()
    tables.write(pipe, ["a"], [["1.0"]])
    reader.join(10)
    link = tmp_path / "link"
    link.symlink_to(pipe)
    again = threading.Thread(target=lambda: heard.append(pipe.read_text()), daemon=True)
    again.start()
    tables.write(link, ["a"], [["1.0"]])
    again.join(10)
    assert heard[0] == heard[1]
    assert heard[0].splitlines() == ["a", "1.0"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
