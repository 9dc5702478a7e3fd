"""What is kept of what ranks print."""

from __future__ import annotations

import os

from pytest_ddpperf.launch import outputs


def test_a_short_text_is_kept_as_it_is() -> None:
    with outputs.open_file() as file:
        file.write(b"hello\n")
        assert outputs.read(file, "stdout") == "hello\n"


def test_of_a_long_text_the_end_is_kept_and_the_cut_is_named() -> None:
    with outputs.open_file() as file:
        file.write(b"0123456789")
        assert (
            outputs.read(file, "rank 1's stdout", 4)
            == "[the first 6 of 10 bytes of rank 1's stdout are cut here]\n6789"
        )


def test_reading_does_not_move_the_writers_place_and_survives_any_bytes() -> None:
    with outputs.open_file() as file:
        os.write(file.fileno(), b"a\xff")
        assert outputs.read(file, "stdout") == "a\ufffd"
        os.write(file.fileno(), b"b")
        assert outputs.read(file, "stdout") == "a\ufffdb"


def test_the_file_has_no_name_that_could_be_left_behind() -> None:
    with outputs.open_file() as file:
        assert os.fstat(file.fileno()).st_nlink == 0
