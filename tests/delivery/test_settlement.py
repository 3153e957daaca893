"""Dead letters keep what a person needs, in texts that can be stored."""

from __future__ import annotations

from millstream.delivery.settlement import ERROR_SIZE, TRACEBACK_SIZE, DeadLetter, Reason


def fall(depth: int) -> None:
    if depth == 0:
        raise ValueError("x" * 5000)
    (fall if depth % 2 else lambda left: fall(left))(depth - 1)  # two sorts of frames: none are folded together


def test_a_long_failure_keeps_the_start_of_its_error_and_the_end_of_its_traceback() -> None:
    try:
        fall(300)
    except ValueError as error:
        letter = DeadLetter.of(Reason.RETRIES, error)
    assert letter.error == ("ValueError: " + "x" * 5000)[:ERROR_SIZE]
    assert letter.traceback.startswith("…\n")
    assert letter.traceback.endswith("xxx\n")
    assert len(letter.traceback) <= TRACEBACK_SIZE + 2


def test_the_cause_of_a_failure_is_told() -> None:
    try:
        try:
            raise OSError("bank is away")
        except OSError as error:
            raise ValueError("not charged") from error
    except ValueError as error:
        letter = DeadLetter.of(Reason.RETRIES, error)
    assert letter.error == "ValueError: not charged"
    assert "bank is away" in letter.traceback


def test_texts_can_always_be_encoded() -> None:
    letter = DeadLetter.of(Reason.REJECTED, ValueError("name \udcff"), "reason \ud800")
    assert (letter.error, "\udcff" in letter.traceback) == ("reason ?", False)
    letter.traceback.encode()


def test_an_exception_that_cannot_print_itself_is_told_of_all_the_same() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    assert "Mute" in DeadLetter.of(Reason.RETRIES, Mute()).error
